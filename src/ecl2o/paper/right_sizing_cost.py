"""A cluster of several kinds of racks and its prices, and the decision problem that they make.

An action x holds the racks of each kind that are on besides a standby that always is, 0 <= x <= capacity; the context is the
workload y of the hour, in thousands of requests per second (krps). What an hour costs is derived in `problem.cluster_cost`.
Starting or stopping racks costs (x - z)' Q (x - z) with Q = diag(start_up) + migration s s': wear and start-up energy by kind,
and moving sessions and caches, by the square of the change in total speed; so kinds are coupled: growing two kinds at once costs
more than the sum, replacing one kind by another less.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ecl2o.problem import Box, ClusterCost, ConvexCost, Mahalanobis, Problem


@dataclasses.dataclass(frozen=True)
class RackKind:
    """One kind of rack; powers in kW per rack, speed in krps per rack, racks as real numbers."""

    name: str
    capacity: float  # racks that can be on besides the standby
    standby: float  # racks that are always on
    speed: float  # krps per rack at nominal speed
    idle: float  # kW per rack that is on
    dynamic: float  # kW per rack at nominal speed, besides idle
    losses: float  # kW per rack^2
    start_up: float  # $ per rack^2 started or stopped within an hour


EFFICIENT = RackKind(
    "efficient", capacity=8.0, standby=0.5, speed=1.0, idle=3.0, dynamic=3.0, losses=0.3, start_up=0.75
)
STANDARD = RackKind("standard", capacity=8.0, standby=0.5, speed=1.5, idle=6.0, dynamic=7.0, losses=0.5, start_up=1.25)
FAST = RackKind("fast", capacity=5.0, standby=0.25, speed=3.0, idle=15.0, dynamic=16.0, losses=1.5, start_up=2.5)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Kinds of racks and the prices that they are run under.

    >>> cluster = Cluster()
    >>> round(float(cluster.problem().m), 6), cluster.nominal_speed
    (0.036, 37.0)
    """

    kinds: tuple[RackKind, ...] = (EFFICIENT, STANDARD, FAST)
    energy_price: float = 0.12  # $ per kWh
    delay_price: float = 0.15  # $ per krps and hour at full utilisation
    overload_price: float = 10.0  # $ per krps and hour beyond the headroom
    headroom: float = 0.9  # share of the nominal speed beyond which requests are late
    softness: float = 0.5  # krps, over which lateness sets in
    migration: float = 0.4  # $ per krps^2 of change in total speed within an hour

    def __post_init__(self):
        if not self.kinds:
            raise ValueError("kinds must not be empty.")
        if not self.migration >= 0:
            raise ValueError(f"migration must not be negative, got {self.migration}.")

    def of_kinds(self, figure: str) -> np.ndarray:
        """One figure of every kind, e.g. `speed`."""
        return np.array([getattr(kind, figure) for kind in self.kinds])

    @property
    def nominal_speed(self) -> float:
        """What the whole cluster serves with everything on, in krps."""
        return float(self.of_kinds("speed") @ (self.of_kinds("capacity") + self.of_kinds("standby")))

    def problem(self) -> Problem:
        """The decision problem: d actions (racks), contexts of one number (krps)."""
        speed = self.of_kinds("speed")
        cost = ClusterCost(
            standby=self.of_kinds("standby"),
            speed=speed,
            idle=self.of_kinds("idle"),
            dynamic=self.of_kinds("dynamic"),
            losses=self.of_kinds("losses"),
            energy_price=self.energy_price,
            delay_price=self.delay_price,
            overload_price=self.overload_price,
            headroom=self.headroom,
            softness=self.softness,
        )
        Q = np.diag(self.of_kinds("start_up")) + self.migration * np.outer(speed, speed)
        return Problem(
            ConvexCost(cost, strong_convexity=cost.strong_convexity),
            Mahalanobis(jnp.asarray(Q)),
            Box(jnp.zeros(len(speed)), jnp.asarray(self.of_kinds("capacity"))),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return dataclasses.asdict(self) | {"kinds": [dataclasses.asdict(kind) for kind in self.kinds]}
