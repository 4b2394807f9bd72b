"""What a sweep tries: every setting of every family that trades average cost for safety, on a grid."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

Network = Literal["lstm", "mlp"]
# Of the mean prediction error of the two-stage advisor on the training windows.
RhoBar = Literal["zero", "half", "mean"]
ScaleName = Literal["raw", "oracle", "window", "authors"]
# Memory restarts at midnight on the rolling history, or runs on over all days as one sequence.
Protocol = Literal["daily", "streamed"]
Schedule = Literal["cosine", "authors"]
LONGEST_PERIOD = 3650  # days of a period, over which the allowances of a promise are laid out step by step

_Rule = tuple[Callable[[float], bool], str]
_NOT_NEGATIVE: _Rule = (lambda value: 0 <= value < math.inf, "be finite and not negative")
_FRACTION: _Rule = (lambda value: 0 <= value <= 1, "lie between 0 and 1")
_ABOVE_ONE: _Rule = (lambda value: 1 < value < math.inf, "be finite and exceed 1")
_RULES: dict[str, _Rule] = {  # which values an axis takes, and how that is said
    "trusts": _NOT_NEGATIVE,
    "two_stage_trusts": _NOT_NEGATIVE,
    "mus": _FRACTION,
    "kappas": _FRACTION,
    "gammas": _ABOVE_ONE,
    "ratios": _ABOVE_ONE,
    "periods": (lambda value: 0 <= value <= LONGEST_PERIOD, f"be days, from 0 (never) to {LONGEST_PERIOD}"),
    "seeds": _NOT_NEGATIVE,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of the grid; what does not concern its family is None.

    `rho_bar` and `cost_scale` are by name. `period` is the days after which a promise restarts, 0 for never. `base_shortage` (W)
    and `protocol` say on which contexts and how a setting was scored.
    """

    family: str
    network: Network | None = None
    trust: float | None = None
    mu: float | None = None
    rho_bar: RhoBar | None = None
    cost_scale: ScaleName | None = None
    kappa: float | None = None
    gamma: float | None = None
    ratio: float | None = None
    period: int | None = None
    base_shortage: float | None = None
    protocol: Protocol | None = None


@dataclasses.dataclass(frozen=True)
class Grid:
    """The values of each axis. The defaults are the paper's trade-off (its Figure 5c).

    EC-L2O: `trusts` x `mus` x `rho_bars` x `cost_scales`. PureML: `kappas`. Two stages: `two_stage_trusts`. Switch: `gammas`. The
    guard around the regression: `ratios` x `periods`. Each network, and each of the seeds. With the schedule "authors" all
    networks are trained at the authors' learning rates, and EC-L2O with their loss, in which `mus` are the weights.
    """

    networks: tuple[Network, ...] = ("lstm",)
    trusts: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
    mus: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 0.9)
    rho_bars: tuple[RhoBar, ...] = ("zero",)
    cost_scales: tuple[ScaleName, ...] = ("oracle",)
    kappas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    two_stage_trusts: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
    gammas: tuple[float, ...] = (1.05, 1.2, 1.5, 2.0, 3.0)
    ratios: tuple[float, ...] = (1.8, 2.0, 2.5, 3.0, 4.0)
    periods: tuple[int, ...] = (1, 7, 30, 0)
    seeds: tuple[int, ...] = (0, 1)
    schedule: Schedule = "cosine"

    def __post_init__(self):
        for axis in dataclasses.fields(self)[:-1]:
            values = getattr(self, axis.name)
            if len(set(values)) < len(values):
                raise ValueError(f"{axis.name} must not repeat a value, got {values}.")
        for name, (allowed, rule) in _RULES.items():
            wrong = [value for value in getattr(self, name) if not allowed(value)]
            if wrong:
                raise ValueError(f"{name} must {rule}, got {wrong[0]:g}.")
        if not self.seeds or not self.networks:
            raise ValueError("a sweep needs at least one seed and one network.")
        if 0.0 not in self.kappas:
            raise ValueError(f"kappas must have 0: its networks advise the two-stage rows, got {self.kappas}.")

    def calibrated(self, network: Network) -> Iterator[Setting]:
        """Yield EC-L2O's settings, without those that say the same.

        At mu = 0 there is no error for rho_bar, and Adam ignores a constant factor: only "window" differs from the other units of
        cost. The authors' loss has a threshold and a unit of its own.
        """
        if self.schedule == "authors":
            pairs = itertools.product(self.trusts, self.mus)
            yield from (Setting("ec-l2o", network, trust, mu, None, "authors") for trust, mu in pairs)
            return
        seen = set()
        for trust, mu, rho_bar, scale in itertools.product(self.trusts, self.mus, self.rho_bars, self.cost_scales):
            same = (trust, mu, None, scale == "window") if mu == 0 else (trust, mu, rho_bar, scale)
            if same not in seen:
                seen.add(same)
                yield Setting("ec-l2o", network, trust, mu, rho_bar, scale)

    def alone(self, network: Network) -> Iterator[Setting]:
        """Return PureML's settings."""
        return (Setting("pure-ml", network, kappa=kappa) for kappa in self.kappas)

    def two_stage(self, network: Network) -> Iterator[Setting]:
        """Yield what is made of PureML-0's advice afterwards."""
        yield from (Setting("mla-robd", network, trust) for trust in self.two_stage_trusts)
        yield from (Setting("switch", network, gamma=gamma) for gamma in self.gammas)

    def guarded(self) -> Iterator[Setting]:
        """Return the settings of the regression behind a promise."""
        pairs = itertools.product(self.periods, self.ratios)
        return (Setting("guarded", ratio=ratio, period=period) for period, ratio in pairs)
