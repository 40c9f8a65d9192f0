"""The asyncio client: send messages, consume them, manage topics and groups.

What fewer applications need is in submodules: `settings`, `errors` (all of them), `handlers`,
`hooks`, `filters`, `allocation`, `offsets`, `subscription_check`, `admin`, `blocking`,
`idempotent`, `retry_policies`, `memory_producer`, `telemetry`, `trace`.
"""

from typing import TYPE_CHECKING

from cometmq.client._connection.broker_calls import QueueBounds
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client.admin import AdminClient
from cometmq.client.errors import (
    BackPressureError,
    ClientClosedError,
    ClientError,
    CometError,
    ConfigError,
    ConnectError,
    ConsumeLater,
    InvalidMessageError,
    NameServerError,
    ReceiptExpiredError,
    RemotingError,
    ReplyTimeoutError,
    ResponseError,
    SendFailedError,
    SendTimeoutError,
    StoreError,
    TopicNotFoundError,
)
from cometmq.client.filters import Filter
from cometmq.client.handlers import (
    BatchHandler,
    ConsumeContext,
    Consumed,
    ConsumedInOrder,
    LocalState,
    MessageHandler,
    OrderedBatchHandler,
    OrderedContext,
    QueueListener,
    QueueSelector,
    TransactionListener,
)
from cometmq.client.offsets import StartFrom
from cometmq.client.pop_consumer import PopConsumer
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.client.transactions import TransactionProducer, TransactionReceipt
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue

__all__ = [
    # clients
    "Producer",
    "TransactionProducer",
    "TransactionReceipt",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "SimpleConsumer",
    "AdminClient",
    "ClientInstance",
    # messages, results and filters
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
    # handlers and listeners
    "MessageHandler",
    "BatchHandler",
    "OrderedBatchHandler",
    "Consumed",
    "ConsumedInOrder",
    "ConsumeContext",
    "OrderedContext",
    "QueueListener",
    "TransactionListener",
    "LocalState",
    # errors
    "CometError",
    "ConfigError",
    "ClientError",
    "ClientClosedError",
    "TopicNotFoundError",
    "BackPressureError",
    "SendFailedError",
    "SendTimeoutError",
    "ReplyTimeoutError",
    "ReceiptExpiredError",
    "InvalidMessageError",
    "ResponseError",
    "RemotingError",
    "ConnectError",
    "NameServerError",
    "StoreError",
    "ConsumeLater",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from cometmq.model.missing_names import missing_name

        raise missing_name(__name__, name)
