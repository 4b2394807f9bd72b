"""Files of format 1, whose contract lay scattered in the metadata."""

from typing import Any

import numpy as np
import pydantic

from ecl2o.policy.contract import Contract, Source

_FIELDS = ("columns", "context_dim", "step_minutes", "steps_per_day", "history_steps", "history_until", "seen_until")


def contract_in(metadata: dict[str, Any]) -> tuple[Contract, np.ndarray | None, dict[str, Any]]:
    """The contract, the history (H, q), and the rest of the metadata. What does not fit stays metadata."""
    rest = dict(metadata)
    found: dict[str, Any] = {}
    for name in _FIELDS:
        if name in rest and _is_valid({name: rest[name]}):
            found[name] = rest.pop(name)
    source = rest.get("source")
    if isinstance(source, dict) and isinstance(source.get("file"), str) and isinstance(source.get("sha256"), str):
        found["source"] = Source(**rest.pop("source"))
    return Contract(**found), _history(rest), rest


def _is_valid(values: dict[str, Any]) -> bool:
    try:
        Contract(**values)
    except pydantic.ValidationError:
        return False
    return True


def _history(metadata: dict[str, Any]) -> np.ndarray | None:
    """Taken out of the metadata if it is a table of finite numbers."""
    try:
        found = np.asarray(metadata.get("history"), float)
    except (TypeError, ValueError):
        return None
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        return None
    del metadata["history"]
    return found
