"""Which combinations of cost, action set, movement, timing and guard the library rejects, and by which exception."""

import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from golden import builders
from golden.cases import HIGH, LOW, Bound, Case, Guard

FILE = Path(__file__).with_name("refusals.json")
TWO = Bound(50.0), Bound(60.0, period=4)
GUARDS = {
    "oracle": None,
    "ROBD": None,
    "Competitive": Guard("competitive", TWO[:1]),
    "Competitive, within": Guard("competitive", TWO[:1], within=(LOW, HIGH)),
    "Competitive, announced": Guard("competitive", TWO[:1], announced=True),
    "Competitive, restarts": Guard("competitive", TWO[:1], within=(LOW, HIGH), restarts=4),
    "Guarded": Guard("guarded", baseline="HoldStill"),
    "Guarded, reservation": Guard("guarded", baseline="HoldStill", reservation=0.5),
    "Guarded, restarts": Guard("guarded", baseline="HoldStill", restarts=4),
    "Promises": Guard("promises", TWO),
    "Promises, within": Guard("promises", TWO, within=(LOW, HIGH)),
    "Promises, baseline": Guard("promises", (*TWO, Bound(50.0, "baseline")), baseline="HoldStill"),
    "Promises, baseline, within": Guard(
        "promises", (*TWO, Bound(50.0, "baseline")), baseline="HoldStill", within=(LOW, HIGH)
    ),
    "Band": Guard("band", TWO[:1], horizon=4, half_width=1.0),
    "Clipped": Guard("clipped", baseline="HoldStill"),
}
COSTS = ("tracking", "full", "curved", "curved, open", "asymmetric", "convex", "steep")
SETS = ("everywhere", "box", "ramp", "spacing", "ramp spacing", "box ramp", "box spacing")
SETTINGS = [  # (numbers of an action, movement, timings, action sets)
    (1, "isotropic", (0, 1, -1), SETS),
    (1, "linear", (0, 1), SETS),
    (2, "isotropic", (0, 1), (*SETS[:4], "total", "total column", "simplex")),
    (2, "full", (0,), SETS[:4]),
]


def probes() -> Iterator[tuple[tuple[str, ...], Case]]:
    """Every combination: its words, and a case of it."""
    for dim, movement, timings, sets in SETTINGS:
        for timing, actions, cost, (name, guard) in itertools.product(timings, sets, COSTS, GUARDS.items()):
            agent = name if guard is None else "fixed"
            fields = {"dim": dim, "movement": movement, "timing": timing, "actions": actions, "cost": cost}
            history = 2 if timing else 0
            case = Case("", name, agent, guard=guard, history=history, ramp=1.5, alpha=1.0, steps=4, **fields)
            yield (name, f"d {dim}, {movement}, timing {timing}", actions, cost), case


def is_sampled(words: tuple[str, ...]) -> bool:
    """Return whether a combination is one of the few that each run of the tests tries."""
    return zlib.crc32(repr(words).encode()) % 40 == 0


def find_refusal(case: Case) -> str | None:
    """Return the name of the exception with which a case is rejected; None if it is not."""
    try:
        builders.check(case)
        builders.trace(case)
    except Exception as error:
        return type(error).__name__
    return None


def save(found: dict[tuple[str, ...], str | None]) -> None:
    """Write the table: exception, guard, setting, action set, and the costs for which it is raised."""
    table: dict = {}
    for (guard, setting, actions, cost), error in found.items():
        if error is not None:
            by_set = table.setdefault(error, {}).setdefault(guard, {}).setdefault(setting, {})
            by_set[actions] = [*by_set.get(actions, []), cost]
    text = json.dumps(table, indent=1)
    for space in ("\n     ", "\n    "):  # a line for each action set, with its costs
        text = text.replace(space + " ", " ").replace("[ ", "[")
    FILE.write_text(text + "\n")


def load() -> dict[tuple[str, ...], str]:
    """Return the recorded refusals."""
    table = json.loads(FILE.read_text())
    return {
        (guard, setting, actions, cost): error
        for error, guards in table.items()
        for guard, settings in guards.items()
        for setting, sets in settings.items()
        for actions, costs in sets.items()
        for cost in costs
    }
