"""What a store of marks is: a mark says that a group has acted on the message with a key.

A mark and what the application writes for the message share one transaction of one database. So
either both are there afterwards or neither is, whoever dies and whenever.

Source: ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
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


class FairLock:
    """Gives one turn at a time; a turn may be given back by any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._taken = False

    def wait(self, timeout: float) -> None:
        """Take a turn in a thread.

        Raises:
            TimeoutError: nobody gave it back within ``timeout`` seconds.
        """
        turn = self._ask()
        try:
            turn.result(timeout)
        except WaitedTooLong:
            self._withdraw(turn)
            raise TimeoutError(
                f"the database was busy with another transaction for {timeout:g} s"
            ) from None
        except BaseException:
            self._withdraw(turn)
            raise

    async def wait_in_loop(self, timeout: float) -> None:
        """Take a turn in an event loop; whoever is cancelled has none.

        Raises:
            TimeoutError: nobody gave it back within ``timeout`` seconds.
        """
        turn = self._ask()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(turn)
        except TimeoutError:
            self._withdraw(turn)
            raise TimeoutError(
                f"the database was busy with another transaction for {timeout:g} s"
            ) from None
        except BaseException:
            self._withdraw(turn)
            raise

    def give_back(self) -> None:
        """End the turn; the next in line has it now."""
        with self._mutex:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._taken = False

    def _ask(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._mutex:
            if self._taken:
                self._waiting.append(turn)
            else:
                self._taken = True
                turn.set_result(None)
        return turn

    def _withdraw(self, turn: Future[None]) -> None:
        if not turn.cancel():  # it came all the same
            self.give_back()
