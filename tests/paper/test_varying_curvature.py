"""Where the bounds are attained: R-OBD within one percent of its ratio, and never across it (erratum E21).

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
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.evaluation import certify, metrics
from ecl2o.paper.test_days import LARGEST_CURVATURE, draw_instances, varying_curvature_problem
from ecl2o.problem import Instance, Problem
from ecl2o.theory import greedy_ratio, hitting_minimizer_ratio, robd_ratio

HORIZON = 24


def make_late_demand(
    problem: Problem, horizon: int, curvature: float = LARGEST_CURVATURE, sign: float = 1.0
) -> Instance:
    """Return calm at 0, then one severe demand at `sign`: R-OBD's worst instance as the horizon grows."""
    dim, m = problem.Q.shape[0], np.asarray(problem.m)
    contexts = np.zeros((horizon, dim + 1), m.dtype)
    contexts[:, -1] = m
    contexts[-1, 0], contexts[-1, -1] = sign, curvature
    return Instance(np.zeros(dim, m.dtype), contexts)


def late_demand_optimum(m: float, beta: float, horizon: int, curvature: float = LARGEST_CURVATURE) -> float:
    """Return what the oracle pays on `make_late_demand`: half of the harmonic sum of p, beta and the last curvature."""
    p = math.inf
    for _ in range(horizon - 1):
        p = m + 1 / (1 / beta + 1 / p)
    return 0.5 / (1 / p + 1 / beta + 1 / curvature)


def _ratio(agent, problem, instance):
    return float(ec.rollout(agent, problem, instance).cost / ec.oracle(problem, instance).cost)


@pytest.mark.parametrize(("m", "beta", "dim"), [(1.0, 10.0, 1), (1.0, 10.0, 3), (0.2, 0.5, 1)])
def test_robd_comes_within_one_percent_of_its_bound(m, beta, dim):
    problem, bound = varying_curvature_problem(m, beta, dim), float(robd_ratio(m, beta, beta))
    ratio = _ratio(ec.ROBD(), problem, make_late_demand(problem, HORIZON))
    assert 0.99 * bound <= ratio <= bound
    if (m, beta) == (1.0, 10.0):
        assert 3.6645 < ratio < 3.7016


def test_the_bound_is_the_limit():
    """Longer calm and a severer demand: the gap closes, first from one, then from the other."""
    problem, bound = varying_curvature_problem(), float(robd_ratio(1.0, 10.0, 10.0))
    gaps = [bound - _ratio(ec.ROBD(), problem, make_late_demand(problem, 40, k)) for k in (1e4, 1e5, 1e6)]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 5e-5


@pytest.mark.parametrize(("horizon", "curvature"), [(1, 5.0), (6, 50.0), (24, 1e4)])
def test_the_optimum_of_the_late_demand_in_closed_form(horizon, curvature):
    problem = varying_curvature_problem(2.0, 7.0)
    best = ec.oracle(problem, make_late_demand(problem, horizon, curvature))
    np.testing.assert_allclose(best.cost, late_demand_optimum(2.0, 7.0, horizon, curvature), rtol=1e-10)


def test_no_agent_does_better_against_both_signs():
    problem = varying_curvature_problem()
    drifting = ec.MLAROBD(ec.advisors.Fixed(np.linspace(0, 1, HORIZON)[:, None]), trust=0.5)
    for agent in (ec.ROBD(), ec.Greedy(), ec.HittingMinimizer(), ec.OBD(), ec.GreedyOBD(), ec.OGD(eta=1e-5), drifting):
        worst = max(_ratio(agent, problem, make_late_demand(problem, HORIZON, sign=sign)) for sign in (1.0, -1.0))
        assert worst > 0.99 * float(robd_ratio(1.0, 10.0, 10.0)), agent


def test_bounds_hold_on_the_benchmark_set_and_mean_something():
    problem = varying_curvature_problem()
    instances = draw_instances(jax.random.key(1), 2000, HORIZON, problem)
    assert float(instances.contexts[..., -1].min()) >= 1.0
    assert float(instances.contexts[..., -1].max()) > 1e3
    best = jax.jit(jax.vmap(lambda s: ec.oracle(problem, s).cost))(instances)

    def worst(agent):
        cost = jax.jit(jax.vmap(lambda s: ec.rollout(agent, problem, s).cost))(instances)
        return float(metrics.competitive_ratio(cost, best))

    assert 0.9 * 3.70156 < worst(ec.ROBD()) <= float(robd_ratio(1.0, 10.0, 10.0))
    assert worst(ec.Greedy()) <= float(greedy_ratio(1.0, 10.0))
    assert worst(ec.HittingMinimizer()) <= float(hitting_minimizer_ratio(1.0, 10.0))


@given(
    contexts=st.lists(st.tuples(st.floats(-5, 5), st.floats(1, 1e6)), min_size=6, max_size=6),
    beta=st.floats(1e-2, 1e3),
    x0=st.floats(-5, 5),
)
def test_robd_never_crosses_its_bound(contexts, beta, x0):
    problem, instance = varying_curvature_problem(1.0, beta), ec.Instance([x0], contexts)
    cost, best = ec.rollout(ec.ROBD(), problem, instance).cost, ec.oracle(problem, instance).cost
    assert float(cost) <= float(robd_ratio(1.0, beta, beta) * best) * (1 + 1e-8) + 1e-9


def test_the_search_finds_such_instances_by_itself():
    problem = varying_curvature_problem()
    region = jnp.array([-1.0, 1.0]), jnp.array([1.0, LARGEST_CURVATURE])  # lowest and highest (centre, curvature)
    found = certify(ec.ROBD(), problem, 10, contexts=region, context_dim=2, starts=2)
    assert not found.exact
    assert found.instance.contexts.shape == (10, 2)
    assert float(found.instance.contexts[:, 1].min()) >= 1.0
    assert _ratio(ec.ROBD(), problem, found.instance) == pytest.approx(found.ratio, rel=1e-9)
    assert 0.95 * 3.70156 < found.ratio <= float(robd_ratio(1.0, 10.0, 10.0))


def test_the_optimum_of_a_long_calm():
    """It tends to m (CR - 1) / 2."""
    assert late_demand_optimum(1.0, 10.0, horizon=200, curvature=1e12) == pytest.approx(1.350781, abs=1e-6)
    assert late_demand_optimum(1.0, 10.0, 1) < math.inf
