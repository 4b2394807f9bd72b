"""Gradients of training: back-propagation, and the two alternatives that the paper argues against.

The calibrator is an optimisation problem inside the model. The paper differentiates it exactly (section 4.5). The alternatives
estimate the gradient from values of the loss (`ZeroOrder`), or through a differentiable model of the calibrator
(`SurrogateCalibrator`); docs/gradient-study.md compares them. Whatever the gradient, `fit` trains the true agent's advisor.
"""

import abc
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ecl2o.agents import MLAROBD, AbstractAgent, Observation, Start, calibrate
from ecl2o.agents.advisors.networks import Affine, Scaling
from ecl2o.agents.base import AnyProblem
from ecl2o.problem import Instance, Trajectory
from ecl2o.problem.arrays import as_float, check_count, check_positive

# An agent to its loss on the batch at hand.
AgentLoss = Callable[[AbstractAgent], Float[Array, ""]]
# (context, previous action, advice) to an action.
Rule = Callable[[Float[Array, " q"], Float[Array, " d"], Float[Array, " d"]], Float[Array, " d"]]


class AbstractGradient(eqx.Module):
    """The base class of gradients; write `evaluations` and `value_and_grad`."""

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """The evaluations of the loss on a batch that one step takes; a backward pass counts as two."""

    def prepare_for(
        self,
        agent: AbstractAgent,
        problem: AnyProblem,
        instances: Instance,
        oracles: Trajectory,
        key: PRNGKeyArray,
    ) -> "AbstractGradient":
        """Return the gradient, ready to train this agent on this training set. Default: unchanged.

        Raises:
            TypeError: The gradient does not apply to such an agent.
        """
        return self

    @abc.abstractmethod
    def value_and_grad(
        self, loss: AgentLoss, weights: PyTree, frozen: PyTree, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], PyTree]:
        """Return the loss of the agent made of weights and frozen leaves, and its gradient in the weights.

        Args:
            loss: Of an agent, on the batch of this step.
            weights: The trained leaves, None elsewhere.
            frozen: The other leaves, None elsewhere.
            key: For gradients that draw numbers; another one in each step.
        """

    def report(self) -> dict[str, float]:
        """Return figures for `FitLog.gradient_report`. Default: none."""
        return {}


class Backpropagation(AbstractGradient):
    """The true gradient, through the roll-out and the calibrator in it (section 4.5 and erratum E7).

    >>> gradient = Backpropagation()  # the default of fit(..., gradient=gradient)
    """

    @property
    def evaluations(self) -> int:
        return 3

    def value_and_grad(self, loss, weights, frozen, key):
        return jax.value_and_grad(lambda w: loss(eqx.combine(w, frozen)))(weights)


class ZeroOrder(AbstractGradient):
    """The gradient of the loss smoothed by a Gaussian, estimated from values of the loss alone (docs/gradient-study.md).

    The mean over `directions` draws u of (L(W + s u) - L(W - s u)) / (2 s) u, all on the same batch, where s is `sigma` times
    the root mean square of the weights. Training logs the mean of those losses.

    Args:
        directions: Draws for each gradient, at least 1. Default: 16.
        sigma: Distance of the evaluations, as a share of the root mean square of the weights; positive. Default: 0.001.

    Raises:
        ValueError: A number is out of its range.

    >>> ZeroOrder(directions=4).evaluations  # fit(..., gradient=ZeroOrder(directions=4))
    8
    """

    directions: int = eqx.field(static=True, default=16)
    sigma: Float[Array, ""] = eqx.field(converter=as_float, default=1e-3)

    def __check_init__(self):
        check_count("directions", self.directions)
        check_positive("sigma", self.sigma)

    @property
    def evaluations(self) -> int:
        return 2 * self.directions

    def value_and_grad(self, loss, weights, frozen, key):
        flat, unflatten = ravel_pytree(weights)
        spread = jnp.sqrt(jnp.mean(flat**2))
        reach = self.sigma * jnp.where(spread > 0, spread, 1.0)
        draws = jax.random.normal(key, (self.directions, flat.size), flat.dtype)
        moves = reach * jnp.stack([draws, -draws])
        forth, back = jax.vmap(jax.vmap(lambda move: loss(eqx.combine(unflatten(flat + move), frozen))))(moves)
        return jnp.mean(forth + back) / 2, unflatten((forth - back) @ draws / (2 * reach * self.directions))


