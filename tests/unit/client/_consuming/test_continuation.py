"""The offset at which a consumer begins or continues a queue: each case of the documented table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.continuation import (
    RULES,
    Cause,
    Continuation,
    Start,
    cause_of,
)
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client.offsets import RemoteOffsetStore, StartFrom, consume_from_where
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.heartbeat import ConsumeFromWhere
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster

QUEUE = MessageQueue("t", "a", 1)
MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MOMENT_MS = 1_772_368_200_000
MIN, MAX, THEN = 40, 90, 66
PAGE = Path(__file__).parents[4] / "docs/explanation/consuming.md"


class Asked:
    """A group that asks a scripted broker where to begin."""

    def __init__(self, broker: GroupBroker, instance: ClientCore) -> None:
        self.broker = broker
        self.store = RemoteOffsetStore(instance, "g")
        self._offsets = QueueOffsets(instance.routes, instance.brokers)

    def continuation(self, start: StartFrom | datetime, *, retry: bool = False) -> Continuation:
        retry_topic = QUEUE.topic if retry else None
        return Continuation(self.store, self._offsets, start_from=start, retry_topic=retry_topic)

    async def first(self, start: StartFrom | datetime, *, retry: bool = False) -> int:
        return await self.continuation(start, retry=retry).assigned(QUEUE)


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


def test_the_documentation_has_the_rules() -> None:
    """The table of ``docs/explanation/consuming.md``: cause, with a committed offset, without."""
    text = PAGE.read_text().partition("## Where a queue begins")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines()
            if line.startswith("|")]  # fmt: skip

    assert rows[2:] == [
        (cause.value, *(start.value for start in starts)) for cause, starts in RULES.items()
    ]
    assert set(RULES) == set(Cause)
    assert {start for starts in RULES.values() for start in starts} == set(Start)


@pytest.mark.parametrize("start", [StartFrom.LAST, StartFrom.FIRST, MOMENT])
@pytest.mark.parametrize("retry", [False, True])
async def test_a_queue_that_was_not_there_at_first_begins_at_its_first_message(
    asked: Asked, start: StartFrom | datetime, retry: bool
) -> None:
    continuation = asked.continuation(start, retry=retry)
    continuation.look("t", [MessageQueue("t", "a", 0)])
    continuation.look("t", [MessageQueue("t", "a", 0), QUEUE])

    assert await continuation.assigned(QUEUE) == 0
    asked.broker.committed["t", 1] = 55
    assert await continuation.assigned(QUEUE) == 55


async def test_a_topic_that_was_not_there_at_first_begins_at_its_first_messages(
    asked: Asked,
) -> None:
    continuation = asked.continuation(StartFrom.LAST)
    continuation.look("t", ())
    continuation.look("t", [QUEUE])

    assert await continuation.assigned(QUEUE) == 0


async def test_a_queue_that_was_gone_for_a_while_counts_as_new(asked: Asked) -> None:
    continuation = asked.continuation(StartFrom.LAST)
    continuation.look("t", [QUEUE])
    assert await continuation.assigned(QUEUE) == MAX
    continuation.look("t", [])
    continuation.look("t", [QUEUE])

    assert await continuation.assigned(QUEUE) == 0


async def test_a_queue_that_a_member_with_a_file_does_not_know_was_added_meanwhile(
    asked: Asked,
) -> None:
    continuation = asked.continuation(StartFrom.LAST)
    asked.store.update(MessageQueue("t", "a", 0), QueueOffset(5))  # as read from its file
    continuation.look("t", [MessageQueue("t", "a", 0), QUEUE])

    assert await continuation.assigned(QUEUE) == 0


async def test_a_topic_that_is_subscribed_anew_is_seen_for_the_first_time(asked: Asked) -> None:
    continuation = asked.continuation(StartFrom.LAST)
    continuation.look("t", ())
    continuation.look("t", None)
    continuation.look("t", [QUEUE])

    assert await continuation.assigned(QUEUE) == MAX


def response(status: PullStatus = PullStatus.OFFSET_ILLEGAL) -> PullResult:
    return PullResult(status, [], QueueOffset(77), QueueOffset(MIN), QueueOffset(MAX))


@pytest.mark.parametrize(
    ("offset", "missed", "cause"),
    [
        (MIN - 1, False, Cause.BELOW_START),
        (MIN, False, Cause.MOVED),
        (MAX, False, Cause.MOVED),
        (MAX + 1, False, Cause.BEYOND_END),
        (MIN, True, Cause.TOPIC_MISSED),
    ],
)
def test_the_offset_and_the_bounds_say_why_a_queue_cannot_continue(
    offset: int, missed: bool, cause: Cause
) -> None:
    assert cause_of(response(), QueueOffset(offset), topic_missed=missed) is cause


def test_a_queue_continues_if_the_broker_accepts_its_offset() -> None:
    found = response(PullStatus.NO_NEW_MESSAGE)

    assert cause_of(found, QueueOffset(MAX), topic_missed=False) is None


@pytest.mark.parametrize("cause", [Cause.BELOW_START, Cause.MOVED])
async def test_a_moved_queue_continues_where_the_broker_says(asked: Asked, cause: Cause) -> None:
    asked.broker.committed["t", 1] = 55

    assert await asked.continuation(StartFrom.LAST).after(cause, QUEUE, response(), 1_000) == 77


@pytest.mark.parametrize("cause", [Cause.BEYOND_END, Cause.TOPIC_MISSED])
@pytest.mark.parametrize(
    ("committed", "received_ms", "expected"),
    [
        (None, 1_000, THEN),
        (None, 0, MIN),
        (THEN + 1, 1_000, THEN),
        (THEN - 1, 1_000, THEN - 1),
        (MAX + 1, 1_000, THEN),
        (MAX + 1, 0, MIN),
    ],
    ids=["none", "none, nothing received", "higher", "lower", "beyond", "beyond, nothing received"],
)
async def test_a_queue_that_begins_anew_skips_no_message_that_was_not_received(
    asked: Asked, cause: Cause, committed: int | None, received_ms: int, expected: int
) -> None:
    if committed is not None:
        asked.broker.committed["t", 1] = committed

    continuation = asked.continuation(StartFrom.LAST)

    assert await continuation.after(cause, QUEUE, response(), received_ms) == expected
    assert asked.broker.asked_times == ([received_ms + 1] if received_ms else [])
