"""Sends to brokers whose master a controller elects, and measures recovery after a kill.

Clients have their default settings. A time counts from the signal to the first acknowledgement of a
send that began after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import kit
from servers import connect

from cometmq.client import Message, Producer, PullConsumer, SendStatus, StartFrom, StoredMessage
from cometmq.model.errors import CometError
from support.controllers.elected_processes import ElectedCluster

TOPIC = "orders"
SENDERS = 8
LIMIT_S = 120.0


class Load:
    """Tasks that send numbered messages, and what became of them."""

    def __init__(self, name_server: str) -> None:
        self._producer = Producer(name_server, group="shop")
        self._next = 0
        self._senders: list[asyncio.Task[None]] = []
        self.acknowledged: set[int] = set()
        self.failed = 0
        self._from_s = float("inf")
        self.first_after_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Load:
        await self._producer.start()
        self._senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._producer.close()

    async def _send(self) -> None:
        while True:
            number, self._next = self._next, self._next + 1
            began_s = time.monotonic()
            try:
                receipt = await self._producer.send(Message(topic=TOPIC, body=b"%d" % number))
                if receipt.status is not SendStatus.SEND_OK:
                    raise CometError(receipt.status.name)
            except CometError:
                self.failed += 1
                await asyncio.sleep(0.01)
                continue
            self.acknowledged.add(number)
            if began_s >= self._from_s and not self.first_after_s.done():
                self.first_after_s.set_result(time.monotonic() - self._from_s)

    async def until_acknowledged(self, more: int) -> None:
        """Wait for so many further acknowledgements."""
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(LIMIT_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.01)

    async def time_after(self, kill: Callable[[], object]) -> float:
        """Kill the master; return the seconds to the first send that was acknowledged elsewhere."""
        self.first_after_s = asyncio.get_running_loop().create_future()
        kill()
        self._from_s = time.monotonic()
        async with asyncio.timeout(LIMIT_S):
            return await self.first_after_s


def create_topic(cluster: ElectedCluster) -> None:
    """Create the topic, and wait until all slaves have copied it."""
    for broker in (cluster.await_master(), *cluster.brokers):
        connection = connect(broker.address)
        if broker is cluster.master():
            kit.ok(kit.create_topic(connection, TOPIC, read=4, write=4))
        kit.eventually(
            lambda known=connection: kit.topic_config(known, TOPIC), timeout=60.0, pause=0.2
        )
        connection.close()


async def read_all(name_server: str, least: int) -> list[StoredMessage]:
    """Read until nothing comes any more, and at least so many messages."""
    found: list[StoredMessage] = []
    async with PullConsumer(
        name_server, group="readers", subscriptions={TOPIC: "*"}, start_from=StartFrom.FIRST
    ) as consumer:
        messages = aiter(consumer)
        while True:
            try:
                async with asyncio.timeout(LIMIT_S if len(found) < least else 1.0):
                    found.append(await anext(messages))
            except TimeoutError:
                return found
