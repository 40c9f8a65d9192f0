"""Offsets stored by two brokers, of which one does not respond."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import MessageQueue
from cometmq.client._connection.instance import ClientCore
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.client.settings import ClientSettings
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.offset import UpdateConsumerOffsetRequest
from cometmq.remoting import CallTimeoutError, Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster

SILENT, FINE = MessageQueue("t", "silent", 0), MessageQueue("t", "fine", 0)
SECOND = MessageQueue("t", "fine", 1)
HERE = ClientSettings(call_timeout_ms=300)


@pytest.mark.usefixtures("virtual_time")
async def test_a_broker_that_does_not_respond_delays_no_other_queue() -> None:
    told: list[tuple[int, float]] = []

    def commit(request: Request) -> Response:
        header = request.header(UpdateConsumerOffsetRequest)
        told.append((header.commit_offset, asyncio.get_running_loop().time()))
        return Response()

    silent, fine = ScriptedBroker("silent"), ScriptedBroker("fine")
    silent.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: None
    fine.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = commit
    async with (
        ScriptedCluster([silent, fine]) as cluster,
        ClientCore(cluster.address, settings=HERE) as instance,
    ):
        store = RemoteOffsetStore(instance, "g")
        for queue, offset in ((SILENT, 3), (FINE, 7), (SECOND, 8)):
            store.update(queue, QueueOffset(offset))
        begun = asyncio.get_running_loop().time()

        failures = await store.persist([SILENT, FINE, SECOND])

    assert {queue: type(error) for queue, error in failures.items()} == {SILENT: CallTimeoutError}
    assert told == [(7, begun), (8, begun)], "the silent broker's time was waited for first"
