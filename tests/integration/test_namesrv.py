"""A name server over loopback, as brokers, clients and tools see it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.model.topic import TopicConfig
from cometmq.namesrv import NameServer, NameServerSettings
from cometmq.namesrv.app import SETTINGS
from cometmq.namesrv.config import files_below
from cometmq.protocol.bodies.common import DataVersion, TopicList
from cometmq.protocol.bodies.register import RegisterBrokerBody
from cometmq.protocol.bodies.route import (
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.namesrv import (
    DeleteTopicInNamesrvRequest,
    GetBrokerMemberGroupRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetRouteinfoByTopicRequest,
    NotifyMinBrokerIdChangeRequest,
    PutKvConfigRequest,
    RegisterBrokerRequest,
    RegisterTopicInNamesrvRequest,
)
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response, check
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import NAMESRV_KEYS
from support.checks.manual_clock import ManualClock

TIMEOUT_S = 120.0


class Peer:
    """A name server under test, and a client whose connection is a broker's."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.clock = ManualClock()
        values = {"listenPort": "0"} | files_below(folder)
        self.configuration = load(SETTINGS, known_keys=NAMESRV_KEYS, command_line=values)
        if settings:
            changed = dataclasses.replace(self.configuration[NameServerSettings], **settings)  # type: ignore[arg-type]
            self.configuration = Configuration.of(changed)
            self.server = NameServer(changed, clock=self.clock)
        else:
            self.server = NameServer(self.configuration, clock=self.clock)
        self.broker = RemotingClient(name="broker")
        self.tool = RemotingClient(name="tool")

    async def call(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        by: RemotingClient | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Command:
        client = by or self.tool
        return await client.call(
            self.server.address, code, header, body, timeout=TIMEOUT_S, fields=fields
        )

    async def register(
        self,
        *topics: str,
        name: str = "a",
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        by: RemotingClient | None = None,
        silence_ms: int | None = None,
    ) -> Command:
        """Register a broker.

        Args:
            silence_ms: how long it may be silent, as those with ``enableSlaveActingMaster`` say.
        """
        wrapper = TopicConfigSerializeWrapper(
            data_version=DataVersion(counter=1),
            topic_config_table={t: TopicConfig(topic_name=t) for t in topics or ("T", "U")},
        )
        header = RegisterBrokerRequest(
            broker_name=name,
            broker_addr=address,
            cluster_name="c",
            ha_server_addr="10.0.0.1:10912",
            broker_id=broker_id,
            heartbeat_timeout_millis=silence_ms,
            enable_acting_master=silence_ms is not None,
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
        return check(
            await self.call(RequestCode.REGISTER_BROKER, header, body, by=by or self.broker)
        )

    async def route(self, topic: str) -> TopicRouteData | None:
        header = GetRouteinfoByTopicRequest(topic=topic)
        answer = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return TopicRouteData.decode(check(answer).body)

    async def until_gone(self, topic: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await self.route(topic) is not None:
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.broker.close()
        await self.tool.close()
        await self.server.stop()


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    peer = Peer(tmp_path)
    await peer.server.start()
    yield peer
    await peer.close()


async def test_registered_topics_are_routed_until_the_connection_closes(peer: Peer) -> None:
    await peer.register()
    route = await peer.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    await peer.broker.close()
    await peer.until_gone("T")


async def test_silent_broker_is_taken_out_and_its_connection_closed(peer: Peer) -> None:
    await peer.register()
    connection = await peer.broker.connection(peer.server.address)
    peer.clock.advance(120_000)
    await peer.server.core.liveness.expire()
    assert await peer.route("T") is not None
    peer.clock.advance(1)
    await peer.server.core.liveness.expire()
    assert await peer.route("T") is None
    async with asyncio.timeout(TIMEOUT_S):
        await connection.wait_closed()


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
@pytest.mark.parametrize("silence_ms", [None, 10_000])
async def test_signs_of_life_keep_a_broker(
    peer: Peer, code: RequestCode, silence_ms: int | None
) -> None:
    await peer.register(silence_ms=silence_ms)
    silence_ms = silence_ms or 120_000
    peer.clock.advance(silence_ms)
    fields = {
        "brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0",
    }  # fmt: skip
    check(await peer.call(code, body=DataVersion(counter=1).encode(), fields=fields))
    peer.clock.advance(silence_ms)
    await peer.server.core.liveness.expire()
    assert await peer.route("T") is not None
    peer.clock.advance(1)
    await peer.server.core.liveness.expire()
    assert await peer.route("T") is None


async def test_expiry_runs_by_itself(tmp_path: Path) -> None:
    settings = {"listen_port": 0, "expiry_scan_ms": 10, "kv_config_path": tmp_path / "kv.json"}
    peer = Peer(tmp_path, **settings)
    await peer.server.start()
    try:
        await peer.register()
        peer.clock.advance(120_001)
        await peer.until_gone("T")
    finally:
        await peer.close()


async def test_unknown_request_is_refused_with_code_3(peer: Peer) -> None:
    answer = await peer.call(RequestCode.SEND_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_refusals_leave_the_connection_open(peer: Peer) -> None:
    connection = await peer.tool.connection(peer.server.address)
    for body in (b"", b"{", b"[]", b"\x78\x9c", b"null"):
        header = RegisterBrokerRequest(
            broker_name="../a", broker_addr="x", cluster_name="", ha_server_addr="", broker_id=0
        )
        assert (await peer.call(RequestCode.REGISTER_BROKER, header, body)).code == 1
        assert (await peer.call(RequestCode.REGISTER_BROKER, None, body)).code == 1
        assert (await peer.call(RequestCode.QUERY_DATA_VERSION, None, body)).code == 1
    assert not connection.closed
    assert not peer.server.registry.groups


async def test_first_registration_with_one_topic_is_refused(peer: Peer) -> None:
    with pytest.raises(Exception, match="register broker failed"):
        await peer.register("T")


async def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    for attempt in range(2):
        peer = Peer(tmp_path)
        await peer.server.start()
        try:
            if attempt == 0:
                put = PutKvConfigRequest(namespace="n", key="k", value="v")
                check(await peer.call(RequestCode.PUT_KV_CONFIG, put))
            get = GetKvConfigRequest(namespace="n", key="k")
            answer = check(await peer.call(RequestCode.GET_KV_CONFIG, get))
            assert answer.header(GetKvConfigResponse).value == "v"
        finally:
            await peer.close()


async def test_order_configuration_reaches_brokers_and_if_set_routes(peer: Peer) -> None:
    put = PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
    check(await peer.call(RequestCode.PUT_KV_CONFIG, put))
    answer = await peer.register()
    assert json.loads(answer.body) == {"table": {"T": "a:4"}}
    route = await peer.route("T")
    assert route is not None
    assert route.order_topic_conf is None
    check(await peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true"))
    route = await peer.route("T")
    assert route is not None
    assert route.order_topic_conf == "a:4"


async def test_changed_settings_are_kept_in_the_file(peer: Peer) -> None:
    check(await peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n"))
    text = (peer.folder / "namesrv.properties").read_text()
    assert "orderMessageEnable=true" in text
    shown = check(await peer.call(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
    assert "orderMessageEnable=true\n" in shown
    assert f"listenPort={peer.server.port}\n" in shown


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"orderMessageEnable=true\nlistenPort=1", ResponseCode.NO_PERMISSION),
        (b"rocketmqHome=/", ResponseCode.NO_PERMISSION),
        (b"orderMessageEnable=perhaps", ResponseCode.SYSTEM_ERROR),
        (b"a=\\u12", ResponseCode.SYSTEM_ERROR),
        (b"noSuchSetting=1", ResponseCode.SUCCESS),
        (b"", ResponseCode.SUCCESS),
    ],
)
async def test_refused_settings_change_nothing(peer: Peer, body: bytes, code: int) -> None:
    before = peer.server.configuration.properties()
    answer = await peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert answer.code == code
    assert peer.server.configuration.properties() == before
    assert not (peer.folder / "namesrv.properties").exists()


async def test_lists_can_be_switched_off(peer: Peer) -> None:
    await peer.register()
    update = b"enableAllTopicList=false\nenableTopicList=false"
    check(await peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=update))
    for code, fields in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}),
    ):
        answer = await peer.call(code, fields=fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


async def test_routes_can_wait_for_brokers_at_the_start(tmp_path: Path) -> None:
    settings = {"listen_port": 0, "needs_wait_for_service": True, "kv_config_path": tmp_path / "k"}
    peer = Peer(tmp_path, **settings)
    await peer.server.start()
    try:
        await peer.register()
        header = GetRouteinfoByTopicRequest(topic="T")
        answer = await peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        peer.clock.advance(45_000)
        assert await peer.route("T") is not None
    finally:
        await peer.close()


async def test_members_of_a_group_are_told(peer: Peer) -> None:
    await peer.register()
    await peer.register(broker_id=1, address="10.0.0.2:10911")
    header = GetBrokerMemberGroupRequest(cluster_name="c", broker_name="a")
    answer = check(await peer.call(RequestCode.GET_BROKER_MEMBER_GROUP, header))
    group = GetBrokerMemberGroupResponseBody.decode(answer.body).broker_member_group
    assert group is not None
    assert group.broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


async def test_tools_add_and_delete_topics(peer: Peer) -> None:
    await peer.register()
    row = QueueData(broker_name="a", read_queue_nums=3, write_queue_nums=3, perm=6)
    body = TopicRouteData(queue_datas=[row]).encode()
    header = RegisterTopicInNamesrvRequest(topic="N")
    check(await peer.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body))
    route = await peer.route("N")
    assert route is not None
    assert route.queue_datas == [row]
    delete = DeleteTopicInNamesrvRequest(topic="N")
    check(await peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, delete))
    answer = check(await peer.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert set(TopicList.decode(answer.body).topic_list) == {"T", "U"}


async def test_topic_with_an_illegal_name_cannot_be_added(peer: Peer) -> None:
    await peer.register()
    body = TopicRouteData(queue_datas=[QueueData(broker_name="a")]).encode()
    header = RegisterTopicInNamesrvRequest(topic="../x")
    answer = await peer.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_group_is_told_when_its_smallest_id_changes(tmp_path: Path) -> None:
    told: asyncio.Queue[NotifyMinBrokerIdChangeRequest] = asyncio.Queue(10)

    def note(request: Request) -> Response | None:
        told.put_nowait(request.header(NotifyMinBrokerIdChangeRequest))
        return None

    slave = RemotingServer({RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: note}, name="slave")
    await slave.start("127.0.0.1", 0)
    settings = {"listen_port": 0, "notify_min_broker_id": True, "kv_config_path": tmp_path / "k"}
    peer = Peer(tmp_path, **settings)
    await peer.server.start()
    try:
        address = f"127.0.0.1:{slave.port}"
        await peer.register(broker_id=1, address=address, by=peer.tool)
        await peer.register()
        async with asyncio.timeout(TIMEOUT_S):
            came = await told.get()
            await peer.broker.close()
            went = await told.get()
        assert (came.min_broker_id, came.offline_broker_addr) == (0, None)
        assert (went.min_broker_id, went.min_broker_addr) == (1, address)
        assert went.offline_broker_addr == "10.0.0.1:10911"
    finally:
        await peer.close()
        await slave.stop()


async def test_name_servers_do_not_share_anything(tmp_path: Path) -> None:
    one, two = Peer(tmp_path / "one"), Peer(tmp_path / "two")
    for peer in (one, two):
        await peer.server.start()
    try:
        await one.register()
        assert await one.route("T") is not None
        assert await two.route("T") is None
    finally:
        await one.close()
        await two.close()


async def test_taken_port_is_a_config_error(peer: Peer, tmp_path: Path) -> None:
    settings = NameServerSettings(listen_port=peer.server.port, kv_config_path=tmp_path / "k.json")
    with pytest.raises(ConfigError, match=str(peer.server.port)):
        await NameServer(settings).start()
