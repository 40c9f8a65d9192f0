"""Offsets and bounds of queues, and resets, from the bytes of a client through a real store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.offsets.handler import AHEAD_OF_ALL, OffsetHandler
from cometmq.broker.offsets.queue_bounds import QueueBoundsHandler
from cometmq.broker.offsets.reset import ResetHandler
from cometmq.model.queue import MessageQueue
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.group import QueryCorrectionOffsetBody, ResetOffsetBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.store import MessageStore
from support.stores.small_stores import put
from support.wire.memory_link import link
from unit.broker.conftest import Tables


class Broker:
    """The part of a broker that offsets live in; topic T has two queues, group g exists."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self.tables = tables
        self.store = store
        self.offsets = tables.offsets
        self.offsets.next_offset = store.next_offset
        self.consumers = ConsumerRegistry(tables.clock)
        tables.topic("T", queues=2)
        tables.group("g")
        core = tables.core(store, consumers=self.consumers)
        offsets, bounds, reset = OffsetHandler(core), QueueBoundsHandler(core), ResetHandler(core)
        self.told: list[Command] = []
        self.server, self.client = link(
            {
                RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
                RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
                RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all,
                RequestCode.CLONE_GROUP_OFFSET: offsets.clone,
                RequestCode.QUERY_CORRECTION_OFFSET: offsets.correction,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: bounds.search,
                RequestCode.GET_MAX_OFFSET: bounds.max_offset,
                RequestCode.GET_MIN_OFFSET: bounds.min_offset,
                RequestCode.GET_EARLIEST_MSG_STORETIME: bounds.earliest_time,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset.reset,
            },
            {
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: lambda request: self.told.append(
                    request.command
                )
            },
        )

    async def ask(self, code: int, **fields: Any) -> Command:
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        return await self.client.call(code, fields=texts, timeout=30)

    async def query(self, **changes: Any) -> Command:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0} | changes
        return await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)

    async def update(self, offset: int, **changes: Any) -> Command:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
        return await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **(fields | changes))

    async def reset(self, timestamp: int, **changes: Any) -> Command:
        fields = {"topic": "T", "group": "g", "timestamp": timestamp, "isForce": True} | changes
        return await self.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)

    def put(self, count: int, queue: int = 0) -> list[int]:
        """Store messages 10 ms apart; returns their store times."""
        times = []
        for _ in range(count):
            put(self.store, b"x", topic="T", queue_id=queue)
            times.append(self.tables.clock.now_ms())
            self.tables.clock.advance(10)
        return times

    def by_clients(self) -> None:
        self.tables.settings = dataclasses.replace(
            self.tables.settings, use_server_side_reset_offset=False
        )

    def online(self, language: str = "JAVA") -> None:
        self.server.language = language
        self.consumers.register(
            self.server, "c", "g", kind="", model="", consume_from="", subscriptions=[]
        )


def offsets_of(answer: Command) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    return table_of(answer)


def table_of(command: Command) -> dict[int, int]:
    table = ResetOffsetBody.decode(command.body).offset_table
    assert all(queue == MessageQueue("T", "b", queue.queue_id) for queue in table)
    return {queue.queue_id: offset for queue, offset in table.items()}


# --- query and update -------------------------------------------------------------------------


async def test_a_committed_offset_comes_back(broker: Broker) -> None:
    broker.put(5)
    assert (await broker.update(5)).code == 0
    answer = await broker.query()
    assert (answer.code, answer.fields["offset"]) == (0, "5")


@pytest.mark.parametrize(("queue", "end"), [(0, 3), (1, 0)], ids=["some messages", "none"])
async def test_an_offset_beyond_the_end_of_its_queue_counts_as_the_end(
    broker: Broker, caplog: pytest.LogCaptureFixture, queue: int, end: int
) -> None:
    """Else the group would skip what is stored there next."""
    broker.put(3)
    assert (await broker.update(end, queueId=queue)).code == 0
    assert "beyond the end" not in caplog.text
    assert (await broker.update(10**12, queueId=queue)).code == 0
    assert (await broker.query(queueId=queue)).fields["offset"] == str(end)
    assert (
        "a client commits an offset beyond the end of its queue, the end counts"
        f" group=g topic=T queue={queue} offset=1000000000000 end={end}"
    ) in caplog.text


