"""The committed offsets of a group: where they are stored.

An offset store is a table in memory, by queue, that is written out from time to time: to the
brokers when members share the queues, to a local file when every member reads all queues.

    file := <folder>/<client id>/<group>/offsets.json, the one before beside it with ``.bak``
    text := {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:offset, …}}

RocketMQ's own clients write and read this file, so that either can continue where the other
ended. It is no strict JSON, since its keys are objects; a strict form is read as well, and written
if requested: the same with each key as a text, which is JSON itself.

Source: OffsetStore, ControllableOffset, RemoteBrokerOffsetStore, LocalFileOffsetStore,
OffsetSerializeWrapper, RocketMQ 5.3."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore, ClientInstance, core_of
from cometmq.model.errors import ConfigError, StoreError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.tasks import raise_unless_failure
from cometmq.system.failure_log import FailureLog
from cometmq.system.files import Files, load_with_backup, save_with_backup

__all__ = ["OffsetStore", "RemoteOffsetStore", "LocalOffsetStore", "StartFrom"]

log = logging.getLogger(__name__)

Failures = Mapping[MessageQueue, BaseException]
"""The queues whose offsets are not stored, and the error of each."""


class OffsetStore(Protocol):
    """Stores for each queue the offset of the next message to consume.

    Example:
        store: OffsetStore = RemoteOffsetStore(instance, "audit")
        PullConsumer(instance=instance, group="audit", offset_store=store)
    """

    async def load(self) -> None:
        """Read the stored offsets; called once, before any other method.

        Raises:
            StoreError: neither the stored offsets nor their backup can be read.
        """

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in memory, or None; sends no request."""

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the stored offset and take it into memory; None if there is none.

        Raises:
            CometError: the offset could not be read. The queue must not be consumed then.
        """

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set the offset of a queue in memory; frozen queues do not change."""

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set an offset that only `forget` removes; later updates are ignored."""

    async def persist(self, queues: Iterable[MessageQueue]) -> Failures | None:
        """Store the offsets of these queues.

        Returns:
            The queues whose offsets are not stored, and the error of each. The store logs them;
            the offsets stay in memory and are stored by a later call. None means no failure.

        If a store raises instead, the client logs the error and calls again later.
        """

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the stored offset remains."""

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Return a copy of the offsets in memory."""


class OffsetsInMemory:
    """The offsets of a store in memory: of the next message to consume, by queue."""

    def __init__(self) -> None:
        self._in_memory: dict[MessageQueue, QueueOffset] = {}
        self._frozen: set[MessageQueue] = set()

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in memory, or None; sends no request."""
        return self._in_memory.get(queue)

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set the offset of a queue in memory; frozen queues do not change."""
        if queue in self._frozen:
            return
        if increase_only and offset <= self._in_memory.get(queue, -1):
            return
        self._in_memory[queue] = offset

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set an offset that only `forget` removes; later updates are ignored."""
        self._in_memory[queue] = offset
        self._frozen.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the stored offset remains."""
        self._in_memory.pop(queue, None)
        self._frozen.discard(queue)

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Return a copy of the offsets in memory."""
        return dict(self._in_memory)


RENEW_AFTER = 12
"""Every how many times an offset that does not move is written again: a broker may lose it."""


_Broker = tuple[str | None, float]
"""The address that gets the offset of a queue, and when the connection to it was opened."""


