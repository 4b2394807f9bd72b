"""What `certify` says of every agent of the registry is so: played, and from Jacobians taken elsewhere."""

import jax
import numpy as np
import pytest
import scipy.linalg

import ecl2o as ec
from ecl2o.evaluation import metrics

from .registry import Case
from .suite import of_cases, problem_of

STEPS = 4


def _eigenvalues(agent: ec.AbstractAgent, problem: ec.Problem, points) -> list[float]:
    """The largest generalized eigenvalue of the agent's bill and the oracle's, from the agent's Jacobian at each point."""
    d = problem.Q.shape[0]
    D = np.kron(np.eye(STEPS) - np.eye(STEPS, k=-1), np.eye(d))
    A, Q = np.kron(np.eye(STEPS), problem.hitting.curvature(None, d)), np.kron(np.eye(STEPS), problem.Q)

    def form(K):
        miss, move = K - np.eye(STEPS * d), D @ K
        return 0.5 * miss.T @ A @ miss + move.T @ Q @ move

    def actions(contexts):
        return ec.rollout(agent, problem, ec.Instance(np.zeros(d), contexts.reshape(STEPS, d))).actions.ravel()

    slope = jax.jit(jax.jacfwd(actions))
    least = form(np.linalg.solve(A + 2 * D.T @ Q @ D, A))
    return [scipy.linalg.eigvals(form(np.asarray(slope(point))), least).real.max() for point in points]


@of_cases()
def test_certificate(case: Case):
    dim = case.dims[0]
    agent, problem = case.make(dim), problem_of("open", dim)
    certificate = ec.certify(agent, problem, STEPS, starts=2, steps=30)
    run, best = ec.rollout(agent, problem, certificate.instance), ec.oracle(problem, certificate.instance)
    assert certificate.ratio == pytest.approx(float(metrics.cost_ratio(run.cost, best.cost)), rel=1e-8)
    assert certificate.exact == (dim in case.linear)
    if certificate.exact:
        far = 1e3 * np.random.default_rng(5).normal(size=STEPS * dim)
        expected = _eigenvalues(agent, problem, [np.zeros(STEPS * dim), far])
        np.testing.assert_allclose(certificate.ratio, expected, rtol=1e-8)
    promise = agent.promise(problem)
    assert str(certificate.promise) == str(promise)
    if promise is not None:
        reference = (
            best
            if promise.reference is ec.Reference.OPTIMUM
            else ec.rollout(agent.references[0].agent, problem, certificate.instance)
        )
        assert promise.period is None or promise.period >= STEPS
        assert float(run.cost) <= float(promise.ratio) * float(reference.cost) * (1 + 1e-9)
    if case.bound is not None:
        alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (certificate.instance, run, best))
        assert float(run.cost) <= float(case.bound(problem, *alone)[0]) * (1 + 1e-9)