async def test_a_queue_that_may_lack_messages_limits_no_offset(broker: Broker) -> None:
    """The group may have consumed them: from the master of this slave, or before a full disk."""
    broker.offsets.may_lack_messages = lambda: True
    assert (await broker.update(7)).code == 0
    assert (await broker.query()).fields["offset"] == "7"


@pytest.mark.parametrize("messages", [0, 3])
async def test_a_new_group_on_a_young_queue_starts_at_0(broker: Broker, messages: int) -> None:
    broker.put(messages)
    assert (await broker.query()).fields["offset"] == "0"
    refused = await broker.query(setZeroIfNotFound=False)
    assert refused.code == 22
    assert refused.remark == "Not found, do not set to zero, maybe this group boot first"


@pytest.mark.parametrize("changes", [{"topic": "U"}, {"queueId": 2}, {"queueId": -1}])
async def test_a_queue_that_does_not_exist_has_no_offset(
    broker: Broker, changes: dict[str, Any]
) -> None:
    answer = await broker.query(**changes)
    assert answer.code == 22
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


@pytest.mark.parametrize(
    ("changes", "code", "start"),
    [
        ({"consumerGroup": "h"}, 26, "Group h not exist!"),
        ({"topic": "U"}, 17, "Topic U not exist!"),
        ({"queueId": 2}, 29, "queueId[2] is illegal"),
        ({"queueId": -1}, 29, "queueId[-1] is illegal"),
        ({"commitOffset": -1}, 29, "Offset is -1"),
    ],
)
async def test_only_offsets_of_what_exists_are_kept(
    broker: Broker, changes: dict[str, Any], code: int, start: str
) -> None:
    answer = await broker.update(5, **changes)
    assert answer.code == code
    assert (answer.remark or "").startswith(start)
    assert broker.offsets.table() == {}


async def test_all_offsets_travel_with_bare_numbers(broker: Broker) -> None:
    broker.put(5)
    await broker.update(5)
    answer = await broker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"offsetTable":{"T@g":{0:5}}' in answer.body
    assert fastjson.loads(answer.body)["groupTopicMap"] == {"g": ["T"]}


async def test_a_group_can_stand_where_another_stands(broker: Broker) -> None:
    broker.put(5)
    await broker.update(5)
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "T"}
    assert (await broker.ask(RequestCode.CLONE_GROUP_OFFSET, **fields)).code == 0
    assert broker.offsets.committed("h", "T", 0) == 5
    refused = await broker.ask(RequestCode.CLONE_GROUP_OFFSET, **(fields | {"destGroup": "a@b"}))
    assert refused.code == 29


async def test_correction_is_the_slowest_of_the_groups_that_count(broker: Broker) -> None:
    broker.put(9)
    for group, offset in (("g", 5), ("h", 3), ("i", 1)):
        broker.offsets.commit(group, "T", 0, offset)

    async def corrected(group: str, left_out: str) -> dict[int, int]:
        answer = await broker.ask(
            RequestCode.QUERY_CORRECTION_OFFSET,
            topic="T",
            compareGroup=group,
            filterGroups=left_out,
        )
        return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets

    assert await corrected("i", "i") == {0: 3}
    assert await corrected("g", "i,g") == {0: AHEAD_OF_ALL}


# --- bounds -----------------------------------------------------------------------------------


async def test_bounds_and_times_of_a_queue(broker: Broker) -> None:
    times = broker.put(3)
    place = {"topic": "T", "queueId": 0}
    assert (await broker.ask(RequestCode.GET_MAX_OFFSET, **place)).fields["offset"] == "3"
    assert (await broker.ask(RequestCode.GET_MIN_OFFSET, **place)).fields["offset"] == "0"
    earliest = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **place)
    assert earliest.fields["timestamp"] == str(times[0])

    async def search(timestamp: int, **changes: Any) -> str:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await broker.ask(code, **place, timestamp=timestamp, **changes)
        return answer.fields["offset"]

    assert await search(times[1]) == "1"
    assert await search(times[1] + 1) == "2"
    assert await search(times[1] + 1, boundaryType="upper") == "1"
    assert await search(times[2] + 1) == "3"


