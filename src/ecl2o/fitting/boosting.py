"""Trees that LightGBM trains on the discounted mean of the coming contexts (extra `trees`)."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ecl2o.agents.advisors.boosted_trees import BoostedTrees, Trees
from ecl2o.data import Contexts
from ecl2o.fitting.fourier import collect_samples

TREES, LEAVES, DEPTH = 400, 15, 6  # for each part of z
_HOURS = (1, 4)  # ahead, where parts of z end
_PARAMETERS = {
    "num_leaves": LEAVES,
    "max_depth": DEPTH,
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


def find_missing_extra() -> str | None:
    """Return how to install LightGBM if it is missing, else None."""
    return None if importlib.util.find_spec("lightgbm") else "LightGBM is not installed: pip install 'ecl2o[trees]'"


def train_trees(contexts: Contexts, rho: float, days: int, seed: int = 0) -> BoostedTrees:
    """Return trees that are trained on the `collect_samples` of a series; `seed` is of the draws of rows and features."""
    import lightgbm

    samples = collect_samples(contexts, rho, days, _HOURS)
    models = []
    for number, part in enumerate(samples.parts):
        parameters = _PARAMETERS | {"seed": seed + number}
        models.append(lightgbm.train(parameters, lightgbm.Dataset(samples.seen, part, params=parameters), TREES))
    return BoostedTrees(trees=export_trees(models), features=samples.features)


def export_trees(models: Sequence[Any]) -> Trees:
    """Return the sum of models of LightGBM as arrays of one shape; trees that they do not have add 0."""
    shape = TREES * len(models), 2 * LEAVES - 1
    feature, left = np.zeros(shape, np.int32), np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    right = left.copy()  # leaves are their own children
    threshold, value = np.zeros((2, *shape))
    for model_number, model in enumerate(models):
        for number, tree in enumerate(model.dump_model()["tree_info"], TREES * model_number):
            waiting, used = [(0, tree["tree_structure"])], 1
            while waiting:
                node, found = waiting.pop()
                place = number, node
                if "leaf_value" in found:
                    value[place] = found["leaf_value"]
                    continue
                assert found["decision_type"] == "<="
                feature[place], threshold[place] = found["split_feature"], found["threshold"]
                left[place], right[place] = used, used + 1
                waiting += [(used, found["left_child"]), (used + 1, found["right_child"])]
                used += 2
    return Trees(feature, threshold, left, right, value, DEPTH)
