"""`Competitive`: the exact optimum, what it allows, maximality in every setting, gradients, refusals."""

import functools
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.guards import Account
from ecl2o.agents.guards.level_sets import pull_inside
from ecl2o.agents.guards.references.optimum import BoxLines, OptimumStep, sound_value
from ecl2o.planning.work_function import Prefix
from ecl2o.problem.arrays import to_device
from ecl2o.theory import future_stiffness, limit_stiffness, past_stiffness, promise_value, worst_future
from matrices import spd

CASE_STUDY = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


GENERAL = ec.Problem(ec.Quadratic(spd(3, 5, 1.0, 6.0)), ec.Mahalanobis(spd(3, 6, 0.4, 5.0)))


def _problem(dim: int) -> ec.Problem:
    return CASE_STUDY if dim == 1 else GENERAL


# --- the guard --------------------------------------------------------------------------------------------------------


def test_a_context_that_is_no_number_is_passed_over_and_loses_the_promise():
    agent, x0 = ec.Competitive(ec.advisors.Fixed([[5.0], [5.0]])), jnp.array([0.3])
    step = jax.jit(lambda state, seen: agent.step(CASE_STUDY, state, seen))
    begun = agent.init(CASE_STUDY, Start(x0, jnp.zeros((0, 1)), None))
    after, action, info = step(begun, Observation(jnp.array([jnp.nan]), x0, jnp.asarray(0), None))
    np.testing.assert_array_equal(action, x0)
    assert float(info.details["cost"][0]) == float(info.details["reference"][0]) == 0.0
    late, _, late_info = step(after, Observation(jnp.ones(1), x0, jnp.asarray(1), None))
    soon, _, soon_info = step(begun, Observation(jnp.ones(1), x0, jnp.asarray(0), None))
    for said in (info, late_info):
        assert not bool(said.details["kept"][0])
        assert not bool(said.converged)
    assert bool(soon_info.details["kept"][0])
    # What is known of the optimum is what it was before.
    jax.tree.map(np.testing.assert_array_equal, late.references, soon.references)
    assert float(late_info.details["reference"][0]) == float(soon_info.details["reference"][0]) > 0


def test_matrices_that_turn_out_not_to_be_diagonal_lose_a_promise_that_counts_on_bounded_contexts():
    """Numbers that a compiled program is given cannot be refused when the guard is made."""
    contexts, advice = np.random.default_rng(0).uniform(-1, 1, size=(2, 4, 2))

    @jax.jit
    @jax.vmap
    def play(in_A, in_Q):
        A, Q = (jnp.array([[1.0, beside], [beside, 1.0]]) for beside in (in_A, in_Q))
        agent = ec.Competitive(ec.advisors.Fixed(advice), ratio=3.0, contexts=(-1.0, 1.0))
        problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))
        return ec.rollout(agent, problem, ec.Instance(jnp.zeros(2), contexts)).info.details["kept"][:, 0]

    kept = play(jnp.array([0.0, 0.1, 0.0]), jnp.array([0.0, 0.0, 0.1]))
    np.testing.assert_array_equal(kept, [[True] * 4, [False] * 4, [False] * 4])


@pytest.mark.parametrize("dim", [1, 3])
def test_the_optimum_is_the_oracles_at_every_prefix(dim):
    rng, T = np.random.default_rng(dim), 7
    x0, contexts, advice = rng.normal(size=dim), rng.normal(size=(T, dim)), rng.normal(size=(T, dim))
    guard = ec.Competitive(ec.advisors.Fixed(advice))
    run = jax.device_get(ec.rollout(guard, _problem(dim), ec.Instance(x0, contexts)))
    details = {name: figure[:, 0] for name, figure in run.info.details.items()}
    lengths = np.array([1, 2, T])
    best = [ec.oracle(_problem(dim), ec.Instance(x0, contexts[:length])).cost for length in lengths]
    np.testing.assert_allclose(details["reference"][lengths - 1], best, rtol=1e-12)
    np.testing.assert_allclose(details["cost"], np.cumsum(run.hitting + run.switching), rtol=1e-12)
    np.testing.assert_allclose(details["ratio"], details["cost"] / details["reference"], rtol=1e-14)


