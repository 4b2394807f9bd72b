"""Roll-outs against a loop written by hand, over days too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info
from ecl2o.forecasters import AbstractCausalForecaster
from ecl2o.running import stream_days

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=4.0, dim=1))
X0, DAYS = jnp.array([0.3]), jnp.asarray(np.random.default_rng(0).normal(size=(4, 5, 1)))
HISTORY = jnp.asarray(np.random.default_rng(1).normal(size=(7, 1)))


class MeanOfPast(AbstractAgent):
    """Half way from the previous action to the mean of all contexts it knows of: needs history, state and played action."""

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem, start):
        return jnp.sum(start.history, axis=0), jnp.asarray(start.history.shape[0], start.x0.dtype)

    def step(self, problem, state, observation):
        total, count = state[0] + observation.context, state[1] + 1
        action = 0.5 * observation.previous_action + 0.5 * total / count
        return (total, count), action, Info.plain()


class Forecast(AbstractAgent):
    """Plays the mean of its forecast."""

    window: int

    @property
    def lookahead(self) -> int:
        return self.window

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        return state, jnp.mean(observation.forecast, axis=0), Info.plain()


class LastButOne(AbstractCausalForecaster):
    """Predicts the context before the present one."""

    def init(self, history, window):
        return history[-1] if history.shape[0] else jnp.zeros(history.shape[1:], history.dtype)

    def step(self, state, context, window):
        return context, jnp.broadcast_to(state, (window, context.shape[0]))


def _by_hand(x0, contexts, past):
    """MeanOfPast in plain NumPy: actions and costs."""
    seen, previous, actions, cost = [float(y) for y in np.ravel(past)], float(x0[0]), [], 0.0
    for y in np.ravel(contexts):
        seen.append(float(y))
        x = 0.5 * previous + 0.5 * np.mean(seen)
        cost += 0.5 * (x - y) ** 2 + 2.0 * (x - previous) ** 2
        actions.append(x)
        previous = x
    return np.array(actions)[:, None], cost


def test_rollout_is_the_loop():
    run = ec.rollout(MeanOfPast(), PROBLEM, ec.Instance(X0, DAYS[0], HISTORY))
    actions, cost = _by_hand(X0, DAYS[0], HISTORY)
    np.testing.assert_allclose(run.actions, actions, rtol=1e-12)
    np.testing.assert_allclose(run.cost, cost, rtol=1e-12)
    assert run.advice is None


@pytest.mark.parametrize("length", [0, 3, 7])
def test_days_carry_the_action_over_and_roll_the_history(length):
    """With less, as much and more history than a day has hours."""
    history = HISTORY[:length]
    runs, starts = ec.rollout_days(MeanOfPast(), PROBLEM, X0, DAYS, history if length else None)
    assert runs.actions.shape == (4, 5, 1)
    x0, past = np.asarray(X0), np.asarray(history)
    for k in range(4):
        actions, cost = _by_hand(x0, DAYS[k], past)
        np.testing.assert_allclose(starts[k], x0, rtol=1e-12)
        np.testing.assert_allclose(runs.actions[k], actions, rtol=1e-12)
        np.testing.assert_allclose(runs.cost[k], cost, rtol=1e-12)
        x0 = actions[-1]
        past = np.concatenate([past, DAYS[k]])[-length:] if length else past


def test_a_stream_through_days_goes_on_over_midnight():
    """The state is made once: on the history, not anew every day."""
    runs, starts = stream_days(MeanOfPast(), PROBLEM, X0, DAYS, HISTORY)
    actions, cost = _by_hand(X0, DAYS.reshape(-1, 1), HISTORY)
    np.testing.assert_allclose(runs.actions.reshape(-1, 1), actions, rtol=1e-12)
    np.testing.assert_allclose(runs.cost.sum(), cost, rtol=1e-12)
    np.testing.assert_allclose(starts, np.concatenate([X0[None], runs.actions[:-1, -1]]), rtol=1e-12)


def test_days_may_be_numpy_arrays():
    days = np.asarray(X0), np.asarray(DAYS)
    for run in (ec.rollout_days, stream_days):
        expected, _ = run(ec.ROBD(), PROBLEM, X0, DAYS)
        np.testing.assert_array_equal(run(ec.ROBD(), PROBLEM, *days)[0].actions, expected.actions)
    np.testing.assert_array_equal(ec.oracle_days(PROBLEM, *days)[0].cost, ec.oracle_days(PROBLEM, X0, DAYS)[0].cost)


def test_exact_forecasts_are_the_next_contexts():
    contexts = DAYS[0]
    run = ec.rollout(Forecast(2), PROBLEM, ec.Instance(X0, contexts))
    padded = np.concatenate([contexts, contexts[-1:], contexts[-1:]])
    np.testing.assert_allclose(run.actions, [padded[t + 1 : t + 3].mean(axis=0) for t in range(5)], rtol=1e-12)


def test_every_day_has_noise_of_its_own():
    """The same contexts every day, and an agent that plays its forecast: what differs is the noise."""
    same = jnp.broadcast_to(DAYS[0], DAYS.shape)
    noisy, key = ec.forecasters.NoisyExact(sigma=1.0), jax.random.key(5)
    runs, _ = ec.rollout_days(Forecast(2), PROBLEM, X0, same, forecaster=noisy, key=key)
    noise = runs.actions - ec.rollout(Forecast(2), PROBLEM, ec.Instance(X0, DAYS[0])).actions
    apart = np.abs(noise[:, None] - noise[None, :]).min(axis=(2, 3))
    assert float(apart[~np.eye(4, dtype=bool)].min()) > 1e-6
    again, _ = ec.rollout_days(Forecast(2), PROBLEM, X0, same, forecaster=noisy, key=key)
    np.testing.assert_array_equal(runs.actions, again.actions)


def test_a_causal_forecaster_is_stepped_once_per_context():
    run = ec.rollout(Forecast(2), PROBLEM, ec.Instance(X0, DAYS[0], HISTORY), LastButOne())
    np.testing.assert_array_equal(run.actions, np.concatenate([HISTORY[-1:], DAYS[0][:-1]]))


def test_days_of_a_causal_forecaster_see_the_rolling_history():
    runs, _ = ec.rollout_days(Forecast(1), PROBLEM, X0, DAYS, HISTORY, LastButOne())
    everything = np.concatenate([HISTORY, DAYS.reshape(-1, 1)])
    np.testing.assert_array_equal(runs.actions.reshape(-1, 1), everything[6:-1])


def test_non_convergence_is_reported_in_the_trajectory():
    def broken(x, y):
        return jnp.sum((x - y) ** 2) + jnp.where(y[0] > 0.9, jnp.nan, 0.0)

    problem = ec.Problem(ec.ConvexCost(broken, 2.0), PROBLEM.switching)
    run = ec.rollout(ec.Greedy(), problem, ec.Instance([0.0], [[0.1], [0.5], [1.0]]))
    assert run.converged.tolist() == [True, True, False]
    assert not bool(ec.oracle(problem, ec.Instance([0.0], [[0.1], [1.0]])).converged.any())


def test_works_in_the_precision_of_x0():
    single = ec.Instance(np.zeros(1, np.float32), DAYS[0])
    run, best = ec.rollout(ec.ROBD(), PROBLEM, single), ec.oracle(PROBLEM, single)
    assert run.cost.dtype == best.cost.dtype == jnp.float32


def test_gradient_of_the_bill():
    """Erratum E7: the bill of Greedy under SquaredTracking, differentiated by hand through the recursion."""
    contexts = DAYS[0]
    found = jax.grad(lambda y: ec.rollout(ec.Greedy(), PROBLEM, ec.Instance(X0, y)).cost)(contexts)
    y, T, a = np.ravel(contexts), 5, 4.0
    x, previous = np.zeros(T), float(X0[0])
    for t in range(T):
        previous = x[t] = (y[t] + a * previous) / (1 + a)
    moves = np.diff(x, prepend=float(X0[0]))
    pull = (x - y) + a * moves - a * np.append(moves[1:], 0.0)  # including the next step's movement
    jacobian = np.array([[(a / (1 + a)) ** (t - s) / (1 + a) if t >= s else 0.0 for s in range(T)] for t in range(T)])
    np.testing.assert_allclose(np.ravel(found), jacobian.T @ pull - (x - y), rtol=1e-10)


@pytest.mark.parametrize("run", [ec.rollout_days, ec.stream_days])
def test_days_of_a_problem_with_a_state_are_refused(run):
    """A day would start from the last action of the day before, which is not the state."""
    with pytest.raises(ec.NotApplicableError, match="Periodic"):
        run(ec.LQR(), ec.battery(alpha=10.0, charge=0.05), np.zeros(2), np.zeros((2, 3, 1)))
