"""Advice from outside: how it joins a context, and what became of it, in one sentence."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ecl2o.agents import Advised, Promise, Reference
from ecl2o.agents.advisors.from_context import LARGEST_ADVICE
from ecl2o.policy.contract import Contract
from ecl2o.policy.policy import Policy

_MOST_NAMED = 8  # columns in a message
_UNCHANGED = 1e-9  # share of an action by which rounding may change it


def attach_advice(
    context: list[Any], advice: Sequence[Any] | None, size: int, count: int, columns: Sequence[str] | None = None
) -> list[Any]:
    """Return a context of `size` numbers whose last ones are the advice, None for each where there is none.

    Args:
        context: The numbers without the advice, or with it if `advice` is None.
        advice: `count` numbers, or none if it is missing. Default: as in the context, or missing.
        size: q, how many numbers a context has, those of the advice included.
        count: How many of them are advice; 0 for a policy that takes none.
        columns: The names of the `size` numbers, for messages. Default: not known.

    Raises:
        ValueError: Context or advice have more or fewer numbers.

    >>> attach_advice([1.5], None, 2, 1), attach_advice([1.5], [12.0], 2, 1), attach_advice([1.5, 12.0], None, 2, 1)
    ([1.5, None], [1.5, 12.0], [1.5, 12.0])
    """
    if advice is None and len(context) in (size, size - count):
        return [*context, *[None] * (size - len(context))]
    given = list(advice or [None] * count)
    if len(given) != count or len(context) != size - count:
        named = f" ({', '.join(columns[: size - count])})" if columns and size - count <= _MOST_NAMED else ""
        taken, got = f"a context of {_numbers(size - count)}{named}", _numbers(len(context))
        if count or given:
            taken += f" and {f'advice of {_numbers(count)}' if count else 'no advice'}"
            got += f" and {len(advice)} of advice" if advice else ""
        raise ValueError(f"the policy takes {taken}, got {got}.")
    return [*context, *given]


def _numbers(count: int) -> str:
    return f"{count} number{'' if count == 1 else 's'}"


def find_promise(policy: Policy) -> Promise | None:
    """Return what a policy's guard promises, also of one that only reports, in shadow mode."""
    agent = policy.agent
    return (agent.agent if isinstance(agent, Advised) else agent).promise(policy.problem)


def describe_change(
    advice: Sequence[float | None],
    action: Sequence[float],
    promise: Promise | None,
    contract: Contract | None = None,
    previous: Sequence[float] | None = None,
    is_lost: bool = False,
    shadow: Sequence[float] | None = None,
) -> str | None:
    """Return what was changed in the advice and why, in one sentence; None if it was played.

    Args:
        advice: (d,), None or NaN where it is missing.
        action: (d,), what was played.
        promise: What the guard promises. Default: not known.
        contract: The policy's, with the limits of actions. Default: none.
        previous: (d,), the action before. Default: not known.
        is_lost: Whether the promise is lost, so that the guard plays its safest action.
        shadow: (d,), what the guard would have played, in shadow mode; `action` is the advice then.

    >>> describe_change([12.0], [9.0], Promise(2.0))
    'moved from 12 to 9: the promise of 2 left no more'
    >>> describe_change([12.0], [12.0], Promise(2.0), shadow=[9.0])
    'would have moved from 12 to 9: the promise of 2 left no more'
    """
    guard = action if shadow is None else shadow
    if not all(entry is not None and abs(entry) <= LARGEST_ADVICE for entry in advice):
        is_large = all(entry is not None and math.isfinite(entry) for entry in advice)
        none = f"advice beyond {LARGEST_ADVICE:g} counts as missing" if is_large else "no advice"
        if shadow is not None:
            return f"{none}: kept {_format(action)}; the guard would have played {_format(guard)}"
        return f"{none}: played {_format(guard)}, the guard's own action"
    given = [float(entry) for entry in advice if entry is not None]
    if _is_same(given, guard):
        return None
    moved = (
        f"{'moved' if shadow is None else 'would have moved'} from {_format(given, guard)} to {_format(guard, given)}"
    )
    contract = contract or Contract()
    previous = previous if shadow is None else None  # the shadow's own action before is not known
    limited, reasons = _limit(given, contract, previous)
    if reasons and _is_same(limited, guard):
        return f"{moved}: {' and '.join(reasons)}"
    if is_lost:
        condition = "" if promise is None else promise.describe_condition()
        assumed = f" (it holds{condition})" if condition else ""
        return f"{moved}: the promise is lost{assumed}, and this is the safest action"
    ramp = " or the ramp" if previous is None and contract.ramp else ""
    return f"{moved}: {_name_promises(promise)}{ramp} left no more"