def test_robd_is_never_changed_at_its_own_ratio():
    """R-OBD is 1 + r competitive, and the guard is maximal, so it lets every action of R-OBD pass."""
    rng = np.random.default_rng(0)
    x0, contexts = rng.normal(size=(300, 1)), rng.normal(size=(300, 24, 1)) * 10.0 ** rng.integers(-1, 2, (300, 24, 1))
    worst = np.asarray(ec.certify(ec.ROBD(), CASE_STUDY, horizon=24).instance.contexts)
    x0, contexts = np.concatenate([x0, [[0.0]]]), np.concatenate([contexts, worst[None]])
    ratio = 1 + ec.theory.decay_root(1.0, 10.0)

    @jax.jit
    @jax.vmap
    def both(x0, contexts):
        instance = ec.Instance(x0, contexts)
        guarded = ec.Competitive(ec.ROBD(), ratio=ratio, horizon=24)
        return ec.rollout(guarded, CASE_STUDY, instance), ec.rollout(ec.ROBD(), CASE_STUDY, instance).actions

    guarded, alone = jax.device_get(both(x0, contexts))
    np.testing.assert_allclose(guarded.actions, alone, atol=1e-7 * np.abs(contexts).max())
    # The very worst instance, the last, leaves no room even for rounding.
    assert not bool(guarded.info.details["active"][:-1].any())
    np.testing.assert_allclose(guarded.actions[:-1], alone[:-1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ill_conditioned_matrices_do_not_spoil_the_account(seed):
    """Eigenvalues of A and Q from 1e-4 to 1e4 in unrelated bases: the optimum is still the oracle's, and the promise kept."""
    rng = np.random.default_rng(seed)

    def graded():
        basis, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        matrix = basis @ np.diag([1e-4, 1.0, 1e4]) @ basis.T
        return (matrix + matrix.T) / 2

    problem = ec.Problem(ec.Quadratic(graded()), ec.Mahalanobis(graded()))
    instance = ec.Instance(np.zeros(3), rng.normal(size=(24, 3)))
    far = ec.advisors.Fixed(1e3 * rng.normal(size=(24, 3)))
    run = jax.device_get(ec.rollout(ec.Competitive(far, 2.5, horizon=24), problem, instance))
    best = np.asarray(ec.oracle(problem, instance).cost)
    np.testing.assert_allclose(run.info.details["reference"][-1, 0], best, rtol=1e-9)
    np.testing.assert_allclose(run.cost, 2.5 * best, rtol=1e-9)


def test_a_generous_ratio_gives_the_agent():
    rng = np.random.default_rng(1)
    x0, contexts, advice = rng.normal(size=3), rng.normal(size=(9, 3)), rng.normal(size=(9, 3))
    run = ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), ratio=1e6), GENERAL, ec.Instance(x0, contexts))
    np.testing.assert_array_equal(run.actions, advice)
    assert not bool(run.info.details["active"].any())


def test_broken_advice_gives_the_safest_action():
    rng, T = np.random.default_rng(2), 6
    x0, contexts = rng.normal(size=1), rng.normal(size=(T, 1))

    def run(advice):
        return ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), horizon=T), CASE_STUDY, ec.Instance(x0, contexts))

    @jax.jit
    def kept_back(one, G):
        P, S = past_stiffness(one, G, T), future_stiffness(one, G, T)
        return [promise_value(P[t], S[t], jnp.array(2.5))[0] for t in range(T)]

    values = jax.device_get(kept_back(np.eye(1), 10 * np.eye(1)))
    k, m, x = 10.0, x0, x0
    runs = [np.asarray(run(np.full((T, 1), broken)).actions) for broken in (np.nan, np.inf, 1e300)]
    for t in range(T):
        m = (contexts[t] + k * m) / (1 + k)
        k = 10 * (1 + k) / (11 + k)
        x = (contexts[t] + 10 * x + values[t] * m) / (11 + values[t])
        for actions in runs:
            np.testing.assert_allclose(actions[t], x, rtol=1e-12)
    advice = np.zeros((T, 1))
    advice[2] = np.nan
    slope = jax.jit(jax.grad(lambda a: run(a).cost))(advice)
    assert np.isfinite(slope).all()


# --- maximality -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromiseCase:
    """A guard's setting, and the steps that must follow for its worst future to take effect."""

    problem: ec.Problem
    ratio: float
    options: dict
    follow: int
    worst_weight: float | None = None


