"""Where a pull consumer's queues come from, and what moves them."""

from __future__ import annotations

import pytest

from cometmq.client import PullConsumer
from cometmq.client._connection.routes import Route
from cometmq.client._consuming.rebalancer import KnownQueues
from cometmq.client._pull.core import AssignmentMode, Mode
from cometmq.client._pull.fetcher import Fetcher
from cometmq.client.errors import WrongModeError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from support.scripted import ScriptedBroker, ScriptedCluster

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def route(*queues: MessageQueue) -> Route:
    """A topic's route with these queues."""
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
    assert not watched.differs(route(ONE))

    watched.look("t", [ONE])
    assert not watched.differs(route(ONE))
    assert watched.differs(route(ONE, TWO))
    assert not watched.differs(route(TWO, ONE))


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
