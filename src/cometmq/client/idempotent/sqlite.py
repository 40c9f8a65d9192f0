"""Marks in a SQLite file, in which the application keeps its own tables too.

    cometmq_marks := consumer_group | message_key | marked_at_ms      unique by the first two

One connection to the file, in write-ahead mode and synced at each commit; one transaction at a
time, since SQLite has one writer. Plain handlers use the connection in their own thread. For
``async def`` handlers a thread of the store's own does the work, so that the event loop never waits
for the disk. Other processes may use the file as well: SQLite lets one write at a time.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from cometmq.client.idempotent.consumer import FairLock, TransactionEndedError
from cometmq.model.errors import ConfigError
from cometmq.model.times import now_ms
from cometmq.remoting.tasks import shielded

T = TypeVar("T")

CREATE = """
CREATE TABLE IF NOT EXISTS cometmq_marks (
    consumer_group TEXT NOT NULL,
    message_key TEXT NOT NULL,
    marked_at_ms INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, message_key)
) WITHOUT ROWID"""
MARK = "INSERT INTO cometmq_marks VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
FORGET = "DELETE FROM cometmq_marks WHERE marked_at_ms < ?"


class SqliteTransaction:
    """The transaction that a plain handler receives."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        """Use it as it is, but neither commit nor roll back: the store does that."""

    def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""
        return _mark(self.connection, group, key)

    def execute(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """Run one statement and return its rows."""
        return self.connection.execute(sql, tuple(parameters)).fetchall()


class AsyncSqliteTransaction:
    """The transaction that an ``async def`` handler receives."""

    def __init__(self, marks: SqliteMarks) -> None:
        self._marks = marks

    async def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""
        return await self.run(lambda connection: _mark(connection, group, key))

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """Run one statement and return its rows."""
        values = tuple(parameters)
        return await self.run(lambda connection: connection.execute(sql, values).fetchall())

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` with the connection in the store's thread, and return its result.

        ``work`` must neither commit nor roll back. Cancelling stops the waiting; the call ends, and
        then the transaction is rolled back.
        """
        return await asyncio.wrap_future(self._marks._submit(lambda: work(self._marks._open())))


class SqliteMarks:
    """Stores marks in a SQLite file.

    Args:
        path: the file; it and its table are created if they are missing.
        timeout: seconds to wait for another transaction, of this or another process.

    The first transaction opens the file; `close` closes it. A child process opens it again. Every
    SQLite error rolls the transaction back and is raised to the caller.

    Example: ``handler=Idempotent(book, store=SqliteMarks("shop.db"))``
    """

    def __init__(self, path: str | Path, *, timeout: float = 30.0) -> None:
        if str(path) in (":memory:", ""):
            raise ConfigError(
                "marks in memory are lost with the process: expected the path of a file"
            )
        self._path = Path(path).expanduser()
        self._timeout = timeout
        self._inherited: list[object] = []
        """Connections of the parent that a fork has copied: never used and never closed."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._turns = FairLock()
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    def transaction(self) -> _Entered:
        """Return a transaction for ``with`` or ``async with``."""
        if self._process != os.getpid():
            self._inherited += [self._connection, self._thread]
            self._begin_anew()
        return _Entered(self)

    def forget(self, older_than_s: float) -> int:
        """Delete older marks, and return their number.

        Args:
            older_than_s: age in seconds. Keep marks longer than brokers keep messages
                (``fileReservedTime``, three days by default).
        """
        limit_ms = now_ms() - int(older_than_s * 1000)
        with self.transaction() as transaction:
            return transaction.connection.execute(FORGET, (limit_ms,)).rowcount

    def close(self) -> None:
        """Close the file after the open transaction; a later transaction opens it again."""
        self._turns.wait(self._timeout)
        try:
            with self._guard:
                connection, self._connection = self._connection, None
                thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown(wait=True)
            if connection is not None:
                connection.close()
        finally:
            self._turns.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        """Return the connection; call this only while holding the lock."""
        if self._connection is None:
            made = sqlite3.connect(
                self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            try:
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = FULL")
                made.execute(CREATE)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection

    def _begin(self) -> sqlite3.Connection:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _end(self, *, commit: bool) -> None:
        connection = self._connection
        if connection is None or not connection.in_transaction:
            if commit:
                raise TransactionEndedError(self._path)
            return
        try:
            connection.execute("COMMIT" if commit else "ROLLBACK")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._guard:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="cometmq-marks")
            return self._thread.submit(work)


class _Entered:
    """One transaction of a store, entered either way, once."""

    def __init__(self, marks: SqliteMarks) -> None:
        self._marks = marks

    def __enter__(self) -> SqliteTransaction:
        self._marks._turns.wait(self._marks._timeout)
        try:
            return SqliteTransaction(self._marks._begin())
        except BaseException:
            self._marks._turns.give_back()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._marks._end(commit=error is None)
        finally:
            self._marks._turns.give_back()

    async def __aenter__(self) -> AsyncSqliteTransaction:
        await self._marks._turns.wait_in_loop(self._marks._timeout)
        begun = self._marks._submit(self._marks._begin)
        try:
            await shielded(asyncio.wrap_future(begun))
        except BaseException:
            self._finish(commit=False)
            raise
        return AsyncSqliteTransaction(self._marks)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await shielded(asyncio.wrap_future(self._finish(commit=error is None)))

    def _finish(self, *, commit: bool) -> Future[None]:
        """End the transaction in the store's thread, after all earlier calls."""
        ended = self._marks._submit(lambda: self._marks._end(commit=commit))
        ended.add_done_callback(lambda _: self._marks._turns.give_back())
        return ended


def _mark(connection: sqlite3.Connection, group: str, key: str) -> bool:
    return connection.execute(MARK, (group, key, now_ms())).rowcount == 1
