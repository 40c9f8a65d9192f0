"""Compressed bodies: sent small, read as they were."""

from __future__ import annotations

import os

import pytest

from cometmq.client import Message, MessageQueue, Producer
from support.reading import read_all

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


async def test_level_0_sends_bodies_as_they_are(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    body = b"0123456789" * 1_000
    async with Producer(name_servers, group=group, compress_level=0) as producer:
        await producer.send(Message(topic, body))
    (got,) = await read_all(name_servers, queues, 1)

    assert got.body == body
    assert got.size_bytes > len(body)
