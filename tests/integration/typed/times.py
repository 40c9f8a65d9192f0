"""Durations and points in time, as applications pass them."""

from datetime import UTC, datetime, timedelta

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    SimpleConsumer,
    StartFrom,
)

YESTERDAY = datetime.now(UTC) - timedelta(days=1)

PullConsumer(group="audit", start_from=YESTERDAY)
PullConsumer(group="audit", start_from=1_800_000_000_000)
PullConsumer(group="audit", start_from=StartFrom.FIRST)
PullConsumer(group="audit", start_from="2027-01-15")  # error


async def seek(consumer: PullConsumer, queue: MessageQueue) -> None:
    await consumer.seek_to_time(YESTERDAY, queue)
    await consumer.seek_to_time(1_800_000_000_000)
    await consumer.seek_to_time(timedelta(days=1))  # error
    await consumer.seek(queue, await consumer.offset_at_time(queue, YESTERDAY))


async def reset(admin: AdminClient) -> None:
    await admin.reset_to_time("audit", "orders", YESTERDAY)
    await admin.reset_to_time("audit", "orders", "yesterday")  # error
    await admin.messages_by_key("orders", "order-1", begin=YESTERDAY, end=datetime.now(UTC))
    await admin.messages_by_key("orders", "order-1", begin_ms=0)  # error


async def send(producer: Producer) -> None:
    await producer.send(Message("orders", b"1", delay=timedelta(minutes=5)), timeout=0.5)
    await producer.send(Message("orders", b"1", deliver_at=YESTERDAY), timeout=timedelta(seconds=1))
    await producer.send(Message("orders", b"1"), timeout="1 s")  # error
    Message("orders", b"1", delay_ms=5_000)  # error
    Message("orders", b"1", deliver_at="2027-01-15")  # error


async def pull(consumer: PullConsumer, queue: MessageQueue) -> None:
    await consumer.poll(timedelta(seconds=1))
    await consumer.pull(queue, 0, wait=timedelta(seconds=20), timeout=5)


async def receive(consumer: SimpleConsumer) -> None:
    for message in await consumer.receive(wait=timedelta(seconds=5), invisible=60):
        await consumer.extend(message, timedelta(minutes=1))
        await consumer.extend(message, "1 min")  # error
