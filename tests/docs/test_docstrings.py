"""An API reference needs every argument of every public function and class by name, and its defaults as they are."""

import enum
import importlib
import inspect
import json
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import ecl2o

ROOMS = (
    *("problem", "offline", "agents", "agents.advisors", "agents.guards", "running", "evaluation", "learning"),
    *("policy", "service", "data", "forecasters", "theory", "solvers", "planning", "fitting"),
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
    if isinstance(value, enum.EnumMeta):  # its members are documented, and it takes no arguments of its own
        return []
    try:
        given = inspect.signature(value).parameters.values()
    except ValueError:  # of an exception
        return []
    return [argument.name for argument in given]


def documented(value: Callable) -> dict[str, str]:
    """What the list below `Args:` says, by name."""
    block = re.search(r"^Args:\n((?:    .*\n?)+)", inspect.getdoc(value) or "", re.M)
    return {} if block is None else dict(re.findall(r"^    (\w+): (\S.*(?:\n        .*)*)", block.group(1), re.M))


def stated_defaults(value: Callable) -> dict[str, Any]:
    """The defaults that are a number, a word in quotation marks, true or false; others are said in other words."""
    ends = {
        name: re.search(r'Default: ("[^"]+"|true|false|[\d.,]+)\.$', text) for name, text in documented(value).items()
    }
    return {name: json.loads(end[1].replace(",", "")) for name, end in ends.items() if end is not None}


PUBLIC = public_names()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_docstring_lists_the_arguments_and_no_others(name):
    value = PUBLIC[name]
    assert inspect.getdoc(value)
    assert set(documented(value)) == set(arguments(value))


@pytest.mark.parametrize("name", sorted(name for name, value in PUBLIC.items() if stated_defaults(value)))
def test_defaults_are_those_that_the_docstring_states(name):
    given = inspect.signature(PUBLIC[name]).parameters
    stated = stated_defaults(PUBLIC[name])
    assert {argument: given[argument].default for argument in stated} == stated
