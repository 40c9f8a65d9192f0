"""Log lines as text and as JSON, and the setting that chooses between them.

Peers choose names, addresses and remarks: none of them makes a line of the log, or controls a
terminal. As JSON, a line is one object:

    {"time":"2026-01-31T12:00:00.123Z","level":"WARNING","logger":"cometmq.remoting.server",
     "message":"refused a connection server=broker: no certificate",
     "fields":{"server":"broker"}}

``fields`` has the values that the message shows as ``key=value``, with their types. A line of one
of several processes has ``process``, its name; one about an exception has ``exception``, its
traceback.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from cometmq.system.settings import setting, settings_class

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

_CONVERSION = re.compile(r"(?:([A-Za-z_]\w*)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?([a-zA-Z]))")
_MESSAGES_KEPT_MAX = 1024


@settings_class
class LogSettings:
    """How a server writes its log lines."""

    format: str = setting(TEXT, key="logFormat", choices=FORMATS)
    """``json`` writes each log line as one JSON object."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    Args:
        process: the name of the process, if several share one output.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": utc_text(record.created),
            "level": record.levelname,
            "logger": record.name,
        }
        if self._process:
            line["process"] = self._process
        line["message"] = record.getMessage()
        if fields := fields_of(record):
            line["fields"] = fields
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return msgspec.json.encode(_writable(line)).decode()


class TextFormatter(logging.Formatter):
    """Formats a record as one line, followed by the traceback of its exception.

    Args:
        process: the name of the process, if several share one output; each line begins with it.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )
        self._start = f"[{process}] " if process else ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the traceback."""
        text = super().format(record)
        if not self._start:
            return text
        return "\n".join(f"{self._start}{line}" for line in text.splitlines())


def printable(text: str) -> str:
    """Return a text in one line, with escapes for all characters that a terminal cannot show."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines, each of them `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def utc_text(seconds: float) -> str:
    """Return a time in UTC as ISO 8601 with milliseconds."""
    whole, ms = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{ms:03d}Z"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the arguments of a record that its message shows as ``key=value``."""
    arguments = record.args
    if not arguments or isinstance(arguments, Mapping):
        return {}
    found = zip(_conversions_in(str(record.msg)), arguments, strict=False)
    return {name: _plain(letter, value) for (name, letter), value in found if name}


@lru_cache(_MESSAGES_KEPT_MAX)
def _conversions_in(message: str) -> tuple[tuple[str, str], ...]:
    """Return the letter of each conversion of a message, and the key before it; empty for none."""
    return tuple((name, letter) for name, letter in _CONVERSION.findall(message) if letter)


def _plain(letter: str, value: Any) -> Any:
    """Return a value that JSON has, whole if the message shows it whole; the text of any other."""
    if letter == "d" and isinstance(value, float):
        return int(value)
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)


def _writable(value: Any) -> Any:
    """Replace characters that UTF-8 cannot encode, such as surrogates in the name of a file."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _writable(each) for key, each in value.items()}
    return value
