"""BoostedTrees: the arrays against LightGBM, features at any start, files, batches, the mixture with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import BoostedTrees, Mixture
from ecl2o.agents.advisors.boosted_trees import TreeFeatures, Trees
from ecl2o.agents.advisors.networks import Scaling
from ecl2o.data import Split, frame_series, series_contexts
from ecl2o.fitting import boosting
from ecl2o.theory import decay_root

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
def trained(contexts) -> tuple[BoostedTrees, np.ndarray, np.ndarray]:
    """The agent, the rows that it can predict, and LightGBM's own predictions of them."""
    pytest.importorskip("lightgbm", reason="LightGBM is not installed (extra trees)")
    models, export = [], boosting.export_trees
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosting, "export_trees", lambda found: models.extend(found) or export(found))
        agent = boosting.train_trees(contexts, RHO, 44)
    assert [model.num_trees() > 100 for model in models] == [True] * 3
    features = agent.features
    rows = np.arange(features.needed, len(contexts.values))
    memory = features.remember(contexts.values, rows)
    known = features.at(memory, RHO)
    expected = features.usual_mean(memory, RHO) + sum(model.predict(known) for model in models)
    load = contexts.values[:, 0]
    return agent, rows, np.clip(expected, np.minimum.accumulate(load)[rows], np.maximum.accumulate(load)[rows])


def predictions(agent, contexts, x0=5.0):
    run = ec.rollout(agent, PROBLEM, ec.Instance([x0], contexts))
    return np.asarray(run.details["discounted_forecast"].mean[:, 0])


def test_a_run_predicts_what_lightgbm_predicts(trained, contexts):
    """Step by step in JAX, features and trees: to 1e-12 of LightGBM's predict on features made in NumPy."""
    agent, rows, expected = trained
    found = predictions(agent, contexts.values)
    np.testing.assert_allclose(found[rows], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[: rows[0]], contexts.values[: rows[0], 0])
    assert np.std(expected - contexts.values[rows, 0]) > 0.1


def test_it_learned_what_a_profile_does_not_say(trained, contexts):
    """On the days after training its squared error is below that of the profile forecast and of the present context."""
    agent, rows, expected = trained
    later = (rows >= 44 * PERIOD) & (rows < (DAYS - 4) * PERIOD)
    z = boosting.discounted_future(contexts.values[:, 0], RHO)[rows]
    usual = agent.features.usual_mean(agent.features.remember(contexts.values, rows), RHO)
    errors = {name: np.mean((each - z)[later] ** 2) for name, each in {"trees": expected, "usual": usual}.items()}
    assert errors["trees"] < 0.8 * min(errors["usual"], np.mean((contexts.values[rows, 0] - z)[later] ** 2))


