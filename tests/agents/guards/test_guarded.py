"""`Guarded` and `ClippedAdvice`: limits, gradients, refusals. That the promise holds is in properties/test_promises.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.guards.guarded import Allowance, move_inside
from ecl2o.theory import training_reservation
from matrices import spd

T = 8


def _cosh(x, y):
    return jnp.sum(jnp.cosh(x - y) - 1)


def _problem(kind: str, dim: int) -> ec.Problem:
    switching = ec.Mahalanobis(spd(dim, 6, 0.4, 5.0))
    if kind == "convex":
        return ec.Problem(ec.ConvexCost(_cosh, strong_convexity=1.0, minimizer=lambda y: y), switching)
    box = ec.Box(-0.6, 0.7) if kind == "box" else ec.Everywhere()
    return ec.Problem(ec.Quadratic(spd(dim, 5, 1.0, 6.0)), switching, box)


def _data(dim: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x0, contexts = rng.uniform(-0.5, 0.5, size=dim), rng.normal(size=(T, dim))
    return x0, contexts, contexts + 0.5 * rng.normal(size=(T, dim))


@pytest.mark.parametrize("dim", [1, 3])
def test_much_slack_gives_the_agent_and_little_gives_the_expert(dim):
    problem, (x0, contexts, advice) = _problem("open", dim), _data(dim)
    instance = ec.Instance(x0, contexts)
    free = ec.rollout(ec.Guarded(ec.advisors.Fixed(advice), slack=1e6), problem, instance)
    np.testing.assert_array_equal(free.actions, advice)
    assert not bool(free.info.details["active"].any())
    held = jax.device_get(ec.rollout(ec.Guarded(ec.advisors.Fixed(advice), slack=1e-13), problem, instance))
    expert = jax.device_get(ec.rollout(ec.ROBD(), problem, instance))
    np.testing.assert_allclose(held.actions[:-1], expert.actions[:-1], atol=1e-5)
    np.testing.assert_allclose(held.cost, expert.cost, rtol=1e-5)  # at the end anything that costs no more will do
    assert float(held.cost) <= float(expert.cost) * (1 + 1e-9)


def test_a_guard_that_is_never_active_changes_nothing():
    """R-OBD inside a guard whose expert is R-OBD: the same bill, whatever the slack."""
    problem, (x0, contexts, _) = _problem("open", 3), _data(3)
    instance = ec.Instance(x0, contexts)
    run = ec.rollout(ec.Guarded(ec.ROBD(), slack=1e-6), problem, instance)
    np.testing.assert_array_equal(run.actions, ec.rollout(ec.ROBD(), problem, instance).actions)


@pytest.mark.parametrize("kind", ["open", "box"])
def test_broken_advice_gives_the_expert(kind):
    dim = 1 if kind == "box" else 3
    problem, (x0, contexts, advice) = _problem(kind, dim), _data(dim)
    instance = ec.Instance(x0, contexts)
    expert = ec.rollout(ec.ROBD(), problem, instance)

    def run(advice):
        return ec.rollout(ec.Guarded(ec.advisors.Fixed(advice)), problem, instance)

    def with_instead(place, value):
        changed = advice.copy()
        changed[place] = value
        return changed

    for broken in (np.nan, np.inf, -np.inf):
        np.testing.assert_array_equal(run(with_instead(np.s_[:, 0], broken)).actions, expert.actions)
    slope = jax.jit(jax.grad(lambda a: run(a).cost))
    for broken in (np.nan, 1e200):  # a number, but its distance is not
        assert np.isfinite(slope(with_instead((2, 0), broken))).all()


def test_the_expert_is_left_alone_and_its_bill_reported():
    problem, (x0, contexts, advice) = _problem("open", 3), _data(3)
    instance = ec.Instance(x0, contexts)
    expert = jax.device_get(ec.rollout(ec.Greedy(), problem, instance))
    guard = ec.Guarded(ec.advisors.Fixed(advice), expert=ec.Greedy(), slack=0.1)
    run = jax.device_get(ec.rollout(guard, problem, instance))
    np.testing.assert_allclose(
        run.info.details["expert_cost"], np.cumsum(expert.hitting + expert.switching), rtol=1e-12
    )
    np.testing.assert_allclose(run.info.details["cost"][-1], run.cost, rtol=1e-12)
    times = np.asarray(run.cost) / np.asarray(expert.cost)
    np.testing.assert_allclose(run.info.details["expert_ratio"][-1], times, rtol=1e-12)


@pytest.mark.parametrize("guard", [ec.Guarded, ec.ClippedAdvice])
def test_an_expert_that_leaves_the_box_is_projected_on_it(guard):
    """`OnlineRidge` knows no bounds; as an expert it plays, and pays for, the nearest action inside."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(0.0, 1.0))
    instance = ec.Instance([0.5], np.full((5, 1), 5.0))
    expert = ec.advisors.OnlineRidge()
    run = ec.rollout(guard(ec.advisors.Fixed(np.full((5, 1), jnp.nan)), expert=expert), problem, instance)
    alone = ec.rollout(ec.PureML(expert), problem, instance)
    assert float(ec.rollout(expert, problem, instance).actions.max()) > 2
    np.testing.assert_allclose(run.actions, alone.actions, rtol=1e-12)
    assert float(run.actions.max()) <= 1
    if guard is ec.Guarded:
        np.testing.assert_allclose(run.info.details["expert_cost"][-1], alone.cost, rtol=1e-12)


