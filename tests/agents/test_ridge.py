"""OnlineRidge: the identity it rests on, and its regression against a slow one written from the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.agents.advisors import OnlineRidge, Outlook, Recorded
from ecl2o.planning.modes import Modes
from ecl2o.theory import decay_root

PERIOD, LAGS, AHEAD, HALF_LIFE, MATURITY = 6, 4, 2, 3.0, 13
SMALL = OnlineRidge(
    period=PERIOD, half_life=HALF_LIFE, lags=LAGS, ahead=AHEAD, harmonics=1, maturity=MATURITY, refit_every=2
)


def line(weight=1.0, alpha=10.0):
    return ec.Problem(ec.SquaredTracking(weight), ec.Mahalanobis.isotropic(alpha=alpha, dim=1))


def plane():
    """Two coordinates that neither cost keeps apart."""
    return ec.Problem(ec.Quadratic([[2.0, 0.6], [0.6, 1.0]]), ec.Mahalanobis(np.array([[1.5, -0.7], [-0.7, 4.0]])))


def demand(steps, seed=0, dim=1):
    """Non-negative, with a daily shape, and not predictable."""
    rng = np.random.default_rng(seed)
    shape = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(steps) / PERIOD)[:, None]
    noise = np.zeros((steps, dim))
    for t in range(1, steps):
        noise[t] = 0.7 * noise[t - 1] + 0.15 * rng.normal(size=dim)
    return np.maximum(shape + noise, 0.0)


@pytest.mark.parametrize("problem", [line(weight=0.3, alpha=2.0), plane()], ids=["line", "plane"])
def test_cost_is_the_optimum_plus_half_the_squared_error(problem):
    """For any predictions at all; the contexts end with a long rest, so that a finite horizon is as good as none."""
    dim, moving, rest = problem.Q.shape[0], 30, 120
    modes = Modes.of(problem, dim)
    rho = decay_root(1.0, modes.a)

    def both(key):
        drawn = jax.random.normal(key, (2, moving, dim))
        end = drawn[0, -1]
        contexts = jnp.concatenate([drawn[0], jnp.tile(end, (rest, 1))])

        def backwards(later, y):
            z = (1 - rho) * (modes.to_modes @ y) + rho * later
            return z, z

        _, z = jax.lax.scan(backwards, modes.to_modes @ end, contexts, reverse=True)
        error = jnp.concatenate([drawn[1] @ modes.to_modes.T, jnp.zeros((rest, dim))])
        mean = (z + error) @ modes.from_modes.T
        instance = ec.Instance(jnp.ones(dim), contexts)
        run = ec.rollout(Recorded(Outlook(mean, jnp.zeros((moving + rest, 3, dim)))), problem, instance)
        return run.cost, ec.oracle(problem, instance).cost + 0.5 * jnp.sum(error**2)

    paid, expected = jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(3), 20))
    np.testing.assert_allclose(paid, expected, rtol=1e-10)


def slow_predictions(y, rho, ridge=0.01, refit_every=2):
    """zhat at every step, from the definition: each step builds its regression anew from the rows that have matured."""
    T, keep = len(y), 0.5 ** (1 / HALF_LIFE)

    def profile(t, phase_time):
        """The decaying mean of the values at that phase before t."""
        times = [s for s in range(t) if (s - phase_time) % PERIOD == 0]
        newest_first = list(reversed(times))
        weights = np.array([keep**i for i in range(len(times))])
        return float(weights @ y[newest_first] / weights.sum())

    def row(t):
        changes = [y[t - i] - y[t - i - 1] for i in range(LAGS)]
        coming = [profile(t, t + j) - y[t] for j in range(AHEAD + 1)]
        yesterday = [y[t - PERIOD + j] - y[t] for j in range(1, AHEAD + 1)]
        angle = 2 * np.pi * t / PERIOD
        anomaly = y[t] - profile(t, t)
        return np.array([*changes, *coming, *yesterday, np.cos(angle) * anomaly, np.sin(angle) * anomaly])

    def target(s):
        seen = y[s : s + MATURITY]
        weights = (1 - rho) * rho ** np.arange(MATURITY)
        weights[-1] = rho ** (MATURITY - 1)
        return weights @ seen - y[s]

    predictions, w, first = y.copy(), None, 2 * PERIOD
    for t in range(first, T):
        mature = range(first, t - MATURITY + 2)
        if t % refit_every == 0 and len(mature) >= PERIOD:
            F, z = np.stack([row(s) for s in mature]), np.array([target(s) for s in mature])
            kinds = np.repeat(np.arange(4), [LAGS, AHEAD + 1, AHEAD, 2])
            power = (F**2).mean(axis=0)
            size = np.sqrt([power[kinds == kind].mean() for kind in kinds])
            scaled = F / size
            w = np.linalg.solve(scaled.T @ scaled + ridge * np.eye(F.shape[1]), scaled.T @ z) / size
        if w is not None:
            predictions[t] = np.clip(y[t] + row(t) @ w, y[: t + 1].min(), y[: t + 1].max())
    return predictions


@pytest.fixture(scope="module")
def streamed():
    contexts = demand(96)
    return contexts, ec.rollout(SMALL, line(), ec.Instance([0.2], contexts))


def test_predictions_are_those_of_the_definition(streamed):
    """No row before its target is known, no context before its time."""
    contexts, run = streamed
    expected = slow_predictions(contexts[:, 0], float(decay_root(1.0, 10.0)))
    np.testing.assert_allclose(run.info.details["outlook"].mean[:, 0], expected, rtol=0, atol=1e-10)


def test_advice_is_the_moving_average_of_predictions(streamed):
    _, run = streamed
    r = decay_root(1.0, 10.0)
    before = jnp.concatenate([jnp.array([[0.2]]), run.actions[:-1]])
    np.testing.assert_allclose(run.actions, r * before + (1 - r) * run.info.details["outlook"].mean, atol=1e-14)


@pytest.mark.parametrize("seen", [4, 20, 62])
def test_a_history_is_as_good_as_having_lived_it(streamed, seen):
    contexts, run = streamed
    later = ec.rollout(SMALL, line(), ec.Instance([0.2], contexts[seen:], contexts[:seen]))
    whole, after = run.info.details["outlook"], later.info.details["outlook"]
    np.testing.assert_allclose(after.mean, whole.mean[seen:], rtol=0, atol=1e-10)
    np.testing.assert_allclose(after.signals, whole.signals[seen:], rtol=0, atol=1e-12)


def test_signals_are_the_last_change_and_the_profile_ahead(streamed):
    contexts, run = streamed
    signals, y = run.info.details["outlook"].signals[..., 0], contexts[:, 0]
    np.testing.assert_allclose(signals[20:, 0], y[20:] - y[19:-1], atol=1e-14)
    keep = 0.5 ** (1 / HALF_LIFE)
    for column in (1, 2):  # an eighth and a quarter of six steps are both one step
        values = y[[90 + 1 - PERIOD * i for i in range(1, 15)]]
        weights = keep ** np.arange(14)
        assert float(signals[90, column]) == pytest.approx(weights @ values / weights.sum() - y[90], abs=2e-3)


def test_the_streaming_runner_gives_the_same_numbers(streamed):
    contexts, run = streamed
    runner = ec.Runner(ec.Policy(SMALL, line()), [0.2])
    streamed_actions = np.stack([runner.step(context) for context in contexts])
    np.testing.assert_allclose(streamed_actions, run.actions, rtol=0, atol=1e-13)


def test_without_a_past_it_is_robd():
    contexts = demand(2 * PERIOD, seed=4)
    instance = ec.Instance([0.7], contexts)
    found, expected = ec.rollout(SMALL, line(), instance), ec.rollout(ec.ROBD(), line(), instance)
    np.testing.assert_allclose(found.actions, expected.actions, atol=1e-13)


def test_predictions_stay_in_the_range_seen():
    """However wild: the contexts jump by powers of ten once the regression has been fitted to calm ones."""
    contexts = demand(96, seed=5) * np.where(np.arange(96) < 60, 1.0, 10.0 ** (np.arange(96) % 5))[:, None]
    mean = ec.rollout(SMALL, line(), ec.Instance([0.2], contexts)).info.details["outlook"].mean
    assert bool((mean <= np.maximum.accumulate(contexts)).all())
    assert bool((mean >= np.minimum.accumulate(contexts)).all())


def test_learns_what_can_be_learned():
    """A daily shape on a slowly wandering level: after some weeks it costs within two percent of the optimum (half of that is
    the end of the run, of which it does not know), R-OBD far more.
    """
    rng, steps = np.random.default_rng(6), 24 * 50
    y = 0.5 + 0.3 * np.sin(2 * np.pi * np.arange(steps) / 24) + 0.2 * np.cos(4 * np.pi * np.arange(steps) / 24)
    y[1:] += 0.001 * rng.normal(size=steps - 1).cumsum()
    contexts, problem = y[:, None], line()
    past, coming = contexts[: 24 * 40], contexts[24 * 40 :]
    instance = ec.Instance(past[-1], coming, past)
    best = ec.oracle(problem, instance).cost
    assert float(ec.rollout(OnlineRidge(), problem, instance).cost) < 1.02 * float(best)
    assert float(ec.rollout(ec.ROBD(), problem, instance).cost) > 1.5 * float(best)


def test_refusals():
    start = Start(jnp.zeros(1), jnp.zeros((0, 1)))
    curved = ec.ConvexCost(lambda x, y: jnp.sum(jnp.cosh(x - y) - 1), strong_convexity=1.0)
    with pytest.raises(ValueError, match=r"constant curvature.*ConvexCost"):
        OnlineRidge().init(ec.Problem(curved, line().switching), start)
    with pytest.raises(ValueError, match=r"constant curvature.*CurvedTracking"):
        OnlineRidge().init(ec.Problem(ec.CurvedTracking(), line().switching), start)
    with pytest.raises(ValueError, match="maturity must be at least 25"):
        OnlineRidge(maturity=23)
    with pytest.raises(ValueError, match="ridge must be positive"):
        OnlineRidge(ridge=0.0)
    with pytest.raises(ValueError, match="ahead must be"):
        OnlineRidge(ahead=24)
    with pytest.raises(ValueError, match="refit_every"):
        OnlineRidge(refit_every=0)
