"""Step many streams of one policy in one compiled call, with the references that their costs are compared to.

The compiled step has a fixed batch size; a smaller batch is padded. So there is one compilation, and a stream's answer does not
depend on the other streams of its batch: a program of another batch size may round differently in the last bit.
"""

import datetime
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents import ROBD, AbstractAgent, Advised, Independent, Info, Observation, Start
from ecl2o.agents.base import State, pass_inside
from ecl2o.agents.guards.references.lower_model import bound_optimum
from ecl2o.agents.timed import follow_timing
from ecl2o.agents.wrappers import OwnTrajectory
from ecl2o.exceptions import InvalidRequestError, NotApplicableError
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from ecl2o.policy.advice import describe_change, find_promise
from ecl2o.policy.clock import StepClock
from ecl2o.policy.executable_cache import cache_function, compile_cached, is_cached
from ecl2o.policy.policy import Policy
from ecl2o.policy.start_run import find_start, start_state
from ecl2o.problem import Instance, Problem
from ecl2o.problem.arrays import cast_floats, cost_ratio
from ecl2o.running import Stepper, compiled_step
from ecl2o.running.compiled_step import RunShape, StepOutput
from ecl2o.service.models import PromiseBudget

# Fields of `StepRecord`, in the order of the vector that the compiled step returns; NaN if unknown. After them come those of
# `Advised`, in shadow mode `shadow_action`, what is left of each promise, and the spent shares.
_FIGURES = ("cost", "optimum", "expert", "live_ratio", "promise_left", "promise_spent", "guard_active")
_OF_ADVICE = ("advice_cost", "shadow_cost", "shadow_left")
_MAX_SPENT = 1e9  # a broken promise whose reference costs nothing


class ReferenceTrackingState(eqx.Module):
    """The agent's state, the total cost, the work function with its optimum, and R-OBD's own trajectory."""

    inner: State
    cost: Float[Array, ""]
    optimum: Float[Array, ""]
    work: WorkFunction | None
    expert: OwnTrajectory | None
    decided: Int[Array, ""]  # contexts to come that meet an action from before the run


class ReferenceTracking(AbstractAgent):
    """Play the agent's own actions, and report `_FIGURES` as a vector in `Info.details["figures"]`.

    The optimum is known for quadratic costs without bounds, a lower bound on it for `AsymmetricTracking` on a line; R-OBD's cost
    wherever R-OBD applies.
    """

    agent: AbstractAgent
    with_expert: bool = eqx.field(static=True, default=True)

    around_proposals = pass_inside

    def init(self, problem: Problem, start: Start) -> ReferenceTrackingState:
        zero = jnp.zeros((), start.x0.dtype)
        action = start.x0[: problem.action_size(start.dim)]
        work = WorkFunction.from_start(action, 2 * problem.Q) if _has_work_function(problem) else None
        expert = Independent(follow_timing(ROBD(), problem)).init(problem, start) if self.with_expert else None
        decided = jnp.asarray(problem.timing.late)
        return ReferenceTrackingState(self.agent.init(problem, start), zero, zero, work, expert, decided)

    def step(self, problem: Problem, state: ReferenceTrackingState, observation: Observation):
        inner, action, info = self.agent.step(problem, state.inner, observation)
        previous, context = observation.previous_action, observation.context
        action = problem.limit(previous, action)
        cost = state.cost + sum(problem.step_costs(previous, action, context, observation.step))
        unknown = jnp.full((), jnp.nan, cost.dtype)
        work, optimum, expert_cost, expert = None, state.optimum, unknown, None
        if state.work is not None:
            work, growth = _advance_optimum(problem, state, observation, action)
            optimum = state.optimum + growth
        if state.expert is not None:
            alone = Independent(follow_timing(ROBD(), problem))
            expert, _, expert_info = alone.step(problem, state.expert, observation)
            expert_cost = expert_info.details["cost"]
        optimum_so_far = unknown if work is None else optimum
        guard = info.details if "left" in info.details else {}
        figures_of_each = (("cost", cost), ("reference", optimum_so_far), ("left", unknown))
        paid, reference, left = (jnp.atleast_1d(guard.get(name, one)) for name, one in figures_of_each)
        live_ratio = cost_ratio(paid[0], reference[0])  # of the promise's period
        allowed = jnp.maximum(paid - reference + left, jnp.finfo(cost.dtype).tiny)
        spent = jnp.minimum((paid - reference) / allowed, _MAX_SPENT)
        of_guard = left.min(), spent.max(), jnp.any(guard["active"]) if guard else unknown
        of_advice = [info.details.get(name, unknown) for name in _OF_ADVICE]
        shadow = info.details.get("shadow_action", ())
        figures = (cost, optimum_so_far, expert_cost, live_ratio, *of_guard, *of_advice, *shadow, *left, *spent)
        vector = jnp.stack([jnp.asarray(figure, cost.dtype) for figure in figures])
        info = Info(info.converged, info.advice, {**info.details, "figures": vector}, info.inner)
        decided = state.decided - 1 if problem.timing.shift else state.decided
        return ReferenceTrackingState(inner, cost, optimum, work, expert, decided), action, info


