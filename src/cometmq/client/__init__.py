"""The asyncio client: send messages, consume them, manage topics and groups."""

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.queue_offsets import QueueBounds
from cometmq.client._connection.signing import Credentials, Signer
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client._sending.queue_picker import QueueSelector
from cometmq.client.admin import AdminClient, Progress, Track, TrackKind
from cometmq.client.allocation import (
    AllocationError,
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfiguration,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)
from cometmq.client.errors import (
    BackPressureError,
    ClientClosedError,
    ClientError,
    ConsumeLater,
    KeyMissingError,
    NameServerError,
    NotAssignedError,
    OffsetRangeError,
    QueueNotFoundError,
    ReceiptExpiredError,
    ReplyError,
    ReplyTimeoutError,
    SendAttempt,
    SendFailedError,
    SendTimeoutError,
    TopicNotFoundError,
    WrongModeError,
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
    TransactionListener,
)
from cometmq.client.hooks import (
    ConsumeEnd,
    ConsumeHook,
    DeliveryContext,
    EndContext,
    EndTransactionHook,
    FilterHook,
    ForbiddenHook,
    SendContext,
    SendHook,
    SendKind,
)
from cometmq.client.offsets import OffsetStore, StartFrom
from cometmq.client.pop_consumer import PopConsumer
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.settings import (
    ClientSettings,
    PopSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    SimpleSettings,
)
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.client.transactions import TransactionProducer, TransactionReceipt
from cometmq.model.errors import (
    CometError,
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    RemotingError,
    ResponseError,
)
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting import OutgoingCall, RpcHook

__all__ = [
    # who sends, consumes and manages
    "Producer",
    "TransactionProducer",
    "TransactionReceipt",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "SimpleConsumer",
    "AdminClient",
    "Progress",
    "Track",
    "TrackKind",
    "ClientInstance",
    # what is sent and consumed
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
    # what an application gives to be called
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
    # how a group divides its queues, and where it keeps its place
    "AllocationStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ConsistentHash",
    "ByConfiguration",
    "MachineRoom",
    "MachineRoomNearby",
    "OffsetStore",
    # what may watch
    "SendHook",
    "SendContext",
    "SendKind",
    "ForbiddenHook",
    "ConsumeHook",
    "DeliveryContext",
    "ConsumeEnd",
    "FilterHook",
    "EndTransactionHook",
    "EndContext",
    # what sees every request of a client
    "RpcHook",
    "OutgoingCall",
    "Signer",
    "Credentials",
    # what can be set
    "ClientSettings",
    "ProducerSettings",
    "PushSettings",
    "PopSettings",
    "PullSettings",
    "SimpleSettings",
    # what can go wrong
    "CometError",
    "ConfigError",
    "ClientError",
    "ClientClosedError",
    "TopicNotFoundError",
    "QueueNotFoundError",
    "BackPressureError",
    "WrongModeError",
    "NotAssignedError",
    "OffsetRangeError",
    "ReceiptExpiredError",
    "AllocationError",
    "KeyMissingError",
    "ReplyError",
    "ReplyTimeoutError",
    "ConsumeLater",
    "NameServerError",
    "SendFailedError",
    "SendTimeoutError",
    "SendAttempt",
    "InvalidMessageError",
    "InvalidNameError",
    "ResponseError",
    "RemotingError",
]
