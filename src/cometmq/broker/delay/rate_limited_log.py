"""A log of single messages that stays short, however many messages there are."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

LINES_MAX: Final = 20
WINDOW_S: Final = 10.0


class RateLimitedLog:
    """Logs up to `LINES_MAX` warnings in `WINDOW_S`, and then how many more there were.

    Args:
        log: the logger.
        what: names the warnings that are only counted.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._began_s = -WINDOW_S
        self._lines = 0

    def warning(self, text: str, *args: object) -> None:
        """Log a warning, or count it."""
        if monotonic() - self._began_s >= WINDOW_S:
            self.settle()
            self._began_s = monotonic()
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log.warning(text, *args)

    def settle(self, *, now: bool = False) -> None:
        """Log how many warnings were only counted, if the time of their window is over."""
        if now or monotonic() - self._began_s >= WINDOW_S:
            more, self._lines = self._lines - LINES_MAX, 0
            if more > 0:
                self._log.warning("%d more %s", more, self._what)
