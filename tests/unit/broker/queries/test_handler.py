"""Queries of administrators: messages, queue entries, figures, members, relayed requests."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.queries import handler
from cometmq.broker.stats.group_lag import time_text
from cometmq.broker.stats.runtime_info import (
    DelayLevelOffsets,
    bytes_text,
    running_text,
)
from cometmq.broker.transactions.half_queue import HalfMessageFigures
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.record import decode_record
from cometmq.remoting import Request, Response
from support.brokers.broker_parts import ADDRESS, BrokerParts
from support.wire.memory_link import link
from support.wire.recorded import VERSIONS, answers, shape

FOREVER = 2**60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerParts]:
    administered = BrokerParts(tmp_path)
    yield administered
    administered.store.close()


def by_key(key: str, topic: str = "T", **changes: object) -> dict[str, object]:
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": FOREVER,
    }
    return fields | changes


def bodies(data: bytes) -> list[bytes]:
    found = []
    while data:
        size_bytes = int.from_bytes(data[:4], "big")
        found.append(bytes(decode_record(data[:size_bytes]).body))
        data = data[size_bytes:]
    return found


# --- messages -----------------------------------------------------------------------------------


async def test_messages_are_found_by_key(broker: BrokerParts) -> None:
    for number in range(3):
        broker.put("T", str(number).encode(), KEYS="k other")
    broker.put("T", b"x", KEYS="else")
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, **by_key("k"))

    assert answer.code == 0
    assert sorted(bodies(answer.body)) == [b"0", b"1", b"2"]
    assert int(answer.fields["indexLastUpdateTimestamp"]) == broker.clock.now_ms()
    assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0


async def test_unknown_key_is_code_22_with_the_index_position(broker: BrokerParts) -> None:
    broker.put("T", b"x", KEYS="k")
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, **by_key("missing"))

    assert answer.code == 22
    assert answer.remark == "can not find message, maybe time range not correct"
    assert int(answer.fields["indexLastUpdateTimestamp"]) > 0


async def test_unique_keys_ignore_the_count(broker: BrokerParts) -> None:
    for _ in range(3):
        broker.put("T", b"x", UNIQ_KEY="u")
    fields = by_key("u", maxNum=1)
    plain = await broker.ask(RequestCode.QUERY_MESSAGE, **fields)
    unique = await broker.ask(RequestCode.QUERY_MESSAGE, **fields, _UNIQUE_KEY_QUERY=True)

    assert (len(bodies(plain.body)), len(bodies(unique.body))) == (1, 3)


async def test_answer_stays_within_a_frame(
    broker: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "RESPONSE_BYTES_MAX", 2500)
    for _ in range(5):
        broker.put("T", b"x" * 1000, KEYS="k")
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, **by_key("k"))

    assert len(bodies(answer.body)) == 2


async def test_one_message_is_told_even_if_it_is_large(
    broker: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "RESPONSE_BYTES_MAX", 10)
    broker.put("T", b"x" * 1000, KEYS="k")
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, **by_key("k"))

    assert len(bodies(answer.body)) == 1


async def test_message_is_found_by_queue(broker: BrokerParts) -> None:
    broker.put("T", b"first")
    place = broker.put("T", b"second")
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=place)

    assert bodies(answer.body) == [b"second"]


@pytest.mark.parametrize("offset", [-1, FOREVER])
async def test_no_message_outside_the_log(broker: BrokerParts, offset: int) -> None:
    broker.put("T", b"x")
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)

    assert answer.code == 1
    assert answer.remark == f"can not find message by the offset, {offset}"


@pytest.mark.parametrize("skipped_bytes", [1, 4, 50])
async def test_no_message_begins_inside_another(broker: BrokerParts, skipped_bytes: int) -> None:
    place = broker.put("T", b"x" * 100)
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=place + skipped_bytes)

    assert answer.code == 1


# --- queue entries ------------------------------------------------------------------------------


async def entries(broker: BrokerParts, **changes: object) -> Any:
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 10} | changes
    return await broker.ask_json(RequestCode.QUERY_CONSUME_QUEUE, **fields)


async def test_entries_tell_place_size_and_tag(broker: BrokerParts) -> None:
    broker.make_topic()
    place = broker.put("T", b"x", TAGS="blue")
    body = await entries(broker)

    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 1)
    assert body["queueData"] == [
        {
            "eval": False,
            "physicOffset": place,
            "physicSize": body["queueData"][0]["physicSize"],
            "tagsCode": java_hash("blue"),
        }
    ]
    assert body["queueData"][0]["physicSize"] > 90


async def test_entries_begin_at_the_index(broker: BrokerParts) -> None:
    broker.make_topic()
    places = [broker.put("T", b"x") for _ in range(5)]
    body = await entries(broker, index=2, count=2)

    assert [entry["physicOffset"] for entry in body["queueData"]] == places[2:4]


async def test_entries_without_bit_maps_are_not_evaluated(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.put("T", b"x", TAGS="blue")
    broker.put("T", b"x", TAGS="red")
    broker.join("G", "c1", "T:red")
    body = await entries(broker, consumerGroup="G")

    assert [entry["eval"] for entry in body["queueData"]] == [False, False]
    assert body["subscriptionData"]["subString"] == "red"


@pytest.mark.parametrize(
    ("subscription", "passes"), [("T:red", [False, True]), ("T", [True, True])]
)
async def test_a_group_shows_which_messages_with_bit_maps_it_receives(
    tmp_path: Path, subscription: str, passes: list[bool]
) -> None:
    broker = BrokerParts(tmp_path, has_bitmaps=True)
    broker.make_topic()
    server, _ = link(on_close=broker.consumers.connection_closed)
    data = SubscriptionData(topic="T", sub_string="n > 1", expression_type="SQL92", sub_version=5)
    broker.consumers.register(
        server, "c2", "H", kind="", model="", consume_from="", subscriptions=[Subscription(data)]
    )
    broker.clock.advance(1)
    broker.put("T", b"x", TAGS="blue")
    broker.put("T", b"x", TAGS="red")
    broker.join("G", "c1", subscription)
    body = await entries(broker, consumerGroup="G")

    assert all("bitMap" in entry for entry in body["queueData"])
    assert [entry["eval"] for entry in body["queueData"]] == passes
    broker.store.close()


async def test_a_group_with_an_expression_shows_its_filter_data_and_the_bit_maps(
    tmp_path: Path,
) -> None:
    broker = BrokerParts(tmp_path, has_bitmaps=True)
    broker.make_topic()
    server, _ = link(on_close=broker.consumers.connection_closed)
    data = SubscriptionData(topic="T", sub_string="n > 1", expression_type="SQL92", sub_version=5)
    broker.consumers.register(
        server, "c1", "G", kind="", model="", consume_from="", subscriptions=[Subscription(data)]
    )
    born_ms = broker.clock.now_ms()
    broker.clock.advance(1)
    broker.put("T", b"x", n="1")
    broker.put("T", b"x", n="2")
    body = await entries(broker, consumerGroup="G")

    found = broker.filters.find("T", "G")
    assert found is not None
    assert json.loads(body["filterData"]) == {
        "bloomFilterData": {"bitNum": 112, "bitPos": list(found.positions)},
        "bornTime": born_ms,
        "clientVersion": 5,
        "consumerGroup": "G",
        "dead": False,
        "deadTime": 0,
        "expression": "n > 1",
        "expressionType": "SQL92",
        "topic": "T",
    }
    bits = ["".join(entry["bitMap"].split("\n")) for entry in body["queueData"]]
    assert bits[0] == "0" * 112
    ones = {111 - position for position, bit in enumerate(bits[1]) if bit == "1"}
    assert ones == set(found.positions)
    assert [entry["eval"] for entry in body["queueData"]] == [False, True]
    assert json.loads(body["queueData"][0]["extendDataJson"]) == {
        "filterBitMap": base64.b64encode(bytes(14)).decode(),
        "msgStoreTime": born_ms + 1001,
        "size": 34,
        "tagsCode": 0,
    }
    broker.store.close()


async def test_a_group_whose_expression_is_not_understood_shows_why(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.put("T", b"x")
    server, _ = link(on_close=broker.consumers.connection_closed)
    data = SubscriptionData(topic="T", sub_string="n >", expression_type="SQL92")
    broker.consumers.register(
        server, "c1", "G", kind="", model="", consume_from="", subscriptions=[Subscription(data)]
    )
    body = await entries(broker, consumerGroup="G")

    assert "Your expression may be wrong! SQL92 at character 4" in body["filterData"]
    assert [entry["eval"] for entry in body["queueData"]] == [False]


async def test_a_group_offline_is_said_to_be(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.put("T", b"x")
    body = await entries(broker, consumerGroup="G")

    assert body["filterData"] == "G@T is not online!"


async def test_an_index_outside_is_a_remark(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.put("T", b"x")
    fields = {"topic": "T", "queueId": 0, "index": 7, "count": 1}
    answer = await broker.ask(RequestCode.QUERY_CONSUME_QUEUE, **fields)

    assert (answer.code, answer.remark, answer.body) == (
        0,
        "Index 7 of 0@T is not exist!",
        b"",
    )


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 1), ("T", -1), ("other", 0)])
async def test_an_unknown_queue_is_code_1(broker: BrokerParts, topic: str, queue_id: int) -> None:
    broker.make_topic()
    fields = {"topic": topic, "queueId": queue_id, "index": 0, "count": 1}
    answer = await broker.ask(RequestCode.QUERY_CONSUME_QUEUE, **fields)

    assert answer.code == 1
    assert answer.remark == f"{queue_id}@{topic} is not exist!"


# --- figures ------------------------------------------------------------------------------------


def queue(queue_id: int, topic: str = "T") -> dict[str, object]:
    return {"brokerName": "broker-a", "queueId": queue_id, "topic": topic}


async def test_topic_stats_tell_bounds_and_last_write(broker: BrokerParts) -> None:
    broker.make_topic(queues=2)
    broker.put("T", b"x", queue_id=1)
    broker.put("T", b"y", queue_id=1)
    body = await broker.ask_json(RequestCode.GET_TOPIC_STATS_INFO, topic="T")

    empty = {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    written = {"minOffset": 0, "maxOffset": 2, "lastUpdateTimestamp": broker.clock.now_ms()}
    assert list(body["offsetTable"]) == [(queue(0), empty), (queue(1), written)]


async def test_topic_stats_of_a_missing_topic_is_code_17(broker: BrokerParts) -> None:
    answer = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")

    assert (answer.code, answer.remark) == (17, "topic[T] not exist")


async def test_progress_tells_lag_and_what_is_in_flight(broker: BrokerParts) -> None:
    broker.make_topic()
    for _ in range(5):
        broker.put("T", b"x")
    broker.offsets.commit("G", "T", 0, 2)
    broker.offsets.note_pulled("G", "T", 0, 4)
    body = await broker.ask_json(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T")

    ((_, entry),) = body["offsetTable"]
    assert entry == {
        "brokerOffset": 5,
        "consumerOffset": 2,
        "lastTimestamp": broker.clock.now_ms() - 3000,
        "pullOffset": 4,
    }


async def test_progress_of_a_group_unknown_here_is_zero(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.put("T", b"x")
    body = await broker.ask_json(RequestCode.GET_CONSUME_STATS, consumerGroup="new", topic="T")

    ((_, entry),) = body["offsetTable"]
    assert (entry["brokerOffset"], entry["consumerOffset"], entry["lastTimestamp"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {"T", "U"}),
        ({"topic": "U"}, {"U"}),
        ({"topic": "T", "topicList": "U;V;"}, {"U", "V"}),
        ({"topic": "missing"}, set()),
    ],
)
async def test_progress_is_told_of_the_topics_asked_for(
    broker: BrokerParts, fields: dict[str, str], told: set[str]
) -> None:
    for topic in ("T", "U", "V"):
        broker.make_topic(topic)
    for topic in ("T", "U", "gone"):
        broker.offsets.commit("G", topic, 0, 0)
    body = await broker.ask_json(RequestCode.GET_CONSUME_STATS, consumerGroup="G", **fields)

    assert {key["topic"] for key, _ in _pairs(body["offsetTable"])} == told


async def test_topics_that_a_group_left_are_not_told(broker: BrokerParts) -> None:
    for topic in ("T", "U"):
        broker.make_topic(topic)
        broker.offsets.commit("G", topic, 0, 0)
    broker.join("G", "c1", "U")
    body = await broker.ask_json(RequestCode.GET_CONSUME_STATS, consumerGroup="G")

    assert {key["topic"] for key, _ in body["offsetTable"]} == {"U"}


async def test_progress_of_all_groups_adds_up(broker: BrokerParts) -> None:
    broker.make_topic()
    broker.make_topic("ordered", order=True)
    for topic in ("T", "T", "ordered"):
        broker.put(topic, b"x")
    for name in ("G", "H"):
        await broker.groups.get_or_create(name)
        broker.offsets.commit(name, "T", 0, 0)
    broker.offsets.commit("H", "ordered", 0, 0)
    broker.offsets.note_pulled("G", "T", 0, 1)
    every = await broker.ask_json(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
    ordered = await broker.ask_json(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True)

    told = {name: len(stats) for row in every["consumeStatsList"] for name, stats in row.items()}
    assert (told["G"], told["H"]) == (1, 2)
    assert (every["totalDiff"], every["totalInflightDiff"]) == (5, 1)
    assert every["brokerAddr"] == ADDRESS
    assert ordered["totalDiff"] == 1


async def test_time_span_tells_first_last_and_consumed(broker: BrokerParts) -> None:
    broker.make_topic()
    for _ in range(3):
        broker.put("T", b"x")
    now_ms = broker.clock.now_ms()
    broker.offsets.commit("G", "T", 0, 2)
    broker.clock.advance(500)
    body = await broker.ask_json(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")

    (span,) = body["consumeTimeSpanSet"]
    assert span["messageQueue"] == queue(0)
    assert (span["minTimeStamp"], span["maxTimeStamp"]) == (now_ms - 2000, now_ms)
    assert (span["consumeTimeStamp"], span["delayTime"]) == (now_ms - 1000, 500)
    assert span["minTimeStampStr"] == time_text(now_ms - 2000)


async def test_time_span_of_a_missing_topic_is_code_17(broker: BrokerParts) -> None:
    answer = await broker.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")

    assert (answer.code, answer.remark) == (17, "topic[T] not exist")


async def test_groups_of_a_topic_subscribe_it_or_have_offsets(broker: BrokerParts) -> None:
    broker.join("online", "c1", "T")
    broker.offsets.commit("offline", "T", 0, 1)
    broker.join("both", "c1", "T")
    broker.offsets.commit("both", "T", 0, 1)
    body = await broker.ask_json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")

    assert sorted(body["groupList"]) == ["both", "offline", "online"]


async def test_topics_of_a_group_are_those_with_offsets(broker: BrokerParts) -> None:
    broker.offsets.commit("G", "T", 0, 1)
    body = await broker.ask_json(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G")

    assert body == {"brokerAddr": ADDRESS, "topicList": ["T"]}


async def test_subscription_of_a_group_is_told_while_it_is_online(broker: BrokerParts) -> None:
    ask = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    offline = await broker.ask_json(ask, group="G", topic="T")
    broker.join("G", "c1", "T:a")
    online = await broker.ask_json(ask, group="G", topic="T")

    assert offline == {"group": "G", "topic": "T"}
    assert online["subscriptionData"]["tagsSet"] == ["a"]


async def test_counters_are_told_by_name_and_key(broker: BrokerParts) -> None:
    broker.put("T", b"x")
    broker.clock.advance(9000)
    await broker.stats.sample()
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    body = await broker.ask_json(RequestCode.VIEW_BROKER_STATS_DATA, **fields)

    assert body["statsMinute"] == {"avgpt": 1.0, "sum": 1, "tps": 0.1}
    assert body["statsDay"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}


async def test_an_unknown_counter_is_code_1(broker: BrokerParts) -> None:
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    answer = await broker.ask(RequestCode.VIEW_BROKER_STATS_DATA, **fields)

    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")


async def test_runtime_info_is_all_text(broker: BrokerParts) -> None:
    broker.put("T", b"x")
    broker.delay_levels[3] = DelayLevelOffsets(1, 4)
    body = await broker.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO)

    table = body["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert table["scheduleMessageOffset_3"] == "1,4"
    assert table["putMessageTimesTotal"] == "1"
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert int(table["commitLogMaxOffset"]) > 0


async def test_runtime_info_shows_the_time_of_a_clock_that_was_set(broker: BrokerParts) -> None:
    """Boot time and running time add up to the time of the broker, as at RocketMQ's."""
    broker.clock.set_wall(broker.clock.now_ms() + 3_600_000)
    body = await broker.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO)

    assert body["table"]["runtime"] == running_text(3_600)


