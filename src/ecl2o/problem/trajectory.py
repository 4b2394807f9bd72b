"""Records of a run: what happened at each step, and what the agent reported."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.problem.arrays import AnyArray, to_device


class Info(eqx.Module):
    """An agent's report on one step, besides the action. In a `Trajectory` every array has a leading time axis.

    Args:
        converged: False if any solve failed, those of wrapped agents included.
        advice: (d,), the advisor's proposal. Default: the agent has no advisor.
        details: Further figures by name. Default: none.
        inner: The report of the wrapped agent. Default: the agent wraps none.
    """

    converged: Bool[AnyArray, "*n"]
    advice: Float[AnyArray, "*n d"] | None = None
    details: dict[str, PyTree] = eqx.field(default_factory=dict)
    inner: "Info | None" = None

    @classmethod
    def plain(cls) -> "Info":
        """Return the report of an agent that has no solver and no advisor."""
        return cls(jnp.ones((), bool))


class Trajectory(eqx.Module):
    """The actions of a run and their costs.

    Arrays are JAX's while computing and NumPy's in evaluation. A batch of runs has a leading axis on every field.

    Args:
        actions: (T, d), x_t.
        hitting: (T,), f(x_t, y_t).
        switching: (T,), c(x_t, x_{t-1}).
        advice: (T, d), the advisor's proposals; None if the agent has no advisor.
        converged: (T,), False at steps where a solve failed.
        info: The agent's own report, nested by wrappers. Default: none, as for an oracle.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> run = ec.rollout(ec.Greedy(), problem, ec.Instance(x0=[0.0], contexts=[[3.0], [4.0]]))
    >>> run.actions.shape, round(float(run.cost), 4)
    ((2, 1), 6.0)
    """

    actions: Float[AnyArray, "*n T d"]
    hitting: Float[AnyArray, "*n T"]
    switching: Float[AnyArray, "*n T"]
    advice: Float[AnyArray, "*n T d"] | None
    converged: Bool[AnyArray, "*n T"]
    info: Info | None = None

    @property
    def cost(self) -> Float[Array, "*n"]:
        """The total cost, the sum of f(x_t, y_t) + c(x_t, x_{t-1}) over t."""
        if isinstance(self.hitting, np.ndarray):
            return to_device(np.sum(self.hitting + self.switching, axis=-1))
        return _total(self.hitting, self.switching)

    @property
    def details(self) -> dict[str, PyTree]:
        """The figures that the agent reported, by name; empty if it reported none."""
        return {} if self.info is None else self.info.details


@jax.jit
def _total(hitting, switching):
    return jnp.sum(hitting + switching, axis=-1)