TARIFF = np.array([1.0, 3.0, 0.5, 2.0, 4.0, 1.0, 2.5, 0.7])
BOXED = ec.Problem(
    ec.Quadratic(np.diag([1.0, 3.0])), ec.Mahalanobis(np.diag([4.0, 2.0])), ec.Box(np.array([-2.0, -1.5]), 2.0)
)
CURVED = ec.Problem(ec.CurvedTracking(1.0, 5.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
SETTINGS = {
    "a line, an end": PromiseCase(CASE_STUDY, 2.0, {"horizon": 8}, 5),
    "a line, no end": PromiseCase(CASE_STUDY, 2.0, {}, 160),
    "matrices, an end": PromiseCase(GENERAL, 2.0, {"horizon": 8}, 5),
    "matrices, no end": PromiseCase(GENERAL, 2.0, {}, 160),
    "an allowance": PromiseCase(CASE_STUDY, 2.0, {"horizon": 8, "allowance": 0.7}, 5),
    "curvature that varies": PromiseCase(CURVED, 2.6, {}, 160, worst_weight=5.0),
    "a tariff": PromiseCase(
        ec.Problem(ec.CurvedTracking(0.1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)),
        2.3,
        {"horizon": 8, "weights": TARIFF},
        5,
    ),
    "contexts in an interval": PromiseCase(CASE_STUDY, 2.0, {"horizon": 8, "contexts": (-1.2, 1.2)}, 5),
    "an interval, no end": PromiseCase(CASE_STUDY, 2.0, {"contexts": (-1.2, 1.2)}, 160),
    "an interval, curvature that varies": PromiseCase(CURVED, 2.6, {"contexts": (-1.2, 1.2)}, 160, worst_weight=5.0),
    "a box, bounds on actions": PromiseCase(BOXED, 2.2, {"horizon": 8, "contexts": (-1.2, 1.2)}, 5),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_actions_just_outside_are_defeated_and_those_inside_are_not_forbidden(name, seed):
    """After an action just outside the allowed set, the future that the theorem names defeats the best of all continuations.

    All later contexts lie at n. The best continuation knows them: it is the oracle's, from the action in question.
    """
    setting, opening = SETTINGS[name], 3
    problem, ratio = setting.problem, setting.ratio
    dim, rng = problem.Q.shape[0], np.random.default_rng(seed)
    x0 = rng.uniform(-1, 1, size=dim)
    targets = np.clip(rng.normal(size=(opening, dim)), -1.2, 1.2)
    weights = TARIFF[:opening] if "weights" in setting.options else rng.uniform(1.0, 5.0, size=opening)
    varies = not problem.hitting.constant_curvature
    contexts = np.concatenate([targets, weights[:, None]], axis=1) if varies else targets
    far = 50 * rng.normal(size=(opening, dim))

    def play(last):
        guard = ec.Competitive(ec.advisors.Fixed(np.stack([*far[:-1], last])), ratio=ratio, **setting.options)
        return jax.device_get(ec.rollout(guard, problem, ec.Instance(x0, contexts)))

    boundary, numb = play(far[-1]), play(np.full(dim, np.nan))
    assert bool(boundary.converged.all())
    assert bool(boundary.info.details["active"].all())
    edge, safest = boundary.actions[-1], numb.actions[-1]
    excess = functools.partial(_excess_of(name), x0, contexts, boundary)
    np.testing.assert_allclose(excess(edge), 0.0, atol=2e-8)
    for outside in (1e-3, 0.2):
        assert float(excess(edge + outside * (edge - safest))) > 1e-7
    assert float(excess(edge - 0.1 * (edge - safest))) < 0
    inside = safest + 0.999 * (edge - safest)  # and nothing inside is forbidden
    allowed = play(inside)
    assert not bool(allowed.info.details["active"][-1, 0])
    np.testing.assert_array_equal(allowed.actions[-1], inside)


@functools.cache
def _excess_of(name):
    """Bill less promise, if the worst future for this action comes and is answered as well as can be."""
    setting = SETTINGS[name]
    problem = setting.problem

    @jax.jit
    def excess(x0, contexts, boundary, action):
        after = _worst_contexts(setting, x0, contexts, action)
        whole = ec.oracle(problem, ec.Instance(x0, jnp.concatenate([contexts, after]))).cost
        spent = jnp.sum(boundary.hitting[:-1] + boundary.switching[:-1])
        step = problem.hitting(action, contexts[-1]) + problem.switching(action, boundary.actions[-2])
        rest = ec.oracle(problem, ec.Instance(action, after)).cost
        return spent + step + rest - setting.ratio * whole - setting.options.get("allowance", 0.0)

    return excess


def _worst_contexts(setting, x0, contexts, action):
    """The contexts after these that hurt this action most, by the theorem; in a box the nearest point of it."""
    problem, (steps, _), dim = setting.problem, contexts.shape, x0.shape[0]
    G, hitting = 2 * problem.Q, problem.hitting
    curvatures = jax.vmap(lambda y: hitting.curvature(y, dim))(contexts)
    if setting.worst_weight is not None:
        future = limit_stiffness(setting.worst_weight * jnp.eye(dim), G)
    elif "weights" in setting.options:
        future = future_stiffness(TARIFF[:, None, None] * jnp.eye(dim), G, 8)[steps - 1]
    elif "horizon" in setting.options:
        future = future_stiffness(hitting.curvature(None, dim), G, 8)[steps - 1]
    else:
        future = limit_stiffness(hitting.curvature(None, dim), G)
    P = past_stiffness(curvatures, G, steps)[-1]
    m = ec.oracle(problem, ec.Instance(x0, contexts)).actions[-1]
    n = m + worst_future(action - m, P, future, jnp.asarray(setting.ratio))
    if "contexts" in setting.options:
        n = jnp.clip(n, *setting.options["contexts"])
    after = jnp.broadcast_to(n, (setting.follow, dim))
    if hitting.constant_curvature:
        return after
    weight = TARIFF[steps:] if "weights" in setting.options else np.full(setting.follow, setting.worst_weight)
    return jnp.concatenate([after, jnp.asarray(weight)[:, None]], axis=1)


def game_step(A, G, P, S, ratio, target=None, previous=None, box=None) -> OptimumStep:
    """A step of the game, measured from m, which is 0."""
    zero, none, true = jnp.zeros(len(A)), jnp.zeros(()), jnp.ones((), bool)
    prefix, (V, exists) = Prefix(P, zero, zero, 0 * P, none, none), sound_value(P, S, jnp.asarray(ratio))
    points = zero if target is None else target, zero if previous is None else previous
    return OptimumStep(A, G, S, V, *points, prefix, box, jnp.asarray(ratio), exists, true, true, none)


@pytest.mark.parametrize("horizon", [None, 6])
def test_bellmans_inequality_for_contexts_in_an_interval(horizon):
    """On a grid of x and m, for every y: the safest action's bill and value fit into the value one step earlier.

    And some y takes all of it: the value is not larger than it must be.
    """
    one, G, ratio, low, high = to_device(np.eye(1)), to_device(10 * np.eye(1)), 2.0, 0.0, 1.0

    @jax.jit
    def stiffness():
        P = past_stiffness(one, G, 6)
        return P, future_stiffness(one, G, 6) if horizon else jnp.broadcast_to(limit_stiffness(one, G), P.shape)

    P, S = stiffness()

    def lines(t, y, x, m):
        step = game_step(one, G, P[t], S[t], ratio)
        return BoxLines.of(step, y[None] - m, x[None] - m, jnp.array([low]) - m, jnp.array([high]) - m)

    def value(t, x, m):
        game = lines(t, jnp.array(0.0), x, m)
        n = game.worst(x[None] - m)
        return (0.5 * (game.s * (x - m - n) ** 2 - game.weight * n**2))[0]

    @jax.jit
    @jax.vmap
    def gaps(x, m):
        """What the best y takes beyond the value that was kept back, over a fine grid of y; at most 0, and reached."""

        def after(y):
            K = P[3] - one
            m_next = m + (y - m) / P[3, 0, 0]
            game = lines(3, y, x, m_next)
            safest = game.lowest()
            cost = game.cost(safest, game.worst(safest))[0]
            return cost - 0.5 * ratio * (K / P[3])[0, 0] * (y - m) ** 2

        return jnp.max(jax.vmap(after)(jnp.linspace(low, high, 4001))) - value(2, x, m)

    x, m = (part.ravel() for part in np.meshgrid(np.linspace(-0.3, 1.3, 33), np.linspace(low, high, 17)))
    found = np.asarray(gaps(x, m))
    assert float(found.max()) < 1e-9
    assert float(found.min()) > -1e-5  # the grid of y is 2.5e-4 wide


# --- gradients, refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "horizon"), [(1, None), (1, 8), (3, None)])
def test_gradients_match_central_differences(dim, horizon):
    """In contexts, advice, x0 and ratio at once, through runs in which the guard is active at some steps, not at others."""
    problem, T, runs = _problem(dim), 8, 6
    weights = np.random.default_rng(9).normal(size=(T, dim))

    def score(values):
        x0, contexts, advice, ratio = values
        agent = ec.Competitive(ec.advisors.Fixed(advice), ratio=ratio, horizon=horizon)
        run = ec.rollout(agent, problem, ec.Instance(x0, contexts))
        return jnp.sum(weights * run.actions) + run.cost, run.info.details["active"]

    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(runs, T, dim))
    advice = 0.3 * contexts + np.linspace(0.2, 2.0, runs)[:, None, None] * rng.normal(size=contexts.shape)
    values = (rng.normal(size=(runs, dim)), contexts, advice, np.linspace(2.0, 6.0, runs))
    directions = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), values)
    evaluate = jax.jit(lambda many: jax.lax.map(jax.value_and_grad(score, has_aux=True), many))
    (_, active), slopes = jax.device_get(evaluate(values))
    assert 0.1 < active.mean() < 0.9
    step = 3e-6
    moved = (jax.tree.map(lambda v, d, s=s: v + s * d, values, directions) for s in (step, -step))
    ahead, behind = (np.asarray(evaluate(there)[0][0]) for there in moved)
    expected = (ahead - behind) / (2 * step)
    found = sum(
        np.sum((g * d).reshape(runs, -1), axis=1)
        for g, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_gradients_in_the_matrices_are_finite_for_equal_modes():
    rng = np.random.default_rng(4)
    x0, contexts, advice = (rng.normal(size=shape) for shape in ((3,), (8, 3), (8, 3)))

    def score(A, Q):
        problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))
        run = ec.rollout(ec.Competitive(ec.advisors.Fixed(3 * advice), ratio=2.0), problem, ec.Instance(x0, contexts))
        return run.cost + jnp.sum(run.actions * advice)

    A, Q, turn = np.eye(3), 5 * np.eye(3), spd(3, 8, -1.0, 1.0)
    slopes = jax.device_get(jax.jit(jax.grad(score, argnums=(0, 1)))(A, Q))
    moved = np.asarray(jax.jit(jax.vmap(lambda s: score(A + s * turn, Q - s * turn)))(np.array([1e-6, -1e-6])))
    np.testing.assert_allclose(np.sum((slopes[0] - slopes[1]) * turn), (moved[0] - moved[1]) / 2e-6, rtol=1e-6)


