"""An API reference needs every argument of every public function and class by name."""

import importlib
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import ecl2o

ROOMS = (
    *("problem", "offline", "agents", "agents.advisors", "agents.guards", "running", "evaluation", "learning"),
    *("serving", "data", "data.weather", "forecasters", "theory", "solvers", "planning", "recipes"),
)


def public_names() -> dict[str, Callable]:
    """Functions and classes of `__all__`, of the library and of its rooms."""
    modules: list[ModuleType] = [ecl2o, *(importlib.import_module(f"ecl2o.{room}") for room in ROOMS)]
    found: dict[str, Callable] = {}
    for module in modules:
        for name in getattr(module, "__all__", ()):
            value: Any = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value)):
                found.setdefault(f"{value.__module__}.{value.__name__}", value)
    return found


def arguments(value: Callable) -> list[str]:
    try:
        given = inspect.signature(value).parameters.values()
    except ValueError:  # of an exception
        return []
    return [argument.name for argument in given]


def documented(value: Callable) -> set[str]:
    """The names in the list below `Args:`."""
    block = re.search(r"^Args:\n((?:    .*\n?)+)", inspect.getdoc(value) or "", re.M)
    return set() if block is None else set(re.findall(r"^    (\w+): \S", block.group(1), re.M))


PUBLIC = public_names()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_docstring_lists_the_arguments_and_no_others(name):
    value = PUBLIC[name]
    assert inspect.getdoc(value)
    assert documented(value) == set(arguments(value))
