"""The receipt of a send: where the message is stored, under which ids, and how safely.

Source: SendResult and MQClientAPIImpl.processSendResponse, RocketMQ 5.3.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from cometmq.model.errors import ProtocolError, ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.send import SendMessageResponse


class SendStatus(Enum):
    """How safely the message is stored. It is stored with each of these.

    Example:
        receipt = await producer.send(Message(topic="orders", body=b"42"))
        safe = receipt.status is SendStatus.SEND_OK
    """

    SEND_OK = "SEND_OK"
    """Flushed and replicated as the broker's settings require."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Not flushed in time, although the broker's flush mode is synchronous."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Not replicated in time, although the broker's replication is synchronous."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """No slave is connected, although the broker's replication is synchronous."""


_STATUS = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


DEFAULT_REGION = "DefaultRegion"
"""The region of a broker that names none."""


class SendReceipt(msgspec.Struct, frozen=True):
    """The queue, the offset and the id of a stored message or batch.

    Example:
        receipt: SendReceipt = await producer.send(Message(topic="orders", body=b"42"))
        print(receipt.message_id, receipt.queue, receipt.queue_offset)
    """

    status: SendStatus
    """How safely the message is stored."""
    message_id: str
    """The unique id, made by the client; for a batch all ids joined by commas, as in RocketMQ."""
    offset_message_id: str
    """The broker's id: its address and the physical offset; for a batch joined by commas."""
    queue: MessageQueue
    """The target queue. A delayed message is in the schedule topic until it is due."""
    queue_offset: QueueOffset
    """The queue offset (of a batch's first message). For a delayed message, the offset in the
    schedule topic."""
    transaction_id: str | None = None
    """The transaction id that the broker returned, if any."""
    region_id: str = DEFAULT_REGION
    """The broker's region, which traces contain."""
    traced: bool = True
    """Whether the broker asks for traces of this message."""
    recall_handle: str | None = None
    """The handle for `Producer.recall`; only timer messages have one."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique id of each message, in order; one if it is not the receipt of a batch."""
        return tuple(self.message_id.split(","))


def receipt_from(response: Command, queue: MessageQueue, message_id: str) -> SendReceipt:
    """Read the response to a send.

    Raises:
        ResponseError: the broker refused; this attempt stored nothing, or `is_stored` is true.
        ProtocolError: the broker stored the message, but its response cannot be read.
    """
    status = _STATUS.get(response.code)  # type: ignore[call-overload]
    if status is None:
        raise ResponseError(response.code, response.remark or "")
    try:
        header = response.header(SendMessageResponse)
    except (ResponseError, ProtocolError) as error:
        reason = error.remark if isinstance(error, ResponseError) else str(error)
        raise ProtocolError(
            f"the response says {status.name}, but cannot be read: {reason}"
        ) from None
    return SendReceipt(
        status=status,
        message_id=message_id,
        offset_message_id=header.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        queue_offset=QueueOffset(header.queue_offset),
        transaction_id=header.transaction_id,
        region_id=header.msg_region or DEFAULT_REGION,
        traced=(header.trace_on or "").lower() != "false",
        recall_handle=header.recall_handle,
    )
