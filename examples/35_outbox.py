"""Send events through an outbox: a table that is written in the transaction of the order.

``change`` writes an order and its event in one transaction of the database. ``relay`` sends the
events, oldest first, and deletes each one that a broker has stored. A crash loses no event; it may
send one twice, and the consumer drops the second. The database is ``shop.db`` in the current
folder. Ctrl-C ends the program.
"""

import asyncio
import sqlite3
import sys
import uuid

from cometmq.client import CometError, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.idempotent import Idempotent, SqliteMarks, SqliteTransaction

TOPIC, DATABASE = "order-events", "shop.db"
TABLES = """
CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, state TEXT);
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, id TEXT, name TEXT, state TEXT);
CREATE TABLE IF NOT EXISTS history (name TEXT, state TEXT);
"""


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    database.executescript(TABLES)
    return database


def change(database: sqlite3.Connection, order: str, state: str) -> None:
    with database:  # one transaction of the database: both rows, or none
        database.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", [order, state])
        insert = "INSERT INTO outbox (id, name, state) VALUES (?, ?, ?)"
        database.execute(insert, [uuid.uuid4().hex, order, state])


async def relay(database: sqlite3.Connection, producer: Producer) -> int:
    """Send the oldest events one after the other, and return how many were sent."""
    rows = database.execute("SELECT * FROM outbox ORDER BY number LIMIT 100").fetchall()
    for number, event, order, state in rows:
        properties = {"order": order}
        await producer.send(
            TOPIC, state.encode(), keys=[event], properties=properties, order_key=order
        )
        with database:
            database.execute("DELETE FROM outbox WHERE number = ?", [number])
    return len(rows)


async def relay_forever(database: sqlite3.Connection, producer: Producer) -> None:
    while True:
        try:
            sent = await relay(database, producer)
        except (CometError, sqlite3.OperationalError) as error:
            print(f"the outbox waits: {error}", file=sys.stderr)
            sent = 0
        if not sent:
            await asyncio.sleep(0.2)


def track(message: StoredMessage, transaction: SqliteTransaction) -> None:
    order, state = message.properties["order"], message.body.decode()
    transaction.execute("INSERT INTO history VALUES (?, ?)", [order, state])
    print(order, state)


async def main(name_server: str = "127.0.0.1:9876") -> None:
    database = open_database()
    for state in ("placed", "paid", "shipped"):
        change(database, "order-1", state)
    with SqliteMarks(DATABASE) as marks:
        consumer = PushConsumer(
            name_server,
            topic=TOPIC,
            group="tracking",
            handler=Idempotent(track, store=marks),
            ordered=True,
            start_from=StartFrom.FIRST,
        )
        async with Producer(name_server) as producer, asyncio.TaskGroup() as tasks:
            relaying = tasks.create_task(relay_forever(database, producer))
            await consumer.run()
            relaying.cancel()
    database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
