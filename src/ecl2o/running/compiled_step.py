"""Compile a stepper to functions of a few flat arrays, and estimate its memory from the traced programs.

What a call costs is mostly the number of arrays that go in and out, not the arithmetic: a network behind the calibrator has
dozens, and handing them over one by one takes three times as long as the step. So everything is packed into one vector for
each dtype. What changes from step to step is *carried*; weights, problem and whatever an agent's `init` prepares once is
*shared*, by all steps and all streams; the step's number, which most agents never read, is *idle* then and left out. Which is
which is read off the traced program.

Programs are made once for each structure and set of shapes, not for each policy: the numbers are arguments.
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
from ecl2o.running.single_kernel_jit import fits_single_kernel, inner_jaxprs, jit_single_kernel
from ecl2o.running.stepper import StepperState

MOST_BYTES = 1 << 30  # of a stream's state, and of what any one operation of a step makes


def check_stream_bytes(count: int, most: int = MOST_BYTES) -> None:
    """Refuse a stream that takes so many bytes."""
    if count > most:
        raise MemoryLimitError(
            f"one stream would take {_told(count)} of memory, and at most {_told(most)} are allowed; the policy's windows, "
            "periods, days or horizons are too long."
        )


def count_bytes(arrays: Iterable[Any]) -> int:
    """What arrays of these shapes and dtypes take."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def largest_allocation(program: jex.Jaxpr) -> int:
    """The most bytes that any one operation of a traced program makes, in its loops and branches too.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> largest_allocation(jax.make_jaxpr(lambda x: jnp.sum(jnp.outer(x, x)))(jnp.ones(100, "float32")).jaxpr)
    40000
    """
    made = [count_bytes(out.aval for out in equation.outvars) for equation in program.eqns]
    inside = [largest_allocation(inner) for equation in program.eqns for inner in inner_jaxprs(equation.params)]
    return max([0, *made, *inside])


def _told(count: int) -> str:
    """A number of bytes for people.

    >>> _told(1 << 25), _told(1 << 30), _told(8 * 10**15)
    ('32 MiB', '1 GiB', '7450581 GiB')
    """
    unit, size = ("GiB", 1 << 30) if count >= 1 << 30 else ("MiB", 1 << 20)
    return f"{count / size:.0f} {unit}"


# From this many numbers an array is handed over by itself: cutting it out of a vector would copy it at every step.
_LARGE = 1 << 10

Vectors = tuple[Any, ...]
Spec = jax.ShapeDtypeStruct
Role = Literal["carried", "shared", "idle"]


@dataclasses.dataclass(frozen=True)
class RunShape:
    """The sizes of a run: d, q, contexts in the history, and steps if their number is known."""

    dim: int
    context_dim: int
    seen: int
    horizon: int | None


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """`begin(arrays, x0, history) -> (shared, carried)`, and `share(arrays) -> shared` for runs that have started;
    `advance(shared, carried, context) -> carried`;
    `inspect(shared, carried, context) -> Info`, what the agent says about that step, `play`, both in one: (carried, Info), and
    `figures`, of what it says only its own figures, by name.

    Of many streams those advance that are asked and have a finite answer: `advance(shared, carried, spare, contexts, asked) ->
    (carried, advanced)`. The new vectors take the memory of the spare ones, which are lost: fresh memory for the state of many
    streams costs more than their step. The first carried vector begins with `StepOutput`.
    """

    begin: Callable[..., tuple[Vectors, Vectors]]
    share: Callable[..., Vectors]
    advance: Callable[..., Any]
    inspect: Callable[..., Info]
    play: Callable[..., tuple[Vectors, Info]]
    figures: Callable[..., dict[str, Any]]


class StepOutput(NamedTuple):
    """What the last step made, as the first carried vector tells it: the action, its hitting and switching cost, 1 if a solve did
    not converge; and, where contexts are screened, 1 if this one was replaced, and the context that was used.
    """

    action: np.ndarray
    bill: np.ndarray
    context: np.ndarray | None

    @classmethod
    def read(cls, vector: np.ndarray, sizes: RunShape, screened: bool) -> "StepOutput":
        """From the first carried vector, of one stream or of many."""
        start, stop = sizes.dim, sizes.dim + cls.costs_length(screened)
        context = vector[..., stop : stop + sizes.context_dim] if screened else None
        return cls(vector[..., :start], vector[..., start:stop], context)

    @staticmethod
    def costs_length(screened: bool) -> int:
        """How many costs and flags there are."""
        return 4 if screened else 3

    @classmethod
    def length(cls, sizes: RunShape, screened: bool) -> int:
        """How many numbers it has."""
        return sizes.dim + cls.costs_length(screened) + (sizes.context_dim if screened else 0)


