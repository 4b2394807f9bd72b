"""Keep the results of a case: a JSON file beside its page, and the page's table between `<!-- table -->` and `<!-- end -->`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]  # heading: the text of a row's cell
_PLACE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def format_table(first: str, columns: Columns, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with one line per row; `first` heads the column of their names."""
    lines: Sequence[Sequence[str]] = [
        [first, *columns],
        ["---"] * (1 + len(columns)),
        *([name, *(cell(figures) for cell in columns.values())] for name, figures in rows.items()),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def store(case: str, found: Mapping[str, Any], table: str) -> None:
    """Write the results of a case to CASE.json, and its table into CASE.md."""
    (HERE / f"{case}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = HERE / f"{case}.md"
    page.write_text(_PLACE.sub(lambda _: table, page.read_text(encoding="utf-8")), encoding="utf-8")


def load(case: str) -> dict[str, Any]:
    """Return the stored results of a case."""
    return json.loads((HERE / f"{case}.json").read_text(encoding="utf-8"))
