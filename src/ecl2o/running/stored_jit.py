"""Jitted functions whose executables can be stored, so that another process need not trace them.

Storing is the matter of `policy.executable_cache`, which sets how it is done when it has a folder.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer

RunStored = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
_run_stored: RunStored | None = None


def store_executables(run: RunStored) -> None:
    """Let `run(function, arguments)` call every function of `stored_jit` from now on, unless JAX is tracing."""
    global _run_stored
    _run_stored = run


def stored_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function as `eqx.filter_jit` does, with an executable that can be stored.

    It may depend on its positional arguments and on this library's code only.
    """
    jitted = eqx.filter_jit(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if _run_stored is None or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):
            return jitted(*arguments)
        return _run_stored(jitted, arguments)

    return call
