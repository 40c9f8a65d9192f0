"""What a broker's answer to a send says: stored where, under which ids, and how safely.

Source: SendResult and MQClientAPIImpl.processSendResponse, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers import SendMessageResponse


class SendStatus(Enum):
    """How safely a message is stored; with any of these it is stored."""

    SEND_OK = "SEND_OK"
    """As safely as the broker is set to store."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Not known to be on disk yet, though the broker is set to wait for that."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Not known to be on a slave yet, though the broker is set to wait for that."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """There is no slave to copy to, though the broker is set to wait for one."""


_STATUS = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Proof that a broker stored a message, or a batch of them."""

    status: SendStatus
    message_id: str
    """Unique id the client gave; of a batch all ids, joined by commas."""
    offset_message_id: str
    """Id the broker gave: its address and the place in its log; of a batch joined by commas."""
    queue: MessageQueue
    """Where the message went. A delayed one waits elsewhere until it is due."""
    queue_offset: QueueOffset
    """Offset in the queue, of a batch's first message; of a delayed one, where it waits."""
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    traced: bool = True
    """Whether the broker wants traces of this message."""
    recall_handle: str | None = None
    """What it takes to recall a timer message."""


def receipt_from(answer: Command, queue: MessageQueue, message_id: str) -> SendReceipt:
    """Read the answer to a send.

    Raises:
        ResponseError: the broker refused; this try stored nothing.
    """
    status = _STATUS.get(answer.code)  # type: ignore[call-overload]
    if status is None:
        raise ResponseError(answer.code, answer.remark or "")
    header = answer.header(SendMessageResponse)
    return SendReceipt(
        status=status,
        message_id=message_id,
        offset_message_id=header.msg_id,
        queue=MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        queue_offset=QueueOffset(header.queue_offset),
        transaction_id=header.transaction_id,
        region_id=header.msg_region or "DefaultRegion",
        traced=(header.trace_on or "").lower() != "false",
        recall_handle=header.recall_handle,
    )
