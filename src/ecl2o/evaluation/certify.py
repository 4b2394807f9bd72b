"""How bad can it get: the worst-case ratio of an agent, exactly where it is linear, from below elsewhere."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents import AbstractAgent, Promise, Reference
from ecl2o.evaluation.adversary import make_theorem_adversary, measure_ratio, search_worst_case, theorem_applies
from ecl2o.offline import oracle
from ecl2o.problem import AbstractQuadraticCost, CurvedTracking, Instance, Mahalanobis, Problem
from ecl2o.problem.arrays import AnyArray, to_device
from ecl2o.running import rollout

_EXACT = 1e-8  # how well an exact ratio is realised and bounded, relative
_SCALES = 1.0, 1e6  # at which it is played: what is linear has the same ratio at any
_MANY_TIMES = 100.0  # the least curvature: how far curvatures without an end are searched

Region = tuple[Any, Any]  # numbers or arrays that broadcast to (T, q)


class Certificate(eqx.Module):
    """A worst-case ratio and the instance that has it.

    Args:
        ratio: of the agent's cost to the oracle's. The instance was played and has it.
        instance: (T, q) contexts from x0 = 0.
        exact: whether no instance of this horizon with x0 = 0 has a larger ratio. Otherwise the ratio is a lower bound of
            the worst.
        promise: what the agent promises, if it is a guard: a bound from above. Default: nothing.
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
    """The worst ratio of cost to the oracle's over all instances of `horizon` steps that start at x0 = 0.

    Where the agent is linear by structure (`AbstractAgent.is_linear`), on quadratics of constant curvature without bounds, the
    answer is exact: both costs are quadratic forms of the contexts, and the ratio is their largest generalized eigenvalue. It
    is said only if its instance, played, has that ratio, and if the forms confirm that none has more. In any other case it is
    the worst found by projected gradient ascent, `steps` steps from each of `starts` places, over contexts between the two
    bounds `contexts`: a lower bound, as the instance shows. By default these are -1 and 1, or those within which the agent's
    promise holds; the curvatures of `CurvedTracking` lie in its range, up to 100 times the least one where it has no end.
    Against a promise relative to the optimum, ascent starts from the adversary of the theorem behind it as well. An agent that
    moves where standing still is free has an infinite ratio.

    Agents that ask for forecasts get exact ones. Runs in double precision whatever the global setting. The action x0 = 0 is
    moved into the action set if need be. `context_dim` is the number q of numbers in a context where it is not known from the
    costs.

    Args:
        agent: whose worst case is wanted.
        problem: what is decided.
        horizon: T, the number of steps.
        contexts: (low, high), each (q,) or one number, between which the search looks. Default: see above.
        context_dim: q, how many numbers a context has. Default: as many as an action; for `CurvedTracking` one more.
        key: for the places where the search starts. Default: a fixed one.
        starts: how many places. Default: 8.
        steps: of gradient ascent from each. Default: 400.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> print(certify(ROBD(), Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1)), horizon=24))
    worst-case ratio exactly 1.729844 over 24 steps
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    dim = problem.Q.shape[0] if isinstance(problem.switching, Mahalanobis) else 1  # movement by distance: on a line
    with jax.enable_x64(True):
        x0 = problem.actions.project(to_device(np.zeros(dim))).astype(jnp.float64)
        if contexts is None and problem.is_linear_quadratic and agent.is_linear(problem):
            certificate = _exact_certificate(agent, problem, x0, horizon)
            if certificate is not None:
                return certificate
        promise = agent.promise(problem)
        if context_dim is None:
            context_dim = dim + isinstance(problem.hitting, CurvedTracking)
        region = _default_region(problem, promise, dim, context_dim) if contexts is None else contexts
        low, high = (to_device(np.broadcast_to(np.asarray(end, np.float64), (horizon, context_dim))) for end in region)
        first = _drawn(jax.random.key(0) if key is None else key, starts, low, high)
        if promise is not None and theorem_applies(promise, problem):
            ratio = jnp.asarray(promise.ratio, jnp.float64)
            first = jnp.concatenate([make_theorem_adversary(agent, problem, x0, ratio, low, high), first])
        ratio, instance = search_worst_case(agent, problem, x0, low, high, first, steps, _ceiling(promise, horizon))
        return Certificate(ratio, instance, exact=False, promise=promise)


@partial(jax.jit, static_argnames="starts")
def _drawn(key: PRNGKeyArray, starts: int, low: Float[Array, "T q"], high: Float[Array, "T q"]):
    return low + jax.random.uniform(key, (starts, *low.shape), low.dtype) * (high - low)


def _default_region(problem: Problem, promise: Promise | None, dim: int, context_dim: int) -> Region:
    low, high = np.full(context_dim, -1.0), np.full(context_dim, 1.0)
    if promise is not None and promise.contexts is not None:
        low[:dim], high[:dim] = np.transpose(promise.contexts)
    if isinstance(problem.hitting, CurvedTracking):
        least, greatest = problem.hitting.minimum, problem.hitting.maximum
        low[-1], high[-1] = least, _MANY_TIMES * least if greatest is None else greatest
    return low, high


def _ceiling(promise: Promise | None, horizon: int) -> float:
    """The largest ratio to the optimum that a promise allows over a run of this horizon."""
    if promise is None or promise.reference is not Reference.OPTIMUM or promise.allowance > 0:
        return float("inf")
    return promise.ratio if promise.period is None or promise.period >= horizon else float("inf")


def _exact_certificate(
    agent: AbstractAgent, problem: Problem, x0: Float[Array, " d"], horizon: int
) -> Certificate | None:
    """The largest eigenvalue of a linear agent's cost relative to the oracle's; None where rounding stands in the way.

    From below it is shown by playing the eigenvector, small and large, from above by a Cholesky factor of (1 + 1e-8) ratio times
    the oracle's form less the agent's, which would not be there if some contexts had a larger ratio.
    """
    units = np.eye(horizon * x0.shape[0]).reshape(-1, horizon, x0.shape[0])
    agent_bill = _bill_form(problem, np.asarray(_actions_of(agent, problem, x0, units)))
    oracle_bill = _bill_form(problem, np.asarray(_best_actions(problem, x0, units)))
    last = agent_bill.shape[0] - 1
    try:
        (ratio,), direction = scipy.linalg.eigh(agent_bill, oracle_bill, subset_by_index=(last, last))
        np.linalg.cholesky((1 + _EXACT) * ratio * oracle_bill - agent_bill)
    except (np.linalg.LinAlgError, ValueError):  # not positive definite, not finite
        return None
    contexts = direction.reshape(horizon, x0.shape[0])
    contexts /= np.abs(contexts).max()
    realised = [measure_ratio(agent, problem, Instance(x0, scale * contexts)) for scale in _SCALES]
    if max(abs(np.array(realised) / ratio - 1)) > _EXACT:
        return None
    return Certificate(float(ratio), Instance(x0, contexts), exact=True)


@eqx.filter_jit
def _actions_of(agent: AbstractAgent, problem: Problem, x0: Float[Array, " d"], sets: Float[AnyArray, "n T d"]):
    return jax.vmap(lambda contexts: rollout(agent, problem, Instance(x0, contexts)).actions)(sets)


@eqx.filter_jit
def _best_actions(problem: Problem, x0: Float[Array, " d"], sets: Float[AnyArray, "n T d"]):
    return jax.vmap(lambda contexts: oracle(problem, Instance(x0, contexts)).actions)(sets)


def _bill_form(problem: Problem, responses: Float[np.ndarray, "n T d"]) -> Float[np.ndarray, "n n"]:
    """M with cost = y' M y for actions K y: 1/2 (K - I)' A (K - I) + (D K)' Q (D K), D the difference in time.

    The columns of K are the responses, what is played on contexts that are 1 in one place and 0 elsewhere.
    """
    _, T, d = responses.shape
    K = np.moveaxis(responses, 0, -1)
    hitting = problem.hitting
    assert isinstance(hitting, AbstractQuadraticCost)
    A, Q = (np.asarray(matrix, np.float64) for matrix in (hitting.curvature(None, d), problem.Q))
    miss, move = K - np.eye(T * d).reshape(T, d, T * d), np.diff(K, axis=0, prepend=0.0)
    return 0.5 * np.einsum("tin,ij,tjm->nm", miss, A, miss) + np.einsum("tin,ij,tjm->nm", move, Q, move)
