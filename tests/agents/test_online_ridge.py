"""OnlineRidge: the identity it rests on, and its regression against a slow one written from the definition."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.planning.decoupling import Modes
from ecl2o.problem.arrays import to_device
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares
from ecl2o.theory import decay_root

PERIOD, LAGS, HALF_LIFE, MATURITY, WEEK = 6, 4, 3.0, 8, 2
SMALL = OnlineRidge(PERIOD, HALF_LIFE, LAGS, harmonics=1, week=WEEK, maturity=MATURITY)
MEMORY = 5.0
RICH = OnlineRidge(PERIOD, HALF_LIFE, LAGS, harmonics=1, week=WEEK, maturity=MATURITY, rich=True, memory=MEMORY)
ENDS, LEADS, NEEDED = [0, 2, 4, 5, 6], [0, 1, 2, 4], 2 * PERIOD
SPANS = [1, 2, 3, 6]  # 1, 2, 3, 6, 12 and 24 hours in steps of four hours, at least one
RIDGE = 0.01
LONGEST = 240


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
    modes = Modes.from_problem(problem, dim)
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
        run = ec.rollout(Replayed(DiscountedForecast(mean, jnp.zeros((moving + rest, 3, dim)))), problem, instance)
        return run.cost, ec.oracle(problem, instance).cost + 0.5 * jnp.sum(error**2)

    paid, expected = jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(3), 20))
    np.testing.assert_allclose(paid, expected, rtol=1e-10)


def slow_predictions(y, rho, rich=False):
    """zhat at every step, from the definition: each step solves its regression anew from the rows that have matured.

    No context here is implausible; a residual may be outlying. Rich features come with forgetting.
    """
    T, predictions = len(y), y.copy()
    keep = 0.5 ** (1 / (MEMORY * PERIOD)) if rich else 1.0

    def usual(t, time, period, half_life, otherwise):
        """The decaying mean of the contexts before t at the phase of `time`."""
        times = np.array([s for s in range(t) if (s - time) % period == 0])
        weights = 0.5 ** ((t - times) / (half_life * period))
        return float(weights @ y[times] / weights.sum()) if len(times) else otherwise

    def anomaly(t):
        return y[t] - usual(t, t, PERIOD * WEEK, 2.0, usual(t, t, PERIOD, HALF_LIFE, y[t]))

    def discounted(profile):
        """Of a profile that is linear between the leads and starts again after a period."""
        ahead = np.interp(np.arange(400 * PERIOD) % PERIOD, [*LEADS, PERIOD], [*profile, profile[0]])
        return (1 - rho) * rho ** np.arange(len(ahead)) @ ahead

    def row(t):
        stretches = [y[t - b : t - a].mean() for a, b in itertools.pairwise(ENDS)]
        coming = [usual(t, t + j, PERIOD, HALF_LIFE, y[t]) for j in LEADS]
        weekly = [usual(t, t + j, PERIOD * WEEK, 2.0, c) for j, c in zip(LEADS, coming, strict=True)]
        angle, daily_anomaly = 2 * np.pi * t / PERIOD, y[t] - coming[0]
        parts = -np.diff([y[t], *stretches]), np.array(coming) - y[t], np.subtract(weekly, coming)
        waves = np.array([np.cos(angle), np.sin(angle)])
        if not rich:
            return [*parts, daily_anomaly * waves]
        changes = np.array([anomaly(t) - anomaly(t - k) for k in SPANS])
        times = [changes[0], changes[-1], discounted(parts[1]), discounted(parts[2])]
        return [*parts, anomaly(t) * waves, changes, *(each * waves for each in times)]

    rows = {t: row(t) for t in range(NEEDED, T)}
    first = NEEDED + MATURITY - 1  # the step at which the first row matures
    power = [np.mean([np.mean(rows[t][kind] ** 2) for t in range(NEEDED, first)]) for kind in range(len(rows[first]))]
    scaled = {
        t: np.concatenate([part / np.sqrt(p) for part, p in zip(parts, power, strict=True)])
        for t, parts in rows.items()
    }
    gram, moment, spread, low, high = RIDGE * np.eye(len(scaled[NEEDED])), 0.0, 0.0, np.inf, -np.inf
    shrinking = 0.5 * (1 - 0.5 ** (1 / (2 * HALF_LIFE * PERIOD)))
    for t in range(T):
        inward = shrinking * (high - low) if high > low else 0.0
        low, high = min(low + inward, y[t]), max(high - inward, y[t])
        if t < NEEDED:
            continue
        f = scaled[t]
        forecast = np.linalg.solve(gram + np.outer(f, f), f) @ (moment + 0 * f)  # with f among the rows, its target 0
        predictions[t] = np.clip(y[t] + forecast, low, high)
        s = t - MATURITY + 1
        if s >= NEEDED:
            discounts = rho ** np.arange(MATURITY + 1)
            target = (1 - rho) * discounts[:-1] @ y[s : t + 1] + discounts[-1] * predictions[t] - y[s]
            residual = target - scaled[s] @ np.linalg.solve(gram, moment + 0 * f)
            before = s - NEEDED
            outlying = before >= PERIOD and residual**2 > 25 * spread
            counted = np.sqrt(25 * spread / residual**2) if outlying else 1.0
            gram = keep * gram + counted * np.outer(scaled[s], scaled[s])
            moment = keep * moment + counted * target * scaled[s]
            spread += (min(residual**2, 25 * spread if outlying else np.inf) - spread) / min(before + 1, 20 * PERIOD)
    return predictions


@functools.cache
def compiled_run(rich):
    def run(contexts):
        run = ec.rollout(RICH if rich else SMALL, line(), ec.Instance([0.2], contexts))
        return run.actions, run.info.details["discounted_forecast"]

    return jax.jit(run)


def played(contexts, rich=False):
    """Actions and outlooks from x0 = 0.2; one program for all lengths, since nothing depends on what comes later."""
    after = np.repeat(contexts[-1:], LONGEST - len(contexts), axis=0)
    whole = jax.device_get(compiled_run(rich)(np.concatenate([contexts, after])))
    return jax.tree.map(lambda leaf: leaf[: len(contexts)], whole)


@pytest.fixture(scope="module")
def streamed():
    contexts = demand(96)
    return contexts, *played(contexts)


def test_predictions_are_those_of_the_definition(streamed):
    """No row before its target is known, no context before its time."""
    contexts, _, outlook = streamed
    expected = slow_predictions(contexts[:, 0], float(decay_root(1.0, 10.0)))
    np.testing.assert_allclose(outlook.mean[:, 0], expected, rtol=0, atol=1e-10)


def test_rich_and_forgetful_predictions_are_those_of_the_definition():
    contexts = demand(96, seed=2)
    expected = slow_predictions(contexts[:, 0], float(decay_root(1.0, 10.0)), rich=True)
    np.testing.assert_allclose(played(contexts, rich=True)[1].mean[:, 0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("seed", "when", "size"), [(30, NEEDED + PERIOD, 0.5), (13, 200, 1.7)])
def test_outlying_rows_count_less(seed, when, size):
    """The first row that can, and one so late that the mean square of the residuals has begun to forget."""
    contexts = demand(LONGEST, seed)
    contexts[when] += size
    expected = slow_predictions(contexts[:, 0], float(decay_root(1.0, 10.0)))
    np.testing.assert_allclose(played(contexts)[1].mean[:, 0], expected, rtol=0, atol=1e-10)


def test_advice_is_the_moving_average_of_predictions(streamed):
    _, actions, outlook = streamed
    r = np.asarray(decay_root(1.0, 10.0))
    before = np.concatenate([[[0.2]], actions[:-1]])
    np.testing.assert_allclose(actions, r * before + (1 - r) * outlook.mean, atol=1e-14)


@pytest.mark.parametrize(
    ("problem", "lengths"), [(line(), (3, 6, 9, 16, 30, 37, 59, 60)), (plane(), (20, 61))], ids=["line", "plane"]
)
def test_a_history_is_as_good_as_having_lived_it(problem, lengths):
    """For eight lengths, whole periods and others: the same actions and the same signals from there on."""
    dim = problem.Q.shape[0]
    contexts = demand(70, seed=8, dim=dim)
    whole = jax.device_get(ec.rollout(SMALL, problem, ec.Instance(contexts[0], contexts)))
    learned = jax.jit(lambda past: SMALL.init(problem, Start(jnp.zeros(dim), past)))
    step = jax.jit(
        lambda state, context, before: SMALL.step(problem, state, Observation(context, before, jnp.asarray(0)))
    )
    for seen in lengths:
        _, action, info = step(learned(contexts[:seen]), contexts[seen], whole.actions[seen - 1])
        np.testing.assert_allclose(action, whole.actions[seen], rtol=0, atol=1e-9)
        lived = whole.info.details["discounted_forecast"].signals[seen]
        np.testing.assert_allclose(info.details["discounted_forecast"].signals, lived, rtol=0, atol=1e-12)


def test_signals_are_the_last_change_and_the_profile_ahead(streamed):
    contexts, _, outlook = streamed
    signals, y = outlook.signals[..., 0], contexts[:, 0]
    np.testing.assert_allclose(signals[20:, 0], y[20:] - y[19:-1], atol=1e-13)
    for column in (1, 2):  # an eighth and a quarter of six steps are both one step
        values = y[[90 + 1 - PERIOD * i for i in range(1, 16)]]
        weights = 0.5 ** (np.arange(15) / HALF_LIFE)
        assert float(signals[90, column]) == pytest.approx(weights @ values / weights.sum() - y[90], abs=1e-12)


def test_the_streaming_runner_gives_the_same_numbers(streamed):
    contexts, actions, _ = streamed
    runner = ec.Runner(ec.Policy(SMALL, line()), [0.2])
    streamed_actions = np.stack([runner.step(context) for context in contexts])
    np.testing.assert_allclose(streamed_actions, actions, rtol=0, atol=1e-13)


def test_without_a_past_it_is_robd():
    contexts = demand(2 * PERIOD, seed=4)
    expected = ec.rollout(ec.ROBD(), line(), ec.Instance([0.2], contexts))
    np.testing.assert_allclose(played(contexts)[0], expected.actions, atol=1e-13)


def test_the_first_row_is_used_as_soon_as_it_has_matured():
    """Until then zhat is the present context, and from the next step on it is not."""
    contexts = demand(NEEDED + MATURITY + 2, seed=9)
    mean = played(contexts)[1].mean
    matured = NEEDED + MATURITY - 1
    np.testing.assert_array_equal(mean[: matured + 1], contexts[: matured + 1])
    assert (np.abs(mean[matured + 1 :] - contexts[matured + 1 :]) > 1e-6).all()


def test_one_bad_context_does_little_harm():
    """A million times too large, or a billion: the same, and two periods later predictions are those of a run without it."""
    clean = demand(LONGEST, seed=5)
    expected, extent = played(clean)[1].mean, float(clean.max() - clean.min())
    for when in (NEEDED, 120):  # the first that is judged, and a later one
        bad = [played(clean + size * (np.arange(LONGEST) == when)[:, None])[1].mean for size in (1e6, 1e9)]
        np.testing.assert_allclose(bad[0], bad[1], atol=1e-6)
        assert float(np.abs(bad[1][when:]).max()) < 3 * extent
    assert float(np.abs(bad[1] - expected)[120 + 3 * PERIOD :].mean()) < 0.03 * extent


def test_a_lasting_change_of_level_is_followed():
    """A thousand times the level: followed within ten steps, since the range may double at every one."""
    contexts = demand(120, seed=5) * np.where(np.arange(120) < 60, 1.0, 1000.0)[:, None]
    mean = played(contexts)[1].mean
    assert float(np.abs(mean - contexts)[75:].mean()) < 400.0
    assert bool((mean <= np.maximum.accumulate(contexts)).all())


def test_forgetting_is_least_squares_with_fading_weights():
    rows, keep, ridge = np.random.default_rng(1).normal(size=(300, 6)), 0.98, 0.3
    f, z = rows[:, :5], rows[:, 5]
    state = RecursiveLeastSquares.empty(5, jnp.asarray(ridge), float)
    for each, target in zip(to_device(f), z, strict=True):
        state = state.with_row(each, target - each @ state.weights, jnp.asarray(0.7), keep)
    fading = 0.7 * keep ** np.arange(300)[::-1]
    gram = ridge * keep**300 * np.eye(5) + (f.T * fading) @ f
    np.testing.assert_allclose(state.weights, np.linalg.solve(gram, (f.T * fading) @ z), rtol=0, atol=1e-12)
    np.testing.assert_allclose(state.root @ state.root.T, np.linalg.inv(gram), rtol=1e-9)


def test_what_is_forgotten_in_a_constant_series_is_bounded():
    """Two thousand half-lives pass without news: P stays below a million times the ridge's, and what follows is sound."""
    forgetful = OnlineRidge(4, lags=2, harmonics=1, maturity=4, rich=True, memory=0.05)
    contexts = np.concatenate([demand(40), np.full((400, 1), 0.5), demand(40, seed=1)])
    states, mean = jax.jit(lambda y: _streamed_states(forgetful, y))(to_device(contexts))
    regression = states.memory.regression
    assert float(jnp.sum(regression.root**2, axis=(-2, -1)).max()) <= forgetful.features.count / RIDGE * 1e6 * 2.0**5.1
    assert np.isfinite(mean).all()
    assert float(np.abs(mean).max()) < 2.0


