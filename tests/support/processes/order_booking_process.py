"""A member of a group that books orders into a SQLite file, as a process that a test may kill.

``python order_booking_process.py NAME_SERVERS FILE GROUP TOPIC``. It prints ``ready``,
``delivered KEY`` for each delivery, and ``writing KEY`` inside each open transaction: a kill after
that line is in the commit or near it.
"""

from __future__ import annotations

import asyncio
import sys

from cometmq.client import PushConsumer, StartFrom, StoredMessage
from cometmq.client.idempotent import AsyncSqliteTransaction, Idempotent, SqliteMarks

OPEN_S = 0.01
"""How long each transaction stays open, for a kill to meet it."""
SOON = {"route_refresh_ms": 500, "heartbeat_ms": 500, "rebalance_ms": 500, "persist_ms": 500}


async def book(message: StoredMessage, transaction: AsyncSqliteTransaction) -> None:
    await transaction.execute("INSERT INTO bookings VALUES (?)", [message.keys[0]])
    print("writing", message.keys[0], flush=True)
    await asyncio.sleep(OPEN_S)


async def main(name_servers: str, path: str, group: str, topic: str) -> None:
    once = Idempotent(book, store=SqliteMarks(path), group=group)

    async def handle(message: StoredMessage) -> None:
        print("delivered", message.keys[0], flush=True)
        await once(message)

    consumer = PushConsumer(
        name_servers,
        group=group,
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        **SOON,
    )
    await consumer.start()
    print("ready", flush=True)
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
