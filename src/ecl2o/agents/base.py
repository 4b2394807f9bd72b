"""The interface of agents: a PyTree with `init` and `step`, what it is given, what it returns, and which leaves are trained.

The played action is in the observation, never in an agent's state, so that a wrapper can play something else than its
inner agent proposed.
"""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ecl2o.agents.promise import Promise
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Info
from ecl2o.solvers.single_kernel_jit import jit_loop_body

State = Any
Carry = TypeVar("Carry")
AnyProblem = Any  # a `Problem`, or a `ControlProblem` where an agent takes one; each agent says which


class Trainable(eqx.Module):
    """The base class of weights: every array inside a `Trainable` is trained, and no other.

    >>> import jax.numpy as jnp
    >>> class Gain(Trainable):
    ...     weight: jnp.ndarray
    >>> bool(trainable_mask(Gain(jnp.ones(2))).weight)
    True
    """


def trainable_mask(agent: PyTree) -> PyTree:
    """Mark the weights of an agent, to train it with your own optax loop.

    Every number of an agent is an array, so that it can be vmapped: trust, slack and scales too. A filter by dtype, such as
    `eqx.partition(agent, eqx.is_inexact_array)`, trains them all, and they leave their ranges. This mask selects by type.

    Args:
        agent: any tree of modules.

    Returns:
        The same tree with True at the arrays inside a `Trainable` and False elsewhere.

    >>> import equinox as eqx, jax, optax, ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0], [2.0]])
    >>> agent = ec.MLAROBD(ec.advisors.MLP(dim=1, context_dim=1, key=jax.random.key(0)), trust=0.5)
    >>> weights, frozen = eqx.partition(agent, trainable_mask(agent))
    >>> gradient = jax.grad(lambda w: ec.rollout(eqx.combine(w, frozen), problem, day).cost)(weights)
    >>> optimizer = optax.adam(1e-3)
    >>> change, state = optimizer.update(gradient, optimizer.init(weights))
    >>> trained = eqx.combine(optax.apply_updates(weights, change), frozen)
    >>> float(trained.trust)
    0.5
    """

    def mark(node):
        return jax.tree.map(lambda _: isinstance(node, Trainable), node)

    return jax.tree.map(mark, agent, is_leaf=lambda node: isinstance(node, Trainable))


class Start(eqx.Module):
    """What is known before the first step.

    Args:
        x0: (d,), the action in force before the first step.
        history: (H, q), the contexts before the first step; H may be 0.
        horizon: T, the number of steps. Default: None, not known.
        unseen: How many rows at the front of the history are padding (NaN), for agents of any length of history in one
            program; only `OnlineRidge` gets them. Default: None, no row is padding.

    >>> import jax.numpy as jnp
    >>> Start(jnp.zeros(2), jnp.zeros((0, 3))).dim
    2
    """

    x0: Float[Array, " d"]
    history: Float[Array, "H q"]
    horizon: int | None = eqx.field(static=True, default=None)
    unseen: Int[Array, ""] | None = None

    @property
    def dim(self) -> int:
        """d, the dimension of actions."""
        return self.x0.shape[0]

    def fold_history(self, advance: Callable[[Carry, Float[Array, " q"]], Carry], state: Carry) -> Carry:
        """Return the state after `advance(state, context)` for each context of the history, padding apart."""
        if self.history.shape[0] == 0:
            return state
        if self.unseen is None:
            return jax.lax.scan(lambda carry, context: (advance(carry, context), None), state, self.history)[0]
        rows = self.unseen, self.history.shape[0]
        advance = jit_loop_body(advance, state, self.history[0])
        return jax.lax.fori_loop(*rows, lambda t, carry: advance(carry, self.history[t]), state)


