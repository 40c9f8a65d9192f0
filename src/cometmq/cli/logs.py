"""Sends log lines to standard error, each a sentence with key=value pairs.

Processes that share a standard error have a name at the start of each line.
"""

from __future__ import annotations

import logging
import sys

from cometmq.model.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")


class _Named(logging.Formatter):
    """Starts each line with the name of the process, those of a traceback too."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )
        self._start = f"[{name}] " if name else ""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._start:
            return text
        return "\n".join(f"{self._start}{line}" for line in text.splitlines())


def configure(level: str, name: str = "") -> None:
    """Send log lines of at least this level to standard error, with the name of the process.

    Raises:
        ConfigError: there is no such level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level {level!r}: expected one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Named(name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
