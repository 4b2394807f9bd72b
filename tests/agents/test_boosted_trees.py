"""BoostedTrees: the arrays against LightGBM, files and batches behind a promise, damaged arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import BoostedTrees, Mixture, OnlineRidge
from ecl2o.agents.advisors.boosted_trees import Trees
from ecl2o.agents.advisors.context_features import ContextFeatures
from ecl2o.data import Contexts, Split, frame_series, series_contexts
from ecl2o.exceptions import PolicyFileError
from ecl2o.fitting import boosting, fourier
from ecl2o.theory import decay_root

PERIOD, DAYS, TRAINED = 8, 60, 44
RHO = float(decay_root(1.0, 10.0))
PROBLEM = ec.Problem(ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
LEAF = {"threshold": [[0.0]], "left": [[0]], "right": [[0]], "value": [[1.0]]}


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    """A load whose anomalies decay faster above its mean, and a covariate that leads it."""
    steps, rng = np.arange(DAYS * PERIOD), np.random.default_rng(4)
    wind, load = rng.normal(size=len(steps)), 5 + np.sin(2 * np.pi * steps / PERIOD)
    for t in range(2, len(steps)):
        anomaly = load[t - 1] - 5
        load[t] += (0.7 if anomaly < 0 else 0.2) * anomaly + 0.4 * wind[t - 2]
    frame = pd.DataFrame({"load": load, "wind": wind}, pd.date_range("2024-01-01", periods=len(steps), freq="3h"))
    return series_contexts(*frame_series(frame, ["load"], covariates={"wind": None}), Split(TRAINED, 8))


@pytest.fixture(scope="module")
def trained(contexts) -> tuple[BoostedTrees, np.ndarray, np.ndarray]:
    """The agent, the rows that it can predict, and LightGBM's own predictions of them."""
    pytest.importorskip("lightgbm", reason="LightGBM is not installed (extra trees)")
    models, export = [], boosting.export_trees
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosting, "export_trees", lambda found: models.extend(found) or export(found))
        agent = boosting.train_trees(contexts, RHO, TRAINED)
    assert [model.num_trees() > 100 for model in models] == [True] * 3
    features = agent.features
    rows = np.arange(features.needed, len(contexts.values))
    memory = features.remember(contexts.values, rows)
    known = features.at(memory, RHO)
    expected = features.usual_mean(memory, RHO) + sum(model.predict(known) for model in models)
    load = contexts.values[:, 0]
    return agent, rows, np.clip(expected, np.minimum.accumulate(load)[rows], np.maximum.accumulate(load)[rows])


def test_a_run_predicts_what_lightgbm_predicts(trained, contexts):
    """Step by step in JAX, features and trees: to 1e-12 of LightGBM's predict on features made in NumPy."""
    agent, rows, expected = trained
    run = ec.rollout(agent, PROBLEM, ec.Instance([5.0], contexts.values))
    found = np.asarray(run.details["discounted_forecast"].mean[:, 0])
    np.testing.assert_allclose(found[rows], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[: rows[0]], contexts.values[: rows[0], 0])


def test_it_learned_what_a_profile_does_not_say(trained, contexts):
    """On the days after training its squared error is below that of the profile forecast and of the present context."""
    agent, rows, expected = trained
    later = (rows >= TRAINED * PERIOD) & (rows < (DAYS - 4) * PERIOD)
    z = fourier.discounted_future(contexts.values[:, 0], RHO)[rows]
    usual = agent.features.usual_mean(agent.features.remember(contexts.values, rows), RHO)
    errors = {name: np.mean((each - z)[later] ** 2) for name, each in {"trees": expected, "usual": usual}.items()}
    assert errors["trees"] < 0.8 * min(errors["usual"], np.mean((contexts.values[rows, 0] - z)[later] ** 2))


def test_parts_of_z_add_up_and_end_where_they_are_said_to(contexts):
    """Against the sums written out; the parts are what the whole is, on fewer rows if they reach further."""
    whole, parts = (fourier.collect_samples(contexts, RHO, TRAINED, hours) for hours in ((), (1, 4)))
    np.testing.assert_allclose(parts.parts.sum(axis=0), whole.parts[0], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(parts.seen, whole.seen)
    load = contexts.values[:, 0]
    for number, row in enumerate(whole.features.needed + np.array([0, 100])):
        memory = whole.features.remember(contexts.values, np.array([row]))
        usual = whole.features.usual_at(memory, np.arange(1, 5))[0]
        expected = (1 - RHO) * RHO ** np.arange(1, 5) * (load[row + 1 : row + 5] - usual)
        found = parts.parts[:2, 100 * number]
        np.testing.assert_allclose(found, [expected[0], expected[1:].sum()], rtol=0, atol=1e-12)


def test_many_streams_are_single_ones_and_survive_a_file(trained, contexts, tmp_path):
    """Inside a mixture behind a promise, in one program."""
    agent, _, _ = trained
    mixture = Mixture([OnlineRidge(PERIOD, covariates=(None,)), agent], PERIOD, combines=True, judges_history=False)
    policy = ec.Policy(ec.Competitive(mixture, 2.5), PROBLEM)
    ec.save(tmp_path / "trees.ecl2o", policy)
    loaded, shift = ec.load(tmp_path / "trees.ecl2o"), np.array([0.1, 0.0])
    past, coming = contexts.values[: 50 * PERIOD], contexts.values[50 * PERIOD : 51 * PERIOD]
    together = ec.Runner.many(loaded, np.full((2, 1), 5.0), np.stack([past, past + shift]))
    actions = np.stack([together.step(np.stack([each, each + shift])) for each in coming])
    for stream, added in enumerate((0 * shift, shift)):
        alone = ec.Runner(policy, [5.0], past + added)
        np.testing.assert_allclose(actions[:, stream], [alone.step(each + added) for each in coming], atol=1e-10)


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


def test_damaged_trees_are_rejected_also_in_files(tmp_path):
    """Nodes and features that are not there, shapes that differ, and depths that no step could walk."""
    features = ContextFeatures(PERIOD)
    assert features.count == len(features.at(features.empty(float), RHO))
    for name in ("left", "right"):
        for wrong in (1, -1):
            with pytest.raises(ValueError, match=name):
                Trees([[0]], **{**LEAF, name: [[wrong]]}, depth=1)
    for shape in ([[0.0, 0.0]], [[]]):
        with pytest.raises(ValueError, match="one shape"):
            Trees([[0]], **{**LEAF, "threshold": shape}, depth=1)
    for depth in (0, 1000):
        with pytest.raises(ValueError, match="depth"):
            Trees([[0]], **LEAF, depth=depth)
    for wrong in (features.count, -1):
        with pytest.raises(ValueError, match=f"0 to {features.count - 1}, got {wrong}"):
            BoostedTrees(trees=Trees([[wrong]], **LEAF, depth=1), features=features)
    agent = BoostedTrees(trees=Trees([[features.count - 1]], **LEAF, depth=1), features=features)
    with pytest.raises(ec.exceptions.NotApplicableError, match="one column"):
        ec.rollout(agent, PROBLEM, ec.Instance([0.0], np.zeros((3, 2))))
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    for damage in (lambda a: a.trees.left, lambda a: a.trees.feature):
        damaged = eqx.tree_at(damage, agent, jnp.full((1, 1), 10_000))
        ec.save(tmp_path / "damaged.ecl2o", ec.Policy(damaged, problem))
        with pytest.raises(PolicyFileError):
            ec.load(tmp_path / "damaged.ecl2o")