def test_refuses_a_ratio_that_nobody_can_promise():
    instance = ec.Instance([0.0], np.zeros((24, 1)))
    with pytest.raises(ValueError, match=r"`ratio` = 1.7 cannot be promised over 24 steps.* exceed 1\.728527"):
        ec.rollout(ec.Competitive(ec.ROBD(), ratio=1.7, horizon=24), CASE_STUDY, instance)
    with pytest.raises(ValueError, match=r"over any number of steps: it must exceed 1\.729843"):
        ec.rollout(ec.PureML(ec.Competitive(ec.ROBD(), ratio=1.729)), CASE_STUDY, instance)
    with pytest.raises(ValueError, match=r"must exceed 2\.350781"):
        ec.rollout(ec.Competitive(ec.ROBD(), ratio=2.35), CURVED, ec.Instance([0.0], np.ones((24, 2))))


def test_an_impossible_ratio_that_is_traced_is_not_played_silently():
    """1,000 random ratios, problems and horizons under jit and vmap: no run that says it converged is above its promise."""
    rng, runs, T = np.random.default_rng(6), 1000, 12
    contexts = rng.normal(size=(runs, T, 1)) * (-1.0) ** np.arange(T)[None, :, None]
    ratio, alpha = (10.0 ** rng.uniform(*ends, size=runs) for ends in ((0.01, 0.6), (-1, 3)))

    for horizon in (None, T, 20):

        @jax.jit
        @jax.vmap
        def outcome(contexts, ratio, alpha, horizon=horizon):
            problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha, dim=1))
            instance = ec.Instance(jnp.zeros(1), contexts)
            far = ec.advisors.Fixed(-1e3 * contexts)
            run = ec.rollout(ec.Competitive(far, ratio=ratio, horizon=horizon), problem, instance)
            at_the_end = {name: run.info.details[name][-1, 0] for name in ("left", "cost", "reference")}
            ratio_found = run.cost / ec.oracle(problem, instance).cost
            return run.converged.all(), ratio_found, jnp.isfinite(run.actions).all(), at_the_end

        converged, found, finite, end = jax.device_get(outcome(contexts, ratio, alpha))
        assert bool(finite.all())
        allowed = ratio * end["reference"]  # what was asked for, also where nobody can keep it
        assert (np.abs(end["left"] - (allowed - end["cost"])) <= 1e-9 * (allowed + end["cost"])).all()
        assert bool((~converged | (found <= ratio * (1 + 1e-9))).all())
        smallest = np.asarray([ec.theory.smallest_feasible_ratio(float(a), horizon) for a in alpha[:100]])
        np.testing.assert_array_equal(converged[:100], ratio[:100] > smallest)
        assert 100 < int(converged.sum()) < 900
        assert float(found[~converged].max()) < 4.0  # the safest action of the nearest promise that exists


