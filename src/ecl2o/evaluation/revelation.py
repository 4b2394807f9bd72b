"""The adversary in the proof of the revelation theorem, who drives a guard to its promise (docs/guarantees.md).

First come contexts that lead the optimum away from x0. Then, all at once, the one future that is worst for where the agent
stands: every later context is n, which maximises 1/2 |x - n|^2_S - L/2 |n - m|^2_H.
"""

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Promise
from ecl2o.planning.work_function import WorkFunction, hitting_form
from ecl2o.problem import AbstractQuadraticCost, Instance, Mahalanobis, Problem
from ecl2o.running import rollout
from ecl2o.theory import future_stiffness, worst_future

_STEPS_AWAY = (1, 4)  # for how long the optimum is led away before the future is revealed

Contexts = Float[Array, "T q"]


def concerns(promise: Promise | None, problem: Problem) -> bool:
    """Whether the theorem speaks of this promise: one relative to the optimum, of a quadratic problem."""
    quadratic = isinstance(problem.hitting, AbstractQuadraticCost) and isinstance(problem.switching, Mahalanobis)
    return quadratic and promise is not None and promise.reference == "the optimum"


def revealed_futures(
    agent: AbstractAgent,
    problem: Problem,
    x0: Float[Array, " d"],
    promise: Promise,
    low: Contexts,
    high: Contexts,
) -> list[Contexts]:
    """The adversary's contexts against this agent, kept between `low` and `high`.

    The optimum is led away both ways, in the direction in which the future outweighs the past most. What follows the centre in
    a context, its curvature, is as small as allowed until then and as large as allowed from then on.
    """
    T, d = low.shape[0], x0.shape[0]
    G, ratio = (2 * problem.Q).astype(x0.dtype), jnp.asarray(promise.ratio, x0.dtype)

    def contexts(centre, rest):
        return jnp.clip(jnp.concatenate([jnp.broadcast_to(centre, (T, d)), rest[:, d:]], axis=1), low, high)

    A_early, A_late = (hitting_form(problem, contexts(x0, rest)[0], d)[0] for rest in (low, high))
    S = future_stiffness(A_late, G, T)
    away = _direction(S[0], A_early + G) * jnp.max(high[:, :d] - low[:, :d]) / 4
    found = []
    for early in (contexts(x0 + away, low), contexts(x0 - away, low)):
        actions = rollout(agent, problem, Instance(x0, early)).actions
        for steps in (steps for steps in _STEPS_AWAY if steps < T):
            P, centre = _past(problem, x0, early[:steps])
            n = centre + worst_future(actions[steps - 1] - centre, P, S[steps - 1], ratio)
            found.append(jnp.concatenate([early[:steps], contexts(n, high)[steps:]]))
    return found


def _direction(S: Float[Array, "d d"], P: Float[Array, "d d"]) -> Float[Array, " d"]:
    """Where S outweighs P most, the largest entry being 1."""
    direction = scipy.linalg.eigh(np.asarray(S), np.asarray(P))[1][:, -1]
    return jnp.asarray(direction / np.abs(direction).max())


def _past(
    problem: Problem, x0: Float[Array, " d"], contexts: Contexts
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """(P_t, m_t) of the work function after these contexts."""
    G = (2 * problem.Q).astype(x0.dtype)
    prefix = WorkFunction.at(x0, G).with_context(*hitting_form(problem, contexts[0], x0.shape[0]))
    for context in contexts[1:]:
        prefix = prefix.moved(G).with_context(*hitting_form(problem, context, x0.shape[0]))
    return prefix.P, prefix.centre
