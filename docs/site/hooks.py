"""Extend the site: pages from the repository's root, links from notebooks, formulas as MathML, each page's kind, llms.txt.

Pages link to `../CHANGELOG.md` and the like, as they must in the repository; in the site these are pages of their own.
"""

import html as html_escapes
import logging
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks.ecl2o")
ROOT = Path(__file__).resolve().parents[2]

# Pages made of files at the root, and where links to others of these lead.
FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKS = FROM_ROOT | {"README.md": "index.md"}
# What a page of each tab is. A tab that is not listed fails the strict build.
KINDS = {
    "Start": "Start here",
    "Cases": "Worked case: real data, beside what people use today",
    "Tutorials": "Tutorial: a lesson that runs",
    "How-to": "How-to: steps for a task",
    "Explanation": "Explanation: background and reasons",
    "Reference": "Reference: look things up",
}
# A row of the tables in docs/index.md: a link and a description.
INDEX_ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<path>[^)]+)\) \| (?P<content>.+) \|$", re.MULTILINE)
# What pymdownx.arithmatex leaves of `$...$` and `$$...$$`.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config) -> Files:
    """Add the pages that are made from files outside docs/."""
    for source, page in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_relink(text)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Lead links out of docs/ to the pages made here."""
    return _relink(markdown, "../")


def on_page_content(html: str, page, config, files: Files) -> str:
    """Typeset formulas, name the page's kind, and lead links in notebooks to pages. A dead link fails the build."""
    html = FORMULA.sub(lambda found: _typeset(found, page.file.src_uri), html)
    if page.ancestors:
        tab = page.ancestors[-1].title
        if tab not in KINDS:
            log.warning("%s is in the tab %r, which has no kind in docs/site/hooks.py.", page.file.src_uri, tab)
        html = f'<p class="kind">{KINDS.get(tab, tab)}</p>\n{html}'
    if not page.file.src_uri.endswith(".py"):
        return html

    def find_page(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link["path"]))
        found = files.get_file_from_path(target)
        if found is None:
            log.warning("%s links to %s, which does not exist.", page.file.src_uri, link["path"])
            return link[0]
        return f'href="{found.url_relative_to(page.file)}"'

    return re.sub(r'href="(?P<path>[\w./-]+\.(?:md|py))"', find_page, html)


def on_post_build(config) -> None:
    """Write llms.txt: the index of the site as plain Markdown, for programs that read documentation (llmstxt.org)."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}."]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        lines += ["", f"## {section.splitlines()[0]}", ""]
        rows = [
            f"- [{row['title']}]({_page_address(row['path'])}): {row['content']}" for row in INDEX_ROW.finditer(section)
        ]
        lines += rows
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page_address(path: str) -> str:
    """Return the address of a page in the site, relative to its root."""
    path = LINKS.get(path.removeprefix("../"), path)
    return re.sub(r"\.(md|py)$", ".html", path)


def _typeset(found: re.Match[str], page: str) -> str:
    """Return a TeX formula as MathML, which browsers render without a script."""
    tex = html_escapes.unescape(found[3]).strip()
    display = "block" if found[2] == "[" else "inline"
    try:
        formula = convert(tex, display=display)
        return f'<div class="formula">{formula}</div>' if display == "block" else formula
    except Exception as error:  # the converter documents no error classes; any of them fails the strict build
        log.warning("%s: the formula %r cannot be typeset: %s", page, tex, error)
        return html_escapes.escape(tex)


def _relink(text: str, prefix: str = "") -> str:
    for source, page in LINKS.items():
        text = text.replace(f"]({prefix}{source})", f"]({page})")
    return text
