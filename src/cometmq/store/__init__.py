"""The store: messages on disk, in RocketMQ's files.

`MessageStore` is its interface. It uses no connection and no event loop.
"""

from cometmq.store.appender import Appended, AppendedBatch
from cometmq.store.config import SMALL_LOG_FILE_BYTES, StoreSettings
from cometmq.store.errors import (
    NoRecordBeginsError,
    SegmentCreateError,
    SegmentNotReadyError,
    StoreCorruptError,
    StoreLockedError,
    StoreUnavailableError,
)
from cometmq.store.lifecycle.loader import kept_log_file_bytes
from cometmq.store.log.commit_log import CONFIRMS_ALL
from cometmq.store.log.new_record import NewRecord
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_reader import GetResult, GetStatus, Matcher, TagMatcher
from cometmq.store.replica import Replica, ReplicaError

__all__ = [
    "MessageStore",
    "StoreSettings",
    "SMALL_LOG_FILE_BYTES",
    "kept_log_file_bytes",
    "CONFIRMS_ALL",
    "Appended",
    "AppendedBatch",
    "NewRecord",
    "GetResult",
    "GetStatus",
    "Matcher",
    "TagMatcher",
    "Replica",
    "ReplicaError",
    "NoRecordBeginsError",
    "StoreUnavailableError",
    "SegmentCreateError",
    "SegmentNotReadyError",
    "StoreCorruptError",
    "StoreLockedError",
]
