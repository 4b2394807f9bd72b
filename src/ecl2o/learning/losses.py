"""Losses: functions of (agent, problem, batch of instances, their oracles) to the number that training minimises.

Costs and ratios have different units, and the paper adds them (erratum E16). `cost_scale="oracle"` divides costs by the mean
oracle cost of the training set, so that mu and kappa mean the same for data of any unit; "instance" divides each cost by its
own optimum; a number multiplies costs. `fit` fixes the scale once, on the whole training set, through `fix_scale`.
"""

import abc
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Info, Observation, Start
from ecl2o.agents.advisors import Fixed
from ecl2o.agents.base import AnyProblem
from ecl2o.problem import Instance, Trajectory
from ecl2o.problem.arrays import AnyArray, as_float, check_fraction, check_nonnegative, concrete_value
from ecl2o.running import rollout, rollout_batch

# Oracle costs in denominators are at least this share of their mean: an instance whose optimum is free has no ratio.
_FLOOR = 1e-6

CostScale = float | int | Literal["oracle", "instance"]


class FixedScale(eqx.Module):
    """The factor on costs, the floor under oracle costs in denominators, and 1 if each cost is divided by its own optimum."""

    factor: Float[Array, ""]
    floor: Float[Array, ""]
    by_instance: Float[Array, ""]

    def ratio(self, amount: Float[Array, " n"], oracle_cost: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the amount over the oracle cost, floored."""
        return amount / jnp.maximum(oracle_cost, self.floor)

    def mean_cost(self, cost: Float[Array, " n"], oracle_cost: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the scaled mean cost of a batch."""
        unit = jnp.where(self.by_instance != 0, jnp.maximum(oracle_cost, self.floor), 1.0)
        return self.factor * jnp.mean(cost / unit)


class AbstractLoss(eqx.Module):
    """The base class of losses; write `__call__`.

    Args:
        cost_scale: Factor on costs; "oracle": one over the mean optimum; "instance": one over each optimum. Default: "oracle".
        scale: The scale fixed on a training set; `fit` sets it. Default: None, that of the batch.

    Raises:
        ValueError: `cost_scale` is neither of the two names nor a positive number.

    >>> import ecl2o as ec
    >>> class MeanCost(AbstractLoss):
    ...     def __call__(self, agent, problem, instances, oracles):
    ...         return get_scale(self, oracles).mean_cost(rollout_batch(agent, problem, instances).cost, oracles.cost)
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> instances = ec.Instance(x0=[[0.0]], contexts=[[[1.0], [2.0]]])
    >>> oracles = jax.vmap(lambda instance: ec.oracle(problem, instance))(instances)
    >>> round(float(MeanCost()(ec.ROBD(), problem, instances, oracles)), 3)
    1.27
    """

    cost_scale: CostScale = eqx.field(static=True, default="oracle", kw_only=True)
    scale: FixedScale | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        scale = self.cost_scale
        if scale not in ("oracle", "instance") and not (isinstance(scale, float | int) and scale > 0):
            raise ValueError(f"cost_scale must be 'oracle', 'instance' or a positive number, got {scale!r}.")

    @abc.abstractmethod
    def __call__(
        self, agent: AbstractAgent, problem: AnyProblem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        """Return the loss of a batch.

        Args:
            agent: The agent in training.
            problem: Its costs and action set.
            instances: n of them: x0 (n, d), contexts (n, T, q), history (n, H, q).
            oracles: Their optima.
        """


def get_scale(loss: AbstractLoss, oracles: Trajectory) -> FixedScale:
    """Return the scale that was fixed, or that of these oracles."""
    return make_scale(loss.cost_scale, oracles) if loss.scale is None else loss.scale


def make_scale(cost_scale: CostScale, oracles: Trajectory) -> FixedScale:
    """Return a cost scale on the instances of these oracles; losses that differ only in fixed scales can train together."""
    mean = jnp.mean(oracles.cost)
    factors = {"oracle": 1 / mean, "instance": 1.0}
    factor = factors[cost_scale] if isinstance(cost_scale, str) else cost_scale
    by_instance = float(cost_scale == "instance")
    return FixedScale(jnp.asarray(factor, mean.dtype), _FLOOR * mean, jnp.asarray(by_instance, mean.dtype))


def fix_scale(loss: AbstractLoss, oracles: Trajectory) -> AbstractLoss:
    """Return the loss with its scale fixed on a training set; raise ValueError if the unit would be an optimum of zero."""
    mean = concrete_value(jnp.mean(oracles.cost))
    if loss.scale is None and loss.cost_scale == "oracle" and mean is not None and not mean > 0:
        raise ValueError(f"cost_scale='oracle' needs a positive mean oracle cost, got {mean:g}; give a number instead.")
    return eqx.tree_at(lambda l: l.scale, loss, get_scale(loss, oracles), is_leaf=lambda leaf: leaf is None)


class AdviceOrAction(AbstractAgent):
    """An agent that plays another's action or, where `alone` is not zero, the advice behind it: the advisor by itself."""

    agent: AbstractAgent
    alone: Float[Array, "*n"]

    def init(self, problem: AnyProblem, start: Start):
        return self.agent.init(problem, start)

    def step(self, problem: AnyProblem, state, observation: Observation):
        state, action, info = self.agent.step(problem, state, observation)
        return state, jnp.where(self.alone != 0, _require_advice(self.agent, info.advice), action), info


def _require_advice(agent: AbstractAgent, advice: AnyArray | None) -> AnyArray:
    if advice is None:
        raise TypeError(f"this loss needs an agent with an advisor, got {type(agent).__name__}.")
    return advice


def _run_with_advisor_alone(agent, problem: AnyProblem, instances: Instance) -> tuple[Trajectory, Trajectory]:
    """Return the runs of the agent and of its advisor alone, made as one batch of twice the size, which is faster."""
    n = instances.x0.shape[0]
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), instances)
    either = AdviceOrAction(agent, jnp.repeat(jnp.arange(2), n).astype(instances.x0.dtype))
    axes = eqx.tree_at(lambda a: a.alone, jax.tree.map(lambda _: None, either), 0, is_leaf=lambda leaf: leaf is None)
    both = rollout_batch(either, problem, twice, agent_axes=axes)
    played, alone = (jax.tree.map(lambda leaf, part=part: leaf[part], both) for part in (slice(0, n), slice(n, None)))
    return played, alone


