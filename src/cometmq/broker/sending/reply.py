"""Handles SEND_REPLY_MESSAGE (324) and its V2 form (325): pushes a reply to the requester.

A property of the reply names the client of the requester. The broker sends it the reply with
PUSH_REPLY_MESSAGE_TO_CLIENT (326), and the client must confirm it. The response to the replier has
success if the client confirmed the reply and, unless ``storeReplyMessageEnable=false``, the reply
is stored as durably as any send.
Source: ReplyMessageProcessor, RocketMQ 5.3, which reports no failure of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.broker.checks import sent_to_slave
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.broker.role import Role
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.broker.sending.validation import SendValidation
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.thread_calls import SharedCall
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError, RemotingError, ResponseError, StoreError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.send import (
    PushReplyMessageToClientRequest,
    SendMessageRequest,
    SendMessageResponse,
    SendMessageV2Request,
)
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.remoting import Request, Response
from cometmq.store import Appended, MessageStore, SegmentNotReadyError
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S = 10.0


class ReplyHandler:
    """Pushes replies to requesters, and stores them if the settings say so.

    Args:
        store: stores replies, if the settings say so.
        durability: what responses wait for.
        validation: checks and routes them like any send.
        stats: counts the replies that are stored.
        producers: finds the connection of the client.
        settings: returns the current settings of the broker.
        role: a slave handles no replies: producers send their heartbeats to its master.
        clock: gives the time of the push.
        store_host: our address as records carry it, 8 or 20 bytes.
        store_address: the same as ``host:port``.
        push_timeout_s: how long a client may take to confirm a reply.
    """

    def __init__(
        self,
        store: MessageStore,
        validation: SendValidation,
        stats: BrokerStats,
        *,
        durability: DurabilityWait,
        producers: ProducerRegistry,
        settings: Callable[[], BrokerSettings],
        role: Role,
        clock: Clock,
        store_host: bytes,
        store_address: str,
        push_timeout_s: float = PUSH_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._segment = SharedCall(store.wait_for_segment)
        self._durability = durability
        self._validation = validation
        self._stats = stats
        self._producers = producers
        self._settings = settings
        self._role = role
        self._clock = clock
        self._store_host = store_host
        self._store_address = store_address
        self._push_timeout_s = push_timeout_s

    async def reply(self, request: Request) -> Response | None:
        """Push the reply, store it, and respond with whether both succeeded."""
        header = _header(request)
        try:
            send = await after_prerequisites(lambda: self._routed(request, header), request)
        except ResponseError as refusal:
            return Response(refusal.code, refusal.remark, fields=self._trace_fields())
        problem = await self._push(request, header, send)
        result = SendMessageResponse(msg_id="0", queue_id=send.requested_queue_id, queue_offset=0)
        end: int | None = None
        if request.body and self._settings().store_reply_message_enable:
            try:
                stored = await after_prerequisites(lambda: self._store_reply(send))
            except (ResponseError, StoreError, InvalidMessageError) as failure:
                log.warning("cannot store a reply topic=%s: %s", send.topic, failure)
                problem = problem or f"pushed to its client, but not stored: {failure}"
            else:
                result.msg_id = encode_offset_id(self._store_host, stored.log_offset)
                result.queue_offset = stored.queue_offset
                self._stats.put(send.topic, send.queue_id, 1, stored.size_bytes)
                end = stored.log_offset_end
        response = Response(
            ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR,
            problem,
            header=result,
            fields=self._trace_fields(),
        )
        if problem is not None or end is None:
            return response
        return self._durability.respond(request, end, response)

    def _routed(self, request: Request, header: SendHeader) -> Send:
        if self._role.is_slave:
            raise sent_to_slave()
        send = Send(request.connection)
        send.request = request
        send.take_header(header, request.body)
        send.is_batch = False
        send.may_be_empty = True
        self._validation.route(send)
        return send

    async def _push(self, request: Request, header: SendHeader, send: Send) -> str | None:
        """Push the reply to its client; return what went wrong, or None."""
        properties = decode_properties(header.properties or "")
        client_id = properties.get(names.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{names.REPLY_TO_CLIENT}] is null"
        connection = self._producers.connection_of(client_id)
        if connection is None or connection.closed:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._clock.now_ms()
        properties[names.PUSH_REPLY_TIME] = str(now_ms)
        pushed = PushReplyMessageToClientRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=send.requested_queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
            born_host=request.connection.peer_text,
            store_host=self._store_address,
            store_timestamp=now_ms,
        )
        try:
            confirmed = await connection.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                pushed,
                request.body,
                timeout=self._push_timeout_s,
            )
        except RemotingError:
            return f"push reply message to {client_id}fail."
        if confirmed.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id}fail."
        return None

    def _store_reply(self, send: Send) -> Appended:
        """Store the reply.

        Raises:
            ResponseError: this broker has become a slave since the reply arrived, or may not store
                messages now.
            InvalidMessageError: the reply is no message that can be stored.
            StoreError: the disk refused.
        """
        if self._role.is_slave:
            raise sent_to_slave()
        if self._durability.refusal is not None:
            raise self._durability.refusal
        try:
            send.born_host, send.store_host = send.wire.peer_bytes, self._store_host
            return self._store.append(send)
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None

    def _trace_fields(self) -> dict[str, str]:
        settings = self._settings()
        trace = "true" if settings.trace_on else "false"
        return {"MSG_REGION": settings.region_id, "TRACE_ON": trace}


def _header(request: Request) -> SendHeader:
    if request.code == RequestCode.SEND_REPLY_MESSAGE:
        return request.header(SendMessageRequest)
    return request.header(SendMessageV2Request)
