"""What cannot be right does not reach an agent: the last plausible reading stands for it.

One value in the wrong unit drives every agent as far as it says, and a guard does not help: the optimum of that day is enormous
too. So a stream is screened before anybody sees it, by rules that need nothing but the readings so far.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecl2o.problem.arrays import as_float, concrete_value

_TAIL = 0.005  # of the readings at each end that say nothing of what is plausible: a few of them may be outliers


class ScreenState(NamedTuple):
    """Of each of the q numbers: the value in use, the implausible readings in a row until now and the interval they span, and
    the level, outside of the screen's own range, that readings have moved to.
    """

    used: Float[Array, " q"]
    run: Int[Array, " q"]
    run_low: Float[Array, " q"]
    run_high: Float[Array, " q"]
    level_low: Float[Array, " q"]
    level_high: Float[Array, " q"]


class Screen(eqx.Module):
    """A rule that replaces implausible readings.

    A number that is missing (NaN or infinite) or outside of its range is replaced by the last one that was plausible, each of
    the q numbers by itself. A *lasting* change is accepted: the `patience`-th implausible reading in a row is taken as it is, and
    from then on the interval that the run spans, widened on both sides by its width or the range's, whichever is more, is
    plausible beside the range. Missing readings neither count nor interrupt a run.

    Args:
        low: (q,), the least that is plausible; minus infinity for no bound.
        high: (q,), the most.
        patience: implausible readings in a row that make a new level.

    >>> screen = Screen(low=[0.0], high=[10.0], patience=3)
    >>> used, replaced = screen.through(jnp.array([[4.0], [4000.0], [5.0], [50.0], [51.0], [52.0], [53.0]]))
    >>> used.ravel().tolist(), replaced.ravel().tolist()
    ([4.0, 4.0, 5.0, 5.0, 5.0, 52.0, 53.0], [False, True, False, True, True, False, False])
    """

    low: Float[Array, " q"] = eqx.field(converter=as_float)
    high: Float[Array, " q"] = eqx.field(converter=as_float)
    patience: Float[Array, ""] = eqx.field(
        converter=as_float
    )  # an array, so that policies of many sites can be stacked

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
        """From (low, high) of each number."""
        low, high = zip(*ranges, strict=True)
        return cls(np.array(low, float), np.array(high, float), np.array(patience, float))

    def init(self, dtype: Any) -> ScreenState:
        """Before the first reading, when there is no plausible one yet: NaN stands for it."""
        nothing = jnp.full(self.low.shape, jnp.nan, dtype)
        above, below = jnp.full_like(nothing, jnp.inf), jnp.full_like(nothing, -jnp.inf)
        return ScreenState(nothing, jnp.zeros(self.low.shape, int), above, below, above, below)

    def step(
        self, state: ScreenState, reading: Float[Array, " q"]
    ) -> tuple[ScreenState, Float[Array, " q"], Bool[Array, " q"]]:
        """The state after a reading, the context to use, and for which numbers another one stands in."""
        missing = ~jnp.isfinite(reading)
        in_range = (reading >= self.low) & (reading <= self.high)
        at_level = (reading >= state.level_low) & (reading <= state.level_high)
        implausible = ~(missing | in_range | at_level)
        run = jnp.where(missing, state.run, jnp.where(implausible, state.run + 1, 0))
        run_low = jnp.where(
            implausible, jnp.minimum(reading, jnp.where(state.run > 0, state.run_low, jnp.inf)), state.run_low
        )
        run_high = jnp.where(
            implausible, jnp.maximum(reading, jnp.where(state.run > 0, state.run_high, -jnp.inf)), state.run_high
        )
        lasting = implausible & (run >= self.patience)
        margin = jnp.maximum(run_high - run_low, self.high - self.low)
        replaced = missing | (implausible & ~lasting)
        used = jnp.where(replaced, state.used, reading)
        after = ScreenState(
            used,
            jnp.where(lasting, 0, run),
            run_low,
            run_high,
            jnp.where(lasting, run_low - margin, state.level_low),
            jnp.where(lasting, run_high + margin, state.level_high),
        )
        return after, used, replaced

    def past(self, history: Float[Array, "H q"]) -> tuple[ScreenState, Float[Array, "H q"], Bool[Array, "H q"]]:
        """The state after contexts that came before, those to use, and which numbers were replaced.

        For a first one that is implausible stands the nearest plausible one.
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
    def through(self, readings: Float[Array, "T q"]) -> tuple[Float[Array, "T q"], Bool[Array, "T q"]]:
        """A whole series as a stream would use it: the contexts, and which numbers were replaced."""
        return self.past(readings)[1:]


def plausible_range(values: np.ndarray) -> list[tuple[float, float]]:
    """What the bulk of these contexts (n, q) makes plausible: its range, widened by its width on both sides.

    The bulk is all but half a percent at each end, so that a few outliers in the series do not count. A number that hardly ever
    changes has no range.

    Args:
        values: (n, q), contexts of the past.

    Returns:
        (low, high) of each of the q numbers; infinite ends where it has no range.

    >>> plausible_range(np.array([[0.0], [10.0]] * 500 + [[9e9]]))
    [(-10.0, 20.0)]
    """
    low, high = np.quantile(np.asarray(values, float), [_TAIL, 1 - _TAIL], axis=0)
    width = high - low
    ends = np.where(width > 0, low - width, -np.inf), np.where(width > 0, high + width, np.inf)
    return list(zip(*(end.tolist() for end in ends), strict=True))
