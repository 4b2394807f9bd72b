"""The contract of a policy: what it expects of its input and what it promises, written by `fit` and read by every runner."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import pydantic

from ecl2o.agents import Promise
from ecl2o.local_time import find_zone
from ecl2o.policy.policy_file import LARGEST
from ecl2o.running import Screen

VERSION = 1
_PATIENCE = 24  # steps, if the length of a day is not known


class Source(pydantic.BaseModel, frozen=True, strict=True):
    """The file that a policy was made from: its name, and the SHA-256 of its bytes in hexadecimal."""

    file: str
    sha256: str


class FileFormat(pydantic.BaseModel, frozen=True, strict=True):
    """How a series file is read: what `fit` was told of it, and what a shorter file may not show. None: found by itself.

    Args:
        time_column: The column of the time.
        time_zone: The zone of the clock, such as "America/New_York"; times are then local, without an offset.
        day_first: Whether dates like 3/4/2015 start with the day.
        grouped: Whether points separate thousands in a file with decimal commas.
        fill: How gaps are filled: "interpolate" or "previous".
        fill_limit: The longest gap that is filled, in hours.
    """

    time_column: str | None = None
    time_zone: str | None = None
    day_first: bool | None = None
    grouped: bool | None = None
    fill: Literal["interpolate", "previous"] | None = None
    fill_limit: float | None = pydantic.Field(default=None, gt=0, le=LARGEST)

    @pydantic.field_validator("time_zone")
    @classmethod
    def _check_zone(cls, name: str | None) -> str | None:
        return None if name is None else find_zone(name).key


class Contract(pydantic.BaseModel, frozen=True, strict=True, ser_json_inf_nan="constants"):
    """What a policy expects of its input, and what it promises. Unknown fields are None.

    Args:
        version: The version of the contract.
        columns: The names of the q numbers of a context, in order.
        units: Their units, in the same order.
        context_dim: q, how many numbers a context has.
        step_minutes: Minutes from one context to the next.
        steps_per_day: Steps in one cycle of decisions, usually a day.
        day_start_minutes: When a cycle starts, in minutes after midnight of the file's clock.
        period_name: What people call the period of the promise: "day", "week".
        history_steps: Contexts that the policy must have seen before its first step to act as it was tested.
        history_until: The time of the last context of the policy's own history.
        seen_until: The time of the last context that training or selection used.
        source: The file that the policy was made from.
        file_format: How that file was read, and others are.
        promise: The bound on its cost.
        plausible: The lowest and highest plausible value of each number of a context; the last plausible context replaces
            one outside (`Screen`). None: contexts are not screened.
        accepted_after: Implausible contexts in a row after which they are accepted. Default: as many as a day has steps.
        stuck_after: Equal readings in a row of each number of a context that are plausible; more are reported as stuck. None:
            none is reported. Needs `plausible`.
        action_bounds: The lowest and highest value of each number of an action; infinite if there is no bound.
        ramp: The greatest change of each number of an action in one step; None if there is no limit.
        spacing: The distance between neighbouring values of each number of an action; None if it is any number.
        weight_column: The column after those that are followed, if it is the price of a miss.
        covariates: The last of the columns, which are seen and not followed: None, or the hours ahead that one forecasts.
        advice: The last of the covariates, if they are advice from outside, one for each number of an action: it may be anything,
            also missing, and is never screened.
        weights: The lowest and highest weight; one outside is clipped, which ends a promise.
        shift: Steps from a context to the step in which its action is in force: a delay, or less than 0 where contexts are known
            so many steps ahead.

    Raises:
        pydantic.ValidationError: A field is of the wrong type, out of range, or does not fit another one.

    >>> Contract(columns=["demand"], steps_per_day=24).context_dim
    1
    """

    version: Literal[1] = VERSION
    columns: list[str] | None = None
    units: list[str] | None = None
    context_dim: int | None = pydantic.Field(default=None, ge=1, le=LARGEST)
    step_minutes: float | None = pydantic.Field(default=None, gt=0, le=LARGEST)
    steps_per_day: int | None = pydantic.Field(default=None, ge=1, le=LARGEST)
    day_start_minutes: int | None = pydantic.Field(default=None, ge=0, lt=24 * 60)
    period_name: str = "day"
    history_steps: int | None = pydantic.Field(default=None, ge=0, le=LARGEST)
    history_until: str | None = None
    seen_until: str | None = None
    source: Source | None = None
    file_format: FileFormat = FileFormat()
    promise: Promise | None = None
    plausible: list[tuple[float, float]] | None = None
    accepted_after: int | None = pydantic.Field(default=None, ge=1, le=LARGEST)
    stuck_after: list[float] | None = None
    action_bounds: list[tuple[float, float]] | None = None
    ramp: list[float] | None = None
    spacing: list[float] | None = None
    weight_column: str | None = None
    covariates: dict[str, float | None] = {}
    advice: list[str] = []
    weights: tuple[float, float] | None = None
    shift: int = pydantic.Field(default=0, ge=-LARGEST, le=LARGEST)

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> "Contract":
        if self.context_dim is None and self.columns is not None:
            object.__setattr__(self, "context_dim", len(self.columns))
        for name in ("columns", "units", "plausible", "stuck_after"):
            given = getattr(self, name)
            if given is not None and len(given) != self.context_dim:
                raise ValueError(f"{name} must have one entry for each of the {self.context_dim} numbers of a context")
        columns = self.columns or []
        core = columns[: len(columns) - len(self.covariates)]
        if {*columns} != {*core, *self.covariates} or self.weight_column not in (None, *core[-1:]):
            found = f"{self.weight_column!r} and {list(self.covariates)}"
            raise ValueError(f"weight_column and covariates must be the last of the columns {columns}, got {found}")
        in_order = {name: self.covariates[name] for name in columns[len(core) :]}  # a file has them in any order
        object.__setattr__(self, "covariates", in_order)
        if self.advice != list(in_order)[len(in_order) - len(self.advice) :]:
            raise ValueError(f"advice must be the last of the covariates {list(in_order)}, got {self.advice}")
        for name in ("plausible", "action_bounds"):
            for low, high in getattr(self, name) or ():
                if math.isnan(low) or math.isnan(high) or low > high:
                    raise ValueError(f"{name} must be pairs of a lower and an upper end, got ({low}, {high})")
        if any(not limit >= 1 for limit in self.stuck_after or ()) or (self.stuck_after and self.plausible is None):
            raise ValueError(f"stuck_after must be counts of at least 1, next to plausible, got {self.stuck_after}")
        return self

    @property
    def screen(self) -> Screen | None:
        """The screen that replaces implausible contexts; None if there are no plausible ranges."""
        if self.plausible is None:
            return None
        day = self.steps_per_day or _PATIENCE
        known = len(self.covariates), day, len(self.advice)
        return Screen.of(self.plausible, self.accepted_after or day, self.stuck_after, *known)

    def name_numbers(self, flags: Iterable[Any]) -> list[str]:
        """Return the names of the flagged numbers of a context: their columns, else their places from 1."""
        return [self.columns[i] if self.columns else str(i + 1) for i, flag in enumerate(flags) if flag]


def describe_shift(shift: int) -> str:
    """Return in words for which step the action that answers a context is.

    >>> describe_shift(1), describe_shift(-2)
    ('each action is in force 1 step after its context.', 'each action is for 2 steps before its context.')
    """
    steps = f"{abs(shift)} step{'s' if abs(shift) > 1 else ''}"
    place = f"in force {steps} after" if shift > 0 else f"for {steps} before"
    return f"each action is {place} its context."


def describe_validation_error(error: pydantic.ValidationError) -> str:
    """Return what pydantic found, in one line.

    >>> try:
    ...     Contract(step_minutes=-1.0)
    ... except pydantic.ValidationError as error:
    ...     print(describe_validation_error(error))
    step_minutes: Input should be greater than 0
    """
    found = (f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}".removeprefix(": ") for entry in error.errors())
    return "; ".join(dict.fromkeys(found)).replace(": Value error, ", ": ")
