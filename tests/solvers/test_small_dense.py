"""Small solves: by their residual, their derivative and their definiteness; no LAPACK in the steps of guards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.solvers.small_dense import spd_solve
from matrices import spd


@pytest.mark.parametrize("dim", [2, 4, 5])
def test_solves(dim):
    matrix, right = spd(dim, 3, 1e-3, 5.0), np.random.default_rng(dim).normal(size=(dim, 2))
    solve = jax.jit(spd_solve)
    np.testing.assert_allclose(matrix @ np.asarray(solve(matrix, right)), right, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(solve(matrix, right[:, 0]), np.linalg.solve(matrix, right[:, 0]), rtol=1e-10)
    by_rule = jax.jit(jax.grad(lambda m: jnp.sum(spd_solve(m, jnp.asarray(right[:, 0])))))(matrix)
    solved, weighed = np.linalg.solve(matrix, right[:, 0]), np.linalg.solve(matrix, np.ones(dim))
    slope = -np.outer(weighed, solved)  # of 1' M^-1 b
    np.testing.assert_allclose(np.asarray(by_rule + by_rule.T), slope + slope.T, rtol=1e-8)
    indefinite = matrix - 2 * np.linalg.eigvalsh(matrix)[0] * np.eye(dim)
    assert np.isnan(solve(indefinite, right)).all()


@pytest.mark.parametrize("guard", [ec.Competitive, lambda agent: ec.Promises(agent, [ec.Promise(2.5)])])
def test_steps_of_few_dimensions_call_no_lapack(guard):
    """Thousands of batched calls can block one another for ever."""
    problem = ec.Problem(ec.Quadratic(spd(3, 5, 1.0, 6.0)), ec.Mahalanobis(spd(3, 6, 0.4, 3.0)))
    agent = guard(ec.advisors.Fixed(np.ones((4, 3))))
    state = agent.init(problem, Start(jnp.zeros(3), jnp.zeros((0, 3)), None))
    seen = Observation(jnp.ones(3), jnp.zeros(3), jnp.zeros((), int))
    program = str(jax.make_jaxpr(lambda state: agent.step(problem, state, seen)[1])(state))
    assert "cholesky" not in program
    assert "triangular_solve" not in program
