"""`Guarded` and `ClippedAdvice`: limits, gradients, refusals. That the promise holds is in properties/test_promises.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
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


def _future(problem: ec.Problem, steps: int) -> np.ndarray:
    """The stiffness of the future with 0, 1, .. steps to go, by its recursion."""
    A, G = np.asarray(problem.hitting.A), 2 * np.asarray(problem.Q)
    found = [np.zeros_like(G)]
    for _ in range(steps - 1):
        found.append(np.linalg.inv(np.linalg.inv(A + found[-1]) + np.linalg.inv(G)))
    return np.array(found)


def _safest(problem, x0, contexts, expert, slack):
    """The least of f + c + (1 + 1/slack)/2 |x - b|^2_S at each step, from dense linear algebra."""
    A, G, future, x, found = np.asarray(problem.hitting.A), 2 * np.asarray(problem.Q), _future(problem, T), x0, []
    for t, (y, b) in enumerate(zip(contexts, np.asarray(expert), strict=True)):
        R = (1 + 1 / slack) * future[T - 1 - t]
        x = np.linalg.solve(A + G + R, A @ y + G @ x + R @ b)
        found.append(x)
    return np.array(found)


@pytest.mark.parametrize("kind", ["open", "box"])
def test_broken_advice_gives_the_safest_action(kind):
    """Without bounds the least of what an action costs and reserves; with bounds the expert's. Infinite advice is a bound."""
    dim = 1 if kind == "box" else 3
    problem, (x0, contexts, advice) = _problem(kind, dim), _data(dim)
    instance = ec.Instance(x0, contexts)
    expert = ec.rollout(ec.ROBD(), problem, instance).actions
    safest = expert if kind == "box" else _safest(problem, x0, contexts, expert, 0.5)

    def run(advice):
        return ec.rollout(ec.Guarded(ec.advisors.Fixed(advice)), problem, instance)

    def with_instead(place, value):
        changed = advice.copy()
        changed[place] = value
        return changed

    for broken, bound in ((np.nan, None), (np.inf, 0.7), (-np.inf, -0.6)):
        expected = safest if kind == "open" or bound is None else run(with_instead(np.s_[:, 0], bound)).actions
        np.testing.assert_allclose(run(with_instead(np.s_[:, 0], broken)).actions, expected, rtol=1e-12)
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
        run.info.details["reference"][:, 0], np.cumsum(expert.hitting + expert.switching), rtol=1e-12
    )
    np.testing.assert_allclose(run.info.details["cost"][-1, 0], run.cost, rtol=1e-12)
    times = np.asarray(run.cost) / np.asarray(expert.cost)
    np.testing.assert_allclose(run.info.details["ratio"][-1, 0], times, rtol=1e-12)


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
        np.testing.assert_allclose(run.info.details["reference"][-1, 0], alone.cost, rtol=1e-12)


@pytest.mark.parametrize("kind", ["open", "box", "convex"])
def test_uses_up_what_is_not_reserved(kind):
    """Cost and reserve are the promise wherever the guard is active: with S the future's stiffness where it is known, else 2Q."""
    problem, (x0, contexts, _) = _problem(kind, 1), _data(1)
    instance, slack = ec.Instance(x0, 0.3 * contexts), 0.4
    expert = jax.device_get(ec.rollout(ec.ROBD(), problem, instance))
    advisor = ec.advisors.Fixed(np.full((T, 1), 100.0))
    stiffness = 2 * np.asarray(problem.Q)[0, 0] * (np.arange(T) < T - 1)
    if kind == "open":
        stiffness = _future(problem, T)[::-1, 0, 0]
    for reservation in (None, training_reservation(slack)):
        guard = ec.Guarded(advisor, slack=slack, reservation=reservation, allowance=0.01)
        run = jax.device_get(ec.rollout(guard, problem, instance))
        kappa = 1 + 1 / (slack if reservation is None else float(reservation))
        bill = np.cumsum(run.hitting + run.switching)
        bill += kappa / 2 * stiffness * (run.actions - expert.actions)[:, 0] ** 2
        promised = (1 + slack) * np.cumsum(expert.hitting + expert.switching) + 0.01
        assert run.info.details["active"].all()
        inside = run.actions[:, 0] < 0.7 if kind == "box" else np.ones(T, bool)  # bounds may bind first
        assert inside.sum() > 2
        np.testing.assert_allclose(bill[inside], promised[inside], rtol=1e-9)
        np.testing.assert_allclose(
            run.info.details["left"][:, 0], promised - np.cumsum(run.hitting + run.switching), atol=1e-12
        )


