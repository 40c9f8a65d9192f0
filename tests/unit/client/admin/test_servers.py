"""Responses to administrators that servers should not give."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.client import AdminClient, ClientClosedError, MessageQueue
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.record import encode_host
from cometmq.remoting import Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, route


@pytest.fixture
async def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[AdminClient]:
    async with ScriptedCluster([broker]) as cluster, AdminClient(cluster.address) as client:
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=1)
        yield client


async def test_a_message_that_is_none_is_refused(
    admin: AdminClient, broker: ScriptedBroker
) -> None:
    broker.handlers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda _: Response(body=b"")
    host, _, port = broker.address.rpartition(":")

    with pytest.raises(ResponseError, match="a message is expected"):
        await admin.message_at(encode_offset_id(encode_host(host, int(port)), 5))


@pytest.mark.parametrize("body", [b"", b"[1", b"\xff", b"[]"])
async def test_settings_of_a_group_that_are_none_are_refused(
    admin: AdminClient, broker: ScriptedBroker, body: bytes
) -> None:
    broker.handlers[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = lambda _: Response(body=body)

    with pytest.raises(ResponseError, match="SubscriptionGroupConfig"):
        await admin.group_config("g", broker.address)


async def test_a_topic_may_be_deleted_before_its_settings_are_read(
    admin: AdminClient, broker: ScriptedBroker
) -> None:
    """From a broker that returns the settings of all topics only."""
    all_topics = TopicConfigSerializeWrapper(topic_config_table={}).encode()
    broker.handlers[RequestCode.GET_TOPIC_CONFIG] = lambda _: Response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    )
    broker.handlers[RequestCode.GET_ALL_TOPIC_CONFIG] = lambda _: Response(body=all_topics)

    with pytest.raises(ResponseError, match="has no topic t"):
        await admin.topic_configs("t")


async def test_a_reset_needs_a_client_that_runs() -> None:
    with pytest.raises(ClientClosedError):
        await AdminClient("127.0.0.1:1").reset_to_offset("g", MessageQueue("t", "a", 0), 0)
