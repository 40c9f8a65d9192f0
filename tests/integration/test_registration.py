"""A broker's registration at real name servers: some up, some down, some restarted."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.registration.name_servers import Identity, Registration
from cometmq.broker.role import Role
from cometmq.broker.topics.table import TopicTable
from cometmq.model.topic import TopicConfig
from cometmq.namesrv import NameServer, NameServerSettings
from cometmq.namesrv.registry import BrokerKey
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.register import RegisterBrokerBody, decode_register_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import PutKvConfigRequest, QueryDataVersionResponse
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response, check
from cometmq.remoting.ports import free_port
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.files import Files
from support.checks.waiting import until

TIMEOUT_S = 60.0
WHO = Identity("c", "broker-a", "127.0.0.1:10911", "127.0.0.1:10912")
KEY = BrokerKey("c", "127.0.0.1:10911")


class Broker:
    """As much of a broker as registers."""

    def __init__(self, folder: Path) -> None:
        self.settings = BrokerSettings(broker_name="broker-a", register_broker_timeout_ms=30_000)
        file = JsonFile(folder / "topics.json", Files())
        self.topics = TopicTable(lambda: self.settings, file, clock=Clock())
        self.topics.load()
        self.client = RemotingClient(name="broker")
        self.role = Role()
        self.registration = Registration(
            self.client, self.topics, lambda: self.settings, role=self.role
        )
        self.topics.notify(self.registration.wake)

    async def start(self, *name_servers: str, timeout: float = TIMEOUT_S) -> None:
        await self.registration.start(WHO, name_servers, timeout=timeout)

    async def put(self, name: str, perm: int = 6) -> None:
        await self.topics.put([TopicConfig(topic_name=name, perm=perm)])

    async def close(self) -> None:
        await self.registration.stop()
        await self.client.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    await broker.close()


@contextlib.asynccontextmanager
async def name_server(folder: Path, port: int = 0) -> AsyncIterator[NameServer]:
    settings = NameServerSettings(listen_port=port, kv_config_path=folder / "kvConfig.json")
    server = NameServer(settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.1)


class Silent:
    """A name server that takes connections and answers nothing."""

    async def __aenter__(self) -> str:
        self._server = RemotingServer({RequestCode.REGISTER_BROKER: self._keep}, name="silent")
        await self._server.start("127.0.0.1", 0)
        return f"127.0.0.1:{self._server.port}"

    def _keep(self, request: Request) -> Response | None:
        return None

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0.1)


async def test_broker_is_known_everywhere_when_start_returns(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path / "1") as one, name_server(tmp_path / "2") as two:
        await broker.start(one.address, two.address, one.address)
        for server in (one, two):
            assert server.registry.groups["broker-a"].addresses == {0: "127.0.0.1:10911"}
            assert server.registry.topics.keys() == broker.topics.all().keys()
            assert server.registry.live[KEY].version == broker.topics.version
            assert server.registry.live[KEY].ha_address == "127.0.0.1:10912"
        assert broker.registration.missing == []


async def test_name_server_that_is_down_is_tolerated_and_registered_at_once_it_is_up(
    broker: Broker, tmp_path: Path
) -> None:
    port = free_port()
    async with name_server(tmp_path / "1") as up:
        await broker.start(up.address, f"127.0.0.1:{port}")
        assert "broker-a" in up.registry.groups
        assert broker.registration.missing == [f"127.0.0.1:{port}"]
        async with name_server(tmp_path / "2", port) as late:
            await until(lambda: "TBW102" in late.registry.topics)


@pytest.mark.usefixtures("virtual_time")
async def test_name_server_that_never_answers_delays_nobody(broker: Broker, tmp_path: Path) -> None:
    async with name_server(tmp_path) as up, Silent() as silent:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await broker.start(silent, up.address, timeout=0.3)
        assert "broker-a" in up.registry.groups
        await broker.put("fresh")
        await broker.registration.announce(timeout=0.4)
        assert "fresh" in up.registry.topics
        assert broker.registration.missing == [silent]
        assert loop.time() - begin <= 0.7 + 1e-6


async def test_announced_change_is_known_when_the_call_returns(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        for number in range(20):
            await broker.put(f"t{number}", perm=4)
            await broker.registration.announce()
            assert server.registry.topics[f"t{number}"]["broker-a"].perm == 4


async def registered(broker: Broker, *changes: Callable[[], Awaitable[object]]) -> list[list[str]]:
    """The topics of each registration: that of the start, and one after each change."""
    bodies: list[list[str]] = []

    def register(request: Request) -> Response:
        topics = RegisterBrokerBody.decode(request.body).topic_config_serialize_wrapper
        bodies.append(sorted(topics.topic_config_table))
        return Response()

    server = RemotingServer({RequestCode.REGISTER_BROKER: register}, name="recording")
    await server.start("127.0.0.1", 0)
    try:
        await broker.start(f"127.0.0.1:{server.port}")
        for change in changes:
            await change()
            await broker.registration.announce()
        await broker.registration.stop()
    finally:
        await server.stop(0.1)
    return bodies


async def test_a_new_topic_is_registered_alone_however_many_there_are(broker: Broker) -> None:
    await broker.topics.put([TopicConfig(topic_name=f"old{n}") for n in range(1000)])
    before = sorted(broker.topics.all())

    bodies = await registered(
        broker, lambda: broker.put("a"), lambda: broker.put("b"), lambda: broker.put("a", perm=4)
    )

    assert bodies == [before, ["a"], ["b"], ["a"]]


async def forget(name: str) -> None:
    """Drop nothing: the broker of this test has no messages."""


async def test_several_new_topics_are_registered_behind_one_of_them(broker: Broker) -> None:
    """One alone is an increment, which a name server refuses that has forgotten the broker."""
    before = sorted(broker.topics.all())
    new = [TopicConfig(topic_name=f"t{number}") for number in range(5)]

    bodies = await registered(broker, lambda: broker.topics.put(new))

    assert bodies[0] == before
    assert [len(body) for body in bodies[1:]] == [1, 4]
    assert sorted(bodies[1] + bodies[2]) == [config.topic_name for config in new]


async def test_all_topics_are_registered_if_one_has_gone_or_something_else_has_changed(
    broker: Broker,
) -> None:
    async def replace_one() -> None:
        await asyncio.gather(broker.topics.delete("a", forget), broker.put("c"))

    def withhold() -> Awaitable[bool]:
        broker.settings = dataclasses.replace(broker.settings, broker_permission=4)
        return broker.topics.put([TopicConfig(topic_name="d")])

    await broker.topics.put([TopicConfig(topic_name="a"), TopicConfig(topic_name="b")])
    own = set(broker.topics.all()) - {"a", "b"}

    bodies = await registered(broker, replace_one, broker.topics.touch, withhold)

    more = [{"a", "b"}, {"b", "c"}, {"b", "c"}, {"b", "c", "d"}]
    assert bodies == [sorted(own | names) for names in more]


async def test_an_increment_that_is_refused_is_followed_by_all_topics(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        await server.registry.unregister(KEY, "broker-a")  # as if it had been silent for too long
        await broker.put("fresh")
        await until(lambda: "TBW102" in server.registry.topics)
        assert server.registry.topics.keys() == broker.topics.all().keys()


async def test_tables_of_any_size_are_registered(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A single frame of them would be larger than a name server reads."""
    names = [f"{number}-{'x' * 240}" for number in range(40_000)]
    broker.topics.put_now(TopicConfig(topic_name=name) for name in names)
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        assert broker.registration.missing == []
        assert server.registry.topics.keys() == broker.topics.all().keys()
        assert server.registry.live[KEY].version == broker.topics.version
        before = server.registry.live[KEY].version

        changed = [TopicConfig(topic_name=name, perm=4) for name in names[:30_000]]
        await broker.topics.put(changed)
        await broker.registration.announce(timeout=TIMEOUT_S)
        perms = [server.registry.topics[name]["broker-a"].perm for name in names]
        assert perms == [4] * 30_000 + [6] * 10_000
        assert server.registry.live[KEY].version == broker.topics.version != before
    assert "cannot register" not in caplog.text


