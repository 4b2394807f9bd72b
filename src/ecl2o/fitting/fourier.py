"""The regression on random Fourier features, solved on the discounted mean of the coming contexts."""

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

from ecl2o.agents.advisors.fourier_regression import ContextFeatures, FourierFeatures, FourierRegression
from ecl2o.data import Contexts

GROUPS, INPUTS, COSINES = 64, 24, 24  # of the random features; every group sees the hour, whose effects differ most
_PENALTY = 450.0  # on squared weights, for targets of standard deviation 1
_MOST_ROWS, _BLOCK = 30_000, 4_096  # to learn from, evenly chosen; at once
_FEWEST_DAYS = 28  # of rows to learn from
_KNOWN = 1e-6  # of z is unknown at most in these rows


def find_obstacle(contexts: Contexts, rho: float) -> str | None:
    """Return why nothing can be learned from the training days of a column; None if it can."""
    days = contexts.split.training_days - ContextFeatures(1).needed - _maturity(rho) / contexts.steps_per_day
    if days < _FEWEST_DAYS:
        return f"it needs {_FEWEST_DAYS} days with complete features and known targets; there are {max(days, 0):.0f}"
    return None


def _maturity(rho: float) -> int:
    """Return after how many steps all of z but a negligible part is known."""
    return max(int(np.ceil(np.log(_KNOWN) / np.log(max(rho, _KNOWN)))), 1)


@dataclasses.dataclass(frozen=True)
class LearningSamples:
    """What a series teaches: the features of n rows, and z less its `ContextFeatures.usual_mean`, in parts that add up."""

    features: ContextFeatures
    seen: Float[np.ndarray, "n k"]
    parts: Float[np.ndarray, "p n"]


def collect_samples(contexts: Contexts, rho: float, days: int, hours: tuple[int, ...] = ()) -> LearningSamples:
    """Return what the first days of a series teach about z.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to learn from; those with imputed rows are left out.
        hours: ahead, where parts of z end; the last part is all that comes later. Default: z is one part.
    """
    values, per_day = contexts.values[: days * contexts.steps_per_day], contexts.steps_per_day
    features = ContextFeatures(per_day, contexts.leads).with_typical_week(values)
    ends = [0, *(each * max(round(per_day / 24), 1) for each in hours)]
    rows = np.arange(features.needed, len(values) - max(_maturity(rho), ends[-1]))
    rows = rows[contexts.measured_days[rows // per_day]]
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
    z, seen, parts = discounted_future(values[:, 0], rho), [], []
    for block in np.split(rows, range(_BLOCK, len(rows), _BLOCK)):
        memory = features.remember(values, block)
        seen.append(features.at(memory, rho))
        near = []
        for leads in (np.arange(first + 1, last + 1) for first, last in itertools.pairwise(ends)):
            coming = values[block[:, None] + leads, 0] - features.usual_at(memory, leads)
            near.append(coming @ ((1 - rho) * rho**leads))
        parts.append([*near, z[block] - features.usual_mean(memory, rho) - sum(near)])
    return LearningSamples(features, np.concatenate(seen), np.concatenate(parts, axis=1))


def solve_regression(contexts: Contexts, rho: float, days: int, seed: int = 0) -> FourierRegression:
    """Return the regression that the first days of a series teach.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to learn from; those with imputed rows are left out.
        seed: of the random features.
    """
    from scipy.linalg import cho_factor, cho_solve  # a tenth of a second, which only training needs

    samples = collect_samples(contexts, rho, days)
    features, (target,) = samples.features, samples.parts
    scale = float(np.std(target)) or 1.0
    shape = GROUPS, INPUTS, COSINES
    basis = FourierFeatures.draw(samples.seen, *shape, seed, features.harmonics, features.given_count)
    gram, moment = _PENALTY * np.eye(basis.count, dtype=np.float32), np.zeros(basis.count)
    for start in range(0, len(target), _BLOCK):
        block = slice(start, start + _BLOCK)
        columns = basis(samples.seen[block].astype(np.float32))  # half the time; the penalty is far above its rounding
        gram += columns.T @ columns
        moment += columns.T @ (target[block] / scale)
    weights = scale * cho_solve(cho_factor(gram), moment)
    return FourierRegression(basis=basis, weights=weights, features=features)


def discounted_future(values: Float[np.ndarray, " n"], rho: float) -> Float[np.ndarray, " n"]:
    """Return z of each step, as if the last value stayed for ever.

    >>> discounted_future(np.array([0.0, 1.0]), 0.5).tolist()
    [0.5, 1.0]
    """
    backwards = itertools.accumulate(values[::-1].tolist(), lambda z, y: rho * z + (1 - rho) * y)
    return np.array(list(backwards))[::-1]
