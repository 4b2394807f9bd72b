"""Compile a stepper to functions of a few flat arrays, and estimate its memory from the traced programs.

The time of a call is mostly that of handing over arrays, of which a network behind the calibrator has dozens. So arrays are
packed into one vector for each dtype, flags among the numbers. State that changes from step to step is *carried*. Weights, the
problem and what `init` prepares once are *shared* by all steps and streams. The step's number is *idle*, and left out, if the
agent never reads it. The traced program tells which is which. Programs are made once for each structure and set of shapes:
numbers are arguments.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from ecl2o.agents import Info, Start
from ecl2o.exceptions import MemoryLimitError
from ecl2o.running.stepper import StepperState
from ecl2o.solvers.single_kernel_jit import fits_single_kernel, inner_jaxprs, jit_single_kernel

MOST_BYTES = 1 << 30  # of a stream's state, and of the output of any one operation of a step


def check_stream_bytes(count: int, most: int = MOST_BYTES) -> None:
    """Raise MemoryLimitError if a stream needs more than `most` bytes."""
    if count > most:
        raise MemoryLimitError(
            f"one stream would take {_format_bytes(count)} of memory, and at most {_format_bytes(most)} are allowed; shorten the "
            "policy's windows, periods, days or horizons."
        )


def count_bytes(arrays: Iterable[Any]) -> int:
    """Return the bytes of arrays of these shapes and dtypes."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def largest_allocation(program: jex.Jaxpr) -> int:
    """Return the most bytes that any one operation of a traced program outputs, in its loops and branches too.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> largest_allocation(jax.make_jaxpr(lambda x: jnp.sum(jnp.outer(x, x)))(jnp.ones(100, "float32")).jaxpr)
    40000
    """
    made = [count_bytes(out.aval for out in equation.outvars) for equation in program.eqns]
    inside = [largest_allocation(inner) for equation in program.eqns for inner in inner_jaxprs(equation.params)]
    return max([0, *made, *inside])


def count_equations(program: jex.Jaxpr) -> int:
    """Return the number of operations of a traced program, in its loops and branches too.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> count_equations(jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0).jaxpr)
    5
    """
    inside = (count_equations(inner) for equation in program.eqns for inner in inner_jaxprs(equation.params))
    return len(program.eqns) + sum(inside)


def _format_bytes(count: int) -> str:
    unit, size = ("GiB", 1 << 30) if count >= 1 << 30 else ("MiB", 1 << 20)
    return f"{count / size:.0f} {unit}"


# From this many numbers an array is handed over by itself: cutting it out of a vector would copy it at every step.
_LARGE = 1 << 10

Vectors = tuple[Any, ...]
Spec = jax.ShapeDtypeStruct
Role = Literal["carried", "shared", "idle"]
# Among the leaves of a state: the one field before it, the action, is one leaf.
_CLOCK = StepperState._fields.index("step")


@dataclasses.dataclass(frozen=True)
class RunShape:
    """The sizes of a run."""

    dim: int  # d
    context_dim: int  # q
    seen: int  # contexts in the history
    horizon: int | None  # steps, if their number is known


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """The compiled functions of one stream, or of many. The first carried vector begins with `StepOutput`.

    For many streams, `advance(shared, carried, spare, contexts, asked) -> (carried, advanced)` advances those that are asked
    and have a finite result. The new vectors overwrite the spare ones: allocating memory takes longer than the step.
    """

    begin: Callable[..., tuple[Vectors, Vectors]]  # (arrays, x0, history) -> (shared, carried)
    share: Callable[..., Vectors]  # (arrays) -> shared, for runs that have started
    advance: Callable[..., Any]  # (shared, carried, context) -> carried
    inspect: Callable[..., Info]  # (shared, carried, context) -> the agent's report on that step
    play: Callable[..., tuple[Vectors, Info]]  # `advance` and `inspect` in one
    figures: Callable[..., dict[str, Any]]  # (shared, carried, context) -> the arrays in the report's details, by name


