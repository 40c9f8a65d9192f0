"""The controller protocol as recorded between RocketMQ 5.3.3 brokers, a tool and a controller."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.epochs.epoch_file import Epoch
from cometmq.broker.failover.handler import epoch_cache
from cometmq.controller.broker_set import BrokerSet, Replica
from cometmq.controller.config import ControllerSettings
from cometmq.controller.etcd import Put
from cometmq.model.errors import ResponseError
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, decode_body
from cometmq.protocol.bodies.controller import EpochEntryCache
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.base import RpcHeader, decode_fields, encode_fields
from cometmq.remoting import Response
from golden.recordings import VECTORS
from support.checks.manual_clock import ManualClock
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import OneController
from support.wire.frames import one_command
from support.wire.wire_classes import recorded_classes

CODES = {
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    RequestCode.CLEAN_BROKER_DATA,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    RequestCode.CONTROLLER_APPLY_BROKER_ID,
}
ROWS = [
    row
    for line in (VECTORS / "ha/5.3.3-controller" / "frames.jsonl").read_text().splitlines()
    if (row := json.loads(line))["name"].removesuffix("_RESPONSE") in {code.name for code in CODES}
]
FIRST_DEATH_S = 76.3
"""From here on the recorded controller answers by epochs that grew with each failed election."""
PROBES_S, PROBES_END_S = 207.9, 208.1
"""Then a tool sends requests, most of which are refused."""
DECIDED = CODES - {
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
}


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_code_is_recorded(code: RequestCode) -> None:
    assert any(row["name"].startswith(code.name) for row in ROWS)


def test_headers_and_bodies_lose_nothing() -> None:
    for row in ROWS:
        check(row)


def test_a_broker_shows_its_epochs_as_recorded() -> None:
    settings = BrokerSettings(broker_cluster_name="HaCluster", broker_name="broker-a")
    recorded = [row for row in ROWS if row["name"] == "GET_BROKER_EPOCH_CACHE_RESPONSE"]
    for row in recorded:
        body = one_command(bytes.fromhex(row["hex"])).body
        found = EpochEntryCache.decode(body)
        epochs = [Epoch(each.epoch, each.start_offset) for each in found.epoch_list]
        shown = epoch_cache(settings, found.broker_id, epochs, found.max_offset)
        assert shown.encode() == body
    assert len(recorded) >= 6


def check(row: dict[str, Any]) -> None:
    header, body = recorded_classes(row["name"])
    command = one_command(bytes.fromhex(row["hex"]))

    if header not in (None, RpcHeader):
        assert encode_fields(decode_fields(header, command.fields)) == command.fields, row["name"]
    if body is not None and command.body:
        read = decode_body(body, command.body)
        assert isinstance(read, Body)
        if row["from"] == "admin":  # the tool that made the recording writes blanks between fields
            assert fastjson.loads(read.encode()) == fastjson.loads(command.body)
        else:
            assert read.encode() == command.body


async def test_a_first_master_and_a_slave_get_the_recorded_responses() -> None:
    one = await active_controller()

    assert await replay(one, [row for row in ROWS if row["t"] < FIRST_DEATH_S]) >= 10


async def test_requests_of_a_tool_get_the_recorded_responses() -> None:
    """Before them the state becomes that of the recording, with broker 3 dead."""
    one = await active_controller()
    known = BrokerSet(
        cluster="HaCluster",
        name="broker-a",
        last_id=3,
        replicas={id_: Replica(f"127.0.0.1:{23612 + 10 * id_}", "recorded") for id_ in (1, 2, 3)},
        master_id=1,
        master_epoch=6,
        in_sync=(1, 2),
        in_sync_epoch=10,
    )
    key = "/cometmq/controllers/cometmq/brokerSets/broker-a"
    assert await one.etcd.transact([], [Put(key, msgspec.json.encode(known))])
    await one.heartbeat("broker-a", 1, 2)

    probes = [row for row in ROWS if PROBES_S < row["t"] < PROBES_END_S]

    assert await replay(one, probes) >= 10


async def active_controller() -> OneController:
    clock = ManualClock()
    settings = ControllerSettings(notifies_role_changes=False)
    one = OneController(EtcdStore(clock.monotonic), clock, settings)
    assert await one.renew()
    return one


async def replay(one: OneController, rows: list[dict[str, Any]]) -> int:
    """Send the recorded requests, compare the responses, and return how many there were."""
    responses = {(row["conn"], row["opaque"]): row for row in rows if row["flag"] & 1}
    compared = 0
    for row in rows:
        if row["flag"] & 1 or row["code"] not in DECIDED | {RequestCode.BROKER_HEARTBEAT}:
            continue
        if (expected := responses.get((row["conn"], row["opaque"]))) is None:
            await one.handle(one_command(bytes.fromhex(row["hex"])), one.connections[row["conn"]])
            continue
        command = one_command(bytes.fromhex(row["hex"]))
        try:
            response = await one.handle(command, one.connections[row["conn"]])
        except ResponseError as refusal:
            response = Response(refusal.code, refusal.remark)
        wanted = one_command(bytes.fromhex(expected["hex"]))
        assert (response.code, response.remark) == (wanted.code, wanted.remark), row
        if wanted.has_fields:
            assert (response.all_fields() or {}) == (wanted.fields or {}), row
        assert response.body == wanted.body, row
        compared += 1
    return compared
