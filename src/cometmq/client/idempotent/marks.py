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
    """A handler ended the store's transaction itself; its mark and its writes may be apart.

    Args:
        where: the database.
    """

    def __init__(self, where: object) -> None:
        super().__init__(
            f"the handler ended the transaction of {where} itself; its mark and its writes may be "
            "apart now"
        )


class Transaction(Protocol):
    """One transaction of a database, for plain handlers."""

    def mark(self, group: str, key: str) -> bool:
        """Mark the key as acted on by the group; False if it was marked before."""


class AsyncTransaction(Protocol):
    """One transaction of a database, for ``async def`` handlers."""

    async def mark(self, group: str, key: str) -> bool:
        """Mark the key as acted on by the group; False if it was marked before."""


class MarkStore(Protocol):
    """Where marks are kept, beside what the application writes."""

    def transaction(
        self,
    ) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Give a transaction that begins when it is entered, in the way of the handler.

        ``with`` gives a `Transaction`, ``async with`` an `AsyncTransaction`. Leaving without an
        exception commits, leaving with one rolls back. A store may offer either way or both.
        """
