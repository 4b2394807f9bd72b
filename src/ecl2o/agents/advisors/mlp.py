"""The paper's network: three layers of ten ReLU neurons on (context, previous action)."""

import jax
from jaxtyping import PRNGKeyArray

from ecl2o.agents.advisors.layers import Affine, Scaling, concat_by_padding
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.problem.arrays import check_count


class MLP(AbstractAgent):
    """h_W(y_t, x_{t-1}): `depth` ReLU layers of `width`, then a linear one (section 6.2 of the paper: 3 layers of 10).

    Contexts and actions are standardised on the way in and actions restored on the way out; both scalings are stored here.

    Args:
        dim: d, how many numbers an action has.
        context_dim: q, how many numbers a context has.
        width: units of each layer. Default: 10.
        depth: how many ReLU layers. Default: 3.
        key: for the weights it begins with.
        contexts: standardises contexts on the way in. Default: none is done.
        actions: standardises actions on the way in, and undoes it on the way out. Default: none is done.

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
    ):
        for name, value in (("dim", dim), ("context_dim", context_dim), ("width", width), ("depth", depth)):
            check_count(name, value)
        sizes = [context_dim + dim, *[width] * depth, dim]
        keys = jax.random.split(key, depth + 1)
        self.layers = tuple(Affine.random(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.contexts = Scaling() if contexts is None else contexts
        self.actions = Scaling() if actions is None else actions

    def init(self, problem: Problem, start: Start) -> None:
        inputs, dim = self.layers[0].weight.shape[1], self.layers[-1].weight.shape[0]
        refuse_unless_fitting("MLP", inputs - dim, dim, start)

    def step(self, problem: Problem, state: None, observation: Observation):
        context = self.contexts.standardize(observation.context)
        hidden = concat_by_padding(context, self.actions.standardize(observation.previous_action))
        for layer in self.layers[:-1]:
            hidden = jax.nn.relu(layer(hidden))
        return state, self.actions.restore(self.layers[-1](hidden)), Info.plain()


def refuse_unless_fitting(what: str, context_dim: int, dim: int, start: Start) -> None:
    """Refuse a network made for other dimensions than this run's."""
    found = start.history.shape[-1], start.dim
    if found != (context_dim, dim):
        raise NotApplicableError(
            f"{what} was made for contexts of {context_dim} and actions of {dim} numbers, "
            f"but this problem has {found[0]} and {found[1]}."
        )