def test_uses_up_what_is_not_reserved():
    """C_t + kappa c(x_t, expert_t) = (1 + slack) C^expert_t wherever the guard is active, except at the known end."""
    problem, (x0, contexts, _) = _problem("open", 1), _data(1)
    instance, slack = ec.Instance(x0, contexts), 0.4
    expert = jax.device_get(ec.rollout(ec.ROBD(), problem, instance))
    advisor = ec.advisors.Fixed(np.full((T, 1), 100.0))
    moves = jax.jit(jax.vmap(problem.switching))
    for reservation in (None, training_reservation(slack)):
        run = jax.device_get(ec.rollout(ec.Guarded(advisor, slack=slack, reservation=reservation), problem, instance))
        kappa = 1 + 1 / (slack if reservation is None else float(reservation))
        reserved = kappa * np.asarray(moves(run.actions, expert.actions))
        reserved[-1] = 0.0
        bill = np.cumsum(run.hitting + run.switching) + reserved
        assert run.info.details["active"].all()
        np.testing.assert_allclose(bill, (1 + slack) * np.cumsum(expert.hitting + expert.switching), rtol=1e-9)


def test_moves_to_the_nearest_allowed_action():
    """Against brute force: no allowed point of a fine sample of the boundary is nearer to the advice."""
    problem = _problem("open", 2)
    allowance = Allowance(
        jnp.array([0.3, -0.2]), jnp.array([-0.5, 0.4]), jnp.zeros(2), jnp.array(1.0), jnp.array(3.0), jnp.array(2.5)
    )
    advice = jnp.array([2.0, 1.5])
    action, active = jax.jit(functools.partial(move_inside, problem))(allowance, advice)
    assert bool(active)
    bills, action, advice = (
        jax.jit(jax.vmap(lambda x: allowance.weighted_cost(problem, x))),
        np.asarray(action),
        np.asarray(advice),
    )
    near = np.concatenate([action[None], action + 1e-3 * np.random.default_rng(0).normal(size=(20000, 2))])
    bill, budget = np.asarray(bills(near)), np.asarray(allowance.budget)
    np.testing.assert_allclose(bill[0], budget, rtol=1e-10)
    near, inside = near[1:], bill[1:] <= budget
    distance, nearest = np.linalg.norm(near - advice, axis=1), np.linalg.norm(action - advice)
    assert distance[inside].min() >= nearest - 1e-12
    assert distance[~inside].min() < nearest