def test_an_impossible_allowance_that_is_traced_is_not_played_silently():
    instance, far = ec.Instance([0.0], np.sin(np.arange(8.0))[:, None]), ec.advisors.Fixed(np.full((8, 1), 50.0))

    @jax.jit
    @jax.vmap
    def play(allowance):
        return ec.rollout(ec.Competitive(far, 2.0, allowance=allowance), CASE_STUDY, instance)

    allowances = np.array([-0.5, -1e-300, np.nan, np.inf, 0.0, 1.5])
    runs, best = jax.device_get(play(allowances)), float(ec.oracle(CASE_STUDY, instance).cost)
    np.testing.assert_array_equal(runs.converged.all(axis=1), [False] * 4 + [True] * 2)
    assert np.isfinite(runs.actions).all()
    assert (runs.cost[4:] <= (2 * best + allowances[4:]) * (1 + 1e-9)).all()


def test_a_promise_of_announced_weights_holds_where_the_past_takes_long_to_settle():
    T = 6000
    contexts = np.stack([np.cumsum(np.random.default_rng(0).normal(size=T)), np.ones(T)], axis=1)
    problem = ec.Problem(ec.CurvedTracking(1.0, 1.0), ec.Mahalanobis.isotropic(alpha=1e7, dim=1))
    guard = ec.Competitive(ec.advisors.Fixed(1e3 * (-1.0) ** np.arange(T)[:, None]), 2.0, weights=[1.0])
    instance = ec.Instance([0.0], contexts)
    run = ec.rollout(guard, problem, instance)
    assert bool(run.converged.all())
    assert float(run.cost) <= 2.0 * float(ec.oracle(problem, instance).cost) * (1 + 1e-9)
    assert bool(run.info.details["active"].any())


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("box", [False, True])
def test_a_past_that_does_not_outweigh_the_future_is_noticed(dim, box):
    """(L - 1) P > S is what the theorem rests on: without it there is no value to keep back, and no promise."""

    @jax.jit
    def choose(S):
        one, near, far = jnp.eye(dim), jnp.ones(dim), jnp.full(dim, 9.0)
        here = game_step(one, one, one, S, 2.0, near, -near, (-far, far) if box else None)
        allowed = here.level_set(jnp.array(5.0))
        return allowed.sound, allowed.lowest(), pull_inside(allowed, allowed.lowest(), far, None, is_lowest=True)

    for share, sound in ((0.0, True), (0.9, True), (1.1, False)):
        is_sound, safest, pulled = choose(np.diag(np.r_[share, np.full(dim - 1, 0.5)]))
        assert bool(is_sound) == sound
        assert np.isfinite(safest).all()
        assert np.isfinite(pulled.action).all()


