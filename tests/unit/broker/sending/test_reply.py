"""Replies: pushed to the client that requested, stored or not; the replier gets the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.sending.reply import ReplyHandler
from cometmq.broker.sending.validation import SendRules
from cometmq.broker.stats.counters import BrokerStats
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import encode_host
from cometmq.remoting import Request, Response
from cometmq.store import MessageStore
from support.wire.memory_link import link
from unit.broker.conftest import Tables

pytestmark = pytest.mark.usefixtures("virtual_time")

US = encode_host("10.0.0.1", 10911)
TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "7"}


class Broker:
    """The part of a broker that replies reach; client ``asker`` waits for one."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self.tables = tables
        self.store = store
        self.producers = ProducerRegistry(tables.clock)
        self.answer: Response | None = Response()
        self.pushed: list[Command] = []
        self.on_push: Callable[[], object] = lambda: None
        self.slaves = Acknowledgements(tables.role, lambda: tables.settings, lambda: ())
        self.stats = BrokerStats("C", clock=tables.clock, is_system_topic=lambda _: False)
        reply = ReplyHandler(
            store,
            tables.validation(
                SendRules("10.0.0.1", "DefaultCluster", "R", trace_on=True),
                now_ms=lambda: 0,
                new_unique_key=lambda: "UNIQUE",
            ),
            self.stats,
            durability=DurabilityWait(None, self.slaves),
            producers=self.producers,
            settings=lambda: tables.settings,
            role=tables.role,
            clock=tables.clock,
            store_host=US,
            store_address="10.0.0.1:10911",
        )
        handlers = {
            RequestCode.SEND_REPLY_MESSAGE: reply.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: reply.reply,
        }
        self.replier = link(handlers)[1]
        self.asker, self.asking = link(
            handlers, {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._push}
        )
        self.producers.register(self.asker, "asker", "p")

    def _push(self, request: Request) -> Response | None:
        self.pushed.append(request.command)
        self.on_push()
        return self.answer

    async def reply(
        self, properties: dict[str, str] = PROPERTIES, body: bytes = b"reply", **changes: Any
    ) -> Command:
        fields = {
            "a": "g",
            "b": TOPIC,
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 11,
            "h": 3,
            "i": encode_properties(properties).decode(),
        } | changes
        texts = {name: str(value) for name, value in fields.items()}
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        return await self.replier.call(code, body=body, fields=texts, timeout=30)


async def test_a_reply_is_pushed_and_stored(broker: Broker) -> None:
    answer = await broker.reply()
    assert answer.code == 0
    assert answer.fields == {
        "msgId": "0A000001" + f"{10911:08X}" + f"{0:016X}",
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    (pushed,) = broker.pushed
    assert (pushed.body, pushed.fields["topic"], pushed.fields["flag"]) == (b"reply", TOPIC, "3")
    assert pushed.fields["bornHost"] == "10.0.0.9:51000"
    assert pushed.fields["storeHost"] == "10.0.0.1:10911"
    now = str(broker.tables.clock.now_ms())
    assert pushed.fields["storeTimestamp"] == now
    received = decode_properties(pushed.fields["properties"])
    assert received == PROPERTIES | {"PUSH_REPLY_TIME": now}
    assert broker.stats.put_messages == 1
    assert broker.store.bounds(TOPIC, 0) == (0, 1)


async def test_a_reply_without_a_body_is_pushed_and_not_stored(broker: Broker) -> None:
    """RocketMQ stores none either; programs of its Go client reply so."""
    answer = await broker.reply(body=b"")
    assert (answer.code, answer.fields["msgId"]) == (0, "0")
    (pushed,) = broker.pushed
    assert (pushed.body, pushed.fields["topic"]) == (b"", TOPIC)
    assert broker.store.bounds(TOPIC, 0) == (0, 0)


async def test_a_reply_that_no_slave_has_is_no_success(broker: Broker) -> None:
    broker.tables.role.change("SYNC_MASTER", 0)
    answer = await broker.reply()
    assert (answer.code, answer.fields["queueOffset"]) == (11, "0")
    assert (len(broker.pushed), broker.store.bounds(TOPIC, 0)) == (1, (0, 1))


async def test_a_reply_that_cannot_be_stored_is_no_success(broker: Broker) -> None:
    broker.on_push = broker.store.close
    answer = await broker.reply()
    assert (answer.code, len(broker.pushed)) == (1, 1)
    assert "pushed to its client, but not stored" in (answer.remark or "")


async def test_a_broker_that_may_store_nothing_stores_no_reply(broker: Broker) -> None:
    broker.slaves.refusal = ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, "too few replicas")
    end = broker.store.written_to
    answer = await broker.reply()
    assert (answer.code, broker.store.written_to) == (1, end)
    assert "but not stored" in (answer.remark or "")


