"""The worst-case ratio of an agent: exact if the agent is linear, a lower bound found by search otherwise.

The search starts from random contexts and, against a promise relative to the optimum, from the adversary of the theorem behind
it (docs/guarantees.md). Its first contexts lead the optimum away from x0. Then the worst future for the agent's position is
revealed: every later context is the n that maximises 1/2 |x - n|^2_S - L/2 |n - m|^2_H.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents import AbstractAgent, Promise, Reference
from ecl2o.agents.timed import follow_timing
from ecl2o.evaluation.metrics import cost_ratio, drop_rounding_costs
from ecl2o.offline import oracle
from ecl2o.planning.optimal_path import find_optimal_path
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from ecl2o.problem import Instance, Problem
from ecl2o.problem.arrays import AnyArray, to_device
from ecl2o.running import rollout
from ecl2o.solvers.small_dense import largest_ratio_at
from ecl2o.theory import future_stiffness, past_stiffness, worst_future

_EXACT = 1e-8  # relative accuracy of an exact ratio, played and bounded
_SCALES = 1.0, 1e6  # at which it is played: a linear agent has the same ratio at any
_MANY_TIMES = 100.0  # the range of curvatures without an upper end, in units of the least one
_ASCENT_RATE = 0.05
_REACHED = 1e-12  # relative distance at which a promise counts as reached
_STEPS_AWAY = (1, 4)  # steps that lead the optimum away before the future is revealed

Region = tuple[Any, Any]  # numbers or arrays that broadcast to (T, q)
Contexts = Float[Array, "T q"]


class Certificate(eqx.Module):
    """A worst-case ratio and the instance that has it.

    Args:
        ratio: The agent's cost over the oracle's, both played on the instance.
        instance: (T, q) contexts from x0 = 0.
        exact: True if no instance of this horizon with x0 = 0 has a larger ratio; False if the ratio is a lower bound.
        promise: The agent's promise, an upper bound. Default: None.
    """

    ratio: float
    instance: Instance
    exact: bool
    promise: Promise | None = None

    def __str__(self) -> str:
        kind = "exactly" if self.exact else "at least"
        promised = "" if self.promise is None else f"; promised: {self.promise}"
        return f"worst-case ratio {kind} {self.ratio:.6f} over {self.instance.horizon} steps{promised}"


def certify(
    agent: AbstractAgent,
    problem: Problem,
    horizon: int,
    *,
    contexts: Region | None = None,
    context_dim: int | None = None,
    key: PRNGKeyArray | None = None,
    starts: int = 8,
    steps: int = 400,
) -> Certificate:
    """Return the worst ratio to the optimum over all instances of `horizon` steps with x0 = 0.

    The result is exact for agents that are linear by structure (`AbstractAgent.is_linear`) on quadratics of constant curvature
    without bounds: both costs are quadratic forms of the contexts, and the ratio is their largest generalized eigenvalue. It is
    called exact only if its instance, played, has that ratio and the forms confirm that none has a larger one. Otherwise
    projected gradient ascent looks for the worst contexts, and the result is a lower bound. An agent that moves where standing
    still is free has an infinite ratio.

    Forecasts are exact. The computation is in double precision whatever the global setting. x0 = 0 is projected on the action
    set.

    Args:
        agent: The agent to certify.
        problem: Its costs and action set.
        horizon: T, the number of steps; at least 1.
        contexts: (low, high), each (q,) or one number, the region of the search. Default: None, -1 to 1, or the range that
            the agent's promise assumes; curvatures of `CurvedTracking` in its range, or up to 100 times the least one.
        context_dim: q. Default: None, as many as an action; for `CurvedTracking` one more.
        key: For the starts of the search. Default: None, a fixed one.
        starts: Number of random starts. Default: 8.
        steps: Steps of ascent from each. Default: 400.

    Returns:
        The ratio, the instance that has it, and whether it is exact.

    Raises:
        ValueError: `horizon` is below 1, or the agent has no finite cost on any instance tried.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> print(certify(ROBD(), Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1)), horizon=24))
    worst-case ratio exactly 1.729844 over 24 steps
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    dim = problem.switching.dim or 1  # movement by distance: on a line
    with jax.enable_x64(True):
        x0 = problem.actions.project(to_device(np.zeros(dim))).astype(jnp.float64)
        if contexts is None and problem.is_linear_quadratic and follow_timing(agent, problem).is_linear(problem):
            certificate = _exact_certificate(agent, problem, x0, horizon)
            if certificate is not None:
                return certificate
        promise = agent.promise(problem)
        if context_dim is None:
            context_dim = problem.hitting.context_size(dim)
        region = _default_region(problem, promise, dim, context_dim) if contexts is None else contexts
        low, high = (to_device(np.broadcast_to(np.asarray(end, np.float64), (horizon, context_dim))) for end in region)
        first = _draw_starts(jax.random.key(0) if key is None else key, starts, low, high)
        ceiling = float("inf")  # the largest ratio that the promises allow
        for each in () if promise is None else (promise, *promise.also):
            if each.reference is not Reference.OPTIMUM:
                continue
            if problem.switching.is_quadratic and (problem.hitting.is_quadratic or problem.hitting.tracks_context):
                ratio = jnp.asarray(each.ratio, jnp.float64)
                first = jnp.concatenate([_theorem_contexts(agent, problem, x0, ratio, low, high), first])
            if each.allowance == each.allowance_per_step == 0 and (each.period is None or each.period >= horizon):
                ceiling = min(ceiling, each.ratio)
        ratio, instance = _search(agent, problem, x0, low, high, first, steps, ceiling)
        return Certificate(ratio, instance, exact=False, promise=promise)


