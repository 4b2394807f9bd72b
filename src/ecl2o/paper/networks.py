"""The networks of a study: trained alone (PureML) and through the calibrator (EC-L2O), all settings of a kind at once."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ecl2o.agents import MLAROBD, AbstractAgent, PureML
from ecl2o.agents.advisors import LSTM, MLP
from ecl2o.learning import (
    AUTHORS_RATES_IN_USE,
    AbstractLoss,
    AuthorsLoss,
    CalibratedLoss,
    StandaloneLoss,
    authors_schedule,
    fit_many,
)
from ecl2o.learning.fit import TrainingProgress
from ecl2o.learning.losses import CostScale, make_scale
from ecl2o.offline import oracle_batch
from ecl2o.paper.sweep_grid import Schedule
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import cast_floats

_DTYPE = "float32"  # of training
NETWORK_KINDS: dict[str, type[LSTM] | type[MLP]] = {"lstm": LSTM, "mlp": MLP}
LEARNING_RATES = {"lstm": 3e-3, "mlp": 2e-2}  # chosen on Riverside's validation month, docs/choices.md


@dataclasses.dataclass(frozen=True)
class StandaloneTraining:
    """One training of a network on its own cost, kappa weighing the ratio."""

    kappa: float
    seed: int


@dataclasses.dataclass(frozen=True)
class CalibratedTraining:
    """One training of a network behind the calibrator."""

    trust: float
    mu: float
    seed: int
    rho_bar: float = 0.0
    cost_scale: CostScale = "oracle"


@dataclasses.dataclass(frozen=True)
class AuthorsTraining:
    """One training of a network behind the calibrator as in the authors' code: their loss, at their learning rates."""

    trust: float
    weight: float
    seed: int


@dataclasses.dataclass(frozen=True)
class NetworkTraining:
    """What all networks of a study share."""

    network: Callable[[int], AbstractAgent]  # makes an untrained one from a seed
    problem: Problem
    windows: Instance
    steps: int
    learning_rate: float = 3e-3

    @classmethod
    def of_kind(cls, kind: str, problem: Problem, windows: Instance, steps: int, **scalings: Any) -> "NetworkTraining":
        """Return the training of networks of a kind ("lstm" or "mlp") at its learning rate, with these scalings."""
        dims = windows.x0.shape[-1], windows.contexts.shape[-1]

        def untrained(seed: int) -> AbstractAgent:
            return NETWORK_KINDS[kind](*dims, key=untrained_key(seed), **scalings)

        return cls(untrained, problem, windows, steps, LEARNING_RATES[kind])

    def train_alone(
        self, settings: Sequence[StandaloneTraining], report: TrainingProgress, schedule: Schedule = "cosine"
    ) -> dict[StandaloneTraining, PureML]:
        """Train networks on their own cost (PureML), at our learning rates or the authors'."""
        agents = [PureML(self.network(s.seed)) for s in settings]
        rates = self._authors_rates if schedule == "authors" else None
        return self._fit(agents, [StandaloneLoss(s.kappa) for s in settings], settings, report, rates)

    def train_calibrated(
        self, settings: Sequence[CalibratedTraining], report: TrainingProgress
    ) -> dict[CalibratedTraining, MLAROBD]:
        """Train networks through the calibrator (EC-L2O); one program for all scales of the cost, since they are fixed here."""
        agents = [MLAROBD(self.network(s.seed), s.trust) for s in settings]
        kinds: dict[CostScale, None] = dict.fromkeys(s.cost_scale for s in settings)
        scales = {scale: make_scale(scale, cast_floats(self._oracles, _DTYPE)) for scale in kinds}
        losses = [CalibratedLoss(mu=s.mu, rho_bar=s.rho_bar, scale=scales[s.cost_scale]) for s in settings]
        return self._fit(agents, losses, settings, report)

    def train_authors(
        self, settings: Sequence[AuthorsTraining], report: TrainingProgress
    ) -> dict[AuthorsTraining, MLAROBD]:
        """Train EC-L2O as the authors did."""
        agents = [MLAROBD(self.network(s.seed), s.trust) for s in settings]
        return self._fit(agents, [AuthorsLoss(s.weight) for s in settings], settings, report, self._authors_rates)

    @property
    def _authors_rates(self) -> Float[np.ndarray, " steps"]:
        """The authors' learning rates; where there are fewer steps than theirs, their stages are so much shorter."""
        steps, rates = authors_schedule(self.windows.x0.shape[0], rates=AUTHORS_RATES_IN_USE)
        return rates[:: max(1, steps // self.steps)]

    @functools.cached_property
    def _oracles(self) -> Trajectory:
        # Solved once for all kinds of training.
        return oracle_batch(self.problem, self.windows)

    def _fit(
        self,
        agents: list,
        losses: Sequence[AbstractLoss],
        settings: Sequence,
        report: TrainingProgress,
        rates: Float[np.ndarray, " steps"] | None = None,
    ) -> dict:
        fitted = fit_many(
            agents,
            self.problem,
            self.windows,
            losses=losses,
            keys=[jax.random.key(s.seed) for s in settings],
            steps=self.steps if rates is None else rates.size,
            learning_rates=self.learning_rate,
            schedule="cosine" if rates is None else rates,
            batch=min(50, len(self.windows.x0)),
            dtype=_DTYPE,
            progress=report,
            oracles=self._oracles,
        )
        return {setting: result.agent for setting, result in zip(settings, fitted, strict=True)}


def untrained_key(seed: int) -> jax.Array:
    """Return the key of a network's first weights; batches are drawn with the seed's own."""
    return jax.random.fold_in(jax.random.key(seed), 1)
