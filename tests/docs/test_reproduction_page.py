"""The tables of docs/reproduction.md are those of the stored results files, and each of these says which command made it."""

import json
import re
from pathlib import Path

import pytest

from pages import reproduction_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def tables():
    return reproduction_tables()


def test_every_table_is_what_the_results_say(tables):
    page = tables.PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table ([\w-]+) -->", page)) == set(tables.TABLES)
    assert tables.written(page) == page


def test_a_changed_figure_would_be_noticed(tables, monkeypatch):
    other = json.loads(json.dumps(tables.results("authors-code-lstm")))
    other["algorithms"]["pure-ml"]["average_cost"]["mean"] += 0.001
    before = tables.results
    monkeypatch.setattr(tables, "results", lambda name: other if name == "authors-code-lstm" else before(name))
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page) != page


def test_every_results_file_has_its_command_on_the_page(tables):
    page = tables.PAGE.read_text(encoding="utf-8")
    for file in (DOCS / "results").glob("*.json"):
        assert re.search(rf"--out \S*{file.stem}\b", page), file.name
