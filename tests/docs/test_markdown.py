"""The documentation is true: its Python blocks run, its links lead somewhere, and no erratum is missing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


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


@pytest.mark.parametrize("page", named([page for page in PAGES if runnable_blocks(page)]))
def test_python_blocks_run(page: Path):
    """The blocks of a page share one namespace, in order; a traceback names the line of the page."""
    namespace: dict = {"__name__": f"page_{page.stem}"}
    for above, source in runnable_blocks(page):
        exec(compile("\n" * above + source, str(page), "exec"), namespace)


def test_the_pages_that_promise_examples_have_them():
    for name in ("README.md", "CONTRIBUTING.md", "docs/errata.md"):
        assert runnable_blocks(ROOT / name), name


@pytest.mark.parametrize("page", named(PAGES))
def test_blocks_are_closed_and_of_a_known_kind(page: Path):
    text = page.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(FENCE.findall(text))
    kinds = {block["info"].strip() for block in FENCE.finditer(text)}
    assert not {kind for kind in kinds if kind.startswith("py")} - {"python", "python no-run"}


@pytest.mark.parametrize("page", named(PAGES))
def test_links_lead_somewhere(page: Path):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.finditer(text):
        path, _, anchor = link["target"].partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link['target']}"
        if anchor:
            assert f'<a id="{anchor}"></a>' in target.read_text(encoding="utf-8"), f"{page.name}: {link['target']}"


def test_every_erratum_is_explained_once():
    headings = re.findall(r"^## E(\d+)\. ", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number in headings] == list(range(1, 24))
