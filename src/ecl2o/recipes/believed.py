"""A series as a screened stream would use it."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from ecl2o.data import Contexts
from ecl2o.running import Screen


def believed(contexts: Contexts, screen: Screen | None) -> tuple[Contexts, np.ndarray]:
    """The contexts with the last plausible one for each that is not, and the numbers (k,) of the rows that were replaced."""
    if screen is None:
        return contexts, np.zeros(0, int)
    used, stood_in = screen.through(jnp.asarray(contexts.values))
    rows = np.flatnonzero(np.asarray(stood_in).any(axis=1))
    return (dataclasses.replace(contexts, values=np.asarray(used)) if len(rows) else contexts), rows


def in_words(contexts: Contexts, rows: np.ndarray) -> str | None:
    """What was replaced, for people; None where nothing was."""
    if not len(rows):
        return None
    count = f"{len(rows)} reading{' was' if len(rows) == 1 else 's were'}"
    return f"{count} not plausible and replaced by the one before, the first at {contexts.time[rows[0]]}."
