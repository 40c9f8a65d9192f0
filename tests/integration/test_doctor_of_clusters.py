"""What `cometmq doctor --namesrv` finds in clusters with a fault, and in one without."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.app import SETTINGS as BROKER_SETTINGS
from cometmq.broker.app import Broker
from cometmq.cli.doctor import cluster_checks, server_checks
from cometmq.cli.doctor.findings import GIVE_ADMINISTRATOR, Finding, Level, run_checks
from cometmq.cli.doctor.host import Host
from cometmq.client import (
    AdminClient,
    Filter,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.namesrv.app import SETTINGS as NAMESRV_SETTINGS
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import files_below
from cometmq.remoting.ports import LOOPBACK, free_broker_port, free_port
from cometmq.system.clock import Clock
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import BROKER_KEYS, NAMESRV_KEYS
from cometmq.testing.cluster import SMALL_FILES
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller

LIMIT_S = 60.0
CHECK_S = 20.0
USERS = {
    "authenticationEnabled": "true",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider."
    "LocalAuthenticationMetadataProvider",
}
SLAVE = {"brokerName": "a", "brokerRole": "SLAVE", "brokerId": "1"}


class ShiftedClock(Clock):
    """A clock that is wrong."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


ANY_DISK = {"diskMaxUsedSpaceRatio": "95", "diskSpaceWarningLevelRatio": "98"}
"""Limits that the disk of a test keeps, however full it is."""