def test_the_hour_and_the_weekday_are_found_wherever_a_run_starts(contexts):
    """From nine days of any start on, against the clock; a load whose weekends are lower, beside noise and a trend."""
    steps, rng = np.arange(40 * PERIOD), np.random.default_rng(2)
    weekend = (steps // PERIOD % 7 > 4) * 1.0
    load = 100 + 0.01 * steps + 5 * np.sin(2 * np.pi * steps / PERIOD) - 4 * weekend + rng.normal(size=len(steps))
    features = TreeFeatures(PERIOD).with_typical_week(load[: 28 * PERIOD, None])
    for start in (0, 3, 5 * PERIOD + 1):
        shifted = load[start:, None]
        rows = np.arange(9 * PERIOD, len(shifted))
        memory = features.remember(shifted, rows)
        hour, weekday = (each[:, 0] for each in features._calendar(np, memory))
        np.testing.assert_array_equal(hour, (rows + start) % PERIOD)
        assert np.mean(weekday == (rows + start) // PERIOD % 7) > 0.95
    assert TreeFeatures(288).hours_per_day == 24
    assert (
        np.array([each.shape for each in TreeFeatures(48).with_typical_week(np.ones((700, 1))).typical[None]]) == 168
    ).all()
    with pytest.raises(ValueError, match="168"):
        TreeFeatures(48, typical=np.zeros(7))


def test_a_history_is_as_good_as_having_lived_it_and_units_do_not_matter(trained, contexts):
    agent, rows, expected = trained
    cut = len(contexts.values) - 3 * PERIOD
    factor = 1000.0
    scaled = BoostedTrees(agent.trees, agent.features, Scaling(scale=factor))
    in_watts = contexts.values * [factor, 1.0]
    run = ec.rollout(scaled, PROBLEM, ec.Instance([5.0 * factor], in_watts[cut:], in_watts[:cut]))
    found = run.details["discounted_forecast"].mean[:, 0] / factor
    np.testing.assert_allclose(found, expected[rows >= cut], rtol=0, atol=1e-11)


def test_many_streams_are_single_ones_and_survive_a_file(trained, contexts, tmp_path):
    """Also inside a mixture behind a promise, in one program."""
    agent, _, _ = trained
    mixture = Mixture(
        [ec.advisors.OnlineRidge(PERIOD, covariates=(None,)), agent], PERIOD, combines=True, judges_history=False
    )
    policy = ec.Policy(ec.Competitive(mixture, 2.5), PROBLEM)
    ec.save(tmp_path / "trees.ecl2o", policy)
    loaded = ec.load(tmp_path / "trees.ecl2o")
    past, coming = contexts.values[: 50 * PERIOD], contexts.values[50 * PERIOD : 51 * PERIOD]
    together = ec.Runner.many(loaded, np.full((2, 1), 5.0), np.stack([past, past + SHIFT]))
    actions = np.stack([together.step(np.stack([each, each + SHIFT])) for each in coming])
    for stream, shift in enumerate((0 * SHIFT, SHIFT)):
        alone = ec.Runner(policy, [5.0], past + shift)
        np.testing.assert_allclose(actions[:, stream], [alone.step(each + shift) for each in coming], atol=1e-10)


def test_trees_of_any_shape_are_walked_to_their_leaves():
    """Two trees, one of depth 2: x0 <= 1, then x1 <= 2; against the rule written out."""
    trees = Trees(
        feature=[[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]],
        threshold=[[1.0, 2.0, 0, 0, 0], [0.0, 0, 0, 0, 0]],
        left=[[1, 3, 2, 3, 4], [1, 1, 2, 3, 4]],
        right=[[2, 4, 2, 3, 4], [2, 1, 2, 3, 4]],
        value=[[0, 0, 10.0, 20.0, 30.0], [0, 1.0, 2.0, 0, 0]],
        depth=2,
    )
    points = jnp.array([[a, b] for a in (0.0, 1.0, 1.5) for b in (-1.0, 0.0, 2.0, 3.0)])
    expected = [(10 if a > 1 else 20 if b <= 2 else 30) + (1 if b <= 0 else 2) for a, b in points.tolist()]
    np.testing.assert_array_equal(jax.vmap(trees)(points), expected)


def test_wrong_trees_and_problems_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        Trees([[0]], [[0.0, 0.0]], [[0]], [[0]], [[0.0]], 1)
    with pytest.raises(ValueError, match="depth"):
        Trees([[0]], [[0.0]], [[0]], [[0]], [[0.0]], 1000)
    for wrong in (1, 5, -1):  # children and features that are not there
        with pytest.raises(ValueError, match="node"):
            Trees([[0]], [[0.0]], [[wrong]], [[0]], [[0.0]], 1)
    agent = BoostedTrees(Trees([[0]], [[0.0]], [[0]], [[0]], [[0.0]], 1), TreeFeatures(PERIOD))
    with pytest.raises(ec.exceptions.NotApplicableError, match="one column"):
        ec.rollout(agent, PROBLEM, ec.Instance([0.0], np.zeros((3, 2))))
