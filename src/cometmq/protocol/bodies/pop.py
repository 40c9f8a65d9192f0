"""Bodies of the POP way of consuming.

Source: QueryAssignmentRequestBody, SetMessageRequestModeRequestBody, BatchAckMessageRequestBody and
relatives, RocketMQ 5.3.
"""

from enum import StrEnum

from msgspec import field

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.base import Body, Part
from cometmq.protocol.bodies.heartbeat import MessageModel


class MessageRequestMode(StrEnum):
    """How messages of a queue are fetched."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(Body, kw_only=True):
    """QUERY_ASSIGNMENT (400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(Part, kw_only=True):
    """One queue for one consumer."""

    message_queue: MessageQueue = field(default_factory=MessageQueue)
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body, kw_only=True):
    """The response to QUERY_ASSIGNMENT (400); None if the broker could not decide."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body, kw_only=True):
    """SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


class MessageRequestModeSerializeWrapper(Body, kw_only=True):
    """GET_ALL_MESSAGE_REQUEST_MODE (402): modes by topic and group."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


class BatchAck(Part, kw_only=True):
    """Acknowledgements of messages that were popped together."""

    consumer_group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    retry: str = field(name="r", default="0")
    start_offset: int = field(name="so", default=0)
    queue_id: int = field(name="q", default=0)
    revive_queue_id: int = field(name="rq", default=0)
    pop_time: int = field(name="pt", default=0)
    invisible_time: int = field(name="it", default=0)
    bit_set: bytes = field(name="b", default=b"")
    """Bit n of byte n // 8, counted from its lowest, is for offset ``start_offset`` + n."""


class BatchAckMessageRequestBody(Body, kw_only=True):
    """BATCH_ACK_MESSAGE (200151)."""

    broker_name: str = ""
    acks: list[BatchAck] = field(default_factory=list)
