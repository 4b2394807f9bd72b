"""The regression on random Fourier features, solved on the discounted mean of the coming contexts."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ecl2o.agents.advisors.features import ContextFeatures
from ecl2o.agents.advisors.fourier_regression import FourierFeatures, FourierRegression
from ecl2o.data import Contexts
from ecl2o.problem.arrays import LEAST_STEPS, AnyArray, pad_rows
from ecl2o.running.stored_jit import stored_jit
from ecl2o.solvers.single_kernel_jit import scan_some

GROUPS, INPUTS, COSINES = 64, 24, 24  # of the random features; every group sees the hour, whose effects differ most
_DRAWS = 2  # of the random features, whose regressions are averaged
_PENALTY = 450.0  # on squared weights, for targets of standard deviation 1
_MOST_ROWS, _BLOCK = 30_000, 2_048  # to learn from, evenly chosen; at once
_FEWEST_DAYS = 28  # of rows to learn from
_UNKNOWN = 1e-6  # of z, at most, in these rows
_FOLDS = 4  # consecutive parts of the rows, each predicted from the others


def find_obstacle(contexts: Contexts, rho: float) -> str | None:
    """Return why nothing can be learned from the training days of a column; None if it can."""
    days = len(_find_rows(contexts, contexts.split.training_days, _maturity(rho))) / contexts.steps_per_day
    if days < _FEWEST_DAYS:
        return f"it needs {_FEWEST_DAYS} days with complete features and known targets; there are {int(days)}"
    return None


def _find_rows(contexts: Contexts, days: int, maturity: int) -> Int[np.ndarray, " n"]:
    """Return the rows of the first days with complete features and `maturity` later ones, on days without imputed rows."""
    per_day = contexts.steps_per_day
    rows = np.arange(ContextFeatures(per_day).needed, days * per_day - maturity)
    return rows[contexts.measured_days[rows // per_day]]


def _maturity(rho: float) -> int:
    """Return after how many steps all of z but a negligible part is known."""
    return max(int(np.ceil(np.log(_UNKNOWN) / np.log(max(rho, _UNKNOWN)))), 1)


@dataclasses.dataclass(frozen=True)
class LearningSamples:
    """What a series teaches: the features of n rows, and z less its `ContextFeatures.usual_mean`."""

    features: ContextFeatures
    seen: Float[np.ndarray, "n k"]
    target: Float[np.ndarray, " n"]


def collect_samples(contexts: Contexts, rho: float, days: int) -> LearningSamples:
    """Return what the first days of a series teach about z.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to learn from; those with imputed rows are left out.
    """
    values, per_day = contexts.values[: days * contexts.steps_per_day], contexts.steps_per_day
    features = ContextFeatures(per_day, contexts.leads).with_typical_week(values)
    rows = _find_rows(contexts, days, _maturity(rho))
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)]
    padded = pad_rows(values, LEAST_STEPS), pad_rows(rows, LEAST_STEPS)
    seen, usual = (np.asarray(each)[: len(rows)] for each in _see(features, rho, *padded, np.array(len(rows))))
    return LearningSamples(features, seen, discounted_future(values[:, 0], rho)[rows] - usual)


@stored_jit
def _see(features: ContextFeatures, rho, values: Float[AnyArray, "n q"], rows: Int[AnyArray, " r"], count):
    """Return the features of the first `count` rows of a series, as a run sees them, and the `usual_mean` of each."""
    contexts = jnp.asarray(values)
    given = contexts[:, contexts.shape[1] - len(features.leads) :]

    def advance(state):
        memory, seen = state
        return features.advance(memory, seen, contexts[seen, 0], given[seen]), seen + 1

    def see(state, row):
        memory, seen = jax.lax.while_loop(lambda state: state[1] <= row, advance, state)
        return (memory, seen), (features.at(memory, rho), features.usual_mean(memory, rho))

    start = features.empty(contexts.dtype), jnp.zeros((), rows.dtype)
    return scan_some(see, start, jnp.asarray(rows), count)[1]


def solve_regression(contexts: Contexts, rho: float, days: int, seed: int = 0) -> FourierRegression:
    """Return the regression that the first days of a series teach: the mean of several, with features drawn anew.

    Args:
        contexts: the series, in the units of its task.
        rho: the discount of z.
        days: how many to learn from; those with imputed rows are left out.
        seed: of the random features.
    """
    samples = collect_samples(contexts, rho, days)
    bases, weights = zip(*(solve_draw(samples, (seed, number)) for number in range(_DRAWS)), strict=True)
    basis = FourierFeatures(
        mean=bases[0].mean,
        scale=bases[0].scale,
        inputs=np.concatenate([each.inputs for each in bases]),
        frequencies=np.concatenate([each.frequencies for each in bases]),
        phases=np.concatenate([each.phases for each in bases]),
    )
    constant, linear, cosines = zip(*map(FourierFeatures.split, bases, weights), strict=True)
    mean = [np.mean(constant, axis=0), np.mean(linear, axis=0), *(each / _DRAWS for each in cosines)]
    return FourierRegression(basis=basis, weights=np.concatenate(mean), features=samples.features)


def solve_draw(samples: LearningSamples, seed: tuple[int, int]) -> tuple[FourierFeatures, Float[np.ndarray, " k"]]:
    """Return random features, and the weights of the ridge regression on them.

    With covariates they are a weighted mean of two solutions, of which one does not see them, with the least squared error on the
    quarters of the rows, each predicted from the other three. So columns of noise do little harm.
    """
    features, seen, target = samples.features, samples.seen, samples.target
    scale = float(np.std(target)) or 1.0
    shape = GROUPS, INPUTS, COSINES
    basis = FourierFeatures.draw(seen, *shape, seed, features.harmonics, features.given_count)
    quarters = np.array_split(np.arange(len(target)), _FOLDS if features.leads else 1)
    seen, known = seen.astype(np.float32), (target / scale).astype(np.float32)  # half the time
    folds = [_NormalEquations.of(basis, seen[rows], known[rows]) for rows in quarters]
    whole = functools.reduce(operator.add, folds)
    weights = whole.solve(np.arange(basis.count))
    if features.leads:
        inputs = 1 + len(basis.mean)
        own = np.append(np.arange(inputs - features.given_count), inputs + np.arange(GROUPS * COSINES))
        share = _best_share(folds, whole, own)
        weights = share * weights + (1 - share) * whole.solve(own)
    return basis, scale * weights


@dataclasses.dataclass(frozen=True)
class _NormalEquations:
    """Sums over rows of f f' and of f times the target, for features f; the penalty is far above the rounding of 32 bits."""

    gram: Float[np.ndarray, "k k"]
    moment: Float[np.ndarray, " k"]

    @classmethod
    def of(cls, basis: FourierFeatures, seen: Float[np.ndarray, "n _"], target: Float[np.ndarray, " n"]):
        gram, moment = np.zeros((basis.count, basis.count), np.float32), np.zeros(basis.count)
        for start in range(0, len(target), _BLOCK):
            block = slice(start, start + _BLOCK)
            columns = basis(seen[block])
            gram += columns.T @ columns
            moment += columns.T @ target[block]
        return cls(gram, moment)

    def __add__(self, other: "_NormalEquations") -> "_NormalEquations":
        return _NormalEquations(self.gram + other.gram, self.moment + other.moment)

    def __sub__(self, other: "_NormalEquations") -> "_NormalEquations":
        return _NormalEquations(self.gram - other.gram, self.moment - other.moment)

    def solve(self, kept: Int[np.ndarray, " m"]) -> Float[np.ndarray, " k"]:
        """Return the weights of the ridge regression on some features; those of the others are 0."""
        from scipy.linalg import cho_factor, cho_solve  # a tenth of a second, which only training needs

        weights, gram = np.zeros(len(self.moment)), self.gram[np.ix_(kept, kept)]
        gram[np.diag_indices(len(kept))] += _PENALTY
        weights[kept] = cho_solve(cho_factor(gram), self.moment[kept])
        return weights


def _best_share(folds: Sequence[_NormalEquations], whole: _NormalEquations, own: Int[np.ndarray, " m"]) -> float:
    """Return the weight, from 0 to 1, of the regression on all features beside the one on `own`, by cross-validation."""
    gain = curvature = 0.0
    for fold in folds:
        rest = whole - fold
        alone = rest.solve(own)
        more = rest.solve(np.arange(len(alone))) - alone
        gain += float(more @ (fold.moment - fold.gram @ alone))
        curvature += float(more @ (fold.gram @ more))
    return float(np.clip(gain / curvature, 0, 1)) if curvature > 0 else 0.0


def discounted_future(values: Float[np.ndarray, " n"], rho: float) -> Float[np.ndarray, " n"]:
    """Return z of each step, as if the last value stayed for ever.

    >>> discounted_future(np.array([0.0, 1.0]), 0.5).tolist()
    [0.5, 1.0]
    """
    backwards = itertools.accumulate(values[::-1].tolist(), lambda z, y: rho * z + (1 - rho) * y)
    return np.array(list(backwards))[::-1]
