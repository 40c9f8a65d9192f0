"""The asyncio client: send messages, read queues, manage topics."""

from cometmq.client.admin import AdminClient
from cometmq.client.config import ClientSettings, ProducerSettings, PullSettings
from cometmq.client.errors import (
    ClientClosedError,
    ClientError,
    NameServerError,
    NotAssignedError,
    OffsetRangeError,
    QueueNotFoundError,
    SendAttempt,
    SendFailedError,
    SendTimeoutError,
    TopicNotFoundError,
    WrongModeError,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer, StartFrom
from cometmq.client.pulling import PullResult, PullStatus
from cometmq.client.queue_choice import QueueSelector
from cometmq.client.queue_offsets import QueueBounds
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.subscription import Filter
from cometmq.model.errors import InvalidMessageError, InvalidNameError, RemotingError, ResponseError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue

__all__ = [
    "Producer",
    "PullConsumer",
    "AdminClient",
    "ClientInstance",
    "Message",
    "StoredMessage",
    "MessageQueue",
    "SendReceipt",
    "SendStatus",
    "PullResult",
    "PullStatus",
    "QueueBounds",
    "QueueSelector",
    "Filter",
    "StartFrom",
    "ClientSettings",
    "ProducerSettings",
    "PullSettings",
    "ClientError",
    "ClientClosedError",
    "TopicNotFoundError",
    "QueueNotFoundError",
    "WrongModeError",
    "NotAssignedError",
    "OffsetRangeError",
    "NameServerError",
    "SendFailedError",
    "SendTimeoutError",
    "SendAttempt",
    "InvalidMessageError",
    "InvalidNameError",
    "ResponseError",
    "RemotingError",
]
