"""Requests that only masters get, and the number of requests in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from cometmq.client.errors import NameServerError
from cometmq.client.library import ClientConnection
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.remoting import Request, Response
from cometmq.spark.brokers.metadata import Metadata
from cometmq.spark.brokers.retry_policy import AwayError, RetryPolicy
from cometmq.spark.brokers.routes import AT_ONCE
from cometmq.spark.errors import UnreachableError
from cometmq.spark.offsets import QueueKey
from support.brokers.queue_broker import QueueBroker, QueueNameServer
from support.brokers.scripted import Act

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
KEY = QueueKey("t", "a", 0)


@dataclass
class Replicated:
    """A broker with a replica that keeps less and has copied no offsets of groups yet."""

    metadata: Metadata
    names: QueueNameServer
    master: QueueBroker
    replica: QueueBroker

    async def at_time(self, time_ms: int) -> int:
        routes = await self.metadata.finder.find([KEY])
        return (await self.metadata.at_time(routes, {KEY: time_ms}))[KEY]

    async def committed(self) -> dict[QueueKey, int]:
        routes = await self.metadata.finder.find([KEY])
        return await self.metadata.committed(routes, "g")


@pytest.fixture
async def replicated() -> AsyncIterator[Replicated]:
    names, master, replica = QueueNameServer(), QueueBroker("a"), QueueBroker("a")
    for broker in (master, replica):
        broker.put(0, 9, time_ms=1_000)
    replica.expire(0, 5)
    master.offsets = {"t@g": {0: 4}}
    peers = (names, master, replica)
    for peer in peers:
        await peer.start()
    names.serve({"a": {0: master.address, 1: replica.address}})
    settings = ClientSettings(name_servers=names.address, http_domain="", call_timeout_ms=60_000)
    async with ClientConnection(settings=settings) as connection:
        yield Replicated(Metadata(connection), names, master, replica)
    for peer in peers:
        await peer.stop()


async def test_a_master_that_responds_says_where_a_time_and_a_group_are(
    replicated: Replicated,
) -> None:
    assert await replicated.at_time(0) == 0
    assert await replicated.committed() == {KEY: 4}


@pytest.mark.parametrize("registered", [True, False])
async def test_a_replica_is_not_asked_where_a_time_is(
    replicated: Replicated, registered: bool
) -> None:
    """It may keep messages for a shorter time: what the master has before would be skipped."""
    await replicated.master.stop()
    if not registered:
        replicated.names.serve({"a": {1: replicated.replica.address}})
    with pytest.raises(AwayError, match="topic t, queue 0 of a: the master of a does not respond"):
        await replicated.at_time(0)
    assert not replicated.replica.asked


@pytest.mark.parametrize("registered", [True, False])
async def test_a_replica_is_not_asked_what_a_group_has_committed(
    replicated: Replicated, registered: bool
) -> None:
    """It copies offsets some seconds later; without one, a query starts at its default."""
    await replicated.master.stop()
    if not registered:
        replicated.names.serve({"a": {1: replicated.replica.address}})
    with pytest.raises(AwayError, match="topic t, queue 0 of a: the master of a does not respond"):
        await replicated.committed()
    assert not replicated.replica.asked


async def test_a_replica_is_not_asked_for_a_group_whose_table_the_master_refuses(
    replicated: Replicated,
) -> None:
    replicated.master.script_of = {
        RequestCode.GET_ALL_CONSUMER_OFFSET: deque([Response(ResponseCode.NO_PERMISSION, "no")]),
        RequestCode.QUERY_CONSUMER_OFFSET: deque([Act.HANG_UP]),
    }
    with pytest.raises(AwayError, match="topic t, queue 0 of a: the master of a does not respond"):
        await replicated.committed()
    assert not replicated.replica.asked


async def test_a_master_is_asked_again_until_it_responds(replicated: Replicated) -> None:
    await replicated.master.stop()
    policy = RetryPolicy(1, 0.0)
    with pytest.raises(UnreachableError, match=r"times: no response after 2 tries.* master of a"):
        await policy.run("times", lambda: replicated.at_time(0))

    async def restarted() -> int:
        try:
            return await replicated.at_time(0)
        finally:
            replicated.names.serve({"a": {0: back.address, 1: replicated.replica.address}})

    back = QueueBroker("a")
    back.copy_from(replicated.master)
    await back.start()
    assert await policy.run("times", restarted) == 0
    await back.stop()


class HeldRoutes:
    """Requests for routes that a name server answers only when a test says so."""

    def __init__(self, names: QueueNameServer) -> None:
        self.names = names
        self.held: dict[str, Request] = {}
        self._usual = names.handlers[ROUTE]
        names.handlers[ROUTE] = self._hold

    def _hold(self, request: Request) -> None:
        self.held[request.header(GetRouteinfoByTopicRequest).topic] = request
        self.names.moved.set()

    def reply(self) -> None:
        """Answer those that are held, and the next ones at once."""
        self.names.handlers[ROUTE] = self._usual
        for request in self.held.values():
            answer = self._usual(request)
            assert isinstance(answer, Response)
            request.reply(answer)


async def test_no_more_than_so_many_routes_are_requested_at_a_time(
    replicated: Replicated,
) -> None:
    places, names = replicated.metadata.finder, replicated.names
    held = HeldRoutes(names)
    topics = [f"t{number}" for number in range(3 * AT_ONCE)]
    asking = asyncio.create_task(places.routes(topics))
    await names.until(lambda: len(held.held) >= AT_ONCE)
    await places.cluster()  # time enough for more
    assert len(held.held) == AT_ONCE
    held.reply()
    assert await asking == dict.fromkeys(topics)


async def test_a_route_that_fails_leaves_no_request_for_another_one(
    replicated: Replicated,
) -> None:
    places, names = replicated.metadata.finder, replicated.names
    held = HeldRoutes(names)
    before = asyncio.all_tasks()
    asking = asyncio.create_task(places.routes(["t", "u"]))
    await names.until(lambda: len(held.held) == 2)
    held.held["u"].reply(Response(ResponseCode.NO_PERMISSION, "not you"))
    with pytest.raises((NameServerError, ResponseError)):
        await asking
    assert not [task for task in asyncio.all_tasks() - before if "placing.py" in repr(task)]