class Servers:
    """Starts servers in this process, and stops them at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.names: list[str] = []

    async def name_server(self) -> NameServer:
        folder = self._folder / f"names-{len(self.names)}"
        values = {"bindAddress": LOOPBACK, "listenPort": "0", **files_below(folder)}
        server = NameServer(load(NAMESRV_SETTINGS, known_keys=NAMESRV_KEYS, command_line=values))
        await server.start()
        self._stack.push_async_callback(server.stop)
        self.names.append(server.address)
        return server

    async def broker(self, name: str = "a", clock: Clock | None = None, **settings: str) -> Broker:
        port = free_broker_port()
        values = {
            **SMALL_FILES,
            "brokerName": name,
            "bindAddress": LOOPBACK,
            "listenPort": str(port),
            "namesrvAddr": ";".join(self.names),
            "storePathRootDir": str(self._folder / str(port)),
            **ANY_DISK,
            **settings,
        }
        configuration = load(BROKER_SETTINGS, known_keys=BROKER_KEYS, command_line=values)
        broker = Broker(configuration, clock=clock)
        self._stack.push_async_callback(broker.stop)
        await broker.start()
        return broker

    async def examine(self) -> list[Finding]:
        async with AdminClient(self.names) as admin:
            return await cluster_checks.examine(admin, CHECK_S)

    async def until_followed(self, master: Broker, slaves: int = 1) -> None:
        """Wait until slaves copy the log of a master."""

        async def is_followed() -> bool:
            async with AdminClient(self.names) as admin:
                status = await admin.replication(master.address)
            return sum(slave.in_sync for slave in status.ha_connection_info) == slaves

        await until(is_followed)

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Servers]:
    servers = Servers(folder)
    try:
        await servers.name_server()
        yield servers
    finally:
        await servers.close()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with running(tmp_path) as servers:
        yield servers


def bad(findings: Sequence[Finding], check: str = "") -> list[Finding]:
    return [
        finding
        for finding in findings
        if finding.level is not Level.FINE and check in ("", finding.check)
    ]


async def ignore(message: StoredMessage) -> None:
    """Handle a message."""


def member(servers: Servers, group: str, tags: str) -> PushConsumer:
    return PushConsumer(
        servers.names, handler=ignore, group=group, subscriptions={"orders": Filter.tags(tags)}
    )


async def send(servers: Servers, *bodies: bytes, topic: str = "orders") -> None:
    async with Producer(servers.names, group="p") as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


async def test_a_cluster_in_which_all_is_well(servers: Servers) -> None:
    await servers.name_server()
    master = await servers.broker()
    await servers.broker(**SLAVE)
    await servers.until_followed(master)
    await send(servers, b"1")
    async with member(servers, "g", "*"):
        findings = await servers.examine()

    assert bad(findings) == []
    assert {finding.check for finding in findings} == {
        "name-servers", "brokers", "clocks", "disk-space", "ports", "versions", "masters", "slaves",
        "topics", "groups", "subscriptions", "producer-sessions",
    }  # fmt: skip
    assert "1 group, 1 online" in {finding.met for finding in findings}


# --- name servers ---------------------------------------------------------------------------------


async def test_a_name_server_that_does_not_respond_is_found(servers: Servers) -> None:
    servers.names.append(f"{LOOPBACK}:{free_port()}")

    [finding, *_] = bad(await servers.examine(), "name-servers")

    assert (finding.level, finding.subject) == (Level.PROBLEM, servers.names[1])


async def test_a_name_server_that_does_not_know_a_broker_is_found(servers: Servers) -> None:
    await servers.broker()
    await servers.name_server()

    findings = bad(await servers.examine(), "name-servers")

    assert {finding.subject for finding in findings} == {servers.names[1]}
    assert "it knows no such broker" in findings[0].met
    assert "does not know" in findings[1].met


async def test_a_cluster_without_brokers_is_found(servers: Servers) -> None:
    [finding] = bad(await servers.examine())

    assert finding.met == "no broker is registered"


# --- brokers --------------------------------------------------------------------------------------


async def test_a_broker_that_registers_an_address_at_which_it_does_not_listen_is_found(
    servers: Servers,
) -> None:
    await servers.broker("a", brokerIP1="127.0.0.9")

    [finding] = bad(await servers.examine(), "brokers")

    assert finding.level is Level.PROBLEM
    assert "127.0.0.9" in finding.met
    assert "brokerIP1" in finding.action


async def test_a_broker_that_refuses_the_request_asks_for_the_account_of_an_administrator(
    servers: Servers,
) -> None:
    await servers.broker(**USERS)

    [finding] = bad(await servers.examine(), "brokers")

    assert finding.met.startswith("it refuses the request: ")
    assert finding.action == GIVE_ADMINISTRATOR


async def test_ports_that_are_not_reached_are_found(servers: Servers) -> None:
    broker = await servers.broker()
    for server in broker.listening.servers[1:]:
        server.stop_accepting()
    broker.features.replication.master.stop_accepting()

    findings = bad(await servers.examine(), "ports")

    assert ["haListenPort" in findings[0].met, "VIP" in findings[1].met] == [True, True]


async def test_a_fast_port_that_is_off_is_no_finding(servers: Servers) -> None:
    await servers.broker(fastPortEnable="false")

    assert bad(await servers.examine(), "ports") == []


@pytest.mark.parametrize(
    ("ahead_ms", "level"), [(-10_000, Level.WARNING), (3_600_000, Level.PROBLEM)]
)
async def test_a_clock_that_is_wrong_is_found(
    servers: Servers, ahead_ms: int, level: Level
) -> None:
    await servers.broker("a", ShiftedClock(ahead_ms))
    await servers.broker("b")

    [finding] = bad(await servers.examine(), "clocks")

    assert (finding.level, finding.subject[0]) == (level, "a")


async def test_a_full_disk_is_found(servers: Servers) -> None:
    """A limit of 1 % makes any disk a full one."""
    await servers.broker(diskSpaceWarningLevelRatio="1", cleanFileForciblyEnable="false")

    [finding] = bad(await servers.examine(), "disk-space")

    assert finding.level is Level.PROBLEM


# --- masters, slaves, controllers -----------------------------------------------------------------


async def test_a_master_without_slaves_is_found(servers: Servers) -> None:
    await servers.broker()

    [finding] = bad(await servers.examine())

    assert (finding.check, finding.level) == ("masters", Level.WARNING)


async def test_a_slave_without_a_master_is_found(servers: Servers) -> None:
    master = await servers.broker()
    await servers.broker(**SLAVE)
    await servers.until_followed(master)
    await master.stop()

    [finding] = bad(await servers.examine(), "masters")

    assert finding.level is Level.PROBLEM
    assert "no master" in finding.met


async def test_a_slave_that_does_not_reach_its_master_is_found(servers: Servers) -> None:
    await servers.broker()
    await servers.broker(**SLAVE, haMasterAddress=f"{LOOPBACK}:{free_port()}")

    [finding] = bad(await servers.examine(), "slaves")

    assert (finding.level, finding.met) == (Level.PROBLEM, "connected slaves: 0 of 1")


@asynccontextmanager
async def elected(
    servers: Servers, *, brokers: int, etcd: EtcdStore | None = None, **settings: str
) -> AsyncIterator[str]:
    """Run brokers of one name under a controller."""
    async with listening_controller(etcd or EtcdStore(time.monotonic)) as controller:
        address = controller.address
        more = {
            "enableControllerMode": "true",
            "allAckInSyncStateSet": "true",
            "syncBrokerMetadataPeriod": "100",
            "brokerHeartbeatInterval": "100",
            **settings,
        }
        more.setdefault("controllerAddr", address)
        started = [await servers.broker(**more) for _ in range(brokers)]
        if brokers > 1:
            await servers.until_followed(started[0], brokers - 1)
        yield address
        await servers.close()


async def test_controllers_and_in_sync_sets_that_are_well(servers: Servers) -> None:
    async with elected(servers, brokers=2):

        async def is_well() -> bool:
            return bad(await servers.examine()) == []

        await until(is_well)
        findings = await servers.examine()

    checks = [finding.check for finding in findings]
    assert (checks.count("controllers"), checks.count("in-sync-sets")) == (2, 1)


async def test_a_controller_that_does_not_respond_is_found(servers: Servers) -> None:
    lost = f"{LOOPBACK}:{free_port()}"
    async with listening_controller(EtcdStore(time.monotonic)) as controller:
        await servers.broker(
            enableControllerMode="true", controllerAddr=f"{controller.address};{lost}"
        )
        findings = bad(await servers.examine(), "controllers")
        await servers.close()

    assert [(each.level, each.subject) for each in findings] == [(Level.PROBLEM, lost)]


async def test_controllers_of_two_groups_are_found(servers: Servers) -> None:
    """Each of them takes itself for the active one."""
    async with (
        listening_controller(EtcdStore(time.monotonic)) as one,
        listening_controller(EtcdStore(time.monotonic)) as two,
    ):
        await servers.broker(
            enableControllerMode="true", controllerAddr=f"{one.address};{two.address}"
        )
        findings = bad(await servers.examine(), "controllers")
        await servers.close()

    assert [finding.subject for finding in findings] == ["the cluster"]
    assert one.address in findings[0].met
    assert two.address in findings[0].met


async def test_an_in_sync_set_with_too_few_members_is_found(servers: Servers) -> None:
    async with elected(servers, brokers=1, minInSyncReplicas="2"):
        [finding] = bad(await servers.examine(), "in-sync-sets")

    assert (finding.level, finding.met) == (Level.PROBLEM, "in sync 1 of 1")


async def test_a_broker_that_is_fenced_is_found(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    etcd = EtcdStore(time.monotonic)
    async with elected(servers, brokers=1, etcd=etcd):
        before = etcd.backup("brokerSets/")
        etcd.clear("brokerSets/")

        async def is_found() -> bool:
            return bool(bad(await servers.examine(), "sends"))

        async def is_well() -> bool:
            return not await is_found()

        await until(is_found)
        [finding] = bad(await servers.examine(), "sends")
        etcd.restore(before)
        await until(is_well)

    assert finding.level is Level.PROBLEM
    assert "this broker is fenced: the controllers do not know the id 1" in finding.met
    assert "sends are refused, and nothing is acknowledged: this broker is fenced" in caplog.text


async def test_a_fenced_broker_that_no_name_server_knows_is_found_by_its_file(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.failover.feature.DECISION_S", 0.1)
    own = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}
    broker = await servers.broker(**own)
    file = tmp_path / "copy.conf"
    own |= {"listenPort": broker.address.rpartition(":")[2], "namesrvAddr": servers.names[0]}
    own |= {"brokerName": "a", "bindAddress": LOOPBACK}
    file.write_text("".join(f"{key}={value}\n" for key, value in own.items()))

    async def examine() -> list[Finding]:
        checks = server_checks.checks("broker", file, tmp_path / "store", Host())
        return await run_checks([each for each in checks if each.name == "brokers"], CHECK_S)

    assert bad(await servers.examine(), "sends") == []
    responds, finding, sessions = await examine()
    assert (sessions.check, sessions.level) == ("producer-sessions", Level.FINE)
    assert (responds.subject, responds.level) == (f"a ({broker.address})", Level.FINE)
    assert (finding.check, finding.level) == ("sends", Level.PROBLEM)
    assert "acknowledges nothing: the controllers have not decided the role of" in finding.met
    await broker.stop()
    [finding] = await examine()
    assert (finding.level, finding.met) == (Level.FINE, "no broker listens there now")


async def test_a_broker_outside_of_the_in_sync_set_is_found(servers: Servers) -> None:
    async with elected(servers, brokers=1):
        async with AdminClient(servers.names) as admin:
            [master] = await admin._masters()
        await servers.broker(
            enableControllerMode="true",
            asyncLearner="true",
            controllerAddr=(await controllers_of(servers, master)),
        )

        async def is_found() -> bool:
            return bool(bad(await servers.examine(), "in-sync-sets"))

        await until(is_found)
        [finding] = bad(await servers.examine(), "in-sync-sets")

    assert (finding.level, finding.met) == (Level.WARNING, "in sync 1 of 2")


async def controllers_of(servers: Servers, broker: str) -> str:
    async with AdminClient(servers.names) as admin:
        return (await admin.broker_config(broker))["controllerAddr"]


# --- topics, groups, subscriptions ----------------------------------------------------------------


async def test_a_topic_to_which_nothing_can_be_sent_is_found(servers: Servers) -> None:
    await servers.broker("a")
    await servers.broker("b")
    async with AdminClient(servers.names) as admin:
        await admin.create_topic("everywhere", queues=1)
        await admin.create_topic("only-a", queues=1, brokers=["a"])
        await admin.stop_writing("a")

    findings = bad(await servers.examine(), "topics")

    assert {finding.subject: finding.level for finding in findings} == {
        "everywhere": Level.WARNING,
        "only-a": Level.PROBLEM,
    }


async def test_a_group_with_a_backlog_and_without_consumers_is_found(servers: Servers) -> None:
    await servers.broker()
    await send(servers, b"1")
    async with PullConsumer(
        servers.names,
        group="audit",
        subscriptions={"orders": "*"},
        start_from=StartFrom.FIRST,
    ) as consumer:
        async for _ in consumer:
            await consumer.commit()
            break
    await send(servers, b"2", b"3")

    [finding] = bad(await servers.examine(), "groups")

    assert (finding.level, finding.subject) == (Level.WARNING, "audit")
    assert "2 messages not consumed" in finding.met


async def test_members_with_different_subscriptions_are_found(servers: Servers) -> None:
    await servers.broker()
    await send(servers, b"1")
    async with (
        member(servers, "g", "a"),
        member(servers, "g", "a || b"),
        member(servers, "same", "b||a"),
        member(servers, "same", "a || b"),
    ):
        [finding] = bad(await servers.examine(), "subscriptions")

    assert (finding.level, finding.subject) == (Level.PROBLEM, "g")
    assert "orders (a)" in finding.met