async def test_an_empty_queue_has_no_earliest_time(broker: Broker) -> None:
    answer = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=0)
    assert answer.fields["timestamp"] == "-1"


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("U", 0), ("T", 2), ("T", -1), ("T", 2**31 - 1), ("../T", 0)]
)
async def test_a_queue_that_does_not_exist_is_answered_like_an_empty_one(
    broker: Broker, topic: str, queue_id: int
) -> None:
    place = {"topic": topic, "queueId": queue_id}
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        answer = await broker.ask(code, **place)
        assert (answer.code, answer.fields["offset"]) == (0, "0")
    answer = await broker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **place, timestamp=1)
    assert (answer.code, answer.fields["offset"]) == (0, "0")
    answer = await broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **place)
    assert (answer.code, answer.fields["timestamp"]) == (0, "-1")
    assert not broker.store.queue_keys(), "a question must not create a queue"


# --- resets -----------------------------------------------------------------------------------


async def test_a_reset_by_time_concerns_all_queues_and_holds_until_the_pull(
    broker: Broker,
) -> None:
    times = broker.put(5)
    broker.put(1, queue=1)
    await broker.update(5)
    assert offsets_of(await broker.reset(times[2])) == {0: 2, 1: 0}
    late = await broker.update(5)
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    assert (await broker.query()).fields["offset"] == "2"
    assert broker.offsets.take_reset("g", "T", 0) == 2
    assert (await broker.update(3)).remark is None


async def test_a_reset_to_the_end(broker: Broker) -> None:
    broker.put(5)
    assert offsets_of(await broker.reset(-1)) == {0: 5, 1: 0}


@pytest.mark.parametrize(("offset", "expected"), [(3, 3), (6, 5), (None, 5)])
async def test_a_reset_of_one_queue(broker: Broker, offset: int | None, expected: int) -> None:
    broker.put(5)
    changes = {"queueId": 0} if offset is None else {"queueId": 0, "offset": offset}
    assert offsets_of(await broker.reset(-1, **changes)) == {0: expected}
    assert not broker.offsets.is_reset_pending("g", "T", 1)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "U"}, 17, "Topic U does not exist"),
        ({"group": "h"}, 26, "Group h does not exist"),
        (
            {"queueId": 0, "offset": 7},
            1,
            "Target offset 7 not in consume queue range [0-5]",
        ),
        (
            {"queueId": 2, "offset": 0},
            29,
            "queueId[2] is illegal, topic:[T] topicConfig.readQueueNums:[2]",
        ),
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(
    broker: Broker, changes: dict[str, Any], code: int, remark: str
) -> None:
    broker.put(5)
    answer = await broker.reset(0, **changes)
    assert (answer.code, answer.remark) == (code, remark)
    assert not broker.offsets.has_resets


async def test_clients_reset_themselves_where_the_broker_does_not(broker: Broker) -> None:
    times = broker.put(5)
    broker.by_clients()
    broker.online()
    for queue in (0, 1):
        broker.offsets.commit("g", "T", queue, 4)
    offsets = offsets_of(await broker.reset(times[1]))
    assert offsets == {0: 1, 1: 0}
    (told,) = broker.told
    assert told.is_oneway
    assert (told.fields["topic"], told.fields["group"]) == ("T", "g")
    assert table_of(told) == offsets
    assert (await broker.query()).fields["offset"] == "4"


async def test_a_gentle_reset_by_clients_never_skips_ahead(broker: Broker) -> None:
    broker.put(5)
    broker.by_clients()
    broker.online()
    for queue in (0, 1):
        broker.offsets.commit("g", "T", queue, 2)
    assert offsets_of(await broker.reset(-1, isForce=False)) == {0: 2, 1: 0}


async def test_cpp_clients_are_told_in_a_list(broker: Broker) -> None:
    broker.by_clients()
    broker.online("CPP")
    for queue in (0, 1):
        broker.offsets.commit("g", "T", queue, 2)
    await broker.reset(-1)
    (told,) = broker.told
    table = fastjson.loads(told.body)["offsetTable"]
    assert table[0] == {"topic": "T", "brokerName": "b", "queueId": 0, "offset": 0}


async def test_a_reset_by_clients_needs_offsets_and_clients(broker: Broker) -> None:
    broker.by_clients()
    assert (await broker.reset(0)).remark == "THe consumer group <g> not exist"
    for queue in (0, 1):
        broker.offsets.commit("g", "T", queue, 2)
    offline = await broker.reset(0)
    assert offline.code == 206
    assert (await broker.reset(0, topic="U")).code == 17