async def test_runtime_info_has_the_figures_of_half_messages_once_they_are_known(
    broker: BrokerParts,
) -> None:
    async def figures(**asked: object) -> dict[str, str]:
        body = await broker.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO, **asked)
        table = body["table"]
        return {name: text for name, text in table.items() if name.startswith("halfMessages")}

    assert await figures(halfMessages=True) == {}
    broker.half_messages = HalfMessageFigures(5, 4, 3, 2, 1)
    assert await figures() == {}
    assert await figures(halfMessages=True) == {
        "halfMessagesUndecided": "5",
        "halfMessagesCommitted": "4",
        "halfMessagesRolledBack": "3",
        "halfMessagesPutBack": "2",
        "halfMessagesDiscarded": "1",
    }


async def test_delay_offsets_are_told_by_level(broker: BrokerParts) -> None:
    broker.delay_levels[2] = DelayLevelOffsets(5, 9)
    answer = await broker.ask(RequestCode.GET_ALL_DELAY_OFFSET)

    assert answer.body == (
        b'{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},'
        b'"offsetTable":{2:5}}'
    )


async def test_replication_has_no_slaves(broker: BrokerParts) -> None:
    broker.put("T", b"x")
    body = await broker.ask_json(RequestCode.GET_BROKER_HA_STATUS)

    assert (body["master"], body["inSyncSlaveNums"], body["haConnectionInfo"]) == (True, 0, [])
    assert body["masterCommitLogMaxOffset"] == broker.store.written_to


