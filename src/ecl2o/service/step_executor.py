"""Execute batches of steps, each batch in one transaction."""

import dataclasses
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from ecl2o.exceptions import ConflictError, InvalidRequestError, NotFoundError, ServiceError, UnavailableError
from ecl2o.policy.context_validation import explain_failed_step
from ecl2o.service import queries
from ecl2o.service.batched_stepper import BatchedStepper, StepOutcome
from ecl2o.service.models import StepRecord, StepRequest, StepResult
from ecl2o.service.queries import StreamPosition

_MAX_CACHED_STATES = 100_000
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass
class StepBatch:
    """The outcome of a batch: results in the order of the requests, and the states to cache after the commit.

    `written` has the key of the stream and the number of each new step; `time` is the time of these steps.
    """

    results: list[StepResult | ServiceError | None]
    time: float
    states: dict[int, tuple[int, bytes]] = dataclasses.field(default_factory=dict)
    written: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class StepExecutor:
    """Execute batches of steps. Not thread-safe: the writer thread has one executor.

    Args:
        get_stepper: Returns the compiled stepper for a policy and a history length. Raises `ServiceError` if there is none.
    """

    def __init__(self, get_stepper: Callable[[str, int], BatchedStepper]):
        self._get_stepper = get_stepper
        self._states: OrderedDict[int, tuple[int, bytes]] = OrderedDict()  # key: number of steps, state after them
        self._open_count = 0
        self.latest_time = 0.0  # of a step; later steps are never earlier, even if the clock is set back

    def drop_stale_states(self, open_count: int) -> None:
        """Empty the cache if the store was reopened: it may have been restored from a backup."""
        if open_count != self._open_count:
            self._states.clear()
            self._open_count = open_count

    def execute(self, connection: sa.Connection, requests: Sequence[StepRequest]) -> StepBatch:
        """Execute requests within a transaction; several for one stream run in their order."""
        batch = StepBatch([None] * len(requests), max(self.latest_time, time.time()))
        pending = list(range(len(requests)))
        while pending:
            first_of_stream = {}
            for index in pending:
                first_of_stream.setdefault(requests[index].stream, index)
            self._execute_round(connection, requests, list(first_of_stream.values()), batch)
            pending = [index for index in pending if batch.results[index] is None]
        return batch

    def cache_states(self, batch: StepBatch) -> None:
        """Cache the states of a committed batch."""
        self.latest_time = max(self.latest_time, batch.time)
        for key, state in batch.states.items():
            self._states[key] = state
            self._states.move_to_end(key)
        while len(self._states) > _MAX_CACHED_STATES:
            self._states.popitem(last=False)

    def _execute_round(
        self, connection: sa.Connection, requests: Sequence[StepRequest], indices: list[int], batch: StepBatch
    ) -> None:
        """Execute at most one request per stream, those of one policy and history length together."""
        ids = [requests[index].stream for index in indices]
        positions = queries.lock_streams(connection, [id for id in ids if id.isprintable()])  # PostgreSQL rejects NUL
        batch.time = max([batch.time, *(position.updated for position in positions.values())])  # other services' clocks
        groups: dict[BatchedStepper, list[tuple[int, StreamPosition]]] = {}
        for index in indices:
            request = requests[index]
            try:
                position = positions.get(request.stream)
                if position is None:
                    raise NotFoundError(f"There is no stream {request.stream!r}. Create it first.")
                stepper = self._get_stepper(position.policy, position.history)
                _check_context(request, stepper)
                if _is_next(request, position):
                    groups.setdefault(stepper, []).append((index, position))
                else:
                    batch.results[index] = _repeat_answer(connection, request, position)
            except ServiceError as error:
                batch.results[index] = error
        for stepper, members in groups.items():
            self._execute_group(connection, stepper, requests, members, batch)

    def _execute_group(
        self,
        connection: sa.Connection,
        stepper: BatchedStepper,
        requests: Sequence[StepRequest],
        members: list[tuple[int, StreamPosition]],
        batch: StepBatch,
    ) -> None:
        states = self._load_states(connection, [position for _, position in members], batch)
        try:
            outcomes = stepper.step(states, [requests[index].context for index, _ in members])
        except Exception:
            _log.exception("the compiled step of a policy failed")
            for index, _ in members:  # the rest of the transaction is not affected
                batch.results[index] = UnavailableError("The policy's compiled step failed. Nothing was changed.")
            return
        made = []
        for (index, position), outcome in zip(members, outcomes, strict=True):
            context = requests[index].context
            if outcome.action is None:
                reason = explain_failed_step(context, outcome.context_used, stepper.plausible)
                batch.results[index] = InvalidRequestError(reason)
                continue
            record = _make_record(position.steps + 1, batch.time, context, outcome.action, outcome, stepper.promise)
            text = record.to_json()
            made.append((position, record, text, outcome.state))
            batch.states[position.key] = (record.step, outcome.state)
            batch.written.append((position.key, record.step))
            batch.results[index] = StepResult(position.id, position.policy, text, record)
        if made:
            queries.append_steps(connection, made, batch.time)

    def _load_states(self, connection: sa.Connection, positions: list[StreamPosition], batch: StepBatch) -> list[bytes]:
        """Return each stream's state: from the cache if it is after the stream's last step, else from the database."""
        found: dict[int, bytes] = {}
        for position in positions:
            steps, state = batch.states.get(position.key) or self._states.get(position.key) or (-1, b"")
            if steps == position.steps:
                found[position.key] = state
        found |= queries.load_states(connection, [position.key for position in positions if position.key not in found])
        return [found[position.key] for position in positions]


