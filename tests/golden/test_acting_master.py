"""A master and its slave with enableSlaveActingMaster, as recorded from RocketMQ 5.3.3.

The master is killed, comes back, and takes back from the slave what happened meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.model.errors import ResponseError
from cometmq.namesrv.brokers.liveness import header_of
from cometmq.namesrv.brokers.registrations import read_registration
from cometmq.namesrv.registry import BrokerKey, MinIdNotice, Registry
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, decode_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import decode_fields, encode_fields
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.protocol.headers.namesrv import RegisterBrokerRequest
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response, check
from golden.recordings import VECTORS
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs, running_pairs
from support.checks.waiting import until
from support.wire.frames import one_command
from support.wire.wire_classes import recorded_classes

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (VECTORS / "ha/5.3.3-acting-master" / "frames.jsonl").read_text().splitlines()
]
ACTING = {"enableSlaveActingMaster": "true"}
KILLED_S, RETURNED_S, STOPPED_S = 97.9, 118.9, 132.77
"""When the name server noticed the end of the master, its return and its stop."""


def command_of(row: dict[str, Any]) -> Command:
    return one_command(bytes.fromhex(row["hex"]))


def recorded(code: RequestCode, *, is_response: bool = False) -> list[dict[str, Any]]:
    name = code.name + "_RESPONSE" * is_response
    return [row for row in ROWS if row["name"] == name]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.REGISTER_BROKER,
        RequestCode.GET_TIMER_CHECK_POINT,
    ],
)
def test_headers_and_bodies_lose_nothing(code: RequestCode) -> None:
    rows = recorded(code) + recorded(code, is_response=True)
    assert rows
    for row in rows:
        header, body = recorded_classes(row["name"])
        command = command_of(row)
        if header is not None and command.fields:
            assert encode_fields(decode_fields(header, command.fields)) == command.fields, row
        if body is not None and command.body and code != RequestCode.REGISTER_BROKER:
            read = decode_body(body, command.body)
            assert isinstance(read, Body)
            assert fastjson.loads(read.encode()) == fastjson.loads(command.body), row


async def test_the_same_registrations_lead_to_the_recorded_notifications() -> None:
    registry = Registry()
    notices: list[MinIdNotice | None] = []
    sent = [command_of(row).fields for row in recorded(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)]
    master = BrokerKey("HaCluster", "127.0.0.1:23512")
    has_died = False
    for row in recorded(RequestCode.REGISTER_BROKER):
        if row["t"] > STOPPED_S:
            break
        if row["t"] > KILLED_S and not has_died:
            has_died = True
            notices += await registry.disconnected("master 1")
        command = command_of(row)
        registration = read_registration(
            decode_fields(RegisterBrokerRequest, command.fields or {}),
            command.body,
            version=command.version,
            expiry_ms=120_000,
        )
        assert registration.expiry_ms == 10_000
        connection = f"{row['from']} {1 + has_died}"
        notices.append((await registry.register(registration, connection, 0)).notice)
    notices.append(await registry.unregister(master, "broker-a"))

    found = [encode_fields(header_of(notice)) for notice in notices if notice is not None]
    assert found == sent
    assert len(found) == 3


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient(name="test")
    yield made
    await made.close()


@pytest.fixture
async def pairs(tmp_path: Any) -> AsyncIterator[Pairs]:
    async with running_pairs(tmp_path, supports_acting_master=True) as running:
        yield running


async def exchange(
    client: RemotingClient, broker: Broker, header: ExchangeBrokerHaInfoRequest
) -> dict[str, str]:
    response = check(
        await client.call(
            broker.address, RequestCode.EXCHANGE_BROKER_HA_INFO, header, timeout=LIMIT_S
        )
    )
    assert response.body == b""
    return dict(response.fields or {})


async def test_a_slave_that_joins_and_a_master_that_returns_get_the_recorded_responses(
    pairs: Pairs, client: RemotingClient
) -> None:
    """The addresses and the offset are those of our brokers."""
    query, announcement = recorded(RequestCode.EXCHANGE_BROKER_HA_INFO)
    joined, returned = recorded(RequestCode.EXCHANGE_BROKER_HA_INFO, is_response=True)
    assert not command_of(query).fields
    master = await pairs.start("master", **ACTING)
    slave = await pairs.start("slave", **SLAVE, **ACTING)
    ha_address = master.core.address.at(master.features.replication.master.port)

    found = await exchange(client, master, ExchangeBrokerHaInfoRequest())
    assert found.keys() == (command_of(joined).fields or {}).keys()
    assert found == {
        "masterAddress": master.address,
        "masterHaAddress": ha_address,
        "masterFlushOffset": "0",
    }

    fields = command_of(announcement).fields
    assert fields is not None
    header = decode_fields(ExchangeBrokerHaInfoRequest, fields)
    assert not command_of(returned).fields
    assert await exchange(client, slave, header) == {}
    assert slave.core.role.master_address == "127.0.0.1:23512"
    assert slave.core.role.master_ha_address == "127.0.0.1:23513"


async def test_name_servers_get_the_recorded_requests(pairs: Pairs, client: RemotingClient) -> None:
    got: dict[int, Command] = {}

    def take(request: Request) -> Response:
        got[request.command.code] = request.command
        return Response()

    codes = (RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT)
    name_server = RemotingServer(dict.fromkeys(codes, take), name="namesrv")
    await name_server.start("127.0.0.1", 0)
    try:
        address = f"127.0.0.1:{name_server.port}"
        master = await pairs.start("master", **ACTING, namesrvAddr=address)
        await until(lambda: len(got) == len(codes))
        await pairs.stop(master)
    finally:
        await name_server.stop(0.1)

    heartbeat = recorded(RequestCode.BROKER_HEARTBEAT)[0]
    assert (got[RequestCode.BROKER_HEARTBEAT].fields or {}).keys() == (
        command_of(heartbeat).fields or {}
    ).keys()
    assert got[RequestCode.BROKER_HEARTBEAT].is_oneway == command_of(heartbeat).is_oneway
    fields = got[RequestCode.REGISTER_BROKER].fields or {}
    wanted = command_of(recorded(RequestCode.REGISTER_BROKER)[0]).fields or {}
    assert fields.keys() == wanted.keys()
    for name in ("heartbeatTimeoutMillis", "enableActingMaster", "brokerId", "compressed"):
        assert fields[name] == wanted[name], name


@pytest.mark.parametrize(
    ("master", "ha_address"),
    [("127.0.0.1:23512", "127.0.0.1"), ("", "127.0.0.1:23513"), ("x" * 1000, "y" * 1000)],
)
async def test_a_slave_takes_no_address_that_is_none(
    pairs: Pairs, client: RemotingClient, master: str, ha_address: str
) -> None:
    slave = await pairs.start("slave", **SLAVE, **ACTING)
    header = ExchangeBrokerHaInfoRequest(master_ha_address=ha_address, master_address=master)
    with pytest.raises(ResponseError, match="expected host:port"):
        await exchange(client, slave, header)
    assert slave.core.role.master_address == ""


async def test_a_slave_follows_no_other_master_while_its_own_is_registered(
    pairs: Pairs, client: RemotingClient
) -> None:
    master = await pairs.start("master", **ACTING)
    slave = await pairs.start("slave", **SLAVE, **ACTING)
    await until(lambda: slave.core.role.master_address == master.address)
    acting = slave.features.acting_master.acting
    assert acting is not None
    await acting.check()
    other = ExchangeBrokerHaInfoRequest(
        master_ha_address="127.0.0.1:23513", master_address="127.0.0.1:23512"
    )
    with pytest.raises(ResponseError, match="name servers still have"):
        await exchange(client, slave, other)
    with pytest.raises(ResponseError, match="this broker is a master"):
        await exchange(client, master, other)
    assert slave.core.role.master_address == master.address
