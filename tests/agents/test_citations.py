"""Every agent has someone to cite, wrappers cite what is inside them, and the entries are well formed."""

import re

import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent
from ecl2o.agents.citations import _ENTRIES, _WORKS
from toy_agent import StatelessAgent


def _keys(text):
    return re.findall(r"^@\w+\{(\w+),$", text, flags=re.MULTILINE)


class Mine(StatelessAgent):
    def act(self, observation):
        return observation.previous_action


class Switch(StatelessAgent):
    """Not the library's, though its name is."""

    act = Mine.act


@pytest.mark.parametrize(
    ("agent", "keys"),
    [
        (ec.OBD(), ["chen2018smoothed"]),
        (ec.OGD(), ["zinkevich2003online"]),
        (ec.LCP(), ["lin2011dynamic"]),
        (ec.Greedy(), ["li2022expert"]),
        (ec.Switch(ec.OGD()), ["antoniadis2020online", "zinkevich2003online", "goel2019beyond"]),
        (ec.MLAROBD(ec.ABCS(ec.LAI())), ["li2022expert", "goel2019beyond", "rutten2021new", "bhuyan2023best"]),
        (ec.Independent(ec.ROBD()), ["goel2019beyond"]),
        (Mine(), ["li2022expert"]),
        (Switch(), ["li2022expert"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AbstractAgent) else "",
)
def test_cites_what_is_inside_once(agent, keys):
    assert _keys(ec.citation(agent)) == keys


def test_entries_are_complete():
    assert {key for keys in _WORKS.values() for key in keys} <= set(_ENTRIES)
    for key, entry in _ENTRIES.items():
        assert _keys(entry) == [key]
        assert entry.count("{") == entry.count("}")
        assert all(re.search(rf"^  {field}\s+= ", entry, flags=re.MULTILINE) for field in ("author", "title", "year"))