def test_a_state_that_cannot_be_right_loses_the_promise_at_once():
    """A future that outweighs the past, though with money to spare; a debt that no step can pay back."""
    agent, x0 = ec.Competitive(ec.Greedy(), 2.0), jnp.array([0.3])
    step = jax.jit(lambda state, seen: agent.step(CASE_STUDY, state, seen)[2])
    begun = agent.init(CASE_STUDY, Start(x0, jnp.zeros((0, 1)), None))
    rich = eqx.tree_at(lambda state: state.accounts.left, begun, jnp.array(1e6))
    outweighed = eqx.tree_at(lambda state: state.prepared, rich, (100 * begun.prepared[0],))
    indebted = eqx.tree_at(lambda state: state.accounts.left, begun, jnp.array(-1e6))
    for state, kept in ((begun, True), (rich, True), (outweighed, False), (indebted, False)):
        said = step(state, Observation(jnp.ones(1), x0, jnp.asarray(0), None))
        assert bool(said.converged) == bool(said.details["kept"][0]) == kept


def test_an_account_does_not_say_of_a_broken_promise_that_it_was_kept():
    for dtype, rounding, too_much in ((np.float64, 1e-10, 1e-8), (np.float32, 1e-5, 1e-3)):
        account = Account.open(jnp.zeros(()), jnp.array(True), dtype)
        two, growth, excess = jax.device_put((np.array(2.0, dtype), np.array(3.0, dtype), np.array(6.0, dtype)))
        none, true = jnp.zeros((), dtype), jnp.array(True)
        assert bool(account.update(two, growth, excess * (1 + rounding), none, true).kept)
        assert not bool(account.update(two, growth, excess * (1 + too_much), none, true).kept)
        assert not bool(account.update(two, growth, excess * np.nan, none, true).kept)
        # An error that may be as large counts as if it were; one that the rest of the promise covers does not.
        assert bool(account.update(two, growth, excess, excess * rounding, true).kept)
        assert not bool(account.update(two, growth, excess, excess * too_much, true).kept)
        assert bool(account.update(two, growth, excess / 2, excess * too_much, true).kept)


