"""The networks: the paper's (three layers of ten ReLU neurons) and the authors' (three LSTM layers of ten).

Layers are written for the layout of `running.rollout_batch`, whose instances are the last axis: `vmap` moves the mapped axis to
the front where vectors are concatenated or where something mapped meets something that is not (a bias), and every later product
then works on rows. Padding and products leave it in place, which takes 0.6 of the time of a training step.

The LSTM cell computes the four gates of a layer as one matrix product on the concatenated input and hidden state. The elementwise
rest has its derivative written out, so that a step keeps four arrays instead of a dozen (docs/benchmarks.md).
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, Trainable
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AbstractProblem
from ecl2o.problem.arrays import AnyArray, as_float, check_count, check_positive


def concat_by_padding(first: Float[Array, " a"], second: Float[Array, " b"]) -> Float[Array, " a+b"]:
    """Concatenate two vectors without moving a mapped axis."""
    dtype = jnp.result_type(first, second)
    first, second, zero = first.astype(dtype), second.astype(dtype), jnp.zeros((), dtype)
    return jax.lax.pad(first, zero, [(0, second.shape[0], 0)]) + jax.lax.pad(second, zero, [(first.shape[0], 0, 0)])


@jax.custom_jvp
def apply_affine(weight: Float[Array, "o i"], bias: Float[Array, " o"], x: Float[Array, " i"]) -> Float[Array, " o"]:
    """Compute W x + b as one product of (W, b) with (x, 1)."""
    return _append_column(weight, bias) @ _append_one(x)


@apply_affine.defjvp
def _apply_affine_jvp(primals, tangents):
    """The usual derivative, written so that in the backward pass, too, rows meet columns, as XLA's fast products want them.

    W' is made once, instead of being read by columns at each step. The instances, over which the slope in W sums, come first in
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
def _draw_uniform_pair(
    key: PRNGKeyArray, shape: tuple[int, ...], other_shape: tuple[int, ...], reach: Float[Array, ""] | float
):
    draw, (first, second) = partial(jax.random.uniform, minval=-reach, maxval=reach), jax.random.split(key)
    return draw(first, shape), draw(second, other_shape)


class Affine(Trainable):
    """x -> W x + b."""

    weight: Float[Array, "o i"]
    bias: Float[Array, " o"]

    @classmethod
    def random(cls, inputs: int, outputs: int, key: PRNGKeyArray) -> "Affine":
        """Draw from +-1/sqrt(inputs) uniformly, the default of PyTorch's linear layer, which the authors used."""
        return cls(*_draw_uniform_pair(key, (outputs, inputs), (outputs,), inputs**-0.5))

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        return apply_affine(self.weight, self.bias, x)


