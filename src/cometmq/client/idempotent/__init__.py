"""Applies the writes of a handler exactly once for each key, even if messages are redelivered."""

from cometmq.client.idempotent.consumer import (
    AsyncTransaction,
    Idempotent,
    MarkStore,
    Transaction,
    TransactionEndedError,
    first_key,
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