class Observation(eqx.Module):
    """What is known at a step, when its action is due.

    Args:
        context: (q,), y_t.
        previous_action: (d,), x_{t-1}, the action that was played; the state (n,) of a `ControlProblem`.
        step: the number of steps before this one: 0 at the first.
        remaining: the number of steps after this one. Default: None, the horizon is not known.
        forecast: (w, q), predictions of the next contexts, for agents with a lookahead. Default: None.
        skipped: the steps of a short first period that lie before the run. Default: None, as none.

    >>> import jax.numpy as jnp
    >>> now = Observation(jnp.ones(1), jnp.zeros(1), jnp.array(0), forecast=jnp.zeros((3, 1)))
    >>> now.known_contexts(2).shape
    (3, 1)
    """

    context: Float[Array, " q"]
    previous_action: Float[Array, " d"]
    step: Int[Array, ""]
    remaining: Int[Array, ""] | None = None
    forecast: Float[Array, "w q"] | None = None
    skipped: Int[Array, ""] | None = None

    @property
    def place(self) -> Int[Array, ""]:
        """The place of the step in its period, from 0; it differs from `step` in a period that started before the run."""
        return self.step if self.skipped is None else self.step + self.skipped

    def known_contexts(self, window: int) -> Float[Array, "steps q"]:
        """Return y_t and the next `window` forecasts, (window + 1, q); raise NotApplicableError if there are fewer."""
        if window == 0:
            return self.context[None]
        if self.forecast is None or self.forecast.shape[0] < window:
            got = "none" if self.forecast is None else self.forecast.shape[0]
            raise NotApplicableError(f"this agent plans with forecasts of {window} future contexts, got {got}.")
        return jnp.concatenate([self.context[None], self.forecast[:window]])

    def with_lookahead(self, window: int) -> "Observation":
        """Return the observation with the first `window` forecasts only; a wrapper may have asked for more."""
        forecast = None if self.forecast is None or window == 0 else self.forecast[:window]
        return dataclasses.replace(self, forecast=forecast)

    def in_period(self, period: int, age: Int[Array, ""]) -> "Observation":
        """Return the observation with the clock of a period of so many steps, `age` steps after its last restart."""
        phase = self.place % period
        left = period - 1 - phase
        if self.remaining is not None:
            left = jnp.minimum(left, self.remaining)
        return dataclasses.replace(self, step=age, remaining=left, skipped=phase - age)

    @property
    def steps_left(self) -> Int[Array, ""]:
        """The number of steps until the horizon, this one included."""
        if self.remaining is None:
            raise NotApplicableError("truncate=True needs Observation.remaining; use truncate=False without a horizon.")
        return self.remaining + 1


