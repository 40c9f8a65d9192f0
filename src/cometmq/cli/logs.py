"""Sends log lines to standard error, each a sentence with key=value pairs, or as JSON.

Processes that share a standard error have a name at the start of each line.
"""

from __future__ import annotations

import logging
import sys

from cometmq.model.errors import ConfigError
from cometmq.system.log_format import FORMATS, TEXT, JsonFormatter, TextFormatter

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, name: str = "", *, form: str = TEXT) -> None:
    """Send log lines of at least this level to standard error, with the name of the process.

    Args:
        level: one of `LEVELS`.
        name: of the process, if several share a standard error.
        form: one of ``text`` and ``json``.

    Raises:
        ConfigError: there is no such level or format.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"log level {level!r}: expected one of {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ConfigError(f"log format {form!r}: expected one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(name) if form == TEXT else JsonFormatter(name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
