"""No advice and no contexts break a promise of a guard, and some reach it: over 30,000 adversarial runs.

Each guard is run on batches in which every run has its own kind of contexts and of advice. `Guarded` learns of the end
only through `Observation.remaining`, so that one compiled scan serves all horizons (0 in HORIZONS: not known).
"""

import functools
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.theory import clipped_prediction_error, largest_share, limit_stiffness, mla_robd_bound, worst_future
from matrices import spd

PROMISE = 1e-9  # relative, in double precision
HORIZONS = (1, 2, 24, 200)
ROUNDING = 1e-29  # a bill of this size is what an error of 1e-15 in an action costs: none


def _cosh(x, y):
    return jnp.sum(jnp.cosh((x - y) / 4) - 1) * 16 + 0.1 * jnp.sum((x - y) ** 2)


@functools.cache
def problem_of(kind: str, dim: int) -> ec.Problem:
    if dim == 1:
        A, switching = np.eye(1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
    else:
        A, switching = spd(dim, 5, 1.0, 6.0), ec.Mahalanobis(spd(dim, 6, 0.4, 5.0))
    return {
        "quadratic": lambda: ec.Problem(ec.Quadratic(A), switching),
        "curved": lambda: ec.Problem(ec.CurvedTracking(), switching),
        "box": lambda: ec.Problem(ec.Quadratic(A), switching, ec.Box(-0.5, 0.8)),
        "convex box": lambda: ec.Problem(ec.ConvexCost(_cosh, strong_convexity=1.2), switching, ec.Box(-0.5, 0.8)),
    }[kind]()


def hostile(kind: str, dim: int, steps: int, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x0, contexts, advice): contexts wander, jump, alternate or stay at x0; advice is far, wild, close or no number."""
    rng = np.random.default_rng(seed)
    bounded = "box" in kind
    x0 = rng.uniform(-0.5, 0.8, size=(runs, dim)) if bounded else rng.normal(size=(runs, dim))
    noise = rng.normal(size=(runs, steps, dim))
    shapes = [
        noise,
        np.cumsum(noise, axis=1) / 3,
        noise * (rng.uniform(size=(runs, steps, 1)) < 0.1) * 10,
        noise[:, :1] * (-1.0) ** np.arange(steps)[None, :, None],
        np.broadcast_to(x0[:, None], noise.shape) - noise * (np.arange(steps) > steps // 2)[None, :, None],
        np.broadcast_to(noise[:, :1], noise.shape),
    ]
    contexts = np.choose(rng.integers(len(shapes), size=(runs, 1, 1)), shapes)
    size = 10.0 ** rng.integers(-2, 7, size=(runs, 1, 1))
    proposals = [
        size * rng.normal(size=noise.shape),
        np.broadcast_to(size * noise[:, :1], noise.shape),
        x0[:, None] + 0 * noise,
        contexts + 0.3 * rng.normal(size=noise.shape),
        -size * contexts,
    ]
    advice = np.choose(rng.integers(len(proposals), size=(runs, 1, 1)), proposals)
    broken = np.array([np.nan, np.inf, -np.inf, 1e200, 1e308])[rng.integers(5, size=(runs, steps))]
    hits = (rng.uniform(size=(runs, steps)) < 0.2) & (rng.uniform(size=(runs, 1)) < 0.3)
    advice[..., 0] = np.where(hits, broken, advice[..., 0])
    if kind == "curved":
        curvature = 10.0 ** rng.uniform(0, 3, size=(runs, steps, 1))
        contexts = np.concatenate([contexts, curvature], axis=-1)
    return x0, contexts, advice


def alone(details):
    """The figures of a guard with one promise."""
    return {name: figure[..., 0] for name, figure in details.items()}


def play(agent, problem, x0, contexts, horizon, known_at_start=None):
    """(bill so far, details, action) of each step, where the horizon may be traced; 0: not known.

    A guard that knows the horizon at the start reserves less.
    """
    last = jnp.where(horizon == 0, 10**6, horizon - 1)

    def act(carry, now):
        previous, state = carry
        step, context = now
        state, action, info = agent.step(problem, state, Observation(context, previous, step, last - step))
        paid = problem.hitting(action, context) + problem.switching(action, previous)
        return (action, state), (paid, alone(info.details), action)

    start = Start(x0, jnp.zeros((0, contexts.shape[-1])), known_at_start)
    steps = jnp.arange(contexts.shape[0])
    _, (paid, details, actions) = jax.lax.scan(act, (x0, agent.init(problem, start)), (steps, contexts))
    return jnp.cumsum(paid), details, actions


@pytest.mark.parametrize(
    ("kind", "dim", "horizons", "runs"),
    [
        ("quadratic", 1, (0, *HORIZONS), 2500),
        ("quadratic", 3, (0, *HORIZONS), 1500),
        ("curved", 1, (0, *HORIZONS), 1500),
        ("curved", 3, (0, 1, 2, 24), 1000),
        ("box", 1, (0, *HORIZONS), 400),
        ("box", 3, (0, *HORIZONS), 400),
        ("convex box", 1, (0, *HORIZONS), 400),
        ("convex box", 3, (0, 1, 2, 24), 300),
    ],
)
def test_guarded_never_pays_more_than_promised(kind, dim, horizons, runs):
    steps = max(horizons)
    problem = problem_of(kind, dim)
    x0, contexts, advice = hostile(kind, dim, steps, runs, seed=dim + len(kind))
    horizon = np.asarray(horizons)[np.arange(runs) % len(horizons)]
    slack = 10.0 ** np.random.default_rng(1).uniform(-2, 1, size=runs)

    @jax.jit
    @jax.vmap
    def bills(x0, contexts, advice, horizon, slack):
        return play(ec.Guarded(ec.advisors.Fixed(advice), slack=slack), problem, x0, contexts, horizon)[:2]

    bill, details = jax.device_get(bills(x0, contexts, advice, horizon, slack))
    runs_on = (horizon[:, None] == 0) | (np.arange(steps) < horizon[:, None])
    allowed = (1 + slack[:, None]) * details["reference"]
    paid = allowed > ROUNDING
    used = np.where(runs_on & paid, bill / np.where(paid, allowed, 1.0), 0.0)
    assert np.isfinite(np.where(runs_on, bill, 0.0)).all()
    assert used.max() <= 1 + PROMISE
    assert (np.where(runs_on & ~paid, bill, 0.0) <= ROUNDING).all()  # the expert paid nothing: nor do we
    assert (runs_on & ~paid)[:, 0].sum() > 5
    for length in horizons[1:]:  # at the end of a known horizon the promise is used up to the last digit
        assert used[horizon == length].max() >= 1 - 1e-9, length
    assert 0.3 < details["active"].mean() < 0.98


@pytest.mark.parametrize("dim", [1, 3])
def test_guarded_by_distance_never_pays_more_than_promised(dim):
    """Movement billed by distance: the triangle inequality alone, slack 0 among the slacks; scored against the oracle too."""
    steps, runs, scored = 24, 800, 200
    problem = ec.Problem(ec.Quadratic(np.diag(np.linspace(1.0, 3.0, dim))), ec.LinearSwitching(0.7))
    x0, contexts, advice = hostile("quadratic", dim, steps, runs, seed=40 + dim)
    slack = np.where(np.arange(runs) % 4 == 0, 0.0, 10.0 ** np.random.default_rng(1).uniform(-2, 1, runs))

    @jax.jit
    @jax.vmap
    def outcome(x0, contexts, advice, slack):
        instance = ec.Instance(x0, contexts)
        guard = ec.Guarded(ec.advisors.Fixed(advice), expert=ec.HittingMinimizer(), slack=slack)
        return ec.rollout(guard, problem, instance), ec.rollout(ec.HittingMinimizer(), problem, instance).cost

    run, expert = jax.device_get(outcome(x0, contexts, advice, slack))
    oracles = jax.jit(jax.vmap(lambda x0, contexts: ec.oracle(problem, ec.Instance(x0, contexts)).cost))
    best = np.asarray(oracles(x0[:scored], contexts[:scored]))  # each takes O(T^2)
    bill, details = np.cumsum(run.hitting + run.switching, axis=1), alone(run.info.details)
    allowed = (1 + slack[:, None]) * details["reference"]
    used = bill / np.where(allowed > ROUNDING, allowed, np.inf)
    assert bool(run.converged.all())
    assert float(used.max()) <= 1 + PROMISE
    assert bool((np.where(allowed > ROUNDING, 0.0, bill) <= 1e-12).all())
    np.testing.assert_allclose(details["reference"][:, -1], expert, rtol=1e-12)
    assert bool((run.cost[:scored] >= best * (1 - 1e-9)).all())
    assert float(used[slack > 0][:, -1].max()) >= 1 - 1e-9  # and some reach it
    assert 0.2 < float(details["active"].mean()) < 0.98
    # No more is kept back than the way to the expert, which is where the contexts are.
    reserved = np.asarray(jax.jit(jax.vmap(jax.vmap(problem.switching)))(run.actions, contexts))
    held = details["active"][:, :-1] & (reserved > 0.01 * allowed)[:, :-1]
    assert held.sum() > 100
    np.testing.assert_allclose((bill + reserved)[:, :-1][held], allowed[:, :-1][held], rtol=1e-9)


def diagonal(dim: int) -> ec.Problem:
    A, Q = np.diag(np.linspace(1.0, 3.0, dim)), np.diag(np.linspace(5.0, 0.7, dim))
    return ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))


def graded(dim: int) -> ec.Problem:
    """Condition 1e8: eigenvalues from 1e-4 to 1e4 in unrelated bases."""
    rng, parts = np.random.default_rng(3), []
    for _ in range(2):
        basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        matrix = basis @ np.diag(np.geomspace(1e-4, 1e4, dim)) @ basis.T
        parts.append((matrix + matrix.T) / 2)
    return ec.Problem(ec.Quadratic(parts[0]), ec.Mahalanobis(parts[1]))


def exact_bills(problem, x0, contexts, actions) -> np.ndarray:
    """The cost of every prefix, added up in rational numbers and rounded once."""
    exact = np.vectorize(Fraction, otypes=[object])
    A, Q, x = exact(problem.hitting.A), exact(problem.Q), exact(np.concatenate([x0[:, None], actions], axis=1))
    missed, moved = x[:, 1:] - exact(contexts), x[:, 1:] - x[:, :-1]
    steps = (missed * (missed @ A)).sum(axis=-1) / 2 + (moved * (moved @ Q)).sum(axis=-1)
    return np.cumsum(steps, axis=1).astype(float)


TARIFF = 10.0 ** np.random.default_rng(8).uniform(-1, 1, size=24)

# Every setting of the guard: (problem, what is known of the run, how many runs). As many runs, as few programs.
COMPETITIVE = {
    "line": (problem_of("quadratic", 1), {}, 1200),
    "matrices": (problem_of("quadratic", 3), {}, 1200),
    "condition 1e8": (graded(3), {}, 1200),
    "varying": (
        ec.Problem(ec.CurvedTracking(0.5, 20.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)),
        {},
        1200,
    ),
    "varying matrices": (ec.Problem(ec.CurvedTracking(0.5, 20.0), ec.Mahalanobis(spd(3, 6, 0.4, 5.0))), {}, 1000),
    "tariff": (
        ec.Problem(ec.CurvedTracking(0.1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)),
        {"weights": TARIFF},
        1200,
    ),
    "allowance": (problem_of("quadratic", 1), {"allowance": 0.3}, 1200),
    "interval": (problem_of("quadratic", 1), {"contexts": (-0.5, 0.8)}, 1200),
    "box": (diagonal(3), {"contexts": (-0.5, 0.8)}, 800),
    "varying in an interval": (
        ec.Problem(ec.CurvedTracking(0.5, 20.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)),
        {"contexts": (-0.5, 0.8)},
        1200,
    ),
    "bounded actions": (
        ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(-0.5, 0.9)),
        {"contexts": (-0.5, 0.8)},
        800,
    ),
}


def fitting(name: str, steps: int, runs: int, seed: int):
    """Hostile runs whose contexts are such as the setting takes them to be."""
    problem, options, _ = COMPETITIVE[name]
    dim, rng = problem.Q.shape[0], np.random.default_rng(seed)
    x0, contexts, advice = hostile("quadratic", dim, steps, runs, seed)
    if "contexts" in options:
        contexts, x0 = np.clip(contexts, -0.5, 0.8), np.clip(x0, -0.5, 0.9)
    if isinstance(problem.hitting, ec.CurvedTracking):
        drawn = np.where(rng.uniform(size=(runs, steps)) < 0.5, 0.5, 20.0) * 10 ** rng.uniform(-0.3, 0.3, (runs, steps))
        drawn = np.clip(drawn, 0.5, 20.0)  # half of them at an end, outside of which there is no promise
        weights = np.tile(TARIFF, -(-steps // 24))[:steps] * np.ones((runs, 1)) if "weights" in options else drawn
        contexts = np.concatenate([contexts, weights[..., None]], axis=-1)
    return x0, contexts, advice


share_of = eqx.filter_jit(largest_share)


@eqx.filter_jit
def competitive_bills(problem, known, horizon, *runs):
    """What `play` gives for each run, and its optimum. Settings that differ in numbers only share a program."""

    def bills(x0, contexts, advice, ratio):
        agent = ec.Competitive(ec.advisors.Fixed(advice), ratio=ratio, horizon=horizon, **known)
        return play(agent, problem, x0, contexts, jnp.asarray(0)), ec.oracle(problem, ec.Instance(x0, contexts)).cost

    return jax.vmap(bills)(*map(jnp.asarray, runs))


# With an end, and compiled as users compile it: of each kind of program one. The other kinds are mixtures of these.
AS_USERS_COMPILE = (
    "line",
    "matrices",
    "condition 1e8",
    "tariff",
    "allowance",
    "varying in an interval",
    "bounded actions",
)


@pytest.mark.parametrize(
    ("name", "horizon"),
    [(name, None) for name in COMPETITIVE]
    + [
        pytest.param(name, 24, marks=[pytest.mark.optimised] if name in AS_USERS_COMPILE else [])
        for name in COMPETITIVE
    ],
)
def test_competitive_never_pays_more_than_promised(name, horizon):
    problem, options, runs = COMPETITIVE[name]
    steps, dim = horizon or 120, problem.Q.shape[0]
    x0, contexts, advice = fitting(name, steps, runs, seed=len(name) + (horizon or 0))
    tracking = ec.Competitive(ec.ROBD(), horizon=horizon, **options).references[0].tracking
    least, greatest, G = tracking.curvatures(problem, dim)
    smallest = 1 + float(share_of(least, greatest, G, horizon))
    ratio = smallest + 10.0 ** np.random.default_rng(2).uniform(-3, 0.7, size=runs)
    known = jax.tree.map(jnp.asarray, {"allowance": 0.0, **options})
    played = jax.device_get(competitive_bills(problem, known, horizon, x0, contexts, advice, ratio))
    (bill, details, actions), best = played
    assert details["kept"].all()
    allowed = ratio[:, None] * details["reference"] + options.get("allowance", 0.0)
    paid = allowed > ROUNDING
    used = np.where(paid, bill / np.where(paid, allowed, 1.0), 0.0)
    assert used.max() <= 1 + PROMISE
    assert (np.where(paid, 0.0, bill) <= ROUNDING).all()
    if horizon is not None:  # without an end the promise is reached in the limit: see the next test
        assert used[:, -1].max() >= 1 - 1e-9
    if name == "condition 1e8":  # `problem.hitting` and `problem.switching` have fewer digits than the guard
        some = slice(40)
        exact = exact_bills(problem, x0[some], contexts[some], actions[some])
        np.testing.assert_allclose(details["cost"][some], exact, rtol=1e-12)
        assert not np.allclose(bill[some], exact, rtol=1e-12, atol=0.0)
    else:
        np.testing.assert_allclose(details["cost"], bill, rtol=1e-12)
    np.testing.assert_allclose(details["reference"][:, -1], best, rtol=1e-9, atol=1e-25)
    left = details["left"] - (allowed - bill)
    assert np.abs(left / (np.abs(allowed) + bill + 1e-300)).max() < 1e-9


@jax.jit
def worst_after_ones(first, A, G, ratio):
    """The n that hurts most who, after a context of ones from x0 = 0, stands at `first`."""
    P, S, ones = A + G, limit_stiffness(A, G), jnp.ones(first.shape)
    m = jnp.linalg.solve(P, A @ ones)
    return m + worst_future(first - m, P, S, ratio)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("ratio", [1.8, 2.5, 6.0])
def test_competitive_without_end_is_driven_to_its_promise(dim, ratio):
    """After one push to the edge all contexts lie at the worst future's n: what was kept back is spent, and no more.

    At no step is the ratio above what was promised.
    """
    problem, steps = problem_of("quadratic", dim), 160
    far = ec.advisors.Fixed(jnp.full((steps, dim), 1e3))
    agent = ec.Competitive(far, ratio=ratio)
    x0, A, G = jnp.zeros(dim), problem.hitting.A, 2 * problem.Q
    first = ec.rollout(agent, problem, ec.Instance(x0, jnp.ones((steps, dim)))).actions[0]
    n = worst_after_ones(first, A, G, ratio)
    instance = ec.Instance(x0, jnp.ones((steps, dim)).at[1:].set(n))
    best = ec.oracle(problem, instance)
    # The best that can be done about it; so far from the end, one step more is nothing.
    answered = ec.oracle(problem, ec.Instance(first, jnp.ones((steps, dim)) * n)).actions[:-1]
    agent = ec.Competitive(ec.advisors.Fixed(jnp.concatenate([far.actions[:1], answered])), ratio=ratio)
    run = ec.rollout(agent, problem, instance)
    assert float(run.info.details["ratio"].max()) <= ratio * (1 + PROMISE)
    np.testing.assert_allclose(run.cost, ratio * best.cost, rtol=1e-8)


@eqx.filter_jit
def stepped(agent, problem, state, seen):
    return agent.step(problem, state, seen)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("slack", [0.05, 0.5, 3.0])
def test_guarded_without_end_is_driven_to_its_promise(dim, slack):
    """After one push to the edge a context that forbids everything but its minimiser, in the direction in which all that was
    reserved is needed: x^expert moves by (x^expert - x) / slack, where the triangle inequality is an equality.
    """
    problem = problem_of("curved", dim)
    agent = ec.Guarded(ec.advisors.Fixed(jnp.full((2, dim), 1e3)), slack=slack)
    x0, context = jnp.zeros(dim), jnp.append(jnp.ones(dim), 1.0)
    start = Start(x0, jnp.zeros((0, dim + 1)), None)
    state, first, info = stepped(agent, problem, agent.init(problem, start), Observation(context, x0, jnp.asarray(0)))
    assert bool(info.details["active"][0])
    expert = state.references[0].action
    next_context = jnp.append(expert + (expert - first) / slack, 1e13)
    _, _, info = stepped(agent, problem, state, Observation(next_context, first, jnp.asarray(1)))
    np.testing.assert_allclose(info.details["cost"], (1 + slack) * info.details["reference"], rtol=1e-9)
    assert float(info.details["ratio"][0]) <= (1 + slack) * (1 + PROMISE)


def _ascend(log_ratio, start, steps=40):
    """Contexts and advice that push the ratio up, by Adam, and the largest ratio seen on the way, one for each run."""
    optimizer = optax.adam(0.05)

    def climb(carry, _):
        at, memory, worst = carry
        value, slope = jax.value_and_grad(log_ratio)(at)
        slope = jax.tree.map(lambda g: -jnp.where(jnp.isfinite(g), g, 0.0), slope)
        change, memory = optimizer.update(slope, memory)
        return (optax.apply_updates(at, change), memory, jnp.maximum(worst, value)), value

    carry = (start, optimizer.init(start), jnp.asarray(-jnp.inf))
    (_, _, worst), values = jax.lax.scan(climb, carry, None, length=steps)
    return worst, values


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("guard", ["Guarded", "Competitive", "Competitive without end"])
def test_gradient_ascent_does_not_break_a_promise(guard, dim):
    problem, steps, runs = problem_of("quadratic", dim), 24, 40
    keys = jax.random.split(jax.random.key(0), 2)
    contexts, advice = (jax.random.normal(key, (runs, steps, dim)) for key in keys)

    def log_ratio(at):
        contexts, advice = at
        instance = ec.Instance(jnp.zeros(dim), contexts)
        advisor = ec.advisors.Fixed(advice)
        if guard == "Guarded":
            run = ec.rollout(ec.Guarded(advisor, slack=0.2), problem, instance)
            return jnp.log(run.cost / run.info.details["reference"][-1, 0]) - jnp.log(1.2)
        horizon = None if "end" in guard else steps
        run = ec.rollout(ec.Competitive(advisor, ratio=2.0, horizon=horizon), problem, instance)
        return jnp.log(run.cost / ec.oracle(problem, instance).cost) - jnp.log(2.0)

    worst, values = jax.jit(jax.vmap(lambda *at: _ascend(log_ratio, at)))(contexts, advice)
    assert bool(jnp.isfinite(values).all())
    assert float(worst.max()) <= PROMISE
    assert float(worst.max()) >= -0.02 if "end" in guard else float(worst.max()) >= -1e-9
    assert float(jnp.mean(values[:, -1])) > float(jnp.mean(values[:, 0]))


@pytest.mark.parametrize(("kind", "dim"), [("quadratic", 1), ("curved", 3)])
def test_clipped_advice_has_a_bounded_prediction_error(kind, dim):
    """rho <= (4/m)((1 + delta) CR0 + 1), hence a finite ratio for MLA-ROBD whatever the advisor (Theorem 4.1)."""
    problem, delta, trust = problem_of(kind, dim), 0.5, 0.3
    x0, contexts, advice = hostile(kind, dim, 8, 400, seed=dim)

    @jax.jit
    @jax.vmap
    def runs(x0, contexts, advice):
        instance = ec.Instance(x0, contexts)
        agent = ec.MLAROBD(ec.ClippedAdvice(ec.advisors.Fixed(advice), delta=delta), trust=trust)
        return ec.rollout(agent, problem, instance), ec.oracle(problem, instance)

    run, best = jax.device_get(runs(x0, contexts, advice))
    constants = problem.m, problem.alpha, problem.beta
    largest = clipped_prediction_error(*constants, delta)
    error = np.sum((run.advice - best.actions) ** 2, axis=(1, 2))
    assert bool((error <= largest * best.cost * (1 + PROMISE) + 1e-12).all())
    assert bool((run.cost <= mla_robd_bound(*constants, trust, largest) * best.cost * (1 + PROMISE) + 1e-12).all())
    # Clipping is as generous as it says: advice far away lands on the boundary of the expert's allowance.
    experts = jax.jit(jax.vmap(lambda x0, y: ec.rollout(ec.ROBD(), problem, ec.Instance(x0, y))))
    expert = jax.device_get(experts(x0, contexts))
    paid = np.asarray(jax.jit(jax.vmap(jax.vmap(problem.hitting)))(run.advice, contexts))
    allowed = (1 + delta) * (expert.hitting + expert.switching)
    assert bool((paid <= allowed * (1 + PROMISE) + 1e-14).all())
    active = run.info.inner.details["active"] & np.isfinite(advice).all(-1) & (np.abs(advice) < 1e7).all(-1)
    np.testing.assert_allclose(paid[active], allowed[active], rtol=1e-4, atol=1e-20)


def test_the_harness_plays_what_rollout_plays():
    problem = problem_of("quadratic", 1)
    x0, contexts, advice = (jnp.asarray(part[0]) for part in hostile("quadratic", 1, 24, 1, seed=3))
    agent = ec.Guarded(ec.advisors.Fixed(advice))
    bill, *_ = eqx.filter_jit(play)(agent, problem, x0, contexts, jnp.asarray(24), 24)
    run = ec.rollout(agent, problem, ec.Instance(x0, contexts))
    np.testing.assert_allclose(bill, jnp.cumsum(run.hitting + run.switching), rtol=1e-12)
