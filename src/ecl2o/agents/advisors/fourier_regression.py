"""A regression on random Fourier features that predicts the discounted mean of the coming contexts."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.discounted_forecast import AbstractRegression, DiscountedForecast, RegressionState
from ecl2o.agents.advisors.features import ContextFeatures, ContextMemory, check_covariates
from ecl2o.agents.advisors.networks import Scaling
from ecl2o.agents.base import Start
from ecl2o.problem import Problem
from ecl2o.problem.arrays import AnyArray, check_positive, to_device, to_host
from ecl2o.theory import decay_root

_OUTLYING = 4.0  # standard deviations, beyond which an input counts as that many
_TURN = 6.28125, 1.9353071795864769e-3  # 2 pi; a whole number times the first part is exact
_COSINE = [(-1) ** n / math.factorial(2 * n) for n in range(15)]  # its series in x^2, to 1e-17 for |x| < pi
_INFORMED = 4  # groups without covariates for each one that half consists of them (docs/choices.md)


class FourierFeatures(eqx.Module):
    """Random Fourier features of k standardised inputs (Rahimi & Recht 2007), each group of p cosines on s of the inputs.

    A linear function of them approximates a kernel regression whose kernel is a mean of Gaussian kernels on s inputs each.

    Args:
        mean: (k,), of the inputs.
        scale: (k,), their standard deviations, positive.
        inputs: (g, s), numbers of the inputs of each group.
        frequencies: (g, s, p).
        phases: (g, p).
    """

    mean: Float[Array, " k"] = eqx.field(converter=to_device)
    scale: Float[Array, " k"] = eqx.field(converter=to_device)
    inputs: Int[Array, "g s"] = eqx.field(converter=to_device)
    frequencies: Float[Array, "g s p"] = eqx.field(converter=to_device)
    phases: Float[Array, "g p"] = eqx.field(converter=to_device)

    def __check_init__(self):
        check_positive("scale", self.scale)
        cosines, numbers = self.frequencies.shape[2:], to_host(self.inputs)
        if self.inputs.shape != self.frequencies.shape[:2] or self.phases.shape != (len(numbers), *cosines):
            raise ValueError("inputs, frequencies and phases must have shapes (g, s), (g, s, p) and (g, p).")
        if self.mean.shape != self.scale.shape:
            raise ValueError(f"mean and scale must have one shape, got {self.mean.shape} and {self.scale.shape}.")
        most = len(self.mean) - 1
        if isinstance(numbers, np.ndarray) and numbers.size and not 0 <= numbers.min() <= numbers.max() <= most:
            raise ValueError(f"inputs must be from 0 to {most}, got {numbers.min()} to {numbers.max()}.")

    @classmethod
    def draw(
        cls,
        samples: Float[np.ndarray, "n k"],
        groups: int,
        size: int,
        cosines: int,
        seed: int | tuple[int, ...],
        common: int = 0,
        covariates: int = 0,
    ):
        """Return features for inputs that are distributed as samples are.

        Args:
            samples: of the inputs.
            groups: how many groups there are that see no covariates.
            size: inputs of a group, s; less if fewer inputs see no covariates.
            cosines: of a group, p.
            seed: of the draws.
            common: how many inputs, the first ones, are in every group. Default: 0.
            covariates: how many inputs, the last ones, are made of covariates. If there are any, a quarter more groups see
                them; the first groups are drawn as without. Default: 0.
        """
        rng, own = np.random.default_rng(seed), samples.shape[1] - covariates
        size, always, others = min(size, own), np.arange(common), np.arange(common, own)
        varies = np.ptp(samples, axis=0) > 0  # of equal numbers the deviation may be a rounding error
        inputs = [np.append(always, rng.choice(others, size - common, replace=False)) for _ in range(groups)]
        frequencies, phases = rng.normal(size=(groups, size, cosines)), rng.uniform(0, 2 * np.pi, (groups, cosines))
        more, few = groups // _INFORMED if covariates else 0, min((size - common) // 2, covariates)
        for _ in range(more):
            given = own + rng.permutation(covariates)[:few]
            inputs.append(np.concatenate([always, rng.choice(others, size - common - few, replace=False), given]))
        frequencies = np.concatenate([frequencies, rng.normal(size=(more, size, cosines))]) / np.sqrt(size)
        phases = np.concatenate([phases, rng.uniform(0, 2 * np.pi, (more, cosines))])
        scale = np.where(varies, samples.std(axis=0), 1.0)
        return cls(samples.mean(axis=0), scale, np.stack(inputs), frequencies, phases)

    @property
    def count(self) -> int:
        """How many features there are: 1, the inputs, and the cosines."""
        return 1 + self.mean.shape[0] + self.phases.size

    def __call__(self, x: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n count"]:
        """Return the features of n inputs in their precision, in NumPy, which multiplies large matrices faster."""
        mean, scale, frequencies, phases = (
            np.asarray(each, x.dtype) for each in (self.mean, self.scale, self.frequencies, self.phases)
        )
        standard = np.clip((x - mean) / scale, -_OUTLYING, _OUTLYING)
        by_group = standard.T[np.asarray(self.inputs)].swapaxes(1, 2)
        cosines = math.sqrt(2) * np.cos((by_group @ frequencies).swapaxes(0, 1) + phases)
        return np.concatenate([np.ones((len(x), 1), x.dtype), standard, cosines.reshape(len(x), -1)], axis=1)

    def combine(self, x: Float[Array, " k"], weights: Float[Array, " count"]) -> Float[Array, ""]:
        """Return the weighted sum of the features of one input; of many, under `jax.vmap`, by one product of matrices."""
        standard = jnp.clip((x - self.mean) / self.scale, -_OUTLYING, _OUTLYING)
        angles = jnp.ravel(_project(standard, self.inputs, self.frequencies)) + jnp.ravel(self.phases)
        constant, linear, of_cosines = self.split(weights)
        return constant[0] + standard @ linear + math.sqrt(2) * (_cosine(angles) @ of_cosines)

    def split(self, weights: Float[AnyArray, " count"]) -> tuple[Float[AnyArray, " _"], ...]:
        """Return the weights of 1, of the inputs, and of the cosines."""
        inputs = 1 + len(self.mean)
        return weights[:1], weights[1:inputs], weights[inputs:]


def _project_one(standard: Float[Array, " k"], inputs: Int[Array, "g s"], frequencies: Float[Array, "g s p"]):
    return (standard[inputs][:, None] @ frequencies)[:, 0]


_project_many = custom_vmap(_project_one)


@_project_many.def_vmap
def _project_as_matrix(axis_size: int, in_batched, standard, inputs, frequencies):
    if in_batched != [True, False, False]:
        axes = [0 if each else None for each in in_batched]
        return jax.vmap(_project_one, axes, axis_size=axis_size)(standard, inputs, frequencies), True
    groups, _, cosines = frequencies.shape
    matrix = jnp.zeros((standard.shape[1], groups, cosines), frequencies.dtype)
    matrix = matrix.at[inputs, np.arange(groups)[:, None]].add(frequencies)
    return (standard @ matrix.reshape(len(matrix), -1)).reshape(-1, groups, cosines), True


@jax.custom_jvp
def _project(standard: Float[Array, " k"], inputs: Int[Array, "g s"], frequencies: Float[Array, "g s p"]):
    """Return the products (g, p) of each group's inputs and frequencies; for many streams by one product of matrices."""
    return _project_many(standard, inputs, frequencies)


