"""Marks in PostgreSQL: duplicates wait for each other, and errors end a transaction."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cometmq.client.idempotent import Idempotent
from cometmq.client.idempotent.sqlalchemy import (
    AsyncSqlTransaction,
    SqlAlchemyMarks,
    SqlTransaction,
)
from cometmq.model.message import StoredMessage
from support.processes.postgres import postgres, programs
from unit.client.idempotent.test_consumer import message

pytest.importorskip("asyncpg")
pytest.importorskip("pg8000")
PROGRAMS = programs()
pytestmark = [
    pytest.mark.needs("postgres"),
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed"),
]

INSERT = sql.text("INSERT INTO bookings VALUES (:name)")
ORDERS = [f"order-{n}" for n in range(5)]
TIMES = 8


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    assert PROGRAMS is not None
    with postgres(PROGRAMS) as running:
        yield running


@pytest.fixture
def engine(place: str) -> Iterator[sql.Engine]:
    made = sql.create_engine(f"postgresql+pg8000://{place}", pool_size=TIMES)
    with made.begin() as connection:
        SqlAlchemyMarks.create_table(connection)
        connection.execute(sql.text("CREATE TABLE bookings (name TEXT)"))
    yield made
    with made.begin() as connection:
        connection.execute(sql.text("DROP TABLE bookings, cometmq_marks"))
    made.dispose()


@pytest.fixture
async def async_engine(place: str, engine: sql.Engine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(f"postgresql+asyncpg://{place}", pool_size=TIMES)
    yield made
    await made.dispose()


def booked(engine: sql.Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.scalars(sql.text("SELECT name FROM bookings")))


def book(message: StoredMessage, transaction: SqlTransaction) -> None:
    transaction.connection.execute(INSERT, {"name": message.keys[0]})


async def book_in_loop(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
    await transaction.connection.execute(INSERT, {"name": message.keys[0]})
    await asyncio.sleep(0.01)


async def test_duplicates_that_come_at_the_same_time_are_booked_once(
    engine: sql.Engine, async_engine: AsyncEngine
) -> None:
    handler = Idempotent(book_in_loop, store=SqlAlchemyMarks(async_engine), group="g")

    await asyncio.gather(*(handler(message(order)) for order in ORDERS * TIMES))

    assert booked(engine) == Counter(ORDERS)


def test_duplicates_in_threads_are_booked_once(engine: sql.Engine) -> None:
    handler = Idempotent(book, store=SqlAlchemyMarks(engine), group="g")

    def work() -> None:
        for order in ORDERS:
            handler(message(order))

    threads = [threading.Thread(target=work) for _ in range(TIMES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert booked(engine) == Counter(ORDERS)


async def test_duplicate_books_when_the_first_one_fails_in_the_end(
    engine: sql.Engine, async_engine: AsyncEngine
) -> None:
    """The second insert waits for the first one's end, and goes on when that is a rollback."""
    begun, waiting = asyncio.Event(), asyncio.Event()

    async def fail(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
        await book_in_loop(message, transaction)
        begun.set()
        await waiting.wait()
        raise RuntimeError("no stock")

    store = SqlAlchemyMarks(async_engine)
    first = asyncio.create_task(Idempotent(fail, store=store, group="g")(message()))
    await asyncio.wait_for(begun.wait(), 10)
    second = asyncio.create_task(Idempotent(book_in_loop, store=store, group="g")(message()))
    await until_somebody_waits_for_a_lock(async_engine)
    waiting.set()
    with pytest.raises(RuntimeError):
        await first
    await asyncio.wait_for(second, 10)

    assert booked(engine) == Counter(["order-1"])


async def until_somebody_waits_for_a_lock(engine: AsyncEngine) -> None:
    question = sql.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with asyncio.timeout(60), engine.connect() as connection:
        while not await connection.scalar(question):
            await connection.rollback()
            await asyncio.sleep(0.01)


async def test_nothing_is_kept_when_the_connection_is_cut(
    engine: sql.Engine, async_engine: AsyncEngine
) -> None:
    async def cut(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
        await book_in_loop(message, transaction)
        mine = sql.text("SELECT pg_terminate_backend(pg_backend_pid())")
        await transaction.connection.execute(mine)

    store = SqlAlchemyMarks(async_engine)
    with pytest.raises(DBAPIError):
        await Idempotent(cut, store=store, group="g")(message())
    assert booked(engine) == Counter()

    await Idempotent(book_in_loop, store=store, group="g")(message())
    assert booked(engine) == Counter(["order-1"])
