"""Requests that lack a field: refused where RocketMQ's handler fails for it, served elsewhere.

RocketMQ logs a missing field and hands the header on without it. Only pulls and sends with the
short names refuse it at once. Source: RemotingCommand and the processors, RocketMQ 4.9.7 and 5.3.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from cometmq.client import Message, Producer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, command_at, encode_command
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from support.brokers.pairs import running_pairs

QUEUE = {"topic": "T", "queueId": "0"}
SEND = {
    "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip
NEW_TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", **QUEUE, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
BROKER_OF = {"clusterName": "DefaultCluster", "brokerName": "a", "brokerAddr": "10.0.0.1:1"}


class Case(NamedTuple):
    """One request; ``served`` has the fields that it may lack, each with the response code."""

    code: int
    fields: dict[str, str]
    served: Mapping[str, int] = MappingProxyType({})
    result: int = 0
    """The response code of the whole request."""


AT_BROKER = [
    Case(
        RequestCode.SEND_MESSAGE,
        SEND,
        {"producerGroup": 0, "defaultTopic": 0, "defaultTopicQueueNums": 0},
    ),
    Case(RequestCode.SEND_MESSAGE_V2, dict(zip("abcdefgh", SEND.values(), strict=True))),
    Case(RequestCode.PULL_MESSAGE, PULL),
    Case(
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"},
        {"topic": 22, "key": 22},
        result=22,
    ),
    Case(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", **QUEUE}, {"consumerGroup": 0}),
    Case(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", **QUEUE, "commitOffset": "0"}),
    Case(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T", **NEW_TOPIC}, {"defaultTopic": 0}),
    Case(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QUEUE | {"timestamp": "0"}),
    Case(RequestCode.GET_MAX_OFFSET, QUEUE),
    Case(RequestCode.GET_MIN_OFFSET, QUEUE),
    Case(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE),
    Case(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
    Case(
        RequestCode.UNREGISTER_CLIENT,
        {"clientID": "c", "consumerGroup": "g", "producerGroup": "p"},
        {"clientID": 0, "consumerGroup": 0, "producerGroup": 0},
    ),
    Case(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "g", "delayLevel": "0"}),
    Case(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, result=1),
    Case(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    Case(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
    Case(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "g", "timestamp": "0"},
        {"timestamp": 0},
    ),
    Case(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}),
    Case(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"}, {"group": 0}),
    Case(
        RequestCode.QUERY_CORRECTION_OFFSET,
        {"topic": "T", "compareGroup": "g"},
        {"compareGroup": 0},
    ),
    Case(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"}),
    Case(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}),
    Case(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}),
    Case(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}),
    Case(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "g", "topic": "T"}),
]
AT_NAME_SERVER = [
    Case(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
    Case(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"}, {"namespace": 22, "key": 22}),
    Case(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}, {"namespace": 22}),
    Case(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
    Case(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, {"topic": 17}),
    Case(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"}, {"brokerName": 0}),
    Case(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "x"}, {"brokerName": 0}),
    Case(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "x"}, {"topic": 0}),
    Case(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, {"cluster": 0}),
    Case(
        RequestCode.QUERY_DATA_VERSION,
        BROKER_OF | {"brokerId": "0"},
        {"brokerName": 0, "brokerId": 0},
    ),
    Case(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        {"clusterName": "DefaultCluster", "brokerName": "a"},
        {"clusterName": 0, "brokerName": 0},
    ),
    Case(RequestCode.BROKER_HEARTBEAT, BROKER_OF, {"brokerName": 0}),
]
BODIES = {
    RequestCode.SEND_MESSAGE: b"body",
    RequestCode.SEND_MESSAGE_V2: b"body",
    RequestCode.QUERY_DATA_VERSION: b'{"counter":1,"timestamp":1}',
}


class Wire:
    """A connection that sends headers as they are given, and waits for each response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def code_of(self, case: Case, missing: str, serialization: int) -> int:
        return int((await self.ask(case, missing, serialization)).code)

    async def ask(self, case: Case, missing: str = "", serialization: int = JSON_HEADER) -> Command:
        fields = {name: value for name, value in case.fields.items() if name != missing}
        body = BODIES.get(case.code, b"")
        command = Command(
            case.code, opaque=1, fields=fields, body=body, serialization=serialization
        )
        self._writer.write(encode_command(command))
        size = await self._reader.readexactly(4)
        frame = size + await self._reader.readexactly(int.from_bytes(size))
        response = command_at(frame, 0, len(frame), len(frame))
        assert response is not None
        return response


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[Wire, Wire]]:
    """A broker with a message in topic T and a group g, and a name server that knows it."""
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path))
        broker = await pairs.start("a")
        async with Producer(pairs.name_server.address, group="p") as producer:
            await producer.send(Message("T", b"body"))
        await pairs.consume("g", "T", 1)
        wires = []
        for address in (broker.address, pairs.name_server.address):
            host, port = address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
            wires.append(Wire(reader, writer))
        yield wires[0], wires[1]


async def test_a_missing_field_is_refused_where_rocketmq_fails_for_it(
    servers: tuple[Wire, Wire],
) -> None:
    met, expected = {}, {}
    for wire, cases in zip(servers, (AT_BROKER, AT_NAME_SERVER), strict=True):
        for case in cases:
            for serialization in (JSON_HEADER, BINARY_HEADER):
                for missing in ("", *case.fields):
                    name = f"{case.code} {case.fields.get('topic', '')} {serialization} -{missing}"
                    code = await wire.code_of(case, missing, serialization)
                    met[name] = code if code in (0, 17, 22) or not missing else 1
                    expected[name] = case.served.get(missing, 1) if missing else case.result
    wrong = {name: (code, expected[name]) for name, code in met.items() if code != expected[name]}
    assert wrong == {}


@pytest.mark.parametrize("missing", ["defaultTopic", "defaultTopicQueueNums"])
async def test_a_send_that_lacks_the_template_of_its_topic_creates_none(
    servers: tuple[Wire, Wire], missing: str
) -> None:
    send = Case(RequestCode.SEND_MESSAGE, SEND | {"topic": "Fresh"})
    assert await servers[0].code_of(send, missing, JSON_HEADER) == 1
    topic = Case(RequestCode.GET_TOPIC_CONFIG, {"topic": "Fresh"})
    assert await servers[0].code_of(topic, "", JSON_HEADER) == 17
    assert await servers[0].code_of(send, "producerGroup", JSON_HEADER) == 0


async def test_a_transaction_is_decided_by_a_request_without_the_id_of_its_message(
    servers: tuple[Wire, Wire],
) -> None:
    half = SEND | {"properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "sysFlag": "4"}
    response = await servers[0].ask(Case(RequestCode.SEND_MESSAGE, half))
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": response.fields["queueOffset"],
        "commitLogOffset": str(int(response.fields["msgId"][-16:], 16)),
        "commitOrRollback": "8",
        "msgId": "made-up",
    }
    required = set(end) - {"msgId"}
    for missing in required:
        assert await servers[0].code_of(Case(RequestCode.END_TRANSACTION, end), missing, 0) == 1
    assert await servers[0].code_of(Case(RequestCode.END_TRANSACTION, end), "msgId", 0) == 0