async def test_a_broker_that_becomes_a_slave_during_the_push_stores_no_reply(
    broker: Broker,
) -> None:
    end = broker.store.written_to
    broker.on_push = lambda: broker.tables.role.change("SLAVE", 1)
    answer = await broker.reply()
    assert (answer.code, answer.fields["msgId"]) == (1, "0")
    assert "but not stored" in (answer.remark or "")
    assert len(broker.pushed) == 1
    assert broker.store.written_to == end


async def test_the_long_form_is_understood(broker: Broker) -> None:
    fields = {
        "producerGroup": "g",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "-1",
        "sysFlag": "0",
        "bornTimestamp": "11",
        "flag": "0",
        "properties": encode_properties(PROPERTIES).decode(),
    }
    code = RequestCode.SEND_REPLY_MESSAGE
    answer = await broker.replier.call(code, body=b"reply", fields=fields, timeout=30)
    assert (answer.code, answer.fields["queueId"]) == (0, "0")
    assert len(broker.pushed) == 1


async def test_a_reply_need_not_be_stored(broker: Broker) -> None:
    tables = broker.tables
    tables.settings = dataclasses.replace(tables.settings, store_reply_message_enable=False)
    answer = await broker.reply()
    assert (answer.code, answer.fields["msgId"], answer.fields["queueOffset"]) == (0, "0", "0")
    assert broker.store.bounds(TOPIC, 0) == (0, 0)
    assert len(broker.pushed) == 1


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ({"CORRELATION_ID": "7"}, "reply message properties[REPLY_TO_CLIENT] is null"),
        ({"REPLY_TO_CLIENT": "gone"}, "push reply message fail, channel of <gone> not found."),
    ],
)
async def test_a_reply_that_reaches_nobody_is_stored_and_told(
    broker: Broker, properties: dict[str, str], remark: str
) -> None:
    answer = await broker.reply(properties)
    assert (answer.code, answer.remark) == (1, remark)
    assert broker.store.bounds(TOPIC, 0) == (0, 1)


@pytest.mark.parametrize("how", ["refuses", "is silent", "leaves"])
async def test_a_client_that_does_not_confirm_has_no_reply(broker: Broker, how: str) -> None:
    if how == "refuses":
        broker.answer = Response(1, "no")
    elif how == "is silent":
        broker.answer = None
    else:
        broker.asking.close()
    answer = await broker.reply()
    assert answer.code == 1
    assert answer.remark in (
        "push reply message to askerfail.",
        "push reply message fail, channel of <asker> not found.",
    )


@pytest.mark.parametrize(
    ("changes", "code"), [({"b": "../T"}, 29), ({"e": 9}, 29), ({"b": "SELF_TEST_TOPIC"}, 16)]
)
async def test_a_reply_is_checked_like_any_send(
    broker: Broker, changes: dict[str, Any], code: int
) -> None:
    answer = await broker.reply(**changes)
    assert answer.code == code
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    assert broker.pushed == []