def test_texts_of_runtime_info() -> None:
    assert running_text(93_784) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert [bytes_text(n) for n in (0, 1023, 1024, 2253, 84_933_031_526)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "2.2 KiB",
        "79.1 GiB",
    ]


# --- members ------------------------------------------------------------------------------------


async def test_members_of_a_consumer_group(broker: BrokerParts) -> None:
    broker.join("G", "c1", "T:a")
    fields = {"consumerGroup": "G"}
    body = await broker.ask_json(RequestCode.GET_CONSUMER_CONNECTION_LIST, **fields)

    assert body["connectionSet"] == [
        {"clientAddr": "10.0.0.9:51000", "clientId": "c1", "language": "JAVA", "version": 479}
    ]
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["messageModel"] == "CLUSTERING"
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert body["subscriptionTable"]["T"]["subString"] == "a"


async def test_a_consumer_group_offline_is_code_206(broker: BrokerParts) -> None:
    answer = await broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")

    assert (answer.code, answer.remark) == (206, "the consumer group[G] not online")


async def test_members_of_a_producer_group(broker: BrokerParts) -> None:
    broker.produce("P", "p1")
    fields = {"producerGroup": "P"}
    body = await broker.ask_json(RequestCode.GET_PRODUCER_CONNECTION_LIST, **fields)
    every = await broker.ask_json(RequestCode.GET_ALL_PRODUCER_INFO)

    assert [entry["clientId"] for entry in body["connectionSet"]] == ["p1"]
    assert every["data"]["P"] == [
        {
            "clientId": "p1",
            "language": "JAVA",
            "lastUpdateTimestamp": broker.clock.now_ms(),
            "remoteIP": "/10.0.0.9:51000",
            "version": 479,
        }
    ]


