"""A policy in the middle of a run, of one stream or of many: what both kinds of runner share.

Many sites in one call, each with a report of its own.

Policies in production: NumPy in, NumPy out, one context at a time, with a state that survives a restart.
"""

import abc
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ecl2o.agents import Info, Start
from ecl2o.exceptions import PolicyFileError
from ecl2o.policy import policy_file
from ecl2o.policy.context_validation import explain_failed_step, is_finite, validate_context
from ecl2o.policy.executable_cache import pack_cached
from ecl2o.policy.policy import Policy
from ecl2o.policy.policy_file import Contents
from ecl2o.problem import AbstractQuadraticCost, Instance, Problem
from ecl2o.problem.arrays import cast_floats, to_device, to_host
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import CompiledStepper, RunShape, StepFunctions, StepOutput, Vectors, compile_stepper

_KIND = "runner"
_MOST_NUMBERS = 1 << 26  # in a start that a state file asks for


class AbstractRunner(abc.ABC):
    """A policy in the middle of a run, of one stream or of many.

    Works in 64 bits if JAX does, else in 32. A refused context leaves everything as it was. Not for several threads at once.
    """

    _policies: list[Policy]
    _sizes: RunShape
    _streams: int | None
    _carried: Vectors
    _bill: np.ndarray
    _front: StepOutput
    _steps: int

    @staticmethod
    @abc.abstractmethod
    def _check_axes(x0: np.ndarray) -> None:
        """Refuse an x0 for another number of streams."""

    @abc.abstractmethod
    def _prepare(self, programs: list[tuple[CompiledStepper, list[Any]]]) -> tuple[StepFunctions, list[Any]]:
        """The functions for one stream, or for many, and the arrays that they take; from those of each policy."""

    @staticmethod
    def _pack(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
        """A policy's programs, and the arrays of the stepper that they take."""
        return compile_stepper(stepper, sizes, dtype)

    @abc.abstractmethod
    def _compile(self) -> None:
        """Make a step whose outcome nobody needs."""

    def _begin(self, policies: Sequence[Policy], sizes: RunShape, x0: Any, history: Any) -> None:
        """A run from its beginning, where the numbers are known that an agent may refuse."""
        first, past = (x0, history) if x0.ndim == 1 else (to_host(x0)[0], to_host(history)[0])
        for policy in policies:
            policy.agent.check(policy.problem, Start(to_device(first), to_device(past), sizes.horizon))
        arrays, _ = self._assemble(policies, sizes, x0.shape[:-1])
        self._shared, self._carried = self._compiled.begin(arrays, x0, history)
        self._front = self._read_front()
        self._compile()

    def _assemble(
        self, policies: Sequence[Policy], sizes: RunShape, streams: tuple[int, ...]
    ) -> tuple[list[Any], CompiledStepper]:
        """Everything but the run's own numbers; the arrays of the policies and their program."""
        dtype, programs = working_dtype(), []
        for policy in policies:
            stepper = Stepper(policy.agent, policy.problem, policy.forecaster, policy.contract.screen)
            programs.append(self._pack(cast_floats(stepper, dtype), sizes, dtype))
        self._policies, self._sizes, self._dtype = list(policies), sizes, dtype
        self._is_screened = policies[0].contract.screen is not None
        self._streams = streams[0] if streams else None
        self._expected = (*streams, sizes.context_dim)
        self._compiled, arrays = self._prepare(programs)
        self._bill = np.zeros((*streams, StepOutput.costs_length(self._is_screened)))
        self._steps = 0
        self._last: tuple[Any, np.ndarray] | None = None
        self._last_info: Info | None = None
        return arrays, programs[0][0]

    def _read_front(self) -> StepOutput:
        return StepOutput.read(np.asarray(self._carried[0]), self._sizes, self._is_screened)

    def _refuse_after_horizon(self) -> None:
        if self._sizes.horizon is not None and self._steps >= self._sizes.horizon:
            raise ValueError(f"all {self._sizes.horizon} steps of the horizon have been played.")

    @property
    def policy(self) -> Policy:
        """What is being run; the first one where each stream has its own."""
        return self._policies[0]

    @property
    def dtype(self) -> np.dtype:
        """The precision it works in, JAX's when it was made. Promises are made for 64 bits."""
        return self._dtype

    @property
    def steps(self) -> int:
        """How many contexts have been answered; of many streams, how many times they were stepped."""
        return self._steps

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._sizes.context_dim

    @property
    def is_screened(self) -> bool:
        """Whether contexts are screened: the policy says which are plausible."""
        return self._is_screened

    @property
    def action(self) -> Float[np.ndarray, "*n d"]:
        """The last action; x0 before the first step."""
        return self._front.action.copy()

    @property
    def context(self) -> Float[np.ndarray, "*n q"] | None:
        """The context that the last step used, which is another one than was given where that was not believed.

        None before the first step, and where contexts are not screened.
        """
        return None if self._front.context is None or not self._steps else self._front.context.copy()

    @property
    def hitting(self) -> Float[np.ndarray, "*n"]:
        """The sum of f(x_t, y_t) so far, with the contexts that were used."""
        return self._bill[..., 0].copy()

    @property
    def switching(self) -> Float[np.ndarray, "*n"]:
        """The sum of c(x_t, x_{t-1}) so far."""
        return self._bill[..., 1].copy()

    @property
    def cost(self) -> Float[np.ndarray, "*n"]:
        """The bill so far, hitting and switching."""
        return np.asarray(self._bill[..., 0] + self._bill[..., 1])

    @property
    def unconverged(self) -> Float[np.ndarray, "*n"]:
        """How many steps had a solve that did not converge."""
        return self._bill[..., 2].copy()

    @property
    def screened(self) -> Float[np.ndarray, "*n"]:
        """How many steps were answered with another context than was given, because it was missing or implausible."""
        return self._bill[..., 3].copy() if self._is_screened else np.zeros_like(self._bill[..., 2])

    @property
    def info(self) -> Info | None:
        """What the agent says about the last step, worked out when it is asked for; None before the first one."""
        if self._last_info is None and self._last is not None:
            carried, context = self._last
            self._last_info = jax.tree.map(np.asarray, self._compiled.inspect(self._shared, carried, context))
        return self._last_info

    @property
    def live_ratio(self) -> Float[np.ndarray, "*n"] | None:
        """Cost over the optimum so far, where the agent knows it (`Competitive` does); else None.

        An agent that plays something else than the guard inside it proposes has none: the guard's account is not of what is paid.
        """
        if self._last is None:
            return None
        carried, context = self._last
        found = self._compiled.figures(self._shared, carried, context).get("live_ratio")
        return None if found is None else np.asarray(found)

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step, as NumPy arrays."""
        return {
            "steps": self._steps,
            "bill": self._bill.copy(),
            "carried": [np.array(vector) for vector in self._carried],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of a runner of the same policy and sizes; what does not fit is refused."""
        steps, bill, carried = state["steps"], np.asarray(state["bill"]), [np.asarray(v) for v in state["carried"]]
        fitting = [(bill, self._bill), *zip(carried, self._carried, strict=False)]
        same = all(new.shape == old.shape and new.dtype == old.dtype for new, old in fitting)
        if not same or len(carried) != len(self._carried) or type(steps) is not int or steps < 0:
            raise ValueError("this state is of a runner with other sizes or another precision.")
        self._steps, self._bill = steps, bill.copy()
        self._carried = tuple(jax.device_put(vector.copy()) for vector in carried)
        self._front = self._read_front()
        self._last, self._last_info = None, None

    def save_state(self, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
        """Write the state to a file, whole or not at all; it holds the policy's fingerprint, not the policy.

        Args:
            path: the file; one that is there is replaced.
            notes: what else to keep beside it, any JSON object; `policy_file.read` gives it back.
        """
        state, sizes = self.state_dict(), self._sizes
        header = {
            "policy": _fingerprint(self._policies),
            "streams": self._streams,
            "dim": sizes.dim,
            "context_dim": sizes.context_dim,
            "seen": sizes.seen,
            "horizon": sizes.horizon,
            "steps": state["steps"],
        }
        if notes is not None:
            header["notes"] = notes
        policy_file.write(path, Contents(_KIND, header, [state["bill"], *state["carried"]]))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Go on from a saved state, bit for bit as if there had been no interruption."""
        contents = read_state(path)
        _check_owner(contents, self._policies, path)
        if _read_sizes(contents, path) != (self._sizes, self._streams):
            raise PolicyFileError(f"{os.fspath(path)} is the state of a runner with other sizes or horizon.")
        self._restore(contents, path)

    def _restore(self, contents: Contents, path: str | os.PathLike[str]) -> None:
        bill, carried = contents.arrays[:1], contents.arrays[1:]
        state = {"steps": contents.header.get("steps"), "bill": bill[0] if bill else np.zeros(0), "carried": carried}
        try:
            self.load_state_dict(state)
        except ValueError as error:
            raise PolicyFileError(f"{os.fspath(path)} does not fit: {error}") from None

    @classmethod
    def resume(cls, policy: Policy | Sequence[Policy], path: str | os.PathLike[str]):
        """A runner that goes on where another one of the same policy was saved."""
        contents, policies = read_state(path), [policy] if isinstance(policy, Policy) else list(policy)
        _check_owner(contents, policies, path)
        sizes, streams = _read_sizes(contents, path)
        leading = () if streams is None else (streams,)
        runner = cls.__new__(cls)
        runner._check_axes(np.zeros((*leading, sizes.dim)))
        try:
            for each in policies:
                each.problem.switching.check(sizes.dim)
                each.problem.hitting.check(sizes.dim, sizes.context_dim)
        except ValueError as error:
            raise PolicyFileError(f"{os.fspath(path)} does not fit the policy's problem: {error}") from None
        arrays, program = runner._assemble(policies, sizes, leading)
        runner._shared = runner._compiled.share(arrays)
        runner._carried = tuple(np.zeros((*leading, *spec.shape), spec.dtype) for spec in program.carried)
        runner._restore(contents, path)
        runner._compile()
        return runner


def working_dtype() -> np.dtype:
    """JAX's floating-point numbers."""
    return np.dtype(jnp.result_type(float))


def infer_context_dim(problem: Problem, dim: int, history: Any) -> int:
    """q, from the history or from a cost that knows it."""
    if history is not None:
        return np.shape(history)[-1] if np.ndim(history) else 0
    if isinstance(problem.hitting, AbstractQuadraticCost):
        for context_dim in (dim, dim + 1):
            try:
                problem.hitting.check(dim, context_dim)
            except ValueError:
                continue
            return context_dim
        return dim
    raise ValueError(
        f"neither the policy nor its cost ({type(problem.hitting).__name__}) tells how many numbers a context has; give a "
        "history of contexts (act: --history), from which it is seen, or a policy whose contract says it (context_dim)."
    )


def check_horizon(horizon: Any) -> None:
    """Refuse what is not a number of steps."""
    if horizon is not None and (type(horizon) is not int or horizon < 1):
        raise ValueError(f"horizon must be a positive whole number of steps, or None, got {horizon!r}.")


def read_state(path: str | os.PathLike[str]) -> Contents:
    """The contents of a state file."""
    return policy_file.read(path, _KIND)


def _fingerprint(policies: list[Policy]) -> str:
    if len(policies) == 1:
        return policies[0].fingerprint
    return policy_file.digest([policy.fingerprint.encode() for policy in policies])


def _check_owner(contents: Contents, policies: list[Policy], path: str | os.PathLike[str]) -> None:
    if contents.header.get("policy") != _fingerprint(policies):
        raise PolicyFileError(
            f"{os.fspath(path)} is the state of a run of another policy, or under other bounds. Begin a new state, "
            "or go on with the policy and the bounds that it was begun with."
        )


def _read_sizes(contents: Contents, path: str | os.PathLike[str]) -> tuple[RunShape, int | None]:
    """The sizes in a file, where they make sense."""
    header = contents.header
    dim, context_dim, seen = (header.get(name) for name in ("dim", "context_dim", "seen"))
    horizon, streams = header.get("horizon"), header.get("streams")
    sizes = [dim, context_dim, 1 if seen == 0 else seen, *(s for s in (horizon, streams) if s is not None)]
    if not all(type(size) is int and 0 < size < _MOST_NUMBERS for size in sizes):
        raise PolicyFileError(f"{os.fspath(path)} has sizes that make no sense.")
    assert dim is not None
    assert context_dim is not None
    assert seen is not None
    if max(dim, (seen + 1) * context_dim) * (streams or 1) > _MOST_NUMBERS:
        raise PolicyFileError(f"{os.fspath(path)} has sizes that make no sense.")
    return RunShape(dim, context_dim, seen, horizon), streams


class BatchReport(NamedTuple):
    """What became of each stream in the last call.

    Args:
        answered: (n,), whether it made a step.
        stood_in: (n,), whether it did so with another context than was given, which was missing or implausible.
        refused: (n,), whether it was asked, but had no usable context or no finite answer; it is as it was before.
    """

    answered: Bool[np.ndarray, " n"]
    replaced: Bool[np.ndarray, " n"]
    rejected: Bool[np.ndarray, " n"]


class BatchRunner(AbstractRunner):
    """Many independent streams, all stepped in one call; made by `Runner.many`.

    `step` takes contexts (n, q) and gives the actions (n, d) in force. One stream without a reading, or with a bad one, does not
    keep the others waiting: `report` says what became of each.

    Args:
        policy: what to run, or n policies of one structure, for example fitted for n sites with the same recipe.
        x0: (n, d), the actions in force before the first step.
        history: (n, H, q), the contexts before the first step.
        horizon: the number of steps, where it is known.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> streams = ec.Runner.many(ec.Policy(ec.Greedy(), problem), x0=[[0.0], [0.0], [0.0]])
    >>> streams.step([[3.0], [3.0], [float("nan")]], mask=[True, False, True]).ravel().tolist()
    [1.0, 0.0, 0.0]
    >>> streams.report.answered.tolist(), streams.report.rejected.tolist()
    ([True, False, False], [False, False, True])
    """

    def __init__(self, policy: Policy | Sequence[Policy], x0: Any, history: Any = None, horizon: int | None = None):
        policies = [policy] if isinstance(policy, Policy) else list(policy)
        x0 = np.array(x0, working_dtype())
        self._check_axes(x0)
        if not policies or len(policies) not in (1, len(x0)):
            raise ValueError(
                f"there must be one policy, or one for each of the {len(x0)} streams, got {len(policies)}."
            )
        context_dim = infer_context_dim(policies[0].problem, x0.shape[-1], history)
        start = Instance(x0, np.zeros((len(x0), 1, context_dim)), history)
        for number, each in enumerate(policies):
            own = x0 if len(policies) == 1 else x0[number : number + 1]
            for extreme in (np.min, np.max):  # an action set is a box, if it is bounded at all
                each.problem.check(Instance(extreme(own, axis=0), np.zeros((1, context_dim))))
        check_horizon(horizon)
        self._begin(policies, RunShape(x0.shape[-1], context_dim, start.past.shape[-2], horizon), start.x0, start.past)

    def step(self, contexts: Any, mask: Any = None) -> Float[np.ndarray, "n d"]:
        """See a context in each stream, get the actions in force.

        Args:
            contexts: (n, q). NaN where a reading is missing: the last plausible one stands for it where the policy says what
                is plausible, else the stream makes no step.
            mask: (n,), False for streams that are not asked now and stay as they are. Default: all are asked.
        """
        given = validate_context(contexts, self._expected, self._dtype, gaps=True)
        asked = np.ones(len(given), bool) if mask is None else np.asarray(mask)
        if asked.dtype != bool or asked.shape != (len(given),):
            raise ValueError(f"mask must be {len(given)} truth values, got {asked.dtype} of shape {asked.shape}.")
        self._refuse_after_horizon()
        usable = asked if self._is_screened else asked & np.isfinite(given).all(axis=1)
        safe = np.where(usable[:, None], given, 0.0).astype(self._dtype)
        carried, stepped = self._compiled.advance(self._shared, self._carried, self._spare(), safe, usable)
        answered = np.asarray(stepped)
        self._last = self._carried, safe
        self._carried, self._steps = carried, self._steps + 1
        self._front = self._read_front()
        self._bill = self._bill + np.where(answered[:, None], self._front.bill, 0.0)
        replaced = answered & (self._front.bill[:, 3] > 0) if self._is_screened else np.zeros_like(answered)
        self._report = BatchReport(answered, replaced, asked & ~answered)
        return self._front.action.copy()

    @property
    def report(self) -> BatchReport | None:
        """What became of each stream in the last call; None before the first."""
        return self._report

    @property
    def policies(self) -> list[Policy]:
        """What is being run: one policy, or one for each stream."""
        return list(self._policies)

    @staticmethod
    def _check_axes(x0: np.ndarray) -> None:
        if x0.ndim != 2:
            raise ValueError(f"x0 must have shape (n, d), got {x0.shape}; for one stream use Runner.")

    def _prepare(self, programs: list[tuple[CompiledStepper, list[Any]]]) -> tuple[StepFunctions, list[Any]]:
        self._report: BatchReport | None = None
        first, arrays = programs[0]
        if len(programs) == 1:
            return first.streams(None), arrays
        for number, (program, _) in enumerate(programs):
            if program is not first:
                raise ValueError(
                    f"policies that run together must have one structure: policy {number} has other parts, sizes or settings "
                    "than policy 0. Fit them with the same recipe, or run them in groups."
                )
        return first.streams(0), [np.stack(leaves) for leaves in zip(*(own for _, own in programs), strict=True)]

    def _spare(self) -> Vectors:
        """Memory for the next state: that of the state before the last step, of which nothing can be told any more."""
        last, self._last, self._last_info = self._last, None, None
        return jax.tree.map(jnp.empty_like, self._carried) if last is None else last[0]

    def _compile(self) -> None:
        given, nobody = np.zeros(self._expected, self._dtype), np.zeros(len(self._bill), bool)
        jax.block_until_ready(self._compiled.advance(self._shared, self._carried, self._spare(), given, nobody))


class Runner(AbstractRunner):
    """One stream: `step` takes a context (q,) and gives an action (d,).

    Where the policy says which contexts are plausible, one that is not, or has numbers missing (None, NaN), is answered with the
    last plausible one (`Screen`): `context` is what was used, `replaced` whether it is another one than was given, and
    `screened` how often that was so.

    Args:
        policy: what to run.
        x0: (d,), the action in force before the first step.
        history: (H, q), the contexts before the first step. Default: none; where the cost does not tell how many numbers a
            context has, give an empty one of shape (0, q).
        horizon: the number of steps, for agents that must know when the run ends. Default: the run has no known end.

    For the shortest steps, run programs in the calling thread: `jax.config.update("jax_cpu_enable_async_dispatch", False)`
    before JAX is first used (benchmarks/runner.py).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> runner = Runner(Policy(ec.Greedy(), problem), x0=[0.0])
    >>> [round(float(runner.step(context)[0]), 4) for context in ([3.0], [3.0])]
    [1.0, 1.6667]
    """

    def __init__(self, policy: Policy, x0: Any, history: Any = None, horizon: int | None = None):
        x0 = np.array(x0, working_dtype())
        context_dim = infer_context_dim(policy.problem, x0.shape[-1] if x0.ndim else 0, history)
        start = Instance(x0, np.zeros((*x0.shape[:-1], 1, context_dim)), history)
        self._check_axes(x0)
        policy.problem.check(start)
        check_horizon(horizon)
        self._begin([policy], RunShape(x0.shape[-1], context_dim, start.past.shape[-2], horizon), start.x0, start.past)

    def step(self, context: Any) -> Float[np.ndarray, " d"]:
        """See a context, get an action. A context that is not q numbers is refused, and nothing changes."""
        given = validate_context(context, self._expected, self._dtype, gaps=self._is_screened)
        self._refuse_after_horizon()
        carried = self._compiled.advance(self._shared, self._carried, given)
        front = StepOutput.read(np.asarray(carried[0]), self._sizes, self._is_screened)
        if not is_finite(front.action) or not is_finite(front.bill):
            raise FloatingPointError(self._explain(front, given))
        self._last, self._last_info = (self._carried, given), None
        self._carried, self._front, self._steps = carried, front, self._steps + 1
        self._bill = self._bill + front.bill
        return front.action.copy()

    @property
    def replaced(self) -> bool:
        """Whether the last step used another context than was given."""
        return self._is_screened and bool(self._front.bill[3])

    @property
    def is_unconverged(self) -> bool:
        """Whether the last step had a solve that did not converge."""
        return bool(self._front.bill[2])

    @staticmethod
    def many(
        policy: Policy | Sequence[Policy], x0: Any, history: Any = None, horizon: int | None = None
    ) -> BatchRunner:
        """Independent streams in one: x0 (n, d), history (n, H, q); of one policy, or of n policies of one structure."""
        return BatchRunner(policy, x0, history, horizon)

    def _explain(self, front: StepOutput, given: np.ndarray) -> str:
        return explain_failed_step(given, front.context, self.policy.contract.plausible)

    @staticmethod
    def _check_axes(x0: np.ndarray) -> None:
        if x0.ndim != 1:
            raise ValueError(f"x0 must have shape (d,), got {x0.shape}; for several streams use Runner.many.")

    @staticmethod
    def _pack(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
        return pack_cached(stepper, sizes, dtype)

    def _prepare(self, programs: list[tuple[CompiledStepper, list[Any]]]) -> tuple[StepFunctions, list[Any]]:
        program, arrays = programs[0]
        return program.one, arrays

    def _compile(self) -> None:
        jax.block_until_ready(
            self._compiled.advance(self._shared, self._carried, np.zeros(self._expected, self._dtype))
        )
