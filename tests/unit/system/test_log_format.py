"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.system.log_format import JsonFormatter, TextFormatter

NOW_S = 1_769_860_800.123


def record(message: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord(
        "cometmq.store", logging.WARNING, "x.py", 1, message, arguments, more.get("error")
    )
    made.created = NOW_S
    return made


def line(made: logging.LogRecord, process: str = "") -> dict[str, Any]:
    text = JsonFormatter(process).format(made)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    assert line(record("stopped")) == {
        "time": "2026-01-31T12:00:00.123Z",
        "level": "WARNING",
        "logger": "cometmq.store",
        "message": "stopped",
    }


def test_one_of_several_processes_has_its_name() -> None:
    assert line(record("stopped"), "broker-1")["process"] == "broker-1"


@pytest.mark.parametrize(
    ("message", "arguments", "fields"),
    [
        ("a peer=%s: %s", ("1:2", "lost"), {"peer": "1:2"}),
        ("a role=%s id=%d", ("SLAVE", 1), {"role": "SLAVE", "id": 1}),
        ("took %.1f ms=%.2f", (0.5, 0.25), {"ms": 0.25}),
        ("slow ms=%d", (105.5166,), {"ms": 105}),
        ("100%% full of=%s", ("disk",), {"of": "disk"}),
        ("%s", ("x=1",), None),
        ("ok=%s none=%s", (True, None), {"ok": True, "none": None}),
        ("error=%r", (ValueError("x"),), {"error": "x"}),
    ],
)
def test_pairs_of_the_message_are_fields(
    message: str, arguments: tuple[object, ...], fields: dict[str, object] | None
) -> None:
    found = line(record(message, *arguments))

    assert found["message"] == message % arguments
    assert found.get("fields") == fields


def test_every_value_of_a_pair_is_one_argument() -> None:
    """``url=http://%s:%d`` is no field: the value begins with text."""
    packages = Path(cometmq.__file__).parent
    found = [
        f"{path.relative_to(packages)}: {text}"
        for path in packages.rglob("*.py")
        for text in re.findall(r"""\b\w+=[^ %"'{}()=]+%[-.\d]*[sdgr]""", path.read_text())
    ]

    assert found == []


def test_a_traceback_is_inside_of_the_line() -> None:
    try:
        raise OSError("no\nroom")
    except OSError:
        found = line(record("cannot write", error=sys.exc_info()))

    assert found["message"] == "cannot write"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("OSError: no\nroom")


def test_a_name_that_utf8_cannot_encode_is_shown() -> None:
    found = line(record("cannot read path=%s", b"/x\xff".decode(errors="surrogateescape")))

    assert found["fields"] == {"path": "/x?"}


def test_a_message_with_a_mapping_has_no_fields() -> None:
    found = line(record("a=%(a)s", {"a": 1}))

    assert (found["message"], found.get("fields")) == ("a=1", None)


@pytest.mark.parametrize("process", ["", "broker-1"])
def test_a_text_has_one_line_whatever_a_peer_has_named(process: str) -> None:
    made = record("refused topic=%s", "x\n2026-01-31 WARNING all is well\r\x1b[2J")

    text = TextFormatter(process).format(made)

    assert text.splitlines() == [text]
    assert text.endswith(r"refused topic=x\n2026-01-31 WARNING all is well\r\x1b[2J")


def test_a_text_with_a_traceback_has_a_line_for_each_of_its_lines() -> None:
    try:
        raise OSError("no room")
    except OSError:
        text = TextFormatter("b").format(record("cannot write", error=sys.exc_info()))

    lines = text.splitlines()
    assert lines[0].endswith(" WARNING cometmq.store: cannot write")
    assert lines[-1] == "[b] OSError: no room"
    assert all(line.startswith("[b] ") for line in lines)
