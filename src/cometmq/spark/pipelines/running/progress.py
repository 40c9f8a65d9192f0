"""Reports the progress of a pipeline."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol


class Progress(Protocol):
    """Is told how far a pipeline has come."""

    def start(self, total: int, unit: str, what: str) -> None:
        """Begin a phase of ``total`` units; 0 where that is not known."""

    def step(self, n: int = 1) -> None:
        """Count ``n`` more units as done."""

    def end(self) -> None:
        """End the phase."""


class Silent:
    """Tells nobody."""

    def start(self, total: int, unit: str, what: str) -> None:
        """Begin a phase."""

    def step(self, n: int = 1) -> None:
        """Count."""

    def end(self) -> None:
        """End the phase."""


silent: Progress = Silent()


class Lines:
    """Writes a line at the beginning, about every ``interval_s`` and at the end of each phase.

    Args:
        file: where to; standard error by default.
        interval_s: seconds between lines.
    """

    def __init__(self, file: Any = None, interval_s: float = 5.0) -> None:
        self._file = file or sys.stderr
        self._interval_s = interval_s
        self._done = self._total = 0
        self._unit = self._what = ""
        self._shown = 0.0

    def start(self, total: int, unit: str, what: str) -> None:
        """Write what begins."""
        self._total, self._unit, self._what, self._done = total, unit, what, 0
        self._show()

    def step(self, n: int = 1) -> None:
        """Count, and write if it was quiet for a while."""
        self._done += n
        if time.monotonic() - self._shown >= self._interval_s:
            self._show()

    def end(self) -> None:
        """Write how it ended."""
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        of = f" of {self._total:,}" if self._total else ""
        print(f"{self._what}: {self._done:,}{of} {self._unit}", file=self._file, flush=True)


class Bar:
    """Draws a bar on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def start(self, total: int, unit: str, what: str) -> None:
        """Show a new bar."""
        self._bar.start()
        self._task = self._bar.add_task(what, total=total or None, unit=unit)

    def step(self, n: int = 1) -> None:
        """Move the bar on."""
        if self._task is not None:
            self._bar.advance(self._task, n)

    def end(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()


def shown() -> Progress:
    """Return a bar on a terminal, lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()
