"""What a store of marks is: a mark says that a group has acted on the message with a key.

A mark and what the application writes for the message share one transaction of one database. So
either both are there afterwards or neither is, whoever dies and whenever.

Source: ours.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol


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
