"""Run an agent day after day: each day anew, or as one stream."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents import AbstractAgent, Start
from ecl2o.forecasters import AbstractForecaster
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, to_device, to_host
from ecl2o.running.rollout import rollout


def rollout_days(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[AnyArray, " d"],
    days: Float[AnyArray, "n T q"],
    history: Float[AnyArray, "H q"] | None = None,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """Continuous testing: each day starts from the agent's own last action of the day before.

    The agent's state is made anew every day, on the last H contexts before that day.

    Args:
        agent: who decides.
        problem: what is decided.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.
        history: (H, q), the contexts before the first day. Default: none, on any day.
        forecaster: asked only by agents with a lookahead. Default: `forecasters.Exact()`, which knows the day's future.
        key: for forecasters that draw noise; each day has its own.

    Returns:
        The runs with a leading day axis, and the x0 of each day (n, d).
    """
    first = Instance(x0, to_host(days)[0], history)
    problem.check(first)
    agent.check(problem, Start(first.x0, first.past, first.horizon))
    return _rollout_days(agent, problem, first, to_device(days).astype(first.x0.dtype), forecaster, key)


@eqx.filter_jit
def _rollout_days(agent, problem, first, days, forecaster, key):
    seen = first.past.shape[0]

    def one_day(carry, today):
        start, past = carry
        contexts, day = today
        noise = None if key is None else jax.random.fold_in(key, day)
        run = rollout(agent, problem, Instance(start, contexts, past), forecaster, noise)
        past = jnp.concatenate([past, contexts])[contexts.shape[0] :] if seen else past
        return (run.actions[-1], past), (run, start)

    _, (runs, starts) = jax.lax.scan(one_day, (first.x0, first.past), (days, jnp.arange(days.shape[0])))
    return runs, starts


def stream_days(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[AnyArray, " d"],
    days: Float[AnyArray, "n T q"],
    history: Float[AnyArray, "H q"] | None = None,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """Continuous testing as one long run, which is what the streaming runner plays: the agent's state goes on over midnight.

    What promises for a day, or was trained on days, goes in `agents.Periodic`.

    Args:
        agent: who decides.
        problem: what is decided.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.
        history: (H, q), the contexts before the first day. Default: none.
        forecaster: asked only by agents with a lookahead. Default: `forecasters.Exact()`, which knows the future.
        key: for forecasters that draw noise.

    Returns:
        The runs with a leading day axis, and the x0 of each day (n, d).
    """
    n, T, q = days.shape
    whole = Instance(x0, to_host(days).reshape(n * T, q), history)
    problem.check(whole)
    agent.check(problem, Start(whole.x0, whole.past, whole.horizon))
    return _stream_days(agent, problem, whole, n, forecaster, key)


@eqx.filter_jit
def _stream_days(agent, problem, whole, n, forecaster, key):
    return split_by_day(rollout(agent, problem, whole, forecaster, key), whole.x0, n)


def split_by_day(run: Trajectory, x0: Float[Array, " d"], days: int) -> tuple[Trajectory, Float[Array, "n d"]]:
    """A run through so many days cut into them, and where each of them began."""
    runs = jax.tree.map(lambda leaf: leaf.reshape(days, -1, *leaf.shape[1:]), run)
    return runs, jnp.concatenate([x0[None], runs.actions[:-1, -1]])
