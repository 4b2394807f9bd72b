"""The authors' network: three LSTM layers of ten on (context, previous action), memory in the agent's state.

The cell is written for speed under `vmap` over instances: the four gates of a layer are one matrix product on the
concatenated input and hidden state, in one fused block per layer, and the memory is one array per layer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents.advisors.dense import Affine, Scaling, refuse_unless_size
from ecl2o.agents.advisors.mlp import refuse_unless_fitting
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.agents.trainable import Trainable
from ecl2o.problem import Problem

Memory = tuple[Float[Array, " w"], Float[Array, " w"]]  # hidden, cell


class LSTMCell(Trainable):
    """One layer: gates = [x, h] W + b in the order input, forget, output, candidate."""

    weight: Float[Array, "i+w 4w"]
    bias: Float[Array, " 4w"]

    @classmethod
    def random(cls, inputs: int, width: int, key: PRNGKeyArray) -> "LSTMCell":
        """Uniform in +-1/sqrt(width), the default of PyTorch's LSTM; its two biases are one here."""
        reach = width**-0.5
        of_weight, of_bias = jax.random.split(key)
        bias = jax.random.uniform(of_bias, (2, 4 * width), minval=-reach, maxval=reach)
        weight = jax.random.uniform(of_weight, (inputs + width, 4 * width), minval=-reach, maxval=reach)
        return cls(weight, bias.sum(0))

    @property
    def width(self) -> int:
        """The size of the hidden state."""
        return self.bias.shape[0] // 4

    def __call__(self, x: Float[Array, " i"], memory: Memory) -> Memory:
        hidden, cell = memory
        gates = jnp.concatenate([x, hidden]) @ self.weight + self.bias
        width = self.width
        # sigmoid(z) = (1 + tanh(z/2)) / 2: one transcendental for all four gates
        opened = 0.5 * jnp.tanh(0.5 * gates[: 3 * width]) + 0.5
        taken, kept, shown = jnp.split(opened, 3)
        cell = kept * cell + taken * jnp.tanh(gates[3 * width :])
        return shown * jnp.tanh(cell), cell


class LSTM(AbstractAgent):
    """h_W with memory: `depth` LSTM layers of `width`, then a linear one (the authors' code: 3 layers of 10, erratum E18).

    The memory starts at zero at each instance, and is then warmed up on nothing: the history is not replayed, as in the
    authors' code.

    >>> import jax
    >>> LSTM(dim=1, context_dim=1, key=jax.random.key(0)).cells[0].weight.shape
    (12, 40)
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
    ):
        for name, value in (("dim", dim), ("context_dim", context_dim), ("width", width), ("depth", depth)):
            refuse_unless_size(name, value)
        inputs = [context_dim + dim, *[width] * (depth - 1)]
        keys = jax.random.split(key, depth + 1)
        self.cells = tuple(LSTMCell.random(i, width, k) for i, k in zip(inputs, keys[:-1], strict=True))
        self.readout = Affine.random(width, dim, keys[-1])
        self.contexts = Scaling() if contexts is None else contexts
        self.actions = Scaling() if actions is None else actions

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem: Problem, start: Start) -> tuple[Memory, ...]:
        made_for = self.cells[0].weight.shape[0] - self.cells[0].width - self.readout.weight.shape[1]
        refuse_unless_fitting("LSTM", made_for, self.readout.weight.shape[1], start)
        zero = jnp.zeros((self.cells[0].width,), start.x0.dtype)
        return tuple((zero, zero) for _ in self.cells)

    def step(self, problem: Problem, state: tuple[Memory, ...], observation: Observation):
        context = self.contexts.inward(observation.context)
        hidden = jnp.concatenate([context, self.actions.inward(observation.previous_action)])
        memories = []
        for cell, memory in zip(self.cells, state, strict=True):
            memory = cell(hidden, memory)
            hidden = memory[0]
            memories.append(memory)
        return tuple(memories), self.actions.outward(self.readout(hidden)), Info.plain()
