"""An agent with the references that a bill is read against, worked out beside it, step by step.

One compiled program that steps many streams of a policy at once, whichever streams they are.

It has a fixed number of lanes, and a call with fewer streams leaves the rest idle. So there is one program and one compilation,
and what a stream is answered does not depend on who else was asked in the same moment: a program for another number of lanes
may round differently in the last bit.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import ROBD, AbstractAgent, Independent, Info, Observation, Start
from ecl2o.agents.base import State
from ecl2o.agents.wrappers import OwnTrajectory
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from ecl2o.policy.policy import Policy
from ecl2o.problem import AbstractQuadraticCost, Instance, Mahalanobis, Problem
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Stepper, compiled_step
from ecl2o.running.compiled_step import RunShape, StepOutput, compile_stepper


class Report(NamedTuple):
    """The figures of a step, in this order in the vector that a program gives back; NaN where nobody knows them.

    cost, optimum and expert are bills of the whole run so far: what was paid, the least in hindsight, R-OBD's. The rest is the
    guard's account of the promise's current period.
    """

    cost: float
    optimum: float
    expert: float
    account_cost: float
    account_reference: float
    left: float
    active: float
    kept: float


class WatchedState(eqx.Module):
    """The agent's own state, the bill so far, the work function with its optimum, and where R-OBD would be."""

    inner: State
    cost: Float[Array, ""]
    optimum: Float[Array, ""]
    work: WorkFunction | None
    expert: OwnTrajectory | None


class Watched(AbstractAgent):
    """Plays what its agent plays, to the last bit, and reports a `Report` in `Info.details["report"]`.

    The optimum is known for quadratic costs without bounds, R-OBD's bill wherever R-OBD can act.
    """

    agent: AbstractAgent
    with_expert: bool = eqx.field(static=True, default=True)

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start) -> WatchedState:
        zero = jnp.zeros((), start.x0.dtype)
        work = WorkFunction.from_start(start.x0, 2 * problem.Q) if _has_work_function(problem) else None
        expert = Independent(ROBD()).init(problem, start) if self.with_expert else None
        return WatchedState(self.agent.init(problem, start), zero, zero, work, expert)

    def step(self, problem: Problem, state: WatchedState, observation: Observation):
        inner, action, info = self.agent.step(problem, state.inner, observation)
        previous, context = observation.previous_action, observation.context
        cost = state.cost + problem.hitting(action, context) + problem.switching(action, previous)
        unknown = jnp.full((), jnp.nan, cost.dtype)
        work, optimum, expert_cost, expert = None, state.optimum, unknown, None
        if state.work is not None:
            prefix = state.work.with_context(*quadratic_terms(problem, context, previous.shape[0]))
            work, optimum = prefix.after_move(2 * problem.Q), state.optimum + prefix.growth
        if state.expert is not None:
            expert, _, its = Independent(ROBD()).step(problem, state.expert, observation)
            expert_cost = its.details["cost"]
        said = info.details if "left" in info.details else {}
        known = {
            "cost": cost,
            "optimum": unknown if work is None else optimum,
            "expert": expert_cost,
            "account_cost": said.get("cost", unknown),
            "account_reference": said.get("optimum", said.get("expert_cost", unknown)),
            **{name: said.get(name, unknown) for name in ("left", "active", "kept")},
        }
        figures = jnp.stack([jnp.asarray(known[name], cost.dtype) for name in Report._fields])
        details = {**info.details, "report": figures}
        return (
            WatchedState(inner, cost, optimum, work, expert),
            action,
            Info(info.converged, info.advice, details, info.inner),
        )


def _has_work_function(problem: Problem) -> bool:
    quadratic = isinstance(problem.hitting, AbstractQuadraticCost) and isinstance(problem.switching, Mahalanobis)
    return quadratic and not problem.is_bounded


LANES = 64
MOST_BYTES = 2 * compiled_step.MOST_BYTES // LANES  # for each of the streams that are stepped at once

Reading = Sequence[float | None]


class Played(NamedTuple):
    """A step of one stream: the state after it, and what it did; `action` is None where there is no finite answer.

    `used` is the context that stood in for the one that was given; None where that was believed. `unconverged` says that a solve
    did not converge, or that a promise holds no longer.
    """

    state: bytes
    action: list[float] | None
    hitting: float
    switching: float
    report: Report
    used: list[float] | None = None
    unconverged: bool = False


