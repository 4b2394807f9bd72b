"""Boosted regression trees that predict the discounted mean of the coming contexts: trained elsewhere, evaluated by gathers."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.context_features import AbstractContextRegression, ContextFeatures
from ecl2o.agents.advisors.networks import Scaling
from ecl2o.problem.arrays import check_count, to_device

_MOST_DEPTH = 64


def _check_numbers(name: str, numbers: Int[Array, "n m"], count: int) -> None:
    low, high = np.min(numbers), np.max(numbers)
    if not 0 <= low <= high < count:
        raise ValueError(f"{name} must hold numbers from 0 to {count - 1}, got {low} to {high}.")


class Trees(eqx.Module):
    """An ensemble of n trees of up to m nodes each. At node i, x[feature] <= threshold goes to `left`, else to `right`.

    Leaves are their own children, and only they have a value. A feature that is not a number goes to the right.

    Args:
        feature: (n, m), numbers of features.
        threshold: (n, m).
        left: (n, m), numbers of nodes.
        right: (n, m), numbers of nodes.
        value: (n, m).
        depth: the most steps from a root, node 0, to a leaf.

    >>> stump = Trees([[0, 0, 0]], [[0.5, 0.0, 0.0]], [[1, 1, 2]], [[2, 1, 2]], [[0.0, 3.0, 4.0]], depth=1)
    >>> [float(stump(jnp.array([x]))) for x in (0.5, 0.6)]
    [3.0, 4.0]
    """

    feature: Int[Array, "n m"] = eqx.field(converter=to_device)
    threshold: Float[Array, "n m"] = eqx.field(converter=to_device)
    left: Int[Array, "n m"] = eqx.field(converter=to_device)
    right: Int[Array, "n m"] = eqx.field(converter=to_device)
    value: Float[Array, "n m"] = eqx.field(converter=to_device)
    depth: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("depth", self.depth)
        if self.depth > _MOST_DEPTH:
            raise ValueError(f"depth must be at most {_MOST_DEPTH}, got {self.depth}.")
        shape = self.feature.shape
        others = (self.threshold, self.left, self.right, self.value)
        if len(shape) != 2 or 0 in shape or any(each.shape != shape for each in others):
            raise ValueError("feature, threshold, left, right and value must have one shape (trees, nodes).")
        if isinstance(self.feature, Tracer):
            return
        _check_numbers("left", self.left, shape[1])
        _check_numbers("right", self.right, shape[1])

    def __call__(self, x: Float[Array, " k"]) -> Float[Array, ""]:
        """Return the sum of the leaves that x reaches."""
        trees, node = np.arange(self.feature.shape[0]), jnp.zeros(self.feature.shape[:1], self.left.dtype)
        for _ in range(self.depth):
            goes_left = x[self.feature[trees, node]] <= self.threshold[trees, node]
            node = jnp.where(goes_left, self.left[trees, node], self.right[trees, node])
        return jnp.sum(self.value[trees, node])


class BoostedTrees(AbstractContextRegression):
    """Advice x = rho x_{t-1} + (1 - rho) zhat_t, with zhat from a daily profile and boosted trees.

    They see the same features as `FourierRegression`, and do not change while they run either. For one column, d = 1.
    `ecl2o fit --advisor trees` trains them with LightGBM (extra `trees`), which running them does not need.

    Args:
        trees: the ensemble, for z less its `ContextFeatures.usual_mean`.
        features: what they see.
        scaling: the unit of contexts and forecasts in training.
    """

    trees: Trees
    features: ContextFeatures
    scaling: Scaling = eqx.field(default_factory=Scaling)

    def __check_init__(self):
        if not isinstance(self.trees.feature, Tracer):
            _check_numbers("feature", self.trees.feature, self.features.count)

    def predict(self, seen: Float[Array, " k"]) -> Float[Array, ""]:
        return self.trees(seen)
