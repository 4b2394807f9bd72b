"""The search for contexts on which an agent does badly: what is found is a lower bound of its worst case."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent
from ecl2o.evaluation.metrics import cost_ratios, without_rounding
from ecl2o.offline import oracle
from ecl2o.problem import Instance, Problem
from ecl2o.running import rollout

_ASCENT_RATE = 0.05
_REACHED = 1e-12  # a promise is taken to be reached, relative


def played_ratio(agent: AbstractAgent, problem: Problem, instance: Instance) -> float:
    """Cost over the oracle's cost, both played."""
    bills = rollout(agent, problem, instance).cost, oracle(problem, instance).cost
    return float(_ratio_of(bills, problem, instance))


@eqx.filter_jit
def _ratio_of(bills: tuple[Float[Array, ""], Float[Array, ""]], problem: Problem, instance: Instance):
    return cost_ratios(*without_rounding(jnp.stack(bills), problem, instance.x0, instance.contexts))


def worst_found(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[Array, " d"],
    low: Float[Array, "T q"],
    high: Float[Array, "T q"],
    starts: Float[Array, "n T q"],
    steps: int,
    ceiling: float = float("inf"),
) -> tuple[float, Instance]:
    """The largest ratio found in the region, with its instance: ascent of `steps` steps from each start.

    Before that, contexts equal to x0, where the oracle pays nothing: whoever moves there has an infinite ratio. Where a start has
    the largest ratio that there can be, the `ceiling`, there is nothing to search for.
    """
    here = np.asarray(x0)
    if x0.shape[0] == low.shape[1] and ((np.asarray(low) <= here) & (here <= np.asarray(high))).all():
        still = Instance(x0, np.broadcast_to(here, low.shape))
        if played_ratio(agent, problem, still) == np.inf:
            return float(np.inf), still

    for contexts in np.asarray(starts) if ceiling < np.inf else ():
        ratio = played_ratio(agent, problem, Instance(x0, contexts))
        if ratio >= ceiling * (1 - _REACHED):
            return ratio, Instance(x0, contexts)

    found, scores = map(np.asarray, _ascend_from_all(agent, problem, x0, low, high, starts, steps))
    if not (scores > -np.inf).any():
        raise ValueError(f"{type(agent).__name__} has no finite bill on any of the {len(starts)} instances tried.")
    instance = Instance(x0, found[np.argmax(scores)])
    return played_ratio(agent, problem, instance), instance


@eqx.filter_jit
def _ascend_from_all(agent, problem, x0, low, high, starts, steps):
    def log_ratio(contexts):
        instance = Instance(x0, contexts)
        return jnp.log(rollout(agent, problem, instance).cost) - jnp.log(oracle(problem, instance).cost)

    return jax.vmap(_ascend(log_ratio, low, high, steps))(starts)


def _ascend(score: Callable, low, high, steps: int) -> Callable:
    """Projected Adam ascent that remembers the best point it has seen."""
    width = jnp.where(high > low, high - low, 1.0)
    optimizer = optax.adam(_ASCENT_RATE)

    def climb(carry, _):
        contexts, memory, best, best_score = carry
        value, slope = jax.value_and_grad(score)(contexts)
        better = value > best_score  # false for NaN
        best, best_score = jnp.where(better, contexts, best), jnp.where(better, value, best_score)
        slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
        change, memory = optimizer.update(-slope * width, memory)
        return (jnp.clip(contexts + jnp.asarray(change) * width, low, high), memory, best, best_score), None

    def ascend(contexts):
        carry = (contexts, optimizer.init(contexts), contexts, jnp.asarray(-jnp.inf, contexts.dtype))
        (_, _, best, best_score), _ = jax.lax.scan(climb, carry, None, length=steps)
        return best, best_score

    return ascend
