"""Log lines of failures that repeat, and of single failures."""

from __future__ import annotations

import logging

import pytest

from cometmq.system.failure_log import (
    FAILING_MAX,
    LINES_MAX,
    REASONS_MAX,
    WINDOW_S,
    FailureLog,
    RateLimitedLog,
)
from cometmq.system.log_format import fields_of

LOG = logging.getLogger("test.troubles")


def troubles() -> FailureLog:
    return FailureLog(LOG, fails="does not answer", works="answers again", name="address")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


def test_a_row_of_failures_is_one_warning_and_its_end_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger=LOG.name)
    watched = troubles()

    watched.succeeded("a:1")
    watched.failed("a:1", OSError("gone"))
    watched.failed("a:1", OSError("gone"))
    watched.succeeded("a:1")
    watched.succeeded("a:1")
    watched.failed("a:1", OSError("gone"))

    line = "does not answer address=a:1 error=gone"
    again = ("INFO", "answers again address=a:1")
    assert told(caplog) == [("WARNING", line), ("DEBUG", line), again, ("WARNING", line)]


def test_the_subject_and_the_reason_are_fields_of_a_json_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = FailureLog(
        LOG, fails="100% lost", works="found", name="address", more="group=my group"
    )

    watched.failed("a:1", OSError("gone"))
    watched.succeeded("a:1")

    assert [(record.message, fields_of(record)) for record in caplog.records] == [
        ("100% lost address=a:1 group=my group error=gone", {"address": "a:1", "error": "gone"}),
        ("found address=a:1 group=my group", {"address": "a:1"}),
    ]


def test_each_thing_has_a_row_of_its_own_and_one_that_was_forgotten_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = troubles()

    watched.failed("a:1", OSError("gone"))
    watched.failed("b:2", OSError("gone"))
    watched.forget("a:1")
    watched.succeeded("a:1")
    watched.succeeded("b:2")

    assert [level for level, _ in told(caplog)] == ["WARNING", "WARNING", "INFO"]


def test_each_reason_of_a_row_is_a_warning_once_however_they_alternate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = troubles()

    for reason in ("refused", "refused", "unknown id", "refused", "unknown id"):
        watched.failed("a:1", OSError(reason))
    watched.succeeded("a:1")
    watched.failed("a:1", OSError("unknown id"))

    assert told(caplog) == [
        ("WARNING", "does not answer address=a:1 error=refused"),
        ("WARNING", "does not answer address=a:1 error=unknown id"),
        ("INFO", "answers again address=a:1"),
        ("WARNING", "does not answer address=a:1 error=unknown id"),
    ]


def test_a_quiet_reason_is_still_a_warning_when_it_is_not_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = troubles()

    assert [watched.failed("a:1", OSError("gone"), quiet=quiet) for quiet in (True, False)] == [
        1,
        2,
    ]

    assert told(caplog) == [("WARNING", "does not answer address=a:1 error=gone")]


def test_the_reasons_that_a_row_logs_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = troubles()
    for number in range(REASONS_MAX + 5):
        watched.failed("a:1", OSError(f"after {number} ms"))
    assert len(told(caplog)) == REASONS_MAX


def test_few_subjects_log_one_reason_and_one_line_says_that_there_are_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = FailureLog(
        LOG, fails="pull failed", works="pulls", name="queue", more="group=g", alike_max=2
    )

    for quiet in (True, False, False):
        for queue in ("t:0", "t:1", "t:2", "t:3", "t:4"):
            watched.failed(queue, OSError("gone"), quiet=quiet)
    watched.failed("t:4", OSError("refused"))
    watched.succeeded("t:3")

    assert told(caplog) == [
        ("WARNING", "pull failed queue=t:0 group=g error=gone"),
        ("WARNING", "pull failed queue=t:1 group=g error=gone"),
        (
            "WARNING",
            "further failures with this error are logged at level DEBUG group=g error=gone",
        ),
        ("WARNING", "pull failed queue=t:4 group=g error=refused"),
        ("INFO", "pulls queue=t:3 group=g"),
    ]


def test_the_memory_for_things_in_trouble_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    watched = troubles()
    for number in range(FAILING_MAX + 5):
        watched.failed(str(number), OSError("gone"))
    caplog.clear()

    watched.succeeded(str(FAILING_MAX - 1))
    watched.succeeded(str(FAILING_MAX))

    assert told(caplog) == [("INFO", f"answers again address={FAILING_MAX - 1}")]


def test_lines_beyond_the_limit_are_counted_until_the_window_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger=LOG.name)
    now_s = 100.0
    limited = RateLimitedLog(LOG, "messages were skipped", now_s=lambda: now_s)

    for number in range(LINES_MAX + 3):
        limited.add("skipped offset=%d", number)
    limited.settle()
    assert told(caplog) == [("WARNING", f"skipped offset={number}") for number in range(LINES_MAX)]
    caplog.clear()
    now_s += WINDOW_S
    limited.add("skipped offset=%d", 99)
    limited.settle(now=True)
    assert told(caplog) == [
        ("WARNING", "3 more messages were skipped"),
        ("WARNING", "skipped offset=99"),
    ]


def test_a_log_may_have_another_limit_and_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=LOG.name)
    limited = RateLimitedLog(LOG, "reads failed", level=logging.ERROR, lines_max=1)
    limited.add("gone")
    limited.add("gone")
    limited.settle(now=True)
    assert told(caplog) == [("ERROR", "gone"), ("ERROR", "1 more reads failed")]