def _advance_optimum(
    problem: Problem, state: ReferenceTrackingState, observation: Observation, action: Float[Array, " d"]
) -> tuple[WorkFunction, Float[Array, ""]]:
    """Return the work function after a step, and by how much the optimum grows, or a lower bound on it."""
    work = state.work
    assert work is not None
    in_force, context = problem.timing.meet_now(observation.previous_action, action, observation.context)
    if problem.hitting.is_two_sided:
        prefix = bound_optimum(problem.hitting, 2 * problem.Q, work, context)
    else:
        prefix = work.with_context(*quadratic_terms(problem, context, len(action)))
    after = prefix.after_move(2 * problem.Q)
    if not problem.timing.late:
        return after, prefix.growth
    is_decided = state.decided > 0
    after = jax.tree.map(lambda new, old: jnp.where(is_decided, old, new), after, work)
    return after, jnp.where(is_decided, problem.hitting(in_force, context), prefix.growth)


def _has_work_function(problem: Problem) -> bool:
    if not problem.switching.is_quadratic:
        return False
    if problem.hitting.is_two_sided:
        return len(problem.Q) == 1
    return problem.hitting.is_quadratic and not problem.relaxed.is_bounded


BATCH_SIZE = 64
MAX_STREAM_BYTES = 2 * compiled_step.MOST_BYTES // BATCH_SIZE  # memory of each stream of a batch


MAX_EQUATIONS = 12_000  # of start and step; 3 s of compilation for every 1000 if guards are nested


def check_equations(count: int) -> None:
    """Raise if a policy's program is too large to be compiled in a minute.

    Raises:
        InvalidRequestError: it has more operations than are allowed.
    """
    if count > MAX_EQUATIONS:
        raise InvalidRequestError(
            f"The policy's program has {count} operations, and at most {MAX_EQUATIONS} are allowed. Nest fewer guards."
        )


class StepOutcome(NamedTuple):
    """The step of one stream, and the state after it.

    `fields` of `StepRecord` are None without a finite action; `context_used` is None if the context was used as given.
    """

    state: bytes
    fields: dict[str, Any] | None
    context_used: list[float | None] | None