class Surrogate(eqx.Module):
    """R-hat of a triple (y, x_prev, advice): tanh layers and a linear one on scaled inputs; one layer is an affine map."""

    layers: tuple[Affine, ...]
    inputs: Scaling
    outputs: Scaling

    def __call__(self, triple: Float[Array, " k"]) -> Float[Array, " d"]:
        hidden = self.inputs.standardize(triple)
        for layer in self.layers[:-1]:
            hidden = jnp.tanh(layer(hidden))
        return self.outputs.restore(self.layers[-1](hidden))


class FittedSurrogate(eqx.Module):
    """R-hat, and its errors on triples that it was not fitted on."""

    surrogate: Surrogate
    value_error: Float[Array, ""]  # root mean square of R-hat - R, over the standard deviation of R
    jacobian_error: Float[Array, ""]  # root mean square error of d/d(x_prev, advice), over that of the true Jacobians


class ThroughSurrogate(AbstractAgent):
    """A calibrated agent with the surrogate's derivatives; its actions are the true ones only if `straight_through`."""

    agent: AbstractAgent
    surrogate: Surrogate
    straight_through: bool = eqx.field(static=True)

    def init(self, problem: AnyProblem, start: Start):
        return self.agent.init(problem, start)

    def step(self, problem: AnyProblem, state, observation: Observation):
        state, action, info = self.agent.step(problem, state, observation)
        assert info.advice is not None
        triple = observation.context, observation.previous_action, jnp.asarray(info.advice)
        instead = self.surrogate(jnp.concatenate(triple))
        if self.straight_through:
            return state, jax.lax.stop_gradient(action) + (instead - jax.lax.stop_gradient(instead)), info
        return state, problem.actions.project(instead), info


class SurrogateCalibrator(AbstractGradient):
    """The gradient through a model R-hat of MLAROBD's calibrator, fitted once by least squares on sampled triples.

    A triple is a context of the training set, and a previous action and advice drawn around the oracle's action of that step,
    by one standard deviation of the oracle's actions.

    Args:
        kind: "linear": an affine map, exact for quadratics of constant curvature without active bounds; "mlp": tanh layers.
            Default: "mlp".
        straight_through: True: the roll-out is the true one, with the Jacobians of R-hat. False: R-hat replaces the
            calibrator, in the logged loss too. Default: True.
        samples: Triples to fit on, at least 1. Default: 4096.
        width: Units of each layer, at least 1. Default: 32.
        depth: Number of tanh layers, at least 1. Default: 2.
        steps: Adam steps, at least 1. Default: 2000.
        fitted: Set by `fit`. Default: None.

    Raises:
        ValueError: `kind` is unknown, or a number is out of its range.

    >>> gradient = SurrogateCalibrator("linear", samples=1000)  # fit(..., gradient=gradient)
    """

    kind: Literal["linear", "mlp"] = eqx.field(static=True, default="mlp")
    straight_through: bool = eqx.field(static=True, default=True)
    samples: int = eqx.field(static=True, default=4096)
    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    steps: int = eqx.field(static=True, default=2000)
    fitted: FittedSurrogate | None = None

    def __check_init__(self):
        if self.kind not in ("linear", "mlp"):
            raise ValueError(f"kind must be 'linear' or 'mlp', got {self.kind!r}.")
        for name in ("samples", "width", "depth", "steps"):
            check_count(name, getattr(self, name))

    @property
    def evaluations(self) -> int:
        return 3

    def prepare_for(self, agent, problem, instances, oracles, key) -> "SurrogateCalibrator":
        if not isinstance(agent, MLAROBD):
            raise TypeError(f"SurrogateCalibrator models the calibrator of MLAROBD, got {type(agent).__name__}.")
        _, calibration = agent.init(problem, Start(instances.x0[0], instances.past[0], instances.horizon))
        rule = jax.tree_util.Partial(_calibrated_action, problem, calibration)
        of_fit, of_check, of_network = jax.random.split(key, 3)
        triples, actions = _examples(rule, problem, instances, oracles, self.samples, of_fit)
        if self.kind == "linear":
            surrogate = _fit_linear(triples, actions)
        else:
            surrogate = _fit_network(triples, actions, self.width, self.depth, self.steps, of_network)
        unseen, _ = _examples(rule, problem, instances, oracles, self.samples, of_check)
        fitted = measure_surrogate(surrogate, rule, unseen, instances.contexts.shape[-1])
        return eqx.tree_at(lambda s: s.fitted, self, fitted, is_leaf=lambda leaf: leaf is None)

    def value_and_grad(self, loss, weights, frozen, key):
        assert self.fitted is not None, "call prepare_for first"
        surrogate = self.fitted.surrogate

        def through(weights):
            return loss(ThroughSurrogate(eqx.combine(weights, frozen), surrogate, self.straight_through))

        return jax.value_and_grad(through)(weights)

    def report(self) -> dict[str, float]:
        assert self.fitted is not None, "call prepare_for first"
        return {name: float(getattr(self.fitted, name)) for name in ("value_error", "jacobian_error")}


