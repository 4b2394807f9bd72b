"""`Competitive`: the game's numbers, maximality, the exact optimum, gradients, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.theory import (
    is_feasible_ratio,
    limit_stiffness,
    limit_value,
    previous_value,
    smallest_feasible_ratio,
    stiffness_table,
    value_table,
    worst_context_gain,
)
from matrices import spd

CASE_STUDY = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


GENERAL = ec.Problem(ec.Quadratic(spd(3, 5, 1.0, 6.0)), ec.Mahalanobis(spd(3, 6, 0.4, 5.0)))


def _problem(dim: int) -> ec.Problem:
    return CASE_STUDY if dim == 1 else GENERAL


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_values_of_the_game():
    values = [value_table(jnp.array(10.0), jnp.array(ratio), 24)[0] for ratio in (1.8, 2.0, 2.5, 4.0)]
    np.testing.assert_allclose(values, [6.078512, 5.403122, 4.502601, 3.602081], atol=1e-6)


def _one_step_by_its_quadratic_form(v, k, a, ratio):
    """The recursion as ALGORITHMS section 10 prints it."""
    g, s, A = 1 / (1 + k), k / (1 + k), 1 + a + v
    yy = 1 - ratio * s + v * g**2 - (1 + v * g) ** 2 / A
    ye = -a * (1 + v * g) / A
    return a - a**2 / A - ye**2 / yy, -ye / yy, yy


@pytest.mark.parametrize(
    ("v", "k", "a", "ratio"), [(0.0, 10.0, 10.0, 2.0), (5.0, 3.0, 10.0, 1.8), (0.7, 0.4, 0.5, 1.6)]
)
def test_the_recursion_is_that_of_the_quadratic_form(v, k, a, ratio):
    value, gain, curvature = _one_step_by_its_quadratic_form(v, k, a, ratio)
    assert curvature < 0
    np.testing.assert_allclose(previous_value(v, k, a, ratio), value, rtol=1e-12)
    np.testing.assert_allclose(worst_context_gain(v, k, a, ratio), gain, rtol=1e-12)


def test_smallest_feasible_ratio():
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, 24), 1.728527, atol=1e-6)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, 1), 1.0)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0), 1 + ec.theory.decay_root(1.0, 10.0), rtol=1e-15)
    ratios = [float(smallest_feasible_ratio(10.0, T)) for T in (1, 2, 3, 6, 24, 60)]
    assert all(np.diff(ratios) > 0)
    assert ratios[-1] < smallest_feasible_ratio(10.0)
    assert is_feasible_ratio(10.0, smallest_feasible_ratio(10.0, 24), 24)
    assert not is_feasible_ratio(10.0, smallest_feasible_ratio(10.0, 24) - 1e-12, 24)


def test_two_steps_by_hand():
    """T = 2: the best guarantee of any first action x = q y_1 against any y_2, by the exact ratio's own optimisation."""
    a = 10.0
    D = np.array([[1.0, 0.0], [-1.0, 1.0]])
    form = np.eye(2) + a * D.T @ D  # of the path, times 1/2
    optimum = np.eye(2) - np.linalg.inv(form)  # of the contexts, times 1/2

    def ratio(q):
        K = np.array([[q, 0.0], [a * q / (1 + a), 1 / (1 + a)]])  # the last step is Greedy
        bill = (K - np.eye(2)).T @ (K - np.eye(2)) + a * (D @ K).T @ (D @ K)
        return np.linalg.eigvals(np.linalg.solve(optimum, bill)).real.max()

    best = min(ratio(q) for q in np.linspace(0, 0.4, 40001))
    np.testing.assert_allclose(smallest_feasible_ratio(a, 2), best, atol=1e-6)


