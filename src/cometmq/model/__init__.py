"""The domain model: messages, queues, topics, groups, flags, offsets and errors."""

from cometmq.model.errors import (
    CometError,
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    ProtocolError,
    RemotingError,
    ResponseError,
    StoreError,
)
from cometmq.model.flags import PullSysFlag, SysFlag, TopicSysFlag
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import Perm, TopicConfig

__all__ = [
    "Message",
    "StoredMessage",
    "MessageQueue",
    "TopicConfig",
    "SubscriptionGroupConfig",
    "Perm",
    "SysFlag",
    "PullSysFlag",
    "TopicSysFlag",
    "QueueOffset",
    "LogOffset",
    "CometError",
    "ConfigError",
    "InvalidMessageError",
    "InvalidNameError",
    "ProtocolError",
    "RemotingError",
    "ResponseError",
    "StoreError",
]
