"""What a sweep shows: means and spreads over seeds, the settings that nothing beats, and what validation chooses."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ecl2o.paper.sweep_grid import Network, Setting

COST, RATIO = "test_cost", "test_ratio"
# Of R-OBD's bound: how large a ratio on the validation days a careful choice may have.
CAREFUL = 1.5


@dataclasses.dataclass(frozen=True)
class Record:
    """One setting with one seed, and its figures by name."""

    setting: Setting
    seed: int
    figures: dict[str, float]

    def as_row(self) -> dict[str, Any]:
        """Flat, for a table."""
        return {**dataclasses.asdict(self.setting), "seed": self.seed, **self.figures}


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting: the mean of each figure over seeds, and its standard deviation (of the population)."""

    setting: Setting
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Figures as `NAME` and `NAME_std`."""
        spreads = {f"{name}_std": value for name, value in self.spread.items()}
        return {"setting": self.setting.as_json(), "seeds": self.seeds, **self.mean, **spreads}


def over_seeds(records: Iterable[Record]) -> list[Point]:
    """One point for each setting, in the order in which they first appear."""
    groups: dict[Setting, list[Record]] = {}
    for record in records:
        groups.setdefault(record.setting, []).append(record)
    points = []
    for setting, group in groups.items():
        values = {name: np.array([record.figures[name] for record in group]) for name in group[0].figures}
        mean = {name: float(found.mean()) for name, found in values.items()}
        spread = {name: float(found.std()) if np.isfinite(found).all() else math.inf for name, found in values.items()}
        points.append(Point(setting, len(group), mean, spread))
    return points


def front(points: Iterable[Point], cost: str = COST, ratio: str = RATIO) -> list[Point]:
    """The points that no other beats in both figures, the cheapest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.mean[cost], point.mean[ratio])):
        if not kept or point.mean[ratio] < kept[-1].mean[ratio]:
            kept.append(point)
    return kept


# (family, network, EC-L2O's trust)
Family = tuple[str, Network | None, float | None]


def family_of(point: Point) -> Family:
    """What a point shares its front with: its family and network, and, for EC-L2O, its trust."""
    setting = point.setting
    return setting.family, setting.network, setting.trust if setting.family == "ec-l2o" else None


def fronts(points: Sequence[Point]) -> dict[Family, list[Point]]:
    """The front of every family, EC-L2O's by trust."""
    families = dict.fromkeys(family_of(point) for point in points)
    return {family: front(point for point in points if family_of(point) == family) for family in families}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that the validation days choose, and by which rule."""

    rule: str
    point: Point

    @property
    def setting(self) -> Setting:
        """What was chosen."""
        return self.point.setting

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"rule": self.rule, **self.point.as_json()}


def choices(points: Iterable[Point], network: Network, bound: float) -> list[Choice]:
    """EC-L2O's settings with the least cost on the validation days: of all, and of those that are safe there.

    Safe is a mean validation ratio of at most 1.5 times `bound`, R-OBD's; where none is, the smallest ratio counts.
    """
    candidates = _calibrated(points, network)
    limit = max(CAREFUL * bound, min(point.mean["validation_ratio"] for point in candidates))
    safe = [point for point in candidates if point.mean["validation_ratio"] <= limit]
    rule = f"least validation cost of those with a validation ratio of at most {limit:.4g}"
    return [Choice("least validation cost", _cheapest(candidates)), Choice(rule, _cheapest(safe))]


def _cheapest(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: point.mean["validation_cost"])


def _calibrated(points: Iterable[Point], network: Network) -> list[Point]:
    return [point for point in points if (point.setting.family, point.setting.network) == ("ec-l2o", network)]


def safest_below(points: Iterable[Point], network: Network, cost: float) -> dict[str, Any]:
    """Of EC-L2O's settings that cost less than this on the test days: how many, and the one with the smallest ratio."""
    candidates = _calibrated(points, network)
    below = [point for point in candidates if point.mean[COST] < cost]
    safest = min(below, key=lambda point: point.mean[RATIO], default=None)
    shown = None if safest is None else safest.as_json()
    return {"cost": cost, "settings": len(candidates), "below": len(below), "safest": shown}


def summary(points: Sequence[Point], networks: Sequence[Network], bound: float) -> dict[str, Any]:
    """What results.json says: every setting's figures, the fronts, what validation chooses, what is cheaper than PureML-0.

    `bound` is R-OBD's.
    """
    costs = {point.setting.network: point.mean[COST] for point in points if point.setting.kappa == 0}
    return {
        "points": [point.as_json() for point in points],
        "fronts": [
            {"family": family, "network": network, "trust": trust, "points": [point.as_json() for point in edge]}
            for (family, network, trust), edge in fronts(points).items()
        ],
        "choices": {network: [choice.as_json() for choice in choices(points, network, bound)] for network in networks},
        "below_pure_ml": {network: safest_below(points, network, costs[network]) for network in networks},
    }
