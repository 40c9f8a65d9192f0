"""Deliver a message if, and only if, a local transaction commits.

The broker stores the message, invisible to consumers. Then ``execute`` runs the local transaction.
If the broker does not get the outcome, it later calls ``check`` of any producer of the group.
"""

import asyncio
import sqlite3
import sys

from cometmq.client import LocalState, Message, StoredMessage, TransactionProducer


class Orders:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE orders (name TEXT PRIMARY KEY)")

    async def execute(self, message: Message, argument: object) -> LocalState:
        with self.database:
            self.database.execute("INSERT INTO orders VALUES (?)", [argument])
        return LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        name = message.keys[0]
        found = self.database.execute("SELECT 1 FROM orders WHERE name = ?", [name]).fetchone()
        return LocalState.COMMIT if found else LocalState.ROLLBACK


async def main(name_server: str = "127.0.0.1:9876") -> None:
    orders = Orders()
    async with TransactionProducer(name_server, group="order-desk", listener=orders) as producer:
        for _ in range(2):
            message = Message(topic="confirmed", body=b"a hat", keys=["order-1"])
            result = await producer.send_in_transaction(message, "order-1")
            print(f"{result.state.name}: {type(result.error).__name__}")
    orders.database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
