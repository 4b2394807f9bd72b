"""Action sets X: the actions that are allowed, also as far as they can be reached and counted in units."""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import as_float, as_optional_float, check_finite, check_positive, check_scalar, concrete_value
from ecl2o.problem.objectives import StepObjective
from ecl2o.solvers.bounded_newton import BoundedMinimum, Objective, minimize
from ecl2o.solvers.ramped_path import RampedPath
from ecl2o.solvers.shared_total import project_on_total
from ecl2o.solvers.total_path import TotalPath, minimize_with_total


class AbstractActionSet(eqx.Module):
    """A set of actions. Implement `bounds`, `project` and `check`.

    By default the set is exactly what lies between its bounds. One that is not, such as `Total`, implements the methods that
    follow them too.

    >>> import jax.numpy as jnp
    >>> class AtMost(AbstractActionSet):
    ...     capacity: float
    ...
    ...     def bounds(self, dim, dtype):
    ...         return jnp.zeros(dim, dtype), jnp.full(dim, self.capacity, dtype)
    ...
    ...     def project(self, action):
    ...         return jnp.clip(action, 0.0, self.capacity)
    ...
    ...     def check(self, x0):
    ...         pass
    >>> AtMost(2.0).project(jnp.array([-1.0, 3.0])).tolist()
    [0.0, 2.0]
    """

    is_bounded: ClassVar[bool] = True  # whether there are actions outside of the set
    is_box: ClassVar[bool] = True  # whether the set is exactly what lies between its bounds
    ramp = None
    spacing = None

    @abc.abstractmethod
    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the lower and the upper bounds, infinite if there is none.

        Args:
            dim: d, the dimension of actions.
            dtype: The precision of the bounds.

        Returns:
            Two arrays (d,).
        """

    @abc.abstractmethod
    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest point of the set, (d,) for (d,)."""

    @abc.abstractmethod
    def check(self, x0: Float[Array, " d"]) -> None:
        """Raise ValueError if an initial action (d,) has the wrong dimension or lies outside the set."""

    @property
    def unlimited(self) -> "AbstractActionSet":
        """The set without a ramp and a spacing."""
        return self

    @property
    def relaxed(self) -> "AbstractActionSet":
        """The set without a spacing."""
        return self

    @property
    def depends_on_context(self) -> bool:
        """Whether the set of a step is known with its context only."""
        return False

    def at_context(self, context: Float[Array, " q"]) -> "AbstractActionSet":
        """Return the set of a step with this context."""
        return self

    def check_contexts(self, contexts: Float[Array, "T q"], dim: int) -> None:
        """Raise ValueError if the sets of these steps are not known or empty."""

    def check_limits(self, spacing: Float[Array, "*d"] | None) -> None:
        """Raise an error if `Limited` cannot hold this set, with this spacing or none."""

    def has_actions(self, dim: int) -> Bool[Array, ""]:
        """Return whether there is any action of `dim` numbers: bounds may not allow a total."""
        return jnp.ones((), bool)

    def reachable(self, previous: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the least and the greatest action that can be reached from the previous one."""
        return self.bounds(previous.shape[0], previous.dtype)

    def reach(self, previous: Float[Array, " d"], action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the action that is played instead of a proposed one where ramp and spacing are obeyed. Default: the same."""
        return action

    def clips(self, objective: StepObjective, dim: int) -> bool:
        """Return whether the minimiser over the set is the point of the set that is nearest to the one over R^d."""
        return dim == 1 or objective.is_separable or objective.is_round

    def minimize(
        self, objective: StepObjective, guess: Float[Array, " d"], previous: Float[Array, " d"] | None = None
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
        """Return the minimiser over the set, and whether the solve converged (always, in closed form).

        Args:
            objective: costs and pulls of a step.
            guess: (d,), the first iterate of Newton's method.
            previous: (d,), the action in force, if only what can be reached from it counts. Closed forms leave the ramp to
                `reach`. Default: the whole set.
        """
        free = objective.free_minimizer(len(guess)) if self.clips(objective, len(guess)) else None
        if free is not None:
            return self.project(free), jnp.ones((), bool)
        ends = self.bounds(len(guess), guess.dtype) if previous is None else self.reachable(previous)
        found = self.minimize_between(_value_of, guess, objective, *ends)
        return found.x, found.converged

    def path_limits(
        self,
        x0: Float[Array, " d"],
        contexts: Float[Array, "T q"],
        coupled: Bool[Array, " T"],
        lower: Float[Array, "T d"],
        upper: Float[Array, "T d"],
    ) -> RampedPath | TotalPath | None:
        """Return what a path from x0 obeys if that is more than bounds; a ramp binds where steps are coupled."""
        return None

    def minimize_between(
        self,
        function: Objective,
        start: Float[Array, " d"],
        parameters: PyTree,
        lower: Float[Array, " d"],
        upper: Float[Array, " d"],
    ) -> BoundedMinimum:
        """Minimise function(x, parameters), convex, over the points of the set between two bounds."""
        return minimize(function, start, parameters, lower, upper)


def _value_of(action: Float[Array, " d"], objective: StepObjective) -> Float[Array, ""]:
    return objective(action)


class Everywhere(AbstractActionSet):
    """X = R^d, no bounds.

    >>> import jax.numpy as jnp
    >>> Everywhere().project(jnp.array([-3.0])).tolist()
    [-3.0]
    """

    is_bounded: ClassVar[bool] = False

    def clips(self, objective: StepObjective, dim: int) -> bool:
        return True

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        infinite = jnp.full((dim,), jnp.inf, dtype)
        return -infinite, infinite

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        return action

    def check(self, x0: Float[Array, " d"]) -> None:
        pass


class Box(AbstractActionSet):
    """X = {x: lower <= x <= upper}, by coordinate.

    Args:
        lower: (d,), or one number for all coordinates, in the units of actions; may be -inf.
        upper: The same, at least `lower`; may be inf.

    Raises:
        ValueError: A bound is NaN or a matrix, the lengths differ, or `lower` exceeds `upper`.

    >>> import jax.numpy as jnp
    >>> [float(x) for x in Box(lower=0.0, upper=1.0).project(jnp.array([-3.0, 0.5]))]
    [0.0, 0.5]
    """

    lower: Float[Array, "*d"] = eqx.field(converter=as_float)
    upper: Float[Array, "*d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        _check_bounds(self.lower, self.upper)

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return jnp.full((dim,), self.lower, dtype), jnp.full((dim,), self.upper, dtype)

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        return jnp.clip(action, self.lower, self.upper)

    def check(self, x0: Float[Array, " d"]) -> None:
        _check_inside(x0, self.lower, self.upper)

    def check_limits(self, spacing: Float[Array, "*d"] | None) -> None:
        unit, lower, upper = (None if end is None else concrete_value(end) for end in (spacing, self.lower, self.upper))
        if unit is None or lower is None or upper is None:
            return
        if (np.ceil(lower / unit) > np.floor(upper / unit)).any():
            raise ValueError(f"no multiple of the spacing {unit} lies within the bounds {lower} to {upper}.")


def _check_bounds(lower: Float[Array, "*low"], upper: Float[Array, "*up"]) -> None:
    """Raise ValueError unless the bounds fit each other."""
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound.ndim > 1:
            raise ValueError(f"{name} must be a number or a vector, got shape {bound.shape}.")
        values = concrete_value(bound)
        if values is not None and np.isnan(values).any():
            raise ValueError(f"{name} must not be NaN.")
    if lower.ndim == upper.ndim == 1 and lower.shape != upper.shape:
        raise ValueError(f"lower and upper must have the same length, got {lower.shape} and {upper.shape}.")
    least, most = concrete_value(lower), concrete_value(upper)
    if least is not None and most is not None and (least > most).any():
        where = int(np.argmax(np.atleast_1d(least > most)))
        low, high = np.broadcast_arrays(np.atleast_1d(least), np.atleast_1d(most))
        raise ValueError(
            f"lower must not exceed upper, but lower[{where}] = {low[where]:g} > upper[{where}] = {high[where]:g}."
        )


def _check_inside(x0: Float[Array, " d"], lower: Float[Array, "*low"], upper: Float[Array, "*up"]) -> None:
    """Raise ValueError if x0 does not fit the bounds or lies outside."""
    dim = x0.shape[-1]
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound.ndim == 1 and bound.shape != (dim,):
            raise ValueError(f"{name} must have {dim} entries to fit x0, got {bound.shape[0]}.")
    values, least, most = concrete_value(x0), concrete_value(lower), concrete_value(upper)
    if values is None or least is None or most is None:
        return
    slack = 1e-6 * (1 + np.abs(values))  # a float32 x0 of a float64 box
    if (values < least - slack).any() or (values > most + slack).any():
        raise ValueError(f"x0 = {values} lies outside the box from {least} to {most}.")


class Total(AbstractActionSet):
    """X = {x: lower <= x <= upper, sum x = total}: units that share a total, such as the demand of a step.

    The total is one number, or a number of each context (`column`). `rollout`, runners and the service then give the agent the
    problem of the step, with its total. `oracle` and `RHC` plan with the totals of the contexts they know. Costs must ignore the
    column or have a use for it: as a covariate it stands at the end of a context.

    `Guarded` promises on it, whatever the bounds, also for a total that changes (docs/guarantees.md).

    Args:
        total: The sum of the numbers of an action; with `column`, that of the step at hand. Default: None, needs `column`.
        lower: (d,), or one number for all, in the units of actions. Default: -inf.
        upper: The same, at least `lower`. Default: inf.
        column: The place in a context where its total is, from the end if negative. Default: None, the total does not change.

    Raises:
        ValueError: Bounds do not fit each other, or the total is missing or not a finite number.

    >>> import jax.numpy as jnp
    >>> Total(2.0, lower=0.0, upper=1.5).project(jnp.array([3.0, 1.0])).tolist()
    [1.5, 0.5]
    >>> Total(column=-1).at_context(jnp.array([0.0, 0.0, 4.0])).project(jnp.array([3.0, 3.0])).tolist()
    [2.0, 2.0]
    """

    is_box: ClassVar[bool] = False

    total: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    lower: Float[Array, "*d"] = eqx.field(converter=as_float, default=-np.inf)
    upper: Float[Array, "*d"] = eqx.field(converter=as_float, default=np.inf)
    column: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _check_bounds(self.lower, self.upper)
        if self.column is not None and (isinstance(self.column, bool) or not isinstance(self.column, int)):
            raise ValueError(f"column must be the place of a number in a context, got {self.column!r}.")
        if self.total is not None:
            check_scalar("total", self.total)
        if self.column is None:
            if self.total is None:
                raise ValueError("give the total, or the column of contexts that holds it.")
            check_finite("total", self.total)

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the bounds, without what the total leaves of them."""
        return jnp.full((dim,), self.lower, dtype), jnp.full((dim,), self.upper, dtype)

    @property
    def depends_on_context(self) -> bool:
        return self.column is not None

    def at_context(self, context: Float[Array, " q"]) -> "Total":
        return self if self.column is None else Total(context[self.column], self.lower, self.upper, self.column)

    def known_total(self) -> Float[Array, ""]:
        """Return the total.

        Raises:
            NotApplicableError: It is that of a context, which is not known here.
        """
        if self.total is None:
            raise NotApplicableError("this needs a Total with one number: here the total of a context is not known.")
        return self.total

    def totals(self, contexts: Float[Array, "T q"]) -> Float[Array, " T"]:
        """Return the total of each step."""
        if self.column is not None:
            return contexts[:, self.column]
        return jnp.full(contexts.shape[:1], self.known_total(), contexts.dtype)

    def has_actions(self, dim: int) -> Bool[Array, ""]:
        return self.allows(self.known_total(), dim)

    def clips(self, objective: StepObjective, dim: int) -> bool:
        return dim == 1 or objective.is_round

    def path_limits(self, x0, contexts, coupled, lower, upper) -> TotalPath:
        return TotalPath(self.totals(contexts).astype(x0.dtype), lower, upper)

    def minimize_between(self, function, start, parameters, lower, upper) -> BoundedMinimum:
        return minimize_with_total(function, start, parameters, lower, upper, self.known_total().astype(start.dtype))

    def allows(self, totals: Float[Array, "*n"], dim: int) -> Bool[Array, "*n"]:
        """Return whether the bounds allow these totals, up to rounding."""
        lower, upper = self.bounds(dim, totals.dtype)
        ends = jnp.stack([lower, upper])
        size = jnp.sum(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0)) + jnp.abs(totals)
        slack = jnp.finfo(totals.dtype).eps ** 0.75 * size
        return (jnp.sum(lower) - slack <= totals) & (totals <= jnp.sum(upper) + slack)

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest point of the set; of all totals, where that of the step is not known."""
        lower, upper = self.bounds(action.shape[0], action.dtype)
        if self.total is None:
            return jnp.clip(action, lower, upper)
        nearest = project_on_total(action, self.total.astype(action.dtype), lower, upper)
        return jnp.where(jnp.isfinite(action).all(), nearest, jnp.nan)  # of infinite numbers no sum is known

    def check(self, x0: Float[Array, " d"]) -> None:
        _check_inside(x0, self.lower, self.upper)
        if self.column is not None:
            return
        self.check_totals(self.known_total(), x0.shape[-1])
        values, total = concrete_value(x0), concrete_value(self.total)
        if values is not None and total is not None and abs(values.sum() - total) > 1e-6 * (1 + np.abs(values).sum()):
            raise ValueError(f"x0 = {values} sums to {values.sum():g}, but the actions share the total {total:g}.")

    def check_contexts(self, contexts: Float[Array, "T q"], dim: int) -> None:
        size = contexts.shape[-1]
        if self.column is None:
            return
        if not -size <= self.column < size:
            raise ValueError(f"the total is number {self.column} of a context, but these have {size}.")
        self.check_totals(self.totals(contexts), dim)

    def check_limits(self, spacing: Float[Array, "*d"] | None) -> None:
        raise NotApplicableError("actions that share a total take no ramp and no spacing; use their bounds.")

    def check_totals(self, totals: Float[Array, "*n"], dim: int) -> None:
        """Raise ValueError if the bounds do not allow a total that is known."""
        allowed, values = concrete_value(self.allows(totals, dim)), concrete_value(totals)
        if allowed is None or values is None or allowed.all():
            return
        where = "" if values.ndim == 0 else f" of step {int(np.argmin(allowed))}"
        low, high = (float(np.sum(np.asarray(end))) for end in self.bounds(dim, totals.dtype))
        found = values if values.ndim == 0 else values[np.argmin(allowed)]
        raise ValueError(
            f"the total{where} must lie between the sums of the bounds, {low:g} and {high:g}, got {found:g}."
        )


def Simplex(total: float = 1.0) -> Total:
    """Return the set of shares: actions of numbers from 0 on that sum to `total`.

    Args:
        total: The sum. Default: 1.

    >>> import jax.numpy as jnp
    >>> Simplex().project(jnp.array([2.0, 0.5, -1.0])).tolist()
    [1.0, 0.0, 0.0]
    """
    return Total(total, lower=0.0)


class Limited(AbstractActionSet):
    """The actions of another set that change by at most `ramp` in a step, and are multiples of `spacing`.

    `rollout`, runners and the service play the nearest such action, whatever an agent proposes. `oracle` and `RHC` plan with
    the limits, and guards promise for the actions that are played (docs/guarantees.md).

    Args:
        actions: The other set, with bounds or without. Default: `Everywhere()`.
        ramp: The greatest change of each coordinate in one step, positive: (d,), or one number. Default: None, no limit.
        spacing: The distance between neighbouring actions, positive: (d,), or one number. Default: None, actions are numbers.

    Raises:
        ValueError: A limit is not positive, the ramp is less than the spacing, or no multiple of it lies within the bounds.

    >>> import jax.numpy as jnp
    >>> actions = Limited(Box(0.0, 10.0), ramp=2.5, spacing=1.0)
    >>> actions.reach(jnp.array([4.0]), jnp.array([9.2])).tolist()
    [6.0]
    """

    is_box: ClassVar[bool] = False

    actions: AbstractActionSet = Everywhere()
    ramp: Float[Array, "*d"] | None = eqx.field(converter=as_optional_float, default=None)
    spacing: Float[Array, "*d"] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        for name in ("ramp", "spacing"):
            limit = getattr(self, name)
            if limit is not None:
                check_finite(name, limit)
                check_positive(name, limit)
        ramp, spacing = (None if limit is None else concrete_value(limit) for limit in (self.ramp, self.spacing))
        if ramp is not None and spacing is not None and (ramp < spacing).any():
            raise ValueError(f"ramp must be at least the spacing, got {ramp} and {spacing}: no action could change.")
        self.actions.check_limits(self.spacing)

    def check_limits(self, spacing: Float[Array, "*d"] | None) -> None:
        raise ValueError("actions must not be Limited themselves; use Limited.of, which joins limits.")

    @classmethod
    def of(cls, actions: AbstractActionSet, ramp=None, spacing=None) -> "Limited":
        """Return the set with these limits too; of two ramps the smaller one counts.

        Raises:
            ValueError: Both have a spacing.
        """
        if spacing is not None and actions.spacing is not None:
            raise ValueError("actions have a spacing already.")
        ramps = [as_float(each) for each in (ramp, actions.ramp) if each is not None]
        ramp = None if not ramps else ramps[0] if len(ramps) == 1 else jnp.minimum(*ramps)
        return cls(actions.unlimited, ramp, actions.spacing if spacing is None else spacing)

    @property
    def unlimited(self) -> AbstractActionSet:
        return self.actions

    @property
    def relaxed(self) -> AbstractActionSet:
        return self.actions if self.ramp is None else Limited(self.actions, self.ramp)

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the least and the greatest action."""
        lower, upper = self.actions.bounds(dim, dtype)
        if self.spacing is None:
            return lower, upper
        unit = self.spacing.astype(dtype)
        return -unit * floor_multiple(-lower / unit), unit * floor_multiple(upper / unit)

    def reach(self, previous: Float[Array, " d"], action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest action of the set that can be reached from the previous one; that one if it is not a number."""
        action = jnp.where(jnp.isfinite(action), action, previous)
        low, high = self.reachable(previous)
        return self._count(jnp.clip(action, low, high), low, high)

    def reachable(self, previous: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the least and the greatest action that can be reached, multiples of the spacing if there is one."""
        low, high = self.bounds(previous.shape[0], previous.dtype)
        if self.ramp is None:
            return low, high
        ramp = self.ramp.astype(previous.dtype)
        down, up = previous - ramp, previous + ramp
        if self.spacing is not None:
            unit = self.spacing.astype(previous.dtype)
            down, up = -unit * floor_multiple(-down / unit), unit * floor_multiple(up / unit)
        return jnp.minimum(jnp.maximum(low, down), high), jnp.maximum(jnp.minimum(high, up), low)

    def path_limits(self, x0, contexts, coupled, lower, upper) -> RampedPath | None:
        if self.ramp is None:
            return None
        return RampedPath(lower, upper, x0, jnp.broadcast_to(self.ramp, x0.shape).astype(x0.dtype), coupled)

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest point of the set, wherever the action before was."""
        return self._count(self.actions.project(action), *self.bounds(action.shape[0], action.dtype))

    def _count(self, action, low, high):
        """Return the nearest multiple of the spacing; derivatives are those of the action, as if it were not rounded."""
        if self.spacing is None:
            return action
        unit = self.spacing.astype(action.dtype)
        counted = jnp.round(action / unit)
        return with_tangent_of(action, jnp.clip(jnp.where(counted == 0, 0.0, unit * counted), low, high))

    def check(self, x0: Float[Array, " d"]) -> None:
        self.actions.check(x0)
        for name in ("ramp", "spacing"):
            limit = getattr(self, name)
            if limit is not None and limit.ndim == 1 and limit.shape != x0.shape[-1:]:
                raise ValueError(f"{name} must have {x0.shape[-1]} entries to fit x0, got {limit.shape[0]}.")


@jax.custom_jvp
def with_tangent_of(action: Float[Array, " d"], rounded: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the rounded action with the derivatives of the action."""
    return rounded


@with_tangent_of.defjvp
def _with_tangent_of_jvp(primals, tangents):
    return primals[1], tangents[0]


def floor_multiple(units: Float[Array, "*d"]) -> Float[Array, "*d"]:
    """Return how many whole units fit; one that misses by rounding only counts."""
    return jnp.floor(units + 64 * jnp.finfo(units.dtype).eps * jnp.maximum(jnp.abs(units), 1.0))
