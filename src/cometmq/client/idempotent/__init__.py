"""Applies the writes of a handler exactly once for each key, even if messages are redelivered."""

from cometmq.client.idempotent.consumer import Idempotent, first_key
from cometmq.client.idempotent.marks import (
    AsyncTransaction,
    MarkStore,
    Transaction,
    TransactionEndedError,
)
from cometmq.client.idempotent.sqlite import (
    AsyncSqliteTransaction,
    SqliteMarks,
    SqliteTransaction,
)

__all__ = [
    "Idempotent",
    "first_key",
    "MarkStore",
    "Transaction",
    "AsyncTransaction",
    "SqliteMarks",
    "SqliteTransaction",
    "AsyncSqliteTransaction",
    "TransactionEndedError",
]