class StepOutput(NamedTuple):
    """The result of the last step, read from the first carried vector."""

    action: np.ndarray
    # Hitting, switching, 1 if a solve did not converge; if screened, 1 if replaced, 1 if any number is stuck.
    costs: np.ndarray
    context: np.ndarray | None  # the context that was used, if contexts are screened
    stuck: np.ndarray | None  # 1 for each number of the context that is stuck, if contexts are screened

    @classmethod
    def read(cls, vector: np.ndarray, sizes: RunShape, screened: bool) -> "StepOutput":
        """Read it from the first carried vector, of one stream or of many."""
        start, stop = sizes.dim, sizes.dim + cls.costs_length(screened)
        action, costs = vector[..., :start], vector[..., start:stop]
        if not screened:
            return cls(action, costs, None, None)
        middle, end = stop + sizes.context_dim, stop + 2 * sizes.context_dim
        return cls(action, costs, vector[..., stop:middle], vector[..., middle:end])

    @staticmethod
    def costs_length(screened: bool) -> int:
        """Return the number of costs and flags."""
        return 5 if screened else 3

    @classmethod
    def length(cls, sizes: RunShape, screened: bool) -> int:
        """Return the number of entries in the vector."""
        return sizes.dim + cls.costs_length(screened) + (2 * sizes.context_dim if screened else 0)


class ProgramSize(NamedTuple):
    """The largest allocation of a step, and the number of operations of start and step together."""

    step_bytes: int
    equations: int


@dataclasses.dataclass(frozen=True)
class CompiledStepper:
    """A policy's step, compiled for one stream and for many.

    For many streams all arguments but the shared ones have a leading axis. `streams(None)` is for streams of one policy;
    `streams(0)` for streams with a policy each, where shared vectors and the stepper's arrays have that axis too.
    """

    one: StepFunctions
    carried: tuple[Spec, ...]  # the shapes of one stream's carried vectors
    streams: Callable[[int | None], StepFunctions]
    size: ProgramSize
    clock: tuple[int, int] | None  # the carried vector with the step's number, and its place; None: no step uses it

    def set_clock(self, carried: Vectors, step: int) -> Vectors:
        """Return the carried vectors, of one stream or of many, with another number for the next step."""
        if self.clock is None or not step:
            return carried
        number, place = self.clock
        vectors = [np.array(vector) if i == number else vector for i, vector in enumerate(carried)]
        vectors[number][..., place] = step
        return tuple(vectors)


@dataclasses.dataclass(frozen=True)
class VectorLayout:
    """The positions of arrays in vectors, one for each dtype; the first vector begins with the first array.

    Flags are 0 and 1 in a vector of floats, if there is one: a vector more would take as long as a hundred operations.
    """

    specs: tuple[Spec, ...]

    @functools.cached_property
    def _found(self) -> dict[tuple[Any, int | None], list[int]]:
        """The numbers of the arrays in each vector, by its dtype and, of a large array, its number."""
        found: dict[Any, list[int]] = {}
        floats = [spec.dtype for spec in self.specs if jnp.issubdtype(spec.dtype, jnp.floating)]
        for number, spec in enumerate(self.specs):
            alone = number if math.prod(spec.shape) >= _LARGE else None
            joins = spec.dtype == bool and alone is None and floats
            found.setdefault((floats[0] if joins else spec.dtype, alone), []).append(number)
        return found

    @property
    def vectors(self) -> list[list[int]]:
        """The numbers of the arrays in each vector."""
        return list(self._found.values())

    @property
    def vector_specs(self) -> tuple[Spec, ...]:
        """The lengths and dtypes of the vectors."""
        lengths = [sum(math.prod(self.specs[number].shape) for number in vector) for vector in self.vectors]
        return tuple(Spec((length,), kind) for length, (kind, _) in zip(lengths, self._found, strict=True))

    def find(self, number: int) -> tuple[int, int]:
        """Return the vector that an array is in, and its place there."""
        for place, vector in enumerate(self.vectors):
            if number in vector:
                before = vector[: vector.index(number)]
                return place, sum(math.prod(self.specs[other].shape) for other in before)
        raise IndexError(number)

    def pack(self, arrays: Sequence[Any]) -> Vectors:
        """Pack arrays into vectors."""
        flat = [jnp.ravel(array) for array in arrays]
        return tuple(
            jnp.concatenate([flat[number].astype(kind) for number in vector])
            for (kind, _), vector in self._found.items()
        )

    def unpack(self, vectors: Vectors) -> list[Any]:
        """Cut vectors into arrays."""
        arrays: list[Any] = [None] * len(self.specs)
        for numbers, vector in zip(self.vectors, vectors, strict=True):
            start = 0
            for number in numbers:
                spec = self.specs[number]
                stop = start + math.prod(spec.shape)
                arrays[number] = vector[start:stop].reshape(spec.shape).astype(spec.dtype)
                start = stop
        return arrays


