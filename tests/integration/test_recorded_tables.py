"""A slave copies the tables that were recorded from masters of RocketMQ."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.replication import metadata
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.common import KVTable
from cometmq.protocol.bodies.group import SubscriptionGroupWrapper
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import RegisterBrokerRequest
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response, check
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs, running_pairs
from support.checks.waiting import until
from support.wire.frames import one_command

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
CODES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)


def recorded_bodies(folder: Path) -> dict[int, bytes]:
    """The last response of the master to each request of a slave for a table."""
    asked: dict[tuple[str, int, int], int] = {}
    bodies = {}
    for line in (folder / "frames.jsonl").read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        opaque, port = row["header"]["opaque"], row["port"]
        if row["to"] == "master" and row["header"]["code"] in CODES:
            asked[row["from"], opaque, port] = row["header"]["code"]
        elif row["from"] == "master" and (code := asked.get((row["to"], opaque, port))):
            bodies[code] = one_command(bytes.fromhex(row["hex"])).body
    return bodies


@asynccontextmanager
async def replaying_master(
    pairs: Pairs, bodies: dict[int, bytes], log_end: int = 0
) -> AsyncIterator[list[Request]]:
    """A master that is registered and has recorded tables; yields the requests for its figures.

    Args:
        pairs: where its name server is.
        bodies: its tables.
        log_end: where its log ends.
    """
    asked: list[Request] = []

    def figures(request: Request) -> Response:
        asked.append(request)
        return Response(body=KVTable(table={"commitLogMaxOffset": str(log_end)}).encode())

    def replay(body: bytes) -> Callable[[Request], Response]:
        return lambda _: Response(body=body)

    handlers = {code: replay(body) for code, body in bodies.items()}
    server = RemotingServer(
        {**handlers, RequestCode.GET_BROKER_RUNTIME_INFO: figures}, name="master"
    )
    await server.start("127.0.0.1", 0)
    client = RemotingClient(name="master")
    header = RegisterBrokerRequest(
        broker_name="pair",
        broker_addr=f"127.0.0.1:{server.port}",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:1",
        broker_id=0,
    )
    try:
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}'
        address = pairs.name_server.address
        check(
            await client.call(address, RequestCode.REGISTER_BROKER, header, body, timeout=LIMIT_S)
        )
        yield asked
    finally:
        await client.close()
        await server.stop(0.1)


def file_of(folder: Path, name: str, kind: type[Body]) -> Any:
    return kind.decode((folder / "files" / "slave1" / f"{name}.json").read_bytes())


@pytest.mark.parametrize("recording", ["ha/4.9.7-default", "ha/5.3.3-default"])
async def test_recorded_tables_are_copied(recording: str, tmp_path: Path) -> None:
    folder = VECTORS / recording
    bodies = recorded_bodies(folder)
    assert bodies.keys() == set(CODES)
    master = TopicConfigSerializeWrapper.decode(bodies[RequestCode.GET_ALL_TOPIC_CONFIG])
    async with running_pairs(tmp_path) as pairs, replaying_master(pairs, bodies):
        slave = await pairs.start("slave", **SLAVE)
        await until(lambda: slave.core.topics.version == master.data_version)
        await until(lambda: slave.core.offsets.committed("RecGroup", "RecTopic", 1) == 4)
        await until(lambda: slave.features.delay.delivery.offsets() == {1: 1})

        recorded = file_of(folder, "topics", TopicConfigSerializeWrapper)
        own = {name for name in slave.core.topics.all() if slave.core.topics.is_system(name)}
        assert slave.core.topics.all().keys() - own <= recorded.topic_config_table.keys()
        for name, config in recorded.topic_config_table.items():
            assert slave.core.topics.all()[name] == config
        groups = SubscriptionGroupWrapper.decode(
            bodies[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
        )
        await until(lambda: slave.core.groups.version == groups.data_version)
        assert slave.core.groups.all().items() >= groups.subscription_group_table.items()
        assert "RecGroup" in slave.core.groups


async def test_schedule_offsets_wait_for_the_log_that_has_what_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered on the master only would be lost with it."""
    monkeypatch.setattr(metadata, "INTERVAL_S", 0.0)
    bodies = recorded_bodies(VECTORS / "ha/4.9.7-default")
    async with (
        running_pairs(tmp_path) as pairs,
        replaying_master(pairs, bodies, log_end=100) as asked,
    ):
        slave = await pairs.start("slave", **SLAVE)
        await until(lambda: len(asked) > 1)
        assert slave.core.store.written_to == 0
        assert slave.features.delay.delivery.offsets() == {}
