"""The programs that the pipelines' demo observes: a server, a shop that orders, a desk that bills.

The server is a separate process on a store below the demo's folder. The shop sends orders at a
constant rate. The desk consumes them as a group. Some orders fail in each delivery and become dead
letters with a reason.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from cometmq.client import CometError, Message, SendReceipt, StartFrom, StoredMessage
from cometmq.client.blocking import AdminClient, Producer, PushConsumer
from cometmq.model.topic import dlq_topic
from cometmq.remoting.ports import free_broker_port, free_port

log = logging.getLogger(__name__)

TOPIC, DESK = "orders", "billing"
QUEUES = 4
COUNTRIES = {"DE": 31, "FR": 24, "IT": 19, "ES": 14, "AT": 9, "XX": 3}
"""Countries of the orders with their weights; billing an order from XX always fails."""
STATES = ("new", "paid", "shipped")
START_S, STOP_S, WAIT_S = 60.0, 10.0, 60.0
TICK_S = 0.02
IN_FLIGHT_MAX = 256


class DemoError(CometError):
    """The demo did not come as far as it should have in time."""


class Server:
    """A name server and a broker in one process, while it is `serving`.

    Args:
        folder: for the store, the settings and the log.
    """

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.log = folder / "server.log"
        self.name_servers = f"127.0.0.1:{free_port()}"
        self._settings = folder / "broker.conf"
        self._broker_port = free_broker_port()
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serve within ``with``.

        Raises:
            DemoError: the server did not start.
        """
        self._start()
        try:
            yield self
        finally:
            self._end()

    def _start(self) -> None:
        self._settings.write_text(
            f"brokerName=broker-a\nmessageDelayLevel={' '.join(18 * ['1s'])}\n"
        )
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "cometmq", "standalone",
                    "--namesrv-port", self.name_servers.rpartition(":")[2],
                    "--broker-port", str(self._broker_port),
                    "--store", str(self.store),
                    "-c", str(self._settings),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        give_up = threading.Timer(START_S, self._process.kill)
        give_up.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        give_up.cancel()
        if not line.startswith("ready "):
            self._end()
            raise DemoError(f"the server did not start: {self.log.read_text()[-1000:]}")

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Shop:
    """Sends orders from a thread, at an even rate, while it is `ordering`.

    Args:
        name_servers: where.
        rate: orders per second.
        seed: of the orders' contents.
    """

    def __init__(self, name_servers: str, rate: int, seed: int = 7) -> None:
        self._name_servers = name_servers
        self._rate = rate
        self._random = random.Random(seed)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo shop", daemon=True)
        self._failed: BaseException | None = None
        self.acknowledged = 0
        self.by_country: Counter[str] = Counter()

    @contextmanager
    def ordering(self) -> Iterator[Self]:
        """Order within ``with``, or until it is closed."""
        with AdminClient(self._name_servers) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        self._thread.start()
        with closing(self):
            yield self

    def close(self) -> None:
        """Stop ordering, and wait until every order is acknowledged.

        Raises:
            DemoError: an order was not.
        """
        self._closing.set()
        self._thread.join(WAIT_S)
        if self._failed is not None or self._thread.is_alive():
            raise DemoError(f"an order was not acknowledged: {self._failed}")

    def _run(self) -> None:
        try:
            with Producer(self._name_servers, group="shop") as producer:
                self._send_all(producer)
        except BaseException as error:
            self._failed = error

    def _send_all(self, producer: Producer) -> None:
        begun, pending = time.monotonic(), list[tuple[str, Future[SendReceipt]]]()
        sent = 0
        while not self._closing.wait(TICK_S):
            due = int((time.monotonic() - begun) * self._rate) - sent
            for _ in range(min(due, IN_FLIGHT_MAX - len(pending))):
                order = self._order(sent)
                pending.append((order["country"], producer.send_nowait(_message(order))))
                sent += 1
            pending = self._settled(pending, wait=False)
        self._settled(pending, wait=True)

    def _order(self, number: int) -> dict[str, Any]:
        country = self._random.choices(list(COUNTRIES), list(COUNTRIES.values()))[0]
        return {
            "order": f"order-{number}",
            "customer": f"customer-{self._random.randrange(200)}",
            "country": country,
            "amount": self._random.randrange(100, 20_000) / 100,
            "state": STATES[number % len(STATES)],
        }

    def _settled(
        self, pending: list[tuple[str, Future[SendReceipt]]], *, wait: bool
    ) -> list[tuple[str, Future[SendReceipt]]]:
        """Count the orders that are acknowledged, and return the other orders."""
        open_still = []
        for country, future in pending:
            if wait or future.done():
                future.result(WAIT_S)
                self.acknowledged += 1
                self.by_country[country] += 1
            else:
                open_still.append((country, future))
        return open_still


def _message(order: dict[str, Any]) -> Message:
    body = json.dumps(order).encode()
    return Message(topic=TOPIC, body=body, tags=order["state"], keys=[order["order"]])


class Desk:
    """Bills orders as a group; an order that failed twice is a dead letter."""

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._lock = threading.Lock()
        self.billed: set[str] = set()
        self.refused: set[str] = set()
        self._consumer = PushConsumer(
            name_servers,
            group=DESK,
            handler=self._bill,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            retries_max=1,
        )

    @contextmanager
    def billing(self) -> Iterator[Self]:
        """Bill within ``with``."""
        with self._consumer:
            yield self

    def _bill(self, message: StoredMessage) -> None:
        order = json.loads(message.body)
        refused = order["country"] == "XX"
        with self._lock:
            (self.refused if refused else self.billed).add(order["order"])
        if refused:
            raise LookupError(f"no tax rate for country {order['country']}")

    def wait_until_done(self, orders: int) -> None:
        """Wait until every order is billed or a dead letter.

        Raises:
            DemoError: it takes too long.
        """
        with AdminClient(self._name_servers) as admin:
            for _ in _patiently():
                handled = len(self.billed) + len(self.refused)
                if handled >= orders and _dead_letters(admin) >= len(self.refused):
                    return
        raise DemoError(f"{handled} of {orders} orders were handled within {WAIT_S:.0f} s")


def _patiently() -> Iterator[None]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        yield
        time.sleep(0.2)


def _dead_letters(admin: AdminClient) -> int:
    try:
        bounds = admin.queue_bounds(dlq_topic(DESK))
    except CometError:
        return 0  # the topic is created with the first dead letter
    return sum(each.max_offset - each.min_offset for each in bounds.values())
