"""Layers shared by the networks: an affine map, and the scaling of what goes in and comes out.

Written for the layout of `running.rollout_batch`, whose instances are the last axis: `vmap` moves the mapped axis to the front
where vectors are concatenated or where something mapped meets something that is not (a bias), and every later product then
works on rows. Padding and products leave it in place, which takes 0.6 of the time of a training step (docs/benchmarks.md).
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents.base import Trainable
from ecl2o.problem.arrays import AnyArray, as_float, check_positive


def concat_by_padding(first: Float[Array, " a"], second: Float[Array, " b"]) -> Float[Array, " a+b"]:
    """One vector after the other."""
    dtype = jnp.result_type(first, second)
    first, second, zero = first.astype(dtype), second.astype(dtype), jnp.zeros((), dtype)
    return jax.lax.pad(first, zero, [(0, second.shape[0], 0)]) + jax.lax.pad(second, zero, [(first.shape[0], 0, 0)])


@jax.custom_jvp
def apply_affine(weight: Float[Array, "o i"], bias: Float[Array, " o"], x: Float[Array, " i"]) -> Float[Array, " o"]:
    """W x + b, as one product of (W, b) with (x, 1)."""
    return _append_column(weight, bias) @ _append_one(x)


@apply_affine.defjvp
def _apply_affine_jvp(primals, tangents):
    """The usual derivative, written so that on the way back, too, rows meet columns, as XLA's quick products want them.

    W' is made once, instead of being read by columns at each step. What the slope in W sums over, the instances, comes first in
    (x, 1): that is what `vmap` does where something mapped meets something that is not.
    """
    (weight, bias, x), (weight_dot, bias_dot, x_dot) = primals, tangents
    inputs = _append_one(x)
    by_instance = inputs * jnp.ones(inputs.shape, inputs.dtype)
    through_weights = _append_column(weight_dot, bias_dot) @ by_instance
    return _append_column(weight, bias) @ inputs, through_weights + jnp.tensordot(weight.T, x_dot, axes=(0, 0))


def _append_column(weight: Float[Array, "o i"], bias: Float[Array, " o"]) -> Float[Array, "o i+1"]:
    return jnp.concatenate([weight, bias[:, None]], axis=1)


def _append_one(x: Float[Array, " i"]) -> Float[Array, " i+1"]:
    return jax.lax.pad(x, jnp.ones((), x.dtype), [(0, 1, 0)])


@partial(jax.jit, static_argnames=("shape", "other_shape"))
def draw_uniform_pair(
    key: PRNGKeyArray, shape: tuple[int, ...], other_shape: tuple[int, ...], reach: Float[Array, ""] | float
):
    """Two arrays of these shapes, uniform in +-reach."""
    keys, shapes = jax.random.split(key), (shape, other_shape)
    return [
        jax.random.uniform(key, shape, minval=-reach, maxval=reach) for key, shape in zip(keys, shapes, strict=True)
    ]


class Affine(Trainable):
    """x -> W x + b."""

    weight: Float[Array, "o i"]
    bias: Float[Array, " o"]

    @classmethod
    def random(cls, inputs: int, outputs: int, key: PRNGKeyArray) -> "Affine":
        """Uniform in +-1/sqrt(inputs), the default of PyTorch's linear layer, which the authors used."""
        return cls(*draw_uniform_pair(key, (outputs, inputs), (outputs,), inputs**-0.5))

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        return apply_affine(self.weight, self.bias, x)


class Scaling(eqx.Module):
    """Numbers of any unit to numbers near one, and back: inside = (outside - offset) / scale. Not trained.

    Args:
        offset: (k,) or one number, what is subtracted, in the units of the data. Default: 0.
        scale: (k,) or one number, positive, what is divided by, in the units of the data. Default: 1.
    """

    offset: Float[Array, "*k"] = eqx.field(converter=as_float, default=0.0)
    scale: Float[Array, "*k"] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    def standardize(self, outside: Float[Array, " k"]) -> Float[Array, " k"]:
        """Standardise."""
        return (outside - self.offset) / self.scale

    def restore(self, inside: Float[Array, " k"]) -> Float[Array, " k"]:
        """Undo it."""
        return inside * self.scale + self.offset

    @classmethod
    def of(cls, samples: Float[AnyArray, "n k"]) -> "Scaling":
        """Mean and standard deviation of samples, by column; a column that never changes keeps scale 1."""
        deviation = jnp.std(samples, axis=0)
        return cls(jnp.mean(samples, axis=0), jnp.where(deviation > 0, deviation, 1.0))
