"""What a sweep shows: means and spreads over seeds, the settings that nothing beats, and what validation chooses."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ecl2o.paper.sweep_grid import Network, Setting

T = TypeVar("T")
COST, RATIO = "test_cost", "test_ratio"
# Of R-OBD's bound: how large a ratio on the validation days a careful choice may have.
CAREFUL = 1.5


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    """One setting with one seed, and its figures by name."""

    setting: Setting
    seed: int
    figures: dict[str, float]


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One setting: the mean of each figure over seeds, and its standard deviation (of the population)."""

    setting: Setting
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return what the setting says and the figures, as `NAME` and `NAME_std`."""
        setting = {name: value for name, value in dataclasses.asdict(self.setting).items() if value is not None}
        spreads = {f"{name}_std": value for name, value in self.spread.items()}
        return {"setting": setting, "seeds": self.seeds, **self.mean, **spreads}


def average_over_seeds(records: Iterable[SweepRecord]) -> list[SweepPoint]:
    """Return one point for each setting, in the order in which they first appear."""
    groups: dict[Setting, list[SweepRecord]] = {}
    for record in records:
        groups.setdefault(record.setting, []).append(record)
    points = []
    for setting, group in groups.items():
        values = {name: np.array([record.figures[name] for record in group]) for name in group[0].figures}
        mean = {name: float(found.mean()) for name, found in values.items()}
        spread = {name: float(found.std()) if np.isfinite(found).all() else math.inf for name, found in values.items()}
        points.append(SweepPoint(setting, len(group), mean, spread))
    return points


def pareto_front(points: Iterable[T], figures: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the points that no other beats in both figures (cost, ratio), the cheapest first.

    >>> pareto_front([(2.5, 1.5), (2.0, 1.5), (1.0, 3.0)], lambda point: point)
    [(1.0, 3.0), (2.0, 1.5)]
    """
    front: list[T] = []
    for point in sorted(points, key=figures):
        if not front or figures(point)[1] < figures(front[-1])[1]:
            front.append(point)
    return front


# (family, network, EC-L2O's trust)
Family = tuple[str, Network | None, float | None]


def family_of(point: SweepPoint) -> Family:
    """Return what a point shares its front with: its family and network, and, for EC-L2O, its trust."""
    setting = point.setting
    return setting.family, setting.network, setting.trust if setting.family == "ec-l2o" else None


def pareto_fronts(points: Sequence[SweepPoint]) -> dict[Family, list[SweepPoint]]:
    """Return the front of every family, EC-L2O's by trust."""
    families: dict[Family, list[SweepPoint]] = {}
    for point in points:
        families.setdefault(family_of(point), []).append(point)
    return {
        family: pareto_front(members, lambda point: (point.mean[COST], point.mean[RATIO]))
        for family, members in families.items()
    }


def choose_settings(points: Iterable[SweepPoint], network: Network, bound: float) -> dict[str, SweepPoint]:
    """Return, by rule, EC-L2O's setting with the least cost on the validation days: of all, and of those safe there.

    Safe is a mean validation ratio of at most 1.5 times `bound`, R-OBD's; where none is, the smallest ratio counts.
    """
    candidates = _calibrated(points, network)
    limit = max(CAREFUL * bound, min(point.mean["validation_ratio"] for point in candidates))
    safe = [point for point in candidates if point.mean["validation_ratio"] <= limit]
    rule = "least validation cost"
    rules = {rule: candidates, f"{rule} of those with a validation ratio of at most {limit:.4g}": safe}
    return {name: min(group, key=lambda point: point.mean["validation_cost"]) for name, group in rules.items()}


def choices_json(choices: Mapping[str, SweepPoint]) -> list[dict[str, Any]]:
    """Return what `choose_settings` found, as plain values."""
    return [{"rule": rule, **point.as_json()} for rule, point in choices.items()]


def _calibrated(points: Iterable[SweepPoint], network: Network) -> list[SweepPoint]:
    return [point for point in points if (point.setting.family, point.setting.network) == ("ec-l2o", network)]


def find_safest_below(points: Iterable[SweepPoint], network: Network, cost: float) -> dict[str, Any]:
    """Return how many of EC-L2O's settings cost less than this on the test days, and the one with the smallest ratio."""
    candidates = _calibrated(points, network)
    below = [point for point in candidates if point.mean[COST] < cost]
    safest = min(below, key=lambda point: point.mean[RATIO], default=None)
    shown = None if safest is None else safest.as_json()
    return {"cost": cost, "settings": len(candidates), "below": len(below), "safest": shown}


def summarize_sweep(points: Sequence[SweepPoint], networks: Sequence[Network], bound: float) -> dict[str, Any]:
    """Return the points, the fronts, what validation chooses, and what is cheaper than PureML-0; `bound` is R-OBD's."""
    costs = {point.setting.network: point.mean[COST] for point in points if point.setting.kappa == 0}
    return {
        "points": [point.as_json() for point in points],
        "fronts": [
            {"family": family, "network": network, "trust": trust, "points": [point.as_json() for point in edge]}
            for (family, network, trust), edge in pareto_fronts(points).items()
        ],
        "choices": {network: choices_json(choose_settings(points, network, bound)) for network in networks},
        "below_pure_ml": {network: find_safest_below(points, network, costs[network]) for network in networks},
    }
