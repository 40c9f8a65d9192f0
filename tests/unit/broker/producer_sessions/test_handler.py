"""OPEN_PRODUCER_SESSION: what is refused, and when the response is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.producer_sessions.handler import ProducerSessionHandler
from cometmq.broker.producer_sessions.sessions import ProducerSessions, SessionLimits
from cometmq.broker.role import ASYNC_MASTER, SLAVE
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.producer_session import ProducerSessionBounds
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.producer_session import (
    OpenProducerSessionRequest,
    OpenProducerSessionResponse,
)
from cometmq.protocol.record import encode_host
from cometmq.remoting import Connection
from cometmq.store import MessageStore
from support.wire.memory_link import link
from unit.broker.conftest import Tables, open_store

OPEN = RequestCode.OPEN_PRODUCER_SESSION


class World:
    """A broker that opens producer sessions, and a client."""

    def __init__(self, folder: Path) -> None:
        self.tables = Tables(folder / "config")
        self.tables.topic("T", queues=3)
        self.store: MessageStore = open_store(folder / "store", self.tables)
        core = self.tables.core(self.store)
        limits = SessionLimits(100, 1_000_000, 1_000_000)
        self.sessions = ProducerSessions(
            self.store,
            lambda: limits,
            clock=self.tables.clock,
            cold_reads=ColdReads(),
            store_host=encode_host("127.0.0.1", 0),
        )
        self.slaves = Acknowledgements(self.tables.role, BrokerSettings, tuple)
        durability = DurabilityWait(None, self.slaves)
        self.handler = ProducerSessionHandler(core, self.sessions, durability)

    def connect(self) -> Connection:
        return link({OPEN: self.handler.open})[1]

    async def open(self, client: Connection, **fields: Any) -> Command:
        values: dict[str, Any] = {"topic": "T", "session": "s", "owner": "a", "batch": 0}
        return await client.call(OPEN, OpenProducerSessionRequest(**values | fields), timeout=30)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.abandon()


async def test_the_response_has_the_epoch_and_the_bounds_of_all_queues(world: World) -> None:
    client = world.connect()

    first = await world.open(client, brokers="b;c")
    again = await world.open(client, owner="b", brokers="b")

    header = again.header(OpenProducerSessionResponse)
    assert (first.code, again.code) == (0, 0)
    assert first.header(OpenProducerSessionResponse).epoch == 1
    assert (header.epoch, header.brokers, header.is_complete) == (2, "b;c", True)
    assert ProducerSessionBounds.decode(again.body) == ProducerSessionBounds(
        begins=[0, 0, 0], ends=[0, 0, 0]
    )


async def test_a_fenced_attempt_gets_the_newest_epoch(world: World) -> None:
    client = world.connect()
    await world.open(client, epoch=7)

    fenced = await world.open(client, owner="b", epoch=7)

    assert fenced.code == ResponseCode.PRODUCER_FENCED
    assert fenced.header(OpenProducerSessionResponse).epoch == 7


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        pytest.param({"topic": "U"}, 17, "not exist"),
        pytest.param({"topic": "SCHEDULE_TOPIC_XXXX"}, 29, "applications send to"),
        pytest.param({"session": ""}, 29, "session '' of 0 characters"),
        pytest.param({"session": "s" * 256}, 29, "256 characters, expected 1 to 255"),
        pytest.param({"owner": "a\n"}, 29, "printable"),
        pytest.param({"batch": -1}, 29, "batch is -1"),
        pytest.param({"epoch": -1}, 29, "epoch is -1"),
        pytest.param({"epoch": 2**63 - 1}, 29, "epoch is 9223372036854775807"),
        pytest.param({"brokers": "b" * 16_385}, 29, "1 brokers with 16386 characters"),
    ],
)
async def test_wrong_openings_are_refused(
    world: World, fields: dict[str, Any], code: int, remark: str
) -> None:
    response = await world.open(world.connect(), **fields)

    assert response.code == code
    assert remark in (response.remark or "")
    assert len(world.sessions) == 0


async def test_a_slave_and_a_full_disk_open_nothing(world: World) -> None:
    client = world.connect()
    world.tables.role.change(SLAVE, 1)
    assert (await world.open(client)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.tables.role.change(ASYNC_MASTER, 0)
    world.store.hold("the disk is full")

    refused = await world.open(client)

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the disk is full" in (refused.remark or "")


async def test_a_master_that_acknowledges_nothing_stores_no_opening(world: World) -> None:
    client = world.connect()
    world.slaves.refusal = ResponseError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    end = world.store.written_to

    refused = await world.open(client)

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, "clients try it again"
    assert "in-sync replicas not enough" in (refused.remark or "")
    assert world.store.written_to == end


async def test_openings_at_the_same_time_read_the_sessions_once(world: World) -> None:
    client = world.connect()
    responses = await asyncio.gather(*(world.open(client, owner=str(n)) for n in range(5)))
    epochs = [each.header(OpenProducerSessionResponse).epoch for each in responses]
    assert sorted(epochs) == [1, 2, 3, 4, 5]