@pytest.mark.parametrize("deflated", [False, True])
async def test_a_registration_is_split_if_the_settings_want_it(
    broker: Broker, tmp_path: Path, deflated: bool
) -> None:
    broker.settings = dataclasses.replace(
        broker.settings,
        enable_split_registration=True,
        split_registration_size=10,
        compressed_register=deflated,
    )
    broker.topics.put_now(TopicConfig(topic_name=f"t{number}") for number in range(95))
    seen: list[int] = []
    async with name_server(tmp_path) as server:
        handle = server._server._handlers[RequestCode.REGISTER_BROKER]

        def note(request: Request) -> object:
            found = decode_register_body(request.body, request.command.version)
            seen.append(len(found.topic_config_serialize_wrapper.topic_config_table))
            assert (request.body[:1] == b"{") != deflated
            assert request.command.fields["compressed"] == str(deflated).lower()
            return handle(request)

        server._server._handlers[RequestCode.REGISTER_BROKER] = note  # type: ignore[index]
        await broker.start(server.address)
        count = len(broker.topics)
        assert seen == [10] * (count // 10) + [count % 10] * bool(count % 10)
        assert server.registry.topics.keys() == broker.topics.all().keys()
        for row in ("perm", "read_queue_nums"):
            assert {
                name: getattr(rows["broker-a"], row)
                for name, rows in server.registry.topics.items()
            } == {name: getattr(config, row) for name, config in broker.topics.all().items()}
        assert server.registry.live[KEY].version == broker.topics.version


async def test_parts_of_a_registration_remove_no_other_topics(
    broker: Broker, tmp_path: Path
) -> None:
    broker.settings = dataclasses.replace(
        broker.settings, enable_split_registration=True, split_registration_size=3
    )
    settings = NameServerSettings(
        listen_port=0, kv_config_path=tmp_path / "kv.json", deletes_topics_with_registration=True
    )
    server = NameServer(settings)
    await server.start()
    try:
        await broker.start(server.address)
        assert server.registry.topics.keys() == broker.topics.all().keys()
    finally:
        await server.stop(0.1)


async def test_a_topic_is_registered_alone_if_the_settings_want_it(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        version = server.registry.live[KEY].version
        broker.settings = dataclasses.replace(
            broker.settings, enable_single_topic_register=True, broker_permission=6
        )
        await broker.put("fresh", perm=4)
        await broker.registration.announce()
        assert server.registry.topics["fresh"]["broker-a"].perm == 4
        assert server.registry.live[KEY].version == version


async def test_change_is_registered_in_the_background(broker: Broker, tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        for number in range(50):
            await broker.put(f"t{number}")
        await until(lambda: "t49" in server.registry.topics)


async def test_broker_comes_back_by_itself_when_its_name_server_was_restarted(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        port = server.port
        await broker.start(server.address)
    async with name_server(tmp_path, port) as again:
        await until(lambda: "TBW102" in again.registry.topics)


async def test_stop_takes_the_broker_out(broker: Broker, tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        await broker.registration.stop()
        assert not server.registry.groups
        assert not server.registry.topics


@pytest.mark.usefixtures("virtual_time")
async def test_stop_is_short_when_a_name_server_does_not_answer(broker: Broker) -> None:
    async with Silent() as silent:
        await broker.start(silent, timeout=0.05)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await broker.registration.stop(timeout=0.2)
        assert loop.time() - begin <= 0.2 + 1e-6


async def test_withheld_permission_shows_in_every_route(broker: Broker, tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        await broker.start(server.address)
        broker.settings = dataclasses.replace(broker.settings, broker_permission=4)
        await broker.topics.touch()
        await broker.registration.announce()
        perms = {name: rows["broker-a"].perm for name, rows in server.registry.topics.items()}
        assert perms["TBW102"] == 4
        assert not any(perm & 2 for perm in perms.values())
        assert broker.topics.all()["TBW102"].perm == 7


async def test_ordered_topics_are_learnt_from_the_name_server(
    broker: Broker, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        await broker.put("T")
        header = PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        check(
            await broker.client.call(
                server.address, RequestCode.PUT_KV_CONFIG, header, timeout=TIMEOUT_S
            )
        )
        await broker.start(server.address)
        assert broker.topics.all()["T"].order


class Scripted:
    """A name server that counts what it is asked, and says of every version what it is told to."""

    def __init__(self, *, changed: bool) -> None:
        self.changed = changed
        self.asked: list[int] = []
        self.seen = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = RemotingServer(
            {
                RequestCode.REGISTER_BROKER: self._note,
                RequestCode.QUERY_DATA_VERSION: self._compare,
                RequestCode.UNREGISTER_BROKER: self._note,
            },
            name="scripted",
        )
        await self._server.start("127.0.0.1", 0)
        return f"127.0.0.1:{self._server.port}"

    def _note(self, request: Request) -> Response:
        self.asked.append(request.code)
        self.seen.set()
        return Response()

    def _compare(self, request: Request) -> Response:
        DataVersion.decode(request.body)
        self._note(request)
        return Response(header=QueryDataVersionResponse(changed=self.changed))

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0.1)


@pytest.mark.parametrize(
    ("changed", "forced", "asked"),
    [
        (True, False, [RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER]),
        (False, False, [RequestCode.QUERY_DATA_VERSION]),
        (False, True, [RequestCode.REGISTER_BROKER]),
    ],
)
async def test_each_period_registers_only_what_changed_unless_it_is_forced(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    changed: bool,
    forced: bool,
    asked: list[int],
) -> None:
    monkeypatch.setattr("cometmq.broker.registration.name_servers.PERIOD_S_MIN", 0.01)
    monkeypatch.setattr("cometmq.broker.registration.name_servers.PERIOD_S_MAX", 0.01)
    broker.settings = dataclasses.replace(broker.settings, force_register=forced)
    scripted = Scripted(changed=changed)
    async with scripted as address:
        await broker.start(address)
        assert scripted.asked[0] == RequestCode.REGISTER_BROKER
        async with asyncio.timeout(TIMEOUT_S):
            while len(scripted.asked) < 1 + 2 * len(asked):
                scripted.seen.clear()
                await scripted.seen.wait()
        assert scripted.asked[1 : 1 + 2 * len(asked)] == asked * 2
        await broker.close()
