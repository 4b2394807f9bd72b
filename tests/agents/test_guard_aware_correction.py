"""The correction layer: what it sees, and that training goes through the guard around it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.guard_aware_correction import GuardAwareCorrection

PERIOD = 6
WEIGHT, ALPHA = 0.5, 5.0
PROBLEM = ec.Problem(ec.SquaredTracking(WEIGHT), ec.Mahalanobis.isotropic(ALPHA, dim=1))
RIDGE = OnlineRidge(period=PERIOD, lags=3, harmonics=1, maturity=8)
CONTEXTS = np.abs(np.random.default_rng(0).normal(size=(10 * PERIOD, 1)))
INSTANCE = ec.Instance([0.4], CONTEXTS[5 * PERIOD :], CONTEXTS[: 5 * PERIOD])


def weighted(**entries):
    """A correction with these weights; entries are names of features with a list over harmonics."""
    rows = ["previous", "centre", "context", "anchor", "bill", "optimum", "share", "change", "eighth", "quarter"]
    weight = np.zeros((7, 10))
    for name, column in entries.items():
        weight[:, rows.index(name)] = column
    return eqx.tree_at(lambda c: c.weights.weight, GuardAwareCorrection(RIDGE, PERIOD), jnp.asarray(weight))


@pytest.fixture(scope="module")
def corrections():
    """(run, corrections) of a correction with given weights; compiled once."""
    run = eqx.filter_jit(lambda agent: ec.rollout(agent, PROBLEM, INSTANCE))

    def of(**entries):
        found = run(weighted(**entries))
        return found, np.asarray(found.info.details["correction"])[:, 0]

    return of


def test_without_weights_it_is_the_advisor(corrections):
    run, correction = corrections()
    np.testing.assert_array_equal(correction, 0.0)
    np.testing.assert_allclose(run.actions, ec.rollout(RIDGE, PROBLEM, INSTANCE).actions, rtol=0, atol=1e-13)


def test_harmonics_follow_the_hour(corrections):
    """1, then cosines, then sines of the first three harmonics, times the difference between context and advice."""
    hours = np.arange(5 * PERIOD) % PERIOD
    waves = [1 + 0 * hours, *(np.cos(2 * np.pi * k * hours / PERIOD) for k in (1, 2, 3))]
    waves += [np.sin(2 * np.pi * k * hours / PERIOD) for k in (1, 2, 3)]
    draws = np.random.default_rng(1).normal(size=7)
    run, correction = corrections(context=draws)
    expected = 0.1 * (draws @ np.stack(waves)) * (INSTANCE.contexts - run.advice)[:, 0]
    np.testing.assert_allclose(correction, expected, atol=1e-12)


def best_path(x0, contexts):
    """(cost, last action) of the cheapest path through these contexts, from the normal equations in full."""
    moves = np.eye(len(contexts)) - np.eye(len(contexts), k=-1)
    start = np.zeros(len(contexts))
    start[0] = x0
    path = np.linalg.solve(WEIGHT * np.eye(len(contexts)) + ALPHA * moves.T @ moves, WEIGHT * contexts + ALPHA * start)
    missed, moved = path - contexts, moves @ path - start
    return 0.5 * WEIGHT * missed @ missed + 0.5 * ALPHA * moved @ moved, path[-1]


def test_the_account_is_the_periods(corrections):
    """Bill before this step, exact optimum of the prefix with this step and where it ends, first and last action: all since
    step 0, where a promise's account begins.
    """
    constant = [1.0, *[0.0] * 6]
    contexts = np.asarray(INSTANCE.contexts)
    for name in ("bill", "optimum", "anchor", "previous", "centre", "share"):
        run, correction = corrections(**{name: constant})
        x = np.concatenate([[0.4], np.asarray(run.actions)[:, 0]])
        steps = np.asarray(run.hitting + run.switching)
        advice = np.asarray(run.advice)[:, 0]
        for t in (0, 1, 5, 6, 15, 29):
            optimum, end = best_path(x[0], contexts[: t + 1, 0])
            bill, from_centre = steps[:t].sum(), end - advice[t]
            expected = {
                "bill": np.sqrt(bill / WEIGHT),
                "optimum": np.sqrt(optimum / WEIGHT),
                "centre": from_centre,
                "share": bill / (bill + optimum) * from_centre,
                "anchor": x[0] - advice[t],
                "previous": x[t] - advice[t],
            }
            assert correction[t] == pytest.approx(0.1 * expected[name], abs=1e-10), (name, t)


def small_training_set():
    starts = np.arange(4, 8) * PERIOD
    steps = starts[:, None] + np.arange(2 * PERIOD)
    past = starts[:, None] + np.arange(-4 * PERIOD, 0)
    return ec.Instance(CONTEXTS[starts - 1], CONTEXTS[steps], CONTEXTS[past])


@pytest.mark.parametrize(
    "guard",
    [
        ec.Competitive(GuardAwareCorrection(RIDGE, PERIOD), 1.8, horizon=2 * PERIOD),
        ec.Guarded(GuardAwareCorrection(RIDGE, PERIOD), slack=0.2),
    ],
    ids=["competitive", "guarded"],
)
def test_fit_trains_through_the_guard(guard):
    result = ec.fit(
        guard,
        PROBLEM,
        small_training_set(),
        loss=ec.StandaloneLoss(),
        key=jax.random.key(0),
        steps=40,
        batch=4,
        learning_rate=0.05,
        schedule="constant",
    )
    assert result.log.loss[-1] < result.log.loss[0] - 0.01
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), guard, result.agent)
    assert changed.agent.weights.weight
    assert sum(jax.tree.leaves(changed)) == 1


def test_gradient_through_renewed_promises_is_exact():
    """Through the clip, the budget that earlier actions left, the account, and the ends of days."""
    agent = ec.Competitive(weighted(context=3.0 * np.ones(7)), 1.75, period=PERIOD)
    draws = jnp.asarray(np.random.default_rng(5).normal(size=(7, 10)))

    def cost(size):
        weight = agent.agent.weights.weight + size * draws
        moved = eqx.tree_at(lambda a: a.agent.weights.weight, agent, weight)
        run = ec.rollout(moved, PROBLEM, INSTANCE)
        return run.cost, run.info.details["active"]

    run = jax.jit(jax.value_and_grad(cost, has_aux=True))
    (_, active), slope = run(0.0)
    assert 5 < int(active.sum()) < active.size - 5
    step = 1e-5
    difference = (run(step)[0][0] - run(-step)[0][0]) / (2 * step)
    assert float(slope) == pytest.approx(float(difference), rel=1e-6)
