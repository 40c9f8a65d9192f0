"""The limit of the messages that pulls read at other brokers."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.broker.static_topics.brokers import BytesInFlight
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_pulls_wait_in_their_order_while_messages_are_in_flight() -> None:
    limit = BytesInFlight(100, lambda: 3.0)
    done: list[str] = []

    async def pull(name: str, size: int) -> None:
        taken = await limit.take(size)
        done.append(name)
        limit.give(limit.correct(taken, size))

    first = await limit.take(60)
    waiting = [asyncio.create_task(pull(name, 50)) for name in ("second", "third")]
    await asyncio.sleep(0.1)
    small = asyncio.create_task(pull("small", 1))  # there is room, but others wait
    await asyncio.sleep(0.1)
    assert done == []

    limit.give(limit.correct(first, 500))  # a message was larger than expected
    await asyncio.gather(*waiting, small)

    assert done == ["second", "third", "small"]
    assert limit.bytes == 0
    assert await limit.take(1_000) == 1_000  # alone it has room


async def test_a_pull_that_waits_too_long_is_refused_and_lets_the_next_one_pass() -> None:
    limit = BytesInFlight(100, lambda: 3.0)
    taken = await limit.take(60)
    late = asyncio.create_task(limit.take(50))
    await asyncio.sleep(1)
    next_one = asyncio.create_task(limit.take(50))

    with pytest.raises(ResponseError, match="60 bytes of messages of other brokers") as refused:
        await late

    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    limit.give(taken)
    assert await next_one == 50
    assert limit.bytes == 50
