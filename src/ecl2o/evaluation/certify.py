"""How bad can it get: the worst-case ratio of an agent, exactly where it is linear, from below elsewhere."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents import AbstractAgent
from ecl2o.evaluation.metrics import cost_ratios
from ecl2o.offline import oracle
from ecl2o.problem import AbstractQuadraticCost, Instance, Problem
from ecl2o.running import rollout

_LINEARITY_TOLERANCE = 1e-9
_ASCENT_STEPS = 400
_ASCENT_RATE = 0.05

Region = tuple[Float[Array, "*any"], Float[Array, "*any"]]


class Certificate(eqx.Module):
    """A worst-case ratio and the instance that has it.

    `exact`: no instance of this horizon with x0 = 0 has a larger ratio. Otherwise the ratio is a lower bound of the worst.
    """

    ratio: float
    instance: Instance
    exact: bool

    def __str__(self) -> str:
        kind = "exactly" if self.exact else "at least"
        return f"worst-case ratio {kind} {self.ratio:.6f} over {self.instance.horizon} steps"


def certify(
    agent: AbstractAgent,
    problem: Problem,
    horizon: int,
    *,
    contexts: Region | None = None,
    context_dim: int | None = None,
    key: PRNGKeyArray | None = None,
    starts: int = 8,
) -> Certificate:
    """The worst ratio of cost to the oracle's over all instances of `horizon` steps that start at x0 = 0.

    Where costs are quadratic with constant curvature and unbounded, and the agent turns out to be linear in the contexts,
    the answer is exact: both bills are quadratic forms of the contexts, and the ratio is their largest generalized
    eigenvalue. For any other agent or problem it is the best found by projected gradient ascent from several starts, over
    contexts between the two bounds `contexts` (by default -1 and 1): a certified lower bound, as the instance shows.

    Runs in double precision whatever the global setting. The action x0 = 0 is moved into the action set if need be.
    `context_dim` is the number q of numbers in a context where that is not the dimension of actions.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> print(certify(ROBD(), Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1)), horizon=24))
    worst-case ratio exactly 1.729844 over 24 steps
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    dim = problem.Q.shape[0]
    context_dim = dim if context_dim is None else context_dim
    with jax.enable_x64(True):
        x0 = problem.actions.project(jnp.zeros((dim,), jnp.float64)).astype(jnp.float64)
        if contexts is None and _has_quadratic_bill(problem):
            linear_map = _verified_linear_map(agent, problem, x0, horizon)
            if linear_map is not None:
                return _exact_certificate(problem, x0, linear_map)
        key = jax.random.key(0) if key is None else key
        low, high = (-1.0, 1.0) if contexts is None else contexts
        shape = (horizon, context_dim)
        low, high = (jnp.broadcast_to(jnp.asarray(bound, jnp.float64), shape) for bound in (low, high))
        return _searched_certificate(agent, problem, x0, low, high, key, starts)


def _has_quadratic_bill(problem: Problem) -> bool:
    hitting = problem.hitting
    return problem.is_unbounded_quadratic and isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature


def _verified_linear_map(agent, problem, x0, horizon) -> Float[np.ndarray, "T d T d"] | None:
    """K with actions = K contexts, by differentiation, or None where the roll-out is not that map."""
    shape = (horizon, x0.shape[0])

    def actions(contexts):
        return rollout(agent, problem, Instance(x0, contexts)).actions

    K = jax.jacobian(actions)(jnp.zeros(shape, jnp.float64))
    trials = jax.random.normal(jax.random.key(7), (6, *shape), jnp.float64)
    trials = trials * jnp.array([1e-3, 1.0, 1.0, -1.0, 30.0, 1e3])[:, None, None]
    for contexts in (jnp.zeros(shape, jnp.float64), *trials):
        miss = jnp.abs(actions(contexts) - jnp.einsum("tisj,sj->ti", K, contexts)).max()
        if not miss <= _LINEARITY_TOLERANCE * jnp.abs(contexts).max():
            return None
    return np.asarray(K)


def _bill_form(problem: Problem, K: Float[np.ndarray, "T d T d"]) -> Float[np.ndarray, "n n"]:
    """M with cost = y' M y for actions K y: 1/2 (K - I)' A (K - I) + (D K)' Q (D K), D the difference in time."""
    T, d = K.shape[:2]
    hitting = problem.hitting
    assert isinstance(hitting, AbstractQuadraticCost)
    A, Q = (np.asarray(matrix, np.float64) for matrix in (hitting.curvature(None, d), problem.Q))
    identity = np.eye(T * d).reshape(T, d, T * d)
    flat = K.reshape(T, d, T * d)
    miss, move = flat - identity, np.diff(flat, axis=0, prepend=0.0)
    return 0.5 * np.einsum("tin,ij,tjm->nm", miss, A, miss) + np.einsum("tin,ij,tjm->nm", move, Q, move)


def _exact_certificate(problem: Problem, x0, K) -> Certificate:
    T, d = K.shape[:2]
    best = jax.jacobian(lambda contexts: oracle(problem, Instance(x0, contexts)).actions)(
        jnp.zeros((T, d), jnp.float64)
    )
    agent_bill, oracle_bill = _bill_form(problem, K), _bill_form(problem, np.asarray(best))
    last = T * d - 1
    ratio, direction = scipy.linalg.eigh(agent_bill, oracle_bill, subset_by_index=(last, last))
    contexts = direction[:, 0].reshape(T, d)
    return Certificate(float(ratio[0]), Instance(x0, contexts / np.abs(contexts).max()), exact=True)


def _searched_certificate(agent, problem, x0, low, high, key, starts) -> Certificate:
    def log_ratio(contexts):
        instance = Instance(x0, contexts)
        return jnp.log(rollout(agent, problem, instance).cost) - jnp.log(oracle(problem, instance).cost)

    draws = jax.random.uniform(key, (starts, *low.shape), jnp.float64)
    found, _ = jax.jit(jax.vmap(_ascend(log_ratio, low, high)))(low + draws * (high - low))
    instances = [Instance(x0, contexts) for contexts in found]
    ratios = [float(cost_ratios(rollout(agent, problem, s).cost, oracle(problem, s).cost)) for s in instances]
    worst = int(np.nanargmax(ratios))
    return Certificate(ratios[worst], instances[worst], exact=False)


def _ascend(score: Callable, low, high) -> Callable:
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
        (_, _, best, best_score), _ = jax.lax.scan(climb, carry, None, length=_ASCENT_STEPS)
        return best, best_score

    return ascend
