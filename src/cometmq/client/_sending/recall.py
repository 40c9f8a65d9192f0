"""The handle by which a timer message is taken back before it is due.

    handle := base64url("v1 " topic " " broker " " time " " message id)

Source: RecallMessageHandle and DefaultMQProducerImpl.recallMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import NamedTuple

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._sending.retry_policy import NoMasterError
from cometmq.model.errors import InvalidMessageError
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import RecallMessageRequest, RecallMessageResponse

VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """What a handle says of the message."""

    topic: str
    broker_name: str
    timestamp_ms: str
    """When it is due."""
    message_id: str


def decode_handle(text: str) -> RecallHandle:
    """Read a handle.

    Raises:
        InvalidMessageError: it is none, or of another version.
    """
    try:
        parts = base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        parts = []
    if len(parts) != _PARTS or parts[0] != VERSION:
        raise InvalidMessageError(f"recall handle {text!r}: a receipt's handle is expected")
    return RecallHandle(*parts[1:])


def encode_handle(handle: RecallHandle) -> str:
    """Write a handle."""
    return base64.urlsafe_b64encode(" ".join((VERSION, *handle)).encode()).decode()


async def recall(
    instance: ClientInstance, group: str, topic: str, handle: str, *, timeout: float
) -> str:
    """Ask the broker that a handle names to take its message back; see `Producer.recall`.

    Where that broker is unknown, any of the topic is asked.
    """
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
