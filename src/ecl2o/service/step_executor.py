"""A group of steps in one transaction: each judged by itself, played together, written before anybody hears of it."""

import dataclasses
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from ecl2o.policy.context_validation import explain_failed_step
from ecl2o.service import queries
from ecl2o.service.batched_stepper import Lanes, Played
from ecl2o.service.queries import Place
from ecl2o.service.refused import Refused

_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_REMEMBERED = 100_000  # streams whose states are kept at hand
_log = logging.getLogger("ecl2o.serve")


class Ask(NamedTuple):
    """A context for a stream, None for a number that is missing, and the number of the step if it was said."""

    stream: str
    context: list[float | None]
    step: int | None = None


class Answer(NamedTuple):
    """A step's answer as JSON, which is also what is stored; `fresh` if it was played now and by this service."""

    stream: str
    policy: str
    text: str
    fresh: bool
    active: bool
    screened: bool = False
    unconverged: bool = False


@dataclasses.dataclass(frozen=True)
class Course:
    """How the streams of a policy with a history of some length are stepped, and what they are promised."""

    lanes: Lanes
    context_dim: int
    promise: float | None


@dataclasses.dataclass
class Group:
    """What a transaction does: answers in the order of the asks, and the states to remember once it is committed.

    `made` are the keys of streams and the numbers of their steps that are written, `latest` is the time of these steps.
    """

    answers: list[Answer | Refused | None]
    latest: float
    states: dict[int, tuple[int, bytes]] = dataclasses.field(default_factory=dict)
    made: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class Player:
    """Steps streams. `course_of(policy, seen)` gives their program or refuses. For one thread."""

    def __init__(self, course_of: Callable[[str, int], Course]):
        self._course_of = course_of
        self._states: OrderedDict[int, tuple[int, bytes]] = OrderedDict()  # key: steps made, state after them
        self._openings = 0
        self.latest = 0.0  # the time of the last step; a clock that is set back does not lead below it

    def trust(self, openings: int) -> None:
        """Forget what is remembered if the store has been opened anew since: it may be another one, from a backup."""
        if openings != self._openings:
            self._states.clear()
            self._openings = openings

    def play(self, connection: sa.Connection, asks: Sequence[Ask]) -> Group:
        """All asks, those of one stream one after the other."""
        group = Group([None] * len(asks), max(self.latest, time.time()))
        waiting = list(range(len(asks)))
        while waiting:
            first = {}
            for number in waiting:
                first.setdefault(asks[number].stream, number)
            self._round(connection, asks, list(first.values()), group)
            waiting = [number for number in waiting if group.answers[number] is None]
        return group

    def committed(self, group: Group) -> None:
        """Remember the states that are now in the store."""
        self.latest = max(self.latest, group.latest)
        for key, state in group.states.items():
            self._states[key] = state
            self._states.move_to_end(key)
        while len(self._states) > _REMEMBERED:
            self._states.popitem(last=False)

    def _round(self, connection: sa.Connection, asks: Sequence[Ask], numbers: list[int], group: Group) -> None:
        """One ask for each stream."""
        named = [asks[number].stream for number in numbers]
        places = queries.lock(connection, [name for name in named if name.isprintable()])  # no name has a zero in it
        group.latest = max([group.latest, *(place.touched for place in places.values())])  # another service's clock
        courses: dict[tuple[str, int], list[tuple[int, Place]]] = {}
        for number in numbers:
            ask = asks[number]
            try:
                place = places.get(ask.stream)
                if place is None:
                    raise Refused(404, f"there is no stream {ask.stream!r}; make it with PUT /streams/{ask.stream}.")
                course = self._course_of(place.policy, place.seen)
                _check_context(ask, course)
                if _is_next(ask, place):
                    courses.setdefault((place.policy, place.seen), []).append((number, place))
                else:
                    group.answers[number] = _again(connection, ask, place)
            except Refused as refused:
                group.answers[number] = refused
        for (policy, seen), members in courses.items():
            self._play_course(connection, self._course_of(policy, seen), asks, members, group)

    def _play_course(
        self,
        connection: sa.Connection,
        course: Course,
        asks: Sequence[Ask],
        members: list[tuple[int, Place]],
        group: Group,
    ) -> None:
        states = self._gather(connection, [place for _, place in members], group)
        try:
            played = course.lanes.play(states, [asks[number].context for number, _ in members])
        except Exception:
            _log.exception("a policy's program failed")
            for number, _ in members:  # others who share the transaction are not concerned
                group.answers[number] = Refused(503, "the policy's program failed; nothing was changed.")
            return
        made, moved = [], []
        for (number, place), step in zip(members, played, strict=True):
            ask = asks[number]
            if step.action is None:
                group.answers[number] = Refused(
                    422, explain_failed_step(ask.context, step.used, course.lanes.plausible)
                )
                continue
            row = _row(place.steps + 1, group.latest, ask.context, step)
            text = _text(row, course.promise)
            stored = {"context": _ENCODE(ask.context), "action": _ENCODE(step.action)}
            used = None if step.used is None else _ENCODE(step.used)
            made.append(row | stored | {"stream": place.key, "used": used})
            moved.append(
                {
                    "at_key": place.key,
                    "after": place.steps,
                    "steps": place.steps + 1,
                    "state": step.state,
                    "touched": group.latest,
                    "last": text,
                    "live_ratio": row["live_ratio"],
                    "promise_left": row["promise_left"],
                }
            )
            group.states[place.key] = (place.steps + 1, step.state)
            group.made.append((place.key, place.steps + 1))
            group.answers[number] = Answer(
                ask.stream,
                place.policy,
                text,
                True,
                bool(row["guard_active"]),
                step.used is not None,
                step.unconverged,
            )
        if made:
            queries.append(connection, made, moved)

    def _gather(self, connection: sa.Connection, places: list[Place], group: Group) -> list[bytes]:
        """The states of streams, from memory where it is of the step that the store has, else from the store."""
        known: dict[int, bytes] = {}
        for place in places:
            steps, state = group.states.get(place.key) or self._states.get(place.key) or (-1, b"")
            if steps == place.steps:
                known[place.key] = state
        missing = [place.key for place in places if place.key not in known]
        known |= queries.states(connection, missing)
        return [known[place.key] for place in places]


