"""How far apart two sets of days are: the Wasserstein distance, exact, and what it does to averages."""

import equinox as eqx
import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Float
from scipy.spatial.distance import cdist


class TransportPlan(eqx.Module):
    """The cheapest way to turn one set of days, each of the same weight, into another.

    Args:
        distance: W1, in the units of the days.
        plan: (n, m), the weight that goes from day i to day j.
        lengths: (n, m), their Euclidean distance.
    """

    distance: float
    plan: Float[np.ndarray, "n m"]
    lengths: Float[np.ndarray, "n m"]

    def slope(self, values: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"]) -> float:
        """The steepest that a figure of a day changes along the plan: the Lipschitz constant that matters here.

        |mean(others) - mean(values)| <= slope * distance, exactly, whatever the figure is between these days.
        """
        moved = (self.plan > 0) & (self.lengths > 0)
        changes = np.abs(np.asarray(others)[None, :] - np.asarray(values)[:, None])
        return float(np.max(changes[moved] / self.lengths[moved], initial=0.0))


def solve_transport(days: Float[np.ndarray, "n k"], others: Float[np.ndarray, "m k"]) -> TransportPlan:
    """The Wasserstein distance W1 between two sets of days, each a vector, in the Euclidean norm, and the plan that attains it.

    Exact: an assignment where the sets have the same size, else the linear program of transport (HiGHS), both by SciPy.

    Args:
        days: (n, k), one set.
        others: (m, k), the other.

    >>> solve_transport(np.array([[0.0], [1.0]]), np.array([[3.0], [2.0]])).distance
    2.0
    """
    lengths = cdist(np.asarray(days, float), np.asarray(others, float))
    n, m = lengths.shape
    if n == m:
        plan = np.zeros((n, m))
        plan[scipy.optimize.linear_sum_assignment(lengths)] = 1 / n
    else:
        plan = _solved(lengths)
    return TransportPlan(float(np.sum(plan * lengths)), plan, lengths)


def _solved(lengths: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
    """The linear program: every day sends 1/n, every other receives 1/m."""
    n, m = lengths.shape
    sent = scipy.sparse.kron(scipy.sparse.eye(n), np.ones((1, m)))
    received = scipy.sparse.kron(np.ones((1, n)), scipy.sparse.eye(m))
    weights = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    found = scipy.optimize.linprog(
        lengths.ravel(), A_eq=scipy.sparse.vstack([sent, received]), b_eq=weights, bounds=(0, None)
    )
    if found.status != 0:
        raise ValueError(f"the transport of {n} to {m} days could not be solved: {found.message}")
    return np.maximum(found.x.reshape(n, m), 0.0)
