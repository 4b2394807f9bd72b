"""Settings as TOML: Python reads it but does not write it, and settings need little of it."""

import json
import math
from typing import Any


def toml_text(values: dict[str, Any]) -> str:
    """Keys and values, then tables; what is None is left out, as TOML has no word for it.

    >>> print(
    ...     toml_text(
    ...         {"seeds": 5, "weather": None, "base_shortage": "auto", "sizes": [1, 2.0], "more": {"quick": True}}
    ...     )
    ... )
    seeds = 5
    base_shortage = "auto"
    sizes = [1, 2.0]
    <BLANKLINE>
    [more]
    quick = true
    <BLANKLINE>
    """
    return "\n".join(_lines(values, ()))


def _lines(values: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in values.items() if value is not None and not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value, key)}" for key, value in plain.items()] + [""]
    for key, table in tables.items():
        lines += [f"[{'.'.join(map(_key, (*path, key)))}]", *_lines(table, (*path, key))]
    return lines


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _string(key)


def _value(value: Any, key: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(entry, key) for entry in value)}]"
    raise TypeError(f"{key} must be a number, a string, a list or a table, got {type(value).__name__}.")


def _string(text: str) -> str:
    """A basic string; JSON's escapes are TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
