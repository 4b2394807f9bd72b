"""Figures of merit, as the paper defines them (section 2), and counts of steps that did not converge.

docs/reproduction.md describes how the figures are taken over days.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.problem import Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, cost_ratio

NO_RATIO = "optimum is zero"
_NEGLIGIBLE = 1e-15  # cost of a day of a constant series, as a share of the square of its level
TAIL_PERCENTILES = (90.0, 95.0, 99.0, 99.5)


def drop_rounding_costs(
    cost: Float[Array, "*n"], problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "*m T q"]
) -> Float[Array, "*n"]:
    """Return costs of T steps, with 0 for those no larger than the cost of rounding errors in the actions.

    >>> from ecl2o.problem import LinearSwitching, SquaredTracking
    >>> problem = Problem(SquaredTracking(), LinearSwitching(rate=1.0))
    >>> still = jnp.ones(1, jnp.float32), jnp.ones((24, 1), jnp.float32)
    >>> [round(float(c), 5) for c in drop_rounding_costs(jnp.array([1e-5, 0.1], jnp.float32), problem, *still)]
    [0.0, 0.1]
    """
    largest = jnp.maximum(jnp.max(jnp.abs(problem.drop_covariates(contexts))), jnp.max(jnp.abs(x0)))
    error = 50 * jnp.finfo(cost.dtype).eps * largest
    dim = problem.action_size(x0.shape[0])
    nowhere = jnp.zeros((dim,), x0.dtype)
    move = sum(problem.switching(nowhere.at[i].set(error), nowhere.at[i].set(-error)) for i in range(dim))
    rounding = contexts.shape[-2] * (problem.m * error**2 + move)
    return jnp.where((cost <= rounding) & jnp.isfinite(rounding), 0.0, cost)


def drop_daily_rounding(
    cost: Float[Array, "*n"], problem: Problem, x0: Float[Array, " d"], days: Float[Array, "n T q"]
) -> Float[Array, "*n"]:
    """Return `drop_rounding_costs` of days; if their contexts never change, costs negligible next to their level are 0 too."""
    followed = problem.drop_covariates(days)
    level, spread = jnp.max(jnp.abs(followed)), jnp.max(jnp.abs(followed - followed[0, 0]))
    constant = spread <= 50 * jnp.finfo(cost.dtype).eps * level
    negligible = cost <= _NEGLIGIBLE * days.shape[-2] * problem.m * level**2
    return jnp.where(constant & negligible, 0.0, drop_rounding_costs(cost, problem, x0, days))


def average_cost(cost: Float[Array, " n"], oracle_cost: Float[Array, " n"] | None = None) -> Float[Array, ""]:
    """Return AVG (Definition 1), over the oracle's average cost if that is given."""
    mean = jnp.mean(jnp.asarray(cost))
    return mean if oracle_cost is None else mean / jnp.mean(jnp.asarray(oracle_cost))


def competitive_ratio(cost: Float[Array, " n"], oracle_cost: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the largest ratio (Definition 2) over these instances; oracles start from the same x0 as the runs."""
    return jnp.max(cost_ratio(cost, oracle_cost))


def tail_ratios(
    cost: Float[AnyArray, " n"],
    oracle_cost: Float[AnyArray, " n"],
    percentiles: tuple[float, ...] = TAIL_PERCENTILES,
) -> Float[np.ndarray, " p"]:
    """Return percentiles of the ratio, interpolated as `numpy.percentile` does; infinite next to an infinite ratio."""
    ratios = cost_ratio(np.asarray(cost), np.asarray(oracle_cost))
    with np.errstate(invalid="ignore"):
        between = np.percentile(ratios, percentiles)
    return np.where(np.isnan(between), np.percentile(ratios, percentiles, method="higher"), between)


def prediction_error(advice: Float[AnyArray, "*n T d"], best: Trajectory) -> Float[AnyArray, "*n"]:
    """Return rho (Definition 3): the squared distance of the advice from the oracle's actions, over the oracle's cost.

    If that cost is 0, rho is 0 for exact advice and infinite otherwise (erratum E14).
    """
    error = constrained_prediction_error(advice, best)  # an oracle with a budget that never binds
    return cost_ratio(error, best.cost, both_zero=0.0)


@jax.jit
def constrained_prediction_error(advice: Float[AnyArray, "*n T d"], comparator: Trajectory) -> Float[Array, "*n"]:
    """Return L_rho (Definition 5): the squared distance of the advice from the actions of an L-constrained oracle.

    Advice is (L, L_rho)-constrained if this is at most L_rho for `constrained_oracle` with budget L.
    """
    return jnp.sum((advice - comparator.actions) ** 2, axis=(-2, -1))


def regret(run: Trajectory, comparator: Trajectory) -> Float[Array, "*n"]:
    """Return the cost less the comparator's.

    This is dynamic regret relative to `oracle`, L-constrained regret (Definition 4) relative to `constrained_oracle`, and
    static regret relative to that with budget 0 and `free_start=True`.
    """
    return run.cost - comparator.cost


MARK = " †"


class UnconvergedCounts(eqx.Module):
    """The number of steps of an agent and of its oracles that did not converge, or at which a guard had lost its promise.

    Args:
        steps: Such steps of the agent. Default: 0.
        oracle: Such steps of the oracle. Default: 0.
        of: All steps of the agent. Default: 0.

    >>> print(UnconvergedCounts(steps=3, oracle=48, of=48))
    3 of 48 steps, and 48 of the oracle's, did not converge
    >>> bool(UnconvergedCounts(of=48))
    False
    """

    steps: int = 0
    oracle: int = 0
    of: int = 0

    @classmethod
    def count(cls, runs: Bool[AnyArray, "n T"], oracles: Bool[AnyArray, "n T"]) -> "UnconvergedCounts":
        """Count the steps of a run, and of the oracles of the same days, that did not converge."""
        steps, oracle = (int(np.sum(~np.asarray(each))) for each in (runs, oracles))
        return cls(steps, oracle, int(runs.size))

    def __add__(self, other: "UnconvergedCounts") -> "UnconvergedCounts":
        return UnconvergedCounts(self.steps + other.steps, self.oracle + other.oracle, self.of + other.of)

    def __bool__(self) -> bool:
        return self.steps > 0 or self.oracle > 0

    def __str__(self) -> str:
        return f"{self.steps} of {self.of} steps, and {self.oracle} of the oracle's, did not converge"

    def as_json(self) -> dict[str, int]:
        """Return the three numbers."""
        return {"steps": self.steps, "oracle": self.oracle, "of": self.of}

    def mark(self, label: str) -> str:
        """Return the label of a row, marked if its figures are unreliable."""
        return label + MARK if self else label

    def note(self, label: str) -> str:
        """Return the footnote of the marked row."""
        return f"{MARK.strip()} {label}: {self}: a solve failed, or a promise was lost. These figures are unreliable."