async def test_a_producer_group_offline_is_code_1(broker: BrokerParts) -> None:
    answer = await broker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P")

    assert (answer.code, answer.remark) == (1, "the producer group[P] not exist")


# --- relayed calls ------------------------------------------------------------------------------


async def test_running_info_passes_fields_and_answer_on(broker: BrokerParts) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Response:
        seen.append(request)
        return Response(remark="fine", body=b'{"jstack":"none"}')

    broker.join("G", "c1", handlers={RequestCode.GET_CONSUMER_RUNNING_INFO: answer})
    told = await broker.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1", jstackEnable=True
    )

    assert (told.code, told.remark, told.body) == (0, "fine", b'{"jstack":"none"}')
    assert seen[0].command.fields == {
        "consumerGroup": "G",
        "clientId": "c1",
        "jstackEnable": "true",
    }


async def test_direct_consumption_carries_the_record(broker: BrokerParts) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Response:
        seen.append(request)
        return Response(body=b"{}")

    broker.make_topic(topic_sys_flag=1)
    await broker.groups.get_or_create("G")
    broker.join("G", "c1", handlers={RequestCode.CONSUME_MESSAGE_DIRECTLY: answer})
    place = broker.put("T", b"try me")
    message_id = encode_offset_id(bytes(8), place)
    told = await broker.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup="G",
        clientId="c1",
        msgId=message_id,
        topic="T",
    )

    assert told.code == 0
    assert bodies(seen[0].body) == [b"try me"]
    fields = seen[0].command.fields
    assert (fields["brokerName"], fields["topicSysFlag"], fields["groupSysFlag"]) == (
        "broker-a",
        "1",
        "0",
    )


