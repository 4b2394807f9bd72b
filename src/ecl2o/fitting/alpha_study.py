"""What alpha means for a series: how far actions miss and move for each alpha, in hindsight and under R-OBD.

Alpha is an exchange rate. In hindsight, squared misses and squared moves lie on a convex curve of slope -alpha: at alpha = 10,
one more unit of squared movement saves 10 units of squared misses.
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
    """How closely a series was followed, in its units.

    Args:
        miss: mean distance of the action from the context.
        move: mean change of the action in a step.
        largest_move: largest change in a step.
        squared_miss: sum of the squared misses.
        squared_move: sum of the squared changes.
    """

    miss: float
    move: float
    largest_move: float
    squared_miss: float
    squared_move: float

    @classmethod
    def of(cls, x0: np.ndarray, actions: np.ndarray, contexts: np.ndarray) -> "TrackingStats":
        """Compute the figures of a path (T, d) that starts at x0 (d,)."""
        misses = np.linalg.norm(actions - contexts, axis=-1)
        moves = np.linalg.norm(np.diff(actions, axis=0, prepend=x0[None]), axis=-1)
        squares = float(np.sum(misses**2)), float(np.sum(moves**2))
        return cls(float(misses.mean()), float(moves.mean()), float(moves.max()), *squares)


@dataclasses.dataclass(frozen=True)
class AlphaRow:
    """How the series is followed at one alpha: in hindsight, and by R-OBD, which knows only the past."""

    alpha: float
    hindsight: TrackingStats
    expert: TrackingStats


@dataclasses.dataclass(frozen=True)
class AlphaStudy:
    """Rows by increasing alpha, the contexts (T, d), and the actions of both, (alphas, T, d)."""

    rows: list[AlphaRow]
    contexts: np.ndarray
    hindsight: np.ndarray
    expert: np.ndarray


def study_alphas(
    contexts: Float[np.ndarray, "n q"], alphas: Sequence[float] = ALPHAS, name: str = "the series"
) -> AlphaStudy:
    """Follow a series in hindsight and by R-OBD, for each alpha.

    Args:
        contexts: (n, d); both start at the first one.
        alphas: costs of moving. Default: 0.1 to 1000.
        name: name of the series in messages.

    Raises:
        DataError: If the series never changes.

    >>> steps = np.sin(np.arange(48.0))[:, None]
    >>> calm, nervous = study_alphas(steps, [100.0, 1.0]).rows[::-1]
    >>> calm.hindsight.move < nervous.hindsight.move and calm.hindsight.miss > nervous.hindsight.miss
    True
    """
    chosen = sorted({float(alpha) for alpha in alphas})
    if not chosen:
        raise ValueError("alphas must contain at least one number.")
    for alpha in chosen:
        check_alpha(alpha)
    if len(contexts) < 2 or (contexts == contexts[0]).all():
        raise DataError(f"{name} never changes, so alpha makes no difference.")
    unit = float(np.abs(contexts).max())  # the results scale with the series
    x0, rest = contexts[0], contexts[1:]
    scaled = Instance(jnp.asarray(x0 / unit), jnp.asarray(rest / unit))
    best, online = (np.asarray(actions) * unit for actions in _follow(scaled, jnp.asarray(chosen)))
    rows = [
        AlphaRow(alpha, TrackingStats.of(x0, best[i], rest), TrackingStats.of(x0, online[i], rest))
        for i, alpha in enumerate(chosen)
    ]
    return AlphaStudy(rows, rest, best, online)


def alpha_from_prices(miss_price: float, ramp_price: float) -> float:
    """Return the alpha of two prices: of a miss of some size for one step, and of a change of the same size.

    >>> alpha_from_prices(miss_price=20.0, ramp_price=50.0)
    2.5
    """
    for name, price in (("miss_price", miss_price), ("ramp_price", ramp_price)):
        if not (np.isfinite(price) and price > 0):
            raise ValueError(f"{name} must be positive and finite, got {price}.")
    return ramp_price / miss_price


@eqx.filter_jit
def _follow(instance: Instance, alphas: Float[Array, " k"]) -> tuple[Float[Array, "k T d"], Float[Array, "k T d"]]:
    def one(alpha):
        problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=alpha, dim=instance.dim))
        return oracle(problem, instance).actions, rollout(ROBD(), problem, instance).actions

    return jax.lax.map(one, alphas)
