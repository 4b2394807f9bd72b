"""FourierRegression: predictions against the formula, features at any start, files, batches, the mixture with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import FourierRegression, Mixture
from ecl2o.agents.advisors.features import ContextFeatures
from ecl2o.agents.advisors.fourier_regression import FourierFeatures, _cosine
from ecl2o.agents.advisors.networks import Scaling
from ecl2o.data import Split, frame_series, series_contexts
from ecl2o.fitting import fourier
from ecl2o.running import stream_days
from ecl2o.theory import decay_root
from slow_features import slow_features, usual_mean

PERIOD, DAYS, SHIFT = 8, 60, np.array([0.1, 0.0])
RHO = float(decay_root(1.0, 10.0))
PROBLEM = ec.Problem(ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


@pytest.fixture(scope="module")
def contexts():
    """A load whose anomalies decay faster above its mean, and a covariate that leads it."""
    steps, rng = np.arange(DAYS * PERIOD), np.random.default_rng(4)
    wind = rng.normal(size=len(steps))
    load = 5 + np.sin(2 * np.pi * steps / PERIOD) + 0.1 * (steps // PERIOD % 7 > 4)
    for t in range(2, len(steps)):
        anomaly = load[t - 1] - 5
        load[t] += (0.7 if anomaly < 0 else 0.2) * anomaly + 0.4 * wind[t - 2]
    frame = pd.DataFrame({"load": load, "wind": wind}, pd.date_range("2024-01-01", periods=len(steps), freq="3h"))
    return series_contexts(*frame_series(frame, ["load"], covariates={"wind": None}), Split(44, 8))


@pytest.fixture(scope="module")
def trained(contexts) -> tuple[FourierRegression, np.ndarray, np.ndarray]:
    """The agent, the rows that it can predict, and its predictions written out in NumPy on features made in NumPy."""
    agent = fourier.solve_regression(contexts, RHO, 44)
    features, basis = agent.features, agent.basis
    rows = np.arange(features.needed, len(contexts.values))
    mean, scale, inputs, frequencies, phases, weights = (
        np.asarray(each)
        for each in (basis.mean, basis.scale, basis.inputs, basis.frequencies, basis.phases, agent.weights)
    )
    standard = np.clip((slow_features(contexts.values, rows, features, RHO) - mean) / scale, -4, 4)
    expected = usual_mean(contexts.values, rows, PERIOD, RHO) + weights[0] + standard @ weights[1 : 1 + len(mean)]
    for row in range(len(rows)):
        angles = np.einsum("gs,gsp->gp", standard[row][inputs], frequencies) + phases
        expected[row] += np.sqrt(2) * np.cos(angles).ravel() @ weights[1 + len(mean) :]
    load = contexts.values[:, 0]
    return agent, rows, np.clip(expected, np.minimum.accumulate(load)[rows], np.maximum.accumulate(load)[rows])


def remember(features, contexts, see):
    """What `see(memory)` returns after each context of a series."""

    def advance(memory, row):
        step, context = row
        memory = features.advance(memory, step, context[0], context[len(context) - len(features.leads) :])
        return memory, see(memory)

    rows = jnp.arange(len(contexts)), jnp.asarray(contexts)
    return jax.device_get(jax.jit(lambda rows: jax.lax.scan(advance, features.empty(float), rows)[1])(rows))


def predictions(agent, contexts, x0=5.0):
    run = ec.rollout(agent, PROBLEM, ec.Instance([x0], contexts))
    return np.asarray(run.details["discounted_forecast"].mean[:, 0])


def test_a_run_predicts_the_formula(trained, contexts):
    """Step by step in JAX: to 1e-11 of the formula on features made in NumPy."""
    agent, rows, expected = trained
    found = predictions(agent, contexts.values)
    np.testing.assert_allclose(found[rows], expected, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(found[: rows[0]], contexts.values[: rows[0], 0])
    assert np.std(expected - contexts.values[rows, 0]) > 0.1


def test_it_learned_what_a_profile_does_not_say(trained, contexts):
    """On the days after training its squared error is below that of the profile forecast and of the present context."""
    _, rows, expected = trained
    later = (rows >= 44 * PERIOD) & (rows < (DAYS - 4) * PERIOD)
    z = fourier.discounted_future(contexts.values[:, 0], RHO)[rows]
    usual = usual_mean(contexts.values, rows, PERIOD, RHO)
    errors = {name: np.mean((each - z)[later] ** 2) for name, each in {"fourier": expected, "usual": usual}.items()}
    assert errors["fourier"] < 0.8 * min(errors["usual"], np.mean((contexts.values[rows, 0] - z)[later] ** 2))


@pytest.mark.parametrize(("period", "leads"), [(24, (None, 6, None)), (4, ()), (48, (3,))])
def test_features_of_a_run_are_those_of_their_definition(period, leads):
    """From the ninth day on; `fit` sees the same."""
    rng, steps = np.random.default_rng(period), np.arange(30 * period)
    load = 9 + np.sin(2 * np.pi * steps / period) + 0.3 * (steps // period % 7 > 4) + 0.1 * rng.normal(size=len(steps))
    columns = [load, *(10 * rng.normal(size=len(steps)) for _ in leads)]
    contexts = np.stack(columns, axis=1)
    features = ContextFeatures(period, leads).with_typical_week(contexts)
    rows = np.arange(features.needed, len(contexts), 7)
    seen, usual = remember(features, contexts, lambda m: (features.at(m, RHO), features.usual_mean(m, RHO)))
    expected = slow_features(contexts, rows, features, RHO), usual_mean(contexts, rows, period, RHO)
    for found, wanted in zip((seen[rows], usual[rows]), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11)
    frame = pd.DataFrame(contexts, pd.date_range("2024-01-01", periods=len(steps), freq=f"{1440 // period}min"))
    frame.columns = [str(name) for name in frame.columns]
    hours = {name: lead and 24.0 * lead / period for name, lead in zip("123", leads, strict=False)}
    series = series_contexts(*frame_series(frame, ["0"], covariates=hours), Split(26, 2))
    samples, every = fourier.collect_samples(series, RHO, 30), slice(None, -fourier._maturity(RHO))
    np.testing.assert_array_equal(samples.features.typical, features.typical)
    np.testing.assert_allclose(samples.seen, seen[features.needed : len(contexts)][every], rtol=0, atol=1e-11)
    z = fourier.discounted_future(load, RHO) - usual
    np.testing.assert_allclose(samples.target, z[features.needed :][every], rtol=0, atol=1e-11)


def test_the_hour_and_the_weekday_are_found_wherever_a_run_starts(contexts):
    """From nine days of any start on, against the clock; a load whose weekends are lower, beside noise and a trend."""
    steps, rng = np.arange(40 * PERIOD), np.random.default_rng(2)
    weekend = (steps // PERIOD % 7 > 4) * 1.0
    load = 100 + 0.01 * steps + 5 * np.sin(2 * np.pi * steps / PERIOD) - 4 * weekend + rng.normal(size=len(steps))
    features = ContextFeatures(PERIOD).with_typical_week(load[: 28 * PERIOD, None])
    for start in (0, 3, 5 * PERIOD + 1):
        shifted = load[start:, None]
        rows = np.arange(9 * PERIOD, len(shifted))
        hour, weekday = (
            each[rows]
            for each in remember(features, shifted, lambda m: features.find_time(m.weeks.means, features.typical))
        )
        np.testing.assert_array_equal(hour, (rows + start) % PERIOD)
        assert np.mean(weekday == (rows + start) // PERIOD % 7) > 0.95
    assert ContextFeatures(288).hours_per_day == 24
    four = ContextFeatures(4).with_typical_week(
        load[: 28 * 4, None]
    )  # of a half day's sine only rounding errors are left
    assert four.harmonics == 2
    found = remember(four, load[:80, None], lambda memory: four.at(memory, RHO))[40:]
    assert found[:, :2].std(axis=0).min() > 0.5
    assert (
        np.array([each.shape for each in ContextFeatures(48).with_typical_week(np.ones((700, 1))).typical[None]]) == 168
    ).all()
    with pytest.raises(ValueError, match="168"):
        ContextFeatures(48, typical=np.zeros(7))


def test_a_history_is_as_good_as_having_lived_it_and_units_do_not_matter(trained, contexts):
    agent, rows, expected = trained
    cut = len(contexts.values) - 3 * PERIOD
    factor = 1000.0
    scaled = FourierRegression(agent.basis, agent.weights, agent.features, Scaling(scale=factor))
    in_watts = contexts.values * [factor, 1.0]
    run = ec.rollout(scaled, PROBLEM, ec.Instance([5.0 * factor], in_watts[cut:], in_watts[:cut]))
    found = run.details["discounted_forecast"].mean[:, 0] / factor
    np.testing.assert_allclose(found, expected[rows >= cut], rtol=0, atol=1e-11)


def test_many_streams_are_single_ones_and_survive_a_file(trained, contexts, tmp_path):
    """Also inside a mixture behind a promise, in one program."""
    agent, _, _ = trained
    mixture = Mixture(
        [ec.advisors.OnlineRidge(PERIOD, covariates=(None,)), agent], PERIOD, combines=True, scores_history=False
    )
    policy = ec.Policy(ec.Competitive(mixture, 2.5), PROBLEM)
    ec.save(tmp_path / "fourier.ecl2o", policy)
    loaded = ec.load(tmp_path / "fourier.ecl2o")
    past, coming = contexts.values[: 50 * PERIOD], contexts.values[50 * PERIOD : 51 * PERIOD]
    together = ec.Runner.many(loaded, np.full((2, 1), 5.0), np.stack([past, past + SHIFT]))
    actions = np.stack([together.step(np.stack([each, each + SHIFT])) for each in coming])
    for stream, shift in enumerate((0 * SHIFT, SHIFT)):
        alone = ec.Runner(policy, [5.0], past + shift)
        np.testing.assert_allclose(actions[:, stream], [alone.step(each + shift) for each in coming], atol=1e-10)


def test_the_weights_solve_the_ridge_regression(contexts):
    """Against its dual, in 64 bits; two draws are averaged; and the last row's target is known."""
    plain = dataclasses.replace(contexts, metadata=dataclasses.replace(contexts.metadata, covariates={}))
    plain = dataclasses.replace(plain, values=contexts.values[:, :1])
    samples = fourier.collect_samples(plain, RHO, 44)
    target, drawn = samples.target, []
    for number in range(2):
        basis, weights = fourier.solve_draw(samples, (0, number))
        columns = np.asarray(basis(samples.seen))
        gram = columns @ columns.T
        expected = gram @ np.linalg.solve(gram + fourier._PENALTY * np.eye(len(target)), target)
        np.testing.assert_allclose(columns @ weights, expected, rtol=0, atol=1e-4 * np.std(target))
        drawn.append(columns @ weights)
    agent = fourier.solve_regression(plain, RHO, 44)
    together = np.asarray(agent.basis(samples.seen)) @ np.asarray(agent.weights)
    np.testing.assert_allclose(together, np.mean(drawn, axis=0), rtol=0, atol=1e-9)
    assert np.std(drawn[0] - drawn[1]) > 1e-3 * np.std(target)
    values = plain.values[: 44 * PERIOD]
    longer = dataclasses.replace(plain, values=np.concatenate([values, 9 + 0 * plain.values[44 * PERIOD :]]))
    np.testing.assert_array_equal(fourier.solve_regression(longer, RHO, 44).weights, agent.weights)
    unknown = RHO ** fourier._maturity(RHO)
    assert unknown <= fourier._UNKNOWN


