"""Batches: sends that wait for others of their topic, and long lists cut into requests.

Source: ProduceAccumulator and the list splitter of the batch examples, RocketMQ 5.3."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cometmq.client._sending.outgoing import Item
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import ClientClosedError
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ProducerSettings
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.remoting.tasks import Supervisor

ITEM_BYTES = 20
"""What a message of a batch takes beside its topic, body and properties."""


def split(messages: Iterable[Message], bytes_max: int) -> Iterator[list[Message]]:
    """Yield messages that follow each other and go together, in order.

    Args:
        messages: any messages.
        bytes_max: the estimated size of a part; a message that alone is larger comes alone.
    """
    part: list[Message] = []
    part_bytes = 0
    for message in messages:
        size = estimated_bytes(message)
        if part and (part_bytes + size > bytes_max or not _go_together(part[-1], message)):
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += size
    if part:
        yield part


def estimated_bytes(message: Message) -> int:
    """Give about how many bytes a message takes in a batch."""
    size = ITEM_BYTES + len(message.topic) + len(message.body) + len(message.tags or "")
    size += sum(len(key) for key in message.keys)
    return size + sum(len(name) + len(value) for name, value in message.properties.items())


def goes_alone(message: Message) -> bool:
    """Whether a message may not be part of a batch."""
    return message.is_delayed or message.topic.startswith(RETRY_PREFIX)


def _go_together(one: Message, other: Message) -> bool:
    return (
        one.topic == other.topic
        and one.wait_store == other.wait_store
        and not goes_alone(one)
        and not goes_alone(other)
    )


Promise = asyncio.Future[SendReceipt]


@dataclass(frozen=True, slots=True)
class _Key:
    topic: str
    queue: MessageQueue | None
    wait_store: bool
    tags: str | None
    awaited: bool


@dataclass(slots=True)
class _Entry:
    message: Message
    item: Item
    promise: Promise


@dataclass(slots=True)
class _Gathering:
    entries: list[_Entry] = field(default_factory=list)
    size_bytes: int = 0
    timer: asyncio.TimerHandle | None = None


class Accumulator:
    """The messages of one producer that wait for others.

    Args:
        sender: brings the batches to brokers.
        settings: how long messages wait, and how large batches become.
    """

    def __init__(self, sender: Sender, settings: ProducerSettings) -> None:
        self._sender = sender
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1000
        self._gathering: dict[_Key, _Gathering] = {}
        self._tasks = Supervisor("batches")
        self._closed = False
        self.held_bytes = 0
        """Size of all messages that wait to leave."""

    def takes(self, message: Message, place: SendTarget) -> bool:
        """Whether a message may wait for others: not if it is large, delayed, or goes elsewhere."""
        return (
            self.held_bytes < self._settings.auto_batch_total_bytes
            and len(message.body) < self._settings.auto_batch_bytes
            and place.selector is None
            and not self._closed
            and not goes_alone(message)
        )

    def add(self, message: Message, place: SendTarget, promise: Promise, *, awaited: bool) -> None:
        """Take a message that `takes` agreed to; its receipt, or an error, is put into ``promise``.

        Raises:
            InvalidMessageError, InvalidNameError: the message breaks a limit; it is not taken.
        """
        item = self._sender.item(message)
        key = _Key(message.topic, place.queue, message.wait_store, message.tags, awaited)
        gathering = self._gathering.get(key)
        if gathering is None:
            gathering = self._gathering[key] = _Gathering()
            delay_s = self._settings.auto_batch_delay_ms / 1000
            loop = asyncio.get_running_loop()
            gathering.timer = loop.call_later(delay_s, self._leave, key)
        gathering.entries.append(_Entry(message, item, promise))
        gathering.size_bytes += len(message.body)
        self.held_bytes += len(message.body)
        if gathering.size_bytes > self._settings.auto_batch_bytes:
            self._leave(key)

    async def close(self, timeout: float) -> None:
        """Send what waits, for ``timeout`` seconds at most; late sends end with an error."""
        self._closed = True
        for key in list(self._gathering):
            self._leave(key)
        await self._tasks.drain(timeout)
        await self._tasks.cancel()

    def _leave(self, key: _Key) -> None:
        """Let a batch go; messages whose sender has gone stay behind."""
        gathering = self._gathering.pop(key)
        if gathering.timer is not None:
            gathering.timer.cancel()
        self.held_bytes -= gathering.size_bytes
        entries = [entry for entry in gathering.entries if not entry.promise.cancelled()]
        if entries:
            task = self._tasks.spawn(self._send(key, entries), "send")
            task.add_done_callback(lambda _: _end_all(entries))

    async def _send(self, key: _Key, entries: list[_Entry]) -> None:
        try:
            receipt = await self._sender.send_items(
                [entry.message for entry in entries],
                [entry.item for entry in entries],
                SendTarget(key.queue),
                timeout=self._timeout_s,
                awaited=key.awaited,
            )
        except Exception as error:
            for entry in entries:
                if not entry.promise.done():
                    entry.promise.set_exception(error)
        else:
            for entry, own in zip(entries, split_receipt(receipt, len(entries)), strict=True):
                if not entry.promise.done():
                    entry.promise.set_result(own)


def split_receipt(receipt: SendReceipt, count: int) -> list[SendReceipt]:
    """Give each message of a batch its own receipt.

    Where the broker gave one id for the whole batch, each receipt has that one.
    """
    message_ids = receipt.message_id.split(",")
    offset_ids = receipt.offset_message_id.split(",")
    if len(offset_ids) != count:
        offset_ids = [receipt.offset_message_id] * count
    return [
        SendReceipt(
            status=receipt.status,
            message_id=message_ids[number],
            offset_message_id=offset_ids[number],
            queue=receipt.queue,
            queue_offset=QueueOffset(receipt.queue_offset + number),
            transaction_id=receipt.transaction_id,
            region_id=receipt.region_id,
            traced=receipt.traced,
            recall_handle=receipt.recall_handle,
        )
        for number in range(count)
    ]


def _end_all(entries: list[_Entry]) -> None:
    for entry in entries:
        if not entry.promise.done():
            entry.promise.set_exception(
                ClientClosedError("the producer was closed: the message may be stored")
            )
