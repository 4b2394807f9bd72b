"""The search for contexts on which an agent does badly: what is found is a lower bound of its worst case.

The adversary in the proof of the revelation theorem, who drives a guard to its promise (docs/guarantees.md).

First come contexts that lead the optimum away from x0. Then, all at once, the one future that is worst for where the agent
stands: every later context is n, which maximises 1/2 |x - n|^2_S - L/2 |n - m|^2_H.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Promise, Reference
from ecl2o.evaluation.metrics import cost_ratio, drop_rounding_costs
from ecl2o.offline import oracle
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from ecl2o.problem import AbstractQuadraticCost, Instance, Mahalanobis, Problem
from ecl2o.running import rollout
from ecl2o.theory import future_stiffness, worst_future

_ASCENT_RATE = 0.05
_REACHED = 1e-12  # a promise is taken to be reached, relative


def measure_ratio(agent: AbstractAgent, problem: Problem, instance: Instance) -> float:
    """Cost over the oracle's cost, both played."""
    costs = rollout(agent, problem, instance).cost, oracle(problem, instance).cost
    return float(_ratio_of(costs, problem, instance))


@eqx.filter_jit
def _ratio_of(costs: tuple[Float[Array, ""], Float[Array, ""]], problem: Problem, instance: Instance):
    return cost_ratio(*drop_rounding_costs(jnp.stack(costs), problem, instance.x0, instance.contexts))


def search_worst_case(
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

    Before that, contexts equal to x0, where the oracle pays nothing: an agent that moves there has an infinite ratio. Where a
    start has the largest ratio that there can be, the `ceiling`, there is nothing to search for.
    """
    here = np.asarray(x0)
    if x0.shape[0] == low.shape[1] and ((np.asarray(low) <= here) & (here <= np.asarray(high))).all():
        still = Instance(x0, np.broadcast_to(here, low.shape))
        if measure_ratio(agent, problem, still) == np.inf:
            return float(np.inf), still

    for contexts in np.asarray(starts) if ceiling < np.inf else ():
        ratio = measure_ratio(agent, problem, Instance(x0, contexts))
        if ratio >= ceiling * (1 - _REACHED):
            return ratio, Instance(x0, contexts)

    found, scores = map(np.asarray, _ascend_from_all(agent, problem, x0, low, high, starts, steps))
    if not (scores > -np.inf).any():
        raise ValueError(f"{type(agent).__name__} has no finite cost on any of the {len(starts)} instances tried.")
    instance = Instance(x0, found[np.argmax(scores)])
    return measure_ratio(agent, problem, instance), instance


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


_STEPS_AWAY = (1, 4)  # for how long the optimum is led away before the future is revealed

Contexts = Float[Array, "T q"]


def theorem_applies(promise: Promise | None, problem: Problem) -> bool:
    """Whether the theorem speaks of this promise: one relative to the optimum, of a quadratic problem."""
    quadratic = isinstance(problem.hitting, AbstractQuadraticCost) and isinstance(problem.switching, Mahalanobis)
    return quadratic and promise is not None and promise.reference is Reference.OPTIMUM


def make_theorem_adversary(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[Array, " d"],
    ratio: Float[Array, ""],
    low: Contexts,
    high: Contexts,
) -> Float[Array, "n T q"]:
    """The adversary's contexts against this agent, who promises this ratio, kept between `low` and `high`.

    The optimum is led away both ways, in the direction in which the future outweighs the past most. What follows the centre in
    a context, its curvature, is as small as allowed until then and as large as allowed from then on.
    """
    both_ways, S = _led_away(problem, x0, low, high)
    actions = [rollout(agent, problem, Instance(x0, early)).actions for early in both_ways]
    return _revealed(problem, x0, both_ways, actions, S, ratio, low, high)


def _around(centre: Float[Array, " d"], rest: Contexts, low: Contexts, high: Contexts) -> Contexts:
    """Contexts with this centre, the other numbers from `rest`."""
    d = centre.shape[0]
    return jnp.clip(rest.at[:, :d].set(centre), low, high)


@eqx.filter_jit
def _led_away(problem, x0, low, high) -> tuple[list[Contexts], Float[Array, "T d d"]]:
    """Contexts away from x0 either way; S_1..S_T."""
    T, d, G = low.shape[0], x0.shape[0], (2 * problem.Q).astype(x0.dtype)
    A_early, A_late = (quadratic_terms(problem, _around(x0, rest, low, high)[0], d)[0] for rest in (low, high))
    S = future_stiffness(A_late, G, T)
    away = _direction(S[0], A_early + G) * jnp.max(high[:, :d] - low[:, :d]) / 4
    return [_around(x0 + away, low, low, high), _around(x0 - away, low, low, high)], S


@eqx.filter_jit
def _revealed(problem, x0, both_ways, actions, S, ratio, low, high) -> Float[Array, "n T q"]:
    """Each of these, cut off after some steps by the future that is worst for who has played these actions."""
    found = [jnp.zeros((0, *low.shape), low.dtype)]
    for early, played in zip(both_ways, actions, strict=True):
        for steps in (steps for steps in _STEPS_AWAY if steps < low.shape[0]):
            P, centre = _past(problem, x0, early[:steps])
            n = centre + worst_future(played[steps - 1] - centre, P, S[steps - 1], ratio)
            found.append(jnp.concatenate([early[:steps], _around(n, high, low, high)[steps:]])[None])
    return jnp.concatenate(found)


def _direction(S: Float[Array, "d d"], P: Float[Array, "d d"]) -> Float[Array, " d"]:
    """Where S outweighs P most, the largest entry being 1 or -1."""
    if S.shape[0] == 1:
        return jnp.ones((1,), S.dtype)
    root = jnp.linalg.cholesky(P)
    half = jax.scipy.linalg.solve_triangular(root, S, lower=True)
    whole = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    longest = jnp.linalg.eigh(0.5 * (whole + whole.T))[1][:, -1]
    direction = jax.scipy.linalg.solve_triangular(root.T, longest)
    return direction / jnp.abs(direction).max()


def _past(
    problem: Problem, x0: Float[Array, " d"], contexts: Contexts
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """(P_t, m_t) of the work function after these contexts."""
    G = (2 * problem.Q).astype(x0.dtype)
    prefix = WorkFunction.from_start(x0, G).with_context(*quadratic_terms(problem, contexts[0], x0.shape[0]))
    for context in contexts[1:]:
        prefix = prefix.after_move(G).with_context(*quadratic_terms(problem, context, x0.shape[0]))
    return prefix.P, prefix.centre
