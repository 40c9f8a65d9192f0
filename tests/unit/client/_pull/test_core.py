"""The queues of a pull consumer: assignment, and interruptions by other members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import PullConsumer
from cometmq.client._connection.routes import Route
from cometmq.client._consuming.handover import IDLE_S
from cometmq.client._consuming.rebalancer import KnownQueues
from cometmq.client._pull.core import AssignmentMode, Mode
from cometmq.client._pull.fetcher import Fetcher
from cometmq.client.errors import WrongModeError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Response
from support.brokers.group_broker import GroupBroker, pulled
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, route
from support.wire.message_records import record

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def route_of(*queues: MessageQueue) -> Route:
    """A topic's route_of with these queues."""
    return Route("t", queues, queues, {"a": {0: "127.0.0.1:1"}})


def test_a_consumer_does_one_or_the_other() -> None:
    chosen = AssignmentMode()
    chosen.choose(Mode.ASSIGNED)
    chosen.choose(Mode.ASSIGNED)

    with pytest.raises(WrongModeError, match="is assigned queues"):
        chosen.choose(Mode.SUBSCRIBED)
    assert chosen.mode is Mode.ASSIGNED


def test_a_topic_differs_once_when_its_queues_change() -> None:
    watched = KnownQueues()
    assert not watched.differs(route_of(ONE))

    watched.look("t", [ONE])
    assert not watched.differs(route_of(ONE))
    assert watched.differs(route_of(ONE, TWO))
    assert not watched.differs(route_of(TWO, ONE))


async def test_a_call_with_many_queues_does_not_list_the_assigned_ones_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10,000 queues that held up the event loop for seconds."""
    lists = 0

    def queues(fetcher: Fetcher) -> list[MessageQueue]:
        nonlocal lists
        lists += 1
        return list(fetcher._streams)

    monkeypatch.setattr(Fetcher, "queues", property(queues))
    many = [MessageQueue("t", "a", number) for number in range(100)]
    async with (
        ScriptedCluster([ScriptedBroker("a")]) as cluster,
        PullConsumer(cluster.address, group="g") as consumer,
    ):
        await consumer.assign(many)
        lists = 0
        consumer.pause(*many)
        consumer.resume(*many)
        await consumer._move_assigned(dict.fromkeys(many, QueueOffset(0)))

    assert lists < 10


pytestmark = pytest.mark.usefixtures("virtual_time")

QUEUE = MessageQueue("t", "a", 0)


def found(*offsets: int) -> Response:
    records = [record(b"x", b"t", queue_id=0, queue_offset=offset) for offset in offsets]
    return pulled(ResponseCode.SUCCESS, offsets[-1] + 1, records=records)


@asynccontextmanager
async def reading(broker: GroupBroker, **options: Any) -> AsyncIterator[PullConsumer]:
    """A member that has the only queue of a topic, from offset 5 on."""
    broker.bounds, broker.committed["t", 0] = (0, 100), 5
    broker.handlers[RequestCode.LITE_PULL_MESSAGE] = broker.handlers[RequestCode.PULL_MESSAGE]
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=1)
        consumer = PullConsumer(
            cluster.address, group="g", subscriptions={"t": "*"}, auto_commit_ms=1_000, **options
        )
        broker.members = [consumer.client_id]
        async with consumer:
            await consumer.ready()
            yield consumer


async def take(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    return [await anext(consumer) for _ in range(count)]


async def until_pulled_at(broker: GroupBroker, offset: int) -> None:
    await broker.until(lambda: any(pull.queue_offset == offset for pull in broker.pulls))


async def test_a_consumer_continues_behind_what_another_member_has_committed() -> None:
    """Its connection was lost: the broker may have told others that it was gone."""
    broker = GroupBroker()
    broker.pull_answers.append(found(5, 6, 7))
    async with reading(broker) as consumer:
        await take(consumer, 2)
        await broker.be_away(0.0)
        broker.committed["t", 0] = 40
        broker.commits.clear()

        await until_pulled_at(broker, 40)
        assert broker.commits == []


async def test_a_seek_to_a_lower_offset_is_committed() -> None:
    broker = GroupBroker()
    async with reading(broker) as consumer:
        broker.committed["t", 0] = 40
        await consumer.seek(QUEUE, 3)
        await broker.until(lambda: bool(broker.commits))

    assert broker.committed["t", 0] == 3


async def test_a_consumer_that_stood_still_begins_at_the_committed_offset() -> None:
    broker = GroupBroker()
    broker.pull_answers.append(found(5, 6, 7))
    async with reading(broker) as consumer:
        await take(consumer, 1)
        consumer._doubt_ends_s = 0.0  # the connection is new no more
        broker.committed["t", 0] = 40
        broker.commits.clear()
        consumer._pauses._on_pause(IDLE_S)

        await until_pulled_at(broker, 40)
        assert broker.commits == []
