"""Worst-case ratios: the known exact ones, the instance that shows them, and the search where they are not exact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import ecl2o as ec
from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import _direction
from ecl2o.problem import LinearSwitching
from matrices import spd
from toy_agent import StatelessAgent

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
    """(m/2)(K - I)'(K - I) + (beta/2)(DK)'(DK), with Greedy's and the oracle's K by hand."""
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


@pytest.mark.parametrize(
    ("agent", "horizon", "least", "most"),
    [
        (ec.Guarded(ec.OGD(eta=0.001), slack=2.0), 12, 3.0, 3 * 1.729844),
        (ec.Competitive(ec.Greedy(), 2.2, 12), 12, 2.2 * (1 - 1e-6), 2.2 * (1 + 1e-9)),
    ],
    ids=["Guarded", "Competitive"],
)
def test_a_guard_that_seldom_acts_is_not_taken_for_linear(agent, horizon, least, most):
    """On random contexts both are their linear agents, whose worst ratios are 7.3 and 3.2."""
    certificate = ec.certify(agent, LINE, horizon, starts=3, steps=150)
    assert not certificate.exact
    assert "at least" in str(certificate)
    np.testing.assert_allclose(_realised(agent, LINE, certificate.instance), certificate.ratio, rtol=1e-8)
    assert least <= certificate.ratio <= most


@pytest.mark.parametrize(
    ("ratio", "horizon", "short"),
    [(2.2, 24, 1e-12), (1.75, 24, 1e-12), (2.2, None, 1e-7), (1.75, None, 1e-7)],
    ids=["2.2 for 24 steps", "1.75 for 24 steps", "2.2 without an end", "1.75 without an end"],
)
def test_hostile_advice_takes_a_guard_to_its_promise(ratio, horizon, short):
    """The adversary of the revelation theorem alone: one start, one step of ascent."""
    guard = ec.Competitive(ec.advisors.Fixed(np.full((24, 1), 1e6)), ratio, horizon)
    certificate = ec.certify(guard, LINE, 24, starts=1, steps=1)
    assert ratio * (1 - short) <= certificate.ratio <= ratio * (1 + 1e-9)
    np.testing.assert_allclose(_realised(guard, LINE, certificate.instance), certificate.ratio, rtol=1e-8)
    assert float(certificate.promise.ratio) == ratio
    assert str(certificate.promise) in str(certificate)


def test_weights_and_intervals_of_a_promise_are_searched_too():
    """Curvatures up to 3, and contexts that the promise takes to lie in an interval: the search keeps to it."""
    hostile = ec.advisors.Fixed(np.full((24, 1), 1e6))
    curved = ec.Problem(ec.CurvedTracking(minimum=1.0, maximum=3.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    certificate = ec.certify(
        ec.Competitive(hostile, 2.4, 24),
        curved,
        24,
        contexts=([-1.0, 1.0], [1.0, 3.0]),
        context_dim=2,
        starts=1,
        steps=1,
    )
    assert 2.4 * (1 - 1e-12) <= certificate.ratio <= 2.4 * (1 + 1e-9)
    # By default curvatures are searched where the costs say that they lie, and centres where the promise does.
    certificate = ec.certify(ec.Competitive(hostile, 2.4, 24, contexts=(0.0, 2.0)), curved, 24, starts=1, steps=1)
    assert 2.4 * (1 - 1e-12) <= certificate.ratio <= 2.4 * (1 + 1e-9)
    centres, weights = np.asarray(certificate.instance.contexts).T
    assert 0.0 <= centres.min() <= centres.max() <= 2.0
    assert (weights.min(), weights.max()) == (1.0, 3.0)
    unbounded = ec.Problem(ec.CurvedTracking(minimum=2.0), curved.switching)
    certificate = ec.certify(ec.ROBD(), unbounded, 6, starts=2, steps=200)
    assert 2.3 < certificate.ratio <= float(ec.theory.robd_ratio(2.0, 10.0, 10.0))
    assert np.ptp(certificate.instance.contexts[:, 1]) > 2.0
    kept = ec.Competitive(hostile, 2.0, 24, contexts=(-0.1, 0.8))
    certificate = ec.certify(kept, LINE, 24, starts=1, steps=1)
    assert 2.0 * (1 - 1e-12) <= certificate.ratio <= 2.0 * (1 + 1e-9)
    assert bool(((certificate.instance.contexts >= -0.1) & (certificate.instance.contexts <= 0.8)).all())


@pytest.mark.parametrize(("short", "long"), [(1.0, 5.0), (3.0, 1.0)])
def test_two_sided_costs_are_searched_from_the_adversary_too(short, long):
    """The guard carries a lower bound on the optimum, so it need not be reached; its promise is never exceeded."""
    problem = ec.Problem(ec.AsymmetricTracking(short, long), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    guard = ec.Competitive(ec.advisors.Fixed(np.full((24, 1), 1e6)), 2.6)
    certificate = ec.certify(guard, problem, 24, starts=1, steps=1)
    assert 2.6 * 0.9 <= certificate.ratio <= 2.6 * (1 + 1e-9)
    np.testing.assert_allclose(_realised(guard, problem, certificate.instance), certificate.ratio, rtol=1e-8)


HOSTILE = ec.advisors.Fixed(np.full((6, 1), 1e6))
TO_ROBD = ec.Promise(1.9, ec.Reference.EXPERT, "ROBD")


@pytest.mark.parametrize(
    ("agent", "least"),
    [
        (ec.Promises(HOSTILE, [ec.Promise(2.5, period=3), ec.Promise(1.8)]), 1.8 * (1 - 1e-2)),
        (ec.Promises(HOSTILE, [TO_ROBD, ec.Promise(2.2)], baseline=ec.ROBD()), 2.2 * (1 - 1e-2)),
        (ec.RampLimited(ec.Competitive(HOSTILE, 2.5, contexts=(-1.0, 1.0)), 0.3), 1.0),
        (ec.RampLimited(ec.ROBD(), 0.1), 1.0),
        (ec.Rounded(ec.Competitive(HOSTILE, 2.5), 0.25), 1.0),
        (ec.Rounded(ec.Greedy(), 0.25), 1.0),
        (ec.CompetitiveBand(HOSTILE, half_width=0.5, ratio=2.0, horizon=6), 1.9),
    ],
    ids=["run and period", "baseline", "ramp", "ramp of R-OBD", "whole numbers", "whole Greedy", "band"],
)
def test_several_promises_limits_and_bands(agent, least):
    """Nothing is called exact, and what is found is allowed by every promise that covers the run.

    Where one is tight, the adversary of the theorem comes close to it; elsewhere the search is too short to say more.
    """
    certificate = ec.certify(agent, LINE, 6, starts=1, steps=1)
    assert not certificate.exact
    best = float(ec.oracle(LINE, certificate.instance).cost)
    cost = float(ec.rollout(agent, LINE, certificate.instance).cost)
    np.testing.assert_allclose(cost, certificate.ratio * best, rtol=1e-8)
    assert certificate.ratio >= least
    promise = certificate.promise
    for each in () if promise is None else (promise, *promise.also):
        if each.reference is ec.Reference.OPTIMUM and (each.period is None or each.period >= 6):
            bounds = [(each.ratio, each.allowance_per_step), *([each.alternative] if each.alternative else [])]
            assert cost <= min(ratio * best + 6 * per_step for ratio, per_step in bounds) * (1 + 1e-9)


def test_the_adversary_leads_away_where_the_future_outweighs_the_past_most():
    """The direction of the largest u'Su / u'Pu, by SciPy; its largest entry is 1 or -1."""
    S, P = spd(3, 1, 0.5, 4.0), spd(3, 2, 0.3, 5.0)
    expected = scipy.linalg.eigh(S, P)[1][:, -1]
    found = np.asarray(jax.jit(_direction)(S, P))
    np.testing.assert_allclose(np.abs(found).max(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        np.outer(found, found), np.outer(expected, expected) / np.abs(expected).max() ** 2, atol=1e-12
    )


def test_advice_that_does_not_listen_has_an_infinite_ratio():
    """Affine, not linear: where the contexts stay at x0 it moves, and the optimum is free."""
    agent = ec.MLAROBD(ec.advisors.Fixed(np.full((4, 1), 0.7)), trust=0.5)
    certificate = ec.certify(agent, LINE, 4)
    assert not certificate.exact
    assert certificate.ratio == np.inf
    assert float(ec.rollout(agent, LINE, certificate.instance).cost) > 1e-3
    assert float(ec.oracle(LINE, certificate.instance).cost) == 0.0


def test_where_standing_still_is_not_in_the_region_it_is_searched():
    agent = ec.MLAROBD(ec.advisors.Fixed(np.full((4, 1), 0.7)), trust=0.5)
    certificate = ec.certify(agent, LINE, 4, contexts=(jnp.array(0.1), jnp.array(1.0)), starts=3)
    np.testing.assert_allclose(_realised(agent, LINE, certificate.instance), certificate.ratio, rtol=1e-8)
    rng = np.random.default_rng(1)
    instances = ec.Instance(np.zeros((500, 1)), rng.uniform(0.1, 1, (500, 4, 1)))
    costs, best = jax.jit(jax.vmap(lambda s: (ec.rollout(agent, LINE, s).cost, ec.oracle(LINE, s).cost)))(instances)
    assert float(metrics.competitive_ratio(costs, best)) <= certificate.ratio < np.inf


class Boastful(ec.AbstractAgent):
    """Says that it is linear, and is Greedy on contexts up to a limit only."""

    limit: float = eqx.field(static=True)

    def is_linear(self, problem):
        return True

    def init(self, problem, start):
        return ec.Greedy().init(problem, start)

    def step(self, problem, state, observation):
        clipped = jnp.clip(observation.context, -self.limit, self.limit)
        return ec.Greedy().step(problem, state, eqx.tree_at(lambda o: o.context, observation, clipped))


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_nothing_is_called_exact_that_its_own_instance_does_not_have(limit):
    """Small or large: what clips far away is not linear either."""
    agent = Boastful(limit)
    certificate = ec.certify(agent, LINE, 4, starts=3, steps=100)
    assert not certificate.exact
    np.testing.assert_allclose(_realised(agent, LINE, certificate.instance), certificate.ratio, rtol=1e-8)


def test_what_an_agent_says_of_itself_is_not_inherited():
    for agent in (ec.Greedy, ec.Guard):
        with pytest.raises(TypeError, match=agent.__name__):
            type("Changed", (agent,), {})


@pytest.mark.parametrize(("slow", "fast", "exact"), [(1e-2, 1e2, True), (1e-10, 1e6, False)])
def test_where_rounding_stands_in_the_way_nothing_is_called_exact(slow, fast, exact):
    """The ratio of two coordinates is the larger of theirs, however they are turned; far apart, turning loses the smaller."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    agent, Q = ec.OGD(eta=0.5), turn @ np.diag([slow, fast]) @ turn.T
    both = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis((Q + Q.T) / 2))
    apart = [ec.Problem(ec.SquaredTracking(), ec.Mahalanobis([[q]])) for q in (slow, fast)]
    expected = max(ec.certify(agent, problem, 4).ratio for problem in apart)
    certificate = ec.certify(agent, both, 4, starts=2, steps=5)
    assert certificate.exact == exact
    assert certificate.ratio == pytest.approx(expected, rel=1e-8) if exact else certificate.ratio < expected
    np.testing.assert_allclose(_realised(agent, both, certificate.instance), certificate.ratio, rtol=1e-8)


