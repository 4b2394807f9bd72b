"""What requests and answers look like; the OpenAPI description at /docs is made of these."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, Strict, StrictInt

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
Name = Annotated[str, Path(pattern=_NAME, max_length=128, description="letters, digits and . _ : - , at most 128")]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]

Figure = Annotated[float, Strict(), AllowInfNan(False)]  # neither "18" nor true is a number
Context = Annotated[list[Figure], Field(max_length=4096)]
Reading = Annotated[list[Figure | None], Field(max_length=4096)]  # null: a number that is missing


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamAsked(_Given):
    """A stream to be made.

    Args:
        policy: the name of a policy.
        x0: the action in force before the first step; the last context of the history if it is left out. Up to 1e100.
        history: contexts seen before the first step; the policy's own if it is left out. Up to 1e100, unless they are screened.
    """

    policy: str = Field(pattern=_NAME, max_length=128)
    x0: Context | None = None
    history: Annotated[list[Context], Field(max_length=200_000)] | None = None


class StepAsked(_Given):
    """A context, null where a number is missing, and the step's number (1, 2, ...), which makes it safe to send again."""

    context: Figure | Reading | None
    step: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = None

    @property
    def numbers(self) -> list[float | None]:
        """The context as a list."""
        return self.context if isinstance(self.context, list) else [self.context]


class Refusal(BaseModel):
    """What was wrong, and what to do."""

    model_config = ConfigDict(extra="allow")
    detail: str


class Step(BaseModel):
    """A step and how the stream stands after it.

    Args:
        step: its number, from 1.
        action: what to do.
        hitting: f(x_t, y_t), this step's.
        switching: c(x_t, x_{t-1}), this step's.
        cost: the whole bill so far.
        optimum: the least that the contexts so far could have cost in hindsight; null where that is not known.
        live_ratio: cost over what the promise is relative to, in the promise's current period; without a promise, cost over
            optimum.
        promise: the promised ratio.
        promise_left: what the promise leaves to be spent, in units of cost.
        guard_active: whether the guard changed the action.
        expert: R-OBD's bill so far, on its own way.
        context: what was sent.
        screened: whether that was missing or implausible, so that another one stood in.
        context_used: what was answered; the bill is about this.
        unconverged: whether a solve did not converge, or a promise holds no longer: nothing is guaranteed of this action.
        at: when, in seconds since 1970.
    """

    step: int
    action: list[float]
    hitting: float
    switching: float
    cost: float
    optimum: float | None
    live_ratio: float | None
    promise: float | None
    promise_left: float | None
    guard_active: bool | None
    expert: float | None
    context: list[float | None]
    screened: bool = False
    context_used: list[float] | None = None
    unconverged: bool = False
    at: float


class Steps(BaseModel):
    """The steps of a call: those that were answered and those that were not, by stream."""

    answered: dict[str, Step]
    refused: dict[str, dict[str, Any]]


class StreamShown(BaseModel):
    """Where a stream stands; `history` is how many contexts it began on."""

    id: str
    policy: str
    x0: list[float]
    history: int
    created: float
    steps: int
    action: list[float]
    last: Step | None


class StreamsShown(BaseModel):
    """Streams by name; ask again with after=`next` for those that follow."""

    streams: list[StreamShown]
    next: str | None


class Action(BaseModel):
    """The action in force, and the number of the step that chose it (0: x0)."""

    step: int
    action: list[float]


class Promise(BaseModel):
    """cost <= ratio x reference + allowance, in every `period` steps (null: over the whole run)."""

    text: str
    ratio: float
    reference: str
    reference_name: str | None
    allowance: float
    period: int | None
    contexts: list[tuple[float, float]] | None


class PolicyShown(BaseModel):
    """A policy in a few words; `trouble` where it cannot be read."""

    name: str
    agent: str | None
    promise: Promise | None
    trouble: str | None


class PolicyAbout(BaseModel):
    """What a policy is."""

    model_config = ConfigDict(extra="allow")
    name: str
    agent: str
    promise: Promise | None


class Kept(BaseModel):
    """A policy that is in the store."""

    name: str
    new: bool


class Ready(BaseModel):
    """Whether the service may be asked, and why not."""

    ready: bool
    reasons: list[str]


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, and those that any route may have."""
    words = {
        400: "not to be understood",
        401: "no token, or a wrong one",
        403: "not with this token, or not from there",
        404: "not there",
        408: "the body took too long",
        409: "against what is there",
        413: "too large",
        422: "not sound",
        503: "not now",
    }
    wanted = sorted({400, 401, 403, 408, 413, 422, 503, *statuses})
    return {status: {"model": Refusal, "description": words[status]} for status in wanted}