def _calibrated_action(problem, calibration, context, previous, advice):
    return calibrate(problem, calibration, context, previous, advice)[0]


@eqx.filter_jit
def _examples(
    rule: Rule, problem: AnyProblem, instances: Instance, oracles: Trajectory, count: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n k"], Float[Array, "n d"]]:
    """Draw triples (y, x_prev, advice) as rows; return them and the true calibrator's actions."""
    contexts = instances.contexts.reshape(-1, instances.contexts.shape[-1])
    best = oracles.actions.reshape(-1, instances.dim)
    of_place, of_previous, of_advice = jax.random.split(key, 3)
    places = jax.random.randint(of_place, (count,), 0, contexts.shape[0])

    def around(key):
        away = jax.random.normal(key, (count, instances.dim), best.dtype)
        return jax.vmap(problem.actions.project)(best[places] + jnp.std(best, axis=0) * away)

    parts = contexts[places], around(of_previous), around(of_advice)
    return jnp.concatenate(parts, axis=1), jax.vmap(rule)(*parts)


def _fit_linear(triples: Float[Array, "n k"], actions: Float[Array, "n d"]) -> Surrogate:
    inputs, dtype = np.asarray(triples, np.float64), actions.dtype
    design = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    solution, *_ = np.linalg.lstsq(design, np.asarray(actions, np.float64))
    affine = Affine(jnp.asarray(solution[:-1].T, dtype), jnp.asarray(solution[-1], dtype))
    plain = Scaling(jnp.zeros((), dtype), jnp.ones((), dtype))
    return Surrogate((affine,), plain, plain)


_SURROGATE_RATE = 1e-2
_SURROGATE_BATCH = 256


@eqx.filter_jit
def _fit_network(
    triples: Float[Array, "n k"], actions: Float[Array, "n d"], width: int, depth: int, steps: int, key: PRNGKeyArray
) -> Surrogate:
    sizes = [triples.shape[1], *[width] * depth, actions.shape[1]]
    of_layers, of_batches = jax.random.split(key)
    keys = jax.random.split(of_layers, depth + 1)
    layers = tuple(Affine.random(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    layers = jax.tree.map(lambda leaf: leaf.astype(actions.dtype), layers)
    inputs, outputs = Scaling.of(triples), Scaling.of(actions)

    def error(layers, places):
        guess = jax.vmap(Surrogate(layers, inputs, outputs))(triples[places])
        return jnp.mean(((guess - actions[places]) / outputs.scale) ** 2)

    import optax  # a slow import, needed here only

    adam = optax.adam(optax.cosine_decay_schedule(_SURROGATE_RATE, steps))

    def step(carry, key):
        layers, memory = carry
        places = jax.random.randint(key, (_SURROGATE_BATCH,), 0, triples.shape[0])
        change, memory = adam.update(jax.grad(error)(layers, places), memory)
        return (jax.tree.map(jnp.add, layers, change), memory), None

    (layers, _), _ = jax.lax.scan(step, (layers, adam.init(layers)), jax.random.split(of_batches, steps))
    return Surrogate(layers, inputs, outputs)


@eqx.filter_jit
def measure_surrogate(
    surrogate: Surrogate, rule: Rule, triples: Float[Array, "n k"], context_dim: int
) -> FittedSurrogate:
    """Return the surrogate with its errors on these triples."""
    dim = (triples.shape[1] - context_dim) // 2

    def true(triple):
        return rule(triple[:context_dim], triple[context_dim:-dim], triple[-dim:])

    def size(array):
        return jnp.sqrt(jnp.mean(array**2))

    actions, slopes = jax.vmap(true)(triples), jax.vmap(jax.jacfwd(true))(triples)[..., context_dim:]
    guesses = jax.vmap(surrogate)(triples)
    guessed_slopes = jax.vmap(jax.jacfwd(surrogate))(triples)[..., context_dim:]
    value_error = size(guesses - actions) / size(actions - actions.mean(0))
    return FittedSurrogate(surrogate, value_error, size(guessed_slopes - slopes) / size(slopes))
