"""Deliver a message if, and only if, a local transaction commits.

The broker stores the message, invisible to consumers. Then ``execute`` runs the local transaction.
If the broker does not get the outcome, it later calls ``check`` of any producer of the group. Each
transaction has an id of its own, which is in the message and in the database.
"""

import asyncio
import sqlite3
import sys
import uuid

from cometmq.client import LocalState, Message, StoredMessage, TransactionProducer

ID = "transaction"


class Orders:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE orders (name TEXT PRIMARY KEY)")
        self.database.execute("CREATE TABLE transactions (id TEXT PRIMARY KEY, committed INTEGER)")

    async def execute(self, message: Message, order: str) -> LocalState:
        transaction = message.properties[ID]
        with self.database:  # one transaction of the database: both rows, or none
            self.database.execute("INSERT INTO transactions VALUES (?, TRUE)", [transaction])
            self.database.execute("INSERT INTO orders VALUES (?)", [order])
        return LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        transaction = message.properties[ID]
        with self.database:  # no row yet: from now on the transaction cannot commit
            insert = "INSERT OR IGNORE INTO transactions VALUES (?, FALSE)"
            self.database.execute(insert, [transaction])
        select = "SELECT committed FROM transactions WHERE id = ?"
        (committed,) = self.database.execute(select, [transaction]).fetchone()
        return LocalState.COMMIT if committed else LocalState.ROLLBACK


async def main(name_server: str = "127.0.0.1:9876") -> None:
    orders = Orders()
    async with TransactionProducer(
        name_server, group="order-desk", listener=orders, rollback_on=sqlite3.IntegrityError
    ) as producer:
        for article in (b"a hat", b"a coat"):
            properties = {ID: uuid.uuid4().hex}
            message = Message("confirmed", article, keys=["order-1"], properties=properties)
            try:
                result = await producer.send_in_transaction(message, "order-1")
                print(f"{article.decode()}: {result.state.name}")
            except sqlite3.IntegrityError as error:
                print(f"{article.decode()}: {error}")
    orders.database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
