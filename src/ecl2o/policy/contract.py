"""What a policy expects of those who run it, and what it promises them: written by `fit`, read by everything that runs it."""

import math
from typing import Literal

import pydantic

from ecl2o.agents import Promise
from ecl2o.policy.policy_file import LARGEST
from ecl2o.running import Screen

VERSION = 1
_PATIENCE = 24  # steps, where nobody says how many a day has


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="ignore", ser_json_inf_nan="constants")


class PromiseTerms(_Frozen):
    """cost <= ratio times the reference's cost + allowance, in every period.

    Args:
        ratio: the factor.
        relative_to: whose cost the ratio is of: "the optimum", or an expert by its name.
        allowance: what may be spent on top in a period, in units of cost.
        period: steps after which the promise begins anew; None: it is for the whole run.
        period_name: what people call a period: "day", "week".
        contexts: (lowest, highest) of each number of a context, within which the promise holds; None: for any contexts.
    """

    ratio: float
    relative_to: str = "the optimum"
    allowance: float = 0.0
    period: int | None = pydantic.Field(default=None, ge=1)
    period_name: str = "day"
    contexts: list[tuple[float, float]] | None = None

    @classmethod
    def of(cls, promise: Promise, period_name: str) -> "PromiseTerms":
        """A guard's promise as plain numbers."""
        return cls(
            ratio=promise.ratio,
            relative_to=promise.reference_name or "the optimum",
            allowance=promise.allowance,
            period=promise.period,
            period_name=period_name,
            contexts=None if promise.contexts is None else list(promise.contexts),
        )


class Source(_Frozen):
    """The file that a policy was made from.

    Args:
        file: its name.
        sha256: the hash of its bytes, in hexadecimal.
    """

    file: str
    sha256: str


class Contract(_Frozen):
    """What a policy expects and promises. Fields that nobody knows are None.

    Args:
        version: of this contract.
        columns: the names of the q numbers of a context, in order.
        units: their units, in the same order.
        context_dim: q, how many numbers a context has.
        step_minutes: minutes from one context to the next.
        steps_per_day: steps in one round of decisions, usually a day.
        day_start_minutes: when such a round begins, in minutes after midnight of the file's clock.
        period_name: what people call the period of the promise: "day", "week".
        history_steps: contexts that the policy must have seen before its first step to act as it was tested.
        history_until: the time of the last context in the policy's own history.
        seen_until: the time of the last context that training or choice have seen.
        source: the file that it was made from.
        promise: what is promised of the bill.
        plausible: (lowest, highest) that each number of a context is expected to have; what lies outside is not believed
            (`Screen`). None: everything is.
        accepted_after: implausible contexts in a row after which they are believed all the same; None: as many as a day has.
        action_bounds: (lowest, highest) of each of the d numbers of an action; infinite where there is no bound.
        weight_column: the last of the columns, where it is what a miss costs.
        weights: (lowest, highest) of it; the nearer end is billed for what lies outside, and ends a promise.

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
    promise: PromiseTerms | None = None
    plausible: list[tuple[float, float]] | None = None
    accepted_after: int | None = pydantic.Field(default=None, ge=1, le=LARGEST)
    action_bounds: list[tuple[float, float]] | None = None
    weight_column: str | None = None
    weights: tuple[float, float] | None = None

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> "Contract":
        if self.context_dim is None and self.columns is not None:
            object.__setattr__(self, "context_dim", len(self.columns))
        for name in ("columns", "units", "plausible"):
            given = getattr(self, name)
            if given is not None and len(given) != self.context_dim:
                raise ValueError(f"{name} must have one entry for each of the {self.context_dim} numbers of a context")
        if self.weight_column is not None and (self.columns or [None])[-1] != self.weight_column:
            raise ValueError(f"weight_column must be the last of the columns, got {self.weight_column!r}")
        for name in ("plausible", "action_bounds"):
            for low, high in getattr(self, name) or ():
                if math.isnan(low) or math.isnan(high) or low > high:
                    raise ValueError(f"{name} must be pairs of a lower and an upper end, got ({low}, {high})")
        return self

    @property
    def screen(self) -> Screen | None:
        """What keeps readings that cannot be right from the policy; None where nothing is known to be implausible."""
        if self.plausible is None:
            return None
        return Screen.of(self.plausible, self.accepted_after or self.steps_per_day or _PATIENCE)


def describe_validation_error(error: pydantic.ValidationError) -> str:
    """What pydantic found, in one line.

    >>> try:
    ...     Contract(step_minutes=-1.0)
    ... except pydantic.ValidationError as error:
    ...     print(describe_validation_error(error))
    step_minutes: Input should be greater than 0
    """
    found = (f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}".removeprefix(": ") for entry in error.errors())
    return "; ".join(dict.fromkeys(found))