def test_movement_by_distance_is_certified_on_its_line():
    """LCP's theorem: at most 3."""
    problem = ec.Problem(ec.SquaredTracking(), LinearSwitching(rate=1.0))
    certificate = ec.certify(ec.LCP(), problem, 4, contexts=(-5.0, 5.0), starts=2, steps=30)
    assert not certificate.exact
    assert 1.0 < certificate.ratio <= 3 * (1 + 1e-9)
    np.testing.assert_allclose(_realised(ec.LCP(), problem, certificate.instance), certificate.ratio, rtol=1e-8)


class Lost(StatelessAgent):
    """Has no action."""

    def act(self, observation):
        return jnp.full_like(observation.context, jnp.nan)


def test_an_agent_without_a_finite_cost_is_refused():
    with pytest.raises(ValueError, match="2 instances"):
        ec.certify(Lost(), LINE, 4, starts=2, steps=2)


def test_the_search_stays_in_the_region_and_finds_most_of_the_exact_ratio():
    exact = ec.certify(ec.Greedy(), LINE, 4).ratio
    searched = ec.certify(ec.Greedy(), LINE, 4, contexts=(jnp.array(-1.0), jnp.array(2.0)), starts=3)
    assert not searched.exact
    assert bool(((searched.instance.contexts >= -1) & (searched.instance.contexts <= 2)).all())
    assert 0.95 * exact < searched.ratio <= exact * (1 + 1e-9)
