"""Small runs by name, as plain data.

A case says what is run: an agent on a problem, behind a guard. Its numbers come from NumPy and its seed alone; builders.py knows
how the library spells these things.
"""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from matrices import spd

LOW, HIGH = -1.0, 1.5  # of every box, and of contexts that are known to lie in it
LEAST, GREATEST = 1.0, 5.0  # the curvatures of varying weights
TOTAL, LEAST_PART, GREATEST_PART = 1.5, -0.5, 1.25  # of actions that share a total
PATTERN = (1.0, 3.0, 2.0, 5.0, 1.5)  # weights that are announced: a tariff of so many steps


@dataclass(frozen=True)
class Bound:
    """One promise: cost <= ratio * cost of the reference + allowance, in the run, each period, or each window."""

    ratio: float
    reference: str = "optimum"  # or "baseline"
    allowance: float = 0.0
    period: int | None = None
    rolling: bool = False


@dataclass(frozen=True)
class Guard:
    """A guard: its kind, what it promises, and under which conditions."""

    kind: str  # competitive, guarded, promises, band, competitive control, guarded control, clipped
    promises: tuple[Bound, ...] = (Bound(2.5),)
    baseline: str | None = None  # an agent
    reservation: float | None = None
    within: tuple[float, float] | None = None  # where contexts are known to lie
    announced: bool = False  # whether weights are known in advance: PATTERN
    horizon: int | None = None
    half_width: float | None = None  # of a band
    columns: bool = False  # whether the band comes with the contexts
    every_prefix: bool = False
    restarts: int | None = None  # every so many steps
    advised: str | None = None  # "played" or "shadow": the advice comes from outside, and is priced alone


@dataclass(frozen=True)
class Case:
    """One run. `group` names what is compiled once: cases of a group differ in numbers only."""

    group: str
    label: str
    agent: str = "fixed"
    cost: str = "tracking"
    movement: str = "isotropic"
    actions: str = "everywhere"
    timing: int = 0  # steps of delay; negative: contexts are known so many steps ahead
    dynamics: str | None = None
    guard: Guard | None = None
    advice: str = "wander"
    contexts: str = "noise"
    covariates: int = 0
    history: int = 0
    forecaster: str | None = None
    dim: int = 1
    dtype: str = "float64"
    steps: int = 10
    seed: int = 0
    alpha: float = 10.0
    weight: float = 1.0
    ramp: float = 0.8
    spacing: float = 0.25

    @property
    def name(self) -> str:
        """The group and the label."""
        return f"{self.group}: {self.label}"

    @property
    def third(self) -> int:
        """0, 1 or 2: which third of the groups this one is in."""
        return zlib.crc32(self.group.encode()) % 3


@dataclass(frozen=True)
class Parts:
    """What the contexts of a run are made of, each (steps, numbers) or None; the first rows are the history."""

    x0: np.ndarray
    followed: np.ndarray
    weight: np.ndarray | None = None
    covariates: np.ndarray | None = None
    total: np.ndarray | None = None
    baseline: np.ndarray | None = None
    advice: np.ndarray | None = None
    band: np.ndarray | None = None

    @property
    def columns(self) -> list[tuple[str, np.ndarray]]:
        """The parts of a context by name, in their order."""
        order = ("followed", "weight", "covariates", "total", "baseline", "advice", "band")
        return [(name, getattr(self, name)) for name in order if getattr(self, name) is not None]

    @property
    def places(self) -> dict[str, range]:
        """Where each part stands in a context."""
        ends = np.cumsum([0, *(part.shape[1] for _, part in self.columns)]).tolist()
        return {name: range(*ends[i : i + 2]) for i, (name, _) in enumerate(self.columns)}

    @property
    def ignored(self) -> int:
        """How many numbers at the end of a context are no part of the cost."""
        return sum(len(places) for name, places in self.places.items() if name not in ("followed", "weight"))


def _by_seed(case: Case, purpose: int) -> np.random.Generator:
    return np.random.default_rng([case.seed, case.dim, case.steps, purpose])


def draw_x0(case: Case) -> np.ndarray:
    """The first action, inside of every action set."""
    if case.actions in ("total", "total, open"):
        return np.full(case.dim, TOTAL / case.dim)
    if case.actions == "simplex":
        return np.full(case.dim, 1.0 / case.dim)
    x0 = _by_seed(case, 0).uniform(0.7 * LOW, 0.7 * HIGH, case.dim)
    if case.actions == "total column":
        return np.clip(x0, LEAST_PART, GREATEST_PART)
    return case.spacing * np.round(x0 / case.spacing) if "spacing" in case.actions else x0


