"""Trees that LightGBM trains on the discounted mean of the coming contexts (extra `trees`)."""

import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ecl2o.agents.advisors.boosted_trees import BoostedTrees, TreeFeatures, Trees
from ecl2o.data import Contexts

TREES, LEAVES, DEPTH = 400, 15, 6  # for each part of z
_HOURS = (1, 4)  # ahead, where parts of z end; the last part is all that comes later
_MOST_ROWS = 30_000  # to train on; evenly chosen ones suffice
_FEWEST_DAYS = 28  # of training rows
_KNOWN = 1e-6  # of z is unknown at most in training rows
_PARAMETERS = {
    "objective": "l2",
    "num_leaves": LEAVES,
    "max_depth": DEPTH,
    "min_data_in_leaf": 20,
    "learning_rate": 0.1,
    "extra_trees": True,  # thresholds are drawn at random: less variance
    "feature_fraction": 0.3,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "max_bin": 63,
    "lambda_l2": 1.0,
    "use_missing": False,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


def is_installed() -> bool:
    """Return whether LightGBM can be imported."""
    return importlib.util.find_spec("lightgbm") is not None


def find_obstacle(contexts: Contexts, rho: float) -> str | None:
    """Return why no trees can be trained on the training days of a column; None if they can."""
    if not is_installed():
        return 'LightGBM is not installed: pip install "ecl2o[trees]"'
    days = contexts.split.training_days - TreeFeatures(1).needed - _maturity(rho) / contexts.steps_per_day
    if days < _FEWEST_DAYS:
        return f"trees need {_FEWEST_DAYS} days with complete features and known targets; there are {max(days, 0):.0f}"
    return None


def _maturity(rho: float) -> int:
    """Return after how many steps all of z but a negligible part is known."""
    return max(int(np.ceil(np.log(_KNOWN) / np.log(max(rho, _KNOWN)))), 1)


def train_trees(contexts: Contexts, rho: float, days: int, seed: int = 0) -> BoostedTrees:
    """Return trees that were trained on the first days of a series.

    z is a sum over the coming contexts. One ensemble is trained on each part of it (`_HOURS` ahead), and all are added.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to train on; days with imputed rows are left out.
        seed: of the draws of rows and features.
    """
    import lightgbm

    values = contexts.values[: days * contexts.steps_per_day]
    features = TreeFeatures(contexts.steps_per_day, contexts.leads).with_typical_week(values)
    hour = max(round(contexts.steps_per_day / 24), 1)
    rows = np.arange(features.needed, len(values) - max(_maturity(rho), hour * _HOURS[-1]))
    rows = rows[contexts.measured_days[rows // contexts.steps_per_day]]
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
    memory = features.remember(values, rows)
    known = np.asarray(features.at(memory, rho))
    rest = discounted_future(values[:, 0], rho)[rows] - features.usual_mean(memory, rho)
    targets = []
    for first, last in itertools.pairwise((0, *_HOURS)):
        leads = np.arange(first * hour + 1, last * hour + 1)
        coming = values[rows[:, None] + leads, 0] - features.usual_at(memory, leads)
        targets.append(coming @ ((1 - rho) * rho**leads))
        rest = rest - targets[-1]
    models = []
    for number, target in enumerate([*targets, rest]):
        parameters = _PARAMETERS | {"seed": seed + number}
        data = lightgbm.Dataset(known, target, params=parameters)
        models.append(lightgbm.train(parameters, data, TREES))
    return BoostedTrees(export_trees(models), features)


def discounted_future(values: Float[np.ndarray, " n"], rho: float) -> Float[np.ndarray, " n"]:
    """Return z of each step, as if the last value stayed for ever.

    >>> discounted_future(np.array([0.0, 1.0]), 0.5).tolist()
    [0.5, 1.0]
    """
    backwards = itertools.accumulate(values[::-1].tolist(), lambda z, y: rho * z + (1 - rho) * y)
    return np.array(list(backwards))[::-1]


def export_trees(models: Sequence[Any]) -> Trees:
    """Return the sum of models of LightGBM as arrays of one shape; trees that they do not have add 0."""
    nodes = 2 * LEAVES - 1
    arrays = {
        name: np.zeros((TREES * len(models), nodes)) for name in ("feature", "threshold", "left", "right", "value")
    }
    arrays["left"] += np.arange(nodes)  # leaves are their own children
    arrays["right"] += np.arange(nodes)
    numbered = [(TREES * i, model.dump_model()["tree_info"]) for i, model in enumerate(models)]
    for number, tree in ((start + i, tree) for start, found in numbered for i, tree in enumerate(found)):
        waiting, used = [(0, tree["tree_structure"])], 1
        while waiting:
            node, found = waiting.pop()
            if "leaf_value" in found:
                arrays["value"][number, node] = found["leaf_value"]
                continue
            assert found["decision_type"] == "<="
            children = used, used + 1
            used += 2
            for name, entry in zip(
                ("feature", "threshold", "left", "right"),
                (found["split_feature"], found["threshold"], *children),
                strict=True,
            ):
                arrays[name][number, node] = entry
            waiting += zip(children, (found["left_child"], found["right_child"]), strict=True)
    whole = {name: arrays.pop(name).astype(np.int32) for name in ("feature", "left", "right")}
    return Trees(**whole, **arrays, depth=DEPTH)
