"""Handles RECALL_MESSAGE (370): recalls a timer message before it is due.

A recall is a message of the timer topic. It waits in the slot of the message that it recalls, and
names it by topic and unique id. Whether there is such a message is not known before that.

With access control only the account that has sent the message recalls it, and an administrator. The
key index shows at once who has sent it; what decides is the account in the recall, when it is read.

Source: RecallMessageProcessor, RocketMQ 5.3 (codes, remarks and the order of the checks).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import (
    PrerequisiteError,
    after_prerequisites,
    with_prerequisites,
)
from cometmq.broker.thread_calls import SharedCall
from cometmq.broker.timers.routing import TIMER_QUEUE, TimerRouting, TimerRules
from cometmq.broker.timers.senders import DEL_KEY, REAL_TOPIC, sender_of
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.model.numbers import number_of
from cometmq.model.topic import TIMER_TOPIC, Perm
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import RecallMessageRequest, RecallMessageResponse
from cometmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    encode_properties,
    marker,
    value_of,
)
from cometmq.protocol.recall_handle import RecallHandle, decode_handle
from cometmq.protocol.record import split_record
from cometmq.remoting import Request, Response
from cometmq.store import NewRecord, SegmentNotReadyError

FOUND_MAX: Final = 32
"""Records of the timer topic with a unique id that are looked at."""
READ_BYTES_MAX: Final = 1024 * 1024
LATEST_MS: Final = 2**63 - 1
_OUT = marker(names.TIMER_OUT_MS.encode())
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
        has_begun: returns whether messages of a slot may be delivered already.
        store_host: our address as records carry it.
    """

    def __init__(
        self,
        core: Core,
        rules: Callable[[], TimerRules],
        routing: TimerRouting,
        durability: DurabilityWait,
        *,
        has_begun: Callable[[int], bool],
        store_host: bytes,
    ) -> None:
        self._core = core
        self._rules = rules
        self._routing = routing
        self._durability = durability
        self._has_begun = has_begun
        self._store_host = store_host
        self._segment = SharedCall(core.store.wait_for_segment)
        self._begin = with_prerequisites(self._recall)

    def recall(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Store a recall; with access control look first who has sent the message."""
        if self._routing.senders.access is None:
            return self._begin(request)
        request.is_exclusive = True
        return self._recall_own(request)

    async def _recall_own(self, request: Request) -> Response | None:
        header = request.header(RecallMessageRequest)
        settings = self._core.settings()
        self._check(settings, header.topic)
        handle = self._handle(header, settings)
        properties = self._properties(request, header, handle)
        recaller = sender_of(encode_properties(properties))
        if recaller is not None:
            senders = await self._senders_of(request, handle)
            if senders and not senders & {None, recaller}:
                raise ResponseError(
                    ResponseCode.NO_PERMISSION,
                    "recall failed, another account has sent the message; expected a request of"
                    " that account, or of an administrator",
                )
        return await after_prerequisites(lambda: self._recall(request))

    async def _senders_of(self, request: Request, handle: RecallHandle) -> set[bytes | None]:
        """Return the accounts that have sent the messages of a handle, as far as they are found."""
        search = self._core.store.search(TIMER_TOPIC, handle.message_id, FOUND_MAX, 0, LATEST_MS)
        if not await self._core.cold_reads.search(search, request, READ_BYTES_MAX):
            return set()
        found: set[bytes | None] = set()
        for data in search.result().records:
            record = split_record(data).properties
            slot_ms = number_of(value_of(record, _OUT))
            if (
                value_of(record, DEL_KEY) is None
                and value_of(record, REAL_TOPIC) == handle.topic.encode()
                and slot_ms == int(handle.timestamp_ms) - 1
            ):
                found.add(sender_of(record))
        return found

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
        is_in_time = now_ms < due_ms < now_ms + self._rules().max_delay_ms
        if not is_in_time or self._has_begun(due_ms - 1):  # the clock may have been set back
            raise _refused("recall failed, timestamp invalid")
        return handle

    def _properties(
        self, request: Request, header: RecallMessageRequest, handle: RecallHandle
    ) -> dict[str, str]:
        due_ms = int(handle.timestamp_ms)
        properties = {
            names.TAGS: _TAG,
            names.UNIQ_KEY: handle.message_id,
            names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.message_id}",
            names.TIMER_DELIVER_MS: str(due_ms),
            names.TIMER_OUT_MS: str(self._routing.slot_of(due_ms)),
            names.BORN_TIMESTAMP: str(self._core.clock.now_ms()),
            names.REAL_TOPIC: handle.topic,
            names.REAL_QID: "0",
        }
        if header.producer_group:
            properties[names.PGROUP] = header.producer_group
        return self._routing.senders.named(properties, request)

    def _record(
        self, request: Request, header: RecallMessageRequest, handle: RecallHandle
    ) -> NewRecord:
        properties = encode_properties(self._properties(request, header, handle))
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
            born_time_ms=self._core.clock.now_ms(),
            born_host=request.connection.peer_bytes,
            store_host=self._store_host,
        )


def _refused(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.ILLEGAL_OPERATION, remark)