@pytest.mark.parametrize("message_id", ["nonsense", encode_offset_id(bytes(8), FOREVER)])
async def test_direct_consumption_of_no_message_is_code_1(
    broker: BrokerParts, message_id: str
) -> None:
    broker.join("G", "c1")
    fields = {"consumerGroup": "G", "clientId": "c1", "msgId": message_id}
    answer = await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)

    assert answer.code == 1


async def test_status_is_collected_from_every_member_that_answers(broker: BrokerParts) -> None:
    key = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'

    def at(offset: int) -> dict[int, Any]:
        body = f'{{"messageQueueTable":{{{key}:{offset}}}}}'.encode()
        ask = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        return {ask: lambda request: Response(body=body)}

    def failing(request: Request) -> Response:
        return Response(1, "no")

    broker.join("G", "c1", handlers=at(3))
    broker.join("G", "c2", handlers=at(4))
    broker.join("G", "c3", handlers={RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: failing})
    ask = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    every = await broker.ask_json(ask, topic="T", group="G")
    one = await broker.ask_json(ask, topic="T", group="G", clientAddr="c2")

    assert every["messageQueueTable"] == {}
    assert {client: list(table) for client, table in every["consumerTable"].items()} == {
        "c1": [(queue(0), 3)],
        "c2": [(queue(0), 4)],
    }
    assert list(one["consumerTable"]) == ["c2"]


