"""Offsets in a local file: for groups whose members read all queues each.

    file := <folder>/<client id>/<group>/offsets.json, the one before beside it with ``.bak``
    text := {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:offset, …}}

This is what RocketMQ's own clients write and read, so that either can go on where the other ended.
It is no strict JSON, since its keys are objects; a strict form is read as well, and written if
asked for: the same with each key as a text, which is JSON itself.

Source: LocalFileOffsetStore and OffsetSerializeWrapper, RocketMQ 5.3; the strict form is ours.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cometmq.client.offsets.memory import OffsetTable
from cometmq.model.errors import ConfigError, StoreError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol import fastjson
from cometmq.system.files import Files, SystemFiles, load_with_backup, save_with_backup

log = logging.getLogger(__name__)

DEFAULT_FOLDER = Path("~/.rocketmq_offsets")
FILE_NAME = "offsets.json"


def offset_file(folder: Path | None, client_id: str, group: str) -> Path:
    """Give the file of a group's offsets.

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
    return (folder or DEFAULT_FOLDER).expanduser() / client_id / group / FILE_NAME


class LocalOffsetStore:
    """Stores one client's offsets in a local file.

    Args:
        folder: the folder of all such files; None for ``.rocketmq_offsets`` in the user's home.
        client_id: the client id; it must be the same after a restart.
        group: the consumer group.
        files: the file system.
        strict: write strict JSON, which RocketMQ's clients cannot read.

    Raises:
        ConfigError: the client id or the group is not valid as a folder name.
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
        self.path = offset_file(folder, client_id, group)
        """The file."""
        self._files = files or SystemFiles()
        self._strict = strict
        self._table = OffsetTable()
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
            self._table.update(queue, offset)

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in memory, or None; sends no request."""
        return self._table.get(queue)

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in the file and take it into memory; None if there is none."""
        offset = self._kept.get(queue)
        if offset is not None:
            self._table.update(queue, offset)
        return offset

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set the offset of a queue in memory; frozen queues do not change."""
        self._table.update(queue, offset, increase_only=increase_only)

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set an offset that only `forget` removes; later updates are ignored."""
        self._table.freeze(queue, offset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write these queues' offsets to the file if they have changed; others remain in it.

        A disk error is logged, and all offsets are written next time. Cancelling stops the waiting;
        the file is still written.
        """
        fresh = {
            queue: offset for queue in queues if (offset := self._table.get(queue)) is not None
        }
        if any(self._kept.get(queue) != offset for queue, offset in fresh.items()):
            self._kept = {**self._kept, **fresh}
            self._version += 1
        version = self._version
        if version == self._written:
            return
        try:
            await asyncio.to_thread(self._save)
        except OSError as error:
            log.error("cannot write offsets path=%s error=%s", self.path, error)
        else:
            self._written = max(self._written, version)

    def _save(self) -> None:
        """Write the newest table, one write at a time; several threads may come here."""
        with self._writing:
            save_with_backup(self._files, self.path, render(self._kept, strict=self._strict))

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the offset in the file remains."""
        self._table.forget(queue)

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Return a copy of the offsets in memory."""
        return self._table.copy()


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
