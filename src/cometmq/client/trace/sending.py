"""Hooks that tell the trace topic of stored messages and of the ends of transactions.

Source: SendMessageTraceHookImpl and EndTransactionTraceHookImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import time

from cometmq.client.hooks import EndContext, EndTransactionHook, SendContext, SendHook, SendKind
from cometmq.client.receipt import SendStatus
from cometmq.client.trace.dispatcher import TraceDispatcher
from cometmq.client.trace.records import EndTransaction, Publish, Recall
from cometmq.model import property_names as names
from cometmq.model.message import Message
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

    def after_try(self, context: SendContext) -> None:
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
