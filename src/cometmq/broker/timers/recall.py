"""Handles RECALL_MESSAGE (370): recalls a timer message before it is due.

A recall is a message of the timer topic. It waits in the slot of the message that it recalls, and
names it by topic and unique id. Whether there is such a message is not known before that.

Source: RecallMessageProcessor, RocketMQ 5.3 (codes, remarks and the order of the checks).
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import PrerequisiteError, with_prerequisites
from cometmq.broker.thread_calls import SharedCall
from cometmq.broker.timers.routing import TIMER_QUEUE, TimerRouting, TimerRules
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.model.numbers import number_of
from cometmq.model.topic import TIMER_TOPIC, Perm
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import RecallMessageRequest, RecallMessageResponse
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from cometmq.protocol.recall_handle import RecallHandle, decode_handle
from cometmq.remoting import Request, Response
from cometmq.store import NewRecord, SegmentNotReadyError

_BODY = b"0"
_TAG = "_RECALL_TAG_"
_UNAVAILABLE = "recall failed, broker service not available"


class RecallHandler:
    """Stores recalls.

    Args:
        core: of the broker.
        rules: returns the rules of timer messages.
        routing: knows their slots.
        durability: what responses wait for.
        store_host: our address as records carry it.
    """

    def __init__(
        self,
        core: Core,
        rules: Callable[[], TimerRules],
        routing: TimerRouting,
        durability: DurabilityWait,
        *,
        store_host: bytes,
    ) -> None:
        self._core = core
        self._rules = rules
        self._routing = routing
        self._durability = durability
        self._store_host = store_host
        self._segment = SharedCall(core.store.wait_for_segment)
        self.recall = with_prerequisites(self._recall)
        """Handles one request, once what it needs was created."""

    def _recall(self, request: Request) -> Response | None:
        """Store a recall; respond when it is as durable as a send.

        Raises:
            PrerequisiteError: a file of the log has to be created first.
            ResponseError: it is refused.
        """
        header = request.header(RecallMessageRequest)
        settings = self._core.settings()
        self._check(settings, header.topic)
        handle = self._handle(header, settings)
        record = self._record(request, header, handle)
        try:
            stored = self._core.store.append(record)
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except (StoreError, InvalidMessageError) as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {problem}"
            ) from problem
        response = Response(
            header=RecallMessageResponse(msg_id=handle.message_id, msg_region=settings.region_id)
        )
        return self._durability.respond(request, stored.log_offset_end, response)

    def _check(self, settings: BrokerSettings, topic: str) -> None:
        """Refuse a recall that this broker does not take now."""
        if not settings.recall_message_enable:
            raise ResponseError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if self._core.role.is_slave:
            raise ResponseError(ResponseCode.SLAVE_NOT_AVAILABLE, _UNAVAILABLE)
        is_early = self._core.clock.now_ms() < settings.start_accept_send_request_ms
        is_writable = settings.broker_permission & Perm.WRITE
        if is_early or not (is_writable or settings.allow_recall_when_not_writable):
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
        if self._durability.refusal is not None:
            raise self._durability.refusal
        if topic not in self._core.topics.all():
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:300]}] not exist"
            )

    def _handle(self, header: RecallMessageRequest, settings: BrokerSettings) -> RecallHandle:
        try:
            handle = decode_handle(header.recall_handle or "")
            due_ms = number_of(handle.timestamp_ms.encode())
        except InvalidMessageError:
            due_ms = None
        if due_ms is None:
            raise _refused("recall handle is invalid")
        if handle.topic != header.topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != settings.broker_name:
            raise _refused(_UNAVAILABLE)
        now_ms = self._core.clock.now_ms()
        if not now_ms < due_ms < now_ms + self._rules().max_delay_ms:
            raise _refused("recall failed, timestamp invalid")
        return handle

    def _record(
        self, request: Request, header: RecallMessageRequest, handle: RecallHandle
    ) -> NewRecord:
        now_ms = self._core.clock.now_ms()
        due_ms = int(handle.timestamp_ms)
        properties = encode_properties(
            {
                names.TAGS: _TAG,
                names.UNIQ_KEY: handle.message_id,
                names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.message_id}",
                names.TIMER_DELIVER_MS: str(due_ms),
                names.TIMER_OUT_MS: str(self._routing.slot_of(due_ms)),
                names.PGROUP: header.producer_group or None,
                names.BORN_TIMESTAMP: str(now_ms),
                names.REAL_TOPIC: handle.topic,
                names.REAL_QID: "0",
            }
        )
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise _refused(
                f"recall handle is invalid: properties of {len(properties)} bytes, expected at"
                f" most {PROPERTIES_BYTES_MAX}"
            )
        return NewRecord(
            TIMER_TOPIC,
            TIMER_QUEUE,
            _BODY,
            properties,
            born_time_ms=now_ms,
            born_host=request.connection.peer_bytes,
            store_host=self._store_host,
        )


def _refused(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.ILLEGAL_OPERATION, remark)
