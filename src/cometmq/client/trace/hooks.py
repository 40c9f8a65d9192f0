"""Trace hooks: report sends and handler calls to a trace dispatcher.

Source: SendMessageTraceHookImpl and ConsumeMessageTraceHookImpl, RocketMQ 5.3."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
from cometmq.client.trace.dispatcher import TraceDispatcher
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
)
from cometmq.model import property_names as names
from cometmq.model.message import Message, StoredMessage
from cometmq.model.topic import TRACE_TOPIC


class SendTrace(SendHook):
    """Records every try that stored a message, unless its broker wants no traces.

    Args:
        dispatcher: who sends the records.
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
        keys = [*receipt.message_id.split(","), *(record.keys or "").split()]
        self._dispatcher.add(record, topic=self._topic, region=receipt.region_id, keys=keys)


class EndTrace(EndTransactionHook):
    """Records what brokers were told of transactions.

    Args:
        dispatcher: who sends the records.
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
        dispatcher: who sends the records.
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
