"""Run an agent through one instance, a batch of them, or day after day."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ecl2o.agents import AbstractAgent, Periodic, Start, walk_agents
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.timed import follow_timing
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractCausalForecaster, AbstractClairvoyantForecaster, AbstractForecaster, Exact
from ecl2o.problem import AbstractProblem, Instance, Problem, Trajectory
from ecl2o.problem.arrays import LEAST_STEPS, AnyArray, cast_floats, pad_rows, round_up, to_device, to_host
from ecl2o.running.stepper import Stepper, StepperState
from ecl2o.running.stored_jit import stored_jit
from ecl2o.solvers.single_kernel_jit import scan_some

Tree = TypeVar("Tree")


def vmap_unless_single(
    function: Callable[..., Any], in_axes: tuple[int | None, ...] | None = None
) -> Callable[..., Any]:
    """Map a function over leading axes as `jax.vmap` does, but call it directly on an axis of one, which traces faster.

    Args:
        function: Of trees of arrays.
        in_axes: 0 for each argument with the axis, None for those without it. Default: all have it.
    """

    def run(*arguments: Any) -> Any:
        axes = (0,) * len(arguments) if in_axes is None else in_axes
        along = [tree for tree, axis in zip(arguments, axes, strict=True) if axis is not None]
        if {leaf.shape[0] for leaf in jax.tree.leaves(along)} != {1}:
            return jax.vmap(function, axes)(*arguments)
        alone = [
            tree if axis is None else jax.tree.map(lambda leaf: leaf[0], tree)
            for tree, axis in zip(arguments, axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), function(*alone))

    return run


def stack_trees(trees: Sequence[Tree], name: str = "trees") -> Tree:
    """Stack trees of one structure into one, with a leading axis on every array."""
    if len({jax.tree.structure(tree) for tree in trees}) > 1:
        raise ValueError(f"{name} must all have the same structure; they differ in more than their arrays.")
    return jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *trees)  # on the host: nothing to compile


def rollout(
    agent: AbstractAgent,
    problem: AbstractProblem,
    instance: Instance,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> Trajectory:
    """Run the agent through one instance.

    Works in the precision of `instance.x0`, and can be jitted, vmapped and differentiated.

    Args:
        agent: The agent to run.
        problem: Its costs and action set.
        instance: One instance; for a set use `jax.vmap`.
        forecaster: For agents with a lookahead. Default: `forecasters.Exact()`, which knows the future.
        key: For forecasters that draw noise. Default: None.

    Returns:
        Actions (T, d), costs (T,), and the agent's report on each step.

    Raises:
        ValueError: Problem, agent and instance do not fit each other, or a concrete value is out of range.

    >>> from ecl2o.agents import Greedy
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> run = rollout(Greedy(), problem, Instance(x0=[0.0], contexts=[[3.0], [3.0]]))
    >>> [round(float(x), 4) for x in run.actions.ravel()]
    [1.0, 1.6667]
    """
    _check(agent, problem, instance)
    return _rollout(agent, problem, instance, Exact() if forecaster is None else forecaster, key)


def _check_days(agent: AbstractAgent, problem: AbstractProblem, instance: Instance) -> None:
    """Check a run that is split by days, each of which starts from the last action of the day before."""
    if not isinstance(problem, Problem):
        raise NotApplicableError("days of a ControlProblem start from a state; use `rollout` with `Periodic` instead.")
    _check(agent, problem, instance)


def _check(agent: AbstractAgent, problem: AbstractProblem, instance: Instance) -> None:
    problem.check(instance)
    follow_timing(agent, problem).check(problem, Start(instance.x0, instance.past, instance.horizon))


@eqx.filter_jit
def _rollout(agent, problem, instance, forecaster, key):
    agent, problem, forecaster = cast_floats((agent, problem, forecaster), instance.x0.dtype)
    window = problem.timing.lookahead(agent.lookahead)
    stepper = Stepper(agent, problem, _prepare(forecaster, instance, window, key))
    state = stepper.init(Start(instance.x0, instance.past, instance.horizon))
    _, steps = jax.lax.scan(lambda state, context: stepper.step(state, context), state, instance.contexts)
    return Trajectory(steps.action, steps.hitting, steps.switching, steps.info.advice, steps.info.converged, steps.info)


def _prepare(forecaster, instance, window, key):
    if window == 0 or isinstance(forecaster, AbstractCausalForecaster):
        return forecaster
    if isinstance(forecaster, AbstractClairvoyantForecaster):
        return forecaster.prepare(instance.contexts, window, key)
    raise TypeError(f"forecaster must be a causal or clairvoyant forecaster, got {type(forecaster).__name__}.")


def rollout_batch(
    agent: AbstractAgent, problem: AbstractProblem, instances: Instance, agent_axes: PyTree[int | None] = None
) -> Trajectory:
    """Run the agent through a batch of instances, as `jax.vmap` of `rollout` does, but faster to train through.

    The map over instances is inside the loop over time, with the instance axis last: layers of a network become products of
    matrices, about twice as fast on a CPU, forward and backward. Agents with a lookahead take the map around the loop.

    Args:
        agent: The agent to run.
        problem: Its costs and action set.
        instances: With a leading axis: x0 (n, d), contexts (n, T, q), history (n, H, q).
        agent_axes: The axes of the agent's leaves that differ by instance, as in `jax.vmap`. Default: None, none do.

    Returns:
        The runs, with a leading axis.

    Raises:
        ValueError: A concrete value of the agent is out of range.

    >>> from ecl2o.agents import Greedy
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> rollout_batch(
    ...     Greedy(), problem, Instance(x0=[[0.0], [1.0]], contexts=[[[3.0]], [[4.0]]])
    ... ).actions.ravel().tolist()
    [1.0, 2.0]
    """
    if agent.lookahead:
        return jax.vmap(lambda a, s: rollout(a, problem, s), in_axes=(agent_axes, 0))(agent, instances)
    agent, problem = cast_floats((agent, problem), instances.x0.dtype)

    # The instances share one clock, (step, horizon); each has its own (action, agent state).
    def split(state):
        return (state.action, state.agent), (state.step, state.horizon)

    def begin(agent, x0, history):
        return split(Stepper(agent, problem).init(Start(x0, history, instances.horizon)))

    def advance(agent, own, clock, context):
        before = StepperState(own[0], clock[0], clock[1], own[1], None)
        state, step = Stepper(agent, problem).step(before, context)
        return *split(state), (step.action, step.info)

    def step_all(states, contexts):
        along = jax.vmap(advance, in_axes=(agent_axes, -1, None, -1), out_axes=(-1, None, -1))
        own, clock, record = along(agent, states[0], states[1], contexts)
        return (own, clock), record

    begin_all = jax.vmap(begin, in_axes=(agent_axes, -1, -1), out_axes=(-1, None))
    states = begin_all(agent, instances.x0.T, jnp.moveaxis(instances.past, 0, -1))
    _, trace = jax.lax.scan(step_all, states, jnp.moveaxis(instances.contexts, 0, -1))
    actions, info = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), trace)
    # Costs are computed at once: inside the loop they would be differentiated at each step.
    hitting, switching = jax.vmap(problem.costs)(instances.x0, actions, instances.contexts)
    return Trajectory(actions, hitting, switching, info.advice, info.converged, info)


def rollout_days(
    agent: AbstractAgent,
    problem: AbstractProblem,
    x0: Float[AnyArray, " d"],
    days: Float[AnyArray, "n T q"],
    history: Float[AnyArray, "H q"] | None = None,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """Run an agent day after day; each day starts from its own last action of the day before.

    The agent restarts every day on the last H contexts before that day.

    Args:
        agent: The agent to run.
        problem: Its costs and action set.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.
        history: (H, q), the contexts before the first day. Default: None, there are none on any day.
        forecaster: For agents with a lookahead. Default: `forecasters.Exact()`, which knows the day's future.
        key: For forecasters that draw noise; folded with the number of each day. Default: None.

    Returns:
        The runs with a leading day axis, and the x0 of each day (n, d).

    Raises:
        ValueError: Problem, agent and days do not fit each other, or a concrete value is out of range.

    >>> from ecl2o.agents import Greedy
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> runs, starts = rollout_days(Greedy(), problem, jnp.zeros(1), jnp.full((2, 1, 1), 3.0))
    >>> starts.ravel().tolist()
    [0.0, 1.0]
    """
    first = Instance(x0, to_host(days)[0], history)
    _check_days(agent, problem, first)
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
        return (problem.end_state(run.actions, contexts), past), (run, start)

    _, (runs, starts) = jax.lax.scan(one_day, (first.x0, first.past), (days, jnp.arange(days.shape[0])))
    return runs, starts


def stream_days(
    agent: AbstractAgent,
    problem: AbstractProblem,
    x0: Float[AnyArray, " d"],
    days: Float[AnyArray, "n T q"],
    history: Float[AnyArray, "H q"] | None = None,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """Run an agent through consecutive days as one long run, as the streaming runner does.

    Wrap an agent that promises for a day, or was trained on days, in `agents.Periodic`.

    Args:
        agent: See `rollout_days`.
        problem: See `rollout_days`.
        x0: (d,), the action before the first day.
        days: (n, T, q), the contexts.
        history: (H, q), the contexts before the first day. Default: none.
        forecaster: See `rollout`. Default: exact forecasts, if the agent looks ahead.
        key: For forecasters that draw; one for all days. Default: none.

    Returns:
        As `rollout_days`; the runs are in NumPy unless JAX is tracing. Series of other lengths run the same program.
    """
    n, T, q = days.shape
    whole = Instance(x0, to_host(days).reshape(n * T, q), history)
    _check_days(agent, problem, whole)
    assert isinstance(problem, Problem)
    tracing = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((agent, problem, whole, forecaster)))
    if not tracing and (agent.lookahead == 0 or isinstance(forecaster, AbstractCausalForecaster)):
        with contextlib.suppress(NotApplicableError):  # it needs a horizon, which is a number inside this program
            return split_by_day(problem, whole, _stream_padded(agent, problem, whole, forecaster), n)
    return _stream_days(agent, problem, whole, n, forecaster, key)


@eqx.filter_jit
def _stream_days(agent, problem, whole, n, forecaster, key):
    return split_by_day(problem, whole, rollout(agent, problem, whole, forecaster, key), n)


def split_by_day(
    problem: Problem, whole: Instance, run: Trajectory, days: int
) -> tuple[Trajectory, Float[Array, "n s"]]:
    """Split a run through an instance into its days; return them and the x0 of each."""
    runs = jax.tree.map(lambda leaf: leaf.reshape(days, -1, *leaf.shape[1:]), run)
    xp: Any = np if isinstance(runs.actions, np.ndarray) else jnp
    x0, contexts = (to_host(each) if xp is np else each for each in (whole.x0, whole.contexts))
    ends = problem.end_state(runs.actions, contexts.reshape(days, -1, contexts.shape[-1]))
    return runs, to_device(xp.concatenate([x0[None], ends[:-1]]))


def _stream_padded(agent, problem, whole, forecaster) -> Trajectory:
    """Run through an instance by a program for any number of steps, and any history of `OnlineRidge`, up to `round_up` of it."""
    past, unseen = to_host(whole.past), None
    if _takes_padded_history(agent):
        unseen = np.array(round_up(len(past), LEAST_STEPS) - len(past))
        past = np.concatenate([np.full((unseen, past.shape[1]), np.nan, past.dtype), past])
    forecaster = forecaster if agent.lookahead else None
    contexts = pad_rows(whole.contexts, LEAST_STEPS)
    run = _stream(agent, problem, whole.x0, past, unseen, contexts, np.array(whole.horizon), forecaster)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: whole.horizon], run)


def _takes_padded_history(agent: AbstractAgent) -> bool:
    """Return whether the regression alone reads the history: agents of users may, and restarts on the history do."""
    inside = list(walk_agents(agent))
    others = any(not type(each).__module__.startswith("ecl2o.") or each.lookahead for each in inside)
    restarts = any(isinstance(each, Periodic) for each in inside)
    return any(isinstance(each, OnlineRidge) for each in inside) and not others and not restarts


@stored_jit
def _stream(agent, problem, x0, past, unseen, contexts, steps, forecaster) -> Trajectory:
    agent, problem, forecaster = cast_floats((agent, problem, forecaster), x0.dtype)
    stepper = Stepper(agent, problem, forecaster)
    state = stepper.init(Start(x0, past, unseen=unseen))._replace(horizon=steps)
    record = scan_some(lambda state, context: stepper.step(state, context), state, contexts, steps)[1]
    info = record.info
    return Trajectory(record.action, record.hitting, record.switching, info.advice, info.converged, info)
