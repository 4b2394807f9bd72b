"""The start of a run: its first action, its history, and the memory that it takes.

`Runner`, `Runner.many`, `ecl2o act` and the service all start here, by one rule, so that the same inputs give the same first
action:

- The history is the one given, else the policy's own, cut to the contexts that the policy uses.
- x0 is the action given, else the cheapest action for the last context of the history, within the action set. As in a run, the
  last plausible reading replaces an implausible one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ecl2o.agents import Start
from ecl2o.agents.calibrator import find_hitting_minimizer
from ecl2o.exceptions import MemoryLimitError, PolicyFileError
from ecl2o.policy.executable_cache import cache_numbers
from ecl2o.policy.policy import Policy, hitting_fits, infer_action_dim
from ecl2o.problem import Instance
from ecl2o.problem.arrays import cast_floats, to_device
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import (
    MOST_BYTES,
    ProgramSize,
    RunShape,
    check_stream_bytes,
    count_bytes,
    count_equations,
    largest_allocation,
)

_find_minimizer = eqx.filter_jit(find_hitting_minimizer)
_LARGEST = 1e100  # squares, and their sums, must stay far from where doubles end
_NO_START = "x0 is missing: give `x0` (the action in force) or `history` (the contexts before the first step)."


class RunStart(NamedTuple):
    """Where a run starts: x0 (d,) and history (H, q), or (n, d) and (n, H, q) for n streams, in the working precision."""

    x0: Float[np.ndarray, "*n d"]
    history: Float[np.ndarray, "*n H q"]


def find_start(policy: Policy, x0: Any = None, history: Any = None) -> RunStart:
    """Return where a run of one stream starts.

    Args:
        policy: The policy to run.
        x0: (d,), the action in force before the first step. Default: the cheapest action for the last context of the history.
        history: (H, q), the contexts before the first step. Default: the policy's own, or none.

    Raises:
        ValueError: x0 and history are both missing, do not have the shapes that the policy needs, are not finite, or x0 is
            outside the action set.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(0.0, 5.0))
    >>> find_start(ec.Policy(ec.ROBD(), problem), history=[[4.0], [7.0]]).x0.tolist()
    [5.0]
    """
    past = _as_array("history", policy.history if history is None else history, "(H, q)")
    x0 = _as_array("x0", x0, "(d,)", "; for several streams use Runner.many")
    found = find_starts([policy], None if x0 is None else x0[None], None if past is None else past[None])
    return RunStart(found.x0[0], found.history[0])


def find_starts(policies: Sequence[Policy], x0: Any = None, history: Any = None) -> RunStart:
    """Return where n streams start, each by the rule of `find_start`.

    Args:
        policies: One policy for all streams, or one for each.
        x0: (n, d). Default: for each stream the cheapest action for its last context.
        history: (n, H, q). Default: the policies' own, where these are equally long.

    Raises:
        ValueError: As `find_start`, or the number of policies is neither 1 nor n.
    """
    x0 = _as_array("x0", x0, "(n, d)", "; for one stream use Runner")
    past = _ignore_advice(policies[0], _as_array("history", history, "(n, H, q)"))
    given = x0 if past is None else past
    n = len(policies) if given is None else len(given)
    if len(policies) not in (1, n) or not n:
        raise ValueError(f"there must be one policy, or one for each of the {n} streams, got {len(policies)}.")
    each = list(policies) * (n // len(policies))
    own = [trim_history(policy, policy.history) for policy in each if policy.history is not None]
    if past is None and len(own) == n:
        if len({history.shape for history in own}) > 1:
            raise ValueError("history is missing: the policies' own histories are not equally long.")
        past = _as_array("history", own, "(n, H, q)")
    if x0 is None:
        if past is None or not past.shape[1]:
            raise ValueError(_NO_START)
        x0 = np.stack([choose_x0(policy, _last_context(policy, own)) for policy, own in zip(each, past, strict=True)])
    if past is None:
        past = np.zeros((n, 0, infer_context_dim(policies[0], x0.shape[-1])))
    past = np.stack([_impute_covariates(policy, own) for policy, own in zip(each, past, strict=True)])
    Instance(x0, np.zeros((n, 1, past.shape[-1])), past)  # checks shapes and numbers
    for number, policy in enumerate(policies):
        _check_width(policy, past.shape[-1])
        starts = x0 if len(policies) == 1 else x0[number : number + 1]
        for extreme in (np.min, np.max):  # a bounded action set is a box
            policy.problem.immediate.check(Instance(extreme(starts, axis=0), np.zeros((1, past.shape[-1]))))
    longest = max((trim_history(policy, past) for policy in policies), key=lambda history: history.shape[1])
    return _make_start(policies[0], x0, longest)


def choose_x0(policy: Policy, context: np.ndarray) -> np.ndarray:
    """Return the action that a run starts from after a context (q,): the cheapest one for it, (d,).

    Raises:
        ValueError: The policy takes contexts of another number of columns.
    """
    _check_width(policy, len(context))
    dim = infer_action_dim(policy.problem, len(context)) or 1  # movement charged by distance is solved on a line
    policy.problem.hitting.check(dim, len(context))
    return np.asarray(_find_minimizer(policy.problem, to_device(context), dim))


def _last_context(policy: Policy, past: Float[np.ndarray, "H q"]) -> Float[np.ndarray, " q"]:
    """Return the last context of a history; the last plausible one if it is implausible."""
    last, ranges = past[-1], np.array(policy.contract.plausible or np.zeros((0, 2)))
    if (
        policy.contract.screen is None
        or len(ranges) != len(last)
        or ((ranges[:, 0] <= last) & (last <= ranges[:, 1])).all()
    ):
        return last
    return np.asarray(policy.contract.screen.apply(to_device(past))[0][-1])


def _ignore_advice(policy: Policy, past: np.ndarray | None) -> np.ndarray | None:
    """Return a history with zeros for the advice, which was of use in its own steps only and may be left out."""
    count, width = len(policy.contract.advice), policy.contract.context_dim
    if past is None or not count or width is None or past.shape[-1] not in (width, width - count):
        return past
    return np.pad(past[..., : width - count], [*[(0, 0)] * (past.ndim - 1), (0, count)])


def _impute_covariates(policy: Policy, past: Float[np.ndarray, "H q"]) -> Float[np.ndarray, "H q"]:
    """Return a history without missing covariates, as a run imputes them."""
    screen, core = policy.contract.screen, past.shape[1] - policy.problem.covariates
    if screen is None or screen.low.shape[0] != past.shape[1] or np.isfinite(past[:, core:]).all():
        return past
    used = screen.apply(past)[0]
    return np.concatenate(
        [past[:, :core], np.where(np.isfinite(past[:, core:]), past[:, core:], used[:, core:])], axis=1
    )


def start_state(policy: Policy, x0: Float[np.ndarray, "*n d"], history: Float[np.ndarray, "*n H q"]):
    """Return the state that a run of one stream, or of many, starts from; the action itself if it is in force at once.

    Contexts that are known ahead are read from the history, as a run uses them.

    Raises:
        ValueError: The history is shorter than the contexts are known ahead.
    """
    screen = policy.contract.screen
    if policy.contract.shift < 0 and screen is not None:
        history = screen.apply(history)[0] if x0.ndim == 1 else np.stack([screen.apply(own)[0] for own in history])
    return np.asarray(policy.problem.start_state(x0, history))


def trim_history(policy: Policy, history: Float[np.ndarray, "*n H q"]) -> Float[np.ndarray, "*n K q"]:
    """Return the end of a history (..., H, q) that the policy uses: as much as its own, at least `history_steps`.

    A policy whose contract does not say `history_steps` uses all of it.
    """
    if policy.contract.history_steps is None:
        return history
    own = 0 if policy.history is None else len(policy.history)  # a regression learns from more than it needs
    return history[..., max(history.shape[-2] - max(policy.contract.history_steps, own), 0) :, :]


def infer_context_dim(policy: Policy, dim: int) -> int:
    """Return q, from the contract, the policy's own history, or a cost that determines it for actions (dim,).

    Raises:
        ValueError: None of them does.
    """
    hitting = policy.problem.hitting
    if policy.contract.context_dim is not None:
        return policy.contract.context_dim
    if policy.history is not None:
        return policy.history.shape[1]
    if hitting.is_quadratic or hitting.is_two_sided:
        least = dim + policy.problem.covariates
        return next((q for q in (least, least + 1) if hitting_fits(hitting, dim, q)), least)
    raise ValueError(
        f"the cost {type(hitting).__name__} does not determine how many numbers a context has: give a `history` of "
        "contexts, or a policy whose contract has context_dim."
    )


def working_dtype() -> np.dtype:
    """Return JAX's floating-point type: float64 where 64-bit mode is on, else float32."""
    return np.dtype(jnp.result_type(float))


