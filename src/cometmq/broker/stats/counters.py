# cython: annotation_typing=False
"""Counts what the broker stores and delivers, by topic, queue and group.

The counters are kept per queue (and group) only; those of a topic, a group or the whole broker
are sums, computed on request. So counting a message costs two look-ups and a few additions::

    stored     topic -> queue -> cell            TOPIC_PUT_*, QUEUE_PUT_*, BROKER_PUT_*
    fetched    (group, topic) -> queue -> cell   GROUP_GET_*, QUEUE_GET_*, BROKER_GET_*
    the rest   name -> key -> cell               SNDBCK_PUT_NUMS, GROUP_GET_LATENCY, ...

``*_NUMS`` counts messages and ``*_SIZE`` bytes. Keys are ``T`` (topic), ``T@G`` (and group),
``T@q`` (and queue), ``T@q@G``, or the cluster's name for ``BROKER_*``.

Source: BrokerStatsManager, RocketMQ 5.3 (names and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Any, Final

import msgspec

from cometmq.broker.stats.windows import (
    DAY,
    HOUR,
    MINUTE,
    Cell,
    SampledCells,
    StoredCell,
    WindowSum,
)
from cometmq.model.delay import delay_queue
from cometmq.model.topic import DELAY_TOPIC
from cometmq.remoting.slices import Slices
from cometmq.system.clock import Clock

IDLE_HOURS_MAX: Final = 25
"""Idle hours after which all windows are empty, and the cell is removed."""
NAMED_CELLS_MAX: Final = 100_000
"""A limit to the counters of the third kind; further ones are not kept."""

SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
"""The group under which RocketMQ counts deliveries of scheduled messages."""

_SMALL_BYTES_MAX = 1024
"""The first bound of message sizes."""
_SEPARATOR: Final = "@"
_WITHOUT_SYSTEM: Final = "_WITHOUT_SYSTEM_TOPIC"
_OF_BROKER: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")


class WindowFigures(msgspec.Struct, frozen=True):
    """One window of one counter, as tools show it."""

    sum: int
    tps: float
    avgpt: float


class CounterFigures(msgspec.Struct, frozen=True):
    """One counter: its last minute, hour and day."""

    minute: WindowFigures
    hour: WindowFigures
    day: WindowFigures


class BrokerStats:
    """The broker's counters.

    Args:
        cluster: the cluster's name, key of the counters of the whole broker.
        clock: stamps the samples.
        is_system_topic: returns whether a topic is a system topic.
    """

    def __init__(
        self, cluster: str, *, clock: Clock, is_system_topic: Callable[[str], bool]
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._is_system_topic = is_system_topic
        self._cells = SampledCells(clock.now_ms())
        self._puts: dict[str, dict[int, StoredCell]] = {}
        self._gets: dict[tuple[str, str], dict[int, Cell]] = {}
        self._named: dict[str, dict[str, Cell]] = {}
        self._named_count = 0
        self._system_puts: set[Cell] = set()
        """The cells of system topics; few, so that what is not theirs is known at once."""
        self._system_gets: set[Cell] = set()
        self._dropped_system_puts = 0
        self._dropped_system_gets = 0
        self.put_messages = 0
        """Messages stored since the start, also in system topics."""
        self.put_bytes = 0
        self.put_failures = 0
        self.get_messages = 0
        """Messages delivered since the start."""
        self.get_found = 0
        """Reads that found something, since the start."""
        self.get_missed = 0

    # --- counting -------------------------------------------------------------------------

    def put(self, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """Count messages stored in a queue by one request."""
        queues = self._puts.get(topic)
        cell = queues.get(queue_id) if queues is not None else None
        if cell is None:
            cell = self._puts.setdefault(intern(topic), {})[queue_id] = self._cells.new_stored()
            if self._is_system_topic(topic):
                self._system_puts.add(cell)
        cell.calls += 1
        cell.messages += messages
        cell.size_bytes += size_bytes
        if size_bytes > _SMALL_BYTES_MAX * messages:
            cell.add_large(messages, size_bytes // messages)
        self.put_messages += messages
        self.put_bytes += size_bytes

    def put_failed(self) -> None:
        """Count a message that the store did not take."""
        self.put_failures += 1

    def got(self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """Count messages handed to a group by one request."""
        key = (group, topic)
        queues = self._gets.get(key)
        cell = queues.get(queue_id) if queues is not None else None
        if cell is None:
            cell = self._gets.setdefault(key, {})[queue_id] = self._cells.new()
            if self._is_system_topic(topic):
                self._system_gets.add(cell)
        cell.calls += 1
        cell.messages += messages
        cell.size_bytes += size_bytes
        self.get_found += 1
        self.get_messages += messages

    def delivered(self, topic: str, queue_id: int, size_bytes: int, level: int) -> None:
        """Count a scheduled message that is stored in its target queue."""
        self.put(topic, queue_id, 1, size_bytes)
        self.got(SCHEDULE_GROUP, DELAY_TOPIC, delay_queue(level), 1, size_bytes)

    def missed(self) -> None:
        """Count a read that found nothing."""
        self.get_missed += 1

    def add(self, name: str, key: str, amount: int = 1, *, calls: int = 1) -> None:
        """Count under a name of the third kind, say ``SNDBCK_PUT_NUMS`` of ``T@G``."""
        cell = self._named.setdefault(name, {}).get(key)
        if cell is None:
            if self._named_count >= NAMED_CELLS_MAX:
                return
            cell = self._named[name][key] = self._cells.new()
            self._named_count += 1
        cell.add(amount, calls=calls)

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a consumer sent back to be retried."""
        self.add("SNDBCK_PUT_NUMS", f"{topic}{_SEPARATOR}{group}")

    # --- asking ---------------------------------------------------------------------------

    async def view(self, name: str, key: str) -> CounterFigures | None:
        """Return the counter of this name and key, or None when nothing was counted under it."""
        slices = Slices()
        cells = await self._find(name, key, slices)
        if not cells and not self._is_of_broker(name, key):
            return None
        of_bytes = name.endswith("_SIZE")
        windows = [
            await self._window(span, cells, of_bytes, slices) for span in (MINUTE, HOUR, DAY)
        ]
        return CounterFigures(*windows)

    async def put_tps(self, topic: str, slices: Slices) -> float:
        """Messages a second stored in a topic, over the last minute."""
        return (await self.rates(self._puts.get(topic, {}), slices))[0]

    async def get_tps(self, group: str, topic: str, slices: Slices) -> float:
        """Messages a second fetched from a topic by a group, over the last minute."""
        return (await self.rates(self._gets.get((group, topic), {}), slices))[0]

    async def rates(self, queues: Mapping[int, Cell], slices: Slices) -> tuple[float, float]:
        """Return the messages and bytes a second of some queues, over the last minute."""
        sums = await self._cells.sum(MINUTE, list(queues.values()), slices)
        return sums.per_second(sums.messages), sums.per_second(sums.size_bytes)

    def sent_back_last_minute(self) -> list[tuple[str, str, int]]:
        """Return groups and topics, and how many messages were sent back in the last minute."""
        found = []
        for key, cell in list(self._named.get("SNDBCK_PUT_NUMS", {}).items()):
            topic, _, group = key.partition(_SEPARATOR)
            found.append((group, topic, cell.change(MINUTE)[0][1]))
        return found

    def topics_put(self) -> list[tuple[str, dict[int, StoredCell]]]:
        """Return the topics in which messages were stored, with the cells of their queues."""
        return list(self._puts.items())

    def topics_got(self) -> list[tuple[tuple[str, str], dict[int, Cell]]]:
        """Return the groups and topics of messages delivered, with the cells of the queues."""
        return list(self._gets.items())

    @property
    def users_put_messages(self) -> int:
        """Messages stored since the start in topics of users."""
        of_system = sum([cell.messages for cell in self._system_puts])
        return self.put_messages - self._dropped_system_puts - of_system

    @property
    def users_get_messages(self) -> int:
        """Messages delivered since the start from topics of users."""
        of_system = sum([cell.messages for cell in self._system_gets])
        return self.get_messages - self._dropped_system_gets - of_system

    # --- upkeep ---------------------------------------------------------------------------

    async def sample(self) -> None:
        """Take the samples that are due; call this every ten seconds."""
        await self._cells.sample(self._clock.now_ms())

    async def drop_idle(self) -> None:
        """Remove the counters that were idle for a day."""
        slices = Slices()
        tables: tuple[dict[Any, dict[int, Any]], ...] = (self._puts, self._gets)
        for table in tables:
            async for key, queues in slices.each(list(table.items())):
                await self._drop(queues, slices)
                if not queues and table.get(key) is queues:
                    del table[key]
        for cells in list(self._named.values()):
            self._named_count -= await self._drop(cells, slices)

    async def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that was deleted."""
        slices = Slices()
        await self._drop(self._puts.pop(topic, {}), slices, idle_hours=0)
        async for key in slices.each(list(self._gets)):
            if key[1] == topic:
                await self._drop(self._gets.pop(key, {}), slices, idle_hours=0)

    async def forget_group(self, group: str) -> None:
        """Drop the counters of a group that was deleted."""
        slices = Slices()
        async for key in slices.each(list(self._gets)):
            if key[0] == group:
                await self._drop(self._gets.pop(key, {}), slices, idle_hours=0)

    # --- inside ---------------------------------------------------------------------------

    async def _window(
        self, window: int, cells: list[Cell], of_bytes: bool, slices: Slices
    ) -> WindowFigures:
        sums: WindowSum = await self._cells.sum(window, cells, slices)
        amount = sums.size_bytes if of_bytes else sums.messages
        return WindowFigures(amount, sums.per_second(amount), sums.per_call(amount))

    async def _find(self, name: str, key: str, slices: Slices) -> list[Cell]:
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return list(self._puts.get(key, {}).values())
        if name in ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"):
            topic, _, queue = key.rpartition(_SEPARATOR)
            return _one(self._puts.get(topic), queue)
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            topic, _, group = key.partition(_SEPARATOR)
            return list(self._gets.get((group, topic), {}).values())
        if name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE"):
            topic, _, rest = key.partition(_SEPARATOR)
            queue, _, group = rest.partition(_SEPARATOR)
            return _one(self._gets.get((group, topic)), queue)
        if self._is_of_broker(name, key):
            return await self._of_broker(name, slices)
        return _named(self._named.get(name), key)

    def _is_of_broker(self, name: str, key: str) -> bool:
        return key == self._cluster and name.removesuffix(_WITHOUT_SYSTEM) in _OF_BROKER

    async def _of_broker(self, name: str, slices: Slices) -> list[Cell]:
        is_put = name.startswith("BROKER_PUT")
        left_out: set[Cell] = set()
        if name.endswith(_WITHOUT_SYSTEM):
            left_out = self._system_puts if is_put else self._system_gets
        cells: list[Cell] = []
        tables: Mapping[Any, Mapping[int, Cell]] = self._puts if is_put else self._gets
        async for queues in slices.each(list(tables.values())):
            cells += [cell for cell in queues.values() if cell not in left_out]
        return cells

    async def _drop(
        self, cells: dict[Any, Any], slices: Slices, *, idle_hours: int = IDLE_HOURS_MAX
    ) -> int:
        """Drop what is idle; return how many cells that are."""
        dropped = 0
        async for key in slices.each(list(cells)):  # so that each cell is freed by itself
            cell = cells.get(key)
            if cell is None or cell.idle_hours < idle_hours:
                continue
            if cell in self._system_puts:
                self._system_puts.discard(cell)
                self._dropped_system_puts += cell.messages
            elif cell in self._system_gets:
                self._system_gets.discard(cell)
                self._dropped_system_gets += cell.messages
            self._cells.drop(cell)
            cells.pop(key, None)
            dropped += 1
        return dropped


def _one(queues: Mapping[int, Cell] | None, queue: str) -> list[Cell]:
    if queues is None or not queue.isdecimal():
        return []
    cell = queues.get(int(queue))
    return [] if cell is None else [cell]


def _named(cells: dict[str, Cell] | None, key: str) -> list[Cell]:
    cell = cells.get(key) if cells is not None else None
    return [] if cell is None else [cell]