def test_what_ends_a_promise_is_said():
    """A context out of bounds, one that is no number, a weight out of range or other than announced, a step too many."""
    T, far = 6, ec.advisors.Fixed(np.full((6, 1), 30.0))
    contexts = np.full((T, 1), 0.5)
    tariff = ec.Problem(ec.CurvedTracking(0.1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    weights = np.full(T, 2.0)

    def steps_kept(guard, problem, contexts):
        details = jax.device_get(ec.rollout(guard, problem, ec.Instance([0.5], contexts)).info.details)
        details = {name: figure[:, 0] for name, figure in details.items()}
        np.testing.assert_array_equal(details["kept"], np.arange(T) < details["kept_steps"][-1])
        return int(details["kept_steps"][-1])

    outside = contexts.copy()
    outside[3] = 1.5
    assert steps_kept(ec.Competitive(far, 2.0, contexts=(0.0, 1.0)), CASE_STUDY, contexts) == T
    assert steps_kept(ec.Competitive(far, 2.0, contexts=(0.0, 1.0)), CASE_STUDY, outside) == 3
    weighted = np.concatenate([contexts, weights[:, None]], axis=1)
    assert steps_kept(ec.Competitive(far, 2.0, horizon=T, weights=weights), tariff, weighted) == T
    weighted[4, 1] = 2.1
    assert steps_kept(ec.Competitive(far, 2.0, horizon=T, weights=weights), tariff, weighted) == 4
    between = ec.Problem(ec.CurvedTracking(1.0, 2.0), tariff.switching)
    for weight, kept in ((2.0, T), (1.0, T), (2.0 + 1e-9, 4), (1.0 - 1e-9, 4)):
        weighted[4, 1] = weight
        assert steps_kept(ec.Competitive(far, 3.0), between, weighted) == kept
    broken = contexts.copy()

    @jax.jit
    def run(contexts):
        return ec.rollout(ec.Competitive(far, 2.0), CASE_STUDY, ec.Instance(jnp.array([0.5]), contexts))

    for broken[2, 0] in (1e155, np.nan):  # the cost of the first is not finite
        result = jax.device_get(run(broken))
        assert int(result.info.details["kept_steps"][-1, 0]) == 2
        assert np.isfinite(result.actions).all()
        assert np.isfinite(result.info.details["ratio"]).all()

    short = ec.Competitive(ec.Greedy(), 2.0, horizon=3)
    state, action, kept = short.init(CASE_STUDY, Start(jnp.array([0.5]), jnp.zeros((0, 1)), 3)), jnp.array([0.5]), []
    play_one = jax.jit(lambda state, seen: short.step(CASE_STUDY, state, seen))
    for step in range(5):  # whoever steps an agent by hand may go on
        seen = Observation(jnp.array([0.7]), action, jnp.asarray(step), jnp.asarray(4 - step))
        state, action, info = play_one(state, seen)
        kept.append(bool(info.details["kept"][0]))
    assert kept == [True, True, True, False, False]
    np.testing.assert_array_equal(result.converged, np.arange(T) < 2)


def test_a_promise_with_an_end_is_not_for_a_run_without_one():
    policy = ec.Policy(ec.Competitive(ec.ROBD(), horizon=24), CASE_STUDY)
    with pytest.raises(ValueError, match=r"at most horizon = 24 steps, but this run has no end.*period=24"):
        ec.Runner(policy, [0.0])
    ec.Runner(policy, [0.0], horizon=24)
    ec.Runner(ec.Policy(ec.Competitive(ec.ROBD(), period=24), CASE_STUDY), [0.0])


def test_long_accounts_in_single_precision():
    """400,000 steps in 32 bits with advice that is always cut: what is left of the promise stays true to 1e-4 of the bill."""
    T = 400_000
    contexts = np.sin(0.3 * np.arange(T))[:, None] * (1 + (np.arange(T) % 7)[:, None])
    bills = {}
    for dtype in (jnp.float32, jnp.float64):
        far = ec.advisors.Fixed(np.full((T, 1), 30.0, dtype))
        instance = ec.Instance(np.zeros(1, dtype), np.asarray(contexts, dtype))
        run = ec.rollout(ec.Competitive(far, ratio=2.0), CASE_STUDY, instance)
        assert run.actions.dtype == dtype
        actions = np.asarray(run.actions, np.float64)
        bill = 0.5 * np.sum((actions - contexts) ** 2) + 5 * np.sum(np.diff(actions, axis=0, prepend=0.0) ** 2)
        bills[dtype] = bill
    best = float(ec.oracle(CASE_STUDY, ec.Instance(np.zeros(1), contexts)).cost)
    assert bills[jnp.float64] <= 2.0 * best * (1 + 1e-9)
    assert bills[jnp.float32] <= 2.0 * best * (1 + 1e-4)


def test_refuses_what_it_is_not_for():
    start = Start(jnp.zeros(1), jnp.zeros((0, 1)), 30)
    movement = ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
    boxed = ec.Problem(ec.SquaredTracking(), movement, ec.Box(0.0, 1.0))
    curved = ec.Problem(ec.CurvedTracking(), movement)
    convex = ec.Problem(ec.ConvexCost(lambda x, y: jnp.sum((x - y) ** 2), strong_convexity=2.0), movement)
    for problem in (boxed, curved, convex):
        with pytest.raises(ec.NotApplicableError, match="Guarded takes any costs"):
            ec.Competitive(ec.ROBD()).check(problem, start)
    with pytest.raises(ec.NotApplicableError, match="within the bounds of actions"):
        ec.Competitive(ec.ROBD(), contexts=(0.0, 2.0)).check(boxed, start)
    three = Start(jnp.zeros(3), jnp.zeros((0, 3)), 30)
    with pytest.raises(ec.NotApplicableError, match="diagonal"):
        ec.Competitive(ec.ROBD(), contexts=(0.0, 1.0)).check(GENERAL, three)
    with pytest.raises(ec.NotApplicableError, match="as in CurvedTracking"):
        ec.Competitive(ec.ROBD(), weights=np.ones(3)).check(CASE_STUDY, start)
    with pytest.raises(ValueError, match="at most horizon = 24 steps, but this run has 30"):
        ec.Competitive(ec.ROBD(), horizon=24).check(CASE_STUDY, start)
    for options, message in [
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"horizon": True}, "horizon must be at least 1"),
        ({"allowance": -1.0}, "allowance must not be negative"),
        ({"contexts": (1.0, 0.0)}, "low <= high"),
        ({"horizon": 3, "weights": np.ones(2)}, "weights must be one for each of 3 steps"),
        ({"weights": np.zeros(2)}, "weights must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            ec.Competitive(ec.ROBD(), **options)
