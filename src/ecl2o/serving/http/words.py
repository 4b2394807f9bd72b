"""Figures and policies in the words of the page."""

import math
from typing import Any

from ecl2o.serving.durable.offers import Offer


def figure(value: float | int | None, digits: int = 4) -> str:
    r"""A number for people: four digits that count, thousands apart, a dash where it is not known.

    >>> figure(1234567.8), figure(0.00123456), figure(None), figure(2.5)
    ('1\u202f234\u202f568', '0.001235', '–', '2.5')
    """
    if value is None or not math.isfinite(value):
        return "\u2013"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace(",", "\u202f")
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals > 9:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def promise_text(promise: dict[str, Any] | None) -> str:
    """A promise in one line.

    >>> promise_text({"text": "cost <= 2.5 x the optimum, in every 24 steps"})
    'cost ≤ 2.5 × the optimum, in every 24 steps'
    """
    if promise is None:
        return "nothing is promised"
    return promise["text"].replace("<=", "\u2264").replace(" x ", " \u00d7 ")


def row_of(stream: dict[str, Any], promise: dict[str, Any] | None) -> dict[str, Any]:
    """A stream as a row of the table."""
    last = stream["last"] or {}
    cost, optimum, left = last.get("cost"), last.get("optimum"), last.get("promise_left")
    return {
        "id": stream["id"],
        "policy": stream["policy"],
        "steps": stream["steps"],
        "action": ", ".join(figure(entry) for entry in stream["action"]),
        "cost": cost,
        "optimum": optimum,
        "ratio": cost / optimum if cost is not None and optimum else None,
        "live_ratio": last.get("live_ratio"),
        "promise": None if promise is None else promise["ratio"],
        "left": left,
        "share": share_left(last.get("live_ratio"), promise),
        "active": last.get("guard_active"),
        "at": last.get("at"),
    }


def share_left(live_ratio: float | None, promise: dict[str, Any] | None) -> float | None:
    """How much of a promise is left, from 1 (cost is the reference's) to 0 (cost is at the promised ratio)."""
    if promise is None or live_ratio is None or promise["ratio"] <= 1:
        return None
    return min(max((promise["ratio"] - live_ratio) / (promise["ratio"] - 1), 0.0), 1.0)


def about_policy(offered: Offer) -> list[tuple[str, str]]:
    """What a policy is, as pairs for a list."""
    about = offered.about()
    problem, metadata = about["problem"], about["metadata"]
    pairs = [
        ("Policy", offered.name),
        ("Agent", about["agent"]),
        ("Promise", promise_text(about["promise"])),
        ("Hitting cost", f"{problem['hitting']}, m = {figure(problem['m'])}"),
        ("Movement", problem["switching"] + (f", \u03b1 = {figure(problem['alpha'])}" if "alpha" in problem else "")),
        ("Actions", f"{problem['actions']}, {problem['dim']} number{'s' if problem['dim'] != 1 else ''}"),
        ("Trained weights", str(about["weights"])),
        ("Made", f"{metadata.get('created', 'unknown')}, version {metadata.get('version', 'unknown')}"),
        ("Fingerprint", about["fingerprint"][:16]),
    ]
    if metadata.get("site"):
        pairs.insert(1, ("Site", str(metadata["site"])))
    return pairs
