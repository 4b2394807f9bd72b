"""The two forms of a theorem: as the paper prints it, and as corrected here."""

import inspect
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

Form = Literal["tight", "paper"]
Result = Float[Array, "..."]
Scalar = Num[Array, "..."] | float | int

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def compiled(formula: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Jit a formula as one program; inlined when called inside another one."""
    static = [name for name in inspect.signature(formula).parameters if name == "form"]
    return jax.jit(formula, static_argnames=static, inline=True)


def check_form(form: str) -> None:
    """Raise ValueError for anything but the two forms."""
    if form not in ("tight", "paper"):
        raise ValueError(f"form must be 'tight' or 'paper', got {form!r}.")


def effective_beta(alpha: Scalar, beta: Scalar, form: Form) -> Result:
    """Return k of Theorem 4.1: the paper's beta^2/alpha, or the sharper beta (erratum E1)."""
    check_form(form)
    beta = jnp.asarray(beta)
    return beta**2 / alpha if form == "paper" else beta * jnp.ones_like(jnp.asarray(alpha))
