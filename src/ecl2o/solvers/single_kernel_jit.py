"""Compile a small program to one CPU kernel.

XLA's runtime launches a kernel for every fused group of operations, on several threads if there are enough of them. For a step
of a few thousand operations that costs several times the arithmetic, and milliseconds on a busy machine. A call with the
attributes below is compiled to a single kernel, which runs in the calling thread. XLA uses them itself for small loops. They
are not documented; an XLA that does not know them runs the program as usual, with the same results.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

_ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"}

# What one kernel can consist of. The rest (factorisations, sorting, scattering, callbacks) calls XLA's runtime.
_ARITHMETIC = (
    "abs add and ceil clamp convert_element_type cos div eq erf exp expm1 floor ge gt integer_pow is_finite le log log1p "
    "logistic lt max min mul ne neg not or pow rem round rsqrt select_n sign sin sqrt square sub tanh xor"
)
_ARRANGEMENT = (
    "broadcast_in_dim concatenate device_put dynamic_slice dynamic_update_slice gather iota pad reshape rev slice split "
    "squeeze stack stop_gradient transpose"
)
_REDUCTION = (
    "argmax argmin cummax cummin cumsum dot_general reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum"
)
_CONTROL = "closed_call cond custom_jvp_call custom_vjp_call custom_vmap_call jit pjit scan while"
_POSSIBLE = frozenset(f"{_ARITHMETIC} {_ARRANGEMENT} {_REDUCTION} {_CONTROL}".split())
# XLA has other kernels for what is larger, and cannot put those into one.
_MOST_MADE = 1 << 17  # bytes that an operation makes
_MOST_REDUCED = 1 << 12  # numbers, less one, that become fewer; but a matrix times a vector may be large


def fits_single_kernel(program: jex.Jaxpr) -> bool:
    """Return whether this is a CPU and all of a traced program can be compiled to one kernel.

    >>> import jax.numpy as jnp
    >>> fits_single_kernel(jax.make_jaxpr(jnp.sum)(jnp.ones(5000)).jaxpr)
    False
    >>> fits_single_kernel(jax.make_jaxpr(lambda x: x / jnp.sum(x))(jnp.ones(3)).jaxpr)
    True
    >>> fits_single_kernel(jax.make_jaxpr(jnp.sort)(jnp.ones(3)).jaxpr)
    False
    """
    return jax.default_backend() == "cpu" and _is_possible(program)


def jit_single_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that fits one kernel."""
    inner = jax.jit(function)

    def called(*arguments):
        with set_xla_metadata(**_ATTRIBUTES):
            return inner(*arguments)

    return jax.jit(called)


def jit_loop_body(function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """Compile the body of a loop, which is not mapped, to one kernel if it fits; `like` are its arguments."""
    fits = fits_single_kernel(jax.make_jaxpr(function)(*like).jaxpr)
    return jit_single_kernel(function) if fits else jax.jit(function)


def scan_some(
    function: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: jax.Array, count: Any
) -> tuple[Any, Any]:
    """Scan the first `count` inputs as `jax.lax.scan` does, by a loop of one kernel if it fits; later outputs are 0."""
    body = jit_loop_body(function, state, inputs[0])
    like = jax.eval_shape(body, state, inputs[0])[1]
    outputs = jax.tree.map(lambda leaf: jnp.zeros((inputs.shape[0], *leaf.shape), leaf.dtype), like)

    def advance(t, carry):
        state, output = body(carry[0], inputs[t])
        return state, jax.tree.map(lambda all_steps, one: all_steps.at[t].set(one), carry[1], output)

    return jax.lax.fori_loop(0, count, advance, (state, outputs))


def _is_possible(program: jex.Jaxpr) -> bool:
    return all(
        equation.primitive.name in _POSSIBLE
        and _is_small(equation)
        and all(map(_is_possible, inner_jaxprs(equation.params)))
        for equation in program.eqns
    )


def _is_small(equation: jex.JaxprEqn) -> bool:
    name: str = equation.primitive.name
    given: list[Any] = [each.aval for each in equation.invars]
    made: list[Any] = [each.aval for each in equation.outvars]
    if name in _CONTROL.split():
        return True  # the programs inside are checked by themselves
    if any(math.prod(out.shape) * out.dtype.itemsize > _MOST_MADE for out in made):
        return False
    reduces = name in _REDUCTION.split() and (name != "dot_general" or made[0].shape == ())
    return not reduces or all(math.prod(each.shape) < _MOST_REDUCED for each in given)


def inner_jaxprs(parameters: dict[str, Any]) -> list[jex.Jaxpr]:
    """Return the programs that an operation runs: branches, bodies, called functions."""

    def is_program(leaf: Any) -> bool:
        return isinstance(leaf, jex.Jaxpr | jex.ClosedJaxpr)

    leaves = jax.tree.leaves(list(parameters.values()), is_leaf=is_program)
    return [leaf.jaxpr if isinstance(leaf, jex.ClosedJaxpr) else leaf for leaf in leaves if is_program(leaf)]
