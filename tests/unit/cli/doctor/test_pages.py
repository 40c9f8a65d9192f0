"""The page about the command lists every check, and pages that findings name exist."""

from __future__ import annotations

import re
from pathlib import Path

from tools.generate import pages

SOURCES = sorted((pages.ROOT / "src/cometmq/cli/doctor").glob("*.py"))
PAGE = pages.ROOT / "docs/howto/doctor.md"


def test_the_page_lists_every_check() -> None:
    named = re.compile(r'(?:Finding|fine|Check)\(\s*"([a-z-]+)"')
    known = {name for path in SOURCES for name in named.findall(path.read_text())}
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", PAGE.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]

    assert set(listed) == known


def test_pages_that_findings_name_exist() -> None:
    named = {
        name for path in SOURCES for name in re.findall(r"docs/[\w/.-]+\.md", path.read_text())
    }

    assert named
    assert [name for name in sorted(named) if not Path(pages.ROOT, name).is_file()] == []