class CalibratedLoss(AbstractLoss):
    """EC-L2O's loss: mu relu(rho - rho_bar) + (1 - mu) cost, through the calibrator (Eqns. loss_new and unrolling).

    rho is the prediction error of the advice, sum |advice - x*|^2 / cost*.

    Args:
        mu: Weight of the prediction error, in [0, 1]; 0 leaves the cost of the played actions. Default: 0.6.
        rho_bar: Prediction error that is free; not negative. Default: 0.
        prediction_rollout: "calibrated" judges the advice along the played trajectory, as Theorem 4.1 does; "standalone" on
            the advisor's own, as the authors' code does (erratum E18). Default: "calibrated".
        cost_scale: As in `AbstractLoss`. Default: "oracle".
        scale: As in `AbstractLoss`. Default: None.

    Raises:
        ValueError: A number is out of its range, or a name is unknown.

    >>> loss = CalibratedLoss(mu=0.4, rho_bar=0.1)  # fit(agent, problem, instances, loss=loss, key=key)
    """

    mu: Float[Array, ""] = eqx.field(converter=as_float, default=0.6)
    rho_bar: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    prediction_rollout: Literal["calibrated", "standalone"] = eqx.field(static=True, default="calibrated")

    def __check_init__(self):
        check_fraction("mu", self.mu)
        check_nonnegative("rho_bar", self.rho_bar)
        if self.prediction_rollout not in ("calibrated", "standalone"):
            raise ValueError(
                f"prediction_rollout must be 'calibrated' or 'standalone', got {self.prediction_rollout!r}."
            )

    def __call__(self, agent, problem, instances, oracles):
        scale = get_scale(self, oracles)
        if self.prediction_rollout == "calibrated":
            played = rollout_batch(agent, problem, instances)
            advice = _require_advice(agent, played.advice)
        else:
            played, alone = _run_with_advisor_alone(agent, problem, instances)
            advice = alone.actions
        rho = scale.ratio(jnp.sum((advice - oracles.actions) ** 2, axis=(-2, -1)), oracles.cost)
        prediction = jnp.mean(jax.nn.relu(rho - self.rho_bar))
        return self.mu * prediction + (1 - self.mu) * scale.mean_cost(played.cost, oracles.cost)


