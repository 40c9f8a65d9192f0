"""Recalls of timer messages before they are due."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.client import InvalidMessageError, Producer, ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.send import RecallMessageRequest, RecallMessageResponse
from cometmq.protocol.recall_handle import RecallHandle, decode_handle
from cometmq.remoting import Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "values" / "5.3.3" / "misc.json"
HANDLES = json.loads(VECTORS.read_text())["recall_handles"]


@pytest.mark.parametrize("row", HANDLES, ids=lambda row: row["topic"])
def test_a_handle_is_read_and_written_as_java_does(row: dict[str, str]) -> None:
    expected = RecallHandle(row["topic"], row["broker"], row["timestamp"], row["id"])

    assert decode_handle(row["handle"]) == expected
    assert expected.encode() == row["handle"]


@pytest.mark.parametrize("handle", ["", "no base64!", "djEgYQ==", "djIgdCBiIDEgaWQ=", "/w=="])
async def test_what_is_no_handle_is_refused_before_anybody_is_asked(handle: str) -> None:
    async with (
        ScriptedCluster([ScriptedBroker()]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        with pytest.raises(InvalidMessageError, match="recall handle"):
            await producer.recall("t", handle)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
async def test_retries_and_dead_letters_are_not_recalled(topic: str) -> None:
    async with (
        ScriptedCluster([ScriptedBroker()]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        with pytest.raises(InvalidMessageError, match="cannot be recalled"):
            await producer.recall(topic, HANDLES[0]["handle"])


async def test_the_broker_that_the_handle_names_is_asked() -> None:
    asked: list[RecallMessageRequest] = []

    def recall(request: Request) -> Response:
        asked.append(request.header(RecallMessageRequest))
        return Response(header=RecallMessageResponse(msg_id="ID"))

    one, other = ScriptedBroker("a"), ScriptedBroker("b")
    other.handlers[RequestCode.RECALL_MESSAGE] = recall
    handle = RecallHandle("t", "b", "1", "ID").encode()
    async with (
        ScriptedCluster([one, other]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        assert await producer.recall("t", handle) == "ID"

    assert [(header.topic, header.recall_handle, header.bname) for header in asked] == [
        ("t", handle, "b")
    ]


async def test_a_message_that_cannot_be_recalled_any_more_is_told_of() -> None:
    broker = ScriptedBroker("a")
    broker.handlers[RequestCode.RECALL_MESSAGE] = lambda request: Response(
        ResponseCode.SYSTEM_ERROR, "recall failed, timestamp invalid"
    )
    handle = RecallHandle("t", "a", "1", "ID").encode()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        with pytest.raises(ResponseError, match="timestamp invalid"):
            await producer.recall("t", handle)


async def test_a_broker_without_recall_refuses(
    target: str, name_servers: str, topic: str, group: str
) -> None:
    handle = RecallHandle(topic, "broker-a", "1", "ID").encode()
    async with Producer(name_servers, group=group) as producer:
        with pytest.raises(ResponseError):
            await producer.recall(topic, handle)
