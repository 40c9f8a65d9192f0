"""An object belongs to the event loop that started it: others are refused, and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cometmq.client import ClientError, Message, Producer, PullConsumer
from cometmq.client._connection.instance import ClientCore

NOWHERE = "127.0.0.1:1"
REFUSED = "runs in another event loop: call it there"

Call = Callable[[Any], Coroutine[Any, Any, object]]


def elsewhere(call: Call, client: object) -> None:
    asyncio.run(call(client))


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.start(),
        lambda producer: producer.send(Message(topic="t", body=b"x")),
        lambda producer: producer.flush(),
        lambda producer: producer.close(),
    ],
    ids=["start", "send", "flush", "close"],
)
async def test_another_loop_is_refused(call: Call) -> None:
    async with Producer(NOWHERE, group="g") as producer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(elsewhere, call, producer)
        assert producer.running


async def test_a_thread_without_a_loop_is_refused() -> None:
    async with Producer(NOWHERE, group="g") as producer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(producer.send_nowait, Message(topic="t", body=b"x"))


async def test_the_subscriptions_of_a_consumer_are_changed_in_its_loop_only() -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(elsewhere, lambda each: each.unsubscribe("t"), consumer)


def test_what_a_closed_loop_has_left_can_be_closed() -> None:
    async def start() -> ClientCore:
        instance = ClientCore(NOWHERE)
        await instance.start()
        return instance

    async def close(instance: ClientCore) -> None:
        await instance.close()
        assert instance.closed

    asyncio.run(close(asyncio.run(start())))