@pytest.mark.parametrize(("kind", "dim"), [("open", 1), ("open", 3), ("box", 3), ("convex", 1), ("convex", 3)])
def test_gradients_match_central_differences(kind, dim):
    """In contexts, advice, x0 and slack at once, through runs in which the guard is active at some steps, not at others."""
    problem = _problem(kind, dim)
    weights = np.random.default_rng(9).normal(size=(T, dim))

    def score(values):
        x0, contexts, advice, slack = values
        run = ec.rollout(ec.Guarded(ec.advisors.Fixed(advice), slack=slack), problem, ec.Instance(x0, contexts))
        return jnp.sum(weights * run.actions) + run.cost, run.info.details["active"]

    values = jax.tree.map(
        lambda *leaves: np.stack(leaves),
        *[(*_data(dim, seed), np.array(0.3 * 3.0**seed)) for seed in range(5)],
    )
    rng = np.random.default_rng(4)
    directions = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), values)
    evaluate = jax.jit(lambda many: jax.lax.map(jax.value_and_grad(score, has_aux=True), many))
    (_, active), slopes = jax.device_get(evaluate(values))
    assert 0.1 < active.mean() < 0.9
    step = 3e-6
    moved = (jax.tree.map(lambda v, d, s=s: v + s * d, values, directions) for s in (step, -step))
    ahead, behind = (np.asarray(evaluate(there)[0][0]) for there in moved)
    expected = (ahead - behind) / (2 * step)
    found = sum(
        np.sum((g * d).reshape(5, -1), axis=1)
        for g, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_a_reservation_that_turns_out_above_the_slack_loses_the_promise():
    """A number that a compiled program is given cannot be refused when the guard is made."""
    problem, (x0, contexts, advice) = _problem("open", 3), _data(3)
    instance = ec.Instance(x0, contexts)

    @jax.jit
    @jax.vmap
    def play(reservation):
        agent = ec.Guarded(ec.advisors.Fixed(advice), slack=0.5, reservation=reservation)
        return ec.rollout(agent, problem, instance)

    runs = jax.device_get(play(np.array([0.5, 0.6])))
    np.testing.assert_array_equal(runs.info.details["kept"], [[True] * T, [False] * T])
    np.testing.assert_array_equal(runs.converged, runs.info.details["kept"])
    np.testing.assert_allclose(runs.actions[1], ec.rollout(ec.ROBD(), problem, instance).actions, atol=1e-12)


def test_a_context_without_a_finite_bill_loses_the_promise_for_good():
    problem, agent = _problem("open", 3), ec.Guarded(ec.advisors.Fixed(np.ones((3, 3))))
    step = jax.jit(lambda state, seen: agent.step(problem, state, seen))
    state, kept = agent.init(problem, Start(jnp.zeros(3), jnp.zeros((0, 3)), None)), []
    for number, size in enumerate([0.1, 1e200, 0.1]):
        state, _, info = step(state, Observation(jnp.full(3, size), jnp.zeros(3), jnp.asarray(number), None))
        kept.append((bool(info.details["kept"]), bool(info.converged)))
    assert kept == [(True, True), (False, False), (False, False)]


def test_costs_below_zero_lose_the_promise():
    """The proof needs f >= 0: with less, what the expert saves is not enough for the way back to it."""
    x0, contexts, _ = _data(1)
    far = ec.Guarded(ec.advisors.Fixed(np.full((T, 1), 50.0)))
    for offset, kept in ((0.0, True), (5.0, False)):
        hitting = ec.ConvexCost(lambda x, y, o=offset: 0.5 * jnp.sum((x - y) ** 2) - o, strong_convexity=1.0)
        run = ec.rollout(far, ec.Problem(hitting, ec.Mahalanobis.isotropic(10.0, 1)), ec.Instance(x0, contexts))
        assert bool(run.converged.all()) == kept
        np.testing.assert_array_equal(run.converged, run.info.details["kept"])  # from the step that broke it on


def test_a_slack_that_turns_out_to_be_no_number_loses_the_promise():
    problem, (x0, contexts, advice) = _problem("open", 1), _data(1)

    @jax.jit
    @jax.vmap
    def kept(slack):
        run = ec.rollout(ec.Guarded(ec.advisors.Fixed(advice), slack=slack), problem, ec.Instance(x0, contexts))
        return run.converged.all() & jnp.isfinite(run.actions).all()

    np.testing.assert_array_equal(kept(np.array([0.5, np.inf, np.nan, -0.5])), [True, False, False, False])


def test_refusals():
    advisor = ec.advisors.Fixed([[0.0]])
    with pytest.raises(ValueError, match="slack must not be negative"):
        ec.Guarded(advisor, slack=-0.1)
    with pytest.raises(ValueError, match="slack must be positive, got 0"):
        ec.rollout(ec.Guarded(advisor, slack=0.0), _problem("open", 1), ec.Instance([0.0], [[1.0]]))
    with pytest.raises(ValueError, match="reservation must not exceed slack"):
        ec.Guarded(advisor, slack=0.5, reservation=0.6)
    with pytest.raises(ValueError, match="delta must not be negative"):
        ec.ClippedAdvice(advisor, delta=-0.1)


def test_lookahead_is_the_larger_one_and_each_sees_its_own():
    problem, (x0, contexts, _) = _problem("open", 1), _data(1)
    agent = ec.Guarded(ec.RHC(3), expert=ec.RHC(1), slack=1e6)
    assert agent.lookahead == 3
    instance = ec.Instance(x0, contexts)
    np.testing.assert_allclose(
        ec.rollout(agent, problem, instance).actions, ec.rollout(ec.RHC(3), problem, instance).actions, atol=1e-12
    )
    assert ec.ClippedAdvice(ec.RHC(2), expert=ec.ROBD()).lookahead == 2
