"""What every file of the library keeps to."""

import re
from pathlib import Path

import pytest

import ecl2o

SOURCE = Path(ecl2o.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST = 350  # lines
OUTSIDE = re.compile(r"\b(ALGORITHMS|DESIGN)\b|\.\./shared|\bissue #?\d+")


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_a_file_is_short_and_speaks_of_this_repository_only(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST
    assert OUTSIDE.findall(text) == []


def test_each_room_says_who_lives_there():
    rooms = [path for path in FILES if path.name == "__init__.py" and path.parent != SOURCE]
    assert rooms
    for path in rooms:
        assert path.read_text(encoding="utf-8").startswith('"""'), path


def test_only_guards_ask_which_guard_it_is():
    """Everybody else asks the protocol: `promise`, `in_units`, `on_terms`, `within`, `renewed`."""
    asking = re.compile(r"isinstance\([^)]*\b(Competitive|Guarded)\b")
    found = [path for path in FILES if asking.search(path.read_text(encoding="utf-8"))]
    assert [path for path in found if "guards" not in path.parts] == []