class BatchedStepper:
    """The compiled step for the streams of one policy with histories of one length. Thread-safe.

    A stream's state is bytes: the carried vectors of `running.compiled_step`, one after the other.

    Args:
        policy: Stepped in 64 bits.
        dim: d, numbers of an action.
        context_dim: q, numbers of a context.
        history: Number of contexts before the first step.
    """

    def __init__(self, policy: Policy, dim: int, context_dim: int, history: int):
        self._sizes = RunShape(policy.problem.state_size(dim, context_dim), context_dim, history, None)
        self._policy, self._dim = policy, dim
        self._dtype = np.dtype(jnp.result_type(float))
        self._lock = threading.Lock()
        promise = policy.agent.promise(policy.problem)
        self.context_dim = context_dim
        self.advice_dim, self.columns = len(policy.contract.advice), policy.contract.columns
        self.promise = None if promise is None else promise.ratio
        several = [] if promise is None or not promise.also else [promise, *promise.also]
        self._promises = [(each.describe_bound(), each.period) for each in several]
        self._guard_promise = find_promise(policy)
        self._shadow_dim = dim if isinstance(policy.agent, Advised) and policy.agent.shadow else 0
        self.plausible = policy.contract.plausible
        self.clock = StepClock(policy)
        agents = [ReferenceTracking(policy.agent, with_expert) for with_expert in (True, False)]
        kept = [agent for agent in agents if is_cached(self._make_stepper(agent), self._sizes, self._dtype)]
        try:
            self._compile((kept or agents)[0])
        except (NotApplicableError, ValueError, TypeError):
            self._compile(agents[1])

    def _make_stepper(self, agent: ReferenceTracking) -> Stepper:
        policy = self._policy
        return cast_floats(Stepper(agent, policy.problem, policy.forecaster, policy.contract.screen), self._dtype)

    def _compile(self, agent: ReferenceTracking) -> None:
        sizes, stepper = self._sizes, self._make_stepper(agent)
        program, self._arrays = compile_cached(stepper, sizes, self._dtype)
        self._set_clock = program.set_clock
        compiled_step.check_stream_bytes(program.size.step_bytes, MAX_STREAM_BYTES)
        check_equations(program.size.equations)

        def step(shared, carried, contexts):
            carried, info = program.streams(None).play(shared, carried, contexts)
            return carried, info.details["figures"]

        x0, history = np.zeros(sizes.dim, self._dtype), np.zeros((sizes.seen, sizes.context_dim), self._dtype)
        self._begin = program.one.begin
        self._shared, carried = self._begin(self._arrays, x0, history)
        self._specs = [(vector.shape[0], np.dtype(vector.dtype)) for vector in carried]
        states = tuple(np.broadcast_to(np.asarray(vector), (BATCH_SIZE, *vector.shape)) for vector in carried)
        contexts = np.zeros((BATCH_SIZE, sizes.context_dim), self._dtype)
        self._step = cache_function(stepper, sizes, self._dtype, f"steps-{BATCH_SIZE}", jax.jit(step))
        self._step(self._shared, states, contexts)  # reads or compiles it

    def restart(self, x0: list[float] | None, time: datetime.datetime) -> tuple[bytes, list[float], str | None]:
        """Return the state before a first step at a time, on the policy's own history, its x0, and a notice.

        Raises:
            ValueError: the policy cannot start there.
        """
        past, notice = self.clock.extend_own_history(time)
        first, past = find_start(self._policy, x0, past)
        return self.start(first, past, self.clock.find_place(time)), first.tolist(), notice

    def start(self, x0: np.ndarray, history: np.ndarray, place: int = 0) -> bytes:
        """Return the state before the first step, which has this place in the cycle of restarts (`StepClock.find_place`).

        Raises:
            ValueError: the policy cannot start from this action and history.
        """
        policy = self._policy
        x0 = start_state(policy, x0, history)
        policy.problem.check(Instance(x0, np.zeros((1, self.context_dim)), history))
        begin = Start(jnp.asarray(x0), jnp.asarray(history), None)
        follow_timing(policy.agent, policy.problem).check(policy.problem, begin)
        with self._lock:
            _, carried = self._begin(self._arrays, x0.astype(self._dtype), history.astype(self._dtype))
        return b"".join(np.asarray(vector).tobytes() for vector in self._set_clock(carried, place))

    def move(self, state: bytes, place: int) -> bytes:
        """Return the state of a stream without steps with another place in the cycle of restarts."""
        vectors = self._set_clock(tuple(vector[0] for vector in self._unpack([state])), place)
        return b"".join(np.ascontiguousarray(vector).tobytes() for vector in vectors)

    def _unpack(self, states: Sequence[bytes]) -> list[np.ndarray]:
        """Return the carried vectors of states, with a leading axis."""
        raw = np.frombuffer(b"".join(states), np.uint8).reshape(len(states), -1)
        vectors, offset = [], 0
        for length, dtype in self._specs:
            size = length * dtype.itemsize
            vectors.append(np.ascontiguousarray(raw[:, offset : offset + size]).view(dtype))
            offset += size
        return vectors

    def step(self, states: Sequence[bytes], contexts: Sequence[Sequence[float | None]]) -> list[StepOutcome]:
        """Step streams, one context each. Numbers may be missing (None) only if the policy screens its contexts."""
        outcomes = []
        for start in range(0, len(states), BATCH_SIZE):
            outcomes += self._step_batch(states[start : start + BATCH_SIZE], contexts[start : start + BATCH_SIZE])
        return outcomes

    def _describe_change(
        self, context: Sequence[float | None], previous: Sequence[float], fields: dict[str, Any]
    ) -> str | None:
        if not self.advice_dim:
            return None
        known = self._policy.contract, previous, fields["unconverged"], fields["shadow_action"] or None
        return describe_change(context[-self.advice_dim :], fields["action"], self._guard_promise, *known)

    def _step_batch(self, states: Sequence[bytes], contexts: Sequence[Sequence[float | None]]) -> list[StepOutcome]:
        padding = BATCH_SIZE - len(states)
        vectors = self._unpack([*states, *[states[0]] * padding])
        given = np.array([*contexts, *[contexts[0]] * padding], self._dtype)
        with self._lock:
            carried, figures = self._step(self._shared, tuple(vectors), given)
        after = [np.asarray(vector) for vector in carried]
        packed = np.concatenate([vector.view(np.uint8).reshape(BATCH_SIZE, -1) for vector in after], axis=1)
        front = StepOutput.read(after[0], self._sizes, self.plausible is not None)
        finite: Any = np.isfinite(np.hstack([front.action, front.costs])).all(axis=1)
        before = StepOutput.read(vectors[0], self._sizes, self.plausible is not None)
        previous = before.action[:, : self._dim].tolist()
        actions, costs = front.action[:, : self._dim].tolist(), front.costs.tolist()
        contexts_used = None if front.context is None else front.context.tolist()
        stuck = [()] * BATCH_SIZE if front.stuck is None else front.stuck.tolist()
        rows = np.asarray(figures)[: len(states)].tolist()
        known = [[entry if math.isfinite(entry) else None for entry in row] for row in rows]
        outcomes = []
        for row in range(len(states)):
            fields: dict[str, Any] | None = None
            if finite[row]:
                names, shadow = (*_FIGURES, *_OF_ADVICE), known[row][len(_FIGURES) + len(_OF_ADVICE) :]
                fields = dict(zip(names, known[row], strict=False)) | {"shadow_action": shadow[: self._shadow_dim]}
                fields["promises"] = self._describe_budgets(shadow[self._shadow_dim :])
                active, (hitting, switching, unconverged) = fields["guard_active"], costs[row][:3]
                fields |= {"action": actions[row], "hitting": hitting, "switching": switching}
                fields |= {"stuck": self._policy.contract.name_numbers(stuck[row])}
                fields |= {"unconverged": bool(unconverged), "guard_active": None if active is None else active > 0}
                fields |= {"change": self._describe_change(contexts[row], previous[row], fields)}
            used = contexts_used[row] if contexts_used is not None and costs[row][3] else None
            if used is not None and self.advice_dim:
                used = [number if math.isfinite(number) else None for number in used]
            outcomes.append(StepOutcome(packed[row].tobytes(), fields, used))
        return outcomes

    def _describe_budgets(self, figures: list[float | None]) -> list[PromiseBudget]:
        """Return what is left of each of several promises, from what is left and the spent shares."""
        count = len(self._promises)
        of_each = zip(self._promises, figures[:count], figures[count:], strict=False)
        return [PromiseBudget(name, period, left, spent) for (name, period), left, spent in of_each]
