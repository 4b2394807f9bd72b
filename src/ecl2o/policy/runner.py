"""Runners: policies stepped through live streams, NumPy in and NumPy out, with a state that survives a restart."""

import abc
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Bool, Float

from ecl2o.agents import Info, Start
from ecl2o.agents.timed import follow_timing
from ecl2o.exceptions import PolicyFileError
from ecl2o.json_text import shorten
from ecl2o.policy import policy_file
from ecl2o.policy.advice import attach_advice
from ecl2o.policy.clock import StepClock, Time
from ecl2o.policy.contract import describe_validation_error
from ecl2o.policy.executable_cache import compile_cached
from ecl2o.policy.policy import Policy
from ecl2o.policy.policy_file import Contents
from ecl2o.policy.start_run import RunStart, find_start, find_starts, start_state, working_dtype
from ecl2o.problem.arrays import cast_floats, to_device
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import CompiledStepper, RunShape, StepFunctions, StepOutput, Vectors, compile_stepper

_KIND = "runner"
_MOST_NUMBERS = 1 << 26  # in a start that a state file asks for
_FEW = 32
_MOST_SHOWN = 8  # numbers of a context in a message


class RunnerState(TypedDict):
    """All that changes from step to step."""

    steps: int
    totals: np.ndarray  # (*n, 3 or 5): hitting, switching, unconverged steps; if screened, replaced and stuck contexts
    carried: list[np.ndarray]  # the vectors that the compiled step carries on


