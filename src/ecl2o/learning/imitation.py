"""Learning to imitate an expert (section 3.1 of the paper): supervised by its actions instead of by costs."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Info, Observation, Start
from ecl2o.agents.advisors import Fixed
from ecl2o.learning.losses import AbstractLoss, CostScale, FixedScale
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray
from ecl2o.running import rollout, rollout_batch


class _Shadowed(AbstractAgent):
    """Play the leader's actions while a follower, who sees the same, says what it would do (as the advice)."""

    leader: AbstractAgent
    follower: AbstractAgent

    @property
    def lookahead(self) -> int:
        return max(self.leader.lookahead, self.follower.lookahead)

    def is_linear(self, problem: Problem) -> bool:
        return self.leader.is_linear(problem)

    def init(self, problem: Problem, start: Start):
        return self.leader.init(problem, start), self.follower.init(problem, start)

    def step(self, problem: Problem, state, observation: Observation):
        leading, following = state
        leading, action, led = self.leader.step(problem, leading, observation)
        following, proposal, followed = self.follower.step(problem, following, observation)
        return (leading, following), action, Info(led.converged & followed.converged, advice=proposal)


class _Detached(AbstractAgent):
    """The same agent, without derivatives through where it stands: its past actions count as given data."""

    agent: AbstractAgent

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def is_linear(self, problem: Problem) -> bool:
        return self.agent.is_linear(problem)

    def init(self, problem: Problem, start: Start):
        return self.agent.init(problem, start)

    def step(self, problem: Problem, state, observation: Observation):
        held = jax.lax.stop_gradient(observation.previous_action)
        return self.agent.step(problem, state, eqx.tree_at(lambda o: o.previous_action, observation, held))


class ImitationLoss(AbstractLoss):
    """Mean over instances of sum |action - expert's action|^2; `expert=None` imitates the oracle.

    `rollout="teacher"`: the learner is asked along the expert's own trajectory. `"free"`: it follows its own, and is
    compared with the expert's from the same x0. `"dagger"`: it follows its own, and the expert says at each step what it
    would do *there* (Ross et al. 2011); the states count as given. The oracle has no answer off its own path, so it
    cannot be asked that way.

    Args:
        expert: whom to imitate. Default: the oracle.
        rollout: "teacher", "free" or "dagger". Default: "teacher".
        cost_scale: as in `CalibratedLoss`; it does not enter the loss. Default: "oracle".
        scale: set by `fit`. Default: not yet.
    """

    expert: AbstractAgent | None = None
    rollout: Literal["teacher", "free", "dagger"] = eqx.field(static=True, default="teacher")
    cost_scale: CostScale = eqx.field(static=True, default="oracle")
    scale: FixedScale | None = None

    def __check_init__(self):
        if self.rollout not in ("teacher", "free", "dagger"):
            raise ValueError(f"rollout must be 'teacher', 'free' or 'dagger', got {self.rollout!r}.")
        if self.expert is None and self.rollout == "dagger":
            raise ValueError("rollout='dagger' needs an online expert; the oracle knows its own path only.")

    def __call__(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory
    ) -> Float[Array, ""]:
        learned, shown = self._pairs(agent, problem, instances, oracles)
        return jnp.mean(jnp.sum((learned - jax.lax.stop_gradient(shown)) ** 2, axis=(-2, -1)))

    def _pairs(self, agent, problem, instances, oracles) -> tuple[Float[AnyArray, "n T d"], Float[AnyArray, "n T d"]]:
        """(what the learner did, what it was shown)."""
        if self.rollout == "dagger":
            assert self.expert is not None
            run = rollout_batch(_Shadowed(_Detached(agent), self.expert), problem, instances)
            return run.actions, _proposals(run)
        if self.rollout == "free":
            shown = oracles if self.expert is None else rollout_batch(self.expert, problem, instances)
            return rollout_batch(agent, problem, instances).actions, shown.actions
        if self.expert is None:
            led = jax.vmap(lambda s, x: _along(agent, problem, s, x))(instances, oracles.actions)
            return led, oracles.actions
        run = rollout_batch(_Shadowed(self.expert, agent), problem, instances)
        return _proposals(run), run.actions


def _along(
    agent: AbstractAgent, problem: Problem, instance: Instance, path: Float[AnyArray, "T d"]
) -> Float[AnyArray, "T d"]:
    """What the agent proposes at each step of a given path."""
    return _proposals(rollout(_Shadowed(Fixed(path), agent), problem, instance))


def _proposals(run: Trajectory) -> Float[AnyArray, "*n T d"]:
    """What the follower of a shadowed run said."""
    assert run.advice is not None
    return run.advice
