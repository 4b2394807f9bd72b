"""`Competitive` for costs with known curvature: hostile runs, the smallest ratios, referees for each closed form, refusals.

More hostile runs: ECL2O_HOSTILE_RUNS=20000 (of each cost), with -s for the largest figures.
"""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.guards.level_sets import pull_inside
from ecl2o.agents.guards.references.lines import LineSet
from ecl2o.agents.guards.references.lower_model import AsymmetricLines, ModelLines

STEPS, OPENING = 24, 12
RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "0"))


def _two_sided(x, y):
    return 0.5 * jnp.sum(jnp.where(x < y, 1.0, 5.0) * (x - y) ** 2)


def _log_cosh(x, y):
    """Curvature from 1 to 5, smooth; its least value is positive and its minimiser is not the context."""
    return jnp.sum(0.5 * (x - y) ** 2 + 4 * jnp.logaddexp(x - 0.5 * y, 0.5 * y - x) + 0.1)


def smallest_ratio(low, high, alpha) -> np.ndarray:
    """1 + k_M/(m + k_m), by hand."""

    def k(w):
        return 2 * alpha * w / (w + np.sqrt(w * w + 4 * alpha * w))

    return 1 + k(high) / (low + k(low))


@pytest.mark.parametrize(("pair", "golden"), [((1.0, 5.0), 2.350781059), ((0.5, 5.0), 3.0)])
@pytest.mark.parametrize("flipped", [False, True])
def test_the_smallest_ratio_is_that_of_the_two_weights(pair, golden, flipped):
    np.testing.assert_allclose(smallest_ratio(*pair, 10.0), golden, atol=1e-9)
    short, long = pair[::-1] if flipped else pair
    start = Start(jnp.zeros(1), jnp.zeros((0, 1)), None)
    for hitting in (ec.AsymmetricTracking(short, long), ec.ConvexCost(_two_sided, *pair)):
        problem = ec.Problem(hitting, ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
        with pytest.raises(ec.NotApplicableError, match=f"must exceed {golden:.6g}"):
            ec.Competitive(ec.ROBD(), golden - 1e-6).check(problem, start)
        ec.Competitive(ec.ROBD(), golden + 1e-6).check(problem, start)


# --- hostile runs -----------------------------------------------------------------------------------------------------


def alone(details):
    """The figures of a guard with one promise."""
    return {name: figure[..., 0] for name, figure in details.items()}


def play(agent, problem, x0, contexts, factor, ratio):
    """Play a run in which, after the opening, all contexts lie at the future that is worst for the action then in force."""

    def act(carry, now):
        previous, state, worst = carry
        step, context = now
        context = jnp.where(step < OPENING, context, worst)
        state, action, info = agent.step(problem, state, Observation(context, previous, step, None))
        away = factor * ratio / (ratio - 1) * (state.references[0].work.centre - action)
        worst = jnp.where(step == OPENING - 1, action + away, worst)
        return (action, state, worst), (context, action, alone(info.details))

    start = Start(x0, jnp.zeros((0, contexts.shape[-1])), None)
    carry = (x0, agent.init(problem, start), x0)
    _, run = jax.lax.scan(act, carry, (jnp.arange(STEPS), contexts))
    return run


def draw(runs: int, dim: int, seed: int):
    """(x0, contexts, advice, factor): contexts wander, jump, alternate or lead away; advice is far, wild or no number."""
    rng = np.random.default_rng(seed)
    x0, noise = rng.normal(size=(runs, dim)), rng.normal(size=(runs, STEPS, dim))
    flat = np.broadcast_to(noise[:, :1], noise.shape)
    shapes = [
        noise,
        np.cumsum(noise, axis=1),
        flat,
        flat * (-1.0) ** np.arange(STEPS)[:, None],
        0 * noise + x0[:, None],
    ]
    contexts = np.choose(rng.integers(len(shapes), size=(runs, 1, 1)), shapes)
    size = 10.0 ** rng.uniform(-2, 6, size=(runs, 1, 1))
    lagging = x0[:, None] - size * np.sign(flat)
    advice = np.choose(rng.integers(4, size=(runs, 1, 1)), [size * noise, lagging, -size * contexts, contexts])
    broken = rng.uniform(size=advice.shape) < 0.1 * (rng.uniform(size=(runs, 1, 1)) < 0.3)
    advice[broken] = rng.choice([np.nan, np.inf, -np.inf, 1e200], size=broken.sum())
    factor = np.where(rng.uniform(size=runs) < 0.5, 1.0, 10.0 ** rng.uniform(-1, 1, size=runs))
    return x0, contexts, advice, factor


def certified_optimum(problem, instance):
    """A lower bound on the optimum: a path's cost less its slope^2/2m. F is m-strongly convex, so no solver is trusted."""

    def total(actions):
        return sum(map(jnp.sum, problem.costs(instance.x0, actions, instance.contexts)))

    path = ec.oracle(problem, instance).actions
    return total(path) - jnp.sum(jax.grad(total)(path) ** 2) / (2 * problem.m)


def hostile_runs(runs: int, dim: int, seed: int) -> tuple[np.ndarray, ...]:
    """Cost over promise at the end, the guard's bound over the optimum, whether it was kept, and the share of changed steps."""
    rng = np.random.default_rng(seed)
    x0, contexts, advice, factor = draw(runs, dim, seed)
    short, long = 10.0 ** rng.uniform(-1, 1, size=(2, runs))
    alpha = 10.0 ** rng.uniform(-3, 6, size=runs)
    smallest = smallest_ratio(np.minimum(short, long), np.maximum(short, long), alpha)
    ratio = 1 + (smallest - 1) * (1 + 10.0 ** rng.uniform(-4, 1, size=runs)) + 1e-6

    @jax.jit
    @jax.vmap
    def outcome(x0, contexts, advice, factor, short, long, alpha, ratio):
        problem = ec.Problem(ec.AsymmetricTracking(short, long), ec.Mahalanobis.isotropic(alpha, dim=dim))
        guard = ec.Competitive(ec.advisors.Fixed(advice), ratio)
        contexts, actions, details = play(guard, problem, x0, contexts, factor, ratio)
        return contexts, actions, details, certified_optimum(problem, ec.Instance(x0, contexts))

    contexts, actions, details, best = jax.device_get(outcome(x0, contexts, advice, factor, short, long, alpha, ratio))
    weight = np.where(actions < contexts, short[:, None, None], long[:, None, None])
    moves = np.diff(np.concatenate([x0[:, None], actions], axis=1), axis=1)
    cost = 0.5 * np.sum(weight * (actions - contexts) ** 2 + alpha[:, None, None] * moves**2, axis=(1, 2))
    free = best <= 1e-26 * alpha
    used = np.where(free, np.where(cost <= 1e-24 * alpha, 0.0, np.inf), cost / np.where(free, 1.0, ratio * best))
    below = np.where(free, 1.0, details["reference"][:, -1] / np.where(free, 1.0, best))
    return used, below, details["kept"].all(axis=1), free, details["active"].mean()


@pytest.mark.parametrize(("dim", "runs"), [(1, RUNS * 3 // 4 or 1500), (2, RUNS // 4 or 500)])
def test_no_hostile_run_breaks_the_promise_and_some_reach_it(dim, runs):
    """Weights from 0.1 to 10, alpha from 1e-3 to 1e6, ratios down to 1e-4 above the smallest, NaN advice, punishing futures."""
    used, below, kept, free, active = hostile_runs(runs, dim, seed=dim)
    print(
        f"AsymmetricTracking, d = {dim}: largest cost over promise 1 + {used.max() - 1:.1e} in {runs} runs,"
        f" {free.sum()} of them with an optimum of 0; the guard's bound is {below.min():.2f} to {below.max():.6f} of it"
    )
    assert kept.all()
    assert used.max() <= 1 + 1e-9
    assert used.max() >= 0.95
    assert below.max() <= 1 + 1e-9
    assert below.min() < 0.9
    assert 0.3 < active < 0.98


class OwnSideGuard(ec.AbstractAgent):
    """The wrong guard: that of quadratics, which takes the weight of the player's own miss for that of the optimum too."""

    agent: ec.Guard
    hitting: ec.AsymmetricTracking

    def _curved(self, problem):
        low, high = (jnp.diagonal(bound)[0] for bound in self.hitting.curvature_bounds(1))
        return ec.Problem(ec.CurvedTracking(low, high), problem.switching)

    def init(self, problem, start):
        return self.agent.init(self._curved(problem), start)

    def step(self, problem, state, observation):
        def answer(weight):
            context = jnp.append(observation.context, weight)
            seen = eqx.tree_at(lambda o: o.context, observation, context)
            return self.agent.step(self._curved(problem), state, seen)

        below, above = answer(self.hitting.short), answer(self.hitting.long)
        return jax.tree.map(lambda a, b: jnp.where((below[1] < observation.context)[0], a, b), below, above)


def test_the_guard_of_the_players_own_side_breaks_its_promise():
    """The optimum may lie on the other side: these hostile runs tell the right guard from the wrong one."""
    ratio, runs = 2.6, 1000
    problem = ec.Problem(ec.AsymmetricTracking(1.0, 5.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    x0, contexts, advice, factor = draw(runs, 1, seed=3)

    def largest(make):
        @jax.jit
        @jax.vmap
        def used(x0, contexts, advice, factor):
            contexts, actions, _ = play(make(ec.advisors.Fixed(advice)), problem, x0, contexts, factor, ratio)
            hitting, switching = problem.costs(x0, actions, contexts)
            return jnp.sum(hitting + switching) / (ratio * ec.oracle(problem, ec.Instance(x0, contexts)).cost)

        return np.nanmax(used(x0, contexts, advice, factor))

    assert largest(lambda advice: ec.Competitive(advice, ratio)) <= 1 + 1e-9
    assert largest(lambda advice: OwnSideGuard(ec.Competitive(advice, ratio), problem.hitting)) > 1.3


def test_any_cost_of_known_curvature_keeps_the_promise_on_a_line():
    runs = RUNS or 250
    x0, contexts, advice, factor = draw(runs, 1, seed=4)
    rng = np.random.default_rng(5)
    alpha = 10.0 ** rng.uniform(-3, 6, size=runs)
    ratio = smallest_ratio(1.0, 5.0, alpha) + 10.0 ** rng.uniform(-3, 1, size=runs)

    @jax.jit
    @jax.vmap
    def outcome(x0, contexts, advice, factor, alpha, ratio):
        problem = ec.Problem(ec.ConvexCost(_log_cosh, 1.0, 5.0), ec.Mahalanobis.isotropic(alpha, dim=1))
        guard = ec.Competitive(ec.advisors.Fixed(advice), ratio)
        contexts, actions, details = play(guard, problem, x0, contexts, factor, ratio)
        hitting, switching = problem.costs(x0, actions, contexts)
        return jnp.sum(hitting + switching), details, certified_optimum(problem, ec.Instance(x0, contexts))

    given, step = (
        (x0, contexts, advice, factor, alpha, ratio),
        min(runs, 250),
    )  # the slowest solve of a batch is waited for
    batches = [jax.device_get(outcome(*(each[i : i + step] for each in given))) for i in range(0, runs, step)]
    cost, details, best = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    used, kept = cost / (ratio * best), details["kept"].all(axis=1)
    print(f"ConvexCost: largest cost over promise 1 + {used[kept].max() - 1:.1e} in {kept.sum()} of {runs} runs")
    assert kept.all()
    assert ((used > 0) & (used <= 1 + 1e-9)).all()
    assert (details["reference"][:, -1] <= best * (1 + 1e-9)).all()
    assert used.max() > 0.8


# --- closed forms -----------------------------------------------------------------------------------------------------


@jax.jit
def _closed_forms(lines: AsymmetricLines, points, level):
    """Costs at points, the safest action, the two ends of what is allowed and the models after them."""

    def cost(x):
        return lines.cost(x, lines.worst(x))[0]

    safest = lines.lowest()
    allowed = LineSet(lines, cost(safest) + level)
    ends = [pull_inside(allowed, safest, jnp.array([far]), None, is_lowest=True).action for far in (-1e3, 1e3)]
    models = [lines.touch(end)[:2] for end in ends]
    return jax.vmap(cost)(points[:, None]), safest[0], cost(safest), ends, models, [lines.worst(end)[0] for end in ends]


def _check_step(rng) -> list[tuple[bool, bool]]:
    """Compare one random step with brute force; return on which sides of y the ends and their z* lie."""
    short, long, g, k, y, previous = *np.exp(rng.normal(size=4)), *(2 * rng.normal(size=2))
    a, ratio, level, points = (
        min(short, long),
        1 + rng.uniform(0.3, 3),
        10.0 ** rng.uniform(-2, 2),
        3 * rng.normal(size=3),
    )
    sigma = rng.uniform(0.05, 0.95) * (k + a)
    numbers = (jnp.array([v]) for v in (a, g, k, sigma * (ratio - 1), sigma))
    game = ModelLines(*numbers, jnp.asarray(ratio), jnp.array([previous]))
    lines = AsymmetricLines(game, ec.AsymmetricTracking(short, long), jnp.array([y]))
    costs, safest, least, ends, models, weights = jax.device_get(_closed_forms(lines, points, level))

    def hit(x):
        return 0.5 * (short if x < y else long) * (x - y) ** 2

    def worst(x):
        found = scipy.optimize.minimize_scalar(
            lambda z: hit(z) + 0.5 * k * z**2 - 0.5 * sigma * (x - z) ** 2, tol=1e-12
        )
        return found.x, found.fun

    def total(x):
        return hit(x) + 0.5 * g * (x - previous) ** 2 - ratio * worst(x)[1]

    np.testing.assert_allclose(costs, [total(x) for x in points], rtol=1e-9, atol=1e-9)
    low = scipy.optimize.minimize_scalar(total, tol=1e-12)
    np.testing.assert_allclose(safest, low.x, atol=1e-5)
    assert least <= low.fun + 1e-12
    for end, far, (forward, grown) in zip(ends, (-1e3, 1e3), models, strict=True):
        expected = scipy.optimize.brentq(lambda x: total(x) - least - level, safest, far)
        np.testing.assert_allclose(end[0], expected, atol=1e-6)
        z = worst(end[0])[0]
        slope = (short if z < y else long) * (z - y)
        mu = (a * z - slope) / (k + a)
        growth = hit(z) + slope * (mu - z) + 0.5 * a * (mu - z) ** 2 + 0.5 * k * mu**2
        np.testing.assert_allclose((forward[0], grown), (mu, growth), rtol=1e-4, atol=1e-4)
    return [(bool(end[0] < y), weight == short) for end, weight in zip(ends, weights, strict=True)]


def test_closed_forms_on_a_line_agree_with_brute_force():
    """Reserve, safest action, ends of the allowed interval and next model, for 40 random steps; every piece occurs."""
    rng = np.random.default_rng(7)
    assert len({piece for _ in range(40) for piece in _check_step(rng)}) == 4


def test_the_general_path_plays_what_the_closed_form_plays():
    rng = np.random.default_rng(8)
    x0, contexts, advice = rng.normal(size=(20, 1)), rng.normal(size=(20, 9, 1)), 3 * rng.normal(size=(20, 9, 1))
    actions = []
    for hitting in (ec.AsymmetricTracking(1.0, 5.0), ec.ConvexCost(_two_sided, 1.0, 5.0)):
        problem = ec.Problem(hitting, ec.Mahalanobis.isotropic(alpha=10.0, dim=1))

        @jax.jit
        @jax.vmap
        def play_all(x0, contexts, advice, problem=problem):
            guard = ec.Competitive(ec.advisors.Fixed(advice), 2.6, horizon=9, allowance=0.5)
            return ec.rollout(guard, problem, ec.Instance(x0, contexts)).actions

        actions.append(np.asarray(play_all(x0, contexts, advice)))
    np.testing.assert_allclose(*actions, atol=1e-8)


def test_equal_weights_allow_what_the_quadratic_guard_allows():
    rng = np.random.default_rng(9)
    instance, advice = ec.Instance([0.3], rng.normal(size=(24, 1))), ec.advisors.Fixed(3 * rng.normal(size=(24, 1)))
    movement = ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
    two_sided = ec.rollout(ec.Competitive(advice), ec.Problem(ec.AsymmetricTracking(2.0, 2.0), movement), instance)
    exact = ec.rollout(ec.Competitive(advice), ec.Problem(ec.SquaredTracking(2.0), movement), instance)
    np.testing.assert_allclose(two_sided.actions, exact.actions, rtol=1e-12)
    np.testing.assert_allclose(two_sided.info.details["reference"], exact.info.details["reference"], rtol=1e-12)


def test_bounds_on_actions_are_kept_with_the_promise():
    """The safest action is an average of contexts, actions and x0, so it lies where they do."""
    rng, runs = np.random.default_rng(10), 300
    problem = ec.Problem(ec.AsymmetricTracking(0.5, 5.0), ec.Mahalanobis(np.diag([5.0, 1.0])), ec.Box(-1.0, 2.0))
    x0, contexts, advice = (
        rng.uniform(-1, 2, (runs, 2)),
        rng.uniform(-1, 2, (runs, 16, 2)),
        rng.normal(size=(runs, 16, 2)),
    )
    contexts[::2] = np.where(contexts[::2] > 0.5, 2.0, -1.0)

    @jax.jit
    @jax.vmap
    def play_all(x0, contexts, advice):
        free = eqx.tree_at(lambda p: p.actions, problem, ec.Everywhere())
        instance, guard = (
            ec.Instance(x0, contexts),
            ec.Competitive(ec.advisors.Fixed(advice), 3.2, contexts=(-1.0, 2.0)),
        )
        # The safest action before it is clipped: that of the problem without bounds, at the same state.
        unclipped = ec.rollout(ec.Competitive(ec.advisors.Fixed(0 * advice + jnp.nan), 3.2), free, instance)
        return ec.rollout(guard, problem, instance), unclipped.actions, ec.oracle(problem, instance).cost

    run, safest, best = jax.device_get(play_all(x0, contexts, 9 * advice))
    for actions in (run.actions, safest):
        assert actions.min() >= -1 - 1e-12
        assert actions.max() <= 2 + 1e-12
    assert run.converged.all()
    assert (run.cost <= 3.2 * best * (1 + 1e-9)).all()


@pytest.mark.parametrize("kind", ["asymmetric", "convex"])
def test_gradients_agree_with_central_differences(kind):
    rng, runs, steps, dim = np.random.default_rng(11), 6, 6, 1
    hitting = ec.ConvexCost(_log_cosh, 1.0, 5.0) if kind == "convex" else ec.AsymmetricTracking(1.0, 4.0)
    problem = ec.Problem(hitting, ec.Mahalanobis.isotropic(alpha=10.0, dim=dim))
    weights = jnp.asarray(rng.normal(size=(steps, dim)))

    def score(values):
        x0, contexts, advice, ratio = values
        run = ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), ratio), problem, ec.Instance(x0, contexts))
        return jnp.sum(weights * run.actions) + run.cost, run.info.details["active"]

    contexts = rng.normal(size=(runs, steps, dim))
    advice = 0.3 * contexts + np.linspace(0.2, 2.0, runs)[:, None, None] * rng.normal(size=contexts.shape)
    values = (rng.normal(size=(runs, dim)), contexts, advice, np.linspace(2.5, 6.0, runs))
    directions = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), values)
    evaluate = jax.jit(lambda many: jax.lax.map(jax.value_and_grad(score, has_aux=True), many))
    (_, active), slopes = jax.device_get(evaluate(values))
    assert 0.1 < active.mean() < 0.95
    step = 3e-6
    moved = (jax.tree.map(lambda v, d, s=s: v + s * d, values, directions) for s in (step, -step))
    ahead, behind = (np.asarray(evaluate(there)[0][0]) for there in moved)
    found = sum(
        np.sum((g * d).reshape(runs, -1), axis=1)
        for g, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True)
    )
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refuses_what_it_cannot_promise():
    line, plane = ec.Mahalanobis.isotropic(10.0, dim=1), ec.Mahalanobis(np.array([[5.0, 1.0], [1.0, 5.0]]))
    box, known = ec.Box(-1.0, 1.0), ec.ConvexCost(_log_cosh, 1.0, 5.0)
    rejected = [
        (ec.Problem(ec.ConvexCost(_log_cosh, 1.0), line), {}, "smoothness"),
        (ec.Problem(known, ec.Mahalanobis.isotropic(10.0, dim=2)), {}, "on a line"),
        (ec.Problem(known, line, box), {"contexts": (-1.0, 1.0)}, "without bounds"),
        (ec.Problem(ec.AsymmetricTracking(), plane), {}, "diagonal"),
        (ec.Problem(ec.AsymmetricTracking(), line, box), {}, "contexts="),
        (ec.Problem(ec.AsymmetricTracking(), line), {"weights": [1.0]}, "CurvedTracking"),
    ]
    for problem, options, word in rejected:
        dim = problem.Q.shape[0]
        with pytest.raises(ec.NotApplicableError, match=word):
            ec.rollout(
                ec.Competitive(ec.ROBD(), 5.0, **options), problem, ec.Instance(np.zeros(dim), np.zeros((2, dim)))
            )


def test_a_context_that_cannot_be_counted_is_passed_over_and_loses_the_promise():
    problem = ec.Problem(ec.AsymmetricTracking(), ec.Mahalanobis.isotropic(10.0, dim=1))
    guard, x0 = ec.Competitive(ec.advisors.Fixed([[5.0]])), jnp.array([0.3])
    begun = guard.init(problem, Start(x0, jnp.zeros((0, 1)), None))
    step = jax.jit(lambda context: guard.step(problem, begun, Observation(context, x0, jnp.asarray(0), None)))
    for value, kept in ((np.nan, False), (1e200, False), (1.0, True)):
        after, action, info = step(jnp.array([value]))
        assert bool(info.details["kept"][0]) == kept
        assert np.isfinite(action).all()
        assert np.isfinite(after.references[0].work.centre).all()