def check_memory(policy: Policy, name: str, limit: int = MOST_BYTES) -> ProgramSize | None:
    """Raise if one stream of a policy would take too much memory; nothing is allocated. Return the size of its program.

    None if it cannot run: the runner reports why.

    Args:
        policy: The policy to run.
        name: Its file's name in the message.
        limit: The most bytes for a stream's state, and for what one operation of a step allocates.

    Raises:
        PolicyFileError: The policy takes more.
    """
    dim, dtype = policy.dim or 1, working_dtype()
    try:
        context_dim = infer_context_dim(policy, dim)
        dim = policy.problem.state_size(dim, context_dim)
        stepper = cast_floats(Stepper(policy.agent, policy.problem, policy.forecaster, policy.contract.screen), dtype)
        seen = 0 if policy.history is None else len(policy.history)

        def measure() -> tuple[int, int, int]:
            x0, context = (jax.ShapeDtypeStruct((size,), dtype) for size in (dim, context_dim))
            to_begin = jax.make_jaxpr(
                lambda *known: stepper.init(Start(*known, horizon=1)), return_shape=True
            )  # or any
            begin, state = to_begin(x0, jax.ShapeDtypeStruct((seen, context_dim), dtype))
            state_bytes = count_bytes(jax.tree.leaves(state))
            check_stream_bytes(state_bytes, limit)  # before the step is traced, which may make tables as long
            step = jax.make_jaxpr(stepper.step)(state, context).jaxpr
            return state_bytes, largest_allocation(step), count_equations(begin.jaxpr) + count_equations(step)

        state_bytes, *size = cache_numbers(stepper, RunShape(dim, context_dim, seen, 1), dtype, "memory", measure)
        check_stream_bytes(state_bytes, limit)
        check_stream_bytes(size[0], limit)
        return ProgramSize(*size)
    except MemoryLimitError as error:
        raise PolicyFileError(f"{name} cannot be used: {error}") from None
    except (ValueError, TypeError):
        return None


def _as_array(name: str, values: Any, shape: str, hint: str = "") -> Any:
    if values is None:
        return None
    try:
        array = np.array(values, working_dtype())
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in rows of equal length.") from None
    if array.ndim != shape.count(",") + (shape[-2] != ","):
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}{hint}.")
    return array


def _check_width(policy: Policy, width: int) -> None:
    expected = policy.contract.context_dim
    if expected is not None and width != expected:
        raise ValueError(f"the policy takes contexts of {expected} numbers, but these have {width}; name the columns.")


def _make_start(policy: Policy, x0: np.ndarray, past: np.ndarray) -> RunStart:
    """Check the size of the numbers, and cast them; a screen replaces contexts that are too large."""
    checked = {"x0": x0} | ({"history": past} if policy.contract.plausible is None else {})
    for name, numbers in checked.items():
        largest = np.max(np.abs(numbers), initial=0.0)
        if not largest <= _LARGEST:
            raise ValueError(f"{name} has a number of size {largest:g}; costs are computed up to {_LARGEST:g}.")
    return RunStart(x0.astype(working_dtype()), past.astype(working_dtype()))
