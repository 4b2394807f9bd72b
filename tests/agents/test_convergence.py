"""A solve that did not converge is reported by whoever uses its result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info

T = 4
OPEN = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
INSTANCE = ec.Instance([0.0], [[3.0], [-1.0], [2.0], [0.5]])


class Unsure(AbstractAgent):
    """Stays where it is, and says at every other step that its solve failed."""

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        return state, observation.previous_action, Info(observation.step % 2 == 1)


WRAPPERS = {
    "PureML": ec.PureML,
    "Independent": ec.Independent,
    "MLAROBD": ec.MLAROBD,
    "FollowPrediction": ec.FollowPrediction,
    "ABCS": ec.ABCS,
    "Switch": ec.Switch,
    "Switch, expert": lambda unsure: ec.Switch(ec.Greedy(), expert=unsure),
    "Guarded": ec.Guarded,
    "Guarded, expert": lambda unsure: ec.Guarded(ec.Greedy(), expert=unsure),
    "ClippedAdvice": ec.ClippedAdvice,
    "ClippedAdvice, expert": lambda unsure: ec.ClippedAdvice(ec.Greedy(), expert=unsure),
    "Competitive": ec.Competitive,
    "Periodic": lambda unsure: ec.Periodic(unsure, period=T),
    "Guarded, period": lambda unsure: ec.Guarded(unsure, period=T),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=list(WRAPPERS))
def test_a_wrapper_passes_it_on(wrap):
    np.testing.assert_array_equal(ec.rollout(wrap(Unsure()), OPEN, INSTANCE).converged, [False, True, False, True])


def _kinked(x, y):
    return jnp.sum(jnp.abs(x - y)) + 0.5 * jnp.sum((x - y) ** 2)


@pytest.mark.parametrize("agent", [ec.ROBD(), ec.HittingMinimizer(), ec.GreedyOBD()], ids=lambda a: type(a).__name__)
def test_a_minimiser_that_was_not_found_counts_where_it_is_used(agent):
    """The cost has a kink at its minimiser, where Newton's method finds no zero of the gradient; away from it all is smooth."""
    problem = ec.Problem(ec.ConvexCost(_kinked, strong_convexity=1.0), OPEN.switching)
    assert bool(ec.rollout(ec.Greedy(), problem, INSTANCE).converged[0])
    assert not bool(ec.rollout(agent, problem, INSTANCE).converged[0])


PAIR = ec.Mahalanobis.isotropic(alpha=10.0, dim=2)
SETS = {
    "everywhere": (ec.Everywhere(), [0.5, 0.5]),
    "box": (ec.Box(0.0, [1.0, 2.0]), [1.0, 0.0]),  # infinite advice is stopped by a bound
    "total": (ec.Total(1.0, lower=0.0), [0.5, 0.5]),
    "total without bounds": (ec.Total(1.0), [0.5, 0.5]),
    "whole numbers": (ec.Limited(spacing=0.5), [0.5, 0.5]),
}


@pytest.mark.parametrize("name", SETS)
def test_advice_without_a_projection_repeats_the_previous_action(name):
    """NaN and infinite numbers are played by no agent, and evaluations count the step."""
    actions, infinite = SETS[name]
    problem, contexts = ec.Problem(ec.SquaredTracking(), PAIR, actions), np.zeros((4, 2))
    advice = np.array([[0.5, 0.5], [np.nan, 0.5], [np.inf, -np.inf], [1.0, 0.0]])
    run = ec.rollout(ec.PureML(ec.advisors.Fixed(advice)), problem, ec.Instance([0.0, 1.0], contexts))
    np.testing.assert_allclose(run.actions, [[0.5, 0.5], [0.5, 0.5], infinite, [1.0, 0.0]], atol=1e-12)
    np.testing.assert_array_equal(run.info.converged, [True, False, name == "box", True])


def test_a_broken_step_leaves_the_gradients_of_the_others():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(-5.0, 5.0))

    def cost(numbers):
        broken = ec.PureML(ec.advisors.Fixed(numbers.at[1].set(jnp.nan)))
        return ec.rollout(broken, problem, INSTANCE).cost

    def repeated(numbers):
        return ec.rollout(ec.advisors.Fixed(numbers.at[1].set(numbers[0])), problem, INSTANCE).cost

    numbers = jnp.array([[1.0], [9.0], [2.0], [-1.0]])
    np.testing.assert_allclose(jax.grad(cost)(numbers), jax.grad(repeated)(numbers), rtol=1e-12)


def test_an_expert_without_a_number_repeats_its_action():
    expert = ec.advisors.Fixed([[1.0], [np.nan], [1.0], [2.0]])
    run = ec.rollout(ec.Guarded(ec.Greedy(), expert=expert), OPEN, INSTANCE)
    np.testing.assert_array_equal(run.info.converged, [True, False, True, True])
    held = ec.rollout(ec.Guarded(ec.Greedy(), expert=ec.advisors.Fixed([[1.0], [1.0], [1.0], [2.0]])), OPEN, INSTANCE)
    np.testing.assert_allclose(run.actions, held.actions, rtol=1e-12)
    assert run.info.details["kept"].all()
