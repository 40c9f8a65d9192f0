"""Samples the lag of all groups, a few at a time: a cluster may have thousands."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from cometmq.console.reads import Reads, lag_of
from cometmq.model.errors import CometError
from cometmq.model.namespace import is_system_group
from cometmq.model.times import now_ms

REQUESTS_MAX = 40
"""Requests to brokers for a sample: one for each group and master."""
SHOWN = 10
"""Groups with the greatest lag; each sample reads them again."""
GROUPS_MAX = 10_000
STUCK_MS = 600_000
"""A group that has a lag and has consumed nothing for ten minutes is an alarm."""
STUCK_SHOWN = 5


class GroupLag(msgspec.Struct):
    """The lag of a group when it was read last."""

    group: str
    lag: int
    consumed_time_ms: int | None
    """The time at which the last consumed message of its slowest queue was stored."""
    read_time_ms: int
    committed: int
    """The sum of its committed offsets."""
    moved_time_ms: int
    """The last time at which this sum had changed, or the group had no lag."""


class Lags(msgspec.Struct):
    """The groups with the greatest lag."""

    worst: list[GroupLag] = msgspec.field(default_factory=list)
    lag: int | None = None
    """The lag of all groups; None until each was read once."""
    groups: int = 0
    read: int = 0
    """Groups that were read."""
    errors: int = 0
    """Groups that could not be read the last time."""
    first_error: str = ""
    alarms: list[str] = msgspec.field(default_factory=list)


class LagSamples:
    """The lag of each group.

    Args:
        reads: requests to the cluster.
    """

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._found: dict[str, GroupLag] = {}
        self._errors: dict[str, str] = {}
        self._last = ""
        """The group up to which the groups were read in turn."""

    async def take(self) -> Lags:
        """Read the groups with the greatest lag, and some of the others in turn.

        Raises:
            CometError: the list of groups cannot be read.
        """
        found, _ = await self._reads.groups()
        names = [each for each in found if not is_system_group(each)][:GROUPS_MAX]
        masters = max(len(await self._reads.masters()), 1)
        await self._read(self._chosen(names, max(REQUESTS_MAX // masters, 1)))
        known = set(names)
        self._found = {name: each for name, each in self._found.items() if name in known}
        self._errors = {name: each for name, each in self._errors.items() if name in known}
        return self._lags(len(names))

    def _chosen(self, names: list[str], count: int) -> list[str]:
        """Return the groups to read: half of them at most because their lag was great."""
        worst = [each.group for each in self._worst() if each.lag][: min(SHOWN, count // 2)]
        begin = bisect_right(names, self._last)
        turn = [*names[begin:], *names[:begin]][: count - len(worst)]
        if turn:
            self._last = turn[-1]
        return list(dict.fromkeys([*worst, *turn]))

    async def _read(self, names: list[str]) -> None:
        for name, rows in zip(
            names, await self._reads.each(names, self._reads.offsets), strict=True
        ):
            if isinstance(rows, CometError):
                self._errors[name] = str(rows)
                continue
            self._errors.pop(name, None)
            now, before = now_ms(), self._found.get(name)
            late = [each for each in rows.values() if lag_of(each)]
            times = [each.last_timestamp for each in late if each.last_timestamp > 0]
            committed = sum(each.consumer_offset for each in rows.values())
            has_stood = before is not None and late and before.committed == committed
            self._found[name] = GroupLag(
                name, sum(map(lag_of, late)), min(times, default=None), now, committed,
                before.moved_time_ms if before and has_stood else now,
            )  # fmt: skip

    def _worst(self) -> list[GroupLag]:
        return sorted(self._found.values(), key=lambda each: (-each.lag, each.group))[:SHOWN]

    def _lags(self, groups: int) -> Lags:
        first = next(iter(self._errors.items()), None)
        made = Lags(
            worst=[each for each in self._worst() if each.lag],
            groups=groups,
            read=len(self._found),
            errors=len(self._errors),
            first_error=": ".join(first) if first else "",
        )
        if groups and len(self._found.keys() | self._errors.keys()) >= groups:
            made.lag = sum(each.lag for each in self._found.values())
        stuck = sorted(
            (
                each
                for each in self._found.values()
                if each.lag and each.read_time_ms - each.moved_time_ms >= STUCK_MS
            ),
            key=lambda each: -each.lag,
        )
        made.alarms = [
            f"group {each.group} has a lag of {each.lag:,} and has consumed nothing for"
            f" {(each.read_time_ms - each.moved_time_ms) // 60_000} minutes: start its members, or"
            " see its page"
            for each in stuck[:STUCK_SHOWN]
        ]
        if stuck[STUCK_SHOWN:]:
            made.alarms.append(f"{len(stuck) - STUCK_SHOWN} more groups consume nothing")
        return made