async def test_status_of_a_group_offline_is_code_1(broker: BrokerParts) -> None:
    ask = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    answer = await broker.ask(ask, topic="T", group="G")

    assert answer.code == 1
    assert "[G]" in (answer.remark or "")


# --- bodies as recorded from RocketMQ -----------------------------------------------------------

OURS_BESIDE_4_9 = {"pullOffset", "topicPutTps", "totalInflightDiff"}


async def recorded_situation(broker: BrokerParts) -> None:
    """Something to tell for every request that was recorded."""
    broker.make_topic()
    broker.put("T", b"x", TAGS="a", KEYS="k")
    await broker.groups.get_or_create("G")
    broker.join("G", "c1", "T")
    broker.join("CG_keep", "c1", "TopicKeep", "%RETRY%CG_keep")
    broker.produce("P", "p1")
    broker.offsets.commit("G", "T", 0, 1)
    broker.stats.got("G", "T", 0, 1, 100)
    for level in (1, 2, 3, 4):
        broker.delay_levels[level] = DelayLevelOffsets(1, 1)


RECORDED: list[tuple[str, dict[str, object]]] = [
    ("GET_TOPIC_STATS_INFO", {"topic": "T"}),
    ("GET_BROKER_HA_STATUS", {}),
    ("GET_CONSUME_STATS", {"consumerGroup": "G", "topic": "T"}),
    ("VIEW_BROKER_STATS_DATA", {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"}),
    ("QUERY_TOPIC_CONSUME_BY_WHO", {"topic": "T"}),
    ("GET_PRODUCER_CONNECTION_LIST", {"producerGroup": "P"}),
    ("GET_CONSUMER_CONNECTION_LIST", {"consumerGroup": "CG_keep"}),
    ("QUERY_CONSUME_QUEUE", {"topic": "T", "queueId": 0, "index": 0, "count": 3}),
]


@pytest.mark.parametrize(("name", "fields"), RECORDED, ids=[name for name, _ in RECORDED])
async def test_bodies_have_the_shape_of_recorded_ones(
    broker: BrokerParts, name: str, fields: dict[str, object]
) -> None:
    await recorded_situation(broker)
    answer = await broker.ask(RequestCode[name], **fields)
    recorded = {repr(shape(command.body)) for command in answers("5.3.3", "mqadmin", name)}

    ours = shape(answer.body)
    if isinstance(ours, dict):
        ours.pop("subscriptionsByClient", None)  # ours, beside what RocketMQ says
    assert repr(ours) in recorded


async def test_broker_consume_stats_have_the_recorded_names(broker: BrokerParts) -> None:
    await recorded_situation(broker)
    body = await broker.ask_json(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
    (recorded,) = answers("5.3.3", "mqadmin", "GET_BROKER_CONSUME_STATS")
    theirs = fastjson.loads(recorded.body)

    assert body.keys() == theirs.keys()
    assert _consume_stats(body, "G").keys() == _consume_stats(theirs, "CG_req").keys()


@pytest.mark.parametrize("version", VERSIONS)
async def test_runtime_info_has_the_recorded_keys_of_the_clients_release(
    broker: BrokerParts, version: str
) -> None:
    await recorded_situation(broker)
    recorded = answers(version, "mqadmin", "GET_BROKER_RUNTIME_INFO")[0]
    server, _ = link()
    command = Command(RequestCode.GET_BROKER_RUNTIME_INFO, version=recorded.version)
    handler = broker.handlers[RequestCode.GET_BROKER_RUNTIME_INFO]
    answer = await handler(Request(command, server))  # type: ignore[misc]
    assert isinstance(answer, Response)
    others = re.compile("commitLogDiskRatio_|scheduleMessageOffset_|producerSessions")
    ours, theirs = (
        {key for key in fastjson.loads(body)["table"] if not others.match(key)}
        for body in (answer.body, recorded.body)
    )

    assert ours == theirs


async def test_numbers_of_runtime_info_read_as_the_recorded_ones(broker: BrokerParts) -> None:
    await recorded_situation(broker)
    body = await broker.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO)
    recorded = answers("5.3.3", "mqadmin", "GET_BROKER_RUNTIME_INFO")[0]
    theirs = fastjson.loads(recorded.body)["table"]

    kinds = {key: _kind(text) for key, text in body["table"].items() if key in theirs}
    assert kinds == {key: _kind(theirs[key]) for key in kinds}


def _kind(text: str) -> str:
    """What a tool would make of a text: one number, several, or words."""
    parts = text.split()
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return "words" if "," not in text or " " in text else "pair"
    return "number" if len(numbers) == 1 and not text.endswith(" ") else "numbers"


def _pairs(table: Any) -> list[tuple[Any, Any]]:
    return list(table.items()) if isinstance(table, dict) else list(table)


def _consume_stats(body: Any, group: str) -> Any:
    (found,) = (row[group] for row in body["consumeStatsList"] if group in row)
    return found[0]
