"""How `make docs-site` makes a site of these pages: Sphinx reads the Markdown that GitHub shows.

`README.md` in this folder is the list of pages; decisions and the client's reference have their own
lists. A page that no list names fails the build, and so does a link to nothing.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
REPOSITORY = "https://github.com/cometmq/cometmq/blob/HEAD/"
LISTS = ("README", "decisions/README", "reference/client")
"""The pages that list others; a page belongs to the first list that has it."""
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
EXAMPLE = re.compile(r"Example: ``(.*)``", re.DOTALL)
BLOCK = re.compile(r"\n\n(?! )|\n(?=[A-Z][a-z]+:(?: |$))")
SECTIONS = ("Args", "Raises", "Returns", "Yields")

project = "CometMQ"
author = "the CometMQ developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns = ["reference/parts"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # examples of output are no programs
default_role = "code"
autosummary_generate = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
html_theme = "furo"
html_title = "CometMQ"
html_baseurl = "https://cometmq.github.io/cometmq/"
html_copy_source = False


def _outside_fences(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a page, and whether each is text, not code."""
    for number, part in enumerate(FENCE.split(text)):
        yield number % 2 == 0, part


def link_to_repository(_: Sphinx, name: str, source: list[str]) -> None:
    """Let links to files that are no part of the site lead to the repository."""
    folder = (FOLDER / name).parent

    def target(match: re.Match[str]) -> str:
        path = (folder / match[1]).resolve()
        if path.is_relative_to(FOLDER) or not path.is_relative_to(ROOT):
            return match[0]
        if not path.exists():
            raise ExtensionError(f"{name}.md: there is no {match[1]}")
        return REPOSITORY + path.relative_to(ROOT).as_posix() + (match[2] or "")

    parts = _outside_fences(source[0])
    source[0] = "".join(LINK.sub(target, part) if is_text else part for is_text, part in parts)


def _listed(name: str) -> Iterator[tuple[str, list[str]]]:
    """The sections of a list, and the pages that each names."""
    path = FOLDER / f"{name}.md"
    _, *sections = SECTION.split("## Pages\n" + path.read_text() if path.exists() else "")
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        targets = (path.parent / match[1] for match in LINK.finditer(title + text))
        pages = (each.resolve() for each in targets if each.suffix == ".md")
        inside = (each for each in pages if each.is_relative_to(FOLDER))
        yield title, [each.relative_to(FOLDER).with_suffix("").as_posix() for each in inside]


def add_contents(_: Sphinx, name: str, source: list[str]) -> None:
    """Give each list the contents that Sphinx makes the navigation of."""
    if name not in LISTS:
        return
    seen = {root_doc, name}
    for other in LISTS[: LISTS.index(name)]:
        seen |= {page for _, pages in _listed(other) for page in pages}
    for title, pages in _listed(name):
        new = [page for page in dict.fromkeys(pages) if page not in seen]
        seen.update(new)
        if new:
            caption = f":caption: {title}\n" if name == root_doc else ""
            lines = "\n".join(f"/{page}" for page in new)
            source[0] += f"\n```{{toctree}}\n:hidden:\n{caption}\n{lines}\n```\n"


def format_docstring(
    _: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Mark what is code in a docstring: examples, and blocks that are indented."""
    parts = []
    for block in BLOCK.split("\n".join(lines).strip()):
        head, _, body = block.partition(":\n")
        single = EXAMPLE.fullmatch(block)
        if head == "Example" or single:
            code = single[1] if single else textwrap.dedent(body)
            indented = textwrap.indent(code, "   ")
            parts.append(f".. rubric:: Example\n\n.. code-block:: python\n\n{indented}")
        elif head not in SECTIONS and re.search(r"^    ", block, re.MULTILINE):
            parts.append(f".. code-block:: text\n\n{textwrap.indent(block, '   ')}")
        else:
            parts.append(block)
    lines[:] = [*"\n\n".join(parts).splitlines(), ""]


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Let the address of the site lead to the list of pages."""
    if error is None and app.builder.format == "html":
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above."""
    app.connect("source-read", link_to_repository)
    app.connect("source-read", add_contents, priority=600)
    app.connect("autodoc-process-docstring", format_docstring, priority=400)  # before napoleon
    app.connect("build-finished", add_index)
    return {"parallel_read_safe": True}


sys.path.insert(0, str(ROOT / "src"))
os.environ["COMETMQ_BUILD"] = "interpreted"  # the compiled modules may be older than the sources