class RemoteOffsetStore(OffsetsInMemory):
    """Stores a group's offsets at the brokers of the queues.

    Args:
        instance: the connections to use.
        group: the consumer group.

    Example:
        store = RemoteOffsetStore(instance, "audit")
        await store.load()
        print(await store.stored(queue))
    """

    def __init__(self, instance: ClientInstance | ClientCore, group: str) -> None:
        super().__init__()
        self._group = group
        core = core_of(instance)
        self._core = core
        self._offsets = QueueOffsets(core.routes, core.brokers)
        self._written: dict[MessageQueue, tuple[QueueOffset, int, _Broker]] = {}
        self._failures = FailureLog(
            log,
            fails="cannot commit an offset, retrying",
            works="offsets are committed again",
            name="broker",
            more=f"group={group}",
        )
        self._opened: set[tuple[str, str]] = set()
        """Topics and brokers that have taken some offset."""

    async def load(self) -> None:
        """Do nothing: each offset is read when its queue is assigned."""

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Read the offset from the queue's broker and take it into memory; None if it has none.

        An offset in memory that moves meanwhile is newer, and stays.

        Raises:
            ClientError: no broker serves the queue now.
            ResponseError: the broker refused for another reason than a missing offset.
            RemotingError: no response.
        """
        before = self.position(queue)
        offset = await self._offsets.committed(self._group, queue)
        if self.position(queue) != before:
            return offset
        if offset is not None:
            self.update(queue, offset)
        if offset:  # 0 may mean that there is none, and then must be sent
            self._written[queue] = (offset, 0, self._broker_of(queue))
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> Failures:
        """Send these queues' offsets to their brokers in parallel; returns after the responses.

        An unchanged offset is sent only from time to time, and once after the connection to its
        broker was opened again, or another broker has become the master: after a crash these may
        lack what the broker had acknowledged. A failure is logged, and the offset is
        sent again next time.

        The first offset of a topic is sent to a broker alone: a RocketMQ broker creates the
        group's table for the topic on it, and may lose one of two parallel offsets. A broker that
        does not respond delays no other one.

        Returns:
            The queues whose offsets were not sent, and the error of each.
        """
        parts: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            if self._is_due(queue):
                parts.setdefault((queue.topic, queue.broker_name), []).append(queue)
        failures: dict[MessageQueue, BaseException] = {}
        await asyncio.gather(*(self._persist(part, failures) for part in parts.values()))
        for broker in {broker for _, broker in parts} - {each.broker_name for each in failures}:
            self._failures.succeeded(broker)
        return failures

    async def _persist(
        self, queues: list[MessageQueue], failures: dict[MessageQueue, BaseException]
    ) -> None:
        """Send the offsets of one topic's queues at one broker, and note the failures."""
        first = 0 if (queues[0].topic, queues[0].broker_name) in self._opened else 1
        for part in (queues[:first], queues[first:]):
            errors = await asyncio.gather(*(self._send(queue) for queue in part))
            failures |= {
                queue: error for queue, error in zip(part, errors, strict=True) if error is not None
            }

    def _is_due(self, queue: MessageQueue) -> bool:
        offset = self.position(queue)
        written, skipped, broker = self._written.get(queue, (None, 0, None))
        if offset is None:
            return False
        if offset != written or skipped + 1 >= RENEW_AFTER or broker != self._broker_of(queue):
            return True
        self._written[queue] = (offset, skipped + 1, broker)
        return False

    def _broker_of(self, queue: MessageQueue) -> _Broker:
        route = self._core.routes.known(queue.topic)
        address = None if route is None else route.readable(queue)
        return address, self._core.connected_s(address or "")

    async def _send(self, queue: MessageQueue) -> BaseException | None:
        offset = self.position(queue)
        if offset is None:
            return None  # forgotten while the first offset of its topic was sent
        try:
            await self._offsets.commit(self._group, queue, offset)
        except BaseException as error:
            raise_unless_failure(error)
            self._failures.failed(queue.broker_name, error)
            return error
        if self.position(queue) is not None:
            self._written[queue] = (offset, 0, self._broker_of(queue))
        self._opened.add((queue.topic, queue.broker_name))
        return None

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the broker's offset remains."""
        super().forget(queue)
        self._written.pop(queue, None)


DEFAULT_FOLDER = Path("~/.rocketmq_offsets")
FILE_NAME = "offsets.json"


def offset_file(folder: Path | None, client_id: str, group: str) -> Path:
    """Return the file of a group's offsets.

    Args:
        folder: where all such files are; None for ``.rocketmq_offsets`` in the user's home.
        client_id: one folder below.
        group: two folders below.

    Raises:
        ConfigError: the client id or the group cannot be the name of a folder.
    """
    for what, name in (("client id", client_id), ("group", group)):
        if name in ("", ".", "..") or any(char in name for char in "/\\\0"):
            raise ConfigError(f"{what} {name!r} cannot be the name of a folder for offsets")
    return Path(folder or DEFAULT_FOLDER).expanduser() / client_id / group / FILE_NAME


