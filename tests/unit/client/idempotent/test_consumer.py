"""A handler acts once for each key, and its writes share one transaction with the mark."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cometmq.client._callbacks import Caller
from cometmq.client._consuming.handler_calls import CallLimits, HandlerCalls
from cometmq.client.errors import KeyMissingError
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder
from cometmq.client.idempotent import (
    AsyncSqliteTransaction,
    Idempotent,
    SqliteMarks,
    SqliteTransaction,
    TransactionEndedError,
    first_key,
)
from cometmq.client.idempotent.consumer import FairLock
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from support.checks.cancellation import cancel_at_every_await
from support.clients.consumer_inputs import stored

BOOK = "INSERT INTO bookings VALUES (?)"


def message(key: str = "order-1", topic: str = "orders", **properties: str) -> StoredMessage:
    keys = {"KEYS": key} if key else {}
    return stored(7, body=key.encode(), topic=topic, **keys, UNIQ_KEY="the-id", **properties)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE bookings (name TEXT)")
    connection.close()
    return tmp_path / "shop.db"


@pytest.fixture
def marks(path: Path) -> Iterator[SqliteMarks]:
    with SqliteMarks(path, timeout=60) as store:
        yield store


def rows(path: Path, table: str = "bookings") -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [str(row[0]) for row in connection.execute(f"SELECT * FROM {table}")]


def book(message: StoredMessage, transaction: SqliteTransaction) -> None:
    transaction.execute(BOOK, [message.keys[0]])


async def book_in_loop(message: StoredMessage, transaction: AsyncSqliteTransaction) -> None:
    await transaction.execute(BOOK, [message.keys[0]])


def test_plain_handler_writes_once_when_a_message_comes_twice(
    path: Path, marks: SqliteMarks
) -> None:
    handler = Idempotent(book, store=marks, group="g")

    results = [handler(message()), handler(message()), handler(message("order-2"))]

    assert (results, rows(path)) == ([None] * 3, ["order-1", "order-2"])


async def test_async_handler_writes_once_when_a_message_comes_twice(
    path: Path, marks: SqliteMarks
) -> None:
    handler = Idempotent(book_in_loop, store=marks, group="g")

    await handler(message())
    await handler(message())

    assert rows(path) == ["order-1"]


async def test_async_handler_writes_once_when_duplicates_come_at_the_same_time(
    path: Path, marks: SqliteMarks
) -> None:
    handler = Idempotent(book_in_loop, store=marks, group="g")

    await asyncio.gather(*(handler(message(f"order-{n % 5}")) for n in range(40)))

    assert sorted(rows(path)) == [f"order-{n}" for n in range(5)]


def test_threads_write_once_when_duplicates_come_at_the_same_time(
    path: Path, marks: SqliteMarks
) -> None:
    handler = Idempotent(book, store=marks, group="g")
    threads = [
        threading.Thread(target=handler, args=(message(f"order-{n % 3}"),)) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(rows(path)) == ["order-0", "order-1", "order-2"]


def test_two_stores_on_one_file_write_once(path: Path, marks: SqliteMarks) -> None:
    """As two processes do."""
    with SqliteMarks(path) as other:
        Idempotent(book, store=marks, group="g")(message())
        Idempotent(book, store=other, group="g")(message())

    assert rows(path) == ["order-1"]


FORKING = """
import asyncio, os, sys
from cometmq.client.idempotent import SqliteMarks

marks = SqliteMarks(sys.argv[1])

async def mark(key):
    async with marks.transaction() as transaction:
        return await transaction.mark("g", key)

