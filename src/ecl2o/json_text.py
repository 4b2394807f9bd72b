"""Convert results to JSON, including what JSON has no literal for."""

import json
import math
from typing import Any


def as_json(value: Any) -> Any:
    """JSON's own types: arrays become lists, and what JSON cannot hold the strings "inf", "-inf" and "nan".

    >>> as_json({"ratio": math.inf, "costs": (1, 2.5)})
    {'ratio': 'inf', 'costs': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return as_json(value.tolist())  # NumPy's and JAX's


def json_text(value: Any) -> str:
    """A result as programs read it, from standard output or from results.json."""
    return json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False)
