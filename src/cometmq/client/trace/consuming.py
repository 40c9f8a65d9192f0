"""The hook that tells the trace topic of deliveries: before and after each call of a handler.

Source: ConsumeMessageTraceHookImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext
from cometmq.client.trace.dispatcher import TraceDispatcher
from cometmq.client.trace.records import ConsumeAfter, ConsumeBefore
from cometmq.model import property_names as names
from cometmq.model.message import StoredMessage

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
