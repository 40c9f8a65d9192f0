"""Reports sends, handler calls and ends of transactions to the trace topic, in batches.

Source: AsyncTraceDispatcher and the trace hooks, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.sender import Sender
from cometmq.client._supervision import FailureLog, SupervisedLoop
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
from cometmq.client.receipt import SendStatus
from cometmq.client.settings import ProducerSettings, Tables, TraceSettings, resolve_settings
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
    Record,
    encode,
)
from cometmq.model import property_names as names
from cometmq.model.message import Message, StoredMessage
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
class _Parcel:
    """Records that travel in one message."""

    topic: str
    since_s: float
    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    """In their order, each once."""
    text_bytes: int = 0
    keys_bytes: int = 0

    def add(self, text: str, keys: Iterable[str]) -> None:
        self.texts.append(text)
        self.text_bytes += len(text.encode())
        for key in keys:
            if key not in self.keys:
                self.keys[key] = None
                self.keys_bytes += len(key.encode()) + 1

    def message(self) -> Message:
        body = "".join(self.texts).encode()
        return Message(topic=self.topic, body=body, keys=list(self.keys))


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
        self._parcels: dict[tuple[str, str], _Parcel] = {}
        self._due: deque[_Parcel] = deque()
        """Parcels that are full or have waited long enough, in the order in which they are sent."""
        self._waiting = 0
        self._hurry = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._failures = FailureLog(
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
            keys: by which the trace is found: the message's id and keys.

        Returns:
            False when so many records wait that this one was dropped.
        """
        if self._waiting >= self._settings.waiting_max:
            self._drop(1)
            return False
        key = (self._topic(topic, region), region)
        parcel = self._parcels.get(key)
        if parcel is None:
            parcel = self._parcels[key] = _Parcel(key[0], _now())
            self._wake()
        parcel.add(encode(record, cloud=self._cloud), [key for key in keys if key.strip()])
        self._waiting += 1
        self._empty.clear()
        if (
            parcel.text_bytes >= self._settings.body_bytes_max
            or parcel.keys_bytes >= KEYS_BYTES_MAX
        ):
            self._due.append(self._parcels.pop(key))
            self._wake()
        return True

    def new_id(self) -> str:
        """Return an id for a call of a handler, which stands in both of its records."""
        return self._ids.next()

    async def flush(self, timeout: float) -> bool:
        """Send what waits now.

        Returns:
            Whether all of it left within ``timeout`` seconds.
        """
        self._hurry = True
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
        """Return the seconds until something is to be sent."""
        if self._due or (self._hurry and self._parcels):
            return 0.0
        return min(map(self._left_s, self._parcels.values()), default=math.inf)

    def _left_s(self, parcel: _Parcel) -> float:
        return parcel.since_s + self._settings.flush_ms / 1000 - _now()

    def next_due(self) -> _Parcel | None:
        """Remove and return what is to be sent next."""
        self._move_due()
        return self._due.popleft() if self._due else None

    def _move_due(self) -> None:
        """Move the parcels that have waited long enough, or all during a flush."""
        for key, parcel in list(self._parcels.items()):
            if self._hurry or self._left_s(parcel) <= 0:
                self._due.append(self._parcels.pop(key))

    async def send(self, parcel: _Parcel) -> None:
        """Send records; those that cannot be sent are dropped."""
        try:
            timeout = self._settings.timeout_ms / 1000
            await self._sender.send_message(parcel.message(), timeout=timeout)
        except BaseException:
            self._drop(len(parcel.texts))
            raise
        finally:
            self._settle(parcel)

    def _settle(self, parcel: _Parcel) -> None:
        """Count the records of a parcel as waiting no longer: it was sent or dropped."""
        self._waiting -= len(parcel.texts)
        if not self._waiting:
            self._hurry = False
            self._empty.set()

    def _drop_rest(self) -> None:
        """Drop all parcels but the one that is being sent."""
        rest = [*self._due, *self._parcels.values()]
        self._due.clear()
        self._parcels.clear()
        for parcel in rest:
            self._drop(len(parcel.texts))
            self._settle(parcel)

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

    def __init__(self, dispatcher: TraceDispatcher, failures: FailureLog) -> None:
        super().__init__("send", "*", failures, retry_s=RETRY_S)
        self._dispatcher = dispatcher

    def _wait_s(self) -> float:
        return self._dispatcher.due_in_s()

    async def _step(self) -> None:
        parcel = self._dispatcher.next_due()
        if parcel is not None:
            self._subject = parcel.topic
            await self._dispatcher.send(parcel)


