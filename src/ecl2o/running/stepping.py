"""One step of a policy as a compiled function of a few flat arrays.

What a call costs is mostly the number of arrays that go in and out, not the arithmetic: a network behind the calibrator has
dozens, and handing them over one by one takes three times as long as the step. So everything is packed into one vector for
each dtype. What changes from step to step is *carried*; weights, problem and whatever an agent's `init` prepares once is
*shared*, by all steps and all streams. Which is which is read off the traced program.

Programs are made once for each structure and set of shapes, not for each policy: the numbers are arguments.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from ecl2o.agents import AbstractAgent, Info, Observation, Start
from ecl2o.forecasters import AbstractCausalForecaster, AbstractForecaster
from ecl2o.problem import Problem

# From this many numbers an array is handed over by itself: cutting it out of a vector would copy it at every step.
_LARGE = 1 << 14

Vectors = tuple[Any, ...]
Spec = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Setting:
    """The sizes of a run: d, q, contexts in the history, and steps if their number is known."""

    dim: int
    context_dim: int
    seen: int
    horizon: int | None


@dataclasses.dataclass(frozen=True)
class Compiled:
    """`begin(arrays, x0, history) -> (shared, carried)`, `advance(shared, carried, context) -> carried`, and
    `inspect(shared, carried, context) -> Info`, what the agent says about that step.

    The first carried vector begins with the action, its hitting and switching cost, and 1 if a solve did not converge.
    """

    begin: Callable[..., tuple[Vectors, Vectors]]
    advance: Callable[..., Vectors]
    inspect: Callable[..., Info]


@dataclasses.dataclass(frozen=True)
class Program:
    """A policy's step for one stream, and for many at once (every argument but the shared ones has a leading axis)."""

    one: Compiled
    many: Compiled


@dataclasses.dataclass(frozen=True)
class Packing:
    """How arrays of these shapes and dtypes lie in vectors; the first vector begins with the first array."""

    specs: tuple[Spec, ...]

    @functools.cached_property
    def vectors(self) -> list[list[int]]:
        """The arrays in each vector, by their number."""
        found: dict[Any, list[int]] = {}
        for number, spec in enumerate(self.specs):
            alone = number if math.prod(spec.shape) >= _LARGE else None
            found.setdefault((spec.dtype, alone), []).append(number)
        return list(found.values())

    def pack(self, arrays: Sequence[Any]) -> Vectors:
        """Arrays to vectors."""
        flat = [jnp.ravel(array) for array in arrays]
        return tuple(jnp.concatenate([flat[number] for number in vector]) for vector in self.vectors)

    def unpack(self, vectors: Vectors) -> list[Any]:
        """Vectors to arrays."""
        arrays: list[Any] = [None] * len(self.specs)
        for numbers, vector in zip(self.vectors, vectors, strict=True):
            start = 0
            for number in numbers:
                shape = self.specs[number].shape
                stop = start + math.prod(shape)
                arrays[number] = vector[start:stop].reshape(shape)
                start = stop
        return arrays


def make_program(
    agent: AbstractAgent, problem: Problem, forecaster: AbstractForecaster | None, setting: Setting, dtype: np.dtype
) -> tuple[Program, list[Any]]:
    """The compiled steps, and the arrays of agent, problem and forecaster that they take."""
    asked = forecaster if agent.lookahead > 0 else None
    if agent.lookahead > 0 and not isinstance(forecaster, AbstractCausalForecaster):
        given = "none was given" if forecaster is None else f"{type(forecaster).__name__} knows the future"
        raise ValueError(
            f"{type(agent).__name__} looks {agent.lookahead} contexts ahead and needs a forecaster that knows only the "
            f"past, but {given}; use a causal one, for example forecasters.Persistence()."
        )
    leaves, structure = jax.tree.flatten((agent, problem, asked))
    is_array = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    arrays = [leaf for leaf, kept in zip(leaves, is_array, strict=True) if kept]
    constants = tuple(None if kept else leaf for leaf, kept in zip(leaves, is_array, strict=True))
    specs = tuple(Spec(array.shape, array.dtype) for array in arrays)
    return _program(structure, is_array, constants, specs, setting, np.dtype(dtype)), arrays


