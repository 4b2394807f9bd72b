"""Policies in production: NumPy in, NumPy out, one context at a time, with a state that survives a restart."""

import abc
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ecl2o.agents import Info, Start
from ecl2o.problem import AbstractQuadraticCost, Instance, Problem
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Stepper
from ecl2o.running.packed import Compiled, Program, Sizes, pack
from ecl2o.serving import policy_file
from ecl2o.serving.incoming import accepted, is_finite, shown
from ecl2o.serving.policy import Policy
from ecl2o.serving.policy_file import Contents, PolicyFileError

_KIND = "runner"
_BILL = 3  # hitting cost, switching cost, whether a solve did not converge
_MOST_NUMBERS = 1 << 26  # in a start that a state file asks for


class AbstractRunner(abc.ABC):
    """A policy in the middle of a run, of one stream or of many.

    Works in 64 bits if JAX does, else in 32. A refused context leaves everything as it was. Not for several threads at once.
    """

    _policy: Policy
    _sizes: Sizes
    _streams: int | None

    def __init__(self, policy: Policy, x0: Any, history: Any = None, horizon: int | None = None):
        x0 = np.array(x0, _working_dtype())
        context_dim = context_dim_of(policy.problem, x0.shape[-1] if x0.ndim else 0, history)
        start = Instance(x0, np.zeros((*x0.shape[:-1], 1, context_dim)), history)
        self._check_axes(x0)
        for extreme in (np.min, np.max):  # an action set is a box, if it is bounded at all
            policy.problem.check(start if x0.ndim == 1 else Instance(extreme(x0, axis=0), np.zeros((1, context_dim))))
        if horizon is not None and (type(horizon) is not int or horizon < 1):
            raise ValueError(f"horizon must be a positive whole number of steps, or None, got {horizon!r}.")
        sizes = Sizes(x0.shape[-1], context_dim, start.past.shape[-2], horizon)
        self._assemble(policy, sizes, start.x0, start.past)

    @staticmethod
    @abc.abstractmethod
    def _check_axes(x0: np.ndarray) -> None:
        """Refuse an x0 for another number of streams."""

    @staticmethod
    @abc.abstractmethod
    def _choose(program: Program) -> Compiled:
        """The functions for one stream, or for many."""

    def _assemble(self, policy: Policy, sizes: Sizes, x0: Any, history: Any) -> None:
        first, past = (x0, history) if x0.ndim == 1 else (x0[0], history[0])
        policy.agent.check(policy.problem, Start(jnp.asarray(first), jnp.asarray(past), sizes.horizon))
        dtype = _working_dtype()
        stepper = cast_floats(Stepper(policy.agent, policy.problem, policy.forecaster), dtype)
        program, arrays = pack(stepper, sizes, dtype)
        compiled = self._choose(program)
        self._policy, self._sizes, self._dtype = policy, sizes, dtype
        self._streams = x0.shape[0] if x0.ndim == 2 else None
        self._expected = (*x0.shape[:-1], sizes.context_dim)
        self._advance, self._inspect = compiled.advance, compiled.inspect
        self._shared, self._carried = compiled.begin(arrays, x0, history)
        self._bill = np.zeros((*x0.shape[:-1], _BILL))
        self._steps = 0
        self._last: tuple[Any, np.ndarray] | None = None
        self._last_info: Info | None = None
        jax.block_until_ready(
            self._advance(self._shared, self._carried, np.zeros(self._expected, dtype))
        )  # compile now

    def _play(self, context: Any) -> np.ndarray:
        given = accepted(context, self._expected, self._dtype)
        if self._sizes.horizon is not None and self._steps >= self._sizes.horizon:
            raise ValueError(f"all {self._sizes.horizon} steps of the horizon have been played.")
        carried = self._advance(self._shared, self._carried, given)
        dim = self._sizes.dim
        answer = np.asarray(carried[0])[..., : dim + _BILL]
        if not is_finite(answer):
            raise FloatingPointError(
                f"the policy has no finite answer to the context {shown(given)}; nothing was changed."
            )
        self._last, self._last_info = (self._carried, given), None
        self._carried, self._steps = carried, self._steps + 1
        self._bill = self._bill + answer[..., dim:]
        return answer[..., :dim].copy()

    @property
    def policy(self) -> Policy:
        """What is being run."""
        return self._policy

    @property
    def dtype(self) -> np.dtype:
        """The precision it works in, JAX's when it was made. Promises are made for 64 bits."""
        return self._dtype

    @property
    def steps(self) -> int:
        """How many contexts have been answered."""
        return self._steps

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._sizes.context_dim

    @property
    def action(self) -> Float[np.ndarray, "*n d"]:
        """The last action; x0 before the first step."""
        return np.array(self._carried[0][..., : self._sizes.dim])

    @property
    def hitting(self) -> Float[np.ndarray, "*n"]:
        """The sum of f(x_t, y_t) so far."""
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
    def info(self) -> Info | None:
        """What the agent says about the last step, worked out when it is asked for; None before the first one."""
        if self._last_info is None and self._last is not None:
            carried, context = self._last
            self._last_info = jax.tree.map(np.asarray, self._inspect(self._shared, carried, context))
        return self._last_info

    @property
    def live_ratio(self) -> Float[np.ndarray, "*n"] | None:
        """Cost over the optimum so far, where the agent knows it (`Competitive` does); else None.

        An agent that plays something else than the guard inside it proposes has none: the guard's account is not of what is paid.
        """
        info = self.info
        return None if info is None or "live_ratio" not in info.details else np.asarray(info.details["live_ratio"])

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
        self._carried = tuple(jnp.array(vector) for vector in carried)
        self._last, self._last_info = None, None

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, whole or not at all; it holds the policy's fingerprint, not the policy."""
        state, sizes = self.state_dict(), self._sizes
        header = {
            "policy": self._policy.fingerprint,
            "streams": self._streams,
            "dim": sizes.dim,
            "context_dim": sizes.context_dim,
            "seen": sizes.seen,
            "horizon": sizes.horizon,
            "steps": state["steps"],
        }
        policy_file.write(path, Contents(_KIND, header, [state["bill"], *state["carried"]]))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Go on from a saved state, bit for bit as if there had been no interruption."""
        contents = policy_file.read(path, _KIND)
        _check_owner(contents, self._policy, path)
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
    def resume(cls, policy: Policy, path: str | os.PathLike[str]):
        """A runner that goes on where another one of the same policy was saved."""
        contents = policy_file.read(path, _KIND)
        _check_owner(contents, policy, path)
        sizes, streams = _read_sizes(contents, path)
        leading = () if streams is None else (streams,)
        runner = cls.__new__(cls)
        x0 = np.zeros((*leading, sizes.dim), _working_dtype())
        runner._check_axes(x0)
        try:
            policy.problem.switching.check(sizes.dim)
            policy.problem.hitting.check(sizes.dim, sizes.context_dim)
        except ValueError as error:
            raise PolicyFileError(f"{os.fspath(path)} does not fit the policy's problem: {error}") from None
        past = np.zeros((*leading, sizes.seen, sizes.context_dim), x0.dtype)
        runner._assemble(policy, sizes, x0, past)
        runner._restore(contents, path)
        return runner


class Runner(AbstractRunner):
    """One stream: `step` takes a context (q,) and gives an action (d,).

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

    def step(self, context: Any) -> Float[np.ndarray, " d"]:
        """See a context, get an action. A context that is not q finite numbers is refused, and nothing changes."""
        return self._play(context)

    @staticmethod
    def many(policy: Policy, x0: Any, history: Any = None, horizon: int | None = None) -> "Streams":
        """Independent streams in one: x0 (n, d), history (n, H, q)."""
        return Streams(policy, x0, history, horizon)

    @staticmethod
    def _check_axes(x0: np.ndarray) -> None:
        if x0.ndim != 1:
            raise ValueError(f"x0 must have shape (d,), got {x0.shape}; for several streams use Runner.many.")

    @staticmethod
    def _choose(program: Program) -> Compiled:
        return program.one