class AbstractRunner(abc.ABC):
    """A policy in the middle of a run, of one stream or of many.

    Works in 64 bits if JAX does, else in 32. A rejected context changes nothing. Not thread-safe.
    """

    _carried: Vectors

    @abc.abstractmethod
    def _prepare(self, steppers: list[Stepper]) -> tuple[CompiledStepper, StepFunctions, list[Any]]:
        """Return the first policy's program, the functions for one stream or for many, and the arrays that they take."""

    @abc.abstractmethod
    def _compile(self) -> None:
        """Make a step and discard its result."""

    def _start(self, policies: Sequence[Policy], start: RunStart, horizon: int | None, place: int) -> None:
        if horizon is not None and (type(horizon) is not int or horizon < 1):
            raise ValueError(f"horizon must be a positive whole number of steps, or None, got {horizon!r}.")
        history = start.history
        x0 = start_state(policies[0], start.x0, history)
        first, past = (x0, history) if x0.ndim == 1 else (x0[0], history[0])
        for policy in policies:  # here the numbers are known that an agent may reject
            begin = Start(to_device(first), to_device(past), horizon)
            follow_timing(policy.agent, policy.problem).check(policy.problem, begin)
        sizes = RunShape(x0.shape[-1], history.shape[-1], history.shape[-2], horizon)
        arrays, program = self._assemble(policies, sizes, x0.shape[:-1])
        self._shared, carried = self._compiled.begin(arrays, x0, history)
        self._carried = program.set_clock(carried, place)
        self._compile()

    def _assemble(
        self, policies: Sequence[Policy], sizes: RunShape, streams: tuple[int, ...]
    ) -> tuple[list[Any], CompiledStepper]:
        """Set up everything but the run's own numbers. Return the arrays of the policies and their program."""
        self._policies, self._sizes, self._dtype = list(policies), sizes, working_dtype()
        self._action_dim = policies[0].problem.action_size(sizes.dim)
        self._is_screened = policies[0].contract.screen is not None
        self._takes_advice = bool(policies[0].contract.advice)
        self._measured = sizes.context_dim - len(policies[0].contract.advice)  # numbers of a context before the advice
        self._streams = streams[0] if streams else None
        self._context_shape = (*streams, sizes.context_dim)
        steppers = [Stepper(each.agent, each.problem, each.forecaster, each.contract.screen) for each in policies]
        program, self._compiled, arrays = self._prepare([cast_floats(stepper, self._dtype) for stepper in steppers])
        self._totals = np.zeros((*streams, StepOutput.costs_length(self._is_screened)))
        self._steps = 0
        self._last: tuple[Any, np.ndarray] | None = None
        self._last_info: Info | None = None
        self._last_figures: dict[str, Any] | None = None
        return arrays, program

    @property
    def _front(self) -> StepOutput:
        return StepOutput.read(np.asarray(self._carried[0]), self._sizes, self._is_screened)

    def _check_horizon(self) -> None:
        if self._sizes.horizon is not None and self._steps >= self._sizes.horizon:
            raise ValueError(f"all {self._sizes.horizon} steps of the horizon have been played.")

    @property
    def policy(self) -> Policy:
        """The policy; the first one if each stream has its own."""
        return self._policies[0]

    @property
    def dtype(self) -> np.dtype:
        """The working precision: JAX's when the runner was made. Promises hold in 64 bits."""
        return self._dtype

    @property
    def steps(self) -> int:
        """The number of steps so far; of many streams, the number of calls."""
        return self._steps

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._sizes.context_dim

    @property
    def is_screened(self) -> bool:
        """Whether contexts are screened, because the policy has plausible ranges."""
        return self._is_screened

    @property
    def action(self) -> Float[np.ndarray, "*n d"]:
        """The last action, in force or not; x0 before the first step."""
        return self._latest_action()

    def _latest_action(self) -> Float[np.ndarray, "*n d"]:
        """Return the action of the last step; a state begins with it."""
        return self._front.action[..., : self._action_dim].copy()

    @property
    def context(self) -> Float[np.ndarray, "*n q"] | None:
        """The context that the last step used; None before the first step, and if contexts are not screened."""
        used = self._front.context
        return None if used is None or not self._steps else used.copy()

    @property
    def hitting(self) -> Float[np.ndarray, "*n"]:
        """The sum of f(x_t, y_t) so far, for the contexts that were used."""
        return self._totals[..., 0].copy()

    @property
    def switching(self) -> Float[np.ndarray, "*n"]:
        """The sum of c(x_t, x_{t-1}) so far."""
        return self._totals[..., 1].copy()

    @property
    def cost(self) -> Float[np.ndarray, "*n"]:
        """The cost so far, hitting and switching."""
        return np.asarray(self._totals[..., 0] + self._totals[..., 1])

    @property
    def unconverged(self) -> Float[np.ndarray, "*n"]:
        """The number of steps with a solve that did not converge."""
        return self._totals[..., 2].copy()

    @property
    def screened(self) -> Float[np.ndarray, "*n"]:
        """The number of steps whose context was replaced, because it was missing or implausible."""
        return self._totals[..., 3].copy() if self._is_screened else np.zeros_like(self._totals[..., 2])

    @property
    def stuck(self) -> Float[np.ndarray, "*n"]:
        """The number of steps with a reading that had not changed for longer than the contract's `stuck_after`."""
        return self._totals[..., 4].copy() if self._is_screened else np.zeros_like(self._totals[..., 2])

    @property
    def stuck_numbers(self) -> Bool[np.ndarray, "*n q"]:
        """Which numbers of the last context had not changed for longer than the contract's `stuck_after`."""
        stuck = self._front.stuck
        return np.zeros(self._context_shape, bool) if stuck is None else stuck > 0

    @property
    def info(self) -> Info | None:
        """The agent's `Info` about the last step, computed on demand; None before the first step."""
        if self._last_info is None and self._last is not None:
            carried, context = self._last
            info = self._compiled.inspect(self._shared, carried, context)
            self._last_info = jax.tree.map(jnp.array, info)  # a copy: the next step may reuse the memory
        return self._last_info

    @property
    def live_ratio(self) -> Float[np.ndarray, "*n"] | None:
        """Cost over the optimum so far, if the agent computes it (`Competitive` does); else None.

        An agent that plays another action than the guard inside it proposes has none: the guard's costs are not its own.
        """
        return self.figures.get("live_ratio")

    @property
    def promises_left(self) -> Float[np.ndarray, "*n"] | None:
        """What each promise of a guard still allows, in units of cost: one number, or one for each; None without a guard."""
        return self.figures.get("lefts", self.figures.get("left"))

    @property
    def figures(self) -> dict[str, np.ndarray]:
        """The arrays in the details of the agent's `Info` about the last step, by name; empty before the first step."""
        if self._last_figures is None and self._last is not None:
            carried, context = self._last
            found = self._compiled.figures(self._shared, carried, context)
            self._last_figures = {name: np.array(figure) for name, figure in found.items()}
        return self._last_figures or {}

    def state_dict(self) -> RunnerState:
        """Return a copy of all that changes from step to step."""
        carried = [np.array(vector) for vector in self._carried]
        return RunnerState(steps=self._steps, totals=self._totals.copy(), carried=carried)

    def load_state_dict(self, state: RunnerState) -> None:
        """Continue from a state of a runner of the same policy and sizes.

        Raises:
            ValueError: The state is of other sizes, or of another precision.
        """
        steps, totals, carried = state["steps"], np.asarray(state["totals"]), list(map(np.asarray, state["carried"]))
        pairs = [(totals, self._totals), *zip(carried, self._carried, strict=False)]
        same = all(new.shape == old.shape and new.dtype == old.dtype for new, old in pairs)
        if not same or len(carried) != len(self._carried) or type(steps) is not int or steps < 0:
            raise ValueError(
                "this state is of a runner with other sizes, another precision or another version of ecl2o."
            )
        self._steps, self._totals = steps, totals.copy()
        self._carried = tuple(jax.device_put(vector.copy()) for vector in carried)
        self._last, self._last_info, self._last_figures = None, None, None

    def save_state(self, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
        """Write the state to a file, whole or not at all. It has the policy's fingerprint, not the policy.

        Args:
            path: The file; an existing one is replaced.
            notes: A JSON object to keep beside the state, in `read_state(path)[0].notes`.
        """
        state, sizes = self.state_dict(), dataclasses.asdict(self._sizes)
        owner, steps = _fingerprint(self._policies), state["steps"]
        header = StateHeader(policy=owner, streams=self._streams, steps=steps, notes=notes or {}, **sizes)
        policy_file.write(path, Contents(_KIND, header.model_dump(), [state["totals"], *state["carried"]]))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, bit for bit as without the interruption.

        Raises:
            PolicyFileError: The file is not the state of a runner of this policy and these sizes.
        """
        header, arrays = read_state(path)
        _check_owner(header, self._policies, path)
        if (header.sizes, header.streams) != (self._sizes, self._streams):
            raise PolicyFileError(f"{os.fspath(path)} is the state of a runner with other sizes or horizon.")
        self._restore(header, arrays, path)

    def _restore(self, header: "StateHeader", arrays: list[np.ndarray], path: str | os.PathLike[str]) -> None:
        totals, *carried = arrays or [np.zeros(0)]
        try:
            self.load_state_dict({"steps": header.steps, "totals": totals, "carried": carried})
        except ValueError as error:
            raise PolicyFileError(f"{os.fspath(path)} does not fit: {error}") from None

    @classmethod
    def resume(cls, policy: Policy | Sequence[Policy], path: str | os.PathLike[str]):
        """Return a runner that continues where another one of the same policy was saved.

        Raises:
            PolicyFileError: The file is not the state of a runner of this policy.
        """
        (header, stored), policies = read_state(path), [policy] if isinstance(policy, Policy) else list(policy)
        _check_owner(header, policies, path)
        sizes, streams = header.sizes, header.streams
        if (cls is BatchRunner) != (streams is not None):
            other = "one stream; use Runner" if streams is None else f"{streams} streams; use BatchRunner"
            raise PolicyFileError(f"{os.fspath(path)} is the state of {other}.")
        leading = () if streams is None else (streams,)
        try:
            for each in policies:
                dim = each.problem.action_size(sizes.dim)
                each.problem.switching.check(dim)
                each.problem.hitting.check(dim, sizes.context_dim)
        except ValueError as error:
            raise PolicyFileError(f"{os.fspath(path)} does not fit the policy's problem: {error}") from None
        runner = cls.__new__(cls)
        arrays, program = runner._assemble(policies, sizes, leading)
        runner._shared = runner._compiled.share(arrays)
        runner._carried = tuple(np.zeros((*leading, *spec.shape), spec.dtype) for spec in program.carried)
        runner._restore(header, stored, path)
        runner._compile()
        return runner


_Count = Annotated[int, pydantic.Field(gt=0, lt=_MOST_NUMBERS)]


class StateHeader(pydantic.BaseModel, strict=True, frozen=True):
    """The header of a state file: whose state it is, its sizes, its steps, and notes of the caller."""

    policy: str
    streams: _Count | None = None
    dim: _Count
    context_dim: _Count
    seen: int = pydantic.Field(ge=0, lt=_MOST_NUMBERS)
    horizon: _Count | None = None
    steps: int = pydantic.Field(ge=0)
    notes: dict[str, Any] = {}

    @property
    def sizes(self) -> RunShape:
        """The sizes of the run."""
        return RunShape(self.dim, self.context_dim, self.seen, self.horizon)


def read_state(path: str | os.PathLike[str]) -> tuple[StateHeader, list[np.ndarray]]:
    """Return the header and the arrays of a state file.

    Raises:
        PolicyFileError: The file is damaged, is not a state, or has impossible sizes.
    """
    contents = policy_file.read(path, _KIND)
    try:
        header = StateHeader.model_validate(contents.header)
    except pydantic.ValidationError as error:
        raise PolicyFileError(f"{os.fspath(path)} is not a state: {describe_validation_error(error)}.") from None
    if max(header.dim, (header.seen + 1) * header.context_dim) * (header.streams or 1) > _MOST_NUMBERS:
        raise PolicyFileError(f"{os.fspath(path)} has sizes of more than {_MOST_NUMBERS} numbers.")
    return header, contents.arrays


def _fingerprint(policies: list[Policy]) -> str:
    if len(policies) == 1:
        return policies[0].fingerprint
    return policy_file.digest([policy.fingerprint.encode() for policy in policies])


def _check_owner(header: StateHeader, policies: list[Policy], path: str | os.PathLike[str]) -> None:
    if header.policy != _fingerprint(policies):
        raise PolicyFileError(
            f"{os.fspath(path)} is the state of another policy, or of other bounds. Start a new state, "
            "or use the policy and the bounds that this one was started with."
        )


class BatchReport(NamedTuple):
    """What happened to each stream in the last call.

    Args:
        answered: (n,), whether it made a step.
        replaced: (n,), whether it made the step with another context, because the given one was missing or implausible.
        rejected: (n,), whether it was asked, but had no usable context or no finite action; its state is unchanged.
        stuck: (n,), whether it made the step with a reading that had not changed for longer than the contract's `stuck_after`.
    """

    answered: Bool[np.ndarray, " n"]
    replaced: Bool[np.ndarray, " n"]
    rejected: Bool[np.ndarray, " n"]
    stuck: Bool[np.ndarray, " n"]


class BatchRunner(AbstractRunner):
    """Many independent streams, stepped in one call; made by `Runner.many`.

    A stream with a missing or a bad reading does not hold up the others: `report` says what happened to each.

    Args:
        policy: One policy, or n policies of one structure, for example fitted for n sites with the same settings.
        x0: (n, d), the actions in force before the first step. Default: for each stream the cheapest for its last context.
        history: (n, H, q), the contexts before the first step. Default: the policies' own, or none.
        horizon: The number of steps. Default: the run has no known end.
        start_time: The time of the first step, as for `Runner`; the same for all streams.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> sites = ec.Runner.many(ec.Policy(ec.Greedy(), problem), x0=[[0.0], [0.0], [0.0]])
    >>> sites.step([[3.0], [3.0], [float("nan")]], mask=[True, False, True]).ravel().tolist()
    [1.0, 0.0, 0.0]
    >>> sites.report.answered.tolist(), sites.report.rejected.tolist()
    ([True, False, False], [False, False, True])
    """

    def __init__(
        self,
        policy: Policy | Sequence[Policy],
        x0: Any = None,
        history: Any = None,
        horizon: int | None = None,
        start_time: Time = None,
    ):
        policies = [policy] if isinstance(policy, Policy) else list(policy)
        place = StepClock(policies[0]).find_place(start_time, history is None)
        self._start(policies, find_starts(policies, x0, history), horizon, place)

    def step(self, contexts: Any, mask: Any = None) -> Float[np.ndarray, "n d"]:
        """Step the streams and return the actions in force, (n, d).

        Args:
            contexts: (n, q). NaN where a reading is missing: the last plausible one replaces it if the policy has plausible
                ranges, else the stream makes no step.
            mask: (n,), False for streams that make no step now. Default: all make one.

        Raises:
            ValueError: contexts or mask are of another shape, or the horizon has passed.
        """
        given = _validate_context(contexts, self._context_shape, self._dtype, gaps=True)
        asked = np.ones(len(given), bool) if mask is None else np.asarray(mask)
        if asked.dtype != bool or asked.shape != (len(given),):
            raise ValueError(f"mask must be {len(given)} truth values, got {asked.dtype} of shape {asked.shape}.")
        self._check_horizon()
        usable = asked if self._is_screened else asked & np.isfinite(given[:, : self._measured]).all(axis=1)
        safe = np.where(usable[:, None], given, 0.0).astype(self._dtype)
        carried, stepped = self._compiled.advance(self._shared, self._carried, self._take_spare(), safe, usable)
        answered = np.asarray(stepped)
        self._last = self._carried, safe
        self._carried, self._steps = carried, self._steps + 1
        front = self._front
        self._totals = self._totals + np.where(answered[:, None], front.costs, 0.0)
        flags = front.costs[:, 3:] > 0 if self._is_screened else np.zeros((len(answered), 2), bool)
        replaced, stuck = (answered[:, None] & flags).T
        self._report = BatchReport(answered, replaced, asked & ~answered, stuck)
        return self._latest_action()

    @property
    def report(self) -> BatchReport | None:
        """What happened to each stream in the last call; None before the first."""
        return self._report

    @property
    def policies(self) -> list[Policy]:
        """One policy, or one for each stream."""
        return list(self._policies)

    def _prepare(self, steppers: list[Stepper]) -> tuple[CompiledStepper, StepFunctions, list[Any]]:
        self._report: BatchReport | None = None
        programs = [compile_stepper(stepper, self._sizes, self._dtype) for stepper in steppers]
        first, arrays = programs[0]
        if len(programs) == 1:
            return first, first.streams(None), arrays
        for number, (program, _) in enumerate(programs):
            if program is not first:
                raise ValueError(
                    f"policies that run together must have one structure: policy {number} has other parts, sizes or settings "
                    "than policy 0. Fit them with the same settings, or run them in groups."
                )
        arrays = [np.stack(leaves) for leaves in zip(*(own for _, own in programs), strict=True)]
        return first, first.streams(0), arrays

    def _take_spare(self) -> Vectors:
        """Return memory for the next state: that of the state before the last step, which is not readable afterwards."""
        last, self._last, self._last_info, self._last_figures = self._last, None, None, None
        return jax.tree.map(jnp.empty_like, self._carried) if last is None else last[0]

    def _compile(self) -> None:
        contexts, none = np.zeros(self._context_shape, self._dtype), np.zeros(len(self._totals), bool)
        jax.block_until_ready(self._compiled.advance(self._shared, self._carried, self._take_spare(), contexts, none))


class Runner(AbstractRunner):
    """A policy on one stream: `step` takes a context (q,) and returns an action (d,).

    If the policy has plausible ranges, the last plausible context replaces one that is implausible or has numbers missing
    (None, NaN; see `Screen`): `context` is the one that was used, `replaced` whether it is not the given one, and `screened`
    counts them.

    Args:
        policy: Made by `Policy(...)` or `load`.
        x0: (d,), the action in force before the first step. Default: the cheapest for the last context of the history.
        history: (H, q), the contexts before the first step, of which the policy takes what it uses. Default: the policy's own,
            or none. If neither the policy nor its cost determines q, give an empty one of shape (0, q).
        horizon: The number of steps, for agents that must know when the run ends. Default: the run has no known end.
        start_time: The time of the first step on the policy's clock, a datetime or ISO text. A promise for each day is renewed
            when the policy's days start, so the first period may be shorter. Default: one step after the policy's own history
            if that is used, else the start of a period. The history must end one step before it.

    Raises:
        ValueError: x0, history, horizon or start_time do not fit the policy.

    For the shortest steps, run programs in the calling thread: `jax.config.update("jax_cpu_enable_async_dispatch", False)`
    before JAX is first used (benchmarks/runner.py).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> runner = Runner(Policy(ec.Greedy(), problem), x0=[0.0])
    >>> [round(float(runner.step(context)[0]), 4) for context in ([3.0], [3.0])]
    [1.0, 1.6667]
    """

    def __init__(
        self,
        policy: Policy,
        x0: Any = None,
        history: Any = None,
        horizon: int | None = None,
        start_time: Time = None,
    ):
        place = StepClock(policy).find_place(start_time, history is None)
        self._start([policy], find_start(policy, x0, history), horizon, place)

    def step(self, context: Any, advice: Any = None) -> Float[np.ndarray, " d"]:
        """Return the action (d,) for a context (q,).

        Args:
            context: (q,); of a policy that takes advice, the advice is the last of them, unless it is given apart.
            advice: (d,), what somebody else would play, NaN or None where it is missing. Default: as in the context, or missing.

        Raises:
            ValueError: The context is not q numbers, or the horizon has passed. The state is unchanged.
            FloatingPointError: There is no finite action, or no plausible context yet. The state is unchanged.
        """
        if self._takes_advice or advice is not None:
            apart = None if advice is None else _as_list(advice)
            sizes = self.context_dim, self.context_dim - self._measured
            joined = attach_advice(_as_list(context), apart, *sizes, self.policy.contract.columns)
            context = [math.nan if number is None else number for number in joined]
        gaps = self._is_screened or self._takes_advice
        given = _validate_context(context, self._context_shape, self._dtype, gaps)
        if gaps and not self._is_screened:
            _check_finite(given[: self._measured])
        self._check_horizon()
        carried = self._compiled.advance(self._shared, self._carried, given)
        vector, dim = np.asarray(carried[0]), self._sizes.dim
        made = vector[: dim + len(self._totals)]  # the action and the costs
        if not _is_finite(made):
            used = StepOutput.read(vector, self._sizes, self._is_screened).context
            raise FloatingPointError(explain_failed_step(given, used, self.policy.contract.plausible))
        self._last, self._last_info, self._last_figures = (self._carried, given), None, None
        self._carried, self._steps = carried, self._steps + 1
        self._totals = self._totals + made[dim:]
        return made[: self._action_dim].copy()

    @property
    def replaced(self) -> bool:
        """Whether the last step used another context than the given one."""
        return self._is_screened and bool(self._front.costs[3])

    @property
    def is_unconverged(self) -> bool:
        """Whether the last step had a solve that did not converge."""
        return bool(self._front.costs[2])

    @staticmethod
    def many(
        policy: Policy | Sequence[Policy],
        x0: Any = None,
        history: Any = None,
        horizon: int | None = None,
        start_time: Time = None,
    ) -> BatchRunner:
        """Return a `BatchRunner`: n streams of one policy, or of n policies of one structure, stepped in one call."""
        return BatchRunner(policy, x0, history, horizon, start_time)

    def _prepare(self, steppers: list[Stepper]) -> tuple[CompiledStepper, StepFunctions, list[Any]]:
        program, arrays = compile_cached(steppers[0], self._sizes, self._dtype)
        return program, program.one, arrays

    def _compile(self) -> None:
        context = np.zeros(self._context_shape, self._dtype)
        jax.block_until_ready(self._compiled.advance(self._shared, self._carried, context))


def _validate_context(context: Any, shape: tuple[int, ...], dtype: np.dtype, gaps: bool) -> np.ndarray:
    """Return a context as an array, finite unless `gaps` (None, NaN, infinite or masked numbers) are allowed."""
    array = _fill_gaps(context, shape, dtype) if gaps else _as_array(context)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"the context must be numbers, got {shorten(context)}.")
    if array.shape != shape:
        raise ValueError(f"the context must have shape {shape}, got {array.shape}.")
    if array.dtype is not dtype:
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    if not gaps:
        _check_finite(array)
    return array


def _check_finite(array: np.ndarray) -> None:
    if not _is_finite(array):
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ValueError(f"the context must be finite, but context{where} is {array[tuple(where)]}.")


def _as_list(numbers: Any) -> list[Any]:
    return numbers if isinstance(numbers, list) else np.atleast_1d(numbers).tolist()


def _is_finite(array: Float[np.ndarray, " n"]) -> bool:
    """Return `np.isfinite(array).all()`, ten times faster for a few numbers: a finite sum has finite terms."""
    if array.size <= _FEW and math.isfinite(sum(array.tolist())):
        return True
    return bool(np.isfinite(array).all())


def explain_failed_step(
    context: Sequence[float | None] | np.ndarray, used: Any, plausible: Sequence[tuple[float, float]] | None
) -> str:
    """Return the message for a context (q,) that has no finite action.

    `used` is the context that replaced it, not finite where no plausible one is known; None if it was not replaced.

    >>> explain_failed_step([100.0], [math.nan], [(0.0, 45.0)])[:67]
    'the context (100) is missing or outside the plausible range 0 to 45'
    """
    cells = ["missing" if entry is None or math.isnan(entry) else f"{float(entry):.6g}" for entry in context]
    given = ", ".join(cells[:_MOST_SHOWN]) + (", ..." if len(cells) > _MOST_SHOWN else "")
    if plausible is None or used is None or np.isfinite(np.asarray(used, float)).all():
        return f"the policy has no finite action for the context ({given}); the state is unchanged."
    limited = [(low, high) for low, high in plausible if math.isfinite(low) or math.isfinite(high)]
    ranges = ", ".join(f"{low:g} to {high:g}" for low, high in limited[:_MOST_SHOWN])
    return (
        f"the context ({given}) is missing or outside the plausible range {ranges}, and there is no earlier one to use "
        "instead. Start from a `history` of contexts, or send a plausible context first."
    )


def _fill_gaps(context: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if context is None:
        return np.full(shape, np.nan, dtype)
    if isinstance(context, np.ma.MaskedArray):
        return np.ma.filled(context.astype(dtype), np.nan)
    array = _as_array(context)
    if array.dtype == object and all(entry is None or type(entry) in (int, float) for entry in array.ravel()):
        return array.astype(dtype)
    return array


def _as_array(context: Any) -> np.ndarray:
    if isinstance(context, np.ma.MaskedArray):
        raise ValueError("the context must not be a masked array; fill the gaps first.")
    try:
        return np.array(context)
    except ValueError:
        raise ValueError(f"the context must be numbers in an array, got {shorten(context)}.") from None
