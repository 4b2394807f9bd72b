"""What can be promised for what: one table of what each kind of promise needs of a problem.

Refusals and their messages are made from it, and a test compares it with what guards do and with docs/guarantees.md.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import concrete_value, to_host

Fact = Callable[[Any, int, Any], Any]  # of (problem, dim, conditions of the promise)


@dataclasses.dataclass(frozen=True)
class Need:
    """Something that a promise needs.

    Args:
        what: it, as in "the promise needs ...".
        holds: whether a problem has it.
        found: what it has instead, for the message.
        instead: the nearest combination that works.
        proved: whether theory forbids the rest; else a proof is missing.
    """

    what: str
    holds: Fact
    found: Fact
    instead: str
    proved: bool = True


_ANY = "Guarded takes any costs and any box"


def _cost(problem: Any, dim: int, tracking: Any) -> str:
    return type(problem.hitting).__name__


def _movement(problem: Any, dim: int, tracking: Any) -> str:
    return type(problem.switching).__name__


def _set(problem: Any, dim: int, tracking: Any) -> str:
    return type(problem.actions).__name__


def _has_known_curvature(problem: Any, dim: int, tracking: Any) -> bool:
    return tracking.weights is not None or problem.hitting.curvature_bounds(dim)[1] is not None


def _is_in_contexts(problem: Any, dim: int, tracking: Any) -> bool:
    """Return whether the promised range of contexts lies within the bounds of actions, where both are known."""
    if tracking.contexts is None or not problem.relaxed.is_bounded:
        return True
    lower, upper, low, high = map(to_host, (*problem.actions.bounds(dim, float), *tracking.contexts))
    inside = concrete_value(((lower <= low) & (high <= upper)).all())
    return inside is None or bool(inside)


def _is_diagonal(problem: Any, dim: int, tracking: Any) -> bool:
    if not tracking.needs_diagonal(problem, dim):
        return True
    found = concrete_value(are_diagonal(list(tracking.curvatures(problem, dim)[1:])))
    return found is None or bool(found)


QUADRATIC_MOVEMENT = Need("quadratic movement", lambda p, d, c: p.switching.is_quadratic, _movement, _ANY)
KNOWN_MOVEMENT = Need(
    "movement that is quadratic or a distance",
    lambda p, d, c: p.switching.is_quadratic or p.switching.is_distance,
    _movement,
    "use Mahalanobis or LinearSwitching",
)
NO_TOTAL = Need(
    "actions that do not share a total",
    lambda p, d, c: p.unlimited.actions.is_box,
    _set,
    "use Guarded(agent, expert), or, without bounds, state the problem in one number less (docs/guarantees.md)",
    proved=False,
)
FITTING_WEIGHTS = Need(
    "weights only where the curvature varies, as in CurvedTracking",
    lambda p, d, c: c.weights is None or (p.hitting.is_quadratic and not p.hitting.constant_curvature),
    _cost,
    "leave out `weights`",
)
KNOWN_CURVATURE = Need(
    "the largest curvature of the cost",
    _has_known_curvature,
    lambda p, d, c: f"{_cost(p, d, c)} without {p.hitting.upper_curvature_argument}",
    f"give it, or use Guarded: {_ANY}",
)
CONTEXTS_OF_BOUNDS = Need(
    "contexts=(low, high) where actions have bounds or a ramp",
    lambda p, d, c: c.contexts is not None or not p.relaxed.is_bounded,
    lambda p, d, c: f"{_set(p, d, c)} and contexts anywhere",
    f"give the range that contexts lie in; {_ANY}",
)
CONTEXTS_IN_BOUNDS = Need(
    "contexts within the bounds of actions",
    _is_in_contexts,
    lambda p, d, c: f"contexts from {to_host(c.contexts[0])} to {to_host(c.contexts[1])}",
    f"widen the bounds or narrow the range; {_ANY}",
)
DIAGONAL = Need(
    "diagonal matrices A and Q beside contexts=(low, high), a spacing or a cost that is not quadratic",
    _is_diagonal,
    lambda p, d, c: "others",
    _ANY,
    proved=False,
)
QUADRATIC_COST = Need(
    "a quadratic hitting cost beside other promises",
    lambda p, d, c: p.hitting.is_quadratic,
    _cost,
    "make one promise alone",
    proved=False,
)
LINE = Need(
    "a problem on a line, without bounds and without contexts=, for a cost that is not quadratic, on two sides at least",
    lambda p, d, c: p.hitting.is_two_sided or (d == 1 and c.contexts is None and not p.relaxed.is_bounded),
    _cost,
    _ANY,
    proved=False,
)
NO_RAMP = Need(
    "actions without a ramp",
    lambda p, d, c: p.actions.ramp is None,
    _set,
    "use Competitive or Promises with contexts=(low, high), or follow the expert without a promise",
    proved=False,
)
NO_BOUNDS = Need(
    "actions without bounds on a problem with a state, a delay or contexts known ahead",
    lambda p, d, c: not p.relaxed.is_bounded,
    _set,
    "leave out the bounds",
    proved=False,
)
NO_LIMITS = Need(
    "actions without bounds, a ramp and a spacing in a band",
    lambda p, d, c: not p.is_bounded,
    _set,
    "leave them out",
    False,
)
TRACKED_CENTRES = Need(
    "quadratic costs of a constant curvature, whose contexts are the centres",
    lambda p, d, c: (p if p.game is not None else p.without_covariates).is_linear_quadratic,
    _cost,
    _ANY,
    proved=False,
)
NO_CONDITIONS = Need(
    "no contexts= and no weights= on a problem with a state, a delay or contexts known ahead",
    lambda p, d, c: c.contexts is None and c.weights is None,
    lambda p, d, c: "some",
    "leave them out",
    proved=False,
)
FREE_STATES = Need(
    "contexts that can make any state free, as with a delay, and no horizon, beside other promises",
    lambda p, d, c: p.timing.shift > 0 and c.horizon is None,
    lambda p, d, c: "a state that stays, or an end",
    "make one promise alone",
    proved=False,
)

_TRACKING = (
    QUADRATIC_MOVEMENT,
    NO_TOTAL,
    FITTING_WEIGHTS,
    KNOWN_CURVATURE,
    CONTEXTS_OF_BOUNDS,
    DIAGONAL,
    CONTEXTS_IN_BOUNDS,
)
_DYNAMICS = (NO_BOUNDS, NO_CONDITIONS)

# By reference, what one promise alone needs, and what several together need; None: there cannot be several.
NEEDS: dict[str, tuple[tuple[Need, ...], tuple[Need, ...] | None]] = {
    "optimum": (_TRACKING, (QUADRATIC_COST, *_TRACKING)),
    "lower model": ((*_TRACKING, LINE), (QUADRATIC_COST,)),
    "baseline": ((NO_RAMP, KNOWN_MOVEMENT), (QUADRATIC_COST, *_TRACKING)),
    "dynamic optimum": (_DYNAMICS, (*_DYNAMICS, FREE_STATES)),
    "dynamic baseline": (_DYNAMICS, (*_DYNAMICS, FREE_STATES)),
    "band": ((NO_LIMITS, TRACKED_CENTRES), None),
}


def missing_need(kind: str, problem: Any, dim: int, tracking: Any, several: bool) -> Need | None:
    """Return the first thing that a kind of promise lacks on a problem; None if it can be made.

    Args:
        kind: a key of `NEEDS`.
        problem: the problem.
        dim: d, the dimension of actions.
        tracking: the conditions of the promise.
        several: whether it is made beside others.
    """
    needs = NEEDS[kind][several]
    return next((need for need in needs or () if not need.holds(problem, dim, tracking)), None)


def check_needs(kind: str, problem: Any, dim: int, tracking: Any, several: bool) -> None:
    """Raise `NotApplicableError` for the first thing that a kind of promise lacks on a problem."""
    if several and NEEDS[kind][1] is None:
        raise NotApplicableError(f"a promise relative to the {kind} is kept alone, not beside others.")
    need = missing_need(kind, problem, dim, tracking, several)
    if need is not None:
        found = need.found(problem, dim, tracking)
        why = "" if need.proved else " No proof is known without it."
        raise NotApplicableError(f"the promise needs {need.what}, got {found}: {need.instead}.{why}")


@jax.jit
def are_diagonal(matrices: list[Float[Array, "... d d"]]) -> Bool[Array, ""]:
    """Return whether all off-diagonal entries are zero."""
    return jnp.array([(each * (1 - np.eye(each.shape[-1], dtype=each.dtype)) == 0).all() for each in matrices]).all()