def draw_followed(case: Case, rows: int) -> np.ndarray:
    """What actions should follow; the history is always ordinary."""
    rng, shape, kind = _by_seed(case, 1), (rows, case.dim), case.contexts
    noise, at = rng.normal(size=shape), case.history + case.steps // 2
    chosen = rng.uniform(size=(rows, 1))
    within = None if case.guard is None else case.guard.within
    if within is not None:
        low, high = within
        found = low + (high - low) * rng.uniform(size=shape)
        if kind == "jumps":
            found = np.where(rng.uniform(size=shape) < 0.5, low, high)
    else:
        found = {
            "walk": np.cumsum(noise, axis=0) / 2,
            "jumps": noise * np.where(chosen < 0.4, 10.0 ** (3 * rng.uniform(size=(rows, 1))), 0.1),
            "still": 0 * noise + noise[:1],
            "near": 0.4 * rng.uniform(-1, 1, size=shape),
            "wave": np.sin(np.arange(rows) * np.pi / 2)[:, None] + 0.3 * noise,
        }.get(kind, noise)
    if kind in ("NaN", "infinite", "outside"):
        found[at, 0] = {"NaN": np.nan, "infinite": np.inf, "outside": 7.0}[kind]
    return found


def draw_weight(case: Case, rows: int) -> np.ndarray | None:
    """The weight of a miss, by step."""
    if "curved" not in case.cost:
        return None
    rng, at = _by_seed(case, 2), case.history + case.steps // 2
    greatest = 1e3 if case.cost == "curved, open" else GREATEST
    found = np.exp(rng.uniform(np.log(LEAST), np.log(greatest), size=(rows, 1)))
    if case.guard is not None and case.guard.announced:
        found = np.resize(np.array(PATTERN), (rows, 1))
    if case.contexts in ("outside", "other weight"):
        found[at] = 7.0
    return found


def draw_advice(case: Case, followed: np.ndarray) -> np.ndarray:
    """The proposals of an advisor, one for each step."""
    rng, kind = _by_seed(case, 3), case.advice
    noise = rng.normal(size=followed.shape)
    near = np.where(np.isfinite(followed), followed, 0.0) + 0.5 * noise
    if kind == "near":
        return near
    if kind == "hostile":
        return noise * 10.0 ** rng.uniform(3, 6, size=(len(noise), 1))
    if kind == "broken":
        bad = np.array([np.nan, np.inf, -np.inf, 1e200])[np.arange(len(noise)) % 4]
        noise[:, 0] = np.where(np.arange(len(noise)) % 3 == 1, bad, noise[:, 0])
    return 2 * noise


def draw_parts(case: Case) -> Parts:
    """All numbers of a run."""
    rows, rng = case.history + case.steps, _by_seed(case, 4)
    followed, total, band = draw_followed(case, rows), None, None
    advice = draw_advice(case, followed)
    baseline = np.where(np.isfinite(followed), followed, 0.0) + 0.3 * rng.normal(size=followed.shape)
    if case.actions == "total column":
        ends = case.dim * LEAST_PART + 0.1, case.dim * GREATEST_PART - 0.1
        total = rng.uniform(*ends, size=(rows, 1))
    if case.guard is not None and case.guard.columns:
        ahead = case.guard.horizon - 1
        later = np.minimum(np.arange(rows)[:, None] + 1 + np.arange(ahead), rows - 1)
        band = np.concatenate([followed[later, 0] - 0.3, followed[later, 0] + 0.4], axis=1)
    return Parts(
        draw_x0(case),
        followed,
        draw_weight(case, rows),
        rng.normal(size=(rows, case.covariates)) if case.covariates else None,
        total,
        baseline if case.guard is not None and case.guard.baseline == "column" else None,
        advice if "column" in case.agent else None,
        band,
    )


def matrix_A(case: Case) -> np.ndarray:
    """The curvature of quadratic costs."""
    diagonal = np.diag(np.linspace(1.0, 3.0, case.dim))
    return case.weight * (spd(case.dim, 5, 1.0, 3.0) if case.cost == "full" else diagonal)


def matrix_Q(case: Case) -> np.ndarray:
    """The matrix of quadratic movement."""
    if case.movement == "isotropic":
        return case.alpha / 2 * np.eye(case.dim)
    if case.movement == "diagonal":
        return case.alpha / 2 * np.diag(np.linspace(1.0, 0.4, case.dim))
    return case.alpha / 2 * spd(case.dim, 6, 0.4, 1.2)


# --- The list ---------------------------------------------------------------------------------------------------------

