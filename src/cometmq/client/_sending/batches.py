"""Batches: single sends that are combined, and long lists that are split into requests.

Source: ProduceAccumulator and the list splitter of the batch examples, RocketMQ 5.3."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cometmq.client._sending.back_pressure import BackPressure, Generation
from cometmq.client._sending.outgoing import Item, copy_message
from cometmq.client._sending.retry_policy import RetryPolicy, cancellation_error, closed_error
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ProducerSettings
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.batch import ITEM_BYTES_MIN
from cometmq.remoting.tasks import Supervisor

ESTIMATED_BYTES = 20
"""Bytes of a message beside its texts, as RocketMQ's examples estimate them."""


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
    """Return about how many bytes a message takes in a batch."""
    try:
        size = ESTIMATED_BYTES + len(message.topic) + len(message.body) + len(message.tags or "")
        if isinstance(message.keys, Collection):  # a generator can be read only once
            size += sum(len(key) for key in message.keys)
        return size + sum(len(name) + len(value) for name, value in message.properties.items())
    except TypeError:
        return ESTIMATED_BYTES  # a field of a wrong type is refused when the message is sent


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


SendFuture = asyncio.Future[SendReceipt]


@dataclass(frozen=True, slots=True)
class _Key:
    topic: str
    queue: MessageQueue | None
    wait_store: bool
    tags: str | None
    policy: RetryPolicy


@dataclass(slots=True)
class _Entry:
    message: Message
    item: Item
    future: SendFuture
    size: int
    generation: Generation


@dataclass(slots=True)
class _Batch:
    entries: list[_Entry] = field(default_factory=list)
    body_bytes: int = 0
    encoded_bytes: int = 0
    timer: asyncio.TimerHandle | None = None


class Accumulator:
    """The messages of one producer that wait for others to form a batch.

    Args:
        sender: sends the batches.
        settings: how long messages wait, and how large batches become.
        pressure: gets the room of each message back when its batch has ended.
    """

    def __init__(self, sender: Sender, settings: ProducerSettings, pressure: BackPressure) -> None:
        self._sender = sender
        self._settings = settings
        self._pressure = pressure
        self._timeout_s = settings.timeout_ms / 1000
        self._batches: dict[_Key, _Batch] = {}
        self._tasks = Supervisor("batches")
        self._held_bytes = 0

    def takes(self, message: Message, target: SendTarget) -> bool:
        """Whether a message may wait for others: it is small, not delayed, and has no selector."""
        return (
            isinstance(message.topic, str)
            and isinstance(message.body, bytes)
            and isinstance(message.properties, Mapping)
            and self._held_bytes < self._settings.auto_batch_total_bytes
            and len(message.body) < self._settings.auto_batch_bytes
            and target.selector is None
            and not goes_alone(message)
        )

    def add(
        self,
        message: Message,
        target: SendTarget,
        policy: RetryPolicy,
        size: int,
        generation: Generation,
    ) -> SendFuture:
        """Take a message that `takes` agreed to, with its room; return its future.

        Raises:
            InvalidMessageError, InvalidNameError: the message breaks a limit; it is not taken.
        """
        message = copy_message(message)  # prepared once more if it is alone, or there are hooks
        item = self._sender.item(message)
        item_bytes = ITEM_BYTES_MIN + len(item.encoded.body) + len(item.encoded.properties)
        key = _Key(message.topic, target.queue, message.wait_store, message.tags, policy)
        batch = self._batches.get(key)
        if batch and batch.encoded_bytes + item_bytes > self._settings.body_bytes_max:
            self._leave(key)  # small bodies may have large properties
            batch = None
        loop = asyncio.get_running_loop()
        if batch is None:
            batch = self._batches[key] = _Batch()
            delay_s = self._settings.auto_batch_delay_ms / 1000
            batch.timer = loop.call_later(delay_s, self._leave, key)
        future: SendFuture = loop.create_future()
        batch.entries.append(_Entry(message, item, future, size, generation))
        batch.body_bytes += size
        batch.encoded_bytes += item_bytes
        self._held_bytes += size
        if batch.body_bytes > self._settings.auto_batch_bytes:
            self._leave(key)
        return future

    def flush(self) -> None:
        """Send the batches that wait, without waiting for more messages."""
        for key in list(self._batches):
            self._leave(key)

    async def cancel(self) -> None:
        """End the sends of batches that are still in flight."""
        await self._tasks.cancel()

    def _leave(self, key: _Key) -> None:
        """Send a batch, without the messages whose future was cancelled."""
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        self._held_bytes -= batch.body_bytes
        entries = []
        for entry in batch.entries:
            if entry.future.cancelled():
                self._pressure.release(entry.size, entry.generation)
            else:
                entries.append(entry)
        if entries:
            task = self._tasks.spawn(self._send(key, entries), "send", awaited=True)
            task.add_done_callback(lambda _: self._end(entries))

    async def _send(self, key: _Key, entries: list[_Entry]) -> None:
        try:
            receipt = await self._sender.send_items(
                [entry.message for entry in entries],
                [entry.item for entry in entries],
                SendTarget(key.queue),
                timeout=self._timeout_s,
                policy=key.policy,
            )
        except asyncio.CancelledError as error:
            _fail(entries, cancellation_error(error))
        except Exception as error:
            _fail(entries, error)
        else:
            for entry, own in zip(entries, split_receipt(receipt, len(entries)), strict=True):
                if not entry.future.done():
                    entry.future.set_result(own)

    def _end(self, entries: list[_Entry]) -> None:
        """Release the room of a batch; messages without a result were cut off by the closing."""
        for entry in entries:
            self._pressure.release(entry.size, entry.generation)
            if not entry.future.done():
                entry.future.set_exception(closed_error(maybe_stored=True))


def _fail(entries: Iterable[_Entry], error: Exception) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(error)


def split_receipt(receipt: SendReceipt, count: int) -> list[SendReceipt]:
    """Give each message of a batch its own receipt.

    Where the broker gave one id for the whole batch, each receipt has that one.
    """
    message_ids = receipt.message_ids
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
