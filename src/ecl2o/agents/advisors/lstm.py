"""The authors' network: three LSTM layers of ten on (context, previous action), memory in the agent's state.

The cell is written for training speed: the four gates of a layer are one matrix product on the concatenated input and hidden
state, and what follows it, which is elementwise, has its derivative written out, so that a step keeps four arrays instead of
a dozen (docs/benchmarks.md).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents.advisors.layers import Affine, Scaling, apply_affine, concat_by_padding, draw_uniform_pair
from ecl2o.agents.advisors.mlp import refuse_unless_fitting
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, Trainable
from ecl2o.problem import Problem
from ecl2o.problem.arrays import check_count

HiddenAndCell = tuple[Float[Array, " w"], Float[Array, " w"]]  # hidden, cell


@jax.custom_jvp
def update_cell(gates: Float[Array, " gates"], cell: Float[Array, " w"]) -> HiddenAndCell:
    """The elementwise half of a step: gates in the order input, forget, output, candidate, and the cell before it."""
    (taken, kept, shown), candidate = _activate_gates(gates)
    cell = kept * cell + taken * candidate
    return shown * jnp.tanh(cell), cell


def _activate_gates(gates):
    """Sigmoids of the first three gates, sigmoid(z) = (1 + tanh(z/2)) / 2, and the tanh of the last."""
    first, second, third, last = jnp.split(gates, 4)
    return [0.5 * jnp.tanh(0.5 * gate) + 0.5 for gate in (first, second, third)], jnp.tanh(last)


@update_cell.defjvp
def _update_cell_jvp(primals, tangents):
    (gates, cell), (gates_dot, cell_dot) = primals, tangents
    (taken, kept, shown), candidate = _activate_gates(gates)
    new_cell = kept * cell + taken * candidate
    squashed = jnp.tanh(new_cell)
    slopes = [
        candidate * taken * (1 - taken),
        cell * kept * (1 - kept),
        squashed * shown * (1 - shown),
        taken * (1 - candidate**2),
    ]
    in_dot, forget_dot, out_dot, candidate_dot = (
        slope * dot for slope, dot in zip(slopes, jnp.split(gates_dot, 4), strict=True)
    )
    new_cell_dot = kept * cell_dot + in_dot + forget_dot + candidate_dot
    hidden_dot = out_dot + shown * (1 - squashed**2) * new_cell_dot
    return (shown * squashed, new_cell), (hidden_dot, new_cell_dot)


class LSTMCell(Trainable):
    """One layer: gates = W [x, h] + b, then `update_cell`."""

    weight: Float[Array, "gates inputs"]
    bias: Float[Array, " gates"]

    @classmethod
    def random(cls, inputs: int, width: int, key: PRNGKeyArray) -> "LSTMCell":
        """Uniform in +-1/sqrt(width), the default of PyTorch's LSTM; its two biases are one here."""
        weight, biases = draw_uniform_pair(key, (4 * width, inputs + width), (2, 4 * width), width**-0.5)
        return cls(weight, biases.sum(0))

    @property
    def width(self) -> int:
        """The size of the hidden state."""
        return self.bias.shape[0] // 4

    def __call__(self, x: Float[Array, " i"], memory: HiddenAndCell) -> HiddenAndCell:
        hidden, cell = memory
        return update_cell(apply_affine(self.weight, self.bias, concat_by_padding(x, hidden)), cell)


class LSTM(AbstractAgent):
    """h_W with memory: `depth` LSTM layers of `width`, then a linear one (the authors' code: 3 layers of 10, erratum E18).

    The memory starts at zero in each instance. As in the authors' code, the history is not replayed.

    Args:
        dim: d, how many numbers an action has.
        context_dim: q, how many numbers a context has.
        width: units of each layer. Default: 10.
        depth: how many LSTM layers. Default: 3.
        key: for the weights it begins with.
        contexts: standardises contexts on the way in. Default: none is done.
        actions: standardises actions on the way in, and undoes it on the way out. Default: none is done.

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
    ):
        for name, value in (("dim", dim), ("context_dim", context_dim), ("width", width), ("depth", depth)):
            check_count(name, value)
        inputs = [context_dim + dim, *[width] * (depth - 1)]
        *keys, last = jax.random.split(key, depth + 1)
        self.cells = tuple(LSTMCell.random(i, width, k) for i, k in zip(inputs, keys, strict=True))
        self.readout = Affine.random(width, dim, last)
        self.contexts = Scaling() if contexts is None else contexts
        self.actions = Scaling() if actions is None else actions

    def init(self, problem: Problem, start: Start) -> tuple[HiddenAndCell, ...]:
        made_for = self.cells[0].weight.shape[1] - self.cells[0].width - self.readout.weight.shape[0]
        refuse_unless_fitting("LSTM", made_for, self.readout.weight.shape[0], start)
        zero = jnp.zeros((self.cells[0].width,), start.x0.dtype)
        return tuple((zero, zero) for _ in self.cells)

    def step(self, problem: Problem, state: tuple[HiddenAndCell, ...], observation: Observation):
        context = self.contexts.standardize(observation.context)
        hidden = concat_by_padding(context, self.actions.standardize(observation.previous_action))
        memories = []
        for cell, memory in zip(self.cells, state, strict=True):
            memory = cell(hidden, memory)
            hidden = memory[0]
            memories.append(memory)
        return tuple(memories), self.actions.restore(self.readout(hidden)), Info.plain()