def compile_stepper(stepper: eqx.Module, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
    """Compile a `Stepper`, or a module with its `init` and `step`; return the functions and the arrays that they take."""
    leaves, structure = jax.tree.flatten(stepper)
    is_array = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    arrays = [leaf for leaf, kept in zip(leaves, is_array, strict=True) if kept]
    constants = tuple(None if kept else leaf for leaf, kept in zip(leaves, is_array, strict=True))
    specs = tuple(Spec(array.shape, array.dtype) for array in arrays)
    return _program(structure, is_array, constants, specs, sizes, np.dtype(dtype)), arrays


@functools.lru_cache(maxsize=64)
def _program(structure, is_array, constants, specs, sizes: RunShape, dtype: np.dtype) -> CompiledStepper:
    def rebuild(arrays) -> Any:
        rest = iter(arrays)
        pairs = zip(is_array, constants, strict=True)
        return jax.tree.unflatten(structure, [next(rest) if kept else constant for kept, constant in pairs])

    def to_begin(arrays, x0, history):
        return rebuild(arrays).init(Start(x0, history, sizes.horizon))

    def to_step(arrays, state, context):
        state, made = rebuild(arrays).step(state, context)
        entries = [made.hitting, made.switching, 1.0 - made.info.converged]
        if made.screened is not None and made.stuck is not None and state.screen is not None:
            entries += [jnp.any(made.screened), jnp.any(made.stuck), state.screen.used, made.stuck]
        return state, [jnp.asarray(entry, dtype) for entry in entries], made.info

    x0, history = Spec((sizes.dim,), dtype), Spec((sizes.seen, sizes.context_dim), dtype)
    context = Spec((sizes.context_dim,), dtype)
    begin_jaxpr, begin, state = _trace(to_begin, specs, x0, history)
    check_stream_bytes(count_bytes(jax.tree.leaves(state)))  # before the step is traced, which may make tables as long
    step_jaxpr, step, outputs = _trace(to_step, specs, state, context)
    size = ProgramSize(largest_allocation(step_jaxpr), count_equations(begin_jaxpr) + count_equations(step_jaxpr))
    check_stream_bytes(size.step_bytes)
    state_specs, state_structure = jax.tree.flatten(state)
    new_specs, new_structure = jax.tree.flatten(outputs[0])
    # Weak types may differ, so the specs themselves are not compared.
    shapes, new_shapes = ([(spec.shape, spec.dtype) for spec in each] for each in (state_specs, new_specs))
    if (shapes, state_structure) != (new_shapes, new_structure):
        raise TypeError("a step must return a state of the same structure, shapes and dtypes as it was given.")
    roles = _roles(begin_jaxpr, step_jaxpr, len(specs), len(state_specs))

    def having(role: str, leaves):
        return [leaf for leaf, its in zip(leaves, roles, strict=True) if its == role]

    # The action is the state's first leaf; the costs come after it, so that one slice holds both (`StepOutput`).
    screened = state.screen is not None
    cost_specs = [Spec((), dtype)] * StepOutput.costs_length(screened) + ([context, context] if screened else [])
    shared_packing = VectorLayout((*specs, *having("shared", state_specs)))
    carried_packing = VectorLayout((x0, *cost_specs, *having("carried", state_specs)[1:]))

    clock = None
    if roles[_CLOCK] == "carried":  # the action, which comes first, is carried too
        clock = carried_packing.find(len(cost_specs) + roles[:_CLOCK].count("carried"))

    def pack_carried(state, costs):
        action, *rest = having("carried", jax.tree.leaves(state))
        return carried_packing.pack([action, *costs, *rest])

    def pack_shared(arrays, state):
        return shared_packing.pack([*arrays, *having("shared", jax.tree.leaves(state))])

    def share(arrays):  # shared arrays do not depend on the start
        return pack_shared(arrays, begin(arrays, *(jnp.zeros(spec.shape, dtype) for spec in (x0, history))))

    def packed_begin(arrays, x0, history):
        state = begin(arrays, x0, history)
        return pack_shared(arrays, state), pack_carried(state, [jnp.zeros(spec.shape, dtype) for spec in cost_specs])

    def packed_step(shared, carried, context):
        known = shared_packing.unpack(shared)
        action, *rest = carried_packing.unpack(carried)
        kept, changing = iter(known[len(specs) :]), iter([action, *rest[len(cost_specs) :]])
        found = {"shared": kept.__next__, "carried": changing.__next__}
        leaves = [
            jnp.zeros(spec.shape, spec.dtype) if role == "idle" else found[role]()
            for role, spec in zip(roles, state_specs, strict=True)
        ]
        state, costs, info = step(known[: len(specs)], jax.tree.unflatten(state_structure, leaves), context)
        return pack_carried(state, costs), info

    def advance(shared, carried, context):
        return packed_step(shared, carried, context)[0]

    def inspect(shared, carried, context):
        return packed_step(shared, carried, context)[1]

    def figures(shared, carried, context):
        details = inspect(shared, carried, context).details
        return {name: figure for name, figure in details.items() if isinstance(figure, jax.Array)}

    def advance_some(in_axes):
        together = jax.vmap(advance, in_axes)

        def some(shared, carried, spare, contexts, asked):
            del spare  # only its memory is wanted
            after = together(shared, carried, contexts)
            advanced = asked & jnp.isfinite(after[0][:, : StepOutput.length(sizes, screened)]).all(axis=1)
            kept = [jnp.where(advanced[:, None], new, old) for new, old in zip(after, carried, strict=True)]
            return tuple(kept), advanced

        return some

    @functools.cache
    def of_streams(shared_axis: int | None) -> StepFunctions:
        axes = (shared_axis, 0, 0)
        return StepFunctions(
            jax.jit(jax.vmap(packed_begin, axes, out_axes=(shared_axis, 0))),
            jax.jit(share if shared_axis is None else jax.vmap(share)),
            jax.jit(advance_some(axes), donate_argnums=2, keep_unused=True),
            jax.jit(jax.vmap(inspect, axes)),
            jax.jit(jax.vmap(packed_step, axes)),
            jax.jit(jax.vmap(figures, axes)),
        )

    jit = jit_single_kernel if fits_single_kernel(step_jaxpr) else jax.jit
    # Reports are not made at every step, and XLA's emitter of single kernels stops the process on some of them.
    one = StepFunctions(
        jax.jit(packed_begin), jax.jit(share), jit(advance), jax.jit(inspect), jit(packed_step), jax.jit(figures)
    )
    return CompiledStepper(one, carried_packing.vector_specs, of_streams, size, clock)


def _trace(function: Callable, *specs: Any) -> tuple[jex.Jaxpr, Callable[..., Any], Any]:
    """Run the agent's own code once; return its program, the program as a function, and the specs of its outputs."""
    closed, outputs = jax.make_jaxpr(function, return_shape=True)(*specs)
    run, structure = jex.jaxpr_as_fun(closed), jax.tree.structure(outputs)
    return closed.jaxpr, lambda *arguments: jax.tree.unflatten(structure, run(*jax.tree.leaves(arguments))), outputs


def _roles(traced_begin, traced_step, given_first: int, count: int) -> list[Role]:
    """Return the role of each of `count` leaves of the state, which come after `given_first` other arrays in both programs.

    A leaf is shared if it does not depend on the start and no step changes it. The step's number is idle if only the next
    number depends on it.
    """
    given = traced_step.invars[given_first : given_first + count]
    decided = _reached(traced_begin, traced_begin.invars[given_first:])
    kept = [out is into for out, into in zip(traced_step.outvars[:count], given, strict=True)]
    roles: list[Role] = [
        "shared" if is_kept and not is_decided else "carried" for is_kept, is_decided in zip(kept, decided, strict=True)
    ]
    others = _reached(traced_step, [given[_CLOCK]])
    del others[_CLOCK]
    if not any(others):
        roles[_CLOCK] = "idle"
    return roles


def _reached(jaxpr, sources) -> list[bool]:
    """Return which outputs of a traced program depend on these inputs."""
    reached = set(sources)
    for equation in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return [not isinstance(v, jex.Literal) and v in reached for v in jaxpr.outvars]
