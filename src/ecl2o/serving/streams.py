"""Many sites in one call, each with a report of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ecl2o.problem import Instance
from ecl2o.running.packed import Compiled, Program, Sizes, Vectors
from ecl2o.serving.incoming import accepted
from ecl2o.serving.policy import Policy
from ecl2o.serving.runs import AbstractRunner, context_dim_of, refuse_bad_horizon, working_dtype


class StreamsReport(NamedTuple):
    """What became of each stream in the last call.

    Args:
        answered: (n,), whether it made a step.
        stood_in: (n,), whether it did so with another context than was given, which was missing or implausible.
        refused: (n,), whether it was asked, but had no usable context or no finite answer; it is as it was before.
    """

    answered: Bool[np.ndarray, " n"]
    stood_in: Bool[np.ndarray, " n"]
    refused: Bool[np.ndarray, " n"]


class Streams(AbstractRunner):
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
    >>> streams.report.answered.tolist(), streams.report.refused.tolist()
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
        context_dim = context_dim_of(policies[0].problem, x0.shape[-1], history)
        start = Instance(x0, np.zeros((len(x0), 1, context_dim)), history)
        for number, each in enumerate(policies):
            own = x0 if len(policies) == 1 else x0[number : number + 1]
            for extreme in (np.min, np.max):  # an action set is a box, if it is bounded at all
                each.problem.check(Instance(extreme(own, axis=0), np.zeros((1, context_dim))))
        refuse_bad_horizon(horizon)
        self._begin(policies, Sizes(x0.shape[-1], context_dim, start.past.shape[-2], horizon), start.x0, start.past)

    def step(self, contexts: Any, mask: Any = None) -> Float[np.ndarray, "n d"]:
        """See a context in each stream, get the actions in force.

        Args:
            contexts: (n, q). NaN where a reading is missing: the last plausible one stands for it where the policy says what
                is plausible, else the stream makes no step.
            mask: (n,), False for streams that are not asked now and stay as they are. Default: all are asked.
        """
        given = accepted(contexts, self._expected, self._dtype, gaps=True)
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
        stood_in = answered & (self._front.bill[:, 3] > 0) if self._is_screened else np.zeros_like(answered)
        self._report = StreamsReport(answered, stood_in, asked & ~answered)
        return self._front.action.copy()

    @property
    def report(self) -> StreamsReport | None:
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

    def _prepare(self, programs: list[tuple[Program, list[Any]]]) -> tuple[Compiled, list[Any]]:
        self._report: StreamsReport | None = None
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
