"""What training minimises: functions of (agent, problem, batch of instances, their oracles) to one number.

Costs and ratios live on different scales, and the paper adds them (erratum E16). `cost_scale="oracle"` divides costs by the
mean oracle cost of the training set, so that mu and kappa mean the same on data of any unit; "instance" divides each by its
own oracle cost; a number multiplies costs as it is (the authors: 100). `fit` fixes the scale once, on the whole training set,
through `fix_scale`.
"""

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Observation, Start
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, as_float, concrete_value
from ecl2o.running import rollout_batch

# Oracle costs in denominators are at least this share of their mean: an instance whose optimum is free has no ratio.
_FLOOR = 1e-6


class AdviceOrAction(AbstractAgent):
    """Play the agent's action, or, where `alone` is not zero, the advice behind it: the advisor left to itself."""

    agent: AbstractAgent
    alone: Float[Array, "*n"]

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start):
        return self.agent.init(problem, start)

    def step(self, problem: Problem, state, observation: Observation):
        state, action, info = self.agent.step(problem, state, observation)
        return state, jnp.where(self.alone != 0, _advice(self.agent, info.advice), action), info


def _advice(agent: AbstractAgent, advice: AnyArray | None) -> AnyArray:
    """The advice that the agent, or a guard around it, was given; refused where there was none."""
    if advice is None:
        raise TypeError(f"this loss needs an agent with an advisor, got {type(agent).__name__}.")
    return advice


class FixedScale(eqx.Module):
    """The factor on costs, the floor under oracle costs in denominators, and 1 where each cost is divided by its own optimum."""

    factor: Float[Array, ""]
    floor: Float[Array, ""]
    by_instance: Float[Array, ""]

    def ratio(self, amount: Float[Array, " n"], oracle_cost: Float[Array, " n"]) -> Float[Array, " n"]:
        """The amount over the oracle cost, floored."""
        return amount / jnp.maximum(oracle_cost, self.floor)

    def mean_cost(self, cost: Float[Array, " n"], oracle_cost: Float[Array, " n"]) -> Float[Array, ""]:
        """What a loss has for the cost of a batch."""
        unit = jnp.where(self.by_instance != 0, jnp.maximum(oracle_cost, self.floor), 1.0)
        return self.factor * jnp.mean(cost / unit)


CostScale = float | int | Literal["oracle", "instance"]


class AbstractLoss(eqx.Module):
    """A loss; `scale` is None until it has been fixed on a training set."""

    cost_scale: eqx.AbstractVar[CostScale]
    scale: eqx.AbstractVar[FixedScale | None]

    @abc.abstractmethod
    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        """The loss of a batch."""


def get_scale(loss: AbstractLoss, oracles: Trajectory) -> FixedScale:
    """The loss's scale: the one that was fixed, or that of these oracles."""
    return make_scale(loss.cost_scale, oracles) if loss.scale is None else loss.scale


def make_scale(cost_scale: CostScale, oracles: Trajectory) -> FixedScale:
    """A cost scale on the instances of these oracles. Losses that differ only in theirs can be trained together, if fixed."""
    mean = jnp.mean(oracles.cost)
    factors = {"oracle": 1 / mean, "instance": 1.0}
    factor = factors[cost_scale] if isinstance(cost_scale, str) else cost_scale
    by_instance = float(cost_scale == "instance")
    return FixedScale(jnp.asarray(factor, mean.dtype), _FLOOR * mean, jnp.asarray(by_instance, mean.dtype))


def fix_scale(loss: AbstractLoss, oracles: Trajectory) -> AbstractLoss:
    """The same loss with its scale fixed on a training set, whose optimum must cost something if it is the unit."""
    mean = concrete_value(jnp.mean(oracles.cost))
    if loss.scale is None and loss.cost_scale == "oracle" and mean is not None and not mean > 0:
        raise ValueError(
            f"cost_scale='oracle' divides by the mean oracle cost, which is {mean:g}; give a number instead."
        )
    return eqx.tree_at(lambda l: l.scale, loss, get_scale(loss, oracles), is_leaf=lambda leaf: leaf is None)


def _runs_with_advice(agent, problem: Problem, instances: Instance) -> tuple[Trajectory, Float[AnyArray, "n T d"]]:
    """The runs, and the advice along them."""
    played = rollout_batch(agent, problem, instances)
    return played, _advice(agent, played.advice)


def runs_and_advisor_alone(agent, problem: Problem, instances: Instance) -> tuple[Trajectory, Trajectory]:
    """The runs, and those of the advisor left to itself: both unrolled as one set of twice the size, which is faster."""
    n = instances.x0.shape[0]
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), instances)
    either = AdviceOrAction(agent, jnp.repeat(jnp.arange(2), n).astype(instances.x0.dtype))
    axes = eqx.tree_at(lambda a: a.alone, jax.tree.map(lambda _: None, either), 0, is_leaf=lambda leaf: leaf is None)
    both = rollout_batch(either, problem, twice, agent_axes=axes)
    played, alone = (jax.tree.map(lambda leaf, part=part: leaf[part], both) for part in (slice(0, n), slice(n, None)))
    return played, alone


