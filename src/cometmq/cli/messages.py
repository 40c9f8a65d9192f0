"""Sends and shows messages from the command line.

Addresses are passed by keyword: the error of a wrong one then shows no line of Python.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cometmq.cli.lines import line_of
from cometmq.client import Filter, Message, Producer, PullConsumer
from cometmq.client.library import parse_addresses
from cometmq.client.settings import ClientSettings, PullSettings
from cometmq.model.errors import CometError

GROUP = "cometmq-cli"


@dataclass(frozen=True, slots=True)
class Sending:
    """How to send."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    order_key: str | None = None
    delay_level: int = 0
    timeout: float = 3.0

    def message(self, body: bytes) -> Message:
        """Make the message with this body."""
        return Message(
            topic=self.topic,
            body=body,
            tags=self.tag,
            keys=self.keys,
            delay_level=self.delay_level,
        )


def bodies(text: str) -> Iterator[bytes]:
    """Give the body to send, or for ``-`` each line of the input that is not empty."""
    if text != "-":
        yield text.encode()
        return
    for line in sys.stdin.buffer:
        if body := line.rstrip(b"\r\n"):
            yield body


async def send(name_servers: str, sending: Sending, wanted: Iterator[bytes]) -> None:
    """Send each body and print where it is stored, one line each."""
    addresses = parse_addresses(name_servers)  # its errors are for a command, not for a program
    producer = Producer(name_servers=addresses, group=GROUP, client=ClientSettings())
    async with producer:
        for number, body in enumerate(wanted, 1):
            try:
                receipt = await producer.send(
                    sending.message(body), order_key=sending.order_key, timeout=sending.timeout
                )
            except CometError:
                if number > 1:
                    print(f"stopped at message {number}, sent {number - 1}", file=sys.stderr)
                raise
            print(
                f"{receipt.status.value} queue={receipt.queue} offset={receipt.queue_offset}"
                f" id={receipt.message_id}",
                flush=True,
            )


async def tail(
    name_servers: str, topic: str, *, tags: str, sql: str | None, last: int, count: int
) -> None:
    """Print a topic's messages, the newest of each queue first, then new ones as they come.

    Args:
        name_servers: addresses.
        topic: what to read.
        tags, sql: which messages; ``sql`` wins.
        last: messages of each queue to begin with.
        count: end after this number of messages; 0 for never.
    """
    wanted = Filter.sql(sql) if sql is not None else Filter.tags(tags)
    settings = PullSettings(auto_commit_ms=0)
    addresses = parse_addresses(name_servers)
    async with PullConsumer(name_servers=addresses, group=GROUP, settings=settings) as consumer:
        queues = await consumer.fetch_queues(topic)
        await consumer.assign(queues, filter=wanted)
        for queue in queues:
            bounds = await consumer.bounds(queue)
            await consumer.seek(queue, max(bounds.min_offset, bounds.max_offset - last))
        shown = 0
        async for message in consumer:
            print(line_of(message), flush=True)
            shown += 1
            if shown == count:
                consumer.take_back()  # else the close warns that it is not committed
                return


def test_message(topic: str, size: int) -> Message:
    """Return a message with a body of ``size`` bytes, at least one."""
    return Message(topic, (b"hello jodie" * (size // 11 + 1))[: max(size, 1)])


async def measured_sends(
    producer: Producer, topic: str, *, count: int, size: int
) -> tuple[float, int, int]:
    """Send test messages; the first one connects and is not measured.

    Returns:
        The mean duration in ms, and how many sends succeeded and failed.
    """
    sent = failed = 0
    total = 0.0
    for number in range(count):
        began = time.monotonic()
        try:
            await producer.send(test_message(topic, size))
            sent += 1
        except CometError:
            failed += 1
        if number:
            total += (time.monotonic() - began) * 1000
    return total / max(count - 1, 1), sent, failed
