"""docs/algorithms.md covers every agent, cites what `citation` cites, and names tests that exist."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ecl2o as ec
from conformance.registry import CASES
from ecl2o import agents, forecasters
from ecl2o.agents import AbstractAgent
from ecl2o.agents.citations import named_citation
from ecl2o.forecasters import AbstractForecaster

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
PARTS = ("**Rule.**", "**Guarantee.**", "**Reference.**", "**Use it**")
KEY = re.compile(r"^@\w+\{(\w+),$", re.MULTILINE)


def exported(home, base: type) -> set[str]:
    return {
        name
        for name, cls in vars(home).items()
        if inspect.isclass(cls) and issubclass(cls, base) and not name.startswith("Abstract")
    }


GUARDS = {
    name for name, made in vars(agents).items() if getattr(made, "__annotations__", {}).get("return") is agents.Guard
}
AGENTS = sorted((exported(agents, AbstractAgent) | exported(agents.advisors, AbstractAgent) | GUARDS) - {"Guard"})


def section(name: str) -> str:
    found = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"docs/algorithms.md has {len(found)} sections called {name}"
    return found[0]


def inside(value) -> Iterator[AbstractAgent]:
    if isinstance(value, AbstractAgent):
        yield value
        for name in value.__dataclass_fields__:
            yield from inside(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from inside(item)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_has_its_section(name: str):
    text = section(name)
    assert [part for part in PARTS if text.count(part) != 1] == []


def test_every_section_is_of_an_agent():
    assert sorted(re.findall(r"^### (.*)$", PAGE, re.MULTILINE)) == AGENTS


@pytest.mark.parametrize("name", AGENTS)
def test_the_reference_is_what_citation_gives(name: str):
    keys = KEY.findall(named_citation(name))
    assert keys
    reference = section(name).partition("**Reference.**")[2].partition("**Use it**")[0]
    assert re.findall(r"`(\w+)`", reference) == keys


def test_citation_gives_bibtex_for_every_agent():
    """Those of the conformance suite, which sees to it that none is missing."""
    registered = [agent for case in CASES for agent in inside(case.make(case.dims[0]))]
    for agent in registered:
        entries = ec.citation(agent).split("\n\n")
        assert all(KEY.match(entry) and entry.endswith("}") for entry in entries), type(agent).__name__


def test_every_forecaster_has_its_line():
    named = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Forecasters")[2], re.MULTILINE)
    assert sorted(named) == sorted(exported(forecasters, AbstractForecaster))


def test_the_tests_it_names_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"
