"""Committed offsets: how far each group has consumed each queue, kept over restarts.

offsets := topic@group -> queue id -> QueueOffset        (config/consumerOffset.json)
resets  := the same shape, set by an administrator, not yet in a pull response (memory only)
pulled  := the same shape, the end of what was delivered to a group (memory only)

Used in the event loop's thread; only the file may be written in another one.
Source: ConsumerOffsetManager, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cometmq.model.errors import ProtocolError, StoreError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.remoting.slices import Slices
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

COMMITS_PER_VERSION = 500
REVIVE_END_GROUP = "CID_RMQ_SYS_COMETMQ_REVIVE_END"
"""Its offsets say which check points of pops the other committed offsets count already."""
OFFSET_MAX = 2**63 - 1

Numbers = dict[int, int]


class OffsetStore:
    """The offsets of all groups.

    Args:
        file: consumerOffset.json.
        clock: gives the time of a version.
    """

    def __init__(self, file: JsonFile, *, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._table: dict[str, Numbers] = {}
        self._resets: dict[str, Numbers] = {}
        self._pulled: dict[str, Numbers] = {}
        self._topics: dict[str, dict[str, bool]] = {}
        """The topics of each group in any of the tables, and whether it has offsets there."""
        self._groups: dict[str, dict[str, bool]] = {}
        """The groups of each topic, likewise."""
        self._commits = 0
        self._changed = False
        self._corrected = RateLimitedLog(log, "committed offsets were corrected")
        self._saving = threading.Lock()
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        """Version of the table."""
        self.has_resets = False
        """Whether any reset waits for its pull."""
        self.next_offset: Callable[[str, int], int] = lambda topic, queue_id: OFFSET_MAX
        """Returns the offset that the next message of a queue gets, for `commit_of_client`."""
        self.may_lack_messages: Callable[[], bool] = bool
        """Returns whether queues may lack messages that groups have consumed: on a slave, or while
        the disk is full."""

    # --- one queue ----------------------------------------------------------------------------

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a group, or its pending reset; None for neither."""
        key = f"{topic}@{group}"
        if self.has_resets:
            pending = self._resets.get(key, {}).get(queue_id)
            if pending is not None:
                return pending
        numbers = self._table.get(key)
        return None if numbers is None else numbers.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset of a group; a smaller offset than before is allowed."""
        key = f"{topic}@{group}"
        numbers = self._table.get(key)
        if numbers is None:
            numbers = self._add(self._table, group, topic)
        numbers[queue_id] = offset
        self._changed = True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())

    def commit_of_client(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset that a client sends; one beyond the end of its queue becomes the end.

        Otherwise the group would skip the messages that are stored there next.
        """
        end = self.next_offset(topic, queue_id)
        if offset > end and not self.may_lack_messages():
            self._corrected.add(
                "a client commits an offset beyond the end of its queue, the end counts"
                " group=%s topic=%s queue=%d offset=%d end=%d",
                *(group, topic, queue_id, offset, end),
            )
            offset = end
        self.commit(group, topic, queue_id, offset)

    def note_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset up to which messages were delivered to a group."""
        key = f"{topic}@{group}"
        numbers = self._pulled.get(key)
        if numbers is None:
            numbers = self._add(self._pulled, group, topic)
        numbers[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset up to which messages were delivered to a group since the start."""
        return self._pulled.get(f"{topic}@{group}", {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group for its next pull response; commits until then are ignored."""
        numbers = self._resets.get(f"{topic}@{group}")
        if numbers is None:
            numbers = self._add(self._resets, group, topic)
        numbers[queue_id] = offset
        self.has_resets = True
        self.commit(group, topic, queue_id, offset)

    def is_reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a reset waits for the next pull of the group."""
        return self.has_resets and queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the pending reset and remove it; None if there is none."""
        key = f"{topic}@{group}"
        numbers = self._resets.get(key)
        if numbers is None:
            return None
        offset = numbers.pop(queue_id, None)
        if not numbers:
            del self._resets[key]
            self.has_resets = bool(self._resets)
        return offset

    # --- groups and topics --------------------------------------------------------------------

    def table(self) -> dict[str, Numbers]:
        """Return a copy of all offsets, by ``topic@group``, in the order of `keys`.

        From any thread.
        """
        found = ((key, self._table.get(key)) for key in self.keys())
        return {key: dict(numbers) for key, numbers in found if numbers is not None}

    def of(self, group: str, topic: str) -> Numbers:
        """Return a copy of the offsets of a group in a topic, by queue; empty for none."""
        return dict(self._table.get(f"{topic}@{group}", ()))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        return [topic for topic, has in self._topics.get(group, {}).items() if has]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return [group for group, has in self._groups.get(topic, {}).items() if has]

    def keys(self) -> list[str]:
        """Return ``topic@group`` of all offsets; those of `REVIVE_END_GROUP` come first.

        A copy that is made in this order counts no pop whose offset it lacks. It is taken over in
        the reverse order.
        """
        keys = list(self._table)
        keys.sort(key=_is_no_revive_end)
        return keys

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of one group in a topic to another group."""
        numbers = self._table.get(f"{topic}@{source}")
        if numbers is not None:
            self._add(self._table, target, topic).update(numbers)
            self._note_change()

    async def copy(
        self,
        table: Mapping[str, Numbers],
        version: DataVersion | None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take over the offsets of the master of this slave; those it does not have stay.

        Args:
            table: its offsets, by ``topic@group``.
            version: of that table; None if a broker of RocketMQ 4 is the master.
            is_current: returns whether that broker is still the master of this slave; the copy
                ends when it is not: as a master, this broker corrects only what it has by then.

        Raises:
            ProtocolError: a key or an offset is not one; some may have been taken over.
        """
        changed = False
        async for key, numbers in Slices().each(reversed(list(table.items()))):
            if not is_current():
                break
            topic, group = _checked(key, numbers)
            known = self._table.get(key)
            if known is None:
                known = self._add(self._table, group, topic)
            if numbers.items() <= known.items():
                continue
            known.update(numbers)
            changed = True
        else:
            self.version = version or self.version
        self._changed |= changed

    async def advance(
        self, table: Mapping[str, Numbers], bounds: Callable[[str, int], tuple[int, int]]
    ) -> int:
        """Take over the offsets that are larger than those known; return how many.

        Args:
            table: the offsets of a slave, by ``topic@group``.
            bounds: returns the bounds of a queue; no offset is taken over beyond its end.

        Raises:
            ProtocolError: a key or an offset is not one; some may have been taken over.
        """
        count = 0
        async for key, numbers in Slices().each(reversed(list(table.items()))):
            topic, group = _checked(key, numbers)
            known = self._table.get(key, {})
            for queue_id, offset in numbers.items():
                reached = min(offset, bounds(topic, queue_id)[1])
                if reached > known.get(queue_id, 0):
                    self.commit(group, topic, queue_id, reached)
                    count += 1
        return count

    async def forget_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        await self._forget([(group, topic) for topic in self._topics.get(group, ())])

    async def forget_topic(self, topic: str) -> None:
        """Remove all offsets in a topic."""
        await self._forget([(group, topic) for group in self._groups.get(topic, ())])

    # --- the file -----------------------------------------------------------------------------

    def load(self, bounds: Callable[[str, int], tuple[int, int]] | None) -> None:
        """Read the file. An offset beyond the end of its queue is moved back to that end.

        The messages between were lost, for instance in a power cut. Without the correction the
        group would skip the next messages, which get the same offsets.

        Args:
            bounds: returns the first and the next offset of a queue, after recovery; None if a
                full disk keeps messages of the log out of their queues, or if this broker is a
                slave: its log may lag behind the offsets that it has copied.

        Raises:
            StoreError: file and backup cannot be read.
        """
        content = self._file.load()
        if content is None:
            return
        for key, numbers in _table_of(content, self._file).items():
            topic, _, group = key.partition("@")
            self._add(self._table, group, topic).update(numbers)
        self.version = read_version(content, self._file) or self.version
        if bounds is not None:
            for key in self._table:
                self._correct(key, lambda topic, queue_id: bounds(topic, queue_id)[1])
            self._corrected.settle(now=True)

    async def correct(self, next_offset: Callable[[str, int], int]) -> None:
        """Move offsets back as `load` does, when a slave becomes the master.

        No message may be stored meanwhile: an offset is the end of its queue then, behind messages
        that the group has not seen.

        Args:
            next_offset: returns the offset that the next message of a queue gets.
        """
        async for key in Slices().each(self.keys()):
            self._correct(key, next_offset)
        self._corrected.settle(now=True)

    def take_back(self, ends: Callable[[str, int], tuple[int, int]]) -> None:
        """Move offsets back that count messages which are about to be truncated.

        Without that they would count those that come in their place: the master has no offset of a
        group that it does not know yet. Persist them before the log is truncated.

        Args:
            ends: returns the end that a queue gets, and the one that it has.
        """

        def end_of(topic: str, queue_id: int) -> int:
            end, before = ends(topic, queue_id)
            return end if end < before else OFFSET_MAX

        for key in self._table:
            self._correct(key, end_of)
        self._corrected.settle(now=True)

    def _correct(self, key: str, next_offset: Callable[[str, int], int]) -> None:
        """Move the offsets of a group in a topic back that are beyond the end of their queue."""
        topic, _, group = key.partition("@")
        numbers = self._table.get(key, {})
        for queue_id, offset in numbers.items():
            high = next_offset(topic, queue_id)
            if offset > high:
                self._corrected.add(
                    "committed offset is beyond the end of its queue, corrected"
                    " group=%s topic=%s queue=%d offset=%d end=%d",
                    *(group, topic, queue_id, offset, high),
                )
                numbers[queue_id] = high
                self._changed = True

    def persist(self, flush_log: Callable[[], object]) -> None:
        """Write the file if anything has changed; return when it is on disk.

        The log is flushed first, so that no power cut loses messages that count as consumed. Waits
        for the disk; may be called from any thread.

        Args:
            flush_log: returns when all messages that were readable before are on disk.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        with self._saving:
            if not self._changed:
                return
            self._changed = False
            content = self._content()
            try:
                flush_log()
                self._file.save(content)
            except StoreError:
                self._changed = True
                raise

    def groups_and_topics(self) -> dict[str, list[str]]:
        """Return the topics in which each group has offsets."""
        topics: dict[str, list[str]] = {}
        for key in list(self._table):
            topic, _, group = key.partition("@")
            topics.setdefault(group, []).append(topic)
        return topics

    def _content(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version,
            "groupTopicMap": self.groups_and_topics(),
            "offsetTable": self.table(),
        }

    def _note_change(self) -> None:
        self._changed = True
        self.version = self.version.next(self._clock.now_ms())

    def _add(self, table: dict[str, Numbers], group: str, topic: str) -> Numbers:
        """Put new numbers of a group and a topic into a table."""
        has = table is self._table or f"{topic}@{group}" in self._table
        self._topics.setdefault(group, {})[topic] = has
        self._groups.setdefault(topic, {})[group] = has
        numbers = table[f"{topic}@{group}"] = {}
        return numbers

    async def _forget(self, keys: list[tuple[str, str]]) -> None:
        """Remove the offsets of some groups and topics."""
        async for group, topic in Slices().each(keys):
            for table in (self._table, self._resets, self._pulled):
                table.pop(f"{topic}@{group}", None)
            _remove(self._topics, group, topic)
            _remove(self._groups, topic, group)
        self.has_resets = bool(self._resets)
        if keys:
            self._note_change()


def _is_no_revive_end(key: str) -> bool:
    return not key.endswith(f"@{REVIVE_END_GROUP}")


def _remove(index: dict[str, dict[str, bool]], name: str, entry: str) -> None:
    entries = index.get(name, {})
    entries.pop(entry, None)
    if not entries:
        index.pop(name, None)


def _table_of(content: Mapping[str, Any], file: JsonFile) -> dict[str, Numbers]:
    table = {}
    for key, numbers in (content.get("offsetTable") or {}).items():
        if "@" not in key:
            raise StoreError(f"{file.path} has the key {key[:80]!r}, expected topic@group")
        table[key] = read_numbers(numbers, file)
    return table


def read_version(content: Mapping[str, Any], file: JsonFile) -> DataVersion | None:
    """Read the version of a table; files of RocketMQ 4 have none.

    Raises:
        StoreError: it cannot be read.
    """
    found = content.get("dataVersion")
    try:
        return None if found is None else msgspec.convert(found, DataVersion)
    except msgspec.ValidationError as problem:
        raise StoreError(f"{file.path} has a bad dataVersion: {problem}") from problem


def read_numbers(content: Any, file: JsonFile) -> Numbers:
    """Read a table of offsets by number.

    Raises:
        StoreError: it is not a table of numbers, or an offset is negative.
    """
    try:
        numbers = {int(key): int(offset) for key, offset in content.items()}
    except (AttributeError, TypeError, ValueError) as problem:
        raise StoreError(f"{file.path} has a bad table of offsets: {problem}") from problem
    if any(key < 0 or offset < 0 for key, offset in numbers.items()):
        raise StoreError(f"{file.path} has a negative offset in {str(numbers)[:80]}")
    return numbers


def _checked(key: str, numbers: Numbers) -> tuple[str, str]:
    """Return the topic and the group of offsets that another broker has sent.

    Raises:
        ProtocolError: the key or an offset is not one.
    """
    topic, separator, group = key.partition("@")
    if not separator or any(n < 0 or offset < 0 for n, offset in numbers.items()):
        raise ProtocolError(
            f"met the committed offsets {key[:80]!r}: {str(numbers)[:80]}, expected topic@group and"
            " offsets of 0 or more"
        )
    return topic, group
