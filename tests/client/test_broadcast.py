"""Broadcasts: every member gets every message, and stores its offsets in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from support.checks.waiting import until
from support.clients.recording_handlers import Seen


async def send(producer: Producer, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic=topic, body=body)) for body in bodies))
    return bodies


def options(name_servers: str, group: str, topic: str, folder: Path, name: str) -> dict[str, Any]:
    return {
        "name_servers": name_servers,
        "group": group,
        "broadcast": True,
        "subscriptions": {topic: "*"},
        "start_from": StartFrom.FIRST,
        "offset_folder": str(folder),
        "instance_name": name,
    }


async def test_every_member_gets_every_message(
    name_servers: str, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    one, two = Seen(), Seen()
    bodies = await send(producer, topic, 20)
    async with (
        PushConsumer(handler=one, **options(name_servers, group, topic, tmp_path, "one")) as first,
        PushConsumer(handler=two, **options(name_servers, group, topic, tmp_path, "two")) as second,
    ):
        await one.count(20)
        await two.count(20)
        assert len(first.queues()) == len(second.queues()) == 4

    assert sorted(one.bodies) == sorted(two.bodies) == sorted(bodies)


async def test_a_member_goes_on_from_its_own_file_after_a_restart(
    name_servers: str,
    producer: Producer,
    queues: list[MessageQueue],
    group: str,
    tmp_path: Path,
) -> None:
    topic, first, second = queues[0].topic, Seen(), Seen()
    given = options(name_servers, group, topic, tmp_path, "one")
    bodies = await send(producer, topic, 20)
    async with PushConsumer(handler=first, **given) as consumer:
        await first.count(20)
        file = tmp_path / consumer.client_id / group / "offsets.json"
    kept = file.read_text()
    bodies += await send(producer, topic, 10)
    async with PushConsumer(handler=second, **given) as consumer:
        await second.count(10)

    assert kept.startswith('{"offsetTable":{')
    assert len(second.messages) == 10
    assert sorted(first.bodies + second.bodies) == sorted(bodies)
    async with AdminClient(name_servers) as admin:
        told = await admin.committed(group, topic)
    assert set(told.values()) <= {None, 0}, "brokers are told nothing"


async def test_a_failed_broadcast_is_not_tried_again(
    name_servers: str, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    seen = Seen()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        raise ValueError

    await send(producer, topic, 8)
    async with PushConsumer(
        handler=handle, **options(name_servers, group, topic, tmp_path, "one")
    ) as consumer:
        await seen.count(8)
        await until(
            lambda: (
                not any(
                    queue.cached_msg_count for queue in consumer.running_info().mq_table.values()
                )
            )
        )
        subscribed = [data.topic for data in consumer.running_info().subscription_set]

    assert len(seen.messages) == 8
    assert subscribed == [topic], "there is no topic of retries"


async def test_broadcasts_can_be_consumed_in_order_without_locks(
    name_servers: str,
    producer: Producer,
    queues: list[MessageQueue],
    group: str,
    tmp_path: Path,
) -> None:
    topic, one, two = queues[0].topic, Seen(), Seen()
    for number in range(10):
        await producer.send(Message(topic=topic, body=b"%d" % number), queue=queues[0])
    first = options(name_servers, group, topic, tmp_path, "one")
    second = options(name_servers, group, topic, tmp_path, "two")
    async with (
        PushConsumer(handler=one, ordered=True, **first),
        PushConsumer(handler=two, ordered=True, **second),
    ):
        await one.count(10)
        await two.count(10)

    assert one.bodies == two.bodies == [b"%d" % number for number in range(10)]
