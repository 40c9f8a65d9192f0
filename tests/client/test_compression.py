"""Compressed bodies: small on the wire, and equal to the original for the handler."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._sending.sender import InnerProducer
from cometmq.client.admin import DeadLetter, ResendStatus
from cometmq.client.errors import CompressionError
from cometmq.model.flags import SysFlag
from cometmq.protocol.lazy_record import stored_body
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters
from support.clients.recording_handlers import Seen
from support.clients.stored_messages import read_all

KINDS = ("zlib", "lz4", "zstd")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_compressed_body_is_read_as_it_was_sent(
    kind: str, name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    body = b"0123456789" * 1_000
    async with Producer(name_servers, group=group, compress_type=kind) as producer:
        await producer.send(Message(topic, body))
        await producer.send_nowait(Message(topic, body))
    got = await read_all(name_servers, queues, 2)

    assert [message.body for message in got] == [body, body]
    assert max(message.size_bytes for message in got) < len(body) / 2


async def test_a_body_that_does_not_shrink_is_read_as_it_was_sent(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    body = os.urandom(10_000)
    async with Producer(name_servers, group=group) as producer:
        await producer.send(Message(topic, body))
    (got,) = await read_all(name_servers, queues, 1)

    assert got.body == body


@pytest.mark.parametrize("level", [1, 9])
async def test_any_level_of_compression_is_read(
    level: int, name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    body = b"0123456789" * 1_000
    for kind in KINDS:
        options = {"compress_level": level, "compress_type": kind}
        async with Producer(name_servers, group=f"{group}-{kind}", **options) as producer:
            await producer.send(Message(topic, body))

    assert {message.body for message in await read_all(name_servers, queues, 3)} == {body}


async def send_damaged(instance: ClientInstance, topic: str, kind: int = SysFlag.ZLIB) -> None:
    """Send a message whose body is no compressed body, though its flag says so."""
    producer = InnerProducer.of(core_of(instance))
    damaged = Message(topic, b"damaged", keys=["k"])
    await producer.send(damaged, timeout=10, compressed=SysFlag.COMPRESSED | kind)


@pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=str)
async def test_a_message_whose_body_is_damaged_fails_and_is_dead_lettered_with_the_reason(
    instance: ClientInstance,
    producer: Producer,
    name_servers: str,
    topic: str,
    group: str,
    options: dict[str, bool],
) -> None:
    queue = (await producer.fetch_queues(topic))[0]
    await send_damaged(instance, topic)
    await producer.send(Message(topic, b"whole"), queue=queue)
    seen = Seen()

    async def handler(message: StoredMessage) -> None:
        if message.body:
            seen.add(message)

    async with PushConsumer(
        name_servers, handler=handler, retries_max=0, **options, **from_the_first(group, topic)
    ):
        [letter] = await dead_letters(name_servers, group)
        await seen.count(1)

    assert [each.body for each in seen.messages] == [b"whole"]
    assert letter.keys == ["k"]
    assert "CompressionError: a compressed body is damaged" in letter.properties["CONSUME_ERROR"]
    with pytest.raises(CompressionError):
        _ = letter.body
    assert stored_body(letter) == b"damaged"
    async with AdminClient(instance=instance) as admin:
        [found] = (await admin.dead_letters(group)).letters
        assert found.summary()["body_bytes"] == 7
        [resent] = await admin.resend_dead_letters([DeadLetter.decode(found.encode())])
        assert (resent.status, "damaged" in resent.reason) == (ResendStatus.FAILED, True)
        [same] = await admin.messages_by_key(topic, "k")
        assert stored_body(same) == b"damaged"


MakeConsumer = Callable[..., PushConsumer | PullConsumer]


async def ignore(message: StoredMessage) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    "make", [lambda *names, **more: PushConsumer(*names, handler=ignore, **more), PullConsumer]
)
async def test_a_consumer_without_the_package_of_a_body_ends_and_says_which(
    instance: ClientInstance,
    name_servers: str,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    make: MakeConsumer,
) -> None:
    await send_damaged(instance, topic, SysFlag.LZ4)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    async with make(name_servers, **from_the_first(group, topic)) as consumer:
        await asyncio.wait_for(consumer._tasks.wait_failed(), 60)

        assert not consumer.healthy
        assert "lz4" in str(consumer.failure)
        if isinstance(consumer, PullConsumer):
            with pytest.raises(CompressionError, match=r"\.\[compression\]"):
                await consumer.poll()


async def test_level_0_sends_bodies_as_they_are(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    body = b"0123456789" * 1_000
    async with Producer(name_servers, group=group, compress_level=0) as producer:
        await producer.send(Message(topic, body))
    (got,) = await read_all(name_servers, queues, 1)

    assert got.body == body
    assert got.size_bytes > len(body)
