"""Compares the clocks of brokers with the clock of this host, by a request.

The runtime information of a broker contains when it was started and for how many seconds it has
run, from which its time follows, to a second. Source: StoreStatsService, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cometmq.cli.doctor.findings import Finding, Level, fine

WARNING_MS, PROBLEM_MS = 2_000, 60_000
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_RUNTIME_ERROR_MS = 500
"""The seconds are rounded down: half a second is added, and may be wrong by as much."""


class Offset(NamedTuple):
    """How far a clock is ahead of the clock of this host."""

    ms: int
    error_ms: int

    @property
    def least_ms(self) -> int:
        """The smallest difference that the measurement allows, whichever clock is ahead."""
        return max(0, abs(self.ms) - self.error_ms)

    def __str__(self) -> str:
        side = "ahead of" if self.ms >= 0 else "behind"
        return (
            f"{abs(self.ms) / 1000:.1f} s {side} the clock of this host"
            f" (± {self.error_ms / 1000:.1f} s)"
        )


def offset_of(figures: Mapping[str, str], sent_ms: int, received_ms: int) -> Offset | None:
    """Return the offset of a broker's clock.

    Args:
        figures: its runtime information.
        sent_ms, received_ms: when the request was sent and its response arrived, by our clock.

    Returns:
        None if the runtime information does not contain the time.
    """
    runtime = _RUNTIME.fullmatch(figures.get("runtime", ""))
    booted = figures.get("bootTimestamp", "")
    if runtime is None or not booted.isdigit():
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    ran_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    theirs_ms = int(booted) + ran_ms + _RUNTIME_ERROR_MS
    half_ms = (received_ms - sent_ms) // 2
    return Offset(theirs_ms - (sent_ms + half_ms), _RUNTIME_ERROR_MS + half_ms)


def judge(subject: str, offset: Offset | None) -> Finding:
    """Return the finding on the clock of a broker."""
    if offset is None:
        return fine("clocks", subject, "the broker does not show its time")
    met = str(offset)
    if offset.least_ms <= WARNING_MS:
        return fine("clocks", subject, met)
    return Finding(
        "clocks",
        Level.PROBLEM if offset.least_ms > PROBLEM_MS else Level.WARNING,
        subject,
        met,
        f"at most {WARNING_MS / 1000:g} s: times of messages, retention and certificates depend on"
        " it",
        "let chrony or systemd-timesyncd set the clocks of both hosts (timedatectl status)",
    )
