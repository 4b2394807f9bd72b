"""The Python blocks of every page run."""

import os
from pathlib import Path

import pytest

from pages import PAGES, named, runnable_blocks

pytestmark = pytest.mark.skipif("ECL2O_DOCS" not in os.environ, reason="takes half a minute; make docs runs it")


@pytest.mark.parametrize("page", named([page for page in PAGES if runnable_blocks(page)]))
def test_python_blocks_run(page: Path):
    """The blocks of a page share one namespace, in order; a traceback names the line of the page."""
    namespace: dict = {"__name__": f"page_{page.stem}"}
    for above, source in runnable_blocks(page):
        exec(compile("\n" * above + source, str(page), "exec"), namespace)
