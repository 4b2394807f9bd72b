"""What the site adds to the pages of docs/: the API reference, and the files that stand at the root of the repository.

Pages link to `../CHANGELOG.md` and the like, as they must in the repository; in the site these are pages of their own.
"""

import importlib
import inspect
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks.ecl2o")
ROOT = Path(__file__).resolve().parents[2]

# Pages made of files at the root, and where links to others of these lead.
FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKS = FROM_ROOT | {"README.md": "index.md"}

# Rooms that have a page, with a title; the names on it are those that the room exports.
ROOMS = {
    "problem": "Problems: costs, action sets, instances",
    "agents": "Agents and guards",
    "agents.advisors": "Advisors",
    "offline": "Hindsight",
    "forecasters": "Forecasters",
    "running": "Running",
    "evaluation": "Evaluation",
    "learning": "Learning",
    "theory": "Theory",
    "policy": "Policies and runners",
    "service": "The service",
    "data": "Data",
    "fitting": "Fitting one's own series",
    "gym": "Gymnasium",
    "fleet": "Fleets",
}


def on_files(files: Files, config) -> Files:
    """Add the pages that no file of docs/ holds."""
    for source, page in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_relinked(text)))
    files.append(File.generated(config, "api/index.md", content=_overview()))
    for room, title in ROOMS.items():
        files.append(File.generated(config, _page(room), content=_reference(room, title)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Links out of docs/ lead to the pages made here."""
    return _relinked(markdown, "../")


def on_page_content(html: str, page, config, files: Files) -> str:
    """Links in notebooks lead to pages; one that leads nowhere is a warning, and so fails the build."""
    if not page.file.src_uri.endswith(".py"):
        return html

    def page_of(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link["path"]))
        found = files.get_file_from_path(target)
        if found is None:
            log.warning("%s links to %s, which is not there.", page.file.src_uri, link["path"])
            return link[0]
        return f'href="{found.url_relative_to(page.file)}"'

    return re.sub(r'href="(?P<path>[\w./-]+\.(?:md|py))"', page_of, html)


def _relinked(text: str, prefix: str = "") -> str:
    for source, page in LINKS.items():
        text = text.replace(f"]({prefix}{source})", f"]({page})")
    return text


def _page(room: str) -> str:
    return f"api/{room.rpartition('.')[2]}.md"


def _exported(room: str) -> list[str]:
    """The public names of a room, modules aside, in the order of its own list."""
    module = importlib.import_module(f"ecl2o.{room}")
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


def _reference(room: str, title: str) -> str:
    docstring = inspect.getdoc(importlib.import_module(f"ecl2o.{room}")) or ""
    names = _exported(room)
    blocks = "\n\n".join(f"::: ecl2o.{room}.{name}" for name in names)
    return f"# {title}\n\n`ecl2o.{room}`: {docstring}\n\n{blocks}\n"


def _overview() -> str:
    import ecl2o

    rows = []
    for room, title in ROOMS.items():
        names = [name for name in _exported(room) if name in ecl2o.__all__]
        shown = ", ".join(f"`{name}`" for name in names) or f"under `ecl2o.{room}`"
        rows.append(f"| [{title}]({_page(room).removeprefix('api/')}) | {shown} |")
    body = "\n".join(rows)
    return (
        "# API reference\n\nMade from the docstrings; their examples are run as tests. `import ecl2o as ec` gives all names of "
        f"the right column, each loaded when it is first used.\n\n| page | names in `ecl2o` |\n|---|---|\n{body}\n"
    )
