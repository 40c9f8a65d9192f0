"""Converts durations and times that applications pass.

A duration is a number of seconds or a `timedelta`. A point in time is a `datetime` with a time zone
or a number of milliseconds since 1970. A `datetime` without a time zone is refused, since its
meaning depends on the machine: containers run in UTC, other machines in local time.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

from cometmq.model.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def now_ms() -> int:
    """Return the time of this machine's clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def seconds(value: float | timedelta, name: str = "timeout") -> float:
    """Return a duration in seconds.

    Args:
        value: what the application passed.
        name: the parameter, for the error.

    Raises:
        ConfigError: the value is neither a finite number nor a `timedelta`.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name}={value!r}: expected a number of seconds or a timedelta")
    return value


def milliseconds(value: float | timedelta, name: str) -> int:
    """Return a duration in whole milliseconds, rounded; a nonzero value never becomes 0.

    Raises:
        ConfigError: as for `seconds`.
    """
    exact = seconds(value, name) * 1000
    return round(exact) or math.ceil(exact)


def epoch_ms(value: datetime | int, name: str = "time") -> int:
    """Return a point in time in milliseconds since 1970.

    Args:
        value: what the application passed.
        name: the parameter, for the error.

    Raises:
        ConfigError: the value is neither of the two, has no time zone, or is before 1970.
    """
    if isinstance(value, datetime) and value.utcoffset() is not None:
        found = (value - _EPOCH) // _MS
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        found = -1
    if found < 0:
        raise ConfigError(
            f"{name}={value!r}: expected a datetime with a time zone, such as datetime.now(UTC), "
            "or ms since 1970"
        )
    return found
