"""The values that the service stores and answers; each is a database row, a JSON object and an OpenAPI model at once."""

import dataclasses
import datetime
import json
from typing import Annotated, NamedTuple

from pydantic import Field

from ecl2o.agents import Promise

encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=vars).encode


@dataclasses.dataclass
class PromiseBudget:
    """What is left of one of several promises; of windows, of the one with the least left."""

    name: Annotated[str, Field(description="The bound on the cost.")]
    period: Annotated[int | None, Field(description="Steps that the promise covers; null for the whole run.")]
    left: Annotated[float | None, Field(description="What it allows to be spent, in units of cost.")]
    spent: Annotated[float | None, Field(description="Spent share of the cost that it allows above its reference.")]


@dataclasses.dataclass
class StepRecord:
    """A step of a stream, and the totals of the stream after it."""

    step: Annotated[int, Field(description="Number of the step, from 1.")]
    action: Annotated[list[float], Field(description="The action x_t.")]
    hitting: Annotated[float, Field(description="Hitting cost f(x_t, y_t) of this step.")]
    switching: Annotated[float, Field(description="Movement cost c(x_t, x_{t-1}) of this step.")]
    cost: Annotated[float, Field(description="Total cost of the stream so far.")]
    optimum: Annotated[
        float | None,
        Field(
            description="Least possible cost so far, in hindsight, or a lower bound on it (see the policy); null if unknown."
        ),
    ]
    live_ratio: Annotated[
        float | None,
        Field(
            description="Cost over the reference's, in the promise's period; without a promise, cost over optimum; with "
            "several, of the first."
        ),
    ]
    promise: Annotated[
        float | None, Field(description="The promised ratio; null without a promise; with several, the first.")
    ]
    promise_left: Annotated[
        float | None,
        Field(description="What the promise allows to be spent, in units of cost; with several, the least."),
    ]
    promise_spent: Annotated[
        float | None,
        Field(
            description="Spent share of the cost that the promise allows above its reference; 1 is all; with several, the "
            "largest."
        ),
    ]
    promises: Annotated[list[PromiseBudget], Field(description="Each of several promises; empty with fewer than two.")]
    guard_active: Annotated[bool | None, Field(description="Whether the guard changed the action; null without one.")]
    change: Annotated[
        str | None,
        Field(description="What was changed in the advice, and why; null if it was played, or the policy takes none."),
    ]
    advice_cost: Annotated[float | None, Field(description="Total cost of the advice alone, played as it was sent.")]
    shadow_action: Annotated[
        list[float], Field(description="In shadow mode, what the guard would have played; else empty.")
    ]
    shadow_cost: Annotated[float | None, Field(description="In shadow mode, total cost of the guard's own actions.")]
    shadow_left: Annotated[
        float | None, Field(description="In shadow mode, what the promise would allow after the guard's own actions.")
    ]
    expert: Annotated[float | None, Field(description="Total cost of R-OBD on the same contexts so far.")]
    context: Annotated[list[float | None], Field(description="The context as sent; null for a missing number.")]
    screened: Annotated[bool, Field(description="Whether the context was missing or implausible and was replaced.")]
    context_used: Annotated[
        list[float | None], Field(description="The context that action and costs refer to; null for missing advice.")
    ]
    stuck: Annotated[
        list[str],
        Field(description="Columns whose reading has not changed for longer than training suggests: a stuck meter?"),
    ]
    unconverged: Annotated[bool, Field(description="Not guaranteed: a solve did not converge, or the promise ended.")]
    time: Annotated[str | None, Field(description="Time that the context belongs to; null if none was ever sent.")]
    filled: Annotated[bool, Field(description="Whether no context came for this step, and it was filled in.")]
    at: Annotated[float, Field(description="Time at which the step was executed, in seconds since 1970.")]
    in_force_from: Annotated[
        str | None,
        Field(description="Time from which the action is in force, if it is not that of the context; null if unknown."),
    ] = None

    def __post_init__(self):
        self.promises = [PromiseBudget(**each) if isinstance(each, dict) else each for each in self.promises]

    def to_json(self) -> str:
        return encode_json(vars(self))


class StepRequest(NamedTuple):
    """A context for a stream, with None for missing numbers; the expected step number and the time, if the client gave them.

    `filled`: no client sent it; it fills in a missed step. `advice`: the advice, if it was sent apart.
    """

    stream: str
    context: list[float | None]
    step: int | None = None
    time: datetime.datetime | None = None
    filled: bool = False
    advice: list[float | None] | None = None


class StepResult(NamedTuple):
    """The answer to a step, as JSON. `record` is None for a repeated request and for steps of other services."""

    stream: str
    policy: str
    json: str
    record: StepRecord | None = None


@dataclasses.dataclass
class StreamRecord:
    """A stream: its start, its action in force and its last step."""

    id: str
    policy: str
    x0: list[float]
    history: Annotated[int, Field(description="Number of contexts before the first step.")]
    created: Annotated[float, Field(description="Time of creation, in seconds since 1970.")]
    steps: int
    screened_steps: Annotated[int, Field(description="Number of steps whose context was replaced.")]
    stuck_steps: Annotated[int, Field(description="Number of steps with a stuck reading.")]
    action: Annotated[list[float], Field(description="The action in force; x0 before the first step.")]
    last: StepRecord | None
    start: Annotated[str | None, Field(description="Time of the first step; null if unknown.")] = None
    notice: Annotated[
        str | None, Field(description="What was assumed about the start, or how the history was fitted to it.")
    ] = None


@dataclasses.dataclass
class PolicySummary:
    """A stored policy. `error` says why it cannot be loaded; agent and promise are null then."""

    name: str
    agent: str | None
    promise: Promise | None
    error: str | None


@dataclasses.dataclass
class PolicyUsage:
    """Totals over the streams of one policy; units are those of its actions, or empty."""

    policy: str
    streams: int
    steps: int
    live_ratio_max: float | None
    promise_left_min: float | None
    promise_spent_max: float | None
    promise: Promise | None
    units: str


@dataclasses.dataclass
class Hindsight:
    """The optimal actions for known contexts, from step `first` on."""

    first: int
    actions: list[list[float]]
