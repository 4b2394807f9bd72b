"""Policies as the service holds them: read from the store once, with what they promise, or with why they cannot be read."""

import dataclasses
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ecl2o.serving.durable.lanes import MOST_BYTES
from ecl2o.serving.durable.refused import Refused
from ecl2o.serving.incoming import refuse_unless_billable
from ecl2o.serving.memory import refuse_unless_fitting
from ecl2o.serving.policy import Policy, describe, load


@dataclasses.dataclass(frozen=True)
class Offer:
    """A policy under its name."""

    name: str
    policy: Policy

    @property
    def promise(self) -> dict[str, Any] | None:
        """Ratio, reference, allowance and period of what is promised; None where nothing is."""
        promise = self.policy.agent.promise(self.policy.problem)
        if promise is None:
            return None
        return {
            "text": str(promise),
            "ratio": float(promise.ratio),
            "reference": promise.reference,
            "allowance": float(promise.allowance),
            "period": promise.period,
        }

    @property
    def dim(self) -> int | None:
        """d, where the policy itself tells it."""
        return self.policy.dim

    @property
    def units(self) -> str:
        """The units of actions, where an action is of the same kind as a context; else nothing."""
        units = self.policy.contract.units or []
        return ", ".join(units) if len(units) == self.dim else ""

    def start(self, x0: list[float] | None, history: list[list[float]] | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Where a stream begins: the action in force and the contexts before, the policy's own where none are given."""
        past = self._past(history)
        if x0 is None:
            if past is None or not len(past) or past.shape[1] != self.dim:
                raise Refused(422, "where does the stream start? Give x0, the action in force.")
            x0 = past[-1].tolist()
        first = np.asarray(x0, float)
        if self.dim is not None and len(first) != self.dim:
            raise Refused(422, f"x0 must be {self.dim} numbers, the policy's actions, got {len(first)}.")
        try:
            refuse_unless_billable("x0", first)
            if past is not None and self.policy.contract.plausible is None:
                refuse_unless_billable("history", past)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return first, past

    def _past(self, history: list[list[float]] | None) -> np.ndarray | None:
        own = self.policy.history
        if history is None and own is None:
            return None
        try:
            past = np.asarray(own if history is None else history, float)
        except ValueError:
            raise Refused(422, "history must be contexts of equally many numbers.") from None
        if past.ndim != 2:
            raise Refused(422, "history must be a list of contexts, each a list of numbers.")
        needed = self.policy.contract.history_steps
        if needed is not None:
            keep = max(needed, 0 if own is None else len(own))
            past = past[max(len(past) - keep, 0) :]
        return past

    def about(self) -> dict[str, Any]:
        """What it is, for people."""
        return {"name": self.name, "promise": self.promise, **_finite(describe(self.policy))}


def _finite(value: Any) -> Any:
    """What JSON knows: a bound that is not there is null, not infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read(name: str, file: bytes) -> Offer:
    """A policy from the bytes of its file, or a refusal that says why not; nothing in it is executed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        path.write_bytes(file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rounding to 32 bits: the service works in 64
                loaded = load(path)
            refuse_unless_fitting(loaded, str(path), MOST_BYTES)
            return Offer(name, loaded)
        except (ValueError, TypeError, OSError) as error:
            raise Refused(422, f"not a sound policy: {str(error).replace(str(path), 'the file')}") from None
