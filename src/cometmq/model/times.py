"""Converts durations and times that applications pass.

A duration is a number of seconds or a `timedelta`. A point in time is a `datetime` with a time zone
or a number of milliseconds since 1970. A `datetime` without a time zone is refused, since its
meaning depends on the machine: containers run in UTC, other machines in local time. A number that
can only be seconds since 1970 is refused, and a timeout that is more likely milliseconds is logged.

A time that a person writes on a command line is local without a zone, as the times in tables are.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cometmq.model.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
EPOCH_MS_MIN = 10**11
"""From here on, in 1973, numbers are ms since 1970: as seconds they are beyond the year 5000."""
SECONDS_MAX = 86_400 * 999_999_999
"""The longest duration, which a `timedelta` can hold as well."""
TIMEOUT_S_USUAL = 1_000
"""From here on a timeout that is given as a number is more likely in milliseconds."""

_AGO = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|min|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def now_ms() -> int:
    """Return the time of this machine's clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def seconds(value: float | timedelta, name: str = "timeout") -> float:
    """Return a duration in seconds.

    Args:
        value: what the application passed.
        name: the parameter, for the error.

    Raises:
        ConfigError: the value is neither a finite number nor a `timedelta`, or beyond what a
            `timedelta` can hold.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -SECONDS_MAX <= value <= SECONDS_MAX:
        raise ConfigError(f"{name}={value!r}: expected a number of seconds or a timedelta")
    return value


def timeout_s(value: float | timedelta, name: str = "timeout") -> float:
    """Return a timeout in seconds, and log a number that is more likely in milliseconds.

    Raises:
        ConfigError: as for `seconds`.
    """
    found = seconds(value, name)
    if found >= TIMEOUT_S_USUAL and not isinstance(value, timedelta):
        _warn_of_timeout(name, found)
    return found


@lru_cache(maxsize=256)
def _warn_of_timeout(name: str, found: float) -> None:
    """Log each timeout once, since a call with it is often repeated."""
    import logging  # the console loads this module, and starts faster without it

    logging.getLogger(__name__).warning(
        "%s=%s is %s: timeouts are in seconds; give timedelta(seconds=%s) if that is meant",
        *(name, found, timedelta(seconds=found), found),
    )


def milliseconds(value: float | timedelta, name: str) -> int:
    """Return a duration in whole milliseconds, rounded; a nonzero value never becomes 0.

    Raises:
        ConfigError: as for `seconds`.
    """
    exact = seconds(value, name) * 1000
    return round(exact) or math.ceil(exact)


def epoch_ms(value: datetime | int, name: str = "time", others: str = "") -> int:
    """Return a point in time in milliseconds since 1970.

    Args:
        value: what the application passed.
        name: the parameter, for the error.
        others: what else the parameter may be, for the error.

    Raises:
        ConfigError: the value is neither of the two, has no time zone, is before 1970, or is a
            number of seconds. 0 is the start of 1970 in every unit.
    """
    hint = ""
    if isinstance(value, datetime) and value.utcoffset() is not None:
        found = (value - _EPOCH) // _MS
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
        if 0 < found < EPOCH_MS_MIN:
            found, hint = -1, "; if these are seconds, multiply them by 1000"
    else:
        found = -1
    if found < 0:
        raise ConfigError(
            f"{name}={value!r}: expected {others}a datetime with a time zone, such as "
            f"datetime.now(UTC), or ms since 1970{hint}"
        )
    return found


def time_of(text: str, *, now: int | None = None) -> int:
    """Return the point in time that a person has written, in ms since 1970.

    Args:
        text: ``now``, a time ago such as ``90s``, ``15m``, ``2h`` or ``3d``, an ISO 8601 time such
            as ``2026-01-31T18:00``, local if it has no zone, or ms since 1970.
        now: the present time in ms since 1970; None for this machine's clock.

    Raises:
        ConfigError: it is none of these.
    """
    found = -1
    present = now_ms() if now is None else now
    if text == "now":
        found = present
    elif ago := _AGO.fullmatch(text):
        found = max(present - round(float(ago[1]) * _UNIT_MS[ago[2]]), 0)
    elif text.isascii() and text.isdecimal():
        found = int(text) if text == "0" or EPOCH_MS_MIN <= int(text) < 2**63 else -1
    else:
        with contextlib.suppress(ValueError, OverflowError):
            found = round(datetime.fromisoformat(text).timestamp() * 1000)
    if found < 0:
        raise ConfigError(
            f"{text:.100}: expected now, a time ago such as 2h, an ISO 8601 time such as"
            " 2026-01-31T18:00 (local) or 2026-01-31T18:00Z, or ms since 1970"
        )
    return found
