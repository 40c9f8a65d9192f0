"""Requests that await a reply, and recalls of timer messages.

Source: RequestFutureHolder, MessageUtil.createReplyMessage and DefaultMQProducerImpl.recallMessage,
RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.outgoing import REPLY_TYPE
from cometmq.client.errors import BackPressureError, NoMasterError, ReplyError
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.times import now_ms
from cometmq.model.topic import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, check_topic_name
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.headers.send import (
    PushReplyMessageToClientRequest,
    RecallMessageRequest,
    RecallMessageResponse,
)
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.recall_handle import decode_handle
from cometmq.protocol.record import body_crc
from cometmq.remoting import Request, Response

log = logging.getLogger(__name__)

REQUESTS_MAX = 65_535
"""Requests of one client that may wait at a time."""


class Replies:
    """The requests of one client that wait for their replies.

    Args:
        instance: whose brokers push the replies.
    """

    def __init__(self, instance: ClientCore) -> None:
        self._client_id = instance.client_id
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}
        instance.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self.take

    @classmethod
    def of(cls, instance: ClientCore) -> Replies:
        """Return the object of an instance."""
        return instance.shared(cls, lambda: cls(instance))

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, timeout: float) -> tuple[dict[str, str], asyncio.Future[StoredMessage]]:
        """Start to wait for one reply; `forget` ends the wait.

        Args:
            timeout: seconds that the request states.

        Returns:
            The properties that make a message a request, and the future of its reply.

        Raises:
            BackPressureError: too many requests wait already.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise BackPressureError(f"not sent: {len(self._waiting)} requests wait for replies")
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        properties = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._client_id,
            names.TTL: str(round(timeout * 1000)),
        }
        return properties, future

    def forget(self, properties: dict[str, str]) -> None:
        """End the wait: a later reply is dropped."""
        self._waiting.pop(properties[names.CORRELATION_ID], None)

    def take(self, request: Request) -> Response:
        """Pass a reply that a broker pushed to the request that waits for it, if one does."""
        header = request.header(PushReplyMessageToClientRequest)
        properties = decode_properties(header.properties or "")
        future = self._waiting.pop(properties.get(names.CORRELATION_ID, ""), None)
        if future is None or future.done():
            log.debug("dropped a late reply id=%s", properties.get(names.UNIQ_KEY))
            return Response()
        try:
            future.set_result(reply_from(header, request.body))
        except CompressionError as error:
            future.set_exception(error)
        return Response()


def reply_from(header: PushReplyMessageToClientRequest, body: bytes) -> StoredMessage:
    """Decode a pushed reply; it is not stored and has no offset.

    Raises:
        CompressionError: its body is damaged, or its compression needs a package that is missing.
    """
    properties = decode_properties(header.properties or "")
    properties[names.ARRIVE_TIME] = str(now_ms())
    return StoredMessage(
        topic=header.topic,
        body=decompress_body(body, header.sys_flag),
        properties=properties,
        queue_id=header.queue_id,
        queue_offset=QueueOffset(0),
        log_offset=LogOffset(0),
        flag=header.flag,
        sys_flag=header.sys_flag & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK),
        born_time_ms=header.born_timestamp,
        born_host=header.born_host,
        store_time_ms=header.store_timestamp,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times or 0,
        prepared_offset=0,
        body_crc=body_crc(body),
        size_bytes=len(body),
        offset_message_id="",
    )


def reply_to(request: StoredMessage) -> tuple[str, dict[str, str]]:
    """Return the topic and the properties that make a message the reply to ``request``.

    Raises:
        ReplyError: the message is no request: a property is missing.
    """
    wanted = (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT)
    if missing := [name for name in wanted if not request.properties.get(name)]:
        raise ReplyError(
            f"message {request.message_id} is not a request:"
            f" it lacks the property {', '.join(missing)}"
        )
    kept = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)
    properties = {name: request.properties[name] for name in kept if name in request.properties}
    properties[names.MSG_TYPE] = REPLY_TYPE
    return request.properties[names.CLUSTER] + REPLY_SUFFIX, properties


async def recall(
    instance: ClientCore, group: str, topic: str, handle: str, *, timeout: float
) -> str:
    """Recall a message at the broker that its handle names; see `Producer.recall`.

    If that broker is unknown, the request is sent to another broker of the topic.
    """
    check_topic_name(topic)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise InvalidMessageError(f"messages of {topic} cannot be recalled")
    broker_name = decode_handle(handle).broker_name
    instance.check_running()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    wire_topic = instance.namespace.wrap_topic(topic)
    route = await instance.routes.find(wire_topic, timeout=timeout)
    address = route.master(broker_name) or next(iter(route.masters()), None)
    if address is None:
        raise NoMasterError(f"no broker of {topic} has a master now")
    header = RecallMessageRequest(
        producer_group=instance.namespace.wrap_group(group),
        topic=wire_topic,
        recall_handle=handle,
        bname=broker_name,
    )
    left_s = max(deadline - loop.time(), 0.001)
    response = await instance.brokers.call(
        address, RequestCode.RECALL_MESSAGE, header, timeout=left_s
    )
    return response.header(RecallMessageResponse).msg_id