def _now() -> float:
    return asyncio.get_running_loop().time()


class SendTrace(SendHook):
    """Records every try that stored a message, unless its broker wants no traces.

    Args:
        dispatcher: sends the records.
        topic: where to; empty for RocketMQ's own trace topic.
    """

    def __init__(self, dispatcher: TraceDispatcher, topic: str = "") -> None:
        self._dispatcher = dispatcher
        self._topic = topic

    def after_attempt(self, context: SendContext) -> None:
        """Record a try that stored the message."""
        receipt = context.receipt
        message = context.messages[0]
        if receipt is None or not receipt.traced or _is_trace(message.topic, self._topic):
            return
        cost_ms = int(context.cost_ms)
        record = Publish(
            time_ms=_now_ms() - cost_ms,
            region=receipt.region_id,
            group=context.group,
            topic=message.topic,
            message_id=receipt.message_id,
            tags=message.tags,
            keys=_joined_keys(message),
            store_host=context.address,
            body_bytes=len(message.body),
            cost_ms=cost_ms,
            kind=context.kind,
            offset_message_id=receipt.offset_message_id,
            success=receipt.status is SendStatus.SEND_OK,
        )
        keys = [*receipt.message_ids, *(record.keys or "").split()]
        self._dispatcher.add(record, topic=self._topic, region=receipt.region_id, keys=keys)


class EndTrace(EndTransactionHook):
    """Records what brokers were told of transactions.

    Args:
        dispatcher: sends the records.
        topic: where to; empty for RocketMQ's own trace topic.
    """

    def __init__(self, dispatcher: TraceDispatcher, topic: str = "") -> None:
        self._dispatcher = dispatcher
        self._topic = topic

    def ended(self, context: EndContext) -> None:
        """Record the end of a transaction."""
        message = context.message
        region = message.properties.get(names.MSG_REGION, DEFAULT_REGION)
        keys = _joined_keys(message) if isinstance(message, Message) else " ".join(message.keys)
        record = EndTransaction(
            time_ms=_now_ms(),
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
    """Record that a timer message was taken back."""
    record = Recall(_now_ms(), DEFAULT_REGION, group, topic, message_id, success=True)
    dispatcher.add(record, topic=trace_topic, region=DEFAULT_REGION, keys=[message_id])


DEFAULT_REGION = "DefaultRegion"


def _joined_keys(message: Message) -> str | None:
    keys = message.keys
    return (keys if isinstance(keys, str) else names.KEY_SEPARATOR.join(keys)) or None


def _is_trace(topic: str, trace_topic: str) -> bool:
    return topic == (trace_topic or TRACE_TOPIC)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_NOTE = "cometmq.trace"
_NOT_TRACED = "false"


@dataclass(slots=True)
class _Begun:
    request_id: str
    messages: list[StoredMessage]


class ConsumeTrace(ConsumeHook):
    """Records what handlers get and how their calls end, unless the broker wants no traces.

    Args:
        dispatcher: sends the records.
        topic: where to; empty for RocketMQ's own trace topic.
    """

    def __init__(self, dispatcher: TraceDispatcher, topic: str = "") -> None:
        self._dispatcher = dispatcher
        self._topic = topic

    def before(self, context: DeliveryContext) -> None:
        """Record each message that the handler is about to get."""
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
                time_ms=time.time_ns() // 1_000_000,
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
                time_ms=time.time_ns() // 1_000_000,
                group=context.group,
            )
            self._add(record, message)

    def _add(self, record: ConsumeBefore | ConsumeAfter, message: StoredMessage) -> None:
        region = message.properties.get(names.MSG_REGION, "")
        keys = [message.message_id, *message.keys]
        self._dispatcher.add(record, topic=self._topic, region=region, keys=keys)
