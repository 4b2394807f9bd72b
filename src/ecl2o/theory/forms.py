"""The two forms of a statement: as the paper prints it, and as corrected here."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

Form = Literal["tight", "paper"]
Result = Float[Array, "..."]
Scalar = Float[Array, "..."] | float | int


def check_form(form: str) -> None:
    """Refuse anything but the two forms."""
    if form not in ("tight", "paper"):
        raise ValueError(f"form must be 'tight' or 'paper', got {form!r}.")


def effective_beta(alpha: Scalar, beta: Scalar, form: Form) -> Result:
    """k of Theorem 4.1: the paper's beta^2/alpha, or the sharper beta (erratum E1)."""
    check_form(form)
    beta = jnp.asarray(beta)
    return beta**2 / alpha if form == "paper" else beta * jnp.ones_like(jnp.asarray(alpha))
