"""Questions about queues, against brokers that do what real ones do rarely."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from cometmq.client.library import ClientConnection
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import ConnectError, Request, Response
from cometmq.spark.brokers.metadata import Metadata, StoreTimes
from cometmq.spark.brokers.retry_policy import AwayError
from cometmq.spark.brokers.routes import AT_ONCE
from cometmq.spark.offsets import Bounds, QueueKey
from support.brokers.queue_broker import (
    QueueBroker,
    QueueNameServer,
    Time,
    first_not_before,
    nearest,
)

pytestmark = pytest.mark.long_elsewhere

STATS = RequestCode.GET_TOPIC_STATS_INFO
SINGLE = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)


def key(queue_id: int, broker: str = "a") -> QueueKey:
    return QueueKey("t", broker, queue_id)


@dataclass
class Asked:
    """Two brokers with two queues each, and who asks them."""

    metadata: Metadata
    names: QueueNameServer
    brokers: dict[str, QueueBroker]

    @property
    def keys(self) -> list[QueueKey]:
        return [key(queue_id, name) for name in self.brokers for queue_id in (0, 1)]

    def serve(self, *brokers: str, queues: int = 2) -> None:
        self.names.serve({name: {0: self.brokers[name].address} for name in brokers}, queues=queues)

    async def bounds(self, *keys: QueueKey, masters_only: bool = False) -> dict[QueueKey, Bounds]:
        routes = await self.metadata.finder.find(keys)
        return await self.metadata.bounds(routes, masters_only=masters_only)

    async def at_time(self, wanted: QueueKey, time_ms: int) -> int:
        routes = await self.metadata.finder.find([wanted])
        return (await self.metadata.at_time(routes, {wanted: time_ms}))[wanted]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    names, brokers = QueueNameServer(), {name: QueueBroker(name) for name in "ab"}
    for peer in (names, *brokers.values()):
        await peer.start()
    settings = ClientSettings(name_servers=names.address, http_domain="", call_timeout_ms=1_000)
    async with ClientConnection(settings=settings) as connection:
        found = Asked(Metadata(connection), names, brokers)
        found.serve(*brokers)
        yield found
    for peer in (names, *brokers.values()):
        await peer.stop()


# --- bounds ----------------------------------------------------------------------------------


async def test_one_request_to_each_broker_tells_the_bounds_of_all_queues(asked: Asked) -> None:
    for broker in asked.brokers.values():
        broker.put(0, 5)
        broker.put(1, 7)
    asked.brokers["b"].expire(1, 3)
    assert await asked.bounds(*asked.keys) == {
        key(0): Bounds(0, 5),
        key(1): Bounds(0, 7),
        key(0, "b"): Bounds(0, 5),
        key(1, "b"): Bounds(3, 7),
    }
    assert [dict(broker.asked) for broker in asked.brokers.values()] == [{STATS: 1}] * 2


async def test_queues_that_the_statistics_leave_out_are_asked_for_one_by_one(asked: Asked) -> None:
    """A topic may have more queues to read than to write; statistics tell of the latter."""
    broker = asked.brokers["a"]
    broker.put(0, 5)
    broker.put(1, 7)
    broker.expire(1, 2)
    broker.quiet_queues = {1}
    assert await asked.bounds(key(0), key(1)) == {key(0): Bounds(0, 5), key(1): Bounds(2, 7)}
    assert broker.asked == {STATS: 1, SINGLE[0]: 1, SINGLE[1]: 1}


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
async def test_who_may_not_see_statistics_asks_for_queues_one_by_one(
    asked: Asked, code: int
) -> None:
    """Brokers before 5.0 refuse with code 1."""
    broker = asked.brokers["a"]
    broker.put(0, 5)
    broker.script_of[STATS] = deque([Response(code, "not you")])
    assert await asked.bounds(key(0)) == {key(0): Bounds(0, 5)}


async def test_no_more_than_so_many_questions_are_open_at_a_time(asked: Asked) -> None:
    broker = asked.brokers["a"]
    asked.serve("a", queues=3 * AT_ONCE)
    broker.script_of[STATS] = deque([Response(ResponseCode.NO_PERMISSION, "not you")])
    held: list[Request] = []
    known = broker.handlers[SINGLE[0]]

    def hold(request: Request) -> None:
        held.append(request)
        broker.moved.set()

    broker.handlers[SINGLE[0]] = hold
    keys = [key(queue_id) for queue_id in range(3 * AT_ONCE)]
    asking = asyncio.create_task(asked.bounds(*keys))
    await broker.until(lambda: len(held) == AT_ONCE)
    await asked.metadata.finder.route("t")  # time enough for more
    assert len(held) == AT_ONCE
    broker.handlers[SINGLE[0]] = known
    for request in held:
        answer = known(request)
        assert isinstance(answer, Response)
        request.reply(answer)
    assert len(await asking) == 3 * AT_ONCE


# --- gone, or away ---------------------------------------------------------------------------


async def test_a_queue_is_gone_when_its_broker_is_there_without_it(asked: Asked) -> None:
    asked.serve("a", "b", queues=1)
    routes = await asked.metadata.finder.find([key(0), key(1)])
    assert list(routes.addresses) == [key(0)]
    assert routes.gone == {key(1): "a has no such queue that can be read"}


async def test_a_queue_is_gone_when_its_topic_is(asked: Asked) -> None:
    asked.names.routes.clear()
    routes = await asked.metadata.finder.find([key(0)])
    assert routes.gone == {key(0): "the topic does not exist"}


async def test_a_queue_is_gone_when_its_broker_says_that_the_topic_is(asked: Asked) -> None:
    """Name servers hear of it some time later."""
    asked.brokers["b"].put(0, 5)
    refusal = Response(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    asked.brokers["a"].script_of[STATS] = deque([refusal])
    routes = await asked.metadata.finder.find([key(0), key(0, "b")])
    assert await asked.metadata.bounds(routes) == {key(0, "b"): Bounds(0, 5)}
    assert routes.gone == {key(0): "the topic does not exist on a"}


async def test_a_queue_is_not_gone_while_its_broker_is_away(asked: Asked) -> None:
    """Name servers forget a broker that restarts, with all its queues."""
    asked.serve("b")
    routes = await asked.metadata.finder.find([key(0), key(0, "b")])
    assert list(routes.addresses) == [key(0, "b")]
    assert routes.away == {
        key(0): "topic t, queue 0 of a: a is not registered with the name server now"
    }
    assert not routes.gone


@pytest.mark.parametrize("exists", [True, False])
async def test_a_queue_of_a_static_topic_is_away_while_the_topic_exists(
    asked: Asked, exists: bool
) -> None:
    """Its broker may have any name; queues of static topics are never removed."""
    static = key(7, "__syslo__global__")
    if not exists:
        asked.names.routes.clear()
    routes = await asked.metadata.finder.find([static])
    assert (static in routes.away, static in routes.gone) == (exists, not exists)


async def test_a_queue_is_not_gone_when_its_broker_comes_back_between_two_questions(
    asked: Asked,
) -> None:
    asked.serve()
    asked.names.routes.clear()
    cluster = asked.names.handlers[RequestCode.GET_BROKER_CLUSTER_INFO]

    def come_back(request: Request) -> Response | None:
        asked.serve("a")
        return cluster(request)

    asked.names.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = come_back
    routes = await asked.metadata.finder.find([key(0)])
    assert list(routes.addresses) == [key(0)]
    assert not routes.gone


async def test_no_topic_is_missing_while_the_only_broker_is_away(asked: Asked) -> None:
    asked.serve()
    asked.names.routes.clear()
    with pytest.raises(AwayError, match="no broker is registered"):
        await asked.metadata.queues(["t"])
    asked.serve("a")
    assert await asked.metadata.queues(["t", "u"]) == {"t": [key(0), key(1)], "u": None}


async def test_a_copy_tells_the_bounds_when_the_master_does_not_answer(asked: Asked) -> None:
    master, copy = asked.brokers["a"], asked.brokers["b"]
    copy.name = "a"
    copy.put(0, 9)
    asked.names.serve({"a": {0: master.address, 1: copy.address}})
    await master.stop()
    assert await asked.bounds(key(0)) == {key(0): Bounds(0, 9, master=False)}
    copy.quiet_queues = {0}
    assert await asked.bounds(key(0)) == {key(0): Bounds(0, 9, master=False)}
    with pytest.raises(AwayError, match="the master of a does not respond, and a replica"):
        await asked.bounds(key(0), masters_only=True)


async def test_a_topic_that_only_a_replica_does_not_know_is_not_gone(asked: Asked) -> None:
    """A replica copies the table of topics some seconds later."""
    master, copy = asked.brokers["a"], asked.brokers["b"]
    asked.names.serve({"a": {0: master.address, 1: copy.address}})
    await master.stop()
    copy.script_of[STATS] = deque([Response(ResponseCode.TOPIC_NOT_EXIST, "no such topic")])
    routes = await asked.metadata.finder.find([key(0)])
    with pytest.raises(AwayError, match="the master of a does not respond"):
        await asked.metadata.bounds(routes)
    assert not routes.gone


# --- times -----------------------------------------------------------------------------------

TIMES = [1_000, 2_000, 2_000, 2_000, 3_000, 5_000]


@pytest.mark.parametrize("find", [first_not_before, nearest])
@pytest.mark.parametrize(
    "wanted", [0, 1_000, 1_200, 1_700, 2_000, 2_400, 2_600, 3_500, 4_500, 6_000]
)
async def test_a_time_leads_to_the_first_message_that_is_not_older(
    asked: Asked, find: Time, wanted: int
) -> None:
    """Whether the broker names that one, or one that is near, as those before 5.0 do."""
    broker = asked.brokers["a"]
    broker.find_time = find
    broker.put(0, 4, time_ms=100)
    for time_ms in TIMES:
        broker.put(0, 1, time_ms=time_ms)
    broker.expire(0, 4)
    assert await asked.at_time(key(0), wanted) == 4 + first_not_before(TIMES, wanted)


@pytest.mark.parametrize("hint", [0, 40, 99, 100])
async def test_a_wrong_hint_costs_few_questions(asked: Asked, hint: int) -> None:
    broker = asked.brokers["a"]
    for time_ms in range(0, 1_000, 10):
        broker.put(0, 1, time_ms=time_ms)
    broker.find_time = lambda times, wanted: hint
    assert await asked.at_time(key(0), 415) == 42
    assert len(broker.pulls) <= 16


async def test_an_empty_queue_has_any_time_at_its_end(asked: Asked) -> None:
    asked.brokers["a"].put(0, 3)
    asked.brokers["a"].expire(0, 3)
    assert await asked.at_time(key(0), 7) == 3


async def test_a_hole_has_the_time_of_the_message_behind_it(asked: Asked) -> None:
    broker = asked.brokers["a"]
    broker.put(0, 3, time_ms=1_000)
    broker.put(0, 3, time_ms=2_000, gap=5)
    broker.find_time = lambda times, wanted: 4
    broker.times[0].update(dict.fromkeys(range(3, 8), 0))
    assert await asked.at_time(key(0), 1_500) == 3
    assert await asked.at_time(key(0), 2_500) == 11


async def test_a_message_has_a_store_time_at_its_offset_alone(asked: Asked) -> None:
    """A broker responds to a pull at a hole with the message behind it."""
    broker = asked.brokers["a"]
    broker.put(0, 3, time_ms=1_000)
    broker.put(0, 3, time_ms=2_000, gap=5)
    broker.put(1, 4, time_ms=3_000)
    broker.expire(1, 2)

    for offset, time_ms in ((0, 1_000), (2, 1_000), (3, None), (8, 2_000), (11, None)):
        routes = await asked.metadata.finder.find([key(0)])
        found = await asked.metadata.store_times(routes, {key(0): offset}, "g")
        assert (found[key(0)].at if found else None) == time_ms
    both = {key(0): 10, key(1): 1}
    routes = await asked.metadata.finder.find(both)
    assert await asked.metadata.store_times(routes, both, "g") == {key(0): StoreTimes(2_000, 0)}
    before_hole = {key(0): 2}
    routes = await asked.metadata.finder.find(before_hole)
    found = await asked.metadata.store_times(routes, before_hole, "g")
    assert found == {key(0): StoreTimes(1_000, 2_000)}
    assert {pull.consumer_group for pull in broker.pulls} == {"g"}


async def test_a_queue_whose_pull_is_refused_has_no_store_time(asked: Asked) -> None:
    asked.brokers["a"].put(0, 3)
    refused = Response(ResponseCode.NO_PERMISSION, "no")
    asked.brokers["a"].script_of[RequestCode.PULL_MESSAGE] = deque([refused])
    routes = await asked.metadata.finder.find([key(0)])

    assert await asked.metadata.store_times(routes, {key(0): 1}, "g") == {}


async def test_statistics_say_when_the_newest_message_was_stored(asked: Asked) -> None:
    asked.brokers["a"].put(0, 3, time_ms=1_000)
    asked.brokers["a"].put(0, 1, time_ms=2_000)

    assert (await asked.bounds(key(0)))[key(0)].newest_ms == 2_000


# --- groups ----------------------------------------------------------------------------------


async def test_a_group_has_no_offset_where_it_has_committed_none(asked: Asked) -> None:
    """Brokers before 5.0 would say 0."""
    asked.brokers["a"].offsets = {"t@g": {0: 4}, "t@other": {1: 9}, "%RETRY%g@g": {1: 9}}
    routes = await asked.metadata.finder.find(asked.keys)
    assert await asked.metadata.committed(routes, "g") == {key(0): 4}
    assert asked.brokers["a"].asked[RequestCode.GET_ALL_CONSUMER_OFFSET] == 1


async def test_who_may_not_see_all_offsets_asks_for_those_of_the_group(asked: Asked) -> None:
    asked.brokers["a"].offsets = {"t@g": {0: 4}}
    asked.brokers["b"].offsets = {"t@g": {1: 7}}
    refusal = Response(ResponseCode.NO_PERMISSION, "not you")
    asked.brokers["a"].script_of[RequestCode.GET_ALL_CONSUMER_OFFSET] = deque([refusal])
    routes = await asked.metadata.finder.find(asked.keys)
    assert await asked.metadata.committed(routes, "g") == {key(0): 4, key(1, "b"): 7}
    assert asked.brokers["b"].asked[RequestCode.QUERY_CONSUMER_OFFSET] == 0


@pytest.mark.parametrize("fault", ["refuses", "is away"])
async def test_a_question_to_many_fails_like_a_question_to_one(asked: Asked, fault: str) -> None:
    """And leaves no task behind."""
    if fault == "is away":
        await asked.brokers["a"].stop()
    else:
        refusal = Response(ResponseCode.INVALID_PARAMETER, "what?")
        asked.brokers["a"].script_of[STATS] = deque([refusal])
    before = asyncio.all_tasks()
    with pytest.raises((ResponseError, ConnectError)):
        await asked.bounds(*asked.keys)
    assert not [task for task in asyncio.all_tasks() - before if "ask_each" in repr(task)]