def _streamed_states(agent, contexts):
    def step(state, context):
        state, _, info = agent.step(line(), state, Observation(context, jnp.zeros(1), jnp.asarray(0)))
        return state, (state, info.details["discounted_forecast"].mean)

    return jax.lax.scan(step, agent.init(line(), Start(jnp.zeros(1), contexts[:0])), contexts)[1]


def test_rich_changes_are_in_hours_at_any_resolution():
    hours = [OnlineRidge(period, rich=True).features.spans.tolist() for period in (24, 96, 288, 7)]
    assert hours == [[1, 2, 3, 6, 12, 24], [4, 8, 12, 24, 48, 96], [12, 24, 36, 72, 144, 288], [1, 2, 4, 7]]


def test_rich_features_do_not_depend_on_the_resolution():
    """A smooth series with a trend, read every hour and every quarter of an hour: the same changes over the same hours."""
    found = []
    for times in (1, 4):
        features = OnlineRidge(24 * times, rich=True).features
        hours = np.arange(24 * 8 * times) / times
        contexts = 0.4 + 0.3 * np.sin(2 * np.pi * hours / 24) + 0.2 * np.sin(2 * np.pi * hours / 100)
        memory, anomalies = features.empty(float), []
        advance, nothing = eqx.filter_jit(features.advance), jnp.zeros(0)
        for step, now in enumerate(contexts):
            memory = advance(memory, jnp.asarray(step), jnp.asarray(now), nothing, jnp.asarray(0.5))
            anomalies.append(float(memory.signals[0, 0]))
        late = np.arange(24 * 5, 24 * 8) * times
        found.append([np.array(anomalies)[late] - np.array(anomalies)[late - span] for span in features.spans])
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
    assert np.abs(found[0]).max() > 0.2


