"""Recognizes a queue that was created again, or whose broker lost the end of its log.

A checkpoint has the next offset of each queue, and the store time of the message before it. A
message keeps its store time on every copy of a log, and store times grow with offsets.

    the message before the offset      the oldest message      the queue
    has the store time                 not requested           is the same
    has another one, or is missing     is newer than that      was created again
    has another one, or is missing     is not newer            lost its end

A queue that lost its end goes on with the offsets of the lost messages. What it stored since is
newer than what was read, so it is continued at its first newer message: nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from cometmq.spark.offsets import Bounds, Positions, QueueKey

if TYPE_CHECKING:
    from cometmq.spark.brokers import Away, BrokerSession, StoreTimes


class Change(NamedTuple):
    """A queue does not hold the message that was read last."""

    created_again: bool
    """Else its broker lost the end of its log."""
    start: int
    """The offset of its first message that was not read."""


class QueueIdentity:
    """Compares queues with the store times of a checkpoint.

    With ``away`` a broker that does not respond is no error: its queues are put there, and what is
    returned says nothing about them.

    Args:
        session: with the brokers.
        group: on whose behalf messages are pulled.
    """

    def __init__(self, session: BrokerSession, group: str) -> None:
        self._session = session
        self._group = group
        self.following: Positions = {}
        """The store times of the messages at the offsets that `stored` was asked for last, as far
        as a pull for the message before returned them: the next ones to read."""

    def stored(
        self, ends: Positions, bounds: Mapping[QueueKey, Bounds], away: Away | None = None
    ) -> Positions:
        """Return the store times in ms of the last messages before these offsets.

        Queues without that message, such as empty ones, are left out.
        """
        found, pulled = {}, {}
        for key, end in ends.items():
            limits = bounds[key]
            if not limits.min < end <= limits.max:
                continue
            if end == limits.max and limits.newest_ms > 0:
                found[key] = limits.newest_ms
            else:
                pulled[key] = end - 1
        times = self._times(pulled, away)
        self.following = {key: each.following for key, each in times.items() if each.following}
        return found | {key: each.at for key, each in times.items()}

    def stored_since(
        self,
        known: Positions,
        stored: Positions,
        ends: Positions,
        bounds: Mapping[QueueKey, Bounds],
        away: Away,
    ) -> Positions:
        """Return the store times for new offsets, with as few pulls as possible.

        A queue whose messages have all expired keeps its store time: what it stores later is newer.
        ``known`` and ``stored`` are of queues that have not changed, ``ends`` are the new offsets.
        """
        kept = {
            key: stored[key]
            for key, end in ends.items()
            if key in stored
            and (end == known.get(key) or (end == bounds[key].min and bounds[key].master))
        }
        others = {key: end for key, end in ends.items() if key not in kept and key in bounds}
        return kept | self.stored(others, bounds, away)

    def changes(
        self,
        offsets: Positions,
        stored: Positions,
        bounds: Mapping[QueueKey, Bounds],
        away: Away,
    ) -> dict[QueueKey, Change]:
        """Return the queues that do not hold the last message before their offset.

        Args:
            offsets: the next offset of each queue.
            stored: the store times of the messages before them; queues without one are not
                compared.
            bounds: what queues hold. Only the word of a master counts.
            away: gets the queues whose broker does not respond.
        """
        suspects = {
            key: offsets[key]
            for key, limits in bounds.items()
            if limits.master and key in stored and key in offsets
        }
        beyond = [key for key, offset in suspects.items() if offset > bounds[key].max]
        times = self._times(
            {
                key: offset - 1
                for key, offset in suspects.items()
                if bounds[key].min < offset <= bounds[key].max
                and not (offset == bounds[key].max and bounds[key].newest_ms == stored[key])
            },
            away,
        )
        changed = beyond + [key for key, each in times.items() if each.at != stored[key]]
        found = self._how(changed, offsets, stored, bounds, away) if changed else {}
        return {key: change for key, change in found.items() if key not in away}

    def _how(
        self,
        changed: list[QueueKey],
        offsets: Positions,
        stored: Positions,
        bounds: Mapping[QueueKey, Bounds],
        away: Away,
    ) -> dict[QueueKey, Change]:
        oldest = self._times({key: bounds[key].min for key in changed}, away)
        shortened = {
            key: stored[key] + 1
            for key in changed
            if key in oldest and oldest[key].at <= stored[key]
        }
        newer = self._session.at_time(shortened, away=away) if shortened else {}
        return {
            key: Change(created_again=False, start=min(newer[key], offsets[key]))
            if key in newer
            else Change(created_again=True, start=bounds[key].min)
            for key in changed
        }

    def _times(self, offsets: Positions, away: Away | None) -> dict[QueueKey, StoreTimes]:
        if not offsets:
            return {}
        return self._session.store_times(offsets, group=self._group, away=away)
