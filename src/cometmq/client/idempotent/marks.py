"""What a store of marks is: a mark says that a group has acted on the message with a key.

A mark and what the application writes for the message share one transaction of one database. So
either both are there afterwards or neither is, whoever dies and whenever.

Source: ours.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from cometmq.model.errors import CometError


class TransactionEndedError(CometError):
    """A handler ended the store's transaction; its mark and its writes may differ.

    Args:
        where: the database.
    """

    def __init__(self, where: object) -> None:
        super().__init__(
            f"the handler ended the transaction of {where} itself; its mark and its writes may be "
            "apart now"
        )


class Transaction(Protocol):
    """One database transaction, for plain handlers."""

    def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""


class AsyncTransaction(Protocol):
    """One database transaction, for ``async def`` handlers."""

    async def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""


class MarkStore(Protocol):
    """Stores marks in the database that the application writes to."""

    def transaction(
        self,
    ) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Return a transaction that starts when it is entered.

        ``with`` returns a `Transaction`, ``async with`` an `AsyncTransaction`. Leaving it commits;
        leaving it with an exception rolls back. A store may offer one way or both.
        """