def test_the_weights_survive_a_million_rows():
    """Ten years of five-minute rows, nearly collinear: P stays what it is, which a subtraction of squares would not."""
    drawn = np.random.default_rng(0).normal(size=(1000, 4))
    rows = np.concatenate([drawn, drawn[:, :1] + 1e-4 * drawn[:, 1:2]], axis=1)
    given = to_device(rows)

    def learn(regression, i):
        f = given[i % 1000]
        return regression.with_row(f, f[0] - f[3] - f @ regression.weights, jnp.asarray(1.0)), None

    @jax.jit
    def learned():
        start = RecursiveLeastSquares.empty(5, jnp.asarray(RIDGE), float)
        return jax.lax.scan(learn, start, jnp.arange(1_000_000))[0]

    after = jax.device_get(learned())
    gram = RIDGE * np.eye(5) + 1000 * rows.T @ rows
    covariance = after.root @ after.root.T
    np.testing.assert_allclose(covariance @ gram, np.eye(5), atol=1e-5)
    np.testing.assert_allclose(
        after.weights, np.linalg.solve(gram, 1000 * rows.T @ (rows[:, 0] - rows[:, 3])), atol=1e-6
    )


@pytest.mark.parametrize(("period", "week"), [(1, None), (2, 7), (24, 7), (96, 7), (288, 7), (1440, None)])
def test_features_do_not_grow_with_the_period(period, week):
    advisor = OnlineRidge(period, week=week)
    assert advisor.features.count <= 64
    assert advisor.features.ends[-1] == period
    state = jax.eval_shape(lambda: advisor.init(line(), Start(jnp.zeros(1), jnp.zeros((0, 1)))))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) <= 60_000


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
    start = Start(to_device(np.zeros(1)), to_device(np.zeros((0, 1))))
    curved = ec.ConvexCost(lambda x, y: jnp.sum(jnp.cosh(x - y) - 1), strong_convexity=1.0)
    with pytest.raises(ValueError, match=r"constant curvature.*ConvexCost"):
        OnlineRidge().init(ec.Problem(curved, line().switching), start)
    with pytest.raises(ValueError, match=r"constant curvature.*CurvedTracking"):
        OnlineRidge().init(ec.Problem(ec.CurvedTracking(), line().switching), start)
    with pytest.raises(ValueError, match="maturity must be at least 2"):
        OnlineRidge(maturity=1)
    with pytest.raises(ValueError, match="ridge must be positive"):
        OnlineRidge(ridge=0.0)
    with pytest.raises(ValueError, match="lags must be"):
        OnlineRidge(lags=0)
    with pytest.raises(ValueError, match="week must be"):
        OnlineRidge(week=0)
    with pytest.raises(ValueError, match="half_life must be positive"):
        OnlineRidge(half_life=0.0)


def test_columns_with_their_own_alphas_are_regressions_of_their_own():
    """Q = diag(alphas)/2: each coordinate is played as if it were alone, with its alpha."""
    contexts = np.random.default_rng(3).normal(size=(60, 2)) + np.sin(np.arange(60))[:, None]
    alphas = np.array([10.0, 0.5])

    @jax.jit
    def actions(Q, contexts):
        problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis(Q))
        return ec.rollout(SMALL, problem, ec.Instance(contexts[0], contexts)).actions

    alone = [actions(np.array([[alpha / 2]]), contexts[:, i : i + 1]) for i, alpha in enumerate(alphas)]
    together = actions(np.diag(alphas) / 2, contexts)
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), rtol=1e-9, atol=1e-9)
