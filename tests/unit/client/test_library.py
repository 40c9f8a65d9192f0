"""The client's interface for libraries, against scripted servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.client.errors import SendTimeoutError, TopicNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection, EncodedSender, Pull, QueuePulls
from cometmq.client.receipt import SendStatus
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pull import PullMessageResponse
from cometmq.protocol.record import decode_messages
from support.brokers.queue_broker import QueueBroker, QueueNameServer
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster

pytestmark = pytest.mark.usefixtures("virtual_time")

QUEUE = MessageQueue("t", "a", 0)
ITEM = encode_batch([BatchItem(5, b"x", b"UNIQ_KEY\x01k\x02")])


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ClientConnection, QueueBroker]]:
    """A broker whose queue 0 of the topic t has ten messages."""
    names, broker = QueueNameServer(), QueueBroker("a")
    broker.put(0, 10, time_ms=1_000)
    for peer in (names, broker):
        await peer.start()
    names.serve({"a": {0: broker.address}})
    try:
        async with ClientConnection(names.address) as connection:
            yield connection, broker
    finally:
        for peer in (names, broker):
            await peer.stop()


async def test_a_route_names_the_queues_and_the_master_of_each() -> None:
    async with served() as (connection, broker):
        route = await connection.route("t")
        assert QUEUE in route.read_queues
        assert route.master(QUEUE) == broker.address
        assert await connection.route("t", cached=True) is route
        assert await connection.route("t") is not route


async def test_a_topic_that_does_not_exist_has_no_route() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster:
        async with ClientConnection(cluster.address) as connection:
            with pytest.raises(TopicNotFoundError):
                await connection.route("unknown")
        assert connection.closed


async def test_offsets_and_messages_of_a_queue_are_those_of_the_broker() -> None:
    async with served() as (connection, broker):
        address = broker.address
        bounds = (
            await connection.min_offset(address, QUEUE),
            await connection.max_offset(address, QUEUE),
        )
        assert bounds == (0, 10)
        found = await connection.pull(
            address, Pull("g", QUEUE, Filter(), max_messages=3), QueueOffset(4), timeout=5
        )
        assert [message.queue_offset for message in found.messages] == [4, 5, 6]


async def test_a_refusal_of_a_broker_names_its_address() -> None:
    async with served() as (connection, broker):
        with pytest.raises(ResponseError) as error:
            await connection.call_broker(broker.address, 9_999)
        assert error.value.address == broker.address


async def test_pulls_return_stored_records_over_a_new_and_an_open_connection() -> None:
    async with served() as (connection, broker):
        pulls = QueuePulls(connection, Pull("g", QUEUE, Filter(), max_messages=4), timeout=5)
        offsets = []
        for start in (0, 4):
            response = await pulls.request(broker.address, start, 4)
            assert response.code == ResponseCode.SUCCESS
            assert response.header(PullMessageResponse).next_begin_offset == start + 4
            offsets += [message.queue_offset for message in decode_messages(response.body)]
        assert offsets == list(range(8))


async def test_encoded_messages_are_sent_as_a_batch_or_as_a_single_message() -> None:
    broker = ScriptedBroker("a")
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        sender = EncodedSender(connection, "g")
        assert QUEUE in await sender.queues("t", timeout=5)
        for single in (False, True):
            receipt = await sender.send("t", ITEM, single=single, queue=QUEUE, timeout=5)
            assert receipt.status is SendStatus.SEND_OK
        batch, single_message = broker.sends
        assert (batch.batch, batch.properties) == (True, "WAIT\x01true\x02")
        assert (single_message.batch, single_message.flag) == (False, 5)
        assert single_message.properties == "UNIQ_KEY\x01k\x02"


async def test_a_send_to_a_queue_is_one_attempt() -> None:
    broker = ScriptedBroker("a", ResponseCode.SYSTEM_BUSY, Act.STAY_SILENT)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        sender = EncodedSender(connection, "g")
        retried = frozenset({ResponseCode.SYSTEM_BUSY})
        with pytest.raises(ResponseError):
            await sender.send("t", ITEM, queue=QUEUE, retried=retried, timeout=5)
        with pytest.raises(SendTimeoutError) as error:
            await sender.send("t", ITEM, queue=QUEUE, retried=retried, timeout=0.2)
        assert error.value.maybe_stored
        assert len(broker.sends) == 2


async def test_a_send_to_any_queue_tries_another_broker_after_a_retried_code() -> None:
    brokers = [ScriptedBroker(name, *[ResponseCode.SYSTEM_BUSY] * 9) for name in "ab"]
    async with (
        ScriptedCluster(brokers) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        sender = EncodedSender(connection, "g")
        with pytest.raises(ResponseError):
            await sender.send("t", ITEM, retried=frozenset({ResponseCode.SYSTEM_BUSY}), timeout=5)
        assert [len(broker.sends) for broker in brokers] == [1, 1]


async def test_a_response_of_the_name_server_is_returned() -> None:
    async with served() as (connection, _):
        response = await connection.call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert b'"a"' in response.body
