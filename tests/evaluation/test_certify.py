"""Worst-case ratios: the known exact ones, the instance that shows them, and the search where they are not exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.evaluation import metrics

LINE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def _realised(agent, problem, instance) -> float:
    return float(ec.rollout(agent, problem, instance).cost / ec.oracle(problem, instance).cost)


@pytest.mark.parametrize(
    ("agent", "horizon", "ratio"),
    [
        (ec.ROBD(), 24, 1.729844),
        (ec.ROBD(), 2, 1.729844),
        (ec.ROBD(), 1, 1.38877),
        (ec.Greedy(), 200, 10.7595),
        (ec.HittingMinimizer(), 200, 40.9975),
    ],
    ids=["ROBD 24", "ROBD 2", "ROBD 1", "Greedy", "HittingMinimizer"],
)
def test_exact_ratios(agent, horizon, ratio):
    certificate = ec.certify(agent, LINE, horizon)
    assert certificate.exact
    np.testing.assert_allclose(certificate.ratio, ratio, atol=1e-4)
    assert certificate.instance.horizon == horizon
    np.testing.assert_allclose(_realised(agent, LINE, certificate.instance), certificate.ratio, rtol=1e-8)


def test_against_the_forms_written_out():
    """ALGORITHMS section 0: (m/2)(K - I)'(K - I) + (beta/2)(DK)'(DK), with Greedy's and the oracle's K by hand."""
    T, m, beta = 9, 2.0, 3.0
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(alpha=beta, dim=1))
    identity, D = np.eye(T), np.eye(T) - np.eye(T, k=-1)
    greedy = np.linalg.inv(m * identity + beta * D) * m
    best = np.linalg.inv(m * identity + beta * D.T @ D) * m

    def form(K):
        return m / 2 * (K - identity).T @ (K - identity) + beta / 2 * (D @ K).T @ (D @ K)

    expected = np.max(np.linalg.eigvals(np.linalg.solve(form(best), form(greedy))).real)
    np.testing.assert_allclose(ec.certify(ec.Greedy(), problem, T).ratio, expected, rtol=1e-9)


def test_anisotropic_exact_ratio_is_above_random_search():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    problem = ec.Problem(
        ec.Quadratic(basis @ np.diag([1.0, 2.0, 5.0]) @ basis.T), ec.Mahalanobis(np.diag([0.5, 2.0, 4.0]))
    )
    T, n = 5, 3000
    certificate = ec.certify(ec.Greedy(), problem, T)
    assert certificate.exact
    np.testing.assert_allclose(_realised(ec.Greedy(), problem, certificate.instance), certificate.ratio, rtol=1e-8)

    @jax.jit
    @jax.vmap
    def ratio(contexts):
        instance = ec.Instance(jnp.zeros(3), contexts)
        return ec.rollout(ec.Greedy(), problem, instance).cost / ec.oracle(problem, instance).cost

    worst = certificate.instance.contexts
    draws = jnp.asarray(rng.normal(size=(n, T, 3)))
    near = worst + 0.05 * draws * jnp.abs(worst).max()
    assert float(ratio(draws).max()) <= certificate.ratio
    assert 0.8 * certificate.ratio < float(ratio(near).max()) <= certificate.ratio * (1 + 1e-9)


def test_an_agent_that_is_not_linear_is_searched():
    """MLA-ROBD of advice that does not move: affine, not linear."""
    advice = ec.advisors.Fixed(np.full((4, 1), 0.7))
    agent = ec.MLAROBD(advice, trust=0.5)
    certificate = ec.certify(agent, LINE, 4, starts=3)
    assert not certificate.exact
    np.testing.assert_allclose(_realised(agent, LINE, certificate.instance), certificate.ratio, rtol=1e-9)
    rng = np.random.default_rng(1)
    instances = ec.Instance(np.zeros((500, 1)), rng.uniform(-1, 1, (500, 4, 1)))
    costs, best = jax.jit(jax.vmap(lambda s: (ec.rollout(agent, LINE, s).cost, ec.oracle(LINE, s).cost)))(instances)
    assert certificate.ratio >= float(metrics.competitive_ratio(costs, best))
    assert "at least" in str(certificate)


def test_the_search_stays_in_the_region_and_finds_most_of_the_exact_ratio():
    exact = ec.certify(ec.Greedy(), LINE, 4).ratio
    searched = ec.certify(ec.Greedy(), LINE, 4, contexts=(jnp.array(-1.0), jnp.array(2.0)), starts=3)
    assert not searched.exact
    assert bool(((searched.instance.contexts >= -1) & (searched.instance.contexts <= 2)).all())
    assert 0.95 * exact < searched.ratio <= exact * (1 + 1e-9)
