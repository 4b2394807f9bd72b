"""How much memory a stream takes, told from its traced programs before anything is made."""

import math
from collections.abc import Iterable
from typing import Any

import jax.extend.core as jex

from ecl2o.running.one_kernel import inner_programs

MOST_BYTES = 1 << 30  # of a stream's state, and of what any one operation of a step makes


class TooLarge(ValueError):  # noqa: N818 (it names what is so, as `NotApplicable` does)
    """A policy whose streams would take more memory than any sane one does."""


def refuse_too_large(count: int, most: int = MOST_BYTES) -> None:
    """Refuse a stream that takes so many bytes."""
    if count > most:
        raise TooLarge(
            f"one stream would take {_told(count)} of memory, and at most {_told(most)} are allowed; the policy's windows, "
            "periods, days or horizons are too long."
        )


def bytes_of(arrays: Iterable[Any]) -> int:
    """What arrays of these shapes and dtypes take."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def largest_made(program: jex.Jaxpr) -> int:
    """The most bytes that any one operation of a traced program makes, in its loops and branches too.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> largest_made(jax.make_jaxpr(lambda x: jnp.sum(jnp.outer(x, x)))(jnp.ones(100, "float32")).jaxpr)
    40000
    """
    made = [bytes_of(out.aval for out in equation.outvars) for equation in program.eqns]
    inside = [largest_made(inner) for equation in program.eqns for inner in inner_programs(equation.params)]
    return max([0, *made, *inside])


def _told(count: int) -> str:
    """A number of bytes for people.

    >>> _told(1 << 25), _told(1 << 30), _told(8 * 10**15)
    ('32 MiB', '1 GiB', '7450581 GiB')
    """
    unit, size = ("GiB", 1 << 30) if count >= 1 << 30 else ("MiB", 1 << 20)
    return f"{count / size:.0f} {unit}"