def _check_context(ask: Ask, course: Course) -> None:
    if len(ask.context) != course.context_dim:
        raise Refused(422, f"the context must be {course.context_dim} numbers, got {len(ask.context)}.")
    if not all(entry is None or math.isfinite(entry) for entry in ask.context):
        raise Refused(422, "the context must be finite numbers.")
    if None in ask.context and not course.lanes.is_screened:
        raise Refused(
            422, "a number is missing, and the policy does not say what is plausible, so that none stands in."
        )


def _is_next(ask: Ask, place: Place) -> bool:
    """Whether this is the next step of the stream; False for the last one again."""
    if ask.step is None or ask.step == place.steps + 1:
        return True
    if ask.step == place.steps and place.steps > 0:
        return False
    detail = f"step {ask.step} does not follow step {place.steps}, the last one of this stream; the next is {place.steps + 1}."
    raise Refused(409, detail, last_step=place.steps, next_step=place.steps + 1)


def _again(connection: sa.Connection, ask: Ask, place: Place) -> Answer:
    """The answer that the last step had, if this is the last step."""
    text = queries.last_text(connection, place.key)
    answered = json.loads(text)["context"]
    if answered != ask.context:
        detail = f"step {ask.step} was answered for another context; a step cannot be taken back."
        raise Refused(409, detail, last_step=place.steps, context_answered=answered, context_sent=ask.context)
    return Answer(ask.stream, place.policy, text, False, False)


def _row(step: int, at: float, context: list[float | None], played: Played) -> dict[str, Any]:
    """A step as a row of the store. The live ratio is the promise's, in its period, where there is one."""
    report, action = played.report, played.action
    over = (report.account_cost, report.account_reference)
    cost, reference = over if not math.isnan(report.left) else (report.cost, report.optimum)
    ratio = cost / reference if reference > 0 else (1.0 if cost <= 0 else math.nan)
    return {
        "step": step,
        "at": at,
        "context": context,
        "action": action,
        "hitting": played.hitting,
        "switching": played.switching,
        "cost": report.cost,
        "optimum": _known(report.optimum),
        "expert": _known(report.expert),
        "live_ratio": _known(ratio),
        "promise_left": _known(report.left),
        "guard_active": None if math.isnan(report.active) else report.active > 0,
        "used": played.used,
        "unconverged": played.unconverged,
    }


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


def answer(row: dict[str, Any], promise: float | None) -> dict[str, Any]:
    """A step as people see it."""
    return {
        "step": row["step"],
        "action": row["action"],
        "hitting": row["hitting"],
        "switching": row["switching"],
        "cost": row["cost"],
        "optimum": row["optimum"],
        "live_ratio": row["live_ratio"],
        "promise": promise,
        "promise_left": row["promise_left"],
        "guard_active": row["guard_active"],
        "expert": row["expert"],
        "context": row["context"],
        "screened": row["used"] is not None,
        "context_used": row["context"] if row["used"] is None else row["used"],
        "unconverged": bool(row["unconverged"]),
        "at": row["at"],
    }


def answer_text(row: dict[str, Any], last: str) -> str:
    """A step of the store as it was answered; `last` is the answer to a step of the same stream."""
    return _text(row, json.loads(last)["promise"])


def _text(row: dict[str, Any], promise: float | None) -> str:
    return _ENCODE(answer(row, promise))
