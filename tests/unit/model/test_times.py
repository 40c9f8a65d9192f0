"""Durations and points in time that applications pass."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from cometmq.model.errors import ConfigError
from cometmq.model.times import (
    EPOCH_MS_MIN,
    SECONDS_MAX,
    epoch_ms,
    milliseconds,
    seconds,
    timeout_s,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2), (0.25, 0.25), (0, 0), (-1.5, -1.5), (timedelta(minutes=1, milliseconds=5), 60.005)],
)
def test_a_duration_is_seconds_or_a_timedelta(value: float | timedelta, expected: float) -> None:
    assert seconds(value) == expected
    assert milliseconds(value, "delay") == expected * 1000


def test_only_no_delay_is_no_delay() -> None:
    assert milliseconds(0.0001, "delay") == 1
    assert milliseconds(timedelta(microseconds=1), "delay") == 1
    assert milliseconds(1.0004, "delay") == 1_000


@pytest.mark.parametrize(
    "value", ["3", None, True, math.inf, math.nan, 1e14, -1e14, 10**400, datetime.now(UTC)]
)
def test_what_is_no_duration_is_refused_by_name(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^wait=.*: expected a number of seconds or a timedelta$"
    ):
        seconds(value, "wait")


def test_the_longest_timeout_is_that_of_a_timedelta() -> None:
    assert timeout_s(SECONDS_MAX) == timeout_s(timedelta(seconds=SECONDS_MAX)) == SECONDS_MAX


def test_a_timeout_that_is_more_likely_milliseconds_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: list[float | timedelta] = [3000, 3000, timedelta(seconds=3001), 999]

    assert [timeout_s(each) for each in given] == [3000, 3000, 3001, 999]
    assert [record.getMessage() for record in caplog.records] == [
        "timeout=3000 is 0:50:00: timeouts are in seconds; give timedelta(seconds=3000) if that is"
        " meant"
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (EPOCH_MS_MIN, EPOCH_MS_MIN),
        (1_800_000_000_123, 1_800_000_000_123),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), 1_000),
        (datetime(2027, 1, 15, 8, 0, 0, 123_000, tzinfo=UTC), 1_800_000_000_123),
        (datetime(2027, 1, 15, 10, tzinfo=timezone(timedelta(hours=2))), 1_800_000_000_000),
    ],
)
def test_a_point_in_time_is_a_datetime_or_ms_since_1970(
    value: datetime | int, expected: int
) -> None:
    assert epoch_ms(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        -1,
        1,
        1_800_000_000,
        EPOCH_MS_MIN - 1,
        1.5,
        True,
        None,
        "2027-01-15",
        datetime(2027, 1, 15),
        datetime(1969, 1, 1, tzinfo=UTC),
    ],
)
def test_what_is_no_point_in_time_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^since=.*: expected a datetime with a time zone"):
        epoch_ms(value, "since")