class Streams(AbstractRunner):
    """Many independent streams, all stepped in one call; made by `Runner.many`."""

    def step_many(self, contexts: Any) -> Float[np.ndarray, "n d"]:
        """See a context (n, q) in each stream, get all actions (n, d). One bad number refuses the call."""
        return self._play(contexts)

    @staticmethod
    def _check_axes(x0: np.ndarray) -> None:
        if x0.ndim != 2:
            raise ValueError(f"x0 must have shape (n, d), got {x0.shape}; for one stream use Runner.")

    @staticmethod
    def _choose(program: Program) -> Compiled:
        return program.many


def _working_dtype() -> np.dtype:
    return np.dtype(jnp.result_type(float))


def context_dim_of(problem: Problem, dim: int, history: Any) -> int:
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
        f"{type(problem.hitting).__name__} does not tell how many numbers a context has; "
        "give a history, if need be an empty one of shape (0, q)."
    )


def _check_owner(contents: Contents, policy: Policy, path: str | os.PathLike[str]) -> None:
    if contents.header.get("policy") != policy.fingerprint:
        raise PolicyFileError(f"{os.fspath(path)} is the state of a runner of another policy.")


def _read_sizes(contents: Contents, path: str | os.PathLike[str]) -> tuple[Sizes, int | None]:
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
    return Sizes(dim, context_dim, seen, horizon), streams
