"""What an agent promises about its cost: one value from guards to contracts, tables and HTTP answers."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any


class Reference(enum.StrEnum):
    """Whose cost a promise is relative to."""

    OPTIMUM = "optimum"
    """The offline optimum of the same contexts."""
    EXPERT = "expert"
    """An agent on its own trajectory, named by `Promise.reference_name`."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """A bound on an agent's cost: cost <= ratio * reference cost + allowance, at every step of a period.

    A plain value: pydantic validates it as a field, and `dataclasses.replace` changes it.

    Args:
        ratio: the factor; positive and finite.
        reference: whose cost the ratio multiplies. Default: the optimum.
        reference_name: the expert's name; None for the optimum. Default: None.
        allowance: cost allowed on top in each period, in units of cost; 0 or more. Default: 0.
        period: steps that one promise covers. None: the whole run, of any length. Default: None.
        contexts: the conditions: (lowest, highest) of each number of a context, or one pair for all of them. The promise
            holds while contexts stay there. None: it holds for any contexts. Default: None.
        at_end: whether the bound holds at the end of each period only, not at every step. Default: False.
        rolling: whether it covers every window of up to `period` steps, not only the periods of a calendar. Default: False.
        in_band: whether it holds only while contexts stay in a band around their forecasts. Default: False.
        allowance_per_step: further cost allowed for each step of the period, in units of cost; 0 or more. Default: 0.
        alternative: (ratio, allowance per step), with which the same bound holds too. Default: None.
        also: further promises that are kept beside this one. Default: none.

    Raises:
        ValueError: if a number is out of its range, or if an expert has no name.

    >>> print(Promise(2.0, period=24))
    the cost is at most 2 times the optimum in every 24 steps
    >>> print(Promise(1.5, Reference.EXPERT, "ROBD", allowance=0.5))
    the cost is at most 1.5 times that of ROBD plus 0.5 over the whole run
    >>> print(Promise(2.0, contexts=((0.0, 0.8),)))
    the cost is at most 2 times the optimum over the whole run while contexts stay between 0 and 0.8
    >>> print(Promise(1.75, also=(Promise(4.0, period=48, rolling=True),)))
    the cost is at most 1.75 times the optimum over the whole run, and at most 4 times the optimum in any 48 steps in a row
    """

    ratio: float
    reference: Reference = Reference.OPTIMUM
    reference_name: str | None = None
    allowance: float = 0.0
    period: int | None = None
    contexts: tuple[tuple[float, float], ...] | None = None
    at_end: bool = False
    rolling: bool = False
    in_band: bool = False
    allowance_per_step: float = 0.0
    alternative: tuple[float, float] | None = None
    also: "tuple[Promise, ...]" = ()

    def __post_init__(self):
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ratio must be positive and finite, got {self.ratio}.")
        for name in ("allowance", "allowance_per_step"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more and finite, got {getattr(self, name)}.")
        if self.period is not None and self.period < 1:
            raise ValueError(f"period must be at least 1 step, or None for the whole run, got {self.period}.")
        if self.rolling and self.period is None:
            raise ValueError("a rolling promise needs a period, the steps of its longest window.")
        if (self.reference is Reference.EXPERT) != (self.reference_name is not None):
            raise ValueError(f"reference_name is for an expert, got {self.reference_name!r} for the {self.reference}.")
        for low, high in self.contexts or ():
            if not low <= high:
                raise ValueError(f"contexts must be pairs (low, high) with low <= high, got ({low}, {high}).")

    def bound(self, reference_cost: float, steps: int) -> float:
        """Return the largest cost that the promise allows in a period of so many steps, if the reference costs so much.

        >>> Promise(2.0, allowance=1.0).bound(3.0, steps=24)
        7.0
        """
        return self.ratio * reference_cost + self.allowance + self.allowance_per_step * steps

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        contexts = None if self.contexts is None else [list(pair) for pair in self.contexts]
        also = [each.to_json() for each in self.also]
        return {**dataclasses.asdict(self), "reference": self.reference.value, "contexts": contexts, "also": also}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Promise":
        """Make a promise from what `to_json` returned; raise ValueError if a value is out of its range.

        >>> Promise.from_json({"ratio": 2.0, "reference": "optimum", "contexts": [[0.0, 1.0]]}).contexts
        ((0.0, 1.0),)
        """
        pairs = fields.get("contexts")
        contexts = None if pairs is None else tuple((float(low), float(high)) for low, high in pairs)
        also, other = tuple(map(cls.from_json, fields.get("also", ()))), fields.get("alternative")
        alternative = None if other is None else (float(other[0]), float(other[1]))
        changed = {"reference": Reference(fields["reference"]), "contexts": contexts, "also": also}
        return cls(**{**fields, **changed, "alternative": alternative})

    def __str__(self) -> str:
        bounds = ", and ".join(each.describe_bound() for each in (self, *self.also))
        return f"the cost is {bounds}{self.describe_condition()}"

    def describe_condition(self) -> str:
        """Return the conditions alone; empty if the bound holds for any contexts.

        >>> Promise(2.0, contexts=((0.0, 0.8),)).describe_condition()
        ' while contexts stay between 0 and 0.8'
        """
        condition = ""
        if self.contexts is not None:
            low, high = map(_format_ends, zip(*self.contexts, strict=True))
            condition = f" while contexts stay between {low} and {high}"
        if self.in_band:
            condition += f"{' and' if condition else ' while contexts stay'} in the band around their forecasts"
        return condition

    def describe_bound(self) -> str:
        """Return the bound alone, without its conditions and the promises beside it.

        >>> Promise(1.75, also=(Promise(2.5, period=24),)).describe_bound()
        'at most 1.75 times the optimum over the whole run'
        """
        reference = "the optimum" if self.reference is Reference.OPTIMUM else f"that of {self.reference_name}"
        extra = f" plus {self.allowance:g}" if self.allowance else ""
        extra += f" plus {self.allowance_per_step:.3g} a step" if self.allowance_per_step else ""
        period = "over the whole run" if self.period is None else f"in every {self.period} steps"
        if self.at_end:
            period = (
                "of the whole run at its end" if self.period is None else f"at the end of every {self.period} steps"
            )
        period = f"in any {self.period} steps in a row" if self.rolling else period
        if self.alternative is not None:
            ratio, per_step = self.alternative
            extra += f" and at most {ratio:g} times {reference} plus {per_step:.3g} a step"
        return f"at most {self.ratio:.6g} times {reference}{extra} {period}"


def _format_ends(ends: tuple[float, ...]) -> str:
    numbers = [f"{end:g}" for end in ends]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"