@dataclasses.dataclass(frozen=True)
class CompiledStepper:
    """A policy's step for one stream, whose vectors are `carried`; and for many at once, where every argument but the shared ones
    has a leading axis: `streams(None)` for streams of one policy; `streams(0)` for streams that have a policy each, where shared
    ones and the stepper's arrays have it too. `step_bytes` is the most that one operation of a step makes; 0 where it was not
    traced, but was when the program was first made.
    """

    one: StepFunctions
    carried: tuple[Spec, ...]
    streams: Callable[[int | None], StepFunctions]
    step_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class VectorLayout:
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

    @property
    def vector_specs(self) -> tuple[Spec, ...]:
        """The vectors' lengths and dtypes."""
        lengths = [sum(math.prod(self.specs[number].shape) for number in vector) for vector in self.vectors]
        kinds = [self.specs[vector[0]].dtype for vector in self.vectors]
        return tuple(Spec((length,), kind) for length, kind in zip(lengths, kinds, strict=True))

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
        if made.screened is not None and state.screen is not None:
            entries += [jnp.any(made.screened), state.screen.used]
        return state, [jnp.asarray(entry, dtype) for entry in entries], made.info

    x0, history = Spec((sizes.dim,), dtype), Spec((sizes.seen, sizes.context_dim), dtype)
    context = Spec((sizes.context_dim,), dtype)
    begin, state = _traced(to_begin, specs, x0, history)
    check_stream_bytes(count_bytes(jax.tree.leaves(state)))  # before the step is traced, which may make tables as long
    step, outputs = _traced(to_step, specs, state, context)
    step_bytes = largest_allocation(step.jaxpr)
    check_stream_bytes(step_bytes)
    state_specs, state_structure = jax.tree.flatten(state)
    _refuse_change(state, outputs[0])
    roles = _roles(begin.jaxpr, step.jaxpr, len(specs), len(state_specs))

    def having(role: str, leaves):
        return [leaf for leaf, its in zip(leaves, roles, strict=True) if its == role]

    # The action is the state's first leaf; the bill comes after it, so that one slice holds both (`StepOutput`).
    screened = state.screen is not None
    bill = [Spec((), dtype)] * 3 + ([Spec((), dtype), context] if screened else [])
    shared_packing = VectorLayout((*specs, *having("shared", state_specs)))
    carried_packing = VectorLayout((x0, *bill, *having("carried", state_specs)[1:]))

    def pack_carried(state, costs):
        action, *rest = having("carried", jax.tree.leaves(state))
        return carried_packing.pack([action, *costs, *rest])

    def packed_shared(arrays, state):
        return shared_packing.pack([*arrays, *having("shared", jax.tree.leaves(state))])

    def share(arrays):  # no start decides what is shared, so that none need be made
        return packed_shared(arrays, begin(arrays, *(jnp.zeros(spec.shape, dtype) for spec in (x0, history))))

    def packed_begin(arrays, x0, history):
        state = begin(arrays, x0, history)
        return packed_shared(arrays, state), pack_carried(state, [jnp.zeros(spec.shape, dtype) for spec in bill])

    def packed_step(shared, carried, context):
        known = shared_packing.unpack(shared)
        action, *rest = carried_packing.unpack(carried)
        kept, changing = iter(known[len(specs) :]), iter([action, *rest[len(bill) :]])
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

    jit = jit_single_kernel if fits_single_kernel(step.jaxpr) else jax.jit
    one = StepFunctions(
        jax.jit(packed_begin), jax.jit(share), jit(advance), jit(inspect), jit(packed_step), jit(figures)
    )
    return CompiledStepper(one, carried_packing.vector_specs, of_streams, step_bytes)


class _Traced:
    """A function as the program that it is: the agent's own code runs once, whatever is then compiled of it."""

    def __init__(self, closed: Any, outputs: Any):
        self.jaxpr, self._run, self._structure = closed.jaxpr, jex.jaxpr_as_fun(closed), jax.tree.structure(outputs)

    def __call__(self, *arguments: Any) -> Any:
        return jax.tree.unflatten(self._structure, self._run(*jax.tree.leaves(arguments)))


def _traced(function: Callable, *specs: Any) -> tuple[_Traced, Any]:
    """The program of a function of arrays such as these, and what its outputs are."""
    closed, outputs = jax.make_jaxpr(function, return_shape=True)(*specs)
    return _Traced(closed, outputs), outputs


def _refuse_change(before, after) -> None:
    """Refuse a state that changes its structure, shapes or dtypes."""
    (leaves, structure), (new_leaves, new_structure) = jax.tree.flatten(before), jax.tree.flatten(after)
    same = [(a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(leaves, new_leaves, strict=False)]
    if structure != new_structure or not all(same):
        raise TypeError("a step must return a state of the same structure, shapes and dtypes as it was given.")


def _roles(traced_begin, traced_step, given_first: int, count: int) -> list[Role]:
    """What each of `count` leaves of the state is: shared if no step changes it and no start decides it, carried otherwise.

    The step's number is idle if only the next number depends on it. Both programs are given so many other arrays first.
    """
    given = traced_step.invars[given_first : given_first + count]
    decided = _reached(traced_begin, traced_begin.invars[given_first:])
    kept = [out is into for out, into in zip(traced_step.outvars[:count], given, strict=True)]
    roles: list[Role] = [
        "shared" if is_kept and not is_decided else "carried" for is_kept, is_decided in zip(kept, decided, strict=True)
    ]
    clock = StepperState._fields.index("step")  # the one field before it, the action, is one leaf
    others = _reached(traced_step, [given[clock]])
    del others[clock]
    if not any(others):
        roles[clock] = "idle"
    return roles


def _reached(jaxpr, sources) -> list[bool]:
    """Which outputs of a traced program depend on these inputs."""
    reached = set(sources)
    for equation in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return [not isinstance(v, jex.Literal) and v in reached for v in jaxpr.outvars]