ORDINARY = {
    "near": {"advice": "near", "contexts": "walk", "seed": 0},
    "wander": {"advice": "wander", "contexts": "noise", "seed": 1},
}
HOSTILE = {
    "hostile": {"advice": "hostile", "contexts": "jumps", "seed": 2},
    "broken": {"advice": "broken", "contexts": "noise", "seed": 3},
}
STANDARD = ORDINARY | HOSTILE
MISSING = STANDARD | {"NaN": {"contexts": "NaN", "seed": 4}}
OUTSIDE = MISSING | {"outside": {"contexts": "outside", "seed": 5}}
CASES: list[Case] = []


def add(group: str, runs: dict[str, dict] = STANDARD, **fields) -> None:
    """Add the runs of a group."""
    assert not any(case.group == group for case in CASES), group
    CASES.extend(Case(group, label, **(fields | numbers)) for label, numbers in runs.items())


def competitive(group: str, ratio: float = 2.5, runs: dict = MISSING, allowance: float = 0.0, **fields) -> None:
    """Add runs of a promise relative to the optimum."""
    names = Guard.__dataclass_fields__.keys() & fields.keys()
    guard = Guard("competitive", (Bound(ratio, allowance=allowance),), **{name: fields.pop(name) for name in names})
    if guard.within is not None and runs is MISSING:
        runs = OUTSIDE
    add(f"Competitive, {group}", runs, guard=guard, **fields)


def guarded(group: str, ratio: float = 1.5, runs: dict = STANDARD, allowance: float = 0.0, **fields) -> None:
    """Add runs of a promise relative to a baseline."""
    names = Guard.__dataclass_fields__.keys() & fields.keys()
    guard = Guard("guarded", (Bound(ratio, "baseline", allowance),), **{name: fields.pop(name) for name in names})
    add(f"Guarded, {group}", runs, guard=guard, **fields)


def several(group: str, *bounds: Bound, runs: dict = STANDARD, **fields) -> None:
    """Add runs of several promises at once."""
    names = Guard.__dataclass_fields__.keys() & fields.keys()
    guard = Guard("promises", bounds, **{name: fields.pop(name) for name in names})
    add(f"Promises, {group}", runs, guard=guard, **fields)


RANGE = (LOW, HIGH)

