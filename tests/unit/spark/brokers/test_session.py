"""Requests about queues of several brokers, of which some do not respond."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.spark.brokers import Away, Bounds, BrokerSession, StoreTimes
from cometmq.spark.errors import UnreachableError
from cometmq.spark.offsets import QueueKey
from cometmq.spark.options.connection import ConnectionOptions
from support.brokers.queue_broker import QueueBroker, QueueNameServer

T = TypeVar("T")
STATS = RequestCode.GET_TOPIC_STATS_INFO
A, B = QueueKey("t", "a", 0), QueueKey("t", "b", 0)


@dataclass
class Cluster:
    """Two brokers with a queue each, and a session whose calls wait in a thread."""

    session: BrokerSession
    names: QueueNameServer
    brokers: dict[str, QueueBroker]

    def serve(self, *brokers: str) -> None:
        self.names.serve({name: {0: self.brokers[name].address} for name in brokers}, queues=1)

    async def call(self, method: Callable[..., T], *given: Any, **named: Any) -> T:
        return await asyncio.to_thread(method, *given, **named)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    names, brokers = QueueNameServer(), {name: QueueBroker(name) for name in "ab"}
    for peer in (names, *brokers.values()):
        await peer.start()
    for broker in brokers.values():
        broker.put(0, 5, time_ms=1_000)
        broker.put(0, 1, time_ms=2_000)
    options = ConnectionOptions(name_servers=names.address, retries=2, retry_interval_ms=1)
    found = Cluster(BrokerSession(options), names, brokers)
    found.serve(*brokers)
    yield found
    await asyncio.to_thread(found.session.close)
    for peer in (names, *brokers.values()):
        await peer.stop()


@pytest.mark.parametrize("registered", [True, False])
async def test_a_broker_that_does_not_respond_leaves_the_responses_of_the_others(
    cluster: Cluster, registered: bool
) -> None:
    await cluster.brokers["a"].stop()
    if not registered:
        cluster.serve("b")
    away: Away = {}
    gone: set[QueueKey] = set()
    session = cluster.session

    assert await cluster.call(session.bounds, [A, B], gone=gone, away=away) == {B: Bounds(0, 6)}
    assert list(away) == [A]
    assert "no response after 3 tries" in away[A]
    assert not gone
    with pytest.raises(UnreachableError, match="bounds of 1 queues of topic t: no response"):
        await cluster.call(session.bounds, [A, B])


async def test_times_come_from_the_brokers_that_respond(cluster: Cluster) -> None:
    await cluster.brokers["a"].stop()
    away: Away = {}
    session = cluster.session

    found = await cluster.call(session.store_times, {A: 4, B: 4}, away=away)
    assert (found, list(away)) == ({B: StoreTimes(1_000, 2_000)}, [A])
    samples = await cluster.call(session.samples, {A: 4, B: 4}, messages=2, away=away)
    ((key, sample),) = samples.items()
    assert (key, sample.stored_ms, list(away)) == (B, 1_000, [A])
    assert sample.size == len(cluster.brokers["b"].records[0][4])
    times = await cluster.call(session.at_time, {A: 1_500, B: 1_500}, away=away)
    assert (times, list(away)) == ({B: 5}, [A])


async def test_a_broker_that_was_away_is_requested_once(cluster: Cluster) -> None:
    connects: Counter[str] = Counter()
    await cluster.brokers["a"].stop()
    known: Callable[..., Any] = cluster.names.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def count(request: Any) -> Any:
        connects["routes"] += 1
        return known(request)

    cluster.names.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = count
    away: Away = {A: "before"}

    assert await cluster.call(cluster.session.bounds, [A, B], away=away) == {B: Bounds(0, 6)}
    assert "after the only attempt" in away[A]
    assert connects["routes"] == 1
    await cluster.brokers["a"].move()
    cluster.serve("a", "b")
    assert set(await cluster.call(cluster.session.bounds, [A, B], away=away)) == {A, B}
    assert not away


async def test_all_queues_are_away_while_no_name_server_responds(cluster: Cluster) -> None:
    await cluster.names.stop()
    away: Away = {}

    assert await cluster.call(cluster.session.bounds, [A, B], away=away) == {}
    assert list(away) == [A, B]


async def test_a_broker_that_hangs_is_given_up_in_time(cluster: Cluster) -> None:
    """The others do not wait for the timeout of its request."""
    cluster.brokers["a"].handlers[STATS] = lambda request: None
    away: Away = {}
    session = cluster.session.retrying(0.05)

    assert await cluster.call(session.bounds, [A, B], away=away) == {B: Bounds(0, 6)}
    assert "no response within 0.05 s" in away[A]
