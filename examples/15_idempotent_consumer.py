"""Book each order exactly once, even if its message is delivered twice.

The handler writes in the transaction that also marks the message's key as consumed. The database is
``shop.db`` in the current folder. Ctrl-C ends the program.
"""

import asyncio
import sqlite3
import sys

from cometmq.client import Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.idempotent import Idempotent, SqliteMarks, SqliteTransaction

TOPIC, DATABASE = "bookings", "shop.db"


def book(message: StoredMessage, transaction: SqliteTransaction) -> None:
    transaction.execute("INSERT INTO bookings VALUES (?)", [message.keys[0]])
    print(f"booked {message.keys[0]}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    with sqlite3.connect(DATABASE) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bookings (name TEXT)")
    connection.close()

    async with Producer(name_server, group="shop") as producer:
        for order in ("order-1", "order-2", "order-1", "order-2", "order-3"):
            await producer.send(Message(topic=TOPIC, body=b"a hat", keys=[order]))

    with SqliteMarks(DATABASE) as marks:
        consumer = PushConsumer(
            name_server,
            group="bookkeeping",
            handler=Idempotent(book, store=marks),
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
        )
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