# Relative to the optimum: costs
competitive("tracking")
competitive("tracking, within", 1.9, within=RANGE)
competitive("tracking, horizon", 1.9, horizon=10)
competitive("tracking, within, horizon", 1.9, within=RANGE, horizon=10)
competitive("tracking, allowance", 1.9, allowance=0.75)
competitive("tracking, d 3", 2.25, dim=3)
competitive("full, d 2", 3.0, cost="full", movement="full", dim=2)
competitive("full, d 3", 4.0, cost="full", movement="full", dim=3)
competitive("full, d 3, horizon", 4.0, cost="full", movement="full", dim=3, horizon=10)
competitive("diagonal, d 2, within", 2.5, cost="diagonal", movement="diagonal", dim=2, within=RANGE)
competitive(
    "diagonal, d 3, within, horizon", 2.5, cost="diagonal", movement="diagonal", dim=3, within=RANGE, horizon=10
)
competitive("curved", 3.0, cost="curved", runs=OUTSIDE)
competitive("curved, within", 3.0, cost="curved", within=RANGE)
competitive("curved, d 2", 3.0, cost="curved", dim=2, runs=OUTSIDE)
competitive("curved, announced", 3.0, cost="curved", announced=True, runs=OUTSIDE)
competitive("curved, announced, horizon", 3.0, cost="curved", announced=True, horizon=10, runs=OUTSIDE)
competitive("curved open, announced", 3.0, cost="curved, open", announced=True)
competitive("asymmetric", 3.0, cost="asymmetric")
competitive("asymmetric, within", 3.0, cost="asymmetric", within=RANGE)
competitive("asymmetric, horizon", 3.0, cost="asymmetric", horizon=10)
competitive("asymmetric, d 2", 3.0, cost="asymmetric", movement="diagonal", dim=2)
competitive("asymmetric, d 3, within", 3.0, cost="asymmetric", movement="diagonal", dim=3, within=RANGE)
competitive("convex", 3.0, cost="convex")
competitive("convex, horizon", 3.0, cost="convex", horizon=10)
# ... action sets
competitive("box", 1.9, actions="box", within=RANGE)
competitive("box, horizon", 1.9, actions="box", within=RANGE, horizon=10)
competitive("box, d 2", 2.5, cost="diagonal", movement="diagonal", actions="box", dim=2, within=RANGE)
competitive("box, asymmetric", 3.0, cost="asymmetric", actions="box", within=RANGE)
competitive("box, asymmetric, d 2", 3.0, cost="asymmetric", actions="box", dim=2, within=RANGE)
competitive("box, curved", 3.0, cost="curved", actions="box", within=RANGE)
competitive("ramp", 2.5, actions="ramp", within=RANGE)
competitive("ramp, horizon", 2.5, actions="ramp", within=RANGE, horizon=10)
competitive("ramp, d 3", 2.5, actions="ramp", within=RANGE, dim=3)
competitive("ramp, narrow", 2.5, actions="ramp", within=RANGE, ramp=0.5)
competitive("ramp, asymmetric", 3.5, cost="asymmetric", actions="ramp", within=RANGE, ramp=1.5)
competitive("ramp, asymmetric, narrow", 4.0, cost="asymmetric", actions="ramp", within=RANGE, ramp=0.6)
competitive("ramp, curved", 4.0, cost="curved", actions="ramp", within=RANGE, ramp=1.5)
competitive("box ramp", 2.5, actions="box ramp", within=RANGE)
competitive("box ramp, asymmetric", 3.5, cost="asymmetric", actions="box ramp", within=RANGE, ramp=1.5)
competitive("spacing", 2.5, actions="spacing")
competitive("spacing, horizon", 2.5, actions="spacing", horizon=10)
competitive("spacing, within", 2.5, actions="spacing", within=RANGE)
competitive("spacing, d 2", 2.5, cost="diagonal", movement="diagonal", actions="spacing", dim=2)
competitive("spacing, asymmetric", 3.0, cost="asymmetric", actions="spacing")
competitive("spacing, asymmetric, d 2", 3.0, cost="asymmetric", actions="spacing", dim=2)
competitive("spacing, curved", 3.0, cost="curved", actions="spacing")
competitive("spacing, convex", 3.0, cost="convex", actions="spacing")
competitive("box spacing", 2.5, actions="box spacing", within=RANGE)
competitive("ramp spacing", 2.5, actions="ramp spacing", within=RANGE, ramp=0.75)
competitive("ramp spacing, asymmetric", 3.5, cost="asymmetric", actions="ramp spacing", within=RANGE, ramp=1.5)
competitive("box ramp spacing", 2.5, actions="box ramp spacing", within=RANGE, ramp=0.75)
competitive("box ramp spacing, d 2", 2.5, actions="box ramp spacing", within=RANGE, ramp=0.75, dim=2)
# ... timing
for _shift in (1, 2, -1, -2):
    _word = f"delay {_shift}" if _shift > 0 else f"ahead {-_shift}"
    _timed = {"timing": _shift, "history": 2}
    competitive(_word, 5.0, **_timed)
    competitive(f"{_word}, horizon", 5.0, horizon=10, **_timed)
    competitive(f"{_word}, spacing", 5.0, actions="spacing", **_timed)
    competitive(f"{_word}, full, d 2", 9.0, cost="full", movement="full", dim=2, runs=STANDARD, **_timed)
    competitive(f"{_word}, restarts", 5.0, agent="ROBD", horizon=5, restarts=5, runs=ORDINARY, **_timed)
    competitive(f"{_word}, column, covariates", 5.0, agent="column", covariates=1, **_timed)
competitive("delay 1, of RHC", 5.0, agent="RHC", timing=1, history=2, runs=ORDINARY)
competitive("ahead 2, of RHC", 5.0, agent="RHC, on", timing=-2, history=2, runs=ORDINARY)
competitive("delay 2, of OnlineRidge", 5.0, agent="OnlineRidge", timing=2, history=24, runs=ORDINARY)
competitive("delay 1, spacing, restarts", 5.0, actions="spacing", timing=1, history=2, restarts=4, runs=STANDARD)
# ... what is inside and around
competitive("of MLAROBD", 1.9, agent="MLAROBD")
competitive("of MLAROBD, asymmetric", 3.0, agent="MLAROBD", cost="asymmetric")
competitive("of ROBD", 1.75, agent="ROBD", runs=ORDINARY)
competitive("of RHC", 1.75, agent="RHC", runs=ORDINARY)
competitive("of OnlineRidge", 1.9, agent="OnlineRidge", history=24, runs=ORDINARY)
competitive("of OnlineRidge, covariates", 1.9, agent="OnlineRidge", covariates=2, history=24, runs=ORDINARY)
competitive("of a column", 1.9, agent="column")
competitive("of a column, covariates", 1.9, agent="column", covariates=2)
competitive("of a column, curved", 3.0, agent="column", cost="curved", covariates=1)
competitive("of a column, asymmetric", 3.0, agent="column", cost="asymmetric", covariates=1)
competitive("restarts", 1.9, restarts=4)
competitive("restarts, horizon", 1.9, restarts=4, horizon=4)
competitive("restarts, asymmetric", 3.0, cost="asymmetric", restarts=4, runs=STANDARD)
competitive("restarts, spacing", 2.5, actions="spacing", restarts=4, runs=STANDARD)
competitive("restarts, box ramp", 2.5, actions="box ramp", within=RANGE, restarts=4)
competitive("restarts, curved, announced", 3.0, cost="curved", announced=True, horizon=5, restarts=5, runs=STANDARD)
competitive("advised", 1.9, agent="column or still", advised="played")
competitive("advised, shadow", 1.9, agent="column or still", advised="shadow")
competitive("advised, box ramp", 2.5, agent="column or still", actions="box ramp", within=RANGE, advised="played")
competitive("advised, shadow, spacing", 2.5, agent="column or still", actions="spacing", advised="shadow")
competitive("advised, restarts", 1.9, agent="column or still", restarts=4, advised="played")
competitive("advised, delay 1", 5.0, agent="column or still", timing=1, history=2, advised="played")
competitive("advised, shadow, delay 1", 5.0, agent="column or still", timing=1, history=2, advised="shadow")
competitive("advised, ahead 1", 5.0, agent="column or still", timing=-1, history=2, advised="played")
competitive("of MLAROBD of a column", 1.9, agent="MLAROBD of column", advised="played")