class AuthorsLoss(AbstractLoss):
    """The loss of the authors' code: weight mean(max(ratio, min_cr)) + (1 - weight) 200 mean cost (erratum E18).

    The cost is that of the played actions, through the calibrator. The ratio is cost/cost* of the advisor alone, on its own
    trajectory. 200 is the authors' 100 for a cost twice ours. With weight = 1 their program takes the advisor's mean cost
    instead, which is `StandaloneLoss(0.0)` (erratum E17).

    Args:
        weight: Weight of the ratio, in [0, 1]. Default: 0.6.
        min_cr: Ratios below it count as it; not negative. Default: 2.
        cost_scale: As in `AbstractLoss`. Default: 200.
        scale: As in `AbstractLoss`. Default: None.

    Raises:
        ValueError: A number is out of its range.

    >>> loss = AuthorsLoss(weight=0.3)  # fit(agent, problem, instances, loss=loss, key=key)
    """

    weight: Float[Array, ""] = eqx.field(converter=as_float, default=0.6)
    min_cr: Float[Array, ""] = eqx.field(converter=as_float, default=2.0)
    cost_scale: CostScale = eqx.field(static=True, default=200.0, kw_only=True)

    def __check_init__(self):
        check_fraction("weight", self.weight)
        check_nonnegative("min_cr", self.min_cr)

    def __call__(self, agent, problem, instances, oracles):
        scale = get_scale(self, oracles)
        played, alone = _run_with_advisor_alone(agent, problem, instances)
        ratio = scale.ratio(alone.cost, oracles.cost)
        robustness = jnp.mean(jax.nn.relu(ratio - self.min_cr) + self.min_cr)
        return self.weight * robustness + (1 - self.weight) * scale.mean_cost(played.cost, oracles.cost)


class StandaloneLoss(AbstractLoss):
    """PureML's loss (section 6.3): kappa cost/cost* + (1 - kappa) cost of any agent; kappa = 0 is PureML-0.

    Args:
        kappa: Weight of the ratio, in [0, 1]. Default: 0.
        cost_scale: As in `AbstractLoss`. Default: "oracle".
        scale: As in `AbstractLoss`. Default: None.

    Raises:
        ValueError: `kappa` is out of its range.

    >>> loss = StandaloneLoss(kappa=0.5)  # fit(agent, problem, instances, loss=loss, key=key)
    """

    kappa: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)

    def __check_init__(self):
        check_fraction("kappa", self.kappa)

    def __call__(self, agent, problem, instances, oracles):
        scale = get_scale(self, oracles)
        cost = rollout_batch(agent, problem, instances).cost
        ratio = jnp.mean(scale.ratio(cost, oracles.cost))
        return self.kappa * ratio + (1 - self.kappa) * scale.mean_cost(cost, oracles.cost)


