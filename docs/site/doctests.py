"""A griffe extension: examples in docstrings (`>>>`) become blocks of code, wherever they stand."""

import re
from typing import Any

import griffe

# A run of lines that begins with a prompt and ends before an empty one.
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """As each object has been read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""The text with its examples in fences.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2").splitlines()[2]
    '```pycon'
    """
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)
