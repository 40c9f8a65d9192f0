"""Marks beside the application's own tables, in a database that SQLAlchemy speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from cometmq.client.idempotent import Idempotent, TransactionEndedError
from cometmq.client.idempotent.sqlalchemy import (
    TABLE,
    AsyncSqlTransaction,
    SqlAlchemyMarks,
    SqlTransaction,
)
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from unit.client.idempotent.test_consumer import message

WAITS = {"timeout": 60}
"""How many seconds SQLite waits for a lock."""


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"

    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sql.Engine]:
    made = sql.create_engine(f"sqlite:///{tmp_path}/shop.db", connect_args=WAITS)
    with made.begin() as connection:
        Base.metadata.create_all(connection)
        SqlAlchemyMarks.create_table(connection)
        SqlAlchemyMarks.create_table(connection)
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(engine: sql.Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"), connect_args=WAITS)
    yield made
    await made.dispose()


def booked(engine: sql.Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(sql.select(Booking.name).order_by(Booking.name)))


def marks(engine: sql.Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        found = connection.execute(sql.select(TABLE.c.consumer_group, TABLE.c.message_key))
        return [(row[0], row[1]) for row in found]


def book(message: StoredMessage, transaction: SqlTransaction) -> None:
    transaction.connection.execute(sql.insert(Booking).values(name=message.keys[0]))


async def book_in_loop(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
    await transaction.connection.execute(sql.insert(Booking).values(name=message.keys[0]))


def test_plain_handler_writes_once(engine: sql.Engine) -> None:
    handler = Idempotent(book, store=SqlAlchemyMarks(engine), group="g")

    handler(message())
    handler(message())

    assert (booked(engine), marks(engine)) == (["order-1"], [("g", "orders order-1")])


def test_session_of_the_orm_takes_part(engine: sql.Engine) -> None:
    def book_object(message: StoredMessage, transaction: SqlTransaction) -> None:
        with Session(bind=transaction.connection) as session:
            session.add(Booking(name=message.keys[0]))
            session.commit()
        if message.body == b"order-2":
            raise RuntimeError("no stock")

    handler = Idempotent(book_object, store=SqlAlchemyMarks(engine), group="g")
    handler(message())
    handler(message())
    with pytest.raises(RuntimeError):
        handler(message("order-2"))

    assert booked(engine) == ["order-1"]


async def test_async_handler_writes_once(engine: sql.Engine, async_engine: AsyncEngine) -> None:
    handler = Idempotent(book_in_loop, store=SqlAlchemyMarks(async_engine), group="g")

    await handler(message())
    await handler(message())

    assert booked(engine) == ["order-1"]


async def test_async_handlers_write_once_when_duplicates_come_at_the_same_time(
    engine: sql.Engine, async_engine: AsyncEngine
) -> None:
    handler = Idempotent(book_in_loop, store=SqlAlchemyMarks(async_engine), group="g")

    await asyncio.gather(*(handler(message(f"order-{n % 3}")) for n in range(9)))

    assert booked(engine) == ["order-0", "order-1", "order-2"]


def test_nothing_is_kept_when_the_handler_raises(engine: sql.Engine) -> None:
    def fail(message: StoredMessage, transaction: SqlTransaction) -> None:
        book(message, transaction)
        raise RuntimeError("no stock")

    with pytest.raises(RuntimeError):
        Idempotent(fail, store=SqlAlchemyMarks(engine), group="g")(message())

    assert (booked(engine), marks(engine)) == ([], [])


async def test_nothing_is_kept_when_an_async_handler_is_cancelled(
    engine: sql.Engine, async_engine: AsyncEngine
) -> None:
    entered = asyncio.Event()

    async def wait(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
        await book_in_loop(message, transaction)
        entered.set()
        await asyncio.Event().wait()

    handler = Idempotent(wait, store=SqlAlchemyMarks(async_engine), group="g")
    task = asyncio.create_task(handler(message()))
    await asyncio.wait_for(entered.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (booked(engine), marks(engine)) == ([], [])


@pytest.mark.parametrize("keys", [("Order", "order"), ("x" * 300 + "a", "x" * 300 + "b")])
def test_keys_that_a_database_may_confuse_are_told_apart(
    engine: sql.Engine, keys: tuple[str, str]
) -> None:
    handler = Idempotent(book, store=SqlAlchemyMarks(engine), group="g")
    for key in keys:
        handler(message(key))

    with engine.connect() as connection:
        found = list(connection.scalars(sql.select(TABLE.c.mark_id)))
    assert len({digest.lower() for digest in found}) == 2


def test_group_and_key_do_not_run_into_each_other(engine: sql.Engine) -> None:
    store = SqlAlchemyMarks(engine)
    with store.transaction() as transaction:
        assert transaction.mark("a", "b c")
        assert transaction.mark("a b", "c")


def test_old_marks_are_forgotten(engine: sql.Engine) -> None:
    Idempotent(book, store=SqlAlchemyMarks(engine), group="g")(message())

    with engine.begin() as connection:
        kept = connection.execute(SqlAlchemyMarks.forgetting(60)).rowcount
        gone = connection.execute(SqlAlchemyMarks.forgetting(-60)).rowcount
    assert (kept, gone) == (0, 1)


def test_engine_that_commits_by_itself_is_refused(engine: sql.Engine) -> None:
    loose = sql.create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        Idempotent(book, store=SqlAlchemyMarks(loose), group="g")(message())
    loose.dispose()

    assert (booked(engine), marks(engine)) == ([], [])


async def test_async_engine_that_commits_by_itself_is_refused(engine: sql.Engine) -> None:
    url = engine.url.set(drivername="sqlite+aiosqlite")
    loose = create_async_engine(url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        await Idempotent(book_in_loop, store=SqlAlchemyMarks(loose), group="g")(message())
    await loose.dispose()

    assert (booked(engine), marks(engine)) == ([], [])


def test_handler_that_commits_by_itself_is_told(engine: sql.Engine) -> None:
    def commit(message: StoredMessage, transaction: SqlTransaction) -> None:
        transaction.connection.commit()

    with pytest.raises(TransactionEndedError, match="ended the transaction"):
        Idempotent(commit, store=SqlAlchemyMarks(engine), group="g")(message())


def test_async_handler_needs_an_async_engine(engine: sql.Engine) -> None:
    with pytest.raises(ConfigError, match="async def handlers need an asynchronous store"):
        Idempotent(book_in_loop, store=SqlAlchemyMarks(engine), group="g")


async def test_plain_handler_needs_a_plain_engine(async_engine: AsyncEngine) -> None:
    with pytest.raises(ConfigError, match="plain ones a synchronous one"):
        Idempotent(book, store=SqlAlchemyMarks(async_engine), group="g")