@_project.defjvp
def _project_slope(primals, tangents):
    return jax.jvp(_project_one, primals, tangents)  # `custom_vmap` has no reverse mode


def _cosine(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the cosine to 2e-15 for |x| < 100: a polynomial of (x mod 2 pi)^2, which vectorises as XLA's does not."""
    turns = jnp.round(x * (0.5 / np.pi))
    square = (x - turns * _TURN[0] - turns * _TURN[1]) ** 2
    return functools.reduce(lambda sum_, each: sum_ * square + each, _COSINE[::-1], jnp.zeros_like(x))


class FourierRegression(AbstractRegression):
    """Advice x = rho x_{t-1} + (1 - rho) zhat_t, with zhat from a daily profile and a ridge regression on random features.

    The regression was solved offline, on past contexts and z, the discounted mean of those that followed (see `OnlineRidge`), for
    one rho. It does not change while it runs. zhat is clipped to the range of the contexts so far; in the first eight days it is
    the present context, which is R-OBD's advice. For one column, d = 1. `ecl2o fit` solves it.

    Args:
        basis: the random features of what it sees.
        weights: of each of them, for z less its `ContextFeatures.usual_mean`.
        features: what it sees.
        scaling: the unit of contexts and forecasts in training.
    """

    basis: FourierFeatures
    weights: Float[Array, " count"] = eqx.field(converter=to_device)
    features: ContextFeatures
    scaling: Scaling = eqx.field(default_factory=Scaling)

    def __check_init__(self):
        if self.weights.shape != (self.basis.count,):
            raise ValueError(f"weights must have shape ({self.basis.count},), got {self.weights.shape}.")

    def check(self, problem: Problem, start: Start) -> None:
        super().check(problem, start)
        check_covariates(problem, start.dim, self.features.leads, 1)

    def empty(self, problem: Problem, start: Start) -> ContextMemory:
        return self.features.empty(start.x0.dtype)

    def advance(self, state: RegressionState, now: Float[Array, "1"], given: Float[Array, " c"]) -> ContextMemory:
        scale, is_forecast = self.scaling.scale, np.array([lead is not None for lead in self.features.leads], bool)
        given = given / jnp.where(is_forecast, scale, 1.0)
        return self.features.advance(state.memory, state.seen, now[0] / scale, given)

    def predict(self, state: RegressionState) -> DiscountedForecast:
        features, memory, rho = self.features, state.memory, decay_root(1.0, state.modes.a)[0]
        predicted = features.usual_mean(memory, rho) + self.basis.combine(features.at(memory, rho), self.weights)
        predicted = memory.range.clip(jnp.where(state.seen > features.needed, predicted, memory.recent[0]))
        return DiscountedForecast.of_mean(predicted[None] * self.scaling.scale)