@pytest.mark.parametrize("ratio", [1.74, 1.8, 2.5, 5.0, 300.0])
def test_the_endless_game(ratio):
    limit = limit_value(10.0, ratio)
    np.testing.assert_allclose(previous_value(limit, limit_stiffness(10.0), 10.0, ratio), limit, rtol=1e-11)
    endless = value_table(jnp.array(10.0), jnp.array(ratio), 128, limit)
    long = value_table(jnp.array(10.0), jnp.array(ratio), 1500)
    np.testing.assert_allclose(endless[:100], long[:100], rtol=1e-9)
    assert bool((jnp.diff(endless) >= -1e-9 * limit).all())  # so that the limit is valid at any step


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 3])
def test_the_optimum_is_the_oracles_at_every_prefix(dim):
    rng, T = np.random.default_rng(dim), 7
    x0, contexts, advice = rng.normal(size=dim), rng.normal(size=(T, dim)), rng.normal(size=(T, dim))
    run = ec.rollout(ec.Competitive(ec.advisors.Fixed(advice)), _problem(dim), ec.Instance(x0, contexts))
    details = run.info.details
    lengths = np.array([1, 2, T])
    best = [ec.oracle(_problem(dim), ec.Instance(x0, contexts[:length])).cost for length in lengths]
    np.testing.assert_allclose(details["optimum"][lengths - 1], best, rtol=1e-12)
    np.testing.assert_allclose(details["cost"], jnp.cumsum(run.hitting + run.switching), rtol=1e-12)
    np.testing.assert_allclose(details["live_ratio"], details["cost"] / details["optimum"], rtol=1e-14)


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

    guarded, alone = both(jnp.asarray(x0), jnp.asarray(contexts))
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
    run = ec.rollout(ec.Competitive(far, 2.5, horizon=24), problem, instance)
    best = ec.oracle(problem, instance).cost
    np.testing.assert_allclose(run.info.details["optimum"][-1], best, rtol=1e-9)
    np.testing.assert_allclose(run.cost, 2.5 * best, rtol=1e-9)


def test_a_generous_ratio_gives_the_agent():
    rng = np.random.default_rng(1)
    x0, contexts, advice = rng.normal(size=3), rng.normal(size=(9, 3)), rng.normal(size=(9, 3))
    run = ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), ratio=1e6), GENERAL, ec.Instance(x0, contexts))
    np.testing.assert_array_equal(run.actions, advice)
    assert not bool(run.info.details["active"].any())


def test_broken_advice_gives_the_safest_action():
    rng, T = np.random.default_rng(2), 6
    x0, contexts = jnp.asarray(rng.normal(size=1)), jnp.asarray(rng.normal(size=(T, 1)))

    def run(advice):
        return ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), horizon=T), CASE_STUDY, ec.Instance(x0, contexts))

    values = value_table(jnp.array(10.0), jnp.array(2.5), T)[1:]
    k, m, x = 10.0, x0, x0
    for t in range(T):
        m = (contexts[t] + k * m) / (1 + k)
        k = 10 * (1 + k) / (11 + k)
        x = (contexts[t] + 10 * x + values[t] * m) / (11 + values[t])
        for broken in (jnp.nan, jnp.inf, 1e300):
            np.testing.assert_allclose(run(jnp.full((T, 1), broken)).actions[t], x, rtol=1e-12)
    slope = jax.grad(lambda a: run(a).cost)(jnp.zeros((T, 1)).at[2].set(jnp.nan))
    assert bool(jnp.isfinite(slope).all())


# --- maximality -------------------------------------------------------------------------------------------------------


def _modal(problem: ec.Problem):
    state = ec.Competitive(ec.Greedy()).init(problem, Start(jnp.zeros(problem.Q.shape[0]), jnp.zeros((0, 1))))
    return state.modes


@pytest.mark.parametrize("dim", [1, 3])
def test_actions_just_outside_are_defeated(dim):
    """After an action just outside the allowed set, explicit contexts defeat the best of all continuations.

    The contexts follow the game's maximiser, y - m = gain * (x - m) by mode, so that bill - ratio * optimum becomes a convex
    quadratic function of the remaining actions; its minimum, by one Newton step, is positive. The optimum is the oracle's.
    """
    problem, T, first, ratio = _problem(dim), 8, 3, 2.0
    modes = _modal(problem)
    k = stiffness_table(modes.a, T)
    v = value_table(modes.a, jnp.array(ratio), T)
    gains = worst_context_gain(v[1:], k, modes.a, ratio)
    rng = np.random.default_rng(5)
    x0, opening = jnp.asarray(rng.normal(size=dim)), jnp.asarray(rng.normal(size=(first, dim)))
    far = ec.advisors.Fixed(jnp.asarray(x0 + 100 * rng.normal(size=(first, dim))))
    guard = ec.Competitive(far, ratio=ratio, horizon=T)
    boundary = ec.rollout(guard, problem, ec.Instance(x0, opening)).actions
    numb = ec.Competitive(ec.advisors.Fixed(far.actions.at[-1].set(jnp.nan)), ratio=ratio, horizon=T)
    safest = ec.rollout(numb, problem, ec.Instance(x0, opening)).actions
    np.testing.assert_array_equal(boundary[:-1], safest[:-1])

    def excess(rest, factor):
        played = jnp.concatenate([boundary[:-1], (safest[-1] + factor * (boundary[-1] - safest[-1]))[None], rest])
        contexts, m = list(opening), x0
        for t in range(T):
            if t >= first:
                contexts.append(m + modes.from_modes @ (gains[t] * (modes.to_modes @ (played[t - 1] - m))))
            m = m + modes.from_modes @ ((modes.to_modes @ (contexts[t] - m)) / (1 + k[t]))
        contexts = jnp.stack(contexts)
        hitting, switching = problem.costs(x0, played, contexts)
        return jnp.sum(hitting + switching) - ratio * ec.oracle(problem, ec.Instance(x0, contexts)).cost

    start = jnp.zeros((T - first, dim))
    size = start.size

    @jax.jit
    def least(factor):
        hessian = jax.hessian(excess)(start, factor).reshape(size, size)
        best = start - jnp.linalg.solve(hessian, jax.grad(excess)(start, factor).ravel()).reshape(start.shape)
        return excess(best, factor), jnp.linalg.eigvalsh(hessian)[0], jnp.abs(jax.grad(excess)(best, factor)).max()

    for outside in (1 + 1e-3, 1.2):
        value, curvature, slope = least(outside)
        assert float(curvature) > 0
        assert float(slope) < 1e-8
        assert float(value) > 1e-6  # defeated, whatever is played
    on_the_edge, _, _ = least(1.0)
    np.testing.assert_allclose(on_the_edge, 0.0, atol=1e-9)  # and not a hair more is forbidden
    assert float(least(0.9)[0]) < 0


