"""Flow control of cold reads: limits the bytes that pulls read from the disk in five seconds.

All pulls together have a limit, and so has each consumer group; a request may give a group a limit
of its own, until the broker ends. The reads are spread over these seconds, because a consumer that
reads as fast as it can leaves sends too little of the processors. RocketMQ has the same limits, but
reads at full speed until one is reached and then refuses pulls until the five seconds are over.

Source: ColdDataCgCtrService, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ResponseError
from cometmq.model.namespace import is_system_group
from cometmq.protocol.codes import ResponseCode

LIMIT_S: Final = 5.0
"""The time for which the bytes that are read are limited."""
DELAY_S_MAX: Final = 5.0
"""A pull whose read would have to wait longer is refused."""
IDLE_S: Final = 60.0
"""A group that has read nothing from the disk for so long is forgotten."""
GROUPS_MAX: Final = 2_000
"""Groups that are known at a time; of further groups only the limit of all pulls counts."""


class Limits(NamedTuple):
    """How many bytes may be read in `LIMIT_S`."""

    together: int
    """By all pulls."""
    group: int
    """By the pulls of one group."""


def limits_of(settings: BrokerSettings) -> Limits | None:
    """Return the limits of these settings; None without flow control."""
    if settings.cold_data_flow_control_enable:
        return Limits(settings.global_cold_read_threshold, settings.cg_cold_read_threshold)
    return None


class Debt:
    """Bytes that were read, or will be read, before their limit allows it.

    Args:
        now_s: the time of its first read.
    """

    def __init__(self, now_s: float) -> None:
        self.size_bytes = 0.0
        self.began_s = now_s
        self.last_s = now_s

    def delay_s(self, limit: int, now_s: float) -> float:
        """Return how long the next read has to wait."""
        self.size_bytes = max(0.0, self.size_bytes - (now_s - self.last_s) * limit / LIMIT_S)
        self.last_s = now_s
        return self.size_bytes * LIMIT_S / limit

    def add(self, size_bytes: int, limit: int) -> None:
        """Count a read."""
        # At most twice the limit: after one large read the next one must not wait for minutes.
        self.size_bytes = min(self.size_bytes + size_bytes, 2.0 * limit)


class ColdFlowControl:
    """Decides when pulls may read from the disk.

    Args:
        limits: returns the current limits; None without flow control.
    """

    def __init__(self, limits: Callable[[], Limits | None] = lambda: None) -> None:
        self._limits = limits
        self._together = Debt(0.0)
        self._groups: dict[str, Debt] = {}
        self._cleaned_s = 0.0
        self.own_limits: Mapping[str, int] = {}
        """The limits of groups that have their own one."""

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Give groups their own limits.

        Raises:
            ResponseError: too many groups would have one; nothing is set then.
        """
        all_of_them = {**self.own_limits, **limits}
        if len(all_of_them) > GROUPS_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"limits of cold reads of {len(all_of_them)} groups, expected at most {GROUPS_MAX}",
            )
        self.own_limits = all_of_them

    def remove_limit(self, group: str) -> None:
        """Let the limit of the settings count for a group again."""
        self.own_limits = {name: own for name, own in self.own_limits.items() if name != group}

    def admit(self, group: str, size_bytes: int, now_s: float) -> float:
        """Count a read of a group; return how long it has to wait.

        Raises:
            ResponseError: it would have to wait for too long.
        """
        limits = self._limits()
        if limits is None:
            self._together.size_bytes = 0.0
            self._groups.clear()
            return 0.0
        delay_s = self._together.delay_s(limits.together, now_s)
        if delay_s > DELAY_S_MAX:
            raise _too_late("", limits.together, delay_s)
        debt, limit = self._debt_of(group, now_s), self.own_limits.get(group, limits.group)
        if debt is not None:
            group_delay_s = debt.delay_s(limit, now_s)
            if group_delay_s > DELAY_S_MAX:
                raise _too_late(f" of group {group}", limit, group_delay_s)
            debt.add(size_bytes, limit)
            delay_s = max(delay_s, group_delay_s)
        self._together.add(size_bytes, limits.together)
        return delay_s

    def _debt_of(self, group: str, now_s: float) -> Debt | None:
        debt = self._groups.get(group)
        if debt is None and not is_system_group(group):
            if now_s - self._cleaned_s > IDLE_S:
                self._groups = dict(self.groups(now_s))
                self._cleaned_s = now_s
            if len(self._groups) < GROUPS_MAX:
                debt = self._groups[group] = Debt(now_s)
        return debt

    def groups(self, now_s: float) -> Mapping[str, Debt]:
        """Return the groups that have read from the disk in the last minute."""
        recent = now_s - IDLE_S
        return {group: debt for group, debt in self._groups.items() if debt.last_s >= recent}

    def bytes_together(self) -> int:
        """Return how many bytes count for the limit of all pulls."""
        return int(self._together.size_bytes)


def _too_late(whose: str, limit: int, delay_s: float) -> ResponseError:
    return ResponseError(
        ResponseCode.SYSTEM_BUSY,
        f"cold reads{whose} are limited to {limit} bytes in {LIMIT_S:g} seconds,"
        f" the next one is possible in {delay_s - DELAY_S_MAX:.1f} seconds",
    )
