"""A problem whose curvature changes over time, on which the worst-case bounds are nearly attained (erratum E21).

With constant curvature m, R-OBD's exact ratio is 1 + r < 2, far below its bound. The bound needs hitting costs that are mild
while it does not pay to move and severe when it is too late. The plainest such instance has a closed form:

Start at x_0 = 0. For T - 1 steps the centre is 0 and the curvature m; R-OBD, like every agent that follows the contexts,
stays and pays nothing. Then the centre is 1 and the curvature k is large: it pays about beta/2 at once. Who knows the
future drifts: the work function of the first steps is p_t x^2/2 with p_t = m + beta p_{t-1} / (beta + p_{t-1}) (p_0 infinite),
which tends to m CR, CR = (1 + sqrt(1 + 4 beta/m))/2, and the move to 1 costs p beta / (p + beta) / 2 -> m (CR - 1)/2. The ratio
tends to beta / (m (CR - 1)) = CR, as CR (CR - 1) = beta/m. Playing both signs of the last centre, no deterministic agent can
do better, so R-OBD's bound is the best one.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ecl2o.agents import AbstractAgent
from ecl2o.evaluation import Certificate, certify
from ecl2o.problem import CurvedTracking, Instance, Mahalanobis, Problem

# Beyond this, a hitting cost is as good as a constraint (to 0.1 %), and solves are still accurate.
LARGEST_CURVATURE = 1e4


def varying_curvature_problem(m: float = 1.0, beta: float = 10.0, dim: int = 1) -> Problem:
    """Costs k_t/2 |x - v_t|^2 with contexts (v_t, k_t), k_t >= m, and c = beta/2 |x - z|^2.

    >>> problem = varying_curvature_problem()
    >>> float(problem.m), float(problem.beta)
    (1.0, 10.0)
    """
    return Problem(CurvedTracking(minimum=m), Mahalanobis.isotropic(alpha=beta, dim=dim))


def make_late_demand(
    problem: Problem, horizon: int, curvature: float = LARGEST_CURVATURE, sign: float = 1.0
) -> Instance:
    """Calm at 0, then one severe demand at `sign` in the first coordinate: R-OBD's worst instance as the horizon grows."""
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    dim, m = problem.Q.shape[0], np.asarray(problem.m)
    contexts = np.zeros((horizon, dim + 1), m.dtype)
    contexts[:, -1] = m
    contexts[-1, 0], contexts[-1, -1] = sign, curvature
    return Instance(np.zeros(dim, m.dtype), contexts)


def late_demand_optimum(m: float, beta: float, horizon: int, curvature: float = LARGEST_CURVATURE) -> float:
    """What the oracle pays on `make_late_demand`: half of the harmonic sum of p, beta and the last curvature.

    >>> round(late_demand_optimum(1.0, 10.0, horizon=200, curvature=1e12), 6)  # m (CR - 1) / 2
    1.350781
    """
    p = math.inf
    for _ in range(horizon - 1):
        p = m + 1 / (1 / beta + 1 / p)
    return 0.5 / (1 / p + 1 / beta + 1 / curvature)


def draw_instances(
    key: PRNGKeyArray,
    count: int,
    horizon: int,
    problem: Problem,
    largest: float = LARGEST_CURVATURE,
) -> Instance:
    """A benchmark set: centres that rest and jump, curvatures log-uniform between m and `largest` and mostly m.

    Each instance has its own probability of a jump and of a severe step, so that calm and hectic ones are among them.
    """
    dim = problem.Q.shape[0]
    jumping, severe, jumps, sizes, rates = jax.random.split(key, 5)
    shape = (count, horizon, 1)
    chance = jax.random.uniform(rates, (2, count, 1, 1))
    moves = jnp.where(jax.random.uniform(jumping, shape) < chance[0], jax.random.normal(jumps, (*shape[:2], dim)), 0.0)
    logs = jax.random.uniform(sizes, shape) * jnp.log(largest / problem.m)
    curvatures = problem.m * jnp.where(jax.random.uniform(severe, shape) < chance[1], jnp.exp(logs), 1.0)
    contexts = jnp.concatenate([jnp.cumsum(moves, axis=1), curvatures], axis=2)
    return Instance(jnp.zeros((count, dim), contexts.dtype), contexts)


def search_worst_case(
    agent: AbstractAgent,
    problem: Problem,
    horizon: int,
    *,
    largest: float = LARGEST_CURVATURE,
    key: PRNGKeyArray | None = None,
    starts: int = 8,
) -> Certificate:
    """An adversarial instance for any agent: `certify`'s search over centres in [-1, 1] and curvatures in [m, largest]."""
    dim = problem.Q.shape[0]
    low, high = _context_region(problem, dim, largest)
    return certify(agent, problem, horizon, contexts=(low, high), context_dim=dim + 1, key=key, starts=starts)


def _context_region(problem: Problem, dim: int, largest: float) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    return (
        jnp.append(-jnp.ones((dim,)), problem.m),
        jnp.append(jnp.ones((dim,)), largest),
    )
