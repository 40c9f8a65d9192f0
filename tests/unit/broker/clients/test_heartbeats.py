"""Heartbeats and their relatives, from the bytes of a client to what the broker knows."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest

from cometmq.broker.clients.consumers import ConsumerNotifier, ConsumerRegistry
from cometmq.broker.clients.heartbeats import HeartbeatHandler
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.model.errors import StoreError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Connection, Request
from cometmq.store import MessageStore, StoreSettings
from support.wire.memory_link import link
from unit.broker.conftest import Tables


class Broker:
    """The part of a broker that heartbeats reach."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        notifier = ConsumerNotifier(lambda: tables.settings)
        self.consumers = ConsumerRegistry(
            tables.clock, filters=tables.filters, on_change=notifier.notify
        )
        self.producers = ProducerRegistry(tables.clock)
        store = MessageStore(StoreSettings(root=tables.config.parent), clock=tables.clock)
        core = tables.core(store, consumers=self.consumers, producers=self.producers)
        beats = HeartbeatHandler(core)
        self._handlers = {
            RequestCode.HEART_BEAT: beats.heartbeat,
            RequestCode.UNREGISTER_CLIENT: beats.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: beats.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: beats.check_client,
        }

    def connect(self) -> Client:
        return Client(self)

    def link(self, told: list[Command]) -> Connection:
        def note(request: Request) -> None:
            told.append(request.command)

        return link(
            self._handlers,
            {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note},
            on_close=self.consumers.connection_closed,
        )[1]


class Client:
    """A client, and what the broker told it."""

    def __init__(self, broker: Broker) -> None:
        self.told: list[Command] = []
        self.connection = broker.link(self.told)

    async def ask(
        self, code: int, body: Any = None, fields: dict[str, str] | None = None
    ) -> Command:
        data = b"" if body is None else json.dumps(body).encode()
        return await self.connection.call(code, body=data, fields=fields, timeout=30)

    async def beat(self, *groups: dict[str, Any], **members: Any) -> Command:
        body = {"clientID": "c", "consumerDataSet": list(groups), "producerDataSet": []}
        return await self.ask(RequestCode.HEART_BEAT, body | members)


def group(name: str = "g", *, topic: str = "T", **changes: Any) -> dict[str, Any]:
    return {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
        "unitMode": False,
    } | changes


@pytest.fixture
def broker(tables: Tables) -> Broker:
    return Broker(tables)


async def test_a_heartbeat_makes_group_retry_topic_and_member(broker: Broker) -> None:
    answer = await broker.connect().beat(group())
    assert answer.code == 0
    assert broker.consumers.client_ids("g") == ["c"]
    assert broker.tables.groups.get("g") is not None
    retry = broker.tables.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


async def test_the_retry_topic_of_a_group_that_consumes_an_ordered_topic_is_ordered(
    broker: Broker,
) -> None:
    ordered = broker.tables.topic("T")
    broker.tables.topics.put_now([msgspec.structs.replace(ordered, order=True)])
    await broker.connect().beat(group("g"), group("h", topic="U"))
    topics = broker.tables.topics.all()
    assert (topics["%RETRY%g"].order, topics["%RETRY%h"].order) == (True, False)


async def test_members_are_told_of_a_newcomer_once(broker: Broker) -> None:
    one, two = broker.connect(), broker.connect()
    await one.beat(group())
    one.told.clear()
    await two.beat(group(), clientID="d")
    await two.beat(group(), clientID="d")
    assert [told.fields for told in one.told] == [{"consumerGroup": "g"}]
    assert [told.fields for told in two.told] == [{"consumerGroup": "g"}]
    assert one.told[0].is_oneway


@pytest.mark.parametrize("quiet", ["the broker", "the model", "the group"])
async def test_nobody_is_told_where_notices_are_off(broker: Broker, quiet: str) -> None:
    tables, changes = broker.tables, {}
    if quiet == "the broker":
        tables.settings = dataclasses.replace(
            tables.settings, notify_consumer_ids_changed_enable=False
        )
    elif quiet == "the model":
        changes = {"messageModel": "BROADCASTING"}
    else:
        tables.group("g", notify_consumer_ids_changed_enable=False)
    one, two = broker.connect(), broker.connect()
    await one.beat(group(**changes))
    await two.beat(group(**changes), clientID="d")
    await one.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"})
    assert one.told == two.told == []


@pytest.mark.parametrize(
    "body",
    [
        {"clientID": ""},
        {"clientID": "c\n"},
        {"clientID": "c" * 2000},
        {"producerDataSet": [{"groupName": "../p"}]},
        {"consumerDataSet": [group("a/b")]},
        {"consumerDataSet": [group("g"), group("g2", topic="../T")]},
        {"consumerDataSet": [group("g"), group("x" * 256)]},
    ],
)
async def test_a_bad_name_refuses_the_whole_heartbeat(broker: Broker, body: dict[str, Any]) -> None:
    answer = await broker.connect().beat(**({"consumerDataSet": [group("g")]} | body))
    assert answer.code == 29
    assert answer.remark
    assert broker.consumers.groups() == []
    assert broker.tables.groups.get("g") is None


