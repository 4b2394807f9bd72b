"""Screen a stream of readings: replace implausible ones by the last plausible one.

One value in the wrong unit moves every agent too far. A guard does not help, since the optimum of that day is enormous too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecl2o.json_text import MISSING_CODES
from ecl2o.problem.arrays import as_float, concrete_value

_TAIL = 0.005  # share of the readings at each end that may be outliers


class ScreenState(NamedTuple):
    """For each of the q numbers: the value in use, the current run of implausible readings, and the accepted new level."""

    used: Float[Array, " q"]
    run: Int[Array, " q"]  # how many implausible readings in a row
    run_low: Float[Array, " q"]
    run_high: Float[Array, " q"]
    level_low: Float[Array, " q"]
    level_high: Float[Array, " q"]


class Screen(eqx.Module):
    """A rule that replaces implausible readings.

    Each of the q numbers is screened by itself: one that is missing (NaN or infinite) or out of range is replaced by the last
    plausible one. A *lasting* change is accepted: the `patience`-th implausible reading in a row is used as it is. From then
    on the interval of that run, widened on both sides by its width or the range's, whichever is larger, is plausible too.
    Missing readings neither count nor interrupt a run; so do usual codes for them, such as -9999, that are out of range.

    Args:
        low: (q,), smallest plausible reading; minus infinity for no bound.
        high: (q,), largest plausible reading, not below `low`; infinity for no bound.
        patience: Implausible readings in a row that make a new level; at least 1.

    Raises:
        ValueError: `low` is above `high`, or `patience` is below 1.

    >>> screen = Screen(low=[0.0], high=[10.0], patience=3)
    >>> used, replaced = screen.apply(jnp.array([[4.0], [4000.0], [5.0], [50.0], [51.0], [52.0], [53.0]]))
    >>> used.ravel().tolist(), replaced.ravel().tolist()
    ([4.0, 4.0, 5.0, 5.0, 5.0, 52.0, 53.0], [False, True, False, True, True, False, False])
    """

    low: Float[Array, " q"] = eqx.field(converter=as_float)
    high: Float[Array, " q"] = eqx.field(converter=as_float)
    patience: Float[Array, ""] = eqx.field(converter=as_float)  # an array: policies of many sites can be stacked

    def __check_init__(self):
        low, high, patience = (concrete_value(leaf) for leaf in (self.low, self.high, self.patience))
        if low is None or high is None or patience is None:
            return
        if low.shape != high.shape or not (low <= high).all():
            raise ValueError(f"low must not be above high, got {low} and {high}.")
        if not (patience >= 1).all():
            raise ValueError(f"patience must be at least 1, got {patience}.")

    @classmethod
    def of(cls, ranges: Sequence[tuple[float, float]], patience: int) -> "Screen":
        """Return a screen from (low, high) of each number."""
        low, high = zip(*ranges, strict=True)
        return cls(np.array(low, float), np.array(high, float), np.array(patience, float))

    def init(self, dtype: Any) -> ScreenState:
        """Return the state before the first reading; the value in use is NaN until there is a plausible one."""
        nothing = jnp.full(self.low.shape, jnp.nan, dtype)
        above, below = jnp.full_like(nothing, jnp.inf), jnp.full_like(nothing, -jnp.inf)
        return ScreenState(nothing, jnp.zeros(self.low.shape, int), above, below, above, below)

    def step(
        self, state: ScreenState, reading: Float[Array, " q"]
    ) -> tuple[ScreenState, Float[Array, " q"], Bool[Array, " q"]]:
        """Return the state after a reading, the context to use, and which of its numbers were replaced."""
        in_range = (reading >= self.low) & (reading <= self.high)
        at_level = (reading >= state.level_low) & (reading <= state.level_high)
        is_code = (reading[:, None] == jnp.array(MISSING_CODES, reading.dtype)).any(axis=1)
        missing = ~jnp.isfinite(reading) | (is_code & ~in_range & ~at_level)
        implausible = ~(missing | in_range | at_level)
        run = jnp.where(missing, state.run, jnp.where(implausible, state.run + 1, 0))
        before_low = jnp.where(state.run > 0, state.run_low, jnp.inf)
        before_high = jnp.where(state.run > 0, state.run_high, -jnp.inf)
        run_low = jnp.where(implausible, jnp.minimum(reading, before_low), state.run_low)
        run_high = jnp.where(implausible, jnp.maximum(reading, before_high), state.run_high)
        lasting = implausible & (run >= self.patience)
        margin = jnp.maximum(run_high - run_low, self.high - self.low)
        replaced = missing | (implausible & ~lasting)
        used = jnp.where(replaced, state.used, reading)
        level_low = jnp.where(lasting, run_low - margin, state.level_low)
        level_high = jnp.where(lasting, run_high + margin, state.level_high)
        run = jnp.where(lasting, 0, run)
        return ScreenState(used, run, run_low, run_high, level_low, level_high), used, replaced

    def scan(self, history: Float[Array, "H q"]) -> tuple[ScreenState, Float[Array, "H q"], Bool[Array, "H q"]]:
        """Return the state after a series, the contexts to use, and which of their numbers were replaced.

        An implausible first reading is clipped to the range.
        """
        state = self.init(history.dtype)
        if history.shape[0] == 0:
            return state, history, jnp.zeros(history.shape, bool)
        state = state._replace(used=jnp.clip(jnp.nan_to_num(history[0]), self.low, self.high))

        def see(state, reading):
            state, used, replaced = self.step(state, reading)
            return state, (used, replaced)

        state, (used, replaced) = jax.lax.scan(see, state, history)
        return state, used, replaced

    @eqx.filter_jit
    def apply(self, readings: Float[Array, "T q"]) -> tuple[Float[Array, "T q"], Bool[Array, "T q"]]:
        """Screen a whole series as a stream; return the contexts to use, and which of their numbers were replaced."""
        return self.scan(readings)[1:]


def plausible_range(values: np.ndarray) -> list[tuple[float, float]]:
    """Return the range of past contexts without outliers, widened by its width on both sides.

    Args:
        values: (n, q), past contexts; half a percent at each end counts as outliers.

    Returns:
        (low, high) of each of the q numbers; infinite ends for one that hardly ever changes.

    >>> plausible_range(np.array([[0.0], [10.0]] * 500 + [[9e9]]))
    [(-10.0, 20.0)]
    """
    low, high = np.quantile(np.asarray(values, float), [_TAIL, 1 - _TAIL], axis=0)
    width = high - low
    ends = np.where(width > 0, low - width, -np.inf), np.where(width > 0, high + width, np.inf)
    return list(zip(*(end.tolist() for end in ends), strict=True))
