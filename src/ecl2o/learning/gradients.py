"""Where the gradient of training comes from: back-propagation, or one of the two ways that the paper argues against.

The calibrator is an optimisation problem inside the model. The paper differentiates it exactly (section 4.5); without that one
would estimate the gradient from values of the loss alone (`ZeroOrder`), or learn a differentiable stand-in for the calibrator
first (`SurrogateCalibrator`). They are here so that the argument can be measured (docs/gradient-study.md). Whatever the
gradient, what is trained is the advisor, and what comes out of `fit` is the true agent.
"""

import abc
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ecl2o.agents import MLAROBD, AbstractAgent, Calibration, Observation, Start, calibrate
from ecl2o.agents.advisors.networks import Affine, Scaling
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import as_float, check_count, check_positive

# An agent to its loss on the batch at hand.
AgentLoss = Callable[[AbstractAgent], Float[Array, ""]]
# (context, previous action, advice) to an action.
Rule = Callable[[Float[Array, " q"], Float[Array, " d"], Float[Array, " d"]], Float[Array, " d"]]


class AbstractGradient(eqx.Module):
    """A way to the gradient of the loss in the weights."""

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """What one step costs, in evaluations of the loss on a batch; a backward pass counts as two."""

    @abc.abstractmethod
    def prepare_for(
        self, agent: AbstractAgent, problem: Problem, instances: Instance, oracles: Trajectory, key: PRNGKeyArray
    ) -> "AbstractGradient":
        """The same, ready to train this agent on this training set. Refuses an agent that it cannot serve."""

    @abc.abstractmethod
    def value_and_grad(
        self, loss: AgentLoss, weights: PyTree, frozen: PyTree, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], PyTree]:
        """(loss, its gradient in the weights) of the agent that weights and frozen leaves make up; one training step."""

    @abc.abstractmethod
    def report(self) -> dict[str, float]:
        """What a reader of the training log should know about it."""


class Backpropagation(AbstractGradient):
    """The true gradient, by differentiating the roll-out and the calibrator in it (section 4.5 and erratum E7)."""

    @property
    def evaluations(self) -> int:
        return 3

    def prepare_for(self, agent, problem, instances, oracles, key) -> "Backpropagation":
        return self

    def value_and_grad(self, loss, weights, frozen, key):
        return jax.value_and_grad(lambda w: loss(eqx.combine(w, frozen)))(weights)

    def report(self) -> dict[str, float]:
        return {}


class ZeroOrder(AbstractGradient):
    """The gradient of the loss smoothed by a Gaussian, estimated from values of the loss alone (docs/gradient-study.md).

    The mean over `directions` draws u of (L(W + s u) - L(W - s u)) / (2 s) u, all on the same batch. s is `sigma` times the
    root mean square of the weights. The loss that training logs is the mean of those values.

    Args:
        directions: draws for each gradient. Default: 16.
        sigma: how far to look, as a share of the root mean square of the weights. Default: 0.001.
    """

    directions: int = eqx.field(static=True, default=16)
    sigma: Float[Array, ""] = eqx.field(converter=as_float, default=1e-3)

    def __check_init__(self):
        check_count("directions", self.directions)
        check_positive("sigma", self.sigma)

    @property
    def evaluations(self) -> int:
        return 2 * self.directions

    def prepare_for(self, agent, problem, instances, oracles, key) -> "ZeroOrder":
        return self

    def value_and_grad(self, loss, weights, frozen, key):
        flat, unflatten = ravel_pytree(weights)
        spread = jnp.sqrt(jnp.mean(flat**2))
        reach = self.sigma * jnp.where(spread > 0, spread, 1.0)
        draws = jax.random.normal(key, (self.directions, flat.size), flat.dtype)
        moves = reach * jnp.stack([draws, -draws])
        forth, back = jax.vmap(jax.vmap(lambda move: loss(eqx.combine(unflatten(flat + move), frozen))))(moves)
        return jnp.mean(forth + back) / 2, unflatten((forth - back) @ draws / (2 * reach * self.directions))

    def report(self) -> dict[str, float]:
        return {}


# --- a stand-in for the calibrator ----------------------------------------------------------------------------------


