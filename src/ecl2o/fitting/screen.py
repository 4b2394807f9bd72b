"""A series as a screened stream would use it."""

import dataclasses

import numpy as np
import pandas as pd
from jaxtyping import Float

from ecl2o.data import Contexts
from ecl2o.problem.arrays import to_device
from ecl2o.running import Screen, plausible_range


def screen_series(contexts: Contexts, screen: Screen | None) -> tuple[Contexts, np.ndarray]:
    """The contexts with the last plausible one for each that is not, and the numbers (k,) of the rows that were replaced."""
    if screen is None:
        return contexts, np.zeros(0, int)
    used, stood_in = screen.through(to_device(contexts.values))
    rows = np.flatnonzero(np.asarray(stood_in).any(axis=1))
    return (dataclasses.replace(contexts, values=np.asarray(used)) if len(rows) else contexts), rows


def screen_values(values: Float[np.ndarray, "n q"], patience: int) -> tuple[Float[np.ndarray, "n q"], np.ndarray]:
    """Readings of a series that was fitted to nothing, screened by their own bulk; and the numbers (k,) of the rows replaced.

    >>> values, rows = screen_values(np.array([[0.0], [10.0]] * 500 + [[9e9], [3.0]]), patience=24)
    >>> values[-3:].ravel().tolist(), rows.tolist()
    ([10.0, 10.0, 3.0], [1000])
    """
    used, stood_in = Screen.of(plausible_range(values), patience).through(to_device(values))
    return np.asarray(used), np.flatnonzero(np.asarray(stood_in).any(axis=1))


def in_words(time: pd.Index, rows: np.ndarray) -> str | None:
    """What was replaced, for people; None where nothing was."""
    if not len(rows):
        return None
    count = f"{len(rows)} reading{' was' if len(rows) == 1 else 's were'}"
    return f"{count} not plausible and replaced by the one before, the first at {time[rows[0]]}."