def _limit(
    given: Sequence[float], contract: Contract, previous: Sequence[float] | None
) -> tuple[list[float], list[str]]:
    """Return the advice within the limits of actions, and the limits that changed it."""
    limited, reasons = list(given), {}

    def apply(found: Sequence[float], reason: str) -> None:
        nonlocal limited
        if not _is_same(limited, found):
            reasons[reason] = None
        limited = list(found)

    lows, highs = [-math.inf] * len(given), [math.inf] * len(given)
    if contract.action_bounds:
        lows, highs = (list(ends) for ends in zip(*contract.action_bounds, strict=True))
        ranges = " and ".join(dict.fromkeys(f"{low:g} to {high:g}" for low, high in contract.action_bounds))
        apply(_clip(limited, lows, highs), f"actions are limited to {ranges}")
    if contract.ramp and previous is not None:
        ways = list(zip(previous, contract.ramp, strict=True))
        lows = _clip([x - ramp for x, ramp in ways], lows, highs)
        highs = _clip([x + ramp for x, ramp in ways], lows, highs)
        most = " and ".join(dict.fromkeys(f"{ramp:g}" for ramp in contract.ramp))
        apply(_clip(limited, lows, highs), f"actions change by at most {most} a step")
    if contract.spacing:
        units = contract.spacing
        lows = [_count(math.ceil, low, unit, -_UNCHANGED) for low, unit in zip(lows, units, strict=True)]
        highs = [_count(math.floor, high, unit, _UNCHANGED) for high, unit in zip(highs, units, strict=True)]
        counted = [_count(round, x, unit) for x, unit in zip(limited, units, strict=True)]
        apply(_clip(counted, lows, highs), f"actions are {describe_spacing(units)}")
    return limited, list(reasons)


def _clip(numbers: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[float]:
    return [min(max(x, low), high) for x, low, high in zip(numbers, lows, highs, strict=True)]


def _count(to_whole: Callable[[float], float], x: float, unit: float, slack: float = 0.0) -> float:
    """Return a multiple of the unit near a number; an infinite one as it is."""
    return unit * to_whole(x / unit + slack * (1 + abs(x / unit))) if math.isfinite(x) else x


def describe_spacing(spacing: Sequence[float]) -> str:
    """Return in words which numbers actions are.

    >>> describe_spacing([1.0]), describe_spacing([0.5, 0.5])
    ('whole numbers', 'multiples of 0.5')
    """
    units = sorted(set(spacing))
    return "whole numbers" if units == [1.0] else f"multiples of {', '.join(f'{unit:g}' for unit in units)}"


def _name_promises(promise: Promise | None) -> str:
    if promise is None:
        return "the promise"
    names = [
        f"{each.ratio:g}" + ("" if each.reference is Reference.OPTIMUM else f" relative to {each.reference_name}")
        for each in (promise, *promise.also)
    ]
    return f"the promise{'s' if len(names) > 1 else ''} of {' and '.join(names)}"


def _is_same(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= _UNCHANGED * (1 + abs(a)) for a, b in zip(one, other, strict=True))


def _format(numbers: Sequence[float], other: Sequence[float] = ()) -> str:
    """Return numbers in few digits, or in as many as tell them from the others."""
    texts = [f"{number:.6g}" for number in numbers]
    if texts == [f"{number:.6g}" for number in other]:
        texts = [repr(float(number)) for number in numbers]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