class LocalOffsetStore(OffsetsInMemory):
    """Stores one client's offsets in a local file.

    Args:
        folder: the folder of all such files; None for ``.rocketmq_offsets`` in the user's home.
        client_id: the client id; it must be the same after a restart.
        group: the consumer group.
        files: the file system.
        strict: write strict JSON, which RocketMQ's clients cannot read.

    Raises:
        ConfigError: the client id or the group is not valid as a folder name.

    Example:
        store = LocalOffsetStore(folder, instance.client_id, "audit")
        PullConsumer(instance=instance, group="audit", offset_store=store)
    """

    def __init__(
        self,
        folder: Path | None,
        client_id: str,
        group: str,
        *,
        files: Files | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.path = offset_file(folder, client_id, group)
        """The file."""
        self._files = files or Files()
        self._strict = strict
        self._kept: dict[MessageQueue, QueueOffset] = {}
        self._version = self._written = 0
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, or its backup if the file is missing or damaged.

        Raises:
            StoreError: neither can be read; nothing was changed.
        """
        try:
            found = await asyncio.to_thread(load_with_backup, self._files, self.path, parse)
        except (ValueError, OSError) as error:
            raise StoreError(f"offsets cannot be read: {error}") from error
        self._kept = found or {}
        for queue, offset in self._kept.items():
            self.update(queue, offset)

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in the file and take it into memory; None if there is none."""
        offset = self._kept.get(queue)
        if offset is not None:
            self.update(queue, offset)
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> Failures:
        """Write these queues' offsets to the file if they have changed; others remain in it.

        A disk error is logged, and all offsets are written next time. Cancelling stops the waiting;
        the file is still written.

        Returns:
            The error of each of these queues if the file could not be written.
        """
        fresh = {queue: offset for queue in queues if (offset := self.position(queue)) is not None}
        if any(self._kept.get(queue) != offset for queue, offset in fresh.items()):
            self._kept = {**self._kept, **fresh}
            self._version += 1
        version = self._version
        if version == self._written:
            return {}
        try:
            await asyncio.to_thread(self._save)
        except OSError as error:
            log.error("cannot write offsets path=%s error=%s", self.path, error)
            return dict.fromkeys(fresh, StoreError(f"cannot write offsets: {error}"))
        self._written = max(self._written, version)
        return {}

    def _save(self) -> None:
        """Write the newest table, one write at a time; several threads may come here."""
        with self._writing:
            save_with_backup(self._files, self.path, render(self._kept, strict=self._strict))


def default_store(
    instance: ClientCore, group: str, *, broadcast: bool, folder: str | None
) -> OffsetStore:
    """Return the store of a group without its own: the brokers, or a local file to broadcast."""
    if not broadcast:
        return RemoteOffsetStore(instance, group)
    return LocalOffsetStore(Path(folder) if folder else None, instance.client_id, group)


def render(table: Mapping[MessageQueue, QueueOffset], *, strict: bool = False) -> bytes:
    """Write a table of offsets as RocketMQ does, or as strict JSON; sorted by queue."""
    body = {"offsetTable": dict(sorted(table.items()))}
    return fastjson.dumps(body) if strict else fastjson.dumps_odd(body)


def parse(data: bytes) -> dict[MessageQueue, QueueOffset]:
    """Read a table of offsets in either form.

    Raises:
        ValueError: it is neither; says what was met.
    """
    found = fastjson.loads(data)
    table = found.get("offsetTable") if isinstance(found, dict) else None
    if isinstance(table, dict):
        rows = [(fastjson.loads(queue), offset) for queue, offset in table.items()]
    elif isinstance(table, fastjson.Pairs):
        rows = list(table)
    else:
        raise ValueError("a table of offsets by queue was expected under offsetTable")
    return dict(_entry(queue, offset) for queue, offset in rows)


def _entry(queue: Any, offset: Any) -> tuple[MessageQueue, QueueOffset]:
    if not isinstance(queue, dict):
        raise ValueError(f"{queue!r} is not a queue")
    topic, broker, number = (queue.get(name) for name in ("topic", "brokerName", "queueId"))
    if not (isinstance(topic, str) and isinstance(broker, str) and type(number) is int):
        raise ValueError(f"{queue!r} is not a queue")
    if type(offset) is not int or offset < 0:
        raise ValueError(f"{offset!r} is not an offset of {topic}@{broker}:{number}")
    return MessageQueue(topic, broker, number), QueueOffset(offset)


class StartFrom(Enum):
    """The start of a group in a queue without a committed offset.

    Example:
        async with PullConsumer(name_server, group="audit", start_from=StartFrom.FIRST) as consumer:
            await consumer.subscribe("orders")
    """

    LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """At the end of the queue. On a young store a new group gets the whole backlog: it starts at 0
    while the first message of the queue is in the broker's memory, as in RocketMQ."""
    FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    """At the oldest message."""


def check_start(group: str, start: Any, *, times: bool = True) -> None:
    """Refuse what is no start: anything else would mean the end of the queue.

    Args:
        group: the consumer's group.
        start: what the application gave.
        times: whether a time is allowed.

    Raises:
        ConfigError: says what was met and what is expected.
    """
    if isinstance(start, StartFrom):
        return
    name = f"consumer {group}: start_from"
    if not times:
        raise ConfigError(f"{name}={start!r}: expected StartFrom.FIRST or StartFrom.LAST")
    epoch_ms(start, name, "StartFrom.FIRST, StartFrom.LAST, ")


def consume_from_where(start: StartFrom | datetime | int) -> ConsumeFromWhere:
    """Return the start in the form of a heartbeat."""
    if isinstance(start, StartFrom):
        return start.value
    return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
