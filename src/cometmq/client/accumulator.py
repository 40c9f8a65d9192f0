"""Gathers single sends into batches, and gives each of them its own receipt.

Messages wait for others of the same topic, queue, tag and ``wait_store``: until the batch is large
enough, or its first message has waited long enough.

Source: ProduceAccumulator, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cometmq.client.config import ProducerSettings
from cometmq.client.destinations import Place
from cometmq.client.errors import ClientClosedError
from cometmq.client.outgoing import Item
from cometmq.client.receipt import SendReceipt
from cometmq.client.sender import Sender
from cometmq.client.splitting import goes_alone
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor

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

    def takes(self, message: Message, place: Place) -> bool:
        """Whether a message may wait for others: not if it is large, delayed, or goes elsewhere."""
        return (
            self.held_bytes < self._settings.auto_batch_total_bytes
            and len(message.body) < self._settings.auto_batch_bytes
            and place.selector is None
            and not self._closed
            and not goes_alone(message)
        )

    def add(self, message: Message, place: Place, promise: Promise, *, awaited: bool) -> None:
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
                Place(key.queue),
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
