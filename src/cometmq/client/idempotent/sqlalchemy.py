"""Stores marks in any database that SQLAlchemy supports, beside the application's tables.

    cometmq_marks := mark_id | consumer_group | message_key | marked_at_ms     unique by the first

``mark_id`` is the SHA-256 of group and key, in hexadecimal. Some databases compare texts without
case or trailing blanks, or truncate long ones, and would treat two keys as one. The two names
beside it are for people, and truncated to fit.

Needs ``pip install '.[sql]'`` and a driver of the database.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING

from cometmq.client.idempotent.consumer import TransactionEndedError
from cometmq.model.errors import ConfigError
from cometmq.model.times import now_ms

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import IntegrityError
except ImportError as error:
    raise ConfigError(
        "marks in SQL databases need SQLAlchemy: install CometMQ with the extra 'sql'"
    ) from error

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

NAME_CHARS_MAX = 255

TABLE = sql.Table(
    "cometmq_marks",
    sql.MetaData(),
    sql.Column("mark_id", sql.String(64), primary_key=True),
    sql.Column("consumer_group", sql.String(NAME_CHARS_MAX), nullable=False),
    sql.Column("message_key", sql.String(NAME_CHARS_MAX), nullable=False),
    sql.Column("marked_at_ms", sql.BigInteger, nullable=False, index=True),
)
"""Copy it into the metadata of migrations with ``TABLE.to_metadata(yours)``."""


class SqlTransaction:
    """The transaction that a plain handler receives."""

    def __init__(self, connection: sql.Connection) -> None:
        self.failed = False
        """Whether a mark was there before, so that the transaction is to be rolled back."""
        self.connection = connection
        """Write through it, or through ``Session(bind=transaction.connection)``; the store commits
        and rolls back."""

    def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already.

        After False the transaction is rolled back at its end, with all its writes: some databases
        accept no further statement in it.
        """
        try:
            self.connection.execute(_insert(group, key))
        except IntegrityError:
            self.failed = True
        return not self.failed


class AsyncSqlTransaction:
    """The transaction that an ``async def`` handler receives."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.failed = False
        """Whether a mark was there before, so that the transaction is to be rolled back."""
        self.connection = connection
        """Write through it, or through ``AsyncSession(bind=transaction.connection)``; the store
        commits and rolls back."""

    async def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already.

        After False the transaction is rolled back at its end, with all its writes: some databases
        accept no further statement in it.
        """
        try:
            await self.connection.execute(_insert(group, key))
        except IntegrityError:
            self.failed = True
        return not self.failed


class SqlAlchemyMarks:
    """Stores marks in the database of an engine.

    Args:
        engine: an ``Engine`` for plain handlers, or an ``AsyncEngine`` for ``async def`` ones. Its
            pool limits the number of handlers that write at a time. The caller disposes of it.

    Create the table with `create_table`, or with a migration of your own. Every database error
    rolls the transaction back and is raised to the caller.

    Example: ``SqlAlchemyMarks(create_engine("postgresql+psycopg://localhost/shop"))``
    """

    def __init__(self, engine: sql.Engine | AsyncEngine) -> None:
        self._engine = engine
        self._is_checked = False

    def transaction(
        self,
    ) -> AbstractContextManager[SqlTransaction] | AbstractAsyncContextManager[AsyncSqlTransaction]:
        """Return a transaction for ``with`` or ``async with``, depending on the engine.

        Entering it raises `ConfigError` if the engine is in autocommit mode.
        """
        if isinstance(self._engine, sql.Engine):
            return self._plain(self._engine)
        return self._awaited(self._engine)

    @contextmanager
    def _plain(self, engine: sql.Engine) -> Iterator[SqlTransaction]:
        if not self._is_checked:
            with engine.connect() as connection:
                self._check(connection)
        with engine.connect() as connection, connection.begin() as all_of_it:
            transaction = SqlTransaction(connection)
            yield transaction
            if transaction.failed:
                all_of_it.rollback()
            elif not connection.in_transaction():
                raise TransactionEndedError(engine.url)

    @asynccontextmanager
    async def _awaited(self, engine: AsyncEngine) -> AsyncIterator[AsyncSqlTransaction]:
        if not self._is_checked:
            async with engine.connect() as connection:
                await connection.run_sync(self._check)
        async with engine.connect() as connection, connection.begin() as all_of_it:
            transaction = AsyncSqlTransaction(connection)
            yield transaction
            if transaction.failed:
                await all_of_it.rollback()
            elif not connection.in_transaction():
                raise TransactionEndedError(engine.url)

    def _check(self, connection: sql.Connection) -> None:
        """Roll a mark back, and check that it is gone: engines do not show that they commit."""
        probe = uuid.uuid4().hex
        mine = TABLE.c.mark_id == _digest("", probe)
        connection.execute(_insert("", probe))
        connection.rollback()
        kept = connection.execute(sql.select(TABLE.c.mark_id).where(mine)).first()
        if kept is not None:
            connection.execute(sql.delete(TABLE).where(mine))
            raise ConfigError(
                f"the engine of {connection.engine.url} commits each statement by itself, as with "
                "the isolation level AUTOCOMMIT: marks need its transactions"
            )
        self._is_checked = True

    @staticmethod
    def create_table(connection: sql.Connection) -> None:
        """Create the table if it does not exist; with asyncio, pass this to ``run_sync``."""
        TABLE.create(connection, checkfirst=True)

    @staticmethod
    def forgetting(older_than_s: float) -> sql.Delete:
        """Return the statement that deletes older marks.

        Args:
            older_than_s: age in seconds. Keep marks longer than brokers keep messages
                (``fileReservedTime``, three days by default).
        """
        limit_ms = now_ms() - int(older_than_s * 1000)
        return sql.delete(TABLE).where(TABLE.c.marked_at_ms < limit_ms)


def _insert(group: str, key: str) -> sql.Insert:
    return sql.insert(TABLE).values(
        mark_id=_digest(group, key),
        consumer_group=group[:NAME_CHARS_MAX],
        message_key=key[:NAME_CHARS_MAX],
        marked_at_ms=now_ms(),
    )


def _digest(group: str, key: str) -> str:
    return hashlib.sha256(f"{len(group)} {group} {key}".encode()).hexdigest()