# Relative to a baseline: costs
guarded("tracking", runs=MISSING)
guarded("tracking, Greedy", 1.25, baseline="Greedy")
guarded("tracking, column", 1.25, baseline="column", runs=MISSING)
guarded("tracking, HoldStill", 1.25, baseline="HoldStill")
guarded("tracking, reservation", 1.5, reservation=0.25)
guarded("tracking, allowance", 1.25, allowance=0.75)
guarded("tracking, d 2", dim=2)
guarded("full, d 2", cost="full", movement="full", dim=2, runs=MISSING)
guarded("full, d 3", cost="full", movement="full", dim=3)
guarded("full, d 3, column", cost="full", movement="full", dim=3, baseline="column", covariates=1)
guarded("curved", cost="curved", runs=OUTSIDE)
guarded("curved, d 2", cost="curved", dim=2)
guarded("curved open", cost="curved, open")
guarded("curved open, d 2", cost="curved, open", dim=2)
guarded("asymmetric", cost="asymmetric", runs=MISSING)
guarded("asymmetric, d 2", cost="asymmetric", dim=2)
guarded("asymmetric, column", cost="asymmetric", baseline="column", covariates=1)
guarded("convex", cost="convex")
guarded("convex, d 2", cost="convex", movement="full", dim=2)
guarded("steep", cost="steep")
guarded("steep, d 2", cost="steep", dim=2)
# ... action sets
guarded("box", actions="box", runs=MISSING)
guarded("box, reservation", actions="box", reservation=0.25)
guarded("box, d 2", cost="full", movement="full", actions="box", dim=2)
guarded("box, curved", cost="curved", actions="box")
guarded("box, asymmetric", cost="asymmetric", actions="box")
guarded("box, asymmetric, d 2", cost="asymmetric", actions="box", dim=2)
guarded("box, steep", cost="steep", actions="box")
guarded("box, steep, d 2", cost="steep", actions="box", dim=2)
guarded("total, d 2", actions="total", dim=2)
guarded("total, full, d 3", cost="full", movement="full", actions="total", dim=3, runs=MISSING)
guarded("total open, d 3", actions="total, open", dim=3)
guarded("total, asymmetric, d 2", cost="asymmetric", actions="total", dim=2)
guarded("total, steep, d 3", cost="steep", actions="total", dim=3)
guarded("total column, d 2", actions="total column", dim=2, baseline="column")
guarded("total column, full, d 3", cost="full", movement="full", actions="total column", dim=3)
guarded("total column, curved, d 2", cost="curved", actions="total column", dim=2)
guarded("total column, convex, d 2", cost="convex", actions="total column", dim=2)
guarded("simplex, d 3", actions="simplex", dim=3)
guarded("simplex, asymmetric, d 3", cost="asymmetric", actions="simplex", dim=3)
guarded("spacing", actions="spacing", runs=MISSING)
guarded("spacing, column", actions="spacing", baseline="column")
guarded("spacing, d 2", cost="full", movement="full", actions="spacing", dim=2)
guarded("spacing, asymmetric", cost="asymmetric", actions="spacing")
guarded("spacing, steep", cost="steep", actions="spacing")
guarded("box spacing", actions="box spacing")
guarded("box spacing, convex", cost="convex", actions="box spacing")
# ... movement by distance
guarded("linear", movement="linear", baseline="HittingMinimizer")
guarded("linear, without slack", 1.0, movement="linear", baseline="HittingMinimizer")
guarded("linear, d 2", cost="diagonal", movement="linear", dim=2, baseline="HittingMinimizer")
guarded("linear, box", movement="linear", actions="box", baseline="HoldStill")
guarded("linear, asymmetric", cost="asymmetric", movement="linear", baseline="HittingMinimizer")
guarded("linear, curved", cost="curved", movement="linear", baseline="HittingMinimizer")
guarded("linear, steep", cost="steep", movement="linear", baseline="HittingMinimizer")
guarded("linear, spacing", movement="linear", actions="spacing", baseline="column")
guarded("linear, simplex, d 3", movement="linear", actions="simplex", dim=3, baseline="HittingMinimizer")
# ... what is inside and around
guarded("of MLAROBD", agent="MLAROBD")
guarded("of RHC", 1.05, agent="RHC", runs=ORDINARY)
guarded("of OnlineRidge", 1.05, agent="OnlineRidge", history=24, runs=ORDINARY)
guarded("of a column", agent="column", baseline="column")
guarded("restarts", restarts=4)
guarded("restarts, column, box", restarts=4, baseline="column", actions="box")
guarded("restarts, steep", restarts=4, cost="steep")
guarded("advised", agent="column or still", baseline="column", advised="played", runs=MISSING)
guarded("advised, shadow", agent="column or still", advised="shadow")
guarded("advised, total column, d 2", agent="column or still", actions="total column", dim=2, advised="played")
guarded("advised, restarts, shadow", agent="column or still", restarts=4, advised="shadow")

