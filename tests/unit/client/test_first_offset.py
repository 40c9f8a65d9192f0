"""Where a group begins in a queue: each start, with and without an offset of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore
from cometmq.client.offsets import RemoteOffsetStore, StartFrom, consume_from_where, first_offset
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import ConsumeFromWhere
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Response
from support.group_broker import GroupBroker
from support.scripted import ScriptedCluster

QUEUE = MessageQueue("t", "a", 1)
MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MOMENT_MS = 1_772_368_200_000
MIN, MAX, THEN = 40, 90, 66


class Asked:
    """A group that asks a scripted broker where to begin."""

    def __init__(self, broker: GroupBroker, instance: ClientCore) -> None:
        self.broker = broker
        self.store = RemoteOffsetStore(instance, "g")
        self._offsets = QueueOffsets(instance.routes, instance.brokers)

    async def first(self, start: StartFrom | datetime, *, retry: bool = False) -> int:
        return await first_offset(
            QUEUE, store=self.store, offsets=self._offsets, start=start, retry=retry
        )


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    broker = GroupBroker()
    broker.bounds, broker.at_time = (MIN, MAX), THEN
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as instance:
        yield Asked(broker, instance)


@pytest.mark.parametrize("start", [StartFrom.LAST, StartFrom.FIRST, MOMENT])
@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("kept", [0, 55])
async def test_an_offset_that_is_kept_wins_over_every_start(
    asked: Asked, start: StartFrom | datetime, retry: bool, kept: int
) -> None:
    asked.broker.committed["t", 1] = kept

    assert await asked.first(start, retry=retry) == kept
    assert asked.store.position(QUEUE) == kept


@pytest.mark.parametrize(
    ("start", "retry", "expected"),
    [
        (StartFrom.LAST, False, MAX),
        (StartFrom.LAST, True, 0),
        (StartFrom.FIRST, False, 0),
        (StartFrom.FIRST, True, 0),
        (MOMENT, False, THEN),
        (MOMENT, True, MAX),
    ],
)
async def test_a_group_without_an_offset_begins_as_the_table_says(
    asked: Asked, start: StartFrom | datetime, retry: bool, expected: int
) -> None:
    assert await asked.first(start, retry=retry) == expected


async def test_a_time_is_asked_for_in_milliseconds(asked: Asked) -> None:
    await asked.first(MOMENT)

    assert asked.broker.asked_times == [MOMENT_MS]


@pytest.mark.parametrize("start", [StartFrom.LAST, StartFrom.FIRST, MOMENT])
async def test_a_queue_is_not_begun_when_the_broker_refuses_to_tell(
    asked: Asked, start: StartFrom | datetime
) -> None:
    refusal = Response(ResponseCode.SYSTEM_ERROR, "not now")
    asked.broker.refuse[RequestCode.QUERY_CONSUMER_OFFSET] = refusal

    with pytest.raises(ResponseError, match="not now"):
        await asked.first(start)


async def test_a_queue_is_not_begun_when_its_end_cannot_be_told(asked: Asked) -> None:
    asked.broker.refuse[RequestCode.GET_MAX_OFFSET] = Response(ResponseCode.SYSTEM_ERROR, "no")

    with pytest.raises(ResponseError):
        await asked.first(StartFrom.LAST)


async def test_a_queue_is_not_begun_when_its_broker_is_away(asked: Asked) -> None:
    await asked.first(StartFrom.FIRST)
    await asked.broker.stop()

    with pytest.raises(RemotingError):
        await asked.first(StartFrom.FIRST)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (StartFrom.LAST, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        (StartFrom.FIRST, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        (MOMENT, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
    ],
)
def test_heartbeats_say_the_start(start: StartFrom | datetime, said: ConsumeFromWhere) -> None:
    assert consume_from_where(start) is said
