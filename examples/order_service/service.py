"""Takes orders, charges them, ships them and keeps their history.

Each change of an order and its event are one transaction of the database; ``relay`` sends the
events. Run: ``python service.py [name server]``. Ctrl-C or SIGTERM ends it. The database is
``shop.db`` in the current folder.
"""

import asyncio
import signal
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress

import msgspec

from cometmq.client import (
    AdminClient,
    CometError,
    ConsumeLater,
    Producer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.idempotent import Idempotent, SqliteMarks, SqliteTransaction

TOPIC = "shop-orders"
TABLES = """
CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, card TEXT, state TEXT);
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, event BLOB);
CREATE TABLE IF NOT EXISTS history (name TEXT, state TEXT);
"""
Execute = Callable[[str, list[object]], object]
Charge = Callable[[str, str], None]


class Event(msgspec.Struct):
    """A change of an order."""

    id: str
    order: str
    state: str


class BankBusyError(Exception):
    """The bank responds later."""


class UnknownCardError(Exception):
    """The bank does not know the card."""


def change(execute: Execute, order: str, state: str) -> None:
    """Change the state of an order and write the event, in the transaction of the caller."""
    event = msgspec.json.encode(Event(uuid.uuid4().hex, order, state))
    execute("UPDATE orders SET state = ? WHERE name = ?", [state, order])
    execute("INSERT INTO outbox (event) VALUES (?)", [event])


def place(path: str, order: str, card: str) -> None:
    """Take an order. An order of this name raises `sqlite3.IntegrityError`."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO orders VALUES (?, ?, '')", [order, card])
        change(database.execute, order, "placed")


def oldest(path: str) -> tuple[int, bytes] | None:
    """Return number and body of the oldest event in the outbox."""
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT * FROM outbox ORDER BY number LIMIT 1").fetchone()
        return found if found is None else (found[0], found[1])


def delete(path: str, number: int) -> None:
    """Delete an event that a broker has stored."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM outbox WHERE number = ?", [number])


async def relay(path: str, producer: Producer) -> None:
    """Send the events of the outbox in order, for ever."""
    while True:
        try:
            found = await asyncio.to_thread(oldest, path)
            if found is None:
                await asyncio.sleep(0.1)
                continue
            number, body = found
            event = msgspec.json.decode(body, type=Event)
            await producer.send(
                TOPIC, body, tags=event.state, keys=[event.id], order_key=event.order
            )
            await asyncio.to_thread(delete, path, number)
        except (CometError, sqlite3.OperationalError) as error:
            print(f"the outbox waits: {error}", file=sys.stderr)
            await asyncio.sleep(1)


def read(message: StoredMessage) -> Event:
    """Return the event of a message. A message that is none becomes a dead letter at once."""
    try:
        return msgspec.json.decode(message.body, type=Event)
    except msgspec.DecodeError as error:
        raise ConsumeLater(delay_level=-1) from error


class Desks:
    """The handlers. Each runs in the transaction that marks its message as consumed."""

    def __init__(self, charge: Charge) -> None:
        self.charge = charge

    def pay(self, message: StoredMessage, transaction: SqliteTransaction) -> None:
        event = read(message)
        [(card,)] = transaction.execute("SELECT card FROM orders WHERE name = ?", [event.order])
        try:
            self.charge(card, event.id)  # the bank charges an id only once
        except BankBusyError as error:
            raise ConsumeLater(delay=1) from error
        except UnknownCardError as error:
            raise ConsumeLater(delay_level=-1) from error
        change(transaction.execute, event.order, "paid")

    def ship(self, message: StoredMessage, transaction: SqliteTransaction) -> None:
        change(transaction.execute, read(message).order, "shipped")

    def track(self, message: StoredMessage, transaction: SqliteTransaction) -> None:
        event = read(message)
        transaction.execute("INSERT INTO history VALUES (?, ?)", [event.order, event.state])
        print(event.order, event.state)


@asynccontextmanager
async def running(name_servers: str, path: str, charge: Charge) -> AsyncIterator[None]:
    """Run the relay and the consumers while the block runs."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
    desks = Desks(charge)
    async with AsyncExitStack() as stack:
        marks = stack.enter_context(SqliteMarks(path))
        for group, handler, tag, ordered in (
            ("shop-payments", desks.pay, "placed", False),
            ("shop-shipping", desks.ship, "paid", False),
            ("shop-tracking", desks.track, "*", True),
        ):
            consumer = PushConsumer(
                name_servers,
                subscriptions={TOPIC: tag},
                group=group,
                handler=Idempotent(handler, store=marks),
                ordered=ordered,
                start_from=StartFrom.FIRST,
            )
            await stack.enter_async_context(consumer)
        producer = await stack.enter_async_context(Producer(name_servers))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        relaying = tasks.create_task(relay(path, producer))
        yield
        relaying.cancel()


def bank() -> Charge:
    """Return a bank that is busy at first, and knows one card."""
    attempts: list[str] = []

    def charge(card: str, payment: str) -> None:
        attempts.append(card)
        if card != "4242":
            raise UnknownCardError(card)
        if attempts.count(card) == 1:
            raise BankBusyError

    return charge


async def deploy(name_servers: str) -> None:
    """Create the topics; a second call changes nothing."""
    async with AdminClient(name_servers) as admin:
        await admin.create_topic(TOPIC, queues=8)
        await admin.create_topic("%DLQ%shop-payments", queues=1)


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    await deploy(name_servers)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(name_servers, "shop.db", bank()):
        for order, card in (("order-1", "4242"), ("order-2", "0000")):
            with suppress(sqlite3.IntegrityError):  # an earlier run has placed it
                await asyncio.to_thread(place, "shop.db", order, card)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
