"""Trees that LightGBM trains on the discounted mean of the coming contexts (extra `trees`)."""

import importlib.util
import itertools
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ecl2o.agents.advisors.boosted_trees import BoostedTrees, TreeFeatures, Trees
from ecl2o.data import Contexts

MOST_TREES, LEAVES, DEPTH = 400, 15, 6  # in files and programs, whatever early stopping finds
_MOST_ROWS = 30_000  # to train on; evenly chosen ones suffice
_FEWEST_DAYS = 28  # of training rows
_KNOWN = 1e-6  # of z is unknown at most in training rows
_MORE = 1.5  # times as many trees as early stopping finds with two thirds of the rows on average
_PARAMETERS = {
    "objective": "l2",
    "num_leaves": LEAVES,
    "max_depth": DEPTH,
    "min_data_in_leaf": 40,
    "learning_rate": 0.1,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
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


def train_trees(
    contexts: Contexts, rho: float, days: int, count: int | None = None, seed: int = 0
) -> tuple[BoostedTrees, int]:
    """Return trees that were trained on the first days of a series, and their number.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to train on; days with imputed rows are left out.
        count: of trees. Default: by early stopping on the second half of the rows, in three parts.
        seed: of the draws of rows and features.
    """
    features = TreeFeatures(contexts.steps_per_day, contexts.leads)
    values = contexts.values[: days * contexts.steps_per_day]
    rows = np.arange(features.needed, len(values) - _maturity(rho))
    rows = rows[contexts.measured_days[rows // contexts.steps_per_day]]
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
    memory = features.remember(values, rows)
    known, target = (
        features.at(memory, rho),
        discounted_future(values[:, 0], rho)[rows] - features.usual_mean(memory, rho),
    )
    count = _count_trees(known, target, rows, _maturity(rho), seed) if count is None else count
    return BoostedTrees(export_trees(_train(known, target, count, seed)), features), count


def discounted_future(values: Float[np.ndarray, " n"], rho: float) -> Float[np.ndarray, " n"]:
    """Return z of each step, as if the last value stayed for ever.

    >>> discounted_future(np.array([0.0, 1.0]), 0.5).tolist()
    [0.5, 1.0]
    """
    backwards = itertools.accumulate(values[::-1].tolist(), lambda z, y: rho * z + (1 - rho) * y)
    return np.array(list(backwards))[::-1]


def _count_trees(known, target, rows: Int[np.ndarray, " n"], maturity: int, seed: int) -> int:
    """Return how many trees serve the later rows best after training on the earlier ones, and some more for more rows."""
    import lightgbm

    cuts = [len(rows) * sixth // 6 for sixth in (3, 4, 5, 6)]
    folds = [
        (np.flatnonzero(rows < rows[start] - maturity), np.arange(start, end))  # their targets were known
        for start, end in itertools.pairwise(cuts)
    ]
    data, stop = _dataset(known, target), [lightgbm.early_stopping(25, verbose=False)]
    found: Any = lightgbm.cv(_PARAMETERS | {"seed": seed}, data, MOST_TREES, folds=folds, callbacks=stop)
    return int(np.clip(_MORE * len(found["valid l2-mean"]), 10, MOST_TREES))


def _train(known, target, count: int, seed: int) -> Any:
    import lightgbm

    return lightgbm.train(_PARAMETERS | {"seed": seed}, _dataset(known, target), count)


def _dataset(known, target) -> Any:
    import lightgbm

    return lightgbm.Dataset(known, target, params=_PARAMETERS, free_raw_data=False)


def export_trees(model: Any) -> Trees:
    """Return a model of LightGBM as arrays of one shape; trees that it does not have add 0."""
    nodes = 2 * LEAVES - 1
    arrays = {name: np.zeros((MOST_TREES, nodes)) for name in ("feature", "threshold", "left", "right", "value")}
    arrays["left"] += np.arange(nodes)  # leaves are their own children
    arrays["right"] += np.arange(nodes)
    for number, tree in enumerate(model.dump_model()["tree_info"]):
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