class TrueCalibrator(eqx.Module):
    """R_lambda(y, x_prev, advice) of one agent, as the function that a surrogate is to resemble."""

    problem: Problem
    calibration: Calibration

    def __call__(
        self, context: Float[Array, " q"], previous: Float[Array, " d"], advice: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return calibrate(self.problem, self.calibration, context, previous, advice)[0]


class Surrogate(eqx.Module):
    """R-hat(y, x_prev, advice): tanh layers and a linear one on scaled inputs; with a single layer, an affine map."""

    layers: tuple[Affine, ...]
    inputs: Scaling
    outputs: Scaling

    def __call__(
        self, context: Float[Array, " q"], previous: Float[Array, " d"], advice: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return self.on(jnp.concatenate([context, previous, advice]))

    def on(self, triple: Float[Array, " k"]) -> Float[Array, " d"]:
        """The same on one vector."""
        hidden = self.inputs.standardize(triple)
        for layer in self.layers[:-1]:
            hidden = jnp.tanh(layer(hidden))
        return self.outputs.restore(self.layers[-1](hidden))


class FittedSurrogate(eqx.Module):
    """R-hat, and how far it is from R on triples that it was not fitted on.

    `value_error` is the root mean square of R-hat - R over the standard deviation of R. `jacobian_error` is the
    root mean square of the error of the Jacobians in previous action and advice over that of the true ones.
    """

    surrogate: Surrogate
    value_error: Float[Array, ""]
    jacobian_error: Float[Array, ""]


class ThroughSurrogate(AbstractAgent):
    """A calibrated agent whose derivatives are the surrogate's: straight through, or played as it is.

    Straight through, actions are the true ones, and only going backward is the calibrator mistaken for its surrogate.
    """

    agent: AbstractAgent
    surrogate: Surrogate
    straight_through: bool = eqx.field(static=True)

    @property
    def advisor(self) -> AbstractAgent:
        """Whose advice is calibrated."""
        assert isinstance(self.agent, MLAROBD)
        return self.agent.advisor

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start):
        return self.agent.init(problem, start)

    def step(self, problem: Problem, state, observation: Observation):
        state, action, info = self.agent.step(problem, state, observation)
        assert info.advice is not None
        instead = self.surrogate(observation.context, observation.previous_action, jnp.asarray(info.advice))
        if self.straight_through:
            return state, jax.lax.stop_gradient(action) + (instead - jax.lax.stop_gradient(instead)), info
        return state, problem.actions.project(instead), info


class SurrogateCalibrator(AbstractGradient):
    """The gradient through a stand-in R-hat for the calibrator, fitted once by least squares on sampled triples.

    `kind="linear"` is an affine map, exact where R_lambda is one (quadratics of constant curvature without active bounds);
    "mlp" is a network of `depth` tanh layers of `width`, trained by Adam for `steps` steps. With `straight_through`
    the roll-out is the true one and only its Jacobians are R-hat's; without, R-hat takes the calibrator's place altogether, and
    the logged loss is that of the stand-in.

    Triples are drawn where training will go: a context and the oracle's action of the same step of the training set, the
    previous action and the advice around that action, by one standard deviation of the oracle's actions.

    Args:
        kind: "linear" or "mlp". Default: "mlp".
        straight_through: whether values stay the true ones. Default: true.
        samples: triples that it is fitted on. Default: 4096.
        width: units of each layer. Default: 32.
        depth: how many layers. Default: 2.
        steps: of Adam. Default: 2000.
        fitted: set by `fit`. Default: not yet.
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
            raise TypeError(f"SurrogateCalibrator stands in for MLAROBD's calibrator, got {type(agent).__name__}.")
        first = Start(instances.x0[0], instances.past[0], instances.horizon)
        _, calibration = agent.init(problem, first)
        rule = TrueCalibrator(problem, calibration)
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
        assert self.fitted is not None, "ready_for comes first"
        surrogate = self.fitted.surrogate

        def through(weights):
            return loss(ThroughSurrogate(eqx.combine(weights, frozen), surrogate, self.straight_through))

        return jax.value_and_grad(through)(weights)

    def report(self) -> dict[str, float]:
        assert self.fitted is not None, "ready_for comes first"
        return {
            "value_error": float(self.fitted.value_error),
            "jacobian_error": float(self.fitted.jacobian_error),
        }


@eqx.filter_jit
def _examples(
    rule: Rule, problem: Problem, instances: Instance, oracles: Trajectory, count: int, key: PRNGKeyArray
) -> tuple[Float[Array, "n k"], Float[Array, "n d"]]:
    """(y, x_prev, advice) as rows, and what the true calibrator makes of them."""
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
    """The affine map of least squares, in double precision."""
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
    """A network fitted by Adam on random batches, with a learning rate that falls to zero."""
    sizes = [triples.shape[1], *[width] * depth, actions.shape[1]]
    of_layers, of_batches = jax.random.split(key)
    keys = jax.random.split(of_layers, depth + 1)
    layers = tuple(Affine.random(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    layers = jax.tree.map(lambda leaf: leaf.astype(actions.dtype), layers)
    inputs, outputs = Scaling.of(triples), Scaling.of(actions)

    def error(layers, places):
        guess = jax.vmap(Surrogate(layers, inputs, outputs).on)(triples[places])
        return jnp.mean(((guess - actions[places]) / outputs.scale) ** 2)

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
    """The surrogate with its errors on these triples."""
    dim = (triples.shape[1] - context_dim) // 2

    def true(triple):
        return rule(triple[:context_dim], triple[context_dim:-dim], triple[-dim:])

    def size(array):
        return jnp.sqrt(jnp.mean(array**2))

    actions, slopes = jax.vmap(true)(triples), jax.vmap(jax.jacfwd(true))(triples)[..., context_dim:]
    guesses = jax.vmap(surrogate.on)(triples)
    guessed_slopes = jax.vmap(jax.jacfwd(surrogate.on))(triples)[..., context_dim:]
    value_error = size(guesses - actions) / size(actions - actions.mean(0))
    return FittedSurrogate(surrogate, value_error, size(guessed_slopes - slopes) / size(slopes))
