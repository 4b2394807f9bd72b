"""Covariates and forecasts given from outside: what the regression and the planner make of them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.features import RidgeFeatures
from ecl2o.forecasters import Given, RollingProfile
from ecl2o.planning.given_leads import group_leads, spread_errors
from ecl2o.running import Stepper

PERIOD, DAYS, ALPHA = 24, 60, 10.0
STEPS = PERIOD * DAYS


def tracking(covariates: int) -> ec.Problem:
    return ec.Problem(ec.SquaredTracking(covariates=covariates), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))


def shift(values, lead):
    """The value `lead` steps ahead; the last one at the end."""
    return np.concatenate([values[lead:], np.full(lead, values[-1])])


@pytest.fixture(scope="module")
def series():
    """Demand less wind, and the wind: both deviate from the time of day and return at other speeds."""
    rng = np.random.default_rng(5)
    hours = np.arange(STEPS)

    def wander(share, size):
        found = np.zeros(STEPS)
        for i in range(1, STEPS):
            found[i] = share * found[i - 1] + rng.normal(0, size)
        return found

    wind = 5 + np.cos(2 * np.pi * hours / 24) + wander(0.7, 0.5)
    return 20 + 3 * np.sin(2 * np.pi * hours / 24) + wander(0.98, 0.1) - wind, wind


def excess(followed, columns, leads, agent=None, forecaster=None):
    """The cost above the optimum, over it, in the second half of the series, after the first as history."""
    contexts, problem, half = np.stack([followed, *columns], axis=1), tracking(len(columns)), STEPS // 2
    instance = ec.Instance(contexts[half - 1, :1], contexts[half:], contexts[:half])
    agent = OnlineRidge(PERIOD, covariates=leads) if agent is None else agent
    return float(ec.rollout(agent, problem, instance, forecaster).cost / ec.oracle(problem, instance).cost) - 1


def test_the_regression_learns_what_covariates_are_worth(series):
    followed, wind = series
    rng = np.random.default_rng(1)
    without = excess(followed, [], ())
    assert excess(followed, [wind], (None,)) < 0.9 * without
    perfect = [shift(followed, lead) for lead in (1, 2, 4, 8, 16)]
    assert excess(followed, perfect, (1, 2, 4, 8, 16)) < 0.3 * without
    worse = [rng.normal(followed.mean(), 4 * followed.std(), STEPS) for _ in range(2)]
    assert (1 + excess(followed, worse, (1, 6))) / (1 + without) < 1.01  # 30 days have not yet shown how bad it is


def test_units_of_covariates_and_the_bias_of_forecasts_do_not_matter(series):
    followed, wind = series
    one = excess(followed, [wind], (None,))
    np.testing.assert_allclose(excess(followed, [1e6 - 1e4 * wind], (None,)), one, rtol=1e-6)
    leads = (1, 3, 6)
    exact = [shift(followed, lead) for lead in leads]
    fair, biased = (excess(followed, [each + bias for each in exact], leads) for bias in (0.0, 10.0))
    assert fair < biased < excess(followed, [], ())


def test_features_equal_those_of_plain_numpy(series):
    followed, wind = (values[: 4 * PERIOD] for values in series)
    leads, rho, half_life = (None, 2, 5), 0.7, 7.0
    columns = [wind, shift(followed, 2) + 0.1, shift(followed, 5)]
    made = RidgeFeatures(PERIOD, half_life, lags=2, harmonics=1, maturity=PERIOD, leads=leads)
    memory = made.empty(float)
    advance, at = eqx.filter_jit(made.advance), eqx.filter_jit(made.at)
    found = []
    for step, context in enumerate(np.stack([*columns, followed], axis=1)):
        # In modes that differ from the units of the covariates.
        memory = advance(memory, jnp.array(step), jnp.array(7 * context[-1]), jnp.array(context), jnp.array(rho))
        found.append(np.asarray(at(memory, jnp.array(step), jnp.array(rho))[0])[:, -12:])

    def usual(values, step, phase):
        """The mean at a phase of the values before a step, whose weight halves in seven days."""
        ages = [age for age in range(1, step + 1) if (step - age) % PERIOD == phase % PERIOD]
        weights = np.array([0.5 ** (age / (half_life * PERIOD)) for age in ages])
        return values[step] if not ages else weights @ [values[step - age] for age in ages] / weights.sum()

    def features(step):
        own = [[each[s] - usual(each, s, s) for each in columns] for s in range(step - PERIOD, step + 1)]
        deviations = np.array(own)[::-1]
        changes = deviations[0, 0] - deviations[[1, 2, 3, 6, 12, 24], 0]
        angle = 2 * np.pi * step / PERIOD
        path = np.array([usual(followed, step, step + ahead) for ahead in range(5000)])
        errors = {0: followed[step] - path[0], 2: columns[1][step] - path[2], 5: columns[2][step] - path[5]}
        line = np.interp(np.arange(5000), list(errors), list(errors.values()))
        line[6:] = errors[5] * 0.9 ** np.arange(1, 4995)
        mean = (1 - rho) * rho ** np.arange(5000) @ (path + line) - followed[step]
        waves = np.array([np.cos(angle), np.sin(angle)]) * changes[0]
        return np.concatenate([deviations[0, :1], changes, waves, deviations[0, 1:], [mean]])

    last = len(followed) - 1
    assert made.sizes[-4:] == [7, 2, 2, 1]
    np.testing.assert_allclose(found[last][0], features(last), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[last][1], features(last - PERIOD + 1), rtol=1e-9, atol=1e-9)


def test_leads_are_grouped_and_errors_spread():
    assert group_leads([3, None, 1, 3, 1, 3]) == [[(2, 1), (0, 3)], [(4, 1), (3, 3)], [(5, 3)]]
    shares = spread_errors([1, 3], 6, 24)
    np.testing.assert_allclose(shares @ [0.0, 1.0, 3.0], [0, 1, 2, 3, 2.7, 2.43])


def test_a_planner_with_perfect_forecasts_is_the_one_that_knows_the_future(series):
    followed, _ = series
    leads = tuple(range(1, PERIOD))
    agent = ec.RHC(PERIOD - 1, truncate=False)
    given = Given(leads, RollingProfile(period=PERIOD))
    known = excess(followed, [shift(followed, lead) for lead in leads], leads, agent, given)
    np.testing.assert_allclose(known, excess(followed, [], (), agent, ec.forecasters.Exact()), rtol=1e-9)
    band = [shift(followed, lead) + off for off in (-1.0, 1.0) for lead in leads]  # the mean of two quantiles
    np.testing.assert_allclose(excess(followed, band, leads * 2, agent, Given(leads * 2)), known, rtol=1e-9)
    some = (1, 2, 4, 8, 16)
    few = excess(followed, [shift(followed, lead) for lead in some], some, agent, Given(some))
    assert known < few < excess(followed, [], (), agent, RollingProfile(period=PERIOD))


def test_forecasts_need_a_lead_and_one_followed_column():
    with pytest.raises(ValueError, match="leads"):
        Given((None,))
    with pytest.raises(ec.NotApplicableError):
        ec.rollout(OnlineRidge(4, covariates=(None,)), tracking(2), ec.Instance([0.0], [[1.0, 2.0, 3.0]]))
    two = ec.Problem(ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=2))
    with pytest.raises(ec.NotApplicableError):
        ec.rollout(OnlineRidge(4, covariates=(1,)), two, ec.Instance([0.0, 0.0], [[1.0, 2.0, 3.0]]))


def test_a_covariate_that_is_not_finite_does_not_end_a_promise():
    stepper = Stepper(ec.Competitive(ec.ROBD(), ratio=2.0), tracking(1))
    state = stepper.init(ec.Start(jnp.zeros(1), jnp.zeros((0, 2))))
    for context in ([1.0, np.nan], [2.0, np.inf], [1.0, 0.0]):
        state, step = stepper.step(state, jnp.array(context))
        assert step.info.converged
        assert step.info.details["ratio"] <= 2.0
    _, step = stepper.step(state, jnp.array([np.nan, 0.0]))
    assert not step.info.converged


def test_wind_and_sun_close_a_tenth_of_the_gap_on_ercot_and_noise_costs_nothing(shared):
    table = pd.read_csv(shared / "data" / "net_load_ercot_2022_hourly.csv")
    followed, first = table["net_load_mw"].to_numpy(float), 303 * PERIOD  # the test days of `fit`

    def gap(*columns):
        contexts, problem = np.stack([followed, *columns], axis=1), tracking(len(columns))
        instance = ec.Instance(contexts[first - 1, :1], contexts[first:], contexts[:first])
        run = ec.rollout(OnlineRidge(PERIOD, covariates=(None,) * len(columns)), problem, instance)
        return float(run.cost / ec.oracle(problem, instance).cost) - 1

    without, noise = gap(), np.random.default_rng(3).normal(size=len(followed))
    assert gap(table["wind_mw"], table["solar_mw"]) < 0.9 * without
    assert 1 + gap(noise) < 1.002 * (1 + without)
