"""Book each order exactly once, even if its message is delivered twice.

The handler writes in the transaction that also marks the message's key as consumed.
"""

import asyncio
import sqlite3
import sys
import tempfile
from pathlib import Path

from cometmq.client import Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.idempotent import Idempotent, SqliteMarks, SqliteTransaction

TOPIC = "bookings"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    path = Path(tempfile.mkdtemp()) / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookings (name TEXT)")
    handled = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def book(message: StoredMessage, transaction: SqliteTransaction) -> None:
        transaction.execute("INSERT INTO bookings VALUES (?)", [message.keys[0]])

    with SqliteMarks(path) as marks:
        once = Idempotent(book, store=marks, group="bookkeeping")

        def handle(message: StoredMessage) -> None:
            once(message)
            loop.call_soon_threadsafe(handled.release)

        async with Producer(name_server, group="shop") as producer:
            for order in ("order-1", "order-2", "order-1", "order-2", "order-3"):
                await producer.send(Message(topic=TOPIC, body=b"a hat", keys=[order]))
        async with PushConsumer(
            name_server,
            group="bookkeeping",
            handler=handle,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
        ):
            for _ in range(5):
                await handled.acquire()
        rows = connection.execute("SELECT name FROM bookings ORDER BY name").fetchall()
        print(f"5 messages, {len(rows)} bookings: {', '.join(name for (name,) in rows)}")
    connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