class AbstractAgent(eqx.Module):
    """The base class of everything that acts: experts, planners, networks, and wrappers around them.

    Write `init` and `step`. Override `lookahead`, `check`, `promise` and `is_linear` where their defaults are wrong. Check
    numbers in `__check_init__` with `ecl2o.problem.arrays`: it runs when the agent is made and again before each run.
    A class that can be instantiated is final: what it says about itself need not hold for a subclass.

    >>> import equinox as eqx, jax.numpy as jnp, ecl2o as ec
    >>> class Follow(ec.AbstractAgent):
    ...     '''Move a share of the way toward the context.'''
    ...
    ...     share: jnp.ndarray = eqx.field(converter=jnp.asarray, default=0.5)
    ...
    ...     def init(self, problem, start):
    ...         if start.history.shape[1] != start.dim:
    ...             raise ec.NotApplicableError("Follow needs one number of the context for each number of an action.")
    ...
    ...     def step(self, problem, state, observation):
    ...         way = observation.context - observation.previous_action
    ...         action = problem.actions.project(observation.previous_action + self.share * way)
    ...         return state, action, ec.Info.plain()
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0], [2.0]])
    >>> ec.rollout(Follow(), problem, day).actions.ravel().tolist()
    [0.5, 1.25]
    >>> bool(ec.rollout(ec.Guarded(Follow()), problem, day).converged.all())
    True
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for parent in cls.__mro__[1:]:
            abstract = inspect.isabstract(parent) or getattr(parent, "__abstractvars__", ())
            if issubclass(parent, AbstractAgent) and not abstract:
                raise TypeError(
                    f"{parent.__name__} is final: {cls.__name__} must hold it in a field or derive from AbstractAgent."
                )

    @property
    def lookahead(self) -> int:
        """How many future contexts `step` needs in `Observation.forecast`. Default: as many as the agents inside, or 0."""
        return max((inner.lookahead for inner in child_agents(self)), default=0)

    @property
    def periods(self) -> list[int]:
        """After how many steps this agent, or one inside, restarts something, such as a promise. Default: those inside."""
        return [period for inner in child_agents(self) for period in inner.periods]

    @property
    def renews_promise(self) -> bool:
        """Whether its promise is made anew when its period ends. Default: whether that of an agent inside is."""
        return any(inner.renews_promise for inner in child_agents(self))

    @property
    def known_as(self) -> tuple[str, ...]:
        """The names by which descriptions and `citation` know it. Default: that of its class."""
        return (type(self).__name__,)

    def around_proposals(self, wrap: Callable[["AbstractAgent"], "AbstractAgent"]) -> "AbstractAgent":
        """Return the agent with `wrap` around what proposes actions. Default: around the agent itself.

        An agent that only bounds or reports another one's actions passes `wrap` on to the agent inside (`pass_inside`).
        """
        return wrap(self)

    @abc.abstractmethod
    def init(self, problem: AnyProblem, start: Start) -> State:
        """Return the state before the first step. Called once per run, inside the compiled program.

        Compute here what the run needs once, such as factors of matrices, and keep it in the state.

        Args:
            problem: costs and action set, in the precision of `start.x0`.
            start: x_0, the history and the horizon. Warm up memory made of contexts on `start.history`.

        Returns:
            Any PyTree of arrays, or None. Its structure, shapes and dtypes must not change from step to step.

        Raises:
            NotApplicableError: if the problem or the run does not fit: a kind of cost, a dimension, no horizon.
        """

    @abc.abstractmethod
    def step(
        self, problem: AnyProblem, state: State, observation: Observation
    ) -> tuple[State, Float[Array, " d"], Info]:
        """Choose an action. Called at every step, inside the compiled program.

        Args:
            problem: the same as in `init`.
            state: what `init` or the last `step` returned.
            observation: the context, the action that was really played before, the step and the forecasts.

        Returns:
            The state after the step, the action (d,), and an `Info`; `Info.plain()` if there is nothing to report.
            Clear `Info.converged` where a solve failed. Wrappers put the inner agent's report into `Info.inner`.
        """

    def check(self, problem: AnyProblem, start: Start) -> None:
        """Reject an agent that does not fit, before anything is compiled. `rollout` and `Runner` call it once per run.

        The default runs `__check_init__` again, since `eqx.tree_at` and optimisers change numbers without it, and checks the
        agents inside. Override it to reject concrete values that would fail inside the compiled run; call `super().check`.

        Args:
            problem: costs and action set.
            start: x_0, the history and the horizon.

        Raises:
            ValueError: if a number is out of its range.
            NotApplicableError: if the problem or the run does not fit.
        """
        check_fields(self)
        for inner in child_agents(self):
            inner.check(problem, start)

    def promise(self, problem: AnyProblem) -> Promise | None:
        """Return what is promised about the cost of the actions that this agent plays. Default: None, nothing."""
        return None

    def is_linear(self, problem: AnyProblem) -> bool:
        """Return whether actions are linear in x_0, history, contexts and forecasts by construction. Default: False.

        `certify` calls a worst case exact on the strength of this answer. A wrapper is linear if the agent inside is and what it
        adds is. Agents that clip, switch, guard, learn while running or have a constant part are not linear.
        """
        return False


def pass_inside(self: Any, wrap: Callable[[AbstractAgent], AbstractAgent]) -> AbstractAgent:
    """Return the agent with `wrap` around what proposes in its field `agent`: the `around_proposals` of wrappers."""
    return dataclasses.replace(self, agent=self.agent.around_proposals(wrap))


def check_fields(module: eqx.Module) -> None:
    """Run `__check_init__` of a module and of the modules in its fields, except for agents, which `check` themselves."""
    for kind in type(module).__mro__:
        if "__check_init__" in vars(kind):
            vars(kind)["__check_init__"](module)
    for value in _field_values(module):
        if isinstance(value, eqx.Module) and not isinstance(value, AbstractAgent):
            check_fields(value)


def child_agents(module: eqx.Module) -> Iterator[AbstractAgent]:
    """Yield the agents in the fields of an agent, also in tuples, lists and modules there, in the order of the fields."""
    for value in _field_values(module):
        if isinstance(value, AbstractAgent):
            yield value
        elif isinstance(value, eqx.Module):
            yield from child_agents(value)


def walk_agents(agent: AbstractAgent) -> Iterator[AbstractAgent]:
    """Yield the agent and every agent inside it, however deep, the outermost first.

    Args:
        agent: The outermost agent.

    >>> import ecl2o as ec
    >>> [type(found).__name__ for found in walk_agents(ec.Guarded(ec.PureML(ec.Greedy())))]
    ['Guard', 'PureML', 'Greedy', 'ROBD']
    """
    yield agent
    for inner in child_agents(agent):
        yield from walk_agents(inner)


def _field_values(module: eqx.Module) -> list[Any]:
    """Return the values of the fields, with tuples and lists flattened."""
    fields = [getattr(module, field.name) for field in dataclasses.fields(module)]
    return jax.tree.leaves(fields, is_leaf=lambda value: not isinstance(value, tuple | list))
