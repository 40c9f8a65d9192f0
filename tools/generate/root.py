"""Where the project is, and whether its generated files are current."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def is_current(path: Path, text: str) -> bool:
    """Whether a file exists and has this text."""
    return path.exists() and path.read_text(encoding="utf-8") == text


def stale(files: Iterable[tuple[Path, str]]) -> list[str]:
    """The files that are missing or have another text than they should."""
    return [str(path.relative_to(ROOT)) for path, text in files if not is_current(path, text)]