def test_a_known_end_is_used_from_the_first_step():
    """With the horizon in `Start` the table, without it the limit and nothing at the last step; both promise the same."""
    problem, (x0, contexts, _) = _problem("open", 3), _data(3)
    agent = ec.Guarded(ec.advisors.Fixed(np.full((T, 3), 10.0)), slack=0.2)
    step = jax.jit(lambda state, seen: agent.step(problem, state, seen))
    for horizon in (T, None):
        state, previous, paid = agent.init(problem, Start(jnp.asarray(x0), jnp.zeros((0, 3)), horizon)), x0, []
        for t, context in enumerate(contexts):
            seen = Observation(jnp.asarray(context), jnp.asarray(previous), jnp.asarray(t), jnp.asarray(T - 1 - t))
            state, previous, info = step(state, seen)
            paid.append(float(info.details["left"][0]))
        assert min(paid) > -1e-9
        assert paid[-1] == pytest.approx(0.0, abs=1e-9)
        if horizon is not None:
            run = ec.rollout(agent, problem, ec.Instance(x0, contexts))
            np.testing.assert_allclose(previous, run.actions[-1], rtol=1e-10)


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
    np.testing.assert_array_equal(runs.info.details["kept"][..., 0], [[True] * T, [False] * T])
    np.testing.assert_array_equal(runs.converged, runs.info.details["kept"][..., 0])
    np.testing.assert_allclose(runs.actions[1], ec.rollout(ec.ROBD(), problem, instance).actions, atol=1e-12)


def test_a_context_without_a_finite_bill_loses_the_promise_for_good():
    problem, agent = _problem("open", 3), ec.Guarded(ec.advisors.Fixed(np.ones((3, 3))))
    step = jax.jit(lambda state, seen: agent.step(problem, state, seen))
    state, kept = agent.init(problem, Start(jnp.zeros(3), jnp.zeros((0, 3)), None)), []
    for number, size in enumerate([0.1, 1e200, 0.1]):
        state, _, info = step(state, Observation(jnp.full(3, size), jnp.zeros(3), jnp.asarray(number), None))
        kept.append((bool(info.details["kept"][0]), bool(info.converged)))
    assert kept == [(True, True), (False, False), (False, False)]


def test_costs_below_zero_lose_the_promise():
    """The proof needs f >= 0: with less, what the expert saves is not enough for the way back to it."""
    x0, contexts, _ = _data(1)
    far = ec.Guarded(ec.advisors.Fixed(np.full((T, 1), 50.0)))
    for offset, kept in ((0.0, True), (5.0, False)):
        hitting = ec.ConvexCost(lambda x, y, o=offset: 0.5 * jnp.sum((x - y) ** 2) - o, strong_convexity=1.0)
        run = ec.rollout(far, ec.Problem(hitting, ec.Mahalanobis.isotropic(10.0, 1)), ec.Instance(x0, contexts))
        assert bool(run.converged.all()) == kept
        np.testing.assert_array_equal(run.converged, run.info.details["kept"][:, 0])  # from the step that broke it on


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
    with pytest.raises(ValueError, match="allowance must not be negative"):
        ec.Guarded(advisor, allowance=-0.1)
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


@pytest.mark.parametrize(("kind", "dim"), [("asymmetric", 1), ("asymmetric", 2), ("smooth", 1)])
def test_costs_of_bounded_curvature_reserve_the_future(kind, dim):
    """Costs that are not quadratic: the promise holds for hostile advice, and cost and reserve with S use it up."""
    hitting = ec.AsymmetricTracking(3.0, 1.0)
    if kind == "smooth":  # curvature from .1 to 1.1
        smooth = lambda x, y: jnp.sum(jnp.sqrt(1 + (x - y) ** 2) - 1) + 0.05 * jnp.sum((x - y) ** 2)  # noqa: E731
        hitting = ec.ConvexCost(smooth, strong_convexity=0.1, smoothness=1.1)
    problem, rng, runs = ec.Problem(hitting, ec.Mahalanobis.isotropic(10.0, dim)), np.random.default_rng(3), 60
    contexts = np.cumsum(rng.normal(size=(runs, T, dim)), axis=1)
    advice = 10.0 ** rng.integers(-1, 4, size=(runs, 1, 1)) * rng.normal(size=(runs, T, dim))
    advice[::7, ::3] = np.nan
    slack = 10.0 ** rng.uniform(-2, 0.5, size=runs)

    @jax.jit
    @jax.vmap
    def play(contexts, advice, slack):
        instance = ec.Instance(jnp.zeros(dim), contexts)
        run = ec.rollout(ec.Guarded(ec.advisors.Fixed(advice), slack=slack), problem, instance)
        return run, ec.rollout(ec.ROBD(), problem, instance).actions

    run, expert = jax.device_get(play(contexts, advice, slack))
    assert run.converged.all()
    details = {name: figure[..., 0] for name, figure in run.info.details.items()}
    allowed = (1 + slack[:, None]) * details["reference"]
    assert (details["cost"] <= allowed * (1 + 1e-9)).all()
    curvature, S, future = 3.0 if kind == "asymmetric" else 1.1, 0.0, []
    for _ in range(T):
        future.append(S)
        S = 1 / (1 / (curvature + S) + 1 / 10)
    reserved = (1 + 1 / slack)[:, None] / 2 * np.array(future[::-1]) * np.sum((run.actions - expert) ** 2, axis=-1)
    held = details["active"] & np.isfinite(advice).all(axis=-1)
    assert held.sum() > 50
    np.testing.assert_allclose((details["cost"] + reserved)[held], allowed[held], rtol=1e-6)
