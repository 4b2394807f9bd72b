"""Run an agent: one instance as one `lax.scan`, a set of them, or day after day."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ecl2o.agents import AbstractAgent, Observation, Start, refuse_infeasible_promises
from ecl2o.forecasters import AbstractCausalForecaster, AbstractClairvoyantForecaster, AbstractForecaster, Exact
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, cast_floats


def rollout(
    agent: AbstractAgent,
    problem: Problem,
    instance: Instance,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> Trajectory:
    """Let the agent act through one instance.

    Works in the precision of `instance.x0`. The forecaster, `forecasters.Exact()` unless given, is asked only by agents
    with a lookahead; `key` is for forecasters that draw noise. For a set of instances use `jax.vmap`; everything here
    can be jitted and differentiated.

    >>> from ecl2o.agents import Greedy
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> run = rollout(Greedy(), problem, Instance(x0=[0.0], contexts=[[3.0], [3.0]]))
    >>> [round(float(x), 4) for x in run.actions.ravel()]
    [1.0, 1.6667]
    """
    problem.check(instance)
    refuse_infeasible_promises(agent, problem, instance.dim)
    return _rollout(agent, problem, instance, Exact() if forecaster is None else forecaster, key)


@eqx.filter_jit
def _rollout(agent, problem, instance, forecaster, key):
    dtype = instance.x0.dtype
    agent, problem, forecaster = cast_floats((agent, problem, forecaster), dtype)
    horizon, window = instance.horizon, agent.lookahead
    start = Start(instance.x0, instance.past, horizon)
    forecast_init, forecast_step = _forecasting(forecaster, instance, window, key)

    def act(carry, now):
        previous, state, memory = carry
        step, context = now
        memory, forecast = forecast_step(memory, step, context)
        observation = Observation(context, previous, step, horizon - 1 - step, forecast)
        state, action, info = agent.step(problem, state, observation)
        return (action, state, memory), (action, info)

    carry = (instance.x0, agent.init(problem, start), forecast_init)
    _, (actions, info) = jax.lax.scan(act, carry, (jnp.arange(horizon), instance.contexts))
    hitting, switching = problem.costs(instance.x0, actions, instance.contexts)
    return Trajectory(actions, hitting, switching, info.advice, info.converged, info)


def _forecasting(forecaster, instance, window, key):
    """(initial memory, step function) of whatever kind of forecaster; nothing where nobody asks."""
    if window == 0:
        return None, lambda memory, step, context: (memory, None)
    if isinstance(forecaster, AbstractClairvoyantForecaster):
        prepared = forecaster.prepare(instance.contexts, window, key)
        return None, lambda memory, step, context: (memory, prepared.at(step))
    if isinstance(forecaster, AbstractCausalForecaster):
        memory = forecaster.init(instance.past, window)
        return memory, lambda memory, step, context: forecaster.step(memory, context, window)
    raise TypeError(f"forecaster must be a causal or clairvoyant forecaster, got {type(forecaster).__name__}.")


def rollout_set(
    agent: AbstractAgent, problem: Problem, instances: Instance, agent_axes: PyTree[int | None] = None
) -> Trajectory:
    """A set of instances at once: what `jax.vmap` of `rollout` gives, laid out for training.

    The loop over time is outside and the map over instances inside, with the instance axis last, so that the features of a
    network are rows and its layers are products of a weight matrix with a matrix of instances. On CPU that is about twice as
    fast, forward and backward, as a map around the loop. Agents with a lookahead take the map around the loop.
    `agent_axes` are the axes of those leaves of the agent that differ by instance, as in `jax.vmap`.
    """
    if agent.lookahead:
        return jax.vmap(lambda a, s: rollout(a, problem, s), in_axes=(agent_axes, 0))(agent, instances)
    dtype, horizon = instances.x0.dtype, instances.horizon
    agent, problem = cast_floats((agent, problem), dtype)
    x0, history = instances.x0.T, jnp.moveaxis(instances.past, 0, -1)

    def begin(agent, x0, history):
        return agent.init(problem, Start(x0, history, horizon))

    def act(agent, previous, state, context, step):
        observation = Observation(context, previous, step, horizon - 1 - step)
        return agent.step(problem, state, observation)

    def step_all(carry, now):
        previous, states = carry
        step, contexts = now
        along = jax.vmap(act, in_axes=(agent_axes, -1, -1, -1, None), out_axes=-1)
        states, actions, info = along(agent, previous, states, contexts, step)
        return (actions, states), (actions, info)

    states = jax.vmap(begin, in_axes=(agent_axes, -1, -1), out_axes=-1)(agent, x0, history)
    times = (jnp.arange(horizon), jnp.moveaxis(instances.contexts, 0, -1))
    _, trace = jax.lax.scan(step_all, (x0, states), times)
    actions, info = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), trace)
    hitting, switching = jax.vmap(problem.costs)(instances.x0, actions, instances.contexts)
    return Trajectory(actions, hitting, switching, info.advice, info.converged, info)


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

    The agent's state is made anew every day on the rolling history, the last H contexts before that day (none if `history`
    is not given). Returns the runs with a leading day axis, and the x0 of each day.
    """
    first = Instance(x0, days[0], history)
    problem.check(first)
    refuse_infeasible_promises(agent, problem, first.dim)
    days = jnp.asarray(days, first.x0.dtype)
    return _rollout_days(agent, problem, first, days, Exact() if forecaster is None else forecaster, key)


@eqx.filter_jit
def _rollout_days(agent, problem, first, days, forecaster, key):
    seen = first.past.shape[0]

    def one_day(carry, today):
        start, past = carry
        contexts, day = today
        noise = None if key is None else jax.random.fold_in(key, day)
        run = _rollout(agent, problem, Instance(start, contexts, past), forecaster, noise)
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

    Like `rollout_days` it returns the runs with a leading day axis, and the x0 of each day. What promises for a day, or was
    trained on days, goes in `agents.Renewed` or `agents.Restarting`.
    """
    first = Instance(x0, days[0], history)
    n, T, q = days.shape
    whole = Instance(first.x0, jnp.asarray(days, first.x0.dtype).reshape(n * T, q), first.history)
    run = rollout(agent, problem, whole, forecaster, key)
    runs = jax.tree.map(lambda leaf: leaf.reshape(n, T, *leaf.shape[1:]), run)
    return runs, jnp.concatenate([first.x0[None], runs.actions[:-1, -1]])
