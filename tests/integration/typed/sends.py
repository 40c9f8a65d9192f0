"""Sends of a message, of a topic and a body, and of several."""

from __future__ import annotations

from datetime import timedelta

from cometmq.client import Message, Producer, blocking

MESSAGE = Message("orders", b"1")


async def one(producer: Producer) -> None:
    await producer.send(MESSAGE, order_key="42", timeout=timedelta(seconds=1))
    await producer.send("orders", b"1", tags="paid", keys=["42"], delay_level=3)
    await producer.send("orders", body=b"1")
    await producer.send(topic="orders", body=b"1", tags="paid")
    await producer.send("orders")  # error
    await producer.send("orders", "1")  # error
    await producer.send(MESSAGE, tags="paid")  # error
    await producer.send("orders", b"1", tag="paid")  # error
    await producer.send("orders", b"1", topic="orders")  # error


async def several(producer: Producer) -> None:
    await producer.send_batch([MESSAGE, MESSAGE], order_key="42")
    await producer.send_batch("orders", [b"1", b"2"], tags="paid")
    await producer.send_batch("orders", bodies=[b"1", b"2"])
    await producer.send_batch("orders")  # error
    await producer.send_batch("orders", b"12")  # error
    await producer.send_batch([b"1", b"2"])  # error
    await producer.send_batch([MESSAGE], tags="paid")  # error
    await producer.send_all(MESSAGE for _ in range(10))
    await producer.send_all("orders", (b"%d" % number for number in range(10)), tags="paid")
    await producer.send_all("orders")  # error


def without_asyncio(producer: blocking.Producer) -> None:
    producer.send("orders", b"1", tags="paid")
    producer.send_batch("orders", [b"1", b"2"])
    producer.send("orders")  # error
    producer.send_batch("orders")  # error