class Scaling(eqx.Module):
    """An affine change of units: standardized = (raw - offset) / scale. Not trained.

    Args:
        offset: (k,) or one number, in the units of the data. Default: 0.
        scale: (k,) or one number, positive, in the units of the data. Default: 1.

    Raises:
        ValueError: if a scale is not positive.

    >>> import jax.numpy as jnp
    >>> Scaling(offset=2.0, scale=4.0).standardize(jnp.array([10.0])).tolist()
    [2.0]
    """

    offset: Float[Array, "*k"] = eqx.field(converter=as_float, default=0.0)
    scale: Float[Array, "*k"] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    def standardize(self, raw: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return (raw - offset) / scale."""
        return (raw - self.offset) / self.scale

    def restore(self, standardized: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return standardized * scale + offset."""
        return standardized * self.scale + self.offset

    @classmethod
    def of(cls, samples: Float[AnyArray, "n k"]) -> "Scaling":
        """Return the scaling by mean and standard deviation of each column; constant columns keep scale 1."""
        deviation = jnp.std(samples, axis=0)
        return cls(jnp.mean(samples, axis=0), jnp.where(deviation > 0, deviation, 1.0))


class AbstractNetwork(AbstractAgent):
    """A network on (context, previous action or state), standardised on the way in and restored on the way out.

    Made for contexts without covariates, it does not see them.
    """

    contexts: eqx.AbstractVar[Scaling]
    actions: eqx.AbstractVar[Scaling]

    def _standardize(self, observation: Observation, inputs: int) -> Float[Array, " inputs"]:
        context = take_numbers(observation.context, inputs - observation.previous_action.shape[0])
        context = self.contexts.standardize(context)
        return concat_by_padding(context, self.actions.standardize(observation.previous_action))


def _plan_layers(dim: int, context_dim: int, width: int, depth: int, key: PRNGKeyArray, state_dim: int | None):
    """Return the sizes of input, layers and output, and a key for each product."""
    state_dim = dim if state_dim is None else state_dim
    sizes = {"dim": dim, "context_dim": context_dim, "width": width, "depth": depth, "state_dim": state_dim}
    for name, value in sizes.items():
        check_count(name, value)
    return [context_dim + state_dim, *[width] * depth, dim], list(jax.random.split(key, depth + 1))


class MLP(AbstractNetwork):
    """h_W(y_t, x_{t-1}): `depth` ReLU layers of `width`, then a linear one (section 6.2 of the paper: 3 layers of 10).

    Args:
        dim: d, how many numbers an action has.
        context_dim: q, how many numbers a context has.
        width: units of each layer. Default: 10.
        depth: how many ReLU layers. Default: 3.
        key: for the initial weights.
        contexts: standardises contexts on the way in. Default: `Scaling()`, which changes nothing.
        actions: standardises actions on the way in and restores them on the way out. Default: `Scaling()`.
        state_dim: n, how many numbers the state of a `ControlProblem` has. Default: `dim`.

    Raises:
        ValueError: if a size is not a positive whole number.
        NotApplicableError: at the start of a run with other dimensions.

    >>> import jax
    >>> MLP(dim=1, context_dim=1, key=jax.random.key(0)).layers[0].weight.shape
    (10, 2)
    """

    layers: tuple[Affine, ...]
    contexts: Scaling
    actions: Scaling

    def __init__(
        self,
        dim: int,
        context_dim: int,
        width: int = 10,
        depth: int = 3,
        *,
        key: PRNGKeyArray,
        contexts: Scaling | None = None,
        actions: Scaling | None = None,
        state_dim: int | None = None,
    ):
        sizes, keys = _plan_layers(dim, context_dim, width, depth, key, state_dim)
        self.layers = tuple(Affine.random(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.contexts = Scaling() if contexts is None else contexts
        self.actions = Scaling() if actions is None else actions

    def init(self, problem: AbstractProblem, start: Start) -> None:
        inputs, dim = self.layers[0].weight.shape[1], self.layers[-1].weight.shape[0]
        check_dimensions("MLP", inputs, dim, problem, start)

    def step(self, problem: AbstractProblem, state: None, observation: Observation):
        hidden = self._standardize(observation, self.layers[0].weight.shape[1])
        for layer in self.layers[:-1]:
            hidden = jax.nn.relu(layer(hidden))
        return state, self.actions.restore(self.layers[-1](hidden)), Info.plain()


def take_numbers(contexts: Float[Array, "*n q"], size: int) -> Float[Array, "*n size"]:
    """Return the first `size` numbers of contexts."""
    return contexts if contexts.shape[-1] == size else contexts[..., :size]


def check_dimensions(name: str, inputs: int, dim: int, problem: AbstractProblem, start: Start) -> None:
    """Raise if a run has other dimensions than the advisor was made for; it may see covariates or not."""
    context_dim, state_dim = start.history.shape[-1], start.dim
    known = context_dim + state_dim
    if inputs not in (known, known - problem.covariates) or dim != problem.action_size(state_dim):
        raise NotApplicableError(
            f"{name} was made for {inputs} numbers of context and previous action, and actions of {dim}, but this problem has "
            f"{context_dim} + {state_dim} and {problem.action_size(state_dim)}."
        )


HiddenAndCell = tuple[Float[Array, " w"], Float[Array, " w"]]


@jax.custom_jvp
def update_cell(gates: Float[Array, " gates"], cell: Float[Array, " w"]) -> HiddenAndCell:
    """Compute the elementwise half of a step, from gates in the order input, forget, output, candidate, and the cell."""
    (input_gate, forget_gate, output_gate), candidate = _activate_gates(gates)
    cell = forget_gate * cell + input_gate * candidate
    return output_gate * jnp.tanh(cell), cell


def _activate_gates(gates):
    """Sigmoids of the first three gates, sigmoid(z) = (1 + tanh(z/2)) / 2, and the tanh of the last."""
    first, second, third, last = jnp.split(gates, 4)
    return [0.5 * jnp.tanh(0.5 * gate) + 0.5 for gate in (first, second, third)], jnp.tanh(last)


@update_cell.defjvp
def _update_cell_jvp(primals, tangents):
    (gates, cell), (gates_dot, cell_dot) = primals, tangents
    (input_gate, forget_gate, output_gate), candidate = _activate_gates(gates)
    new_cell = forget_gate * cell + input_gate * candidate
    squashed = jnp.tanh(new_cell)
    slopes = [
        candidate * input_gate * (1 - input_gate),
        cell * forget_gate * (1 - forget_gate),
        squashed * output_gate * (1 - output_gate),
        input_gate * (1 - candidate**2),
    ]
    in_dot, forget_dot, out_dot, candidate_dot = (
        slope * dot for slope, dot in zip(slopes, jnp.split(gates_dot, 4), strict=True)
    )
    new_cell_dot = forget_gate * cell_dot + in_dot + forget_dot + candidate_dot
    hidden_dot = out_dot + output_gate * (1 - squashed**2) * new_cell_dot
    return (output_gate * squashed, new_cell), (hidden_dot, new_cell_dot)


class LSTMCell(Trainable):
    """One layer: gates = W [x, h] + b, then `update_cell`."""

    weight: Float[Array, "gates inputs"]
    bias: Float[Array, " gates"]

    @classmethod
    def random(cls, inputs: int, width: int, key: PRNGKeyArray) -> "LSTMCell":
        """Draw from +-1/sqrt(width) uniformly, the default of PyTorch's LSTM; its two biases are one here."""
        weight, biases = _draw_uniform_pair(key, (4 * width, inputs + width), (2, 4 * width), width**-0.5)
        return cls(weight, biases.sum(0))

    @property
    def width(self) -> int:
        """The size of the hidden state."""
        return self.bias.shape[0] // 4

    def __call__(self, x: Float[Array, " i"], memory: HiddenAndCell) -> HiddenAndCell:
        hidden, cell = memory
        return update_cell(apply_affine(self.weight, self.bias, concat_by_padding(x, hidden)), cell)


class LSTM(AbstractNetwork):
    """h_W with memory: `depth` LSTM layers of `width`, then a linear one (the authors' code: 3 layers of 10, erratum E18).

    The memory starts at zero in each instance. As in the authors' code, the history is not replayed.

    Args:
        dim: d, how many numbers an action has.
        context_dim: q, how many numbers a context has.
        width: units of each layer. Default: 10.
        depth: how many LSTM layers. Default: 3.
        key: for the initial weights.
        contexts: standardises contexts on the way in. Default: `Scaling()`, which changes nothing.
        actions: standardises actions on the way in and restores them on the way out. Default: `Scaling()`.
        state_dim: n, how many numbers the state of a `ControlProblem` has. Default: `dim`.

    Raises:
        ValueError: if a size is not a positive whole number.
        NotApplicableError: at the start of a run with other dimensions.

    >>> import jax
    >>> LSTM(dim=1, context_dim=1, key=jax.random.key(0)).cells[0].weight.shape
    (40, 12)
    """

    cells: tuple[LSTMCell, ...]
    readout: Affine
    contexts: Scaling
    actions: Scaling

    def __init__(
        self,
        dim: int,
        context_dim: int,
        width: int = 10,
        depth: int = 3,
        *,
        key: PRNGKeyArray,
        contexts: Scaling | None = None,
        actions: Scaling | None = None,
        state_dim: int | None = None,
    ):
        sizes, keys = _plan_layers(dim, context_dim, width, depth, key, state_dim)
        self.cells = tuple(LSTMCell.random(i, width, k) for i, k in zip(sizes[:-2], keys[:-1], strict=True))
        self.readout = Affine.random(width, dim, keys[-1])
        self.contexts = Scaling() if contexts is None else contexts
        self.actions = Scaling() if actions is None else actions

    def init(self, problem: AbstractProblem, start: Start) -> tuple[HiddenAndCell, ...]:
        inputs = self.cells[0].weight.shape[1] - self.cells[0].width
        check_dimensions("LSTM", inputs, self.readout.weight.shape[0], problem, start)
        zero = jnp.zeros((self.cells[0].width,), start.x0.dtype)
        return tuple((zero, zero) for _ in self.cells)

    def step(self, problem: AbstractProblem, state: tuple[HiddenAndCell, ...], observation: Observation):
        hidden = self._standardize(observation, self.cells[0].weight.shape[1] - self.cells[0].width)
        memories = []
        for cell, memory in zip(self.cells, state, strict=True):
            memory = cell(hidden, memory)
            hidden = memory[0]
            memories.append(memory)
        return tuple(memories), self.actions.restore(self.readout(hidden)), Info.plain()
