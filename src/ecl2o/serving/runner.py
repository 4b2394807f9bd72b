"""Policies in production: NumPy in, NumPy out, one context at a time, with a state that survives a restart."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ecl2o.problem import Instance
from ecl2o.running import Stepper
from ecl2o.running.packed import Compiled, Front, Program, Sizes
from ecl2o.serving.incoming import accepted, is_finite, no_answer
from ecl2o.serving.kept import pack_kept
from ecl2o.serving.policy import Policy
from ecl2o.serving.runs import AbstractRunner, context_dim_of, refuse_bad_horizon, working_dtype
from ecl2o.serving.streams import Streams


class Runner(AbstractRunner):
    """One stream: `step` takes a context (q,) and gives an action (d,).

    Where the policy says which contexts are plausible, one that is not, or has numbers missing (None, NaN), is answered with the
    last plausible one (`Screen`): `context` is what was used, `stood_in` whether it is another one than was given, and
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
        context_dim = context_dim_of(policy.problem, x0.shape[-1] if x0.ndim else 0, history)
        start = Instance(x0, np.zeros((*x0.shape[:-1], 1, context_dim)), history)
        self._check_axes(x0)
        policy.problem.check(start)
        refuse_bad_horizon(horizon)
        self._begin([policy], Sizes(x0.shape[-1], context_dim, start.past.shape[-2], horizon), start.x0, start.past)

    def step(self, context: Any) -> Float[np.ndarray, " d"]:
        """See a context, get an action. A context that is not q numbers is refused, and nothing changes."""
        given = accepted(context, self._expected, self._dtype, gaps=self._is_screened)
        self._refuse_after_horizon()
        carried = self._compiled.advance(self._shared, self._carried, given)
        front = Front.read(np.asarray(carried[0]), self._sizes, self._is_screened)
        if not is_finite(front.action) or not is_finite(front.bill):
            raise FloatingPointError(self._no_answer(front, given))
        self._last, self._last_info = (self._carried, given), None
        self._carried, self._front, self._steps = carried, front, self._steps + 1
        self._bill = self._bill + front.bill
        return front.action.copy()

    @property
    def stood_in(self) -> bool:
        """Whether the last step used another context than was given."""
        return self._is_screened and bool(self._front.bill[3])

    @property
    def is_unconverged(self) -> bool:
        """Whether the last step had a solve that did not converge."""
        return bool(self._front.bill[2])

    @staticmethod
    def many(policy: Policy | Sequence[Policy], x0: Any, history: Any = None, horizon: int | None = None) -> Streams:
        """Independent streams in one: x0 (n, d), history (n, H, q); of one policy, or of n policies of one structure."""
        return Streams(policy, x0, history, horizon)

    def _no_answer(self, front: Front, given: np.ndarray) -> str:
        return no_answer(given, front.context, self.policy.contract.plausible)

    @staticmethod
    def _check_axes(x0: np.ndarray) -> None:
        if x0.ndim != 1:
            raise ValueError(f"x0 must have shape (d,), got {x0.shape}; for several streams use Runner.many.")

    @staticmethod
    def _pack(stepper: Stepper, sizes: Sizes, dtype: np.dtype) -> tuple[Program, list[Any]]:
        return pack_kept(stepper, sizes, dtype)

    def _prepare(self, programs: list[tuple[Program, list[Any]]]) -> tuple[Compiled, list[Any]]:
        program, arrays = programs[0]
        return program.one, arrays

    def _compile(self) -> None:
        jax.block_until_ready(
            self._compiled.advance(self._shared, self._carried, np.zeros(self._expected, self._dtype))
        )