@partial(jax.jit, static_argnames="starts")
def _draw_starts(key: PRNGKeyArray, starts: int, low: Contexts, high: Contexts):
    return low + jax.random.uniform(key, (starts, *low.shape), low.dtype) * (high - low)


def _default_region(problem: Problem, promise: Promise | None, dim: int, context_dim: int) -> Region:
    low, high = np.full(context_dim, -1.0), np.full(context_dim, 1.0)
    if promise is not None and promise.contexts is not None:
        low[:dim], high[:dim] = np.transpose(promise.contexts)
    if problem.hitting.weight_range is not None:
        least, greatest = problem.hitting.weight_range
        low[dim], high[dim] = least, _MANY_TIMES * least if greatest is None else greatest
    return low, high


def _measure_ratio(agent: AbstractAgent, problem: Problem, instance: Instance) -> float:
    """Return the cost over the oracle's, both played."""
    costs = rollout(agent, problem, instance).cost, oracle(problem, instance).cost
    return float(_ratio_of(costs, problem, instance))


@eqx.filter_jit
def _ratio_of(costs: tuple[Float[Array, ""], Float[Array, ""]], problem: Problem, instance: Instance):
    return cost_ratio(*drop_rounding_costs(jnp.stack(costs), problem, instance.x0, instance.contexts))


# Exact ratios of linear agents.


def _exact_certificate(
    agent: AbstractAgent, problem: Problem, x0: Float[Array, " d"], horizon: int
) -> Certificate | None:
    """Return the largest eigenvalue of a linear agent's cost relative to the oracle's; None if rounding prevents a proof.

    The lower bound is the eigenvector, played small and large. The upper bound is a Cholesky factor of (1 + 1e-8) ratio times
    the oracle's form less the agent's, which does not exist if some contexts have a larger ratio.
    """
    units = np.eye(horizon * x0.shape[0]).reshape(-1, horizon, x0.shape[0])
    agent_form = _cost_form(problem, np.asarray(_actions_of(jax.tree_util.Partial(rollout, agent), problem, x0, units)))
    oracle_form = _cost_form(problem, np.asarray(_actions_of(oracle, problem, x0, units)))
    last = agent_form.shape[0] - 1
    from scipy.linalg import eigh  # a slow import, needed here only

    try:
        (ratio,), direction = eigh(agent_form, oracle_form, subset_by_index=(last, last))
        np.linalg.cholesky((1 + _EXACT) * ratio * oracle_form - agent_form)
    except (np.linalg.LinAlgError, ValueError):  # not positive definite, not finite
        return None
    contexts = direction.reshape(horizon, x0.shape[0])
    contexts /= np.abs(contexts).max()
    realised = [_measure_ratio(agent, problem, Instance(x0, scale * contexts)) for scale in _SCALES]
    if max(abs(np.array(realised) / ratio - 1)) > _EXACT:
        return None
    return Certificate(float(ratio), Instance(x0, contexts), exact=True)