async def test_expressions_of_a_heartbeat_are_registered_and_end_with_the_group(
    broker: Broker,
) -> None:
    client = broker.connect()
    data = {"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 3}
    assert (await client.beat(group(subscriptionDataSet=[data]))).code == 0
    found = broker.tables.filters.find("T", "g")
    assert found is not None
    assert (found.text, found.is_dead) == ("a > 1", False)
    fields = {"clientID": "c", "consumerGroup": "g", "producerGroup": ""}
    assert (await client.ask(RequestCode.UNREGISTER_CLIENT, fields=fields)).code == 0
    assert found.is_dead


async def test_a_long_expression_of_a_heartbeat_is_registered(broker: Broker) -> None:
    text = " OR ".join(f"heartbeat = {number}" for number in range(100))
    data = {"topic": "T", "subString": text, "expressionType": "SQL92", "subVersion": 3}
    answer = await broker.connect().beat(group(subscriptionDataSet=[data]))
    assert answer.code == 0
    found = broker.tables.filters.find("T", "g")
    assert found is not None
    assert found.text == text


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"subVersion": 2**63}, "subVersion is 9223372036854775808, expected -92"),
        ({"codeSet": [1, -(2**31) - 1]}, "codeSet is -2147483649, expected -2147483648"),
        ({"codeSet": [10**30]}, "codeSet is 1000000000"),
    ],
)
async def test_a_heartbeat_with_numbers_that_java_cannot_read_is_refused(
    broker: Broker, changes: dict[str, object], remark: str
) -> None:
    """RocketMQ could not start with the file of expressions, nor tools show the group."""
    answer = await broker.connect().beat(group(subscriptionDataSet=[{"topic": "T"} | changes]))
    assert answer.code == 29
    assert (answer.remark or "").startswith(remark)
    assert broker.consumers.group("g") is None


async def test_a_heartbeat_has_a_limit_of_expressions(broker: Broker) -> None:
    data = [
        {"topic": f"T{number}", "subString": "a", "expressionType": "SQL92"}
        for number in range(101)
    ]
    answer = await broker.connect().beat(group(subscriptionDataSet=data))
    assert answer.code == 29
    assert answer.remark == "a heartbeat with 101 SQL92 subscriptions, expected at most 100"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"not json"])
async def test_an_unreadable_heartbeat_is_code_1(broker: Broker, body: bytes) -> None:
    client = broker.connect().connection
    answer = await client.call(RequestCode.HEART_BEAT, body=body, timeout=30)
    assert answer.code == 1
    assert answer.remark


async def test_the_second_form_asks_for_all_when_the_broker_knows_nothing(broker: Broker) -> None:
    client = broker.connect()
    bare = group(subscriptionDataSet=[])
    first = await client.beat(bare, heartbeatFingerprint=7, withoutSub=True)
    full = await client.beat(group(), heartbeatFingerprint=7)
    again = await client.beat(bare, heartbeatFingerprint=7, withoutSub=True)
    other = await client.beat(bare, heartbeatFingerprint=8, withoutSub=True)
    answers = [answer.fields["IS_SUB_CHANGE"] for answer in (first, full, again, other)]
    assert answers == ["true", "false", "false", "true"]
    online = broker.consumers.group("g")
    assert online is not None
    assert online.subscriptions.keys() == {"T"}


async def test_a_group_whose_retry_topic_cannot_have_its_name_is_online_all_the_same(
    broker: Broker,
) -> None:
    name = "g" * 255
    assert (await broker.connect().beat(group(name))).code == 0
    assert broker.consumers.client_ids(name) == ["c"]
    assert broker.tables.topics.get(f"%RETRY%{name}") is None


async def test_an_unknown_group_is_left_out_where_groups_are_not_made(broker: Broker) -> None:
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, auto_create_subscription_group=False)
    assert (await broker.connect().beat(group())).code == 0
    assert broker.consumers.group("g") is None


async def test_the_list_of_an_absent_group_is_code_1(broker: Broker) -> None:
    answer = await broker.connect().ask(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"}
    )
    assert (answer.code, answer.remark) == (1, "no consumer for this group, g")


async def test_a_farewell_takes_the_client_out(broker: Broker) -> None:
    client = broker.connect()
    await client.beat(group(), producerDataSet=[{"groupName": "p"}])
    assert broker.producers.connection_of("c") is not None
    fields = {"clientID": "c", "consumerGroup": "g", "producerGroup": "p"}
    assert (await client.ask(RequestCode.UNREGISTER_CLIENT, fields=fields)).code == 0
    assert broker.consumers.client_ids("g") == []
    assert broker.producers.connection_of("c") is None


@pytest.mark.parametrize(
    ("kind", "enabled", "code"),
    [("TAG", False, 0), (None, False, 0), ("SQL92", False, 1), ("SQL92", True, 0), ("X", True, 23)],
)
async def test_a_subscription_is_checked_before_it_is_used(
    broker: Broker, kind: str | None, enabled: bool, code: int
) -> None:
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, enable_property_filter=enabled)
    data = {"topic": "T", "subString": "a", "expressionType": kind}
    body = {"clientId": "c", "group": "g", "subscriptionData": data}
    assert (await broker.connect().ask(RequestCode.CHECK_CLIENT_CONFIG, body)).code == code


async def test_a_group_that_cannot_be_created_keeps_no_other_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.tables.group("known")
    broker.tables.topic("%RETRY%known")

    async def refuse(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(broker.tables.groups, "create_all", refuse)
    client = broker.connect()
    answer = await client.beat(group("known"), group("fresh"))
    assert (answer.code, answer.remark) == (1, "StoreError: the disk is full")
    assert broker.consumers.group("known") is not None
    assert broker.consumers.group("fresh") is None