print(asyncio.run(mark("a")), flush=True)
child = os.fork()
if child == 0:
    print([asyncio.run(mark(key)) for key in "ab"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(asyncio.run(mark("b")), flush=True)
marks.close()
"""


def test_child_process_opens_the_file_anew(path: Path) -> None:
    """The parent's thread, which does its work, is not there in a child."""
    # Python 3.12 and later warn of a fork beside threads, which is what this test is about.
    quiet = ("-W", "ignore::DeprecationWarning")
    command = [sys.executable, *quiet, "-c", FORKING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("True\n[False, True]\nFalse\n", "")


def test_each_group_acts_for_itself(path: Path, marks: SqliteMarks) -> None:
    for group in ("one", "two"):
        Idempotent(book, store=marks, group=group)(message())

    assert rows(path) == ["order-1", "order-1"]


def test_nothing_is_kept_when_the_handler_raises(path: Path, marks: SqliteMarks) -> None:
    def fail(message: StoredMessage, transaction: SqliteTransaction) -> None:
        book(message, transaction)
        raise RuntimeError("no stock")

    with pytest.raises(RuntimeError, match="no stock"):
        Idempotent(fail, store=marks, group="g")(message())

    assert (rows(path), rows(path, "cometmq_marks")) == ([], [])
    Idempotent(book, store=marks, group="g")(message())
    assert rows(path) == ["order-1"]


async def test_nothing_is_kept_when_an_async_handler_raises(path: Path, marks: SqliteMarks) -> None:
    async def fail(message: StoredMessage, transaction: AsyncSqliteTransaction) -> None:
        await book_in_loop(message, transaction)
        raise RuntimeError("no stock")

    with pytest.raises(RuntimeError, match="no stock"):
        await Idempotent(fail, store=marks, group="g")(message())

    assert (rows(path), rows(path, "cometmq_marks")) == ([], [])


@pytest.mark.parametrize(
    "answer", [Consumed.LATER, ConsumedInOrder.SUSPEND, ConsumedInOrder.ROLLBACK]
)
def test_nothing_is_kept_when_the_handler_wants_the_message_again(
    path: Path, marks: SqliteMarks, answer: object
) -> None:
    def later(message: StoredMessage, transaction: SqliteTransaction) -> object:
        book(message, transaction)
        return answer

    assert Idempotent(later, store=marks, group="g")(message()) is answer
    assert (rows(path), rows(path, "cometmq_marks")) == ([], [])


def test_success_is_given_on(path: Path, marks: SqliteMarks) -> None:
    def succeed(message: StoredMessage, transaction: SqliteTransaction) -> object:
        book(message, transaction)
        return Consumed.SUCCESS

    assert Idempotent(succeed, store=marks, group="g")(message()) is Consumed.SUCCESS
    assert rows(path) == ["order-1"]


def test_handler_that_commits_by_itself_is_told(path: Path, marks: SqliteMarks) -> None:
    def commit(message: StoredMessage, transaction: SqliteTransaction) -> None:
        transaction.connection.commit()

    with pytest.raises(TransactionEndedError, match="ended the transaction"):
        Idempotent(commit, store=marks, group="g")(message())


def test_plain_function_that_gives_a_coroutine_is_refused(path: Path, marks: SqliteMarks) -> None:
    async def work() -> None: ...

    coroutine = work()
    with pytest.raises(TypeError, match="not awaited: make the handler an async def"):
        Idempotent(lambda m, t: coroutine, store=marks, group="g")(message())
    coroutine.close()
    assert rows(path, "cometmq_marks") == []


def test_generator_function_is_refused(marks: SqliteMarks) -> None:
    def lines(message: StoredMessage, transaction: SqliteTransaction) -> Iterator[None]:
        yield

    with pytest.raises(ConfigError, match="'lines' is a generator function"):
        Idempotent(lines, store=marks, group="g")


async def test_cancelled_handler_leaves_nothing_and_the_store_usable(
    path: Path, marks: SqliteMarks
) -> None:
    entered = asyncio.Event()

    async def wait(message: StoredMessage, transaction: AsyncSqliteTransaction) -> None:
        await book_in_loop(message, transaction)
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Idempotent(wait, store=marks, group="g")(message()))
    await asyncio.wait_for(entered.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (rows(path), rows(path, "cometmq_marks")) == ([], [])
    await Idempotent(book_in_loop, store=marks, group="g")(message())
    assert rows(path) == ["order-1"]


async def test_store_stays_usable_and_each_key_is_booked_once_when_cancelled_anywhere(
    path: Path, marks: SqliteMarks
) -> None:
    handler, numbers = Idempotent(book_in_loop, store=marks, group="g"), itertools.count()
    keys: list[str] = []

    def make() -> Coroutine[Any, Any, object]:
        keys.append(f"order-{next(numbers)}")
        return handler(message(keys[-1]))

    async def check() -> None:
        async with asyncio.timeout(60):
            await handler(message(keys[-1]))
        assert rows(path) == keys

    assert await cancel_at_every_await(make, check) >= 8


async def test_turn_is_given_on_when_the_one_who_waits_for_it_is_cancelled() -> None:
    turns = FairLock()
    turns.wait(1)
    waiting = [asyncio.create_task(turns.wait_in_loop(60)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    turns.give_back()
    await asyncio.wait_for(waiting[1], 60)
    turns.give_back()
    await asyncio.wait_for(waiting[2], 60)
    turns.give_back()

    turns.wait(0.01)
    assert waiting[0].cancelled()


async def test_waiting_for_the_store_is_bounded(path: Path) -> None:
    with SqliteMarks(path, timeout=60) as marks:
        async with marks.transaction():
            marks._timeout = 0.05
            with pytest.raises(TimeoutError, match="the database was busy"):
                await Idempotent(book_in_loop, store=marks, group="g")(message())
            marks._timeout = 60
        await Idempotent(book_in_loop, store=marks, group="g")(message())

    assert rows(path) == ["order-1"]


def test_message_without_key_is_refused_by_its_id(path: Path, marks: SqliteMarks) -> None:
    with pytest.raises(KeyMissingError, match="the-id"):
        Idempotent(book, store=marks, group="g")(message(key=""))

    assert rows(path) == []


def test_key_can_be_chosen(path: Path, marks: SqliteMarks) -> None:
    handler = Idempotent(book, store=marks, group="g", key=lambda m: m.properties["state"])

    handler(message(state="paid"))
    handler(message(state="shipped"))

    assert rows(path) == ["order-1", "order-1"]


def test_same_key_in_two_topics_is_two_messages() -> None:
    assert first_key(message(topic="orders")) != first_key(message(topic="payments"))


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retried_message_keeps_its_key(topic: str) -> None:
    again = message(topic=topic, RETRY_TOPIC="orders")

    assert first_key(again) == first_key(message())


def test_store_without_the_handlers_way_is_refused() -> None:
    class OnlyPlain:
        def transaction(self) -> Any:
            return contextlib.closing(io.BytesIO())

    with pytest.raises(ConfigError, match="OnlyPlain has no transactions for `async with`"):
        Idempotent(book_in_loop, store=OnlyPlain(), group="g")


@pytest.mark.parametrize("handle", [book, book_in_loop], ids=["plain", "async"])
async def test_group_of_the_consumer_is_used_if_none_is_given(
    path: Path, marks: SqliteMarks, handle: Any
) -> None:
    """Each group applies a message for itself, with one object in the consumers of both."""
    once = Idempotent(handle, store=marks)
    context = ConsumeContext("", message().queue)

    for group in ("g", "g", "other"):
        calls = HandlerCalls(once, None, group=group, client_id="c", limits=CallLimits(1))
        ended = await calls.run([message()], context)
        calls.end(left=0)
        assert ended.error is None

    assert rows(path) == ["order-1", "order-1"]


def test_group_that_is_given_is_used_in_consumers_of_other_groups(
    path: Path, marks: SqliteMarks
) -> None:
    """So that a renamed group keeps its marks."""
    once = Idempotent(book, store=marks, group="g")

    once(message())
    once.for_group("renamed")(message())

    assert rows(path) == ["order-1"]


@pytest.mark.parametrize("handle", [book, book_in_loop], ids=["plain", "async"])
async def test_call_without_a_group_is_refused(path: Path, marks: SqliteMarks, handle: Any) -> None:
    once = Idempotent(handle, store=marks)

    with pytest.raises(ConfigError, match="has no group"):
        await Caller(1, "t").call(once, message())

    assert rows(path) == []


def test_marks_in_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="path of a file"):
        SqliteMarks(":memory:")


def test_old_marks_are_forgotten(path: Path, marks: SqliteMarks) -> None:
    handler = Idempotent(book, store=marks, group="g")
    handler(message())

    assert (marks.forget(older_than_s=60), marks.forget(older_than_s=-60)) == (0, 1)


def test_commits_are_synced_to_the_disk(marks: SqliteMarks) -> None:
    with marks.transaction() as transaction:
        modes = [transaction.execute(f"PRAGMA {name}") for name in ("synchronous", "journal_mode")]

    assert modes == [[(2,)], [("wal",)]]