@eqx.filter_jit
def _actions_of(run: Callable, problem: Problem, x0: Float[Array, " d"], sets: Float[AnyArray, "n T d"]):
    return jax.vmap(lambda contexts: run(problem, Instance(x0, contexts)).actions)(sets)


def _cost_form(problem: Problem, responses: Float[np.ndarray, "n T d"]) -> Float[np.ndarray, "n n"]:
    """Return M with cost = y' M y for actions K y: 1/2 (K - I)' A (K - I) + (D K)' Q (D K), D the difference in time.

    The columns of K are the responses: the actions on contexts that are 1 in one place and 0 elsewhere.
    """
    _, T, d = responses.shape
    K = np.moveaxis(responses, 0, -1)
    A, Q = (np.asarray(matrix, np.float64) for matrix in (problem.hitting.curvature(None, d), problem.Q))
    miss, move = K - np.eye(T * d).reshape(T, d, T * d), np.diff(K, axis=0, prepend=0.0)
    return 0.5 * np.einsum("tin,ij,tjm->nm", miss, A, miss) + np.einsum("tin,ij,tjm->nm", move, Q, move)


# Search for the worst contexts.


def _search(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[Array, " d"],
    low: Contexts,
    high: Contexts,
    starts: Float[Array, "n T q"],
    steps: int,
    ceiling: float,
) -> tuple[float, Instance]:
    """Return the largest ratio found between `low` and `high`, with its instance.

    Contexts equal to x0, where the oracle pays nothing, come first; then the starts, if one of them may have the largest
    possible ratio, `ceiling`; then ascent from each start.
    """
    here = np.asarray(x0)
    if x0.shape[0] == low.shape[1] and ((np.asarray(low) <= here) & (here <= np.asarray(high))).all():
        still = Instance(x0, np.broadcast_to(here, low.shape))
        if _measure_ratio(agent, problem, still) == np.inf:
            return float(np.inf), still

    for contexts in np.asarray(starts) if ceiling < np.inf else ():
        ratio = _measure_ratio(agent, problem, Instance(x0, contexts))
        if ratio >= ceiling * (1 - _REACHED):
            return ratio, Instance(x0, contexts)

    found, scores = map(np.asarray, _ascend_from_all(agent, problem, x0, low, high, starts, steps))
    if not (scores > -np.inf).any():
        raise ValueError(f"{type(agent).__name__} has no finite cost on any of the {len(starts)} instances tried.")
    instance = Instance(x0, found[np.argmax(scores)])
    return _measure_ratio(agent, problem, instance), instance


@eqx.filter_jit
def _ascend_from_all(agent, problem, x0, low, high, starts, steps):
    """Ascend from each start by projected Adam; return the best contexts on each way, and their log ratios."""
    width = jnp.where(high > low, high - low, 1.0)
    from optax import adam  # a slow import, needed here only

    optimizer = adam(_ASCENT_RATE)

    def log_ratio(contexts):
        instance = Instance(x0, contexts)
        return jnp.log(rollout(agent, problem, instance).cost) - jnp.log(oracle(problem, instance).cost)

    def climb(carry, _):
        contexts, memory, best, best_score = carry
        value, slope = jax.value_and_grad(log_ratio)(contexts)
        better = value > best_score  # false for NaN
        best, best_score = jnp.where(better, contexts, best), jnp.where(better, value, best_score)
        slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
        change, memory = optimizer.update(-slope * width, memory)
        return (jnp.clip(contexts + jnp.asarray(change) * width, low, high), memory, best, best_score), None

    def ascend(contexts):
        carry = (contexts, optimizer.init(contexts), contexts, jnp.asarray(-jnp.inf, contexts.dtype))
        (_, _, best, best_score), _ = jax.lax.scan(climb, carry, None, length=steps)
        return best, best_score

    return jax.vmap(ascend)(starts)