def _check_context(request: StepRequest, stepper: BatchedStepper) -> None:
    if len(request.context) != stepper.context_dim:
        raise InvalidRequestError(
            f"The context must have {stepper.context_dim} numbers, but {len(request.context)} were sent."
        )
    if not all(entry is None or math.isfinite(entry) for entry in request.context):
        raise InvalidRequestError("The context must be finite numbers.")
    if None in request.context and not stepper.is_screened:
        raise InvalidRequestError(
            "A number of the context is missing, and the policy has no plausible ranges by which to replace it."
        )


def _is_next(request: StepRequest, position: StreamPosition) -> bool:
    """Return whether the request is for the stream's next step; False if it repeats the last one."""
    if request.step is None or request.step == position.steps + 1:
        return True
    if request.step == position.steps and position.steps > 0:
        return False
    raise ConflictError(
        f"Step {request.step} does not follow the last step, {position.steps}. Send step {position.steps + 1}.",
        last_step=position.steps,
        next_step=position.steps + 1,
    )


def _repeat_answer(connection: sa.Connection, request: StepRequest, position: StreamPosition) -> StepResult:
    """Return the answer to the last step again, if the context is the same."""
    text = queries.load_last_steps(connection, [position.key])[position.key].json
    answered = json.loads(text)["context"]
    if answered != request.context:
        raise ConflictError(
            f"Step {request.step} was already answered for another context and cannot be changed.",
            last_step=position.steps,
            context_answered=answered,
            context_sent=request.context,
        )
    return StepResult(position.id, position.policy, text)


def _make_record(
    step: int, at: float, context: list[Any], action: list[float], outcome: StepOutcome, promise: float | None
) -> StepRecord:
    figures, used = outcome.figures, outcome.context_used
    return StepRecord(
        step=step,
        action=action,
        hitting=outcome.hitting,
        switching=outcome.switching,
        cost=figures.cost,
        optimum=_finite(figures.optimum),
        live_ratio=_finite(figures.live_ratio),
        promise=promise,
        promise_left=_finite(figures.promise_left),
        guard_active=None if math.isnan(figures.guard_active) else figures.guard_active > 0,
        expert=_finite(figures.expert),
        context=context,
        screened=used is not None,
        context_used=context if used is None else used,
        unconverged=outcome.unconverged,
        at=at,
    )


def _finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None
