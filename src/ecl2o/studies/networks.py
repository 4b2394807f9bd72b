"""The networks of a study: trained alone (PureML) and through the calibrator (EC-L2O), all settings of a kind at once."""

import dataclasses
from collections.abc import Callable, Sequence

import jax

from ecl2o.agents import MLAROBD, AbstractAgent, PureML
from ecl2o.learning import AbstractLoss, CalibratedLoss, StandaloneLoss, fit_many
from ecl2o.learning.descent import Report
from ecl2o.problem import Instance, Problem


@dataclasses.dataclass(frozen=True)
class Alone:
    """One training of a network on its own cost, kappa weighing the ratio."""

    kappa: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """One training of a network behind the calibrator."""

    trust: float
    mu: float
    seed: int


@dataclasses.dataclass(frozen=True)
class NetworkTraining:
    """What all networks of a study share: `network(seed)` makes an untrained one."""

    network: Callable[[int], AbstractAgent]
    problem: Problem
    windows: Instance
    steps: int
    learning_rate: float = 3e-3

    def alone(self, settings: Sequence[Alone], report: Report) -> dict[Alone, PureML]:
        """Train networks on their own cost (PureML)."""
        agents = [PureML(self.network(s.seed)) for s in settings]
        return self._fit(agents, [StandaloneLoss(s.kappa) for s in settings], settings, report)

    def calibrated(self, settings: Sequence[Calibrated], report: Report) -> dict[Calibrated, MLAROBD]:
        """Train networks through the calibrator (EC-L2O)."""
        agents = [MLAROBD(self.network(s.seed), s.trust) for s in settings]
        return self._fit(agents, [CalibratedLoss(mu=s.mu) for s in settings], settings, report)

    def _fit(self, agents: list, losses: Sequence[AbstractLoss], settings: Sequence, report: Report) -> dict:
        fitted = fit_many(
            agents,
            self.problem,
            self.windows,
            losses=losses,
            keys=[jax.random.key(s.seed) for s in settings],
            steps=self.steps,
            learning_rates=self.learning_rate,
            progress=report,
        )
        return {setting: result.agent for setting, result in zip(settings, fitted, strict=True)}


def untrained_key(seed: int) -> jax.Array:
    """The key of a network's first weights; batches are drawn with the seed's own."""
    return jax.random.fold_in(jax.random.key(seed), 1)