def _runs_with_standalone_actions(agent, problem: Problem, instances: Instance):
    """The runs, and what the advisor would have done alone."""
    played, alone = runs_and_advisor_alone(agent, problem, instances)
    return played, alone.actions


def check_share(name: str, value: Float[Array, ""]) -> None:
    """Refuse what is not between 0 and 1."""
    number = concrete_value(value)
    if number is not None and not ((number >= 0) & (number <= 1)).all():
        raise ValueError(f"{name} must lie in [0, 1], got {number}.")


def check_cost_scale(cost_scale: float | int | str) -> None:
    """Refuse what is neither a factor nor the name of a scale."""
    if cost_scale not in ("oracle", "instance") and not (isinstance(cost_scale, float | int) and cost_scale > 0):
        raise ValueError(f"cost_scale must be 'oracle', 'instance' or a positive number, got {cost_scale!r}.")


class CalibratedLoss(AbstractLoss):
    """EC-L2O's loss (Eqns. loss_new and unrolling): mu relu(rho - rho_bar) + (1 - mu) cost, through the calibrator.

    rho is the prediction error of the advice, sum |advice - x*|^2 / cost*. Theorem 4.1 speaks of the advice given along the
    calibrated roll-out; `prediction_rollout="standalone"` measures the advisor left alone instead, as the authors' code does
    (erratum E18). With mu = 0 only the cost of what is really played counts.

    Args:
        mu: the weight of the prediction error, in [0, 1]. Default: 0.6.
        rho_bar: the prediction error that costs nothing, not negative. Default: 0.
        prediction_rollout: "calibrated" or "standalone": along which path the advice is judged. Default: "calibrated".
        cost_scale: the factor on costs; "oracle": one over the mean optimum; "instance": ratios. Default: "oracle".
        scale: set by `fit`. Default: not yet.
    """

    mu: Float[Array, ""] = eqx.field(converter=as_float, default=0.6)
    rho_bar: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    prediction_rollout: Literal["calibrated", "standalone"] = eqx.field(static=True, default="calibrated")
    cost_scale: CostScale = eqx.field(static=True, default="oracle")
    scale: FixedScale | None = None

    def __check_init__(self):
        check_share("mu", self.mu)
        check_cost_scale(self.cost_scale)
        if self.prediction_rollout not in ("calibrated", "standalone"):
            raise ValueError(
                f"prediction_rollout must be 'calibrated' or 'standalone', got {self.prediction_rollout!r}."
            )

    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        scale = get_scale(self, oracles)
        unroll = _runs_with_advice if self.prediction_rollout == "calibrated" else _runs_with_standalone_actions
        played, advice = unroll(agent, problem, instances)
        rho = scale.ratio(jnp.sum((advice - oracles.actions) ** 2, axis=(-2, -1)), oracles.cost)
        prediction = jnp.mean(jax.nn.relu(rho - self.rho_bar))
        return self.mu * prediction + (1 - self.mu) * scale.mean_cost(played.cost, oracles.cost)


class StandaloneLoss(AbstractLoss):
    """PureML's loss (section 6.3): kappa cost/cost* + (1 - kappa) cost of the agent as it is; kappa = 0 is PureML-0.

    Args:
        kappa: the weight of the ratio, in [0, 1]. Default: 0.
        cost_scale: the factor on costs; "oracle": one over the mean optimum; "instance": ratios. Default: "oracle".
        scale: set by `fit`. Default: not yet.
    """

    kappa: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    cost_scale: CostScale = eqx.field(static=True, default="oracle")
    scale: FixedScale | None = None

    def __check_init__(self):
        check_share("kappa", self.kappa)
        check_cost_scale(self.cost_scale)

    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        scale = get_scale(self, oracles)
        cost = rollout_batch(agent, problem, instances).cost
        ratio = jnp.mean(scale.ratio(cost, oracles.cost))
        return self.kappa * ratio + (1 - self.kappa) * scale.mean_cost(cost, oracles.cost)


class TailLoss(AbstractLoss):
    """CVaR of the ratio: the mean of the worst 1 - level share of cost/cost* in a batch, for any agent.

    level = 0 is the mean ratio, level -> 1 the worst one. The share may cut through an instance, which then counts in part.

    Args:
        level: in [0, 1). Default: 0.9.
        cost_scale: as in `CalibratedLoss`; ratios have no unit. Default: "oracle".
        scale: set by `fit`. Default: not yet.
    """

    level: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)
    cost_scale: CostScale = eqx.field(static=True, default="oracle")
    scale: FixedScale | None = None

    def __check_init__(self):
        number = concrete_value(self.level)
        if number is not None and not ((number >= 0) & (number < 1)).all():
            raise ValueError(f"level must lie in [0, 1), got {number}.")
        check_cost_scale(self.cost_scale)

    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        ratios = get_scale(self, oracles).ratio(rollout_batch(agent, problem, instances).cost, oracles.cost)
        n = ratios.shape[0]
        above = jnp.clip(jnp.arange(1, n + 1) - self.level * n, 0, 1)  # how much of each, from best to worst, is tail
        return jnp.sum(above * jnp.sort(ratios)) / jnp.sum(above)
