"""The documentation is true: its links lead somewhere, and no erratum is missing. Its Python blocks run in tests/site."""

import re
from pathlib import Path

import pytest

from pages import FENCE, PAGES, ROOT, named, runnable_blocks

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


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
    assert [int(number) for number in headings] == list(range(1, 26))
