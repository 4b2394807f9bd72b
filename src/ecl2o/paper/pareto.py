"""What a sweep shows: means and spreads over seeds, the settings that nothing beats, and what validation chooses."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from ecl2o.paper.sweep_grid import Network, Protocol, Setting

T = TypeVar("T")
COST, RATIO, THIRD = "test_cost", "test_ratio", "test_third_worst"
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


def paired_difference(ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Return the mean of `ours - theirs` over seeds, its standard error (infinite for one seed), and how many are below 0.

    >>> paired_difference(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    {'mean': -0.5, 'standard_error': 0.5, 'seeds': 2, 'cheaper': 1}
    """
    more = np.asarray(ours, float) - np.asarray(theirs, float)
    error = float(np.std(more, ddof=1) / np.sqrt(len(more))) if len(more) > 1 else math.inf
    return {
        "mean": float(more.mean()),
        "standard_error": error,
        "seeds": len(more),
        "cheaper": int(np.sum(more < 0)),
    }


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


PAPER_TRUST, PAPER_MU, TWO_STAGE_TRUST = 0.5, 0.6, 0.3  # the paper's (section 6.2)


def summarize_headline(records: Sequence[SweepRecord], bound: float) -> list[dict[str, Any]]:
    """Return the paper's main comparison for each P_s, network and protocol: the rows, and their paired costs beside PureML-0's.

    Rows are named as in `ecl2o reproduce`. "ec-l2o" has the paper's parameters, "ec-l2o-tuned" those that cost least on the
    validation days. Families that were not swept have no row. `bound` is R-OBD's.
    """
    groups: dict[tuple[float | None, Protocol | None], list[SweepRecord]] = {}
    for record in records:
        groups.setdefault((record.setting.base_shortage, record.setting.protocol), []).append(record)
    found = []
    for (shortage, protocol), group in groups.items():
        networks: dict[Network, None] = {r.setting.network: None for r in group if r.setting.network is not None}
        for network in networks:
            rows = _headline_rows(average_over_seeds(group), network, bound)
            seeds = {name: _by_seed(group, point.setting) for name, point in rows.items()}
            pure = seeds["pure-ml"]
            differences = {
                name: paired_difference(*(np.array([costs[seed] for seed in pure]) for costs in (seeds[name], pure)))
                for name in ("mla-robd", "ec-l2o", "ec-l2o-tuned")
                if name in rows
            }
            shown = {name: point.as_json() for name, point in rows.items()}
            about = {"base_shortage": shortage, "network": network, "protocol": protocol}
            found.append({**about, "rows": shown, "minus_pure_ml": differences})
    return found


def _headline_rows(points: Sequence[SweepPoint], network: Network, bound: float) -> dict[str, SweepPoint]:
    own = [point for point in points if point.setting.network in (None, network)]
    wanted: dict[str, dict[str, Any]] = {
        "r-obd": {"family": "r-obd"},
        "pure-ml": {"family": "pure-ml", "kappa": 0.0},
        "mla-robd": {"family": "mla-robd", "trust": TWO_STAGE_TRUST},
        "ec-l2o": {"family": "ec-l2o", "trust": PAPER_TRUST, "mu": PAPER_MU},
        "guarded": {"family": "guarded", "period": 1},
    }
    rows = {}
    for name, values in wanted.items():
        fitting = (point for point in own if values.items() <= vars(point.setting).items())
        if (first := next(fitting, None)) is not None:
            rows[name] = first
    if any(point.setting.family == "ec-l2o" for point in own):
        rows["ec-l2o-tuned"] = next(iter(choose_settings(own, network, bound).values()))
    return rows


def _by_seed(records: Iterable[SweepRecord], setting: Setting) -> dict[int, float]:
    return {record.seed: record.figures[COST] for record in records if record.setting == setting}
