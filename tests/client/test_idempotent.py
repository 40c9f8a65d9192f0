"""Redelivered messages are applied once, for each way of consuming."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import create_async_engine

from cometmq.client import (
    ClientInstance,
    ConsumedInOrder,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client.idempotent import (
    AsyncSqliteTransaction,
    Idempotent,
    SqliteMarks,
    SqliteTransaction,
)
from cometmq.client.idempotent.sqlalchemy import AsyncSqlTransaction, SqlAlchemyMarks
from support.clients.consumer_inputs import from_the_first

ORDERS = [f"order-{n}" for n in range(20)]
CAME_S = 120.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE bookings (name TEXT)")
    connection.close()
    return tmp_path / "shop.db"


@pytest.fixture
def marks(path: Path) -> Iterator[SqliteMarks]:
    with SqliteMarks(path) as store:
        yield store


def booked(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(name for (name,) in connection.execute("SELECT name FROM bookings"))


def book(message: StoredMessage, transaction: SqliteTransaction) -> None:
    transaction.execute("INSERT INTO bookings VALUES (?)", [message.keys[0]])


async def book_in_loop(message: StoredMessage, transaction: AsyncSqliteTransaction) -> None:
    await transaction.execute("INSERT INTO bookings VALUES (?)", [message.keys[0]])


async def send_twice(instance: ClientInstance, topic: str) -> None:
    async with Producer(instance=instance, group="shop") as producer:
        for order in ORDERS * 2:
            await producer.send(Message(topic=topic, body=b"a hat", keys=[order]), order_key=order)


async def consume(
    instance: ClientInstance, topic: str, group: str, handler: Any, count: int, **how: Any
) -> None:
    """Consume until the handler has ended so many times without an exception."""
    ended = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    async def awaited(message: StoredMessage) -> Any:
        result = await handler(message)
        ended.release()
        return result

    def plain(message: StoredMessage) -> Any:
        result = handler(message)
        loop.call_soon_threadsafe(ended.release)
        return result

    is_awaited = inspect.iscoroutinefunction(type(handler).__call__)
    async with PushConsumer(
        instance=instance,
        handler=awaited if is_awaited else plain,
        **from_the_first(group, topic),
        **how,
    ):
        async with asyncio.timeout(CAME_S):
            for _ in range(count):
                await ended.acquire()


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
@pytest.mark.parametrize("handle", [book, book_in_loop], ids=["plain", "awaited"])
async def test_messages_that_come_twice_are_booked_once(
    instance: ClientInstance,
    queues: list[MessageQueue],
    group: str,
    path: Path,
    marks: SqliteMarks,
    handle: Any,
    ordered: bool,
) -> None:
    topic = queues[0].topic
    await send_twice(instance, topic)
    once = Idempotent(handle, store=marks, group=group)

    await consume(instance, topic, group, once, 2 * len(ORDERS), ordered=ordered)

    assert booked(path) == Counter(ORDERS)


async def test_messages_that_come_twice_are_booked_once_by_sqlalchemy(
    instance: ClientInstance, queues: list[MessageQueue], group: str, path: Path
) -> None:
    topic = queues[0].topic
    await send_twice(instance, topic)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.begin() as connection:
        await connection.run_sync(SqlAlchemyMarks.create_table)

    async def insert(message: StoredMessage, transaction: AsyncSqlTransaction) -> None:
        statement = sql.text("INSERT INTO bookings VALUES (:name)")
        await transaction.connection.execute(statement, {"name": message.keys[0]})

    once = Idempotent(insert, store=SqlAlchemyMarks(engine), group=group)
    await consume(instance, topic, group, once, 2 * len(ORDERS), ordered=True)
    await engine.dispose()

    assert booked(path) == Counter(ORDERS)


async def test_suspended_message_is_booked_when_it_comes_again(
    instance: ClientInstance,
    queues: list[MessageQueue],
    group: str,
    path: Path,
    marks: SqliteMarks,
) -> None:
    """Asking for a message again takes its mark back, too."""
    async with Producer(instance=instance, group="shop") as producer:
        await producer.send(Message(topic=queues[0].topic, body=b"a hat", keys=["order-1"]))
    tries = iter([ConsumedInOrder.SUSPEND, None])

    async def hesitate(message: StoredMessage, transaction: AsyncSqliteTransaction) -> object:
        await book_in_loop(message, transaction)
        return next(tries)

    once = Idempotent(hesitate, store=marks, group=group)
    await consume(instance, queues[0].topic, group, once, 2, ordered=True, suspend_ms=10)

    assert booked(path) == Counter(["order-1"])


async def test_message_without_key_comes_again_and_says_why(
    instance: ClientInstance,
    queues: list[MessageQueue],
    group: str,
    marks: SqliteMarks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, failed = queues[0].topic, asyncio.Event()
    async with Producer(instance=instance, group="shop") as producer:
        receipt = await producer.send(Message(topic=topic, body=b"a hat"))
    once = Idempotent(book_in_loop, store=marks, group=group)

    async def handle(message: StoredMessage) -> None:
        try:
            await once(message)
        except Exception:
            failed.set()
            raise

    async with PushConsumer(instance=instance, handler=handle, **from_the_first(group, topic)):
        async with asyncio.timeout(CAME_S):
            await failed.wait()

    assert f"message {receipt.message_id} has no key" in caplog.text
