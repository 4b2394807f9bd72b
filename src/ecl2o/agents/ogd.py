"""Online gradient descent."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_optional_float, check_finite, check_positive
from ecl2o.theory import decay_root

_STEP_SIZE_DECAY: dict[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {  # by t = 1, 2, ...
    "constant": jnp.ones_like,
    "sqrt": lambda t: 1 / jnp.sqrt(t),
    "inverse": lambda t: 1 / t,
}


class Descent(eqx.Module):
    """The first step size, and the context of the step before."""

    eta: Float[Array, ""]
    last_context: Float[Array, " q"]


class OGD(AbstractAgent):
    """Online Gradient Descent (Zinkevich 2003): x_t = P(x_{t-1} - eta_t grad f(x_{t-1})), P the projection on X.

    `mode="revealed"` takes the gradient at y_t, which is known here; `"blind"`, the original, at y_{t-1}, so that x_1 = x_0.
    `steps` says how eta_t falls from its first value `eta`: `"constant"`, `"sqrt"` (eta/sqrt(t): static regret of order
    sqrt(T)) or `"inverse"` (eta/t: of order log T with eta = 1/m). Unless given, eta is 1/m for `"inverse"` and (1 - r)/m
    for the others, r the decay root: constant and revealed it then is R-OBD where A = m I and Q is isotropic. No step
    size has a bounded competitive ratio. Steps above 2 / (largest curvature of f) diverge.

    Args:
        mode: "revealed" or "blind". Default: "revealed".
        steps: "constant", "sqrt" or "inverse". Default: "constant".
        eta: the first step size, positive, in units of 1 / curvature. Default: see above.

    Raises:
        ValueError: if mode or steps is none of these, or if eta is not positive and finite.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(OGD(eta=0.5), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[0.5]]
    """

    mode: Literal["revealed", "blind"] = eqx.field(static=True, default="revealed")
    steps: Literal["constant", "sqrt", "inverse"] = eqx.field(static=True, default="constant")
    eta: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        if self.mode not in ("revealed", "blind"):
            raise ValueError(f"mode must be 'revealed' or 'blind', got {self.mode!r}.")
        if self.steps not in _STEP_SIZE_DECAY:
            raise ValueError(f"steps must be one of {', '.join(map(repr, _STEP_SIZE_DECAY))}, got {self.steps!r}.")
        if self.eta is not None:
            check_finite("eta", self.eta)
            check_positive("eta", self.eta)

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Descent:
        eta = self.eta
        if eta is None:
            eta = (1.0 if self.steps == "inverse" else 1 - decay_root(problem.m, problem.beta)) / problem.m
        return Descent(eta.astype(start.x0.dtype), jnp.zeros((start.history.shape[1],), start.x0.dtype))

    def step(self, problem: Problem, state: Descent, observation: Observation):
        first, context, previous = observation.step == 0, observation.context, observation.previous_action
        if self.mode == "blind":
            context = jnp.where(first, context, state.last_context)
        eta = state.eta * _STEP_SIZE_DECAY[self.steps]((observation.step + 1).astype(previous.dtype))
        action = problem.actions.project(previous - eta * problem.hitting.gradient(previous, context))
        if self.mode == "blind":
            action = jnp.where(first, previous, action)
        return Descent(state.eta, observation.context), action, Info.plain()
