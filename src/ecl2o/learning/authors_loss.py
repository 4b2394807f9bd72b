"""What the published code minimises, and at which learning rates: both differ from the paper's text (erratum E18)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent
from ecl2o.learning.losses import (
    AbstractLoss,
    CostScale,
    FixedScale,
    check_cost_scale,
    check_share,
    get_scale,
    runs_and_advisor_alone,
)
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import as_float, concrete_value

# As the published configuration lists them, and as the published program uses them: it sets a rate after a stage, not before.
AUTHORS_RATES = (4e-4, 3e-4, 2e-4, 1e-4, 6e-5, 3e-5)
AUTHORS_RATES_IN_USE = (4e-4, *AUTHORS_RATES[:-1])
_EPOCHS = 25  # of a stage

# The published cost is the sum of squares without the paper's 1/2, times 100.
AUTHORS_COST_SCALE = 200.0


class AuthorsLoss(AbstractLoss):
    """weight mean(relu(ratio - min_cr) + min_cr) + (1 - weight) 200 mean cost: the loss of the authors' code (erratum E18).

    The cost is that of what is played, through the calibrator. The ratio is cost/cost* of the *advisor left alone*, on a
    roll-out of its own: what the paper's text has a prediction error for. Ratios below `min_cr` count as `min_cr`, so that
    nothing is gained by improving them. 200 is the authors' 100 for a cost twice ours. With weight = 1 their program takes the
    advisor's mean cost instead, which is `StandaloneLoss(0.0)` (erratum E17).

    Args:
        weight: of the ratio, in [0, 1]. Default: 0.6.
        min_cr: what smaller ratios count as. Default: 2.
        cost_scale: the factor on costs; "oracle": one over the mean optimum; "instance": ratios. Default: 200.
        scale: set by `fit`. Default: not yet.
    """

    weight: Float[Array, ""] = eqx.field(converter=as_float, default=0.6)
    min_cr: Float[Array, ""] = eqx.field(converter=as_float, default=2.0)
    cost_scale: CostScale = eqx.field(static=True, default=AUTHORS_COST_SCALE)
    scale: FixedScale | None = None

    def __check_init__(self):
        check_share("weight", self.weight)
        check_cost_scale(self.cost_scale)
        least = concrete_value(self.min_cr)
        if least is not None and not (least >= 0).all():
            raise ValueError(f"min_cr must not be negative, got {least}.")

    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        scale = get_scale(self, oracles)
        played, alone = runs_and_advisor_alone(agent, problem, instances)
        ratio = scale.ratio(alone.cost, oracles.cost)
        robustness = jnp.mean(jax.nn.relu(ratio - self.min_cr) + self.min_cr)
        return self.weight * robustness + (1 - self.weight) * scale.mean_cost(played.cost, oracles.cost)


def authors_schedule(
    n_instances: int, batch: int = 50, rates: tuple[float, ...] = AUTHORS_RATES
) -> tuple[int, Float[np.ndarray, " steps"]]:
    """(steps, learning rate of each): 25 epochs at each of the rates (the authors' code).

    Its configuration lists 4e-4, 3e-4, 2e-4, 1e-4, 6e-5, 3e-5; its program sets each of them one stage late, so that
    4e-4 serves twice and 3e-5 never: `rates=AUTHORS_RATES_IN_USE`.

    Args:
        n_instances: how many instances there are to train on.
        batch: how many a step sees. Default: 50.
        rates: learning rates, each for 25 epochs. Default: those of the authors' configuration.

    Returns:
        The number of steps, and the learning rate of each.

    >>> steps, rates = authors_schedule(1416)
    >>> steps, float(rates[0]), float(rates[-1])
    (4350, 0.0004, 3e-05)
    """
    per_epoch = -(-n_instances // batch)
    stages = np.repeat(np.array(rates, float), _EPOCHS * per_epoch)
    return stages.size, stages