class TailLoss(AbstractLoss):
    """CVaR of the ratio: the mean of the worst 1 - level share of cost/cost* in a batch, for any agent.

    level = 0 is the mean ratio, level -> 1 the worst one. An instance that the share cuts through counts in part.

    Args:
        level: In [0, 1). Default: 0.9.
        cost_scale: As in `AbstractLoss`; ratios have no unit. Default: "oracle".
        scale: As in `AbstractLoss`. Default: None.

    Raises:
        ValueError: `level` is out of its range.

    >>> loss = TailLoss(level=0.75)  # fit(agent, problem, instances, loss=loss, key=key)
    """

    level: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)

    def __check_init__(self):
        number = concrete_value(self.level)
        if number is not None and not ((number >= 0) & (number < 1)).all():
            raise ValueError(f"level must lie in [0, 1), got {number}.")

    def __call__(self, agent, problem, instances, oracles):
        ratios = get_scale(self, oracles).ratio(rollout_batch(agent, problem, instances).cost, oracles.cost)
        n = ratios.shape[0]
        above = jnp.clip(jnp.arange(1, n + 1) - self.level * n, 0, 1)  # how much of each, from best to worst, is tail
        return jnp.sum(above * jnp.sort(ratios)) / jnp.sum(above)


class _Shadowed(AbstractAgent):
    """An agent that plays the leader's actions; the advice is what a follower would do there.

    With `detached`, the leader has no derivatives through its previous action.
    """

    leader: AbstractAgent
    follower: AbstractAgent
    detached: bool = eqx.field(static=True, default=False)

    def init(self, problem: AnyProblem, start: Start):
        return self.leader.init(problem, start), self.follower.init(problem, start)

    def step(self, problem: AnyProblem, state, observation: Observation):
        leading, following = state
        held = jax.lax.stop_gradient(observation.previous_action) if self.detached else observation.previous_action
        led_by = eqx.tree_at(lambda o: o.previous_action, observation, held)
        leading, action, led = self.leader.step(problem, leading, led_by)
        following, proposal, followed = self.follower.step(problem, following, observation)
        return (leading, following), action, Info(led.converged & followed.converged, advice=proposal)


class ImitationLoss(AbstractLoss):
    """Mean over instances of sum |action - expert's action|^2: supervised by actions, not costs (section 3.1).

    Args:
        expert: The agent to imitate. Default: None, the oracle.
        rollout: "teacher": the learner acts along the expert's trajectory. "free": it follows its own, and is compared with
            the expert's from the same x0. "dagger": it follows its own, and the expert says at each step what it would do
            there (Ross et al. 2011); previous actions count as data. Default: "teacher".
        cost_scale: As in `AbstractLoss`; it does not enter the loss. Default: "oracle".
        scale: As in `AbstractLoss`. Default: None.

    Raises:
        ValueError: `rollout` is unknown, or "dagger" without an expert: the oracle has no action off its own trajectory.

    >>> import ecl2o as ec
    >>> loss = ImitationLoss(ec.ROBD(), rollout="dagger")  # fit(agent, problem, instances, loss=loss, key=key)
    """

    expert: AbstractAgent | None = None
    rollout: Literal["teacher", "free", "dagger"] = eqx.field(static=True, default="teacher")

    def __check_init__(self):
        if self.rollout not in ("teacher", "free", "dagger"):
            raise ValueError(f"rollout must be 'teacher', 'free' or 'dagger', got {self.rollout!r}.")
        if self.expert is None and self.rollout == "dagger":
            raise ValueError("rollout='dagger' needs an online expert; the oracle knows its own path only.")

    def __call__(self, agent, problem, instances, oracles):
        learned, shown = self._pairs(agent, problem, instances, oracles)
        return jnp.mean(jnp.sum((learned - jax.lax.stop_gradient(shown)) ** 2, axis=(-2, -1)))

    def _pairs(self, agent, problem, instances, oracles) -> tuple[Any, Any]:
        """Return the learner's actions and the expert's."""
        if self.rollout == "free":
            shown = oracles if self.expert is None else rollout_batch(self.expert, problem, instances)
            return rollout_batch(agent, problem, instances).actions, shown.actions
        if self.expert is None:

            def follow(instance, path):
                return rollout(_Shadowed(Fixed(path), agent), problem, instance).advice

            return jax.vmap(follow)(instances, oracles.actions), oracles.actions
        if self.rollout == "teacher":
            run = rollout_batch(_Shadowed(self.expert, agent), problem, instances)
            return run.advice, run.actions
        run = rollout_batch(_Shadowed(agent, self.expert, detached=True), problem, instances)
        return run.actions, run.advice