# Several promises
DAILY, WEEKLY, TODAY = Bound(2.5, period=4), Bound(2.25, period=5, rolling=True), Bound(2.0, "baseline")
several("one", Bound(1.9), runs=MISSING)
several("run and periods", Bound(1.9), DAILY, runs=MISSING)
several("run and windows", Bound(1.9), WEEKLY)
several("run and baseline", Bound(1.9), TODAY, baseline="ROBD", runs=MISSING)
several("baseline first, column", TODAY, Bound(1.9), baseline="column")
several("all kinds", Bound(1.9), DAILY, WEEKLY, TODAY, baseline="Greedy")
several("baseline by period", Bound(2.5, "baseline", period=4), Bound(1.9, allowance=0.5), baseline="HoldStill")
several("within", Bound(1.9), DAILY, within=RANGE, runs=OUTSIDE)
several("d 2", Bound(3.0), Bound(4.0, period=4), cost="full", movement="full", dim=2)
several("d 3, baseline", Bound(4.0), Bound(5.0, "baseline"), cost="full", movement="full", dim=3, baseline="ROBD")
several("curved", Bound(3.0), Bound(4.0, period=4), cost="curved", runs=OUTSIDE)
several("curved, baseline, d 2", Bound(3.0), Bound(4.0, "baseline"), cost="curved", dim=2, baseline="Greedy")
several("box", Bound(1.9), DAILY, actions="box", within=RANGE)
several("box, baseline", Bound(1.9), TODAY, actions="box", within=RANGE, baseline="ROBD")
several("box, curved", Bound(3.0), Bound(4.0, period=4), cost="curved", actions="box", within=RANGE)
several("spacing", Bound(2.5), Bound(3.0, period=4), actions="spacing", runs=MISSING)
several("spacing, baseline, d 2", Bound(2.5), Bound(3.0, "baseline"), actions="spacing", dim=2, baseline="ROBD")
several("ramp", Bound(2.5), Bound(3.0, period=4), actions="ramp", within=RANGE, runs=OUTSIDE)
several("ramp, narrow", Bound(2.5), Bound(3.0, period=4), actions="ramp", within=RANGE, ramp=0.5)
several("ramp, baseline", Bound(2.5), Bound(3.0, "baseline"), actions="ramp", within=RANGE, baseline="ROBD")
several("box ramp spacing", Bound(2.5), DAILY, actions="box ramp spacing", within=RANGE, ramp=0.75)
several("of MLAROBD", Bound(1.9), DAILY, agent="MLAROBD")
several("of RHC", Bound(1.9), DAILY, agent="RHC", runs=ORDINARY)
several("restarts", Bound(1.9), DAILY, restarts=8)
several("restarts, baseline", Bound(1.9), TODAY, baseline="ROBD", restarts=4)
several("column, covariates", Bound(1.9), DAILY, agent="column", covariates=1)
several("advised", Bound(1.9), TODAY, agent="column or still", baseline="column", advised="played")
several("advised, shadow", Bound(1.9), DAILY, agent="column or still", advised="shadow")

