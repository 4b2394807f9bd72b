"""Text that every package writes or reads alike: JSON, missing values, intervals, and long values in messages."""

import json
import math
from typing import Any

# Spellings of a missing value in series files and in lines for `act`, in lower case.
MISSING_VALUES = frozenset(("", "nan", "na", "n/a", "null", "none", "-", "--", "#n/a", "?"))
# Numbers that instruments and file formats write for a missing value; they count as missing only far outside all other readings.
MISSING_CODES = (
    *(-99.0, -99.9, -99.99, -999.0, -999.9, -999.99, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0),
    *(-32768.0, 32767.0, 65535.0, -2147483648.0, 2147483647.0, 9.969209968386869e36, 3.4028234663852886e38),
    *(-1e20, 1e20, -1e30, 1e30, -1e31, 1e31, -3.4028234663852886e38),
)


def as_json(value: Any, where: str = "value", finite: bool = True) -> Any:
    """Return a value made of JSON's types only: arrays and tuples become lists.

    Args:
        value: Numbers, strings, arrays, and lists and dictionaries of them.
        where: The value's name in messages.
        finite: Whether infinite numbers and NaN become the strings "inf", "-inf" and "nan"; else they stay floats.

    Raises:
        TypeError: The value holds something else.

    >>> as_json({"ratio": math.inf, "costs": (1, 2.5)})
    {'ratio': 'inf', 'costs': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): as_json(entry, f"{where}[{key!r}]", finite) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry, f"{where}[{i}]", finite) for i, entry in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) or not finite else str(value)
    if not hasattr(value, "tolist"):
        raise TypeError(f"{where} must be made of JSON's types, got {type(value).__name__} {value!r:.60}.")
    return as_json(value.tolist(), where, finite)  # NumPy's and JAX's


def json_text(value: Any) -> str:
    """Return a result as JSON text, for standard output and results.json."""
    return json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False)


def shorten(value: Any, most: int = 60) -> str:
    """Return the `repr` of a value for a message, cut after `most` characters.

    >>> shorten("9" * 5000, most=10)
    "'999999999..."
    """
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."


def parse_interval(text: str) -> tuple[float, float]:
    """Return (low, high) of an interval LOW:HIGH, as options and manifests have it.

    >>> parse_interval("0:1.5")
    (0.0, 1.5)

    Raises:
        ValueError: If the text is not LOW:HIGH with LOW less than HIGH.
    """
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ValueError(f"must be LOW:HIGH, for example 0:1.5, got {text!r}.") from None
    if not ends[0] < ends[1]:
        raise ValueError(f"must have LOW less than HIGH, got {text!r}.")
    return ends
