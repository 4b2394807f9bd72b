"""The pages of the documentation, the code on them, and the script that writes their tables."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def named(pages: list[Path]) -> list:
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


def runnable_blocks(page: Path) -> list[tuple[int, str]]:
    """(number of lines above, source) of the blocks marked `python`; `python no-run` is only shown."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: block.start("body")].count("\n"), block["body"])
        for block in FENCE.finditer(text)
        if block["info"].strip() == "python"
    ]


def reproduction_tables() -> ModuleType:
    """docs/results/tables.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("reproduction_tables", ROOT / "docs" / "results" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