@functools.lru_cache(maxsize=64)
def _program(structure, is_array, constants, specs, setting: Setting, dtype: np.dtype) -> Program:
    def rebuild(arrays):
        rest = iter(arrays)
        pairs = zip(is_array, constants, strict=True)
        return jax.tree.unflatten(structure, [next(rest) if kept else constant for kept, constant in pairs])

    def begin(arrays, x0, history):
        agent, problem, forecaster = rebuild(arrays)
        memory = None if forecaster is None else forecaster.init(history, agent.lookahead)
        return agent.init(problem, Start(x0, history, setting.horizon)), memory

    def step(arrays, inner, previous, number, context):
        agent, problem, forecaster = rebuild(arrays)
        (state, memory), forecast = inner, None
        if forecaster is not None:
            memory, forecast = forecaster.step(memory, context, agent.lookahead)
        remaining = None if setting.horizon is None else setting.horizon - 1 - number
        seen = Observation(context, previous, number, remaining, forecast)
        state, action, info = agent.step(problem, state, seen)
        bill = problem.hitting(action, context), problem.switching(action, previous), 1.0 - info.converged
        return (state, memory), action, [jnp.asarray(entry, dtype) for entry in bill], info

    x0, history = Spec((setting.dim,), dtype), Spec((setting.seen, setting.context_dim), dtype)
    number, context = Spec((), jnp.zeros((), int).dtype), Spec((setting.context_dim,), dtype)
    inner = jax.eval_shape(begin, specs, x0, history)
    inner_specs, inner_structure = jax.tree.flatten(inner)
    is_shared, counts = _roles(begin, step, specs, inner, (x0, history), (number, context))

    def split(leaves, wanted: bool):
        return [leaf for leaf, shared in zip(leaves, is_shared, strict=True) if shared is wanted]

    shared_packing = Packing((*specs, *split(inner_specs, True)))
    bill = [Spec((), dtype)] * 3
    counter = [number] if counts else []
    carried_packing = Packing((x0, *bill, *counter, *split(inner_specs, False)))

    def packed_begin(arrays, x0, history):
        leaves = jax.tree.leaves(begin(arrays, x0, history))
        nothing_yet = [jnp.zeros(spec.shape, spec.dtype) for spec in (*bill, *counter)]
        carried = [x0, *nothing_yet, *split(leaves, False)]
        return shared_packing.pack([*arrays, *split(leaves, True)]), carried_packing.pack(carried)

    def packed_step(shared, carried, context):
        known = shared_packing.unpack(shared)
        previous, *changing = carried_packing.unpack(carried)
        del changing[: len(bill)]  # the last step's, for the reader only
        count = changing.pop(0) if counts else jnp.zeros((), number.dtype)
        prepared, changing = iter(known[len(specs) :]), iter(changing)
        leaves = [next(prepared) if is_prepared else next(changing) for is_prepared in is_shared]
        inner = jax.tree.unflatten(inner_structure, leaves)
        inner, action, costs, info = step(known[: len(specs)], inner, previous, count, context)
        carried = [action, *costs, *([count + 1] if counts else []), *split(jax.tree.leaves(inner), False)]
        return carried_packing.pack(carried), info

    def advance(shared, carried, context):
        return packed_step(shared, carried, context)[0]

    def inspect(shared, carried, context):
        return packed_step(shared, carried, context)[1]

    one = Compiled(jax.jit(packed_begin), jax.jit(advance), jax.jit(inspect))
    of_streams = functools.partial(jax.vmap, in_axes=(None, 0, 0))
    many = Compiled(
        jax.jit(of_streams(packed_begin, out_axes=(None, 0))),
        jax.jit(of_streams(advance)),
        jax.jit(of_streams(inspect)),
    )
    return Program(one, many)


def _roles(begin, step, specs, inner, start, now) -> tuple[list[bool], bool]:
    """Which leaves of the state are shared (no step changes them, no start decides them), and whether steps are counted.

    Refuses a state that changes its structure, shapes or dtypes.
    """
    traced_begin = jax.make_jaxpr(begin)(specs, *start).jaxpr
    closed_step, outputs = jax.make_jaxpr(step, return_shape=True)(specs, inner, start[0], *now)
    before, after = jax.tree.flatten(inner), jax.tree.flatten(outputs[0])
    same = [(a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(before[0], after[0], strict=False)]
    if before[1] != after[1] or not all(same):
        raise TypeError("a step must return a state of the same structure, shapes and dtypes as it was given.")
    traced_step, count = closed_step.jaxpr, len(before[0])
    given = traced_step.invars[len(specs) : len(specs) + count]
    kept = [out is into for out, into in zip(traced_step.outvars[:count], given, strict=True)]
    decided = _reached(traced_begin, traced_begin.invars[len(specs) :])
    shared = [is_kept and not is_decided for is_kept, is_decided in zip(kept, decided, strict=True)]
    return shared, any(_reached(traced_step, [traced_step.invars[-2]]))


def _reached(jaxpr, sources) -> list[bool]:
    """Which outputs of a traced program depend on these inputs."""
    reached = set(sources)
    for equation in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return [not isinstance(v, jex.Literal) and v in reached for v in jaxpr.outvars]