# --- gradients, refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "horizon"), [(1, None), (1, 8), (3, None)])
def test_gradients_match_central_differences(dim, horizon):
    """In contexts, advice, x0 and ratio at once, through runs in which the guard is active at some steps, not at others."""
    problem, T, runs = _problem(dim), 8, 6
    weights = jnp.asarray(np.random.default_rng(9).normal(size=(T, dim)))

    def score(values):
        x0, contexts, advice, ratio = values
        agent = ec.Competitive(ec.advisors.Fixed(advice), ratio=ratio, horizon=horizon)
        run = ec.rollout(agent, problem, ec.Instance(x0, contexts))
        return jnp.sum(weights * run.actions) + run.cost, run.info.details["active"]

    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(runs, T, dim))
    advice = 0.3 * contexts + np.linspace(0.2, 2.0, runs)[:, None, None] * rng.normal(size=contexts.shape)
    values = (rng.normal(size=(runs, dim)), contexts, advice, np.linspace(2.0, 6.0, runs))
    values = jax.tree.map(jnp.asarray, values)
    directions = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), values)
    evaluate = jax.jit(jax.vmap(jax.value_and_grad(score, has_aux=True)))
    (_, active), slopes = evaluate(values)
    assert 0.1 < float(active.mean()) < 0.9
    step = 3e-6
    shifted = [evaluate(jax.tree.map(lambda v, d, s=s: v + s * d, values, directions))[0][0] for s in (step, -step)]
    expected = (shifted[0] - shifted[1]) / (2 * step)
    found = sum(
        jnp.sum((g * d).reshape(runs, -1), axis=1)
        for g, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_refuses_a_ratio_that_nobody_can_promise():
    instance = ec.Instance([0.0], np.zeros((24, 1)))
    with pytest.raises(ValueError, match=r"ratio = 1.7 cannot be promised over 24 steps.* at least 1\.728527"):
        ec.rollout(ec.Competitive(ec.ROBD(), ratio=1.7, horizon=24), CASE_STUDY, instance)
    with pytest.raises(ValueError, match=r"over any number of steps: it must exceed 1\.729843"):
        ec.rollout(ec.PureML(ec.Competitive(ec.ROBD(), ratio=1.729)), CASE_STUDY, instance)
    ratios = jnp.array([1.5, 2.5])  # traced: nothing is checked
    jax.vmap(lambda L: ec.rollout(ec.Competitive(ec.ROBD(), ratio=L), CASE_STUDY, instance).cost)(ratios)


def test_refuses_what_it_is_not_for():
    start = Start(jnp.zeros(1), jnp.zeros((0, 1)), 30)
    boxed = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(0.0, 1.0))
    curved = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    for problem in (boxed, curved):
        with pytest.raises(ValueError, match="Guarded takes any costs"):
            ec.Competitive(ec.ROBD()).init(problem, start)
    with pytest.raises(ValueError, match="at most horizon = 24 steps, but this one has 30"):
        ec.Competitive(ec.ROBD(), horizon=24).init(CASE_STUDY, start)
    for horizon in (0, True):
        with pytest.raises(ValueError, match="horizon must be at least 1"):
            ec.Competitive(ec.ROBD(), horizon=horizon)
