"""What a forecaster is: causal, or clairvoyant for study.

A causal forecaster has memory and sees one context at a time, like an agent; it works offline and in the streaming runner.
A clairvoyant one is given the whole instance beforehand and is asked for step t; every result made with it says so.
"""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

ForecasterState = Any


class AbstractForecaster(eqx.Module):
    """Predicts the next `window` contexts."""


class AbstractCausalForecaster(AbstractForecaster):
    """Knows the past only."""

    @abc.abstractmethod
    def init(self, history: Float[Array, "H q"], window: int) -> ForecasterState:
        """Memory after the history, before the first context."""

    @abc.abstractmethod
    def step(
        self, state: ForecasterState, context: Float[Array, " q"], window: int
    ) -> tuple[ForecasterState, Float[Array, "w q"]]:
        """See y_t, predict y_{t+1}..y_{t+window}."""


class AbstractClairvoyantForecaster(AbstractForecaster):
    """Knows the future; for study and bounds, never for a result without saying so."""

    @abc.abstractmethod
    def prepare(
        self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None
    ) -> "AbstractPreparedForecast":
        """Read the whole instance."""


class AbstractPreparedForecast(eqx.Module):
    """A clairvoyant forecaster that has read its instance."""

    @abc.abstractmethod
    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        """Predictions of the contexts after `step` (which counts from 0)."""
