"""One at a time, across threads and event loops: whoever comes asks for a turn and waits for it.

Turns are given in the order they were asked for. Source: ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong


class Turns:
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