# Bands, and linear dynamics
AROUND = {"kind": "band", "horizon": 10, "half_width": 1.5}
BAND = {
    "near": {"advice": "near", "contexts": "near", "seed": 0},
    "hostile": {"advice": "hostile", "contexts": "near", "seed": 2},
    "broken": {"advice": "broken", "contexts": "near", "seed": 3},
    "outside": {"contexts": "outside", "seed": 5},
    "NaN": {"contexts": "NaN", "seed": 4},
}
PERSISTENT = {"forecaster": "persistence"}
add("Band, persistence", BAND, guard=Guard(promises=(Bound(2.0),), **AROUND), **PERSISTENT)
add("Band, allowance", BAND, guard=Guard(promises=(Bound(2.0, allowance=0.3),), **AROUND), **PERSISTENT)
add("Band, exact", BAND, guard=Guard(promises=(Bound(2.0),), **AROUND | {"half_width": 0.25}))
add("Band, d 2", BAND, guard=Guard(promises=(Bound(3.0),), **AROUND), cost="full", movement="full", dim=2, **PERSISTENT)
add("Band, restarts", BAND, guard=Guard(promises=(Bound(2.0),), **AROUND | {"horizon": 5, "restarts": 5}), **PERSISTENT)
add("Band, of ROBD", BAND, guard=Guard(promises=(Bound(1.8),), **AROUND), agent="ROBD", **PERSISTENT)
_columns = AROUND | {"columns": True, "half_width": 0.0}
add("Band, columns", BAND, guard=Guard(promises=(Bound(2.0),), **_columns))
add("Band, columns, restarts", BAND, guard=Guard(promises=(Bound(2.0),), **_columns | {"horizon": 5, "restarts": 5}))
add("Band, advised", BAND, guard=Guard(promises=(Bound(2.0),), **_columns, advised="played"), agent="column or still")
for _dynamics, _ratio in (("battery", 2.5), ("with memory", 4.0), ("regulator", 3.0)):
    add(f"Band, {_dynamics}", BAND, guard=Guard(promises=(Bound(_ratio),), **AROUND), dynamics=_dynamics, **PERSISTENT)
DYNAMICS = {"battery": 2.5, "delayed": 5.0, "known ahead": 3.0, "with memory": 5.0, "regulator": 5.0}
for _dynamics, _ratio in DYNAMICS.items():
    for _label, _numbers in {
        "": {},
        ", horizon": {"horizon": 10},
        ", every prefix": {"every_prefix": True},
    }.items():
        _bound = Bound(2 * _ratio if _numbers else _ratio), Bound(1.5, "baseline")
        for _kind, _promise in zip(("competitive control", "guarded control"), _bound, strict=True):
            _guard = Guard(_kind, (_promise,), **_numbers)
            add(f"{_kind.title()}, {_dynamics}{_label}", MISSING, guard=_guard, dynamics=_dynamics)
for _kind, _promise in (("competitive control", Bound(4.0)), ("guarded control", Bound(1.25, "baseline"))):
    _guard = Guard(_kind, (_promise,), horizon=5, restarts=5)
    add(f"{_kind.title()}, battery, restarts", guard=_guard, dynamics="battery")
    _guard = Guard(_kind, (replace(_promise, allowance=0.5),))
    add(f"{_kind.title()}, battery, of LQR, allowance", ORDINARY, guard=_guard, dynamics="battery", agent="LQR")
add(
    "Guarded Control, battery, RHC", ORDINARY, guard=Guard("guarded control", (Bound(1.25),), "RHC"), dynamics="battery"
)

# Advice clipped for MLA-ROBD
CLIPPED = Guard("clipped", (Bound(1.5),))
add("Clipped, tracking", MISSING, guard=CLIPPED)
add("Clipped, full, d 2", guard=CLIPPED, cost="full", movement="full", dim=2)
add("Clipped, box", guard=CLIPPED, actions="box")
add("Clipped, curved", guard=CLIPPED, cost="curved")
add("Clipped, asymmetric", guard=CLIPPED, cost="asymmetric")
add("Clipped, steep, box", guard=CLIPPED, cost="steep", actions="box")
add("Clipped, simplex, d 3", guard=CLIPPED, actions="simplex", dim=3)

