"""CommittedOffsets kept by two brokers, of which one does not answer."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import ClientInstance, MessageQueue, StartFrom
from cometmq.client._connection.queue_offsets import QueueOffsets
from cometmq.client._pull.committed_offsets import CommittedOffsets
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.client.settings import ClientSettings
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import UpdateConsumerOffsetRequest
from cometmq.remoting import CallTimeoutError, Request, Response
from support.scripted import ScriptedBroker, ScriptedCluster

SILENT, FINE = MessageQueue("t", "silent", 0), MessageQueue("t", "fine", 0)
HERE = ClientSettings(call_timeout_ms=300)


@pytest.mark.usefixtures("virtual_time")
async def test_a_broker_that_does_not_answer_keeps_no_other_queue_waiting() -> None:
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
        ClientInstance(cluster.address, settings=HERE) as instance,
    ):
        offsets = QueueOffsets(instance.routes, instance.brokers)
        places = CommittedOffsets("g", offsets, RemoteOffsetStore(instance, "g"), StartFrom.FIRST)
        begun = asyncio.get_running_loop().time()

        failures = await places.commit({SILENT: QueueOffset(3), FINE: QueueOffset(7)})

    assert {queue: type(error) for queue, error in failures.items()} == {SILENT: CallTimeoutError}
    ((offset, at),) = told
    assert offset == 7
    assert at == begun, "the silent broker's time was waited for first"
