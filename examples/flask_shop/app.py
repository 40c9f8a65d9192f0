"""A Flask shop that sends orders after the commit, and ``flask --app app pack-orders``.

The environment variable NAMESRV_ADDR names the name servers.
"""

import os
import sqlite3
import threading
from contextlib import closing

from flask import Flask

from cometmq.client import Message, StartFrom, StoredMessage
from cometmq.client.blocking import Producer, PushConsumer

TOPIC = "flask-orders"
TABLE = """CREATE TABLE IF NOT EXISTS orders (
    number INTEGER PRIMARY KEY, article TEXT UNIQUE, packed INTEGER DEFAULT 0
)"""

app = Flask(__name__)


class ProcessProducer:
    """A producer does not survive a fork, so each process has one. Its threads share it."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def __call__(self) -> Producer:
        with self._lock:
            if self._producer is None:
                started = Producer(group="flask-shop")
                started.start()
                self._producer = started
            return self._producer


producer = ProcessProducer()


def database() -> sqlite3.Connection:
    connection = sqlite3.connect("shop.sqlite3", timeout=30)
    connection.execute(TABLE)
    return connection


@app.post("/buy/<article>")
def buy(article: str) -> tuple[str, int]:
    try:
        with closing(database()) as rows, rows:  # the inner one commits, or rolls back
            number = rows.execute("INSERT INTO orders (article) VALUES (?)", [article]).lastrowid
    except sqlite3.IntegrityError:
        return "sold already\n", 409  # nothing is sent
    producer().send(Message(topic=TOPIC, body=b"%d" % number, keys=[f"order-{number}"]))
    return f"order {number}\n", 200


def pack(message: StoredMessage) -> None:  # runs in a thread
    number = int(message.body)
    with closing(database()) as rows, rows:
        query = "UPDATE orders SET packed = 1 WHERE number = ? AND NOT packed RETURNING article"
        for (article,) in rows.execute(query, [number]).fetchall():
            print(f"packed {article}", flush=True)


@app.cli.command("pack-orders")
def pack_orders() -> None:
    """Pack orders until SIGTERM."""
    PushConsumer(
        group="flask-packers",
        handler=pack,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        concurrency=4,
    ).run()
