"""What alpha means for a series: how far the action misses and moves for each, in hindsight and under R-OBD.

Alpha is a rate of exchange. In hindsight the squared misses and the squared moves of a series lie on a convex curve whose slope
is -alpha: where alpha is 10, another unit of squared movement saves 10 units of squared misses, and not one more is bought.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import ROBD
from ecl2o.exceptions import DataError
from ecl2o.fitting.settings import check_alpha
from ecl2o.offline import oracle
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking
from ecl2o.running import rollout

ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


@dataclasses.dataclass(frozen=True)
class TrackingStats:
    """How closely a series was followed, in its units per step: the mean distance from the context and from the action before.

    `largest_move` is the largest change in one step, `squared_miss` and `squared_move` are the sums that are billed.
    """

    miss: float
    move: float
    largest_move: float
    squared_miss: float
    squared_move: float

    @classmethod
    def of(cls, x0: np.ndarray, actions: np.ndarray, contexts: np.ndarray) -> "TrackingStats":
        """Of a path, (T, d), from x0, (d,)."""
        misses = np.linalg.norm(actions - contexts, axis=-1)
        moves = np.linalg.norm(np.diff(actions, axis=0, prepend=x0[None]), axis=-1)
        squares = float(np.sum(misses**2)), float(np.sum(moves**2))
        return cls(float(misses.mean()), float(moves.mean()), float(moves.max()), *squares)


@dataclasses.dataclass(frozen=True)
class AlphaRow:
    """One alpha: how the series is followed by who knows it all, and by R-OBD, who knows nothing ahead."""

    alpha: float
    hindsight: TrackingStats
    expert: TrackingStats


@dataclasses.dataclass(frozen=True)
class AlphaStudy:
    """Rows by alpha, and the actions behind them: (alphas, T, d)."""

    rows: list[AlphaRow]
    contexts: np.ndarray
    hindsight: np.ndarray
    expert: np.ndarray


def study_alphas(
    contexts: Float[np.ndarray, "n q"], alphas: Sequence[float] = ALPHAS, name: str = "the series"
) -> AlphaStudy:
    """Follow the contexts after the first one, where both begin, with every alpha; `name` is theirs in messages.

    >>> steps = np.sin(np.arange(48.0))[:, None]
    >>> calm, nervous = study_alphas(steps, [100.0, 1.0]).rows[::-1]
    >>> calm.hindsight.move < nervous.hindsight.move and calm.hindsight.miss > nervous.hindsight.miss
    True
    """
    wanted = sorted({float(alpha) for alpha in alphas})
    if not wanted:
        raise ValueError("alphas must name at least one number.")
    for alpha in wanted:
        check_alpha(alpha)
    if len(contexts) < 2 or (contexts == contexts[0]).all():
        raise DataError(f"{name} never changes, so that no alpha makes a difference.")
    unit = float(np.abs(contexts).max())  # the answers scale with the series
    x0, rest = contexts[0], contexts[1:]
    scaled = Instance(jnp.asarray(x0 / unit), jnp.asarray(rest / unit))
    best, online = (np.asarray(actions) * unit for actions in _followed(scaled, jnp.asarray(wanted)))
    rows = [
        AlphaRow(alpha, TrackingStats.of(x0, best[i], rest), TrackingStats.of(x0, online[i], rest))
        for i, alpha in enumerate(wanted)
    ]
    return AlphaStudy(rows, rest, best, online)


def alpha_from_prices(miss_price: float, ramp_price: float) -> float:
    """The alpha of somebody who pays the one for missing by some amount for one step, and the other for a change by as much.

    >>> alpha_from_prices(miss_price=20.0, ramp_price=50.0)
    2.5
    """
    for name, price in (("miss_price", miss_price), ("ramp_price", ramp_price)):
        if not (np.isfinite(price) and price > 0):
            raise ValueError(f"{name} must be positive and finite, got {price}.")
    return ramp_price / miss_price


@eqx.filter_jit
def _followed(instance: Instance, alphas: Float[Array, " k"]) -> tuple[Float[Array, "k T d"], Float[Array, "k T d"]]:
    def one(alpha):
        problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=alpha, dim=instance.dim))
        return oracle(problem, instance).actions, rollout(ROBD(), problem, instance).actions

    return jax.lax.map(one, alphas)