# The adversary of the theorem.


def _theorem_contexts(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[Array, " d"],
    ratio: Float[Array, ""],
    low: Contexts,
    high: Contexts,
) -> Float[Array, "n T q"]:
    """Return the adversary's contexts against an agent that promises this ratio, clipped to `low` and `high`.

    The optimum is led away both ways, in the direction in which the future outweighs the past most. Numbers after the centre
    of a context, its curvature, are as small as allowed until the future is revealed, and as large as allowed from then on.
    """
    both_ways, S = _lead_away(problem, x0, low, high)
    actions = [rollout(agent, problem, Instance(x0, early)).actions for early in both_ways]
    return _reveal(problem, x0, both_ways, actions, S, ratio, low, high)


def _with_centre(centre: Float[Array, " d"], rest: Contexts, low: Contexts, high: Contexts) -> Contexts:
    return jnp.clip(rest.at[:, : centre.shape[0]].set(centre), low, high)


@eqx.filter_jit
def _lead_away(problem, x0, low, high) -> tuple[list[Contexts], Float[Array, "T d d"]]:
    """Return contexts away from x0 either way, and S_1..S_T."""
    T, d, G = low.shape[0], x0.shape[0], (2 * problem.Q).astype(x0.dtype)
    A_early, A_late = problem.hitting.curvature_bounds(d)
    if problem.hitting.is_quadratic:
        A_early, A_late = (problem.hitting.curvature(_with_centre(x0, rest, low, high)[0], d) for rest in (low, high))
    S = future_stiffness(A_late, G, T)
    away = _direction(S[0], A_early + G) * jnp.max(high[:, :d] - low[:, :d]) / 4
    return [_with_centre(x0 + away, low, low, high), _with_centre(x0 - away, low, low, high)], S


@eqx.filter_jit
def _reveal(problem, x0, both_ways, actions, S, ratio, low, high) -> Float[Array, "n T q"]:
    """Cut each way off after some steps by the future that is worst for the actions played on it."""
    found = [jnp.zeros((0, *low.shape), low.dtype)]
    for early, played in zip(both_ways, actions, strict=True):
        for steps in (steps for steps in _STEPS_AWAY if steps < low.shape[0]):
            P, centre = _past(problem, x0, early[:steps])
            n = centre + worst_future(played[steps - 1] - centre, P, S[steps - 1], ratio)
            found.append(jnp.concatenate([early[:steps], _with_centre(n, high, low, high)[steps:]])[None])
    return jnp.concatenate(found)


def _direction(S: Float[Array, "d d"], P: Float[Array, "d d"]) -> Float[Array, " d"]:
    """Return the direction in which S outweighs P most; its largest entry is 1 or -1."""
    if S.shape[0] == 1:
        return jnp.ones((1,), S.dtype)
    _, direction = largest_ratio_at(S, P)
    return direction / jnp.abs(direction).max()


def _past(
    problem: Problem, x0: Float[Array, " d"], contexts: Contexts
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Return (P_t, m_t) of the work function after these contexts; if f is not quadratic, its least curvature and minimiser."""
    G = (2 * problem.Q).astype(x0.dtype)
    if not problem.hitting.is_quadratic:
        least = problem.hitting.curvature_bounds(x0.shape[0])[0]
        return past_stiffness(least, G, len(contexts))[-1], find_optimal_path(problem, x0, contexts).actions[-1]
    prefix = WorkFunction.from_start(x0, G).with_context(*quadratic_terms(problem, contexts[0], x0.shape[0]))
    for context in contexts[1:]:
        prefix = prefix.after_move(G).with_context(*quadratic_terms(problem, context, x0.shape[0]))
    return prefix.P, prefix.centre