def test_imputed_days_teach_nothing(contexts):
    """28 days are needed beside them: of 44 days, 8 and the last steps have no features or no target."""
    assert fourier.find_obstacle(contexts, RHO) is None
    steps = np.arange(len(contexts.values))
    imputed = pd.DataFrame({"load": steps // PERIOD % 10 == 9}, contexts.time)
    gappy = dataclasses.replace(contexts, metadata=dataclasses.replace(contexts.metadata, imputed=imputed))
    assert "there are 27" in fourier.find_obstacle(gappy, RHO)
    assert 27 <= len(fourier.collect_samples(gappy, RHO, 44).seen) / PERIOD < 28


def test_covariates_get_the_share_that_cross_validation_gives_them(contexts):
    """A mean of the regressions with and without them, by their errors on each quarter; next to none for noise."""
    noise = np.random.default_rng(1).normal(size=len(contexts.values))
    blind = dataclasses.replace(contexts, values=np.stack([contexts.values[:, 0], noise], axis=1))
    samples = fourier.collect_samples(blind, RHO, DAYS)
    basis, weights = fourier.solve_draw(samples, (0, 0))
    columns, target = np.asarray(basis(samples.seen)), samples.target
    inputs, every = 1 + len(basis.mean), np.arange(basis.count)
    own = every[(every < inputs - samples.features.given_count) | ((every >= inputs) & (every < inputs + 64 * 24))]

    def predict(kept, rows):
        """By the dual of the ridge regression, on all rows, from some."""
        known, scale = columns[:, kept], np.std(target)
        gram = known[rows] @ known[rows].T + fourier._PENALTY * np.eye(len(rows))
        return known @ (known[rows].T @ np.linalg.solve(gram, target[rows] / scale)) * scale

    whole, pairs = np.arange(len(target)), []
    for part in np.array_split(whole, 4):
        both = (predict(kept, np.setdiff1d(whole, part))[part] for kept in (every, own))
        pairs.append(np.stack([*both, target[part]]))
    informed, alone, known = np.concatenate(pairs, axis=1)
    shares = np.linspace(0, 1, 10_001)
    share = shares[np.argmin([np.mean((known - s * informed - (1 - s) * alone) ** 2) for s in shares])]
    expected = share * predict(every, whole) + (1 - share) * predict(own, whole)
    np.testing.assert_allclose(columns @ weights, expected, rtol=0, atol=1e-3 * np.std(target))
    assert share < 0.3
    leading = fourier.solve_draw(fourier.collect_samples(contexts, RHO, DAYS), (0, 0))[1]
    given = np.setdiff1d(every, own)
    assert np.linalg.norm(weights[given]) < 0.3 * np.linalg.norm(leading[given])


def test_the_products_of_many_streams_are_those_of_one_with_their_derivatives():
    """One stream multiplies by group, many by one matrix; cosines are a polynomial."""
    rng = np.random.default_rng(3)
    points = 100 * rng.uniform(-1, 1, size=(5, 7))
    basis = FourierFeatures.draw(rng.normal(size=(50, 7)), groups=4, size=3, cosines=6, seed=0)
    weights = jnp.asarray(rng.normal(size=basis.count))
    together = jax.vmap(basis.combine, (0, None))(jnp.asarray(points), weights)
    np.testing.assert_allclose(together, [basis.combine(jnp.asarray(each), weights) for each in points], atol=1e-13)
    np.testing.assert_allclose(together, basis(points) @ weights, rtol=0, atol=1e-13)
    slope = jax.vmap(jax.grad(basis.combine), (0, None))(jnp.asarray(points / 100), weights)
    upper, lower = ((points / 100)[:, None] + sign * 1e-6 * np.eye(7) for sign in (1, -1))
    rise = [(basis(a) - basis(b)) @ weights / 2e-6 for a, b in zip(upper, lower, strict=True)]
    np.testing.assert_allclose(slope, rise, rtol=1e-6, atol=1e-6)
    x = np.linspace(-100, 100, 100_001)
    np.testing.assert_allclose(_cosine(jnp.asarray(x)), np.cos(x), rtol=0, atol=2e-15)


def test_a_step_of_five_minutes_compiles_to_one_kernel():
    """XLA's emitter ends the process for constants as long as a week."""
    rng = np.random.default_rng(0)
    features = ContextFeatures(288).with_typical_week(rng.normal(size=(7 * 288, 1)))
    seen = remember(features, rng.normal(size=(8 * 288, 1)), lambda memory: features.at(memory, RHO))[-1:]
    basis = FourierFeatures.draw(seen, groups=2, size=3, cosines=4, seed=0)
    agent = FourierRegression(basis, np.zeros(basis.count), features)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    run, _ = stream_days(agent, problem, np.zeros(1), np.ones((1, 288, 1)))
    np.testing.assert_allclose(run.details["discounted_forecast"].mean, 1.0)


@pytest.mark.parametrize(("period", "least"), [(24, 60e3), (288, 190e3)])
def test_the_memory_of_a_stream_is_as_stated(period, least):
    """Bytes of what `fit` makes by default, behind a daily promise (docs/benchmarks.md); most are roots of regressions."""
    basis = FourierFeatures.draw(np.ones((3, 2)), groups=1, size=1, cosines=1, seed=0)
    fourier_regression = FourierRegression(basis, np.zeros(basis.count), ContextFeatures(period))
    mixture = Mixture([Mixture.of_regressions(period), fourier_regression], period, combines=True, scores_history=False)
    guarded = ec.Competitive(mixture, 2.5, period=period)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    start = ec.agents.Start(jnp.zeros(1), jnp.zeros((0, 1)))
    state = jax.eval_shape(lambda: guarded.init(problem, start))
    assert least < sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) < least + 10e3


def test_random_features_approximate_their_kernel():
    """The mean product of cosines tends to the mean Gaussian kernel of the groups."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(500, 5)) * [1.0, 2.0, 3.0, 4.0, 5.0]
    basis = FourierFeatures.draw(samples, groups=30, size=3, cosines=4000, seed=1)
    columns = basis(points := samples[:6])[:, 6:]
    found = columns @ columns.T / columns.shape[1]
    standard = (points - samples.mean(axis=0)) / samples.std(axis=0)
    apart = standard[:, None] - standard
    kernels = [np.exp(-np.sum(apart[..., inputs] ** 2, axis=-1) / 6) for inputs in np.asarray(basis.inputs)]
    np.testing.assert_allclose(found, np.mean(kernels, axis=0), atol=0.02)
    np.testing.assert_array_equal(basis.inputs, FourierFeatures.draw(samples, 30, 3, 4000, seed=1).inputs)
    assert FourierFeatures.draw(samples[:, :2], 4, 24, 3, seed=0).inputs.shape == (4, 2)
    shared = np.asarray(FourierFeatures.draw(samples, 50, 3, 4, seed=1, common=2).inputs)
    assert (shared[:, :2] == [0, 1]).all()
    assert set(shared[:, 2]) == {2, 3, 4}
    constant = FourierFeatures.draw(np.ones((9, 2)), 4, 2, 3, seed=0)
    assert np.all(np.isfinite(constant(np.full((1, 2), 1e9))))
    tenths = np.full((1000, 2), 0.1)  # whose deviation is a rounding error
    assert tenths.std() > 0
    np.testing.assert_array_equal(FourierFeatures.draw(tenths, 4, 2, 3, seed=0).scale, 1.0)


def test_more_groups_see_covariates_as_half_of_their_inputs():
    """The others are drawn as without covariates; a few covariates, such as forecasts, are all seen."""
    samples = np.random.default_rng(0).normal(size=(50, 40))
    for covariates, seen in ((18, 5), (2, 2)):
        basis = FourierFeatures.draw(samples, 8, 10, 3, seed=0, covariates=covariates)
        inputs = np.asarray(basis.inputs)
        np.testing.assert_array_equal((inputs >= 40 - covariates).sum(axis=1), [0] * 8 + [seen] * 2)
        assert all(len(set(group)) == 10 for group in inputs.tolist())
        without = FourierFeatures.draw(samples[:, : 40 - covariates], 8, 10, 3, seed=0)
        for name in ("inputs", "frequencies", "phases"):
            np.testing.assert_array_equal(getattr(basis, name)[:8], getattr(without, name))
    assert ContextFeatures(24, (None, 6, None)).given_count == 2 * 18 + 1
    memory = ContextFeatures(24, (None, 6)).empty(float)
    without = ContextFeatures(24).at(ContextFeatures(24).empty(float), RHO)
    assert len(ContextFeatures(24, (None, 6)).at(memory, RHO)) == len(without) + 19


def test_wrong_shapes_and_problems_are_rejected(contexts):
    basis = FourierFeatures.draw(contexts.values, 2, 2, 3, seed=0)
    with pytest.raises(ValueError, match="weights must have shape \\(9,\\), got \\(8,\\)"):
        FourierRegression(basis, np.zeros(8), ContextFeatures(PERIOD))
    with pytest.raises(ValueError, match="0 to 2"):
        FourierFeatures(basis.mean, basis.scale, [[0, 2]], basis.frequencies[:1], basis.phases[:1])
    with pytest.raises(ValueError, match="shapes"):
        FourierFeatures(basis.mean, basis.scale, basis.inputs, basis.frequencies, basis.phases[:, :2])
    with pytest.raises(ValueError, match="positive"):
        FourierFeatures(basis.mean, 0 * basis.scale, basis.inputs, basis.frequencies, basis.phases)
    agent = FourierRegression(basis, np.zeros(9), ContextFeatures(PERIOD))
    with pytest.raises(ec.exceptions.NotApplicableError, match="one column"):
        ec.rollout(agent, PROBLEM, ec.Instance([0.0], np.zeros((3, 2))))