class Lanes:
    """The program for streams of one policy whose histories are equally long. For several threads at once.

    A stream's state is bytes: the carried vectors of `running.packed`, one after the other.
    """

    def __init__(self, policy: Policy, dim: int, context_dim: int, seen: int):
        self._sizes = RunShape(dim, context_dim, seen, None)
        self._policy = policy
        self._dtype = np.dtype(jnp.result_type(float))
        self._lock = threading.Lock()
        self.plausible = policy.contract.plausible
        self.is_screened = self.plausible is not None
        try:
            self._prepare(Watched(policy.agent))
        except (NotApplicableError, ValueError, TypeError):
            self._prepare(Watched(policy.agent, with_expert=False))

    def _prepare(self, agent: Watched) -> None:
        sizes, policy = self._sizes, self._policy
        stepper = cast_floats(Stepper(agent, policy.problem, policy.forecaster, policy.contract.screen), self._dtype)
        program, self._arrays = compile_stepper(stepper, sizes, self._dtype)
        compiled_step.check_stream_bytes(program.step_bytes, MOST_BYTES)
        self._begin, of_many = program.one.begin, program.streams(None)

        def play(shared, carried, contexts):
            carried, info = of_many.play(shared, carried, contexts)
            return carried, info.details["report"]

        x0, past = np.zeros(sizes.dim, self._dtype), np.zeros((sizes.seen, sizes.context_dim), self._dtype)
        self._shared, carried = self._begin(self._arrays, x0, past)
        self._specs = [(vector.shape[0], np.dtype(vector.dtype)) for vector in carried]
        idle = tuple(np.broadcast_to(np.asarray(vector), (LANES, *vector.shape)) for vector in carried)
        contexts = np.zeros((LANES, sizes.context_dim), self._dtype)
        self._play = jax.jit(play).lower(self._shared, idle, contexts).compile()

    @property
    def state_bytes(self) -> int:
        """The size of a stream's state."""
        return sum(length * dtype.itemsize for length, dtype in self._specs)

    def begin(self, x0: np.ndarray, history: np.ndarray) -> bytes:
        """The state before the first step; refuses with ValueError what the policy cannot start from."""
        policy = self._policy
        policy.problem.check(Instance(x0, np.zeros((1, self._sizes.context_dim)), history))
        policy.agent.check(policy.problem, Start(jnp.asarray(x0), jnp.asarray(history), None))
        with self._lock:
            _, carried = self._begin(self._arrays, x0.astype(self._dtype), history.astype(self._dtype))
        return b"".join(np.asarray(vector).tobytes() for vector in carried)

    def play(self, states: Sequence[bytes], contexts: Sequence[Reading]) -> list[Played]:
        """A step of each of these streams; only where contexts are screened may numbers be missing (None)."""
        played = []
        for start in range(0, len(states), LANES):
            played += self._play_some(states[start : start + LANES], contexts[start : start + LANES])
        return played

    def _play_some(self, states: Sequence[bytes], contexts: Sequence[Reading]) -> list[Played]:
        idle = LANES - len(states)
        raw = np.frombuffer(b"".join([*states, states[0] * idle]), np.uint8).reshape(LANES, -1)
        given = np.array([*contexts, *[contexts[0]] * idle], self._dtype)
        vectors, offset = [], 0
        for length, dtype in self._specs:
            size = length * dtype.itemsize
            vectors.append(np.ascontiguousarray(raw[:, offset : offset + size]).view(dtype))
            offset += size
        with self._lock:
            carried, report = self._play(self._shared, tuple(vectors), given)
        after = [np.asarray(vector) for vector in carried]
        packed = np.concatenate([vector.view(np.uint8).reshape(LANES, -1) for vector in after], axis=1)
        front = StepOutput.read(after[0], self._sizes, self.is_screened)
        finite: list[bool] = np.asarray(
            np.isfinite(front.action).all(axis=1) & np.isfinite(front.bill).all(axis=1)
        ).tolist()
        actions, bills, figures = front.action.tolist(), front.bill.tolist(), np.asarray(report).tolist()
        used = [None] * LANES if front.context is None else front.context.tolist()
        return [
            Played(
                packed[lane].tobytes(),
                actions[lane] if finite[lane] else None,
                bills[lane][0],
                bills[lane][1],
                Report(*figures[lane]),
                used[lane] if self.is_screened and bills[lane][3] else None,
                bool(bills[lane][2]),
            )
            for lane in range(len(states))
        ]
