"""The exact Wasserstein distance between two sets of days, and the bound on averages that follows from it."""

import equinox as eqx
import numpy as np
from jaxtyping import Float


class TransportPlan(eqx.Module):
    """The cheapest way to turn one set of days, each of the same weight, into another.

    Args:
        distance: W1, in the units of the days.
        plan: (n, m), the weight moved from day i to day j.
        lengths: (n, m), their Euclidean distance.
    """

    distance: float
    plan: Float[np.ndarray, "n m"]
    lengths: Float[np.ndarray, "n m"]

    def slope(self, values: Float[np.ndarray, " n"], others: Float[np.ndarray, " m"]) -> float:
        """Return the largest slope of a figure of a day along the plan: |mean(others) - mean(values)| <= slope * distance."""
        moved = (self.plan > 0) & (self.lengths > 0)
        changes = np.abs(np.asarray(others)[None, :] - np.asarray(values)[:, None])
        return float(np.max(changes[moved] / self.lengths[moved], initial=0.0))


def solve_transport(days: Float[np.ndarray, "n k"], others: Float[np.ndarray, "m k"]) -> TransportPlan:
    """Return the Wasserstein distance W1 between two sets of vectors in the Euclidean norm, and the plan that attains it.

    Exact: an assignment if the sets have the same size, else the linear program of transport (HiGHS), both by SciPy.

    Args:
        days: (n, k), one set.
        others: (m, k), the other set.

    Returns:
        The distance, the plan (n, m) and the pairwise distances (n, m).

    Raises:
        ValueError: The linear program was not solved.

    >>> solve_transport(np.array([[0.0], [1.0]]), np.array([[3.0], [2.0]])).distance
    2.0
    """
    from scipy import optimize, sparse  # slow imports, needed here only
    from scipy.spatial.distance import cdist

    lengths = cdist(np.asarray(days, float), np.asarray(others, float))
    n, m = lengths.shape
    if n == m:
        plan = np.zeros((n, m))
        plan[optimize.linear_sum_assignment(lengths)] = 1 / n
    else:
        sent = sparse.kron(sparse.eye(n), np.ones((1, m)))  # 1/n from each day
        received = sparse.kron(np.ones((1, n)), sparse.eye(m))  # 1/m to each other day
        flows, weights = sparse.vstack([sent, received]), np.repeat([1 / n, 1 / m], [n, m])
        found = optimize.linprog(lengths.ravel(), A_eq=flows, b_eq=weights, bounds=(0, None))
        if found.status != 0:
            raise ValueError(f"the transport of {n} to {m} days could not be solved: {found.message}")
        plan = np.maximum(found.x.reshape(n, m), 0.0)
    return TransportPlan(float(np.sum(plan * lengths)), plan, lengths)
