"""Which leaves of an agent are trained: those inside a `Trainable`, by type, never by dtype.

Trust, slack, scales and problem constants are arrays too, so that they can be vmapped; they are not weights.
"""

import equinox as eqx
import jax
from jaxtyping import PyTree


class Trainable(eqx.Module):
    """A part of an advisor whose every array is a weight."""


def trainable_mask(agent: PyTree) -> PyTree:
    """The agent's tree with True at weights and False elsewhere; for `equinox.partition`.

    Args:
        agent: any tree of modules.
    """

    def mark(node):
        return jax.tree.map(lambda _: isinstance(node, Trainable), node)

    return jax.tree.map(mark, agent, is_leaf=lambda node: isinstance(node, Trainable))
