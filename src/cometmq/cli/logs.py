"""Sends log lines to standard error, each a sentence with key=value pairs."""

from __future__ import annotations

import logging
import sys

from cometmq.model.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str) -> None:
    """Send log lines of at least this level to standard error.

    Raises:
        ConfigError: there is no such level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level {level!r}: expected one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