# Agents without a guard
SETTINGS = {
    "": {},
    ", full, d 2": {"cost": "full", "movement": "full", "dim": 2},
    ", box": {"actions": "box"},
    ", curved": {"cost": "curved"},
    ", asymmetric": {"cost": "asymmetric"},
    ", simplex, d 3": {"actions": "simplex", "dim": 3},
    ", steep, box": {"cost": "steep", "actions": "box"},
    ", ramp spacing": {"actions": "ramp spacing", "ramp": 0.75},
}
QUADRATIC, EVERY = tuple(SETTINGS)[:2], tuple(SETTINGS)
AGENTS = {
    "MLAROBD": EVERY,
    "ROBD": EVERY,
    "ROBD, lambda1": QUADRATIC,
    "MLAROBD of ROBD": QUADRATIC,
    "Greedy": EVERY,
    "HittingMinimizer": (*QUADRATIC, ", simplex, d 3", ", steep, box"),
    "PureML": ("", ", box", ", simplex, d 3", ", ramp spacing"),
    "FollowPrediction": (*QUADRATIC, ", box"),
    "FollowPrediction, paper's": QUADRATIC,
    "OBD": (*QUADRATIC, ", box", ", asymmetric"),
    "GreedyOBD": QUADRATIC,
    "ABCS": QUADRATIC,
    "OGD": EVERY,
    "OGD, blind": QUADRATIC,
    "LAI": QUADRATIC,
    "LCP": ("", ", box", ", asymmetric"),
    "Switch": (*QUADRATIC, ", box"),
    "Switch, ratio": QUADRATIC,
    "RHC": EVERY,
    "CHC": (*QUADRATIC, ", box", ", curved"),
    "AFHC": (*QUADRATIC, ", simplex, d 3"),
    "RHGD": (*QUADRATIC, ", box"),
    "Independent": ("",),
    "RampLimited": QUADRATIC,
    "Rounded": QUADRATIC,
    "HoldStill": ("",),
}
for _agent, _settings in AGENTS.items():
    for _setting in _settings:
        add(f"Agent {_agent}{_setting}", ORDINARY, agent=_agent, **SETTINGS[_setting])
add("Agent RHC of persistence", ORDINARY, agent="RHC, on", forecaster="persistence")
add("Agent ROBD, missing", {"NaN": {"contexts": "NaN", "seed": 4}}, agent="ROBD")
for _agent in ("Periodic", "OnlineRidge", "Mixture", "SeasonalLinear"):
    add(f"Agent {_agent}", ORDINARY, agent=_agent, history=24)
    if _agent != "SeasonalLinear":
        add(f"Agent {_agent}, d 2", ORDINARY, agent=_agent, history=24, cost="full", movement="full", dim=2)
add("Agent OnlineRidge, covariates", ORDINARY, agent="OnlineRidge", history=24, covariates=2)
for _agent in ("LCP, proved", "HittingMinimizer"):
    add(f"Agent {_agent}, linear", ORDINARY, agent=_agent, movement="linear")
for _shift in (1, 2, -1, -2):
    _word = f"delay {_shift}" if _shift > 0 else f"ahead {-_shift}"
    for _agent in ("ROBD", "RHC, on", "column"):
        add(f"Agent {_agent}, {_word}", ORDINARY, agent=_agent, timing=_shift, history=3)
    add(f"Agent ROBD, {_word}, d 2, box", ORDINARY, agent="ROBD", timing=_shift, history=3, dim=2, actions="box")
    add(f"Agent Greedy, {_word}, spacing", ORDINARY, agent="Greedy", timing=_shift, history=3, actions="spacing")
for _dynamics in ("battery", "bounded battery", "regulator", "with memory", "delayed"):
    for _agent in ("LQR", "HInfinity", "RHC", "WithinLimits", "fixed"):
        if _dynamics != "bounded battery" or _agent in ("RHC", "WithinLimits"):
            add(f"Agent {_agent}, {_dynamics}", ORDINARY, agent=_agent, dynamics=_dynamics)

# In 32 bits
for _case in [case for case in CASES if case.label in ("wander", "hostile")]:
    if _case.group in (
        "Competitive, tracking",
        "Competitive, full, d 2",
        "Competitive, asymmetric",
        "Competitive, curved, within",
        "Competitive, box ramp",
        "Competitive, spacing",
        "Competitive, delay 1",
        "Competitive, ahead 2",
        "Competitive, restarts",
        "Guarded, tracking",
        "Guarded, full, d 3",
        "Guarded, box, asymmetric",
        "Guarded, total column, d 2",
        "Guarded, linear",
        "Promises, all kinds",
        "Promises, ramp",
        "Band, persistence",
        "Competitive Control, battery",
        "Guarded Control, battery",
        "Clipped, tracking",
        "Agent RHC, simplex, d 3",
    ):
        CASES.append(replace(_case, group=f"{_case.group}, 32 bits", dtype="float32"))

# The optimum of every problem above; distances beside a total are not solved, and a ramp in 64 bits only
for _case in list(CASES):
    _problem = {
        name: getattr(_case, name) for name in ("cost", "movement", "actions", "timing", "dynamics", "dim", "dtype")
    }
    _words = [str(value) if type(value) is str else f"{name} {value}" for name, value in _problem.items() if value]
    _group = f"Oracle, {', '.join(_words)}"
    _is_solved = _case.movement != "linear" or _case.actions != "simplex"
    _is_solved &= _case.dtype == "float64" or "ramp" not in _case.actions
    if _is_solved and all(case.group != _group for case in CASES):
        _history = 3 if _case.timing else 0
        add(_group, ORDINARY, agent="oracle", history=_history, ramp=_case.ramp, **_problem)
