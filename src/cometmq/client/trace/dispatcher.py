"""Reports sends, handler calls and ends of transactions to the trace topic, in batches.

Source: AsyncTraceDispatcher and the trace hooks, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.outgoing import joined_keys
from cometmq.client._sending.sender import Sender
from cometmq.client._supervision import SupervisedFailureLog, SupervisedLoop
from cometmq.client.hooks import (
    ConsumeEnd,
    ConsumeHook,
    DeliveryContext,
    EndContext,
    EndTransactionHook,
    SendContext,
    SendHook,
    SendKind,
)
from cometmq.client.receipt import DEFAULT_REGION, SendStatus
from cometmq.client.settings import ProducerSettings, Tables, TraceSettings, resolve_settings
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
    Record,
    encode_trace_record,
)
from cometmq.model import property_names as names
from cometmq.model.message import Message, StoredMessage
from cometmq.model.times import now_ms
from cometmq.model.topic import TRACE_TOPIC
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

GROUP = "_INNER_TRACE_PRODUCER"
CLOUD_TOPIC_PREFIX = "rmq_sys_TRACE_DATA_"
KEYS_BYTES_MAX = 24_000
"""Keys of one trace message: properties have room for 32,767 bytes."""
RELEASE_S = 5.0
"""Time for the last records when the last user leaves."""
STOP_S = 5.0
"""Time for the loop to end once it is cancelled."""
RETRY_S = 0.1
"""The first pause after a message with traces could not be sent."""


@dataclass(slots=True)
class _TraceBatch:
    """Records that are sent in one message."""

    topic: str
    since_s: float
    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    """In their order, each once."""
    text_bytes: int = 0
    keys_bytes: int = 0

    def add(self, text: str, keys: Iterable[str]) -> None:
        """Add a record, and as many of its keys as there is room for."""
        self.texts.append(text)
        self.text_bytes += len(text.encode())
        for key in keys:
            if key not in self.keys and self.keys_bytes + _key_bytes(key) <= KEYS_BYTES_MAX:
                self.keys[key] = None
                self.keys_bytes += _key_bytes(key)

    def message(self) -> Message:
        body = "".join(self.texts).encode()
        return Message(topic=self.topic, body=body, keys=list(self.keys))


def _key_bytes(key: str) -> int:
    """Return the bytes of a key and its separator."""
    return len(key.encode()) + 1


class TraceDispatcher:
    """Takes trace records of all members of an instance, and sends them in the background.

    Args:
        instance: whose connections are used.
        settings: how many records wait, and how long.
        cloud: whether topic and records have the form of the cloud service.
    """

    def __init__(
        self,
        instance: ClientCore,
        settings: TraceSettings | None = None,
        *,
        cloud: bool = False,
    ) -> None:
        self._settings = settings or TraceSettings()
        self._cloud = cloud
        self._ids = instance.unique_ids()
        self._sender = Sender(instance, GROUP, ProducerSettings())
        self._tasks = Supervisor("traces")
        self._users = 0
        self._retains = 0
        self._loop: _SendLoop | None = None
        self._batches: dict[tuple[str, str], _TraceBatch] = {}
        self._due: deque[_TraceBatch] = deque()
        """Batches that are full or have waited long enough, in the order in which they are sent."""
        self._waiting = 0
        self._flushing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._failures = SupervisedFailureLog(
            log, fails="traces not sent", works="traces are sent again", name="topic"
        )
        self.dropped = 0
        """Records that were dropped, because too many waited or no broker accepted them."""

    @classmethod
    def of(cls, instance: ClientCore, tables: Tables | None = None) -> TraceDispatcher:
        """Return the dispatcher of an instance; its users call `retain` and `release`.

        Args:
            instance: whose connections are used.
            tables: where its settings are looked for if it is made now, beside the environment.
        """

        def make() -> TraceDispatcher:
            settings = resolve_settings(TraceSettings, tables=tables)
            return cls(instance, settings, cloud=instance.settings.cloud)

        return instance.shared(cls, make)

    def retain(self) -> None:
        """Begin to use it: the first user starts its task."""
        self._users += 1
        self._retains += 1
        if self._loop is None:
            self._loop = _SendLoop(self, self._failures)
            self._loop.start(self._tasks)

    async def release(self) -> None:
        """End using it: with the last user the rest is sent, for 5 seconds at most.

        If another user comes meanwhile, the task is left to it.
        """
        self._users -= 1
        if self._users:
            return
        retains = self._retains
        try:
            await self.flush(RELEASE_S)
        finally:
            if retains == self._retains:
                self._drop_rest()
                loop, self._loop = self._loop, None
                if loop is not None:
                    await loop.stop(STOP_S)

    def add(self, record: Record, *, topic: str, region: str, keys: Iterable[str]) -> bool:
        """Take a record.

        Args:
            record: what happened.
            topic: where traces of its producer or consumer go; empty for RocketMQ's own topic.
            region: where the message is stored.
            keys: by which the trace is found: the message's id and keys. Of a large batch, not all
                ids have room.

        Returns:
            False if too many records wait, and this one was dropped.
        """
        if self._waiting >= self._settings.waiting_max:
            self._drop(1)
            return False
        where = (self._topic(topic, region), region)
        found_by = [key for key in keys if key.strip()]
        batch = self._batches.get(where)
        if batch and batch.keys_bytes + sum(map(_key_bytes, found_by)) > KEYS_BYTES_MAX:
            self._due.append(self._batches.pop(where))
            batch = None
        if batch is None:
            batch = self._batches[where] = _TraceBatch(where[0], _now())
            self._wake()
        batch.add(encode_trace_record(record, cloud=self._cloud), found_by)
        self._waiting += 1
        self._empty.clear()
        if batch.text_bytes >= self._settings.body_bytes_max:
            self._due.append(self._batches.pop(where))
            self._wake()
        return True

    def new_id(self) -> str:
        """Return an id for a call of a handler; both of its records contain it."""
        return self._ids.next()

    async def flush(self, timeout: float) -> bool:
        """Send the waiting records now.

        Returns:
            Whether all were sent within ``timeout`` seconds.
        """
        self._flushing = True
        self._wake()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            log.warning("traces not sent in time records=%s", self._waiting)
            return False
        return True

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.wake()

    def _topic(self, topic: str, region: str) -> str:
        return f"{CLOUD_TOPIC_PREFIX}{region}" if self._cloud else topic or TRACE_TOPIC

    def due_in_s(self) -> float:
        """Return the seconds until the next batch is due."""
        if self._due or (self._flushing and self._batches):
            return 0.0
        return min(map(self._left_s, self._batches.values()), default=math.inf)

    def _left_s(self, batch: _TraceBatch) -> float:
        return batch.since_s + self._settings.flush_ms / 1000 - _now()

    def next_due(self) -> _TraceBatch | None:
        """Remove and return the next batch that is due."""
        self._move_due()
        return self._due.popleft() if self._due else None

    def _move_due(self) -> None:
        """Move the batches that have waited long enough, or all during a flush."""
        for key, batch in list(self._batches.items()):
            if self._flushing or self._left_s(batch) <= 0:
                self._due.append(self._batches.pop(key))

    async def send(self, batch: _TraceBatch) -> None:
        """Send records; records that cannot be sent are dropped."""
        try:
            timeout = self._settings.timeout_ms / 1000
            await self._sender.send_message(batch.message(), timeout=timeout)
        except BaseException:
            self._drop(len(batch.texts))
            raise
        finally:
            self._settle(batch)

    def _settle(self, batch: _TraceBatch) -> None:
        """Count the records of a batch as waiting no longer: it was sent or dropped."""
        self._waiting -= len(batch.texts)
        if not self._waiting:
            self._flushing = False
            self._empty.set()

    def _drop_rest(self) -> None:
        """Drop all batches but the batch that is being sent."""
        rest = [*self._due, *self._batches.values()]
        self._due.clear()
        self._batches.clear()
        for batch in rest:
            self._drop(len(batch.texts))
            self._settle(batch)

    def _drop(self, count: int) -> None:
        if not self.dropped:
            log.warning("traces dropped: the buffer is full or no broker accepts them")
        self.dropped += count


class _SendLoop(SupervisedLoop):
    """Sends what is due, one message after the other.

    Args:
        dispatcher: collects the records.
        failures: logs failed sends, by topic.
    """

    def __init__(self, dispatcher: TraceDispatcher, failures: SupervisedFailureLog) -> None:
        super().__init__("send", "*", failures, retry_s=RETRY_S)
        self._dispatcher = dispatcher

    def _wait_s(self) -> float:
        return self._dispatcher.due_in_s()

    async def _step(self) -> None:
        batch = self._dispatcher.next_due()
        if batch is not None:
            self._subject = batch.topic
            await self._dispatcher.send(batch)


def _now() -> float:
    return asyncio.get_running_loop().time()


class _TraceHook:
    """The base of hooks that record.

    Args:
        dispatcher: sends the records.
        topic: where to; empty for RocketMQ's own trace topic.
    """

    def __init__(self, dispatcher: TraceDispatcher, topic: str = "") -> None:
        self._dispatcher = dispatcher
        self._topic = topic


class SendTrace(_TraceHook, SendHook):
    """Records each attempt that stored a message, unless its broker disables traces."""

    def after_attempt(self, context: SendContext) -> None:
        """Record an attempt that stored the message."""
        receipt = context.receipt
        message = context.messages[0]
        is_trace = message.topic == (self._topic or TRACE_TOPIC)
        if receipt is None or not receipt.traced or is_trace:
            return
        cost_ms = int(context.cost_ms)
        record = Publish(
            time_ms=now_ms() - cost_ms,
            region=receipt.region_id,
            group=context.group,
            topic=message.topic,
            message_id=receipt.message_id,
            tags=message.tags,
            keys=joined_keys(message.keys) or None,
            store_host=context.address,
            body_bytes=len(message.body),
            cost_ms=cost_ms,
            kind=context.kind,
            offset_message_id=receipt.offset_message_id,
            success=receipt.status is SendStatus.SEND_OK,
        )
        keys = [*receipt.message_ids, *(record.keys or "").split()]
        self._dispatcher.add(record, topic=self._topic, region=receipt.region_id, keys=keys)


class EndTrace(_TraceHook, EndTransactionHook):
    """Records the ends of transactions that were sent to brokers."""

    def ended(self, context: EndContext) -> None:
        """Record the end of a transaction."""
        message = context.message
        region = message.properties.get(names.MSG_REGION, DEFAULT_REGION)
        is_sent = isinstance(message, Message)
        keys = (
            (joined_keys(message.keys) or None) if is_sent else message.properties.get(names.KEYS)
        )
        record = EndTransaction(
            time_ms=now_ms(),
            region=region,
            group=context.group,
            topic=message.topic,
            message_id=context.message_id,
            tags=message.tags,
            keys=keys,
            store_host=context.address,
            kind=SendKind.TRANSACTION_COMMIT,
            transaction_id=context.transaction_id,
            state=context.state,
            from_check=context.from_check,
        )
        found_by = [context.message_id, *(keys or "").split()]
        self._dispatcher.add(record, topic=self._topic, region=region, keys=found_by)


def trace_recall(
    dispatcher: TraceDispatcher, trace_topic: str, group: str, topic: str, message_id: str
) -> None:
    """Record that a timer message was recalled."""
    record = Recall(now_ms(), DEFAULT_REGION, group, topic, message_id, success=True)
    dispatcher.add(record, topic=trace_topic, region=DEFAULT_REGION, keys=[message_id])


_NOTE = "cometmq.trace"
_NOT_TRACED = "false"


@dataclass(slots=True)
class _Begun:
    request_id: str
    messages: list[StoredMessage]


class ConsumeTrace(_TraceHook, ConsumeHook):
    """Records what handlers receive and how their calls end, unless the broker disables traces."""

    def before(self, context: DeliveryContext) -> None:
        """Record each message that the handler is about to receive."""
        traced = [
            message
            for message in context.messages
            if message.properties.get(names.TRACE_ON) != _NOT_TRACED
        ]
        if not traced:
            return
        begun = context.notes[_NOTE] = _Begun(self._dispatcher.new_id(), traced)
        for message in traced:
            record = ConsumeBefore(
                time_ms=now_ms(),
                region=message.properties.get(names.MSG_REGION),
                group=context.group,
                request_id=begun.request_id,
                message_id=message.message_id,
                retries=message.reconsume_times,
                keys=message.properties.get(names.KEYS),
            )
            self._add(record, message)

    def after(self, context: DeliveryContext) -> None:
        """Record how the call ended for each of its messages."""
        begun: _Begun | None = context.notes.get(_NOTE)
        if begun is None:
            return
        end = ConsumeEnd.SUCCESS if context.end is None else context.end
        for message in begun.messages:
            record = ConsumeAfter(
                request_id=begun.request_id,
                message_id=message.message_id,
                cost_ms=int(context.cost_ms / len(context.messages)),
                success=end is ConsumeEnd.SUCCESS,
                keys=message.properties.get(names.KEYS),
                end=end,
                time_ms=now_ms(),
                group=context.group,
            )
            self._add(record, message)

    def _add(self, record: ConsumeBefore | ConsumeAfter, message: StoredMessage) -> None:
        region = message.properties.get(names.MSG_REGION, "")
        keys = [message.message_id, *message.keys]
        self._dispatcher.add(record, topic=self._topic, region=region, keys=keys)
