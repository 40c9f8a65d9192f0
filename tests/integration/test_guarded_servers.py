"""Name servers and controllers with access control: which account may send which request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from cometmq.access.account_settings import AccountSettings
from cometmq.access.needs import NOTHING
from cometmq.broker.failover.epochs.wire import EPOCHS, Greeting
from cometmq.broker.queries.feature import QueriesFeature
from cometmq.broker.replication.greeting import SlaveNames
from cometmq.broker.replication.wire import REPORT
from cometmq.cli import servers as commands
from cometmq.cli.server_options import ServerOptions
from cometmq.client import AdminClient, Message, Producer
from cometmq.client.settings import ClientSettings
from cometmq.controller import app as controller_app
from cometmq.controller.app import Controller
from cometmq.controller.handler import ControllerHandler
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.namesrv import app as namesrv_app
from cometmq.namesrv import assembly as namesrv_assembly
from cometmq.namesrv.app import NameServer
from cometmq.protocol.bodies.auth import UserInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.remoting import ConnectionLostError, RemotingClient, Response
from cometmq.remoting.features import Feature
from support.brokers.accounts import SECRETS, credentials, guarded, home_with_accounts, signer
from support.brokers.pairs import SLAVE, running_pairs
from support.brokers.replication_peer import Peer
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller
from support.processes.server import Standalone, standalone

TIMEOUT_S = 60.0
OPERATIONS = ClientSettings(access_key="operations", secret_key=SECRETS["operations"])
UNKNOWN_CODE = 31_999
PUT = {"namespace": "N", "key": "k", "value": "v"}


class Guarded:
    """A name server and a controller with access control, and clients of three kinds."""

    def __init__(self, name_server: NameServer, controller: Controller) -> None:
        self.name_server, self.controller = name_server, controller
        self.clients = {
            "": RemotingClient(name="unsigned"),
            "order-service": RemotingClient(name="service", hooks=[signer("order-service")]),
            "operations": RemotingClient(name="operations", hooks=[signer("operations")]),
        }

    async def call(
        self, by: str, address: str, code: int, fields: Mapping[str, str] | None = None
    ) -> Command:
        """Send a request as an account, or without one."""
        return await self.clients[by].call(address, code, fields=fields, timeout=TIMEOUT_S)

    async def refusal(self, by: str, address: str, code: int) -> str:
        """Return why access control refuses a request; empty if it does not."""
        response = await self.call(by, address, code)
        remark = response.remark or ""
        reasons = ("No accessKey is configured", "Need admin permission", "Check signature failed")
        is_refused = response.code == ResponseCode.SYSTEM_ERROR and remark.startswith(reasons)
        return remark if is_refused else ""


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with running_guarded(tmp_path) as running:
        yield running


@asynccontextmanager
async def running_guarded(folder: Path) -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(folder, accounts=guarded(folder)))
        controller = await stack.enter_async_context(
            listening_controller(EtcdStore(time.monotonic), accounts=guarded(folder), lease_s=2)
        )
        await until(lambda: controller.active.is_active)
        running = Guarded(pairs.name_server, controller)
        for client in running.clients.values():
            stack.push_async_callback(client.close)
        yield running


def codes_of(server: NameServer | Controller) -> list[int]:
    """Every request that a server serves, and one that none does."""
    return [*server._server._handlers, UNKNOWN_CODE]


async def test_every_request_needs_a_signature_or_an_administrator(servers: Guarded) -> None:
    both = (
        (servers.name_server, namesrv_assembly.NEEDS),
        (servers.controller, controller_app.NEEDS),
    )
    for server, needs in both:
        codes = codes_of(server)
        signed_codes = {code for code in codes if needs.of(code) == NOTHING}
        assert len(signed_codes) in range(3, len(codes) // 2 + 1)
        for code in codes:
            unsigned = await servers.refusal("", server.address, code)
            assert unsigned == "No accessKey is configured", code
            refusal = await servers.refusal("order-service", server.address, code)
            assert refusal.startswith("Need admin") == (code not in signed_codes), code
            assert not await servers.refusal("operations", server.address, code), code


NOT_STATED = 31_998


def _one_more(core: object = None) -> Feature:
    return Feature({NOT_STATED: lambda request: Response()})


async def test_a_server_with_a_request_whose_needs_are_not_stated_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = rf"request codes \[{NOT_STATED}\] are served, but cometmq\..+ does not state"
    monkeypatch.setattr(namesrv_app, "FEATURES", (*namesrv_app.FEATURES, _one_more))
    serve = QueriesFeature.serve
    monkeypatch.setattr(
        QueriesFeature,
        "serve",
        lambda self, endpoint: Feature({**serve(self, endpoint).routes, **_one_more().routes}),
    )
    routes = ControllerHandler.routes
    monkeypatch.setattr(ControllerHandler, "routes", lambda self: routes(self) | _one_more().routes)
    with pytest.raises(ValueError, match=refusal):
        async with running_pairs(tmp_path, accounts=guarded(tmp_path)):
            pass
    with pytest.raises(ValueError, match=refusal):
        async with listening_controller(EtcdStore(time.monotonic), accounts=guarded(tmp_path)):
            pass
    plain = {"aclEnable": "true", "rocketmqHome": str(home_with_accounts(tmp_path))}
    users = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
    async with running_pairs(tmp_path) as pairs:
        for name, settings in (("plain", plain), ("users", users)):
            with pytest.raises(ValueError, match=refusal):
                await pairs.start(name, **settings)


async def test_a_refused_change_changes_nothing(servers: Guarded) -> None:
    address = servers.name_server.address
    for by in ("", "order-service"):
        refused = await servers.call(by, address, RequestCode.PUT_KV_CONFIG, PUT)
        assert refused.code == ResponseCode.SYSTEM_ERROR
    read = await servers.call("order-service", address, RequestCode.GET_KV_CONFIG, PUT)
    assert read.code == ResponseCode.QUERY_NOT_FOUND

    done = await servers.call("operations", address, RequestCode.PUT_KV_CONFIG, PUT)
    assert done.code == ResponseCode.SUCCESS
    read = await servers.call("order-service", address, RequestCode.GET_KV_CONFIG, PUT)
    assert read.fields["value"] == "v"


async def test_a_wrong_signature_is_refused(servers: Guarded) -> None:
    fields = {"topic": "T", "AccessKey": "operations", "Signature": "bm9uZQ=="}
    for server in (servers.name_server, servers.controller):
        response = await servers.call(
            "", server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields
        )
        assert response.remark == "Check signature failed for accessKey=operations"


async def test_an_account_that_is_removed_from_the_file_is_refused(
    servers: Guarded, tmp_path: Path
) -> None:
    address, code = servers.name_server.address, RequestCode.GET_BROKER_CLUSTER_INFO
    assert (await servers.call("order-service", address, code)).code == ResponseCode.SUCCESS
    file = home_with_accounts(tmp_path) / "conf" / "plain_acl.yml"
    file.write_text("accounts:\n- {accessKey: another, secretKey: another-secret}\n")

    async with asyncio.timeout(TIMEOUT_S):
        while (await servers.call("order-service", address, code)).code == ResponseCode.SUCCESS:
            await asyncio.sleep(0.05)


async def test_brokers_clients_and_tools_sign_towards_a_name_server(tmp_path: Path) -> None:
    accounts = guarded(tmp_path)
    own = {
        "aclEnable": "true",
        "rocketmqHome": str(accounts.rocketmq_home),
        "innerClientAuthenticationCredentials": credentials("operations"),
    }
    async with running_pairs(tmp_path, accounts=accounts) as pairs:
        await pairs.start("a", **own)
        slave = await pairs.start("b", **(own | SLAVE))
        address = pairs.name_server.address
        async with AdminClient(address, client=OPERATIONS) as admin:
            await admin.create_topic("Orders", queues=1)
            async with asyncio.timeout(TIMEOUT_S):
                while "Orders" not in await admin.broker_topics(slave.address):
                    await asyncio.sleep(0.1)
        service = ClientSettings(access_key="order-service", secret_key=SECRETS["order-service"])
        async with Producer(address, group="p", client=service) as producer:
            await producer.send(Message("Orders", b"order 1"))
        async with AdminClient(address) as admin:
            with pytest.raises(ResponseError, match="No accessKey is configured"):
                await admin.topics()


async def test_an_elected_broker_and_its_controller_sign(tmp_path: Path) -> None:
    accounts = guarded(tmp_path)
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        controller = await stack.enter_async_context(
            listening_controller(EtcdStore(time.monotonic), accounts=accounts, lease_s=2)
        )
        own = {
            "aclEnable": "true",
            "rocketmqHome": str(accounts.rocketmq_home),
            "innerClientAuthenticationCredentials": credentials("operations"),
            "enableControllerMode": "true",
            "controllerAddr": controller.address,
            "brokerHeartbeatInterval": "100",
            "syncBrokerMetadataPeriod": "500",
        }
        broker = await pairs.start("a", **own)
        await until(lambda: not broker.core.role.is_slave)
        await until(lambda: pairs.name_server.registry.members("DefaultCluster", "pair"))


@pytest.mark.parametrize("controlled", ["plain", "elected"])
async def test_the_port_of_the_log_needs_a_ticket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, controlled: str
) -> None:
    accounts = guarded(tmp_path)
    own = {
        "aclEnable": "true",
        "rocketmqHome": str(accounts.rocketmq_home),
        "innerClientAuthenticationCredentials": credentials("operations"),
    }
    slaves = SLAVE
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        if controlled == "elected":
            controller = await stack.enter_async_context(
                listening_controller(EtcdStore(time.monotonic), accounts=accounts, lease_s=2)
            )
            own |= {"enableControllerMode": "true", "controllerAddr": controller.address}
            slaves = {}
        master = await pairs.start("a", **own)
        await until(lambda: not master.core.role.is_slave)
        log = master.features.replication.master
        stranger = await Peer.connect(log.port)
        stranger.write(REPORT.pack(0) if controlled == "plain" else Greeting(2).encode())
        await stranger.closed()
        assert "it sends no signed greeting" in caplog.text
        assert not log.slaves

        await pairs.start("b", **own, **slaves)
        await until(lambda: len(log.slaves) == 1)
        assert log.slaves[0].slave is not None

        master.configuration.set({"haUnsignedSlaves": "127.0.0.0/8"})
        trusted = await Peer.connect(log.port)
        trusted.write(REPORT.pack(0) if controlled == "plain" else Greeting(3).encode())
        if controlled == "elected":
            await trusted.read(EPOCHS.size)
        else:
            await until(lambda: len(log.slaves) == 2)
        trusted.close()


async def test_an_account_without_rights_gets_no_ticket(tmp_path: Path) -> None:
    accounts = guarded(tmp_path)
    own = {
        "aclEnable": "true",
        "rocketmqHome": str(accounts.rocketmq_home),
        "innerClientAuthenticationCredentials": credentials("operations"),
    }
    async with running_pairs(tmp_path, accounts=accounts) as pairs:
        master = await pairs.start("a", **own)
        header = ExchangeBrokerHaInfoRequest(
            log_slave=SlaveNames(1, "", "", "ab" * 16).encode().hex()
        )
        code = RequestCode.EXCHANGE_BROKER_HA_INFO
        given = []
        for hooks in ([], [signer("order-service")], [signer("operations")]):
            client = RemotingClient(name="test", hooks=hooks)
            response = await client.call(master.address, code, header, timeout=TIMEOUT_S)
            given.append((response.code == ResponseCode.SUCCESS, "logTicket" in response.fields))
            await client.close()
        assert given == [(False, False), (False, False), (True, True)]


async def test_large_frames_need_an_account(servers: Guarded) -> None:
    """Beside the limit on all connections, a stranger can make a server keep little."""
    for address in (servers.name_server.address, servers.controller.address):
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO, body=bytes(1024 * 1024))
        with pytest.raises(ConnectionLostError):
            await servers.clients[""].call(
                address, command.code, body=command.body, timeout=TIMEOUT_S
            )
        response = await servers.clients["order-service"].call(
            address, command.code, body=command.body, timeout=TIMEOUT_S
        )
        assert "accessKey=order-service" in (response.remark or "accessKey=order-service")


def test_access_control_needs_a_home(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="aclEnable=true without rocketmqHome"):
        AccountSettings(acl_enable=True)


async def test_a_server_without_a_file_of_accounts_does_not_start(tmp_path: Path) -> None:
    accounts = AccountSettings(acl_enable=True, rocketmq_home=tmp_path)
    with pytest.raises(ConfigError, match="there is no file of accounts"):
        async with running_pairs(tmp_path, accounts=accounts):
            pass
    with pytest.raises(ConfigError, match="there is no file of accounts"):
        async with listening_controller(EtcdStore(time.monotonic), accounts=accounts):
            pass


# --- cometmq standalone -------------------------------------------------------------------------

SIGNS = {"innerClientAuthenticationCredentials": credentials("operations")}
USERS = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
CLOSED = {"namesrvAclEnable": "true"}


def of_accounts(folder: Path) -> dict[str, str]:
    """The settings of a broker with accounts in files."""
    return {"aclEnable": "true", "rocketmqHome": str(home_with_accounts(folder))}


@pytest.fixture(params=["accounts", "users"])
def guarded_standalone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Standalone]:
    """A process whose broker has accounts or users, and its name server the same."""
    own = of_accounts(tmp_path) if request.param == "accounts" else USERS
    with standalone(tmp_path / "server", **own, **SIGNS, **CLOSED) as server:
        yield server


async def test_the_name_server_of_standalone_has_the_accounts_of_the_broker(
    guarded_standalone: Standalone,
) -> None:
    host, port = guarded_standalone.namesrv
    address = f"{host}:{port}"
    has_users = guarded_standalone.settings.get("authenticationEnabled") == "true"
    refused = ResponseCode.NO_PERMISSION if has_users else ResponseCode.SYSTEM_ERROR
    read, change = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.PUT_KV_CONFIG
    broker = "{}:{}".format(*guarded_standalone.broker)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient(address, client=OPERATIONS))
        await admin.create_topic("Orders", queues=1)
        if has_users:
            user = UserInfo(username="order-service", password=SECRETS["order-service"])
            await admin.create_user(broker, user)
        clients = {"": RemotingClient(name="unsigned")}
        for name in SECRETS:
            clients[name] = RemotingClient(name=name, hooks=[signer(name)])
        for client in clients.values():
            stack.push_async_callback(client.close)

        async def code_of(by: str, code: int) -> int:
            fields = PUT if code == change else None
            return (await clients[by].call(address, code, fields=fields, timeout=TIMEOUT_S)).code

        assert [await code_of("", code) for code in (read, change)] == [refused, refused]
        codes = [await code_of("order-service", code) for code in (read, change)]
        assert codes == [ResponseCode.SUCCESS, refused]
        codes = [await code_of("operations", code) for code in (read, change)]
        assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]

        if has_users:
            await admin.delete_user(broker, "order-service")
        else:
            await admin.delete_account(broker, "order-service")
        assert await code_of("order-service", read) == refused
    assert "namesrvAclEnable" not in guarded_standalone.log.read_text()


async def test_standalone_warns_of_an_open_name_server_beside_a_guarded_broker(
    tmp_path: Path,
) -> None:
    with standalone(tmp_path / "server", **of_accounts(tmp_path)) as server:
        unsigned = RemotingClient(name="unsigned")
        response = await unsigned.call(
            "{}:{}".format(*server.namesrv), RequestCode.GET_BROKER_CLUSTER_INFO, timeout=TIMEOUT_S
        )
        await unsigned.close()
    assert response.code == ResponseCode.SUCCESS
    assert server.log.read_text().count("namesrvAclEnable=true makes it check requests") == 1


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (CLOSED | SIGNS, "without access control of the broker"),
        (CLOSED | USERS, "without innerClientAuthenticationCredentials"),
    ],
)
def test_standalone_does_not_start_if_its_name_server_could_serve_no_broker(
    lines: dict[str, str], expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    with pytest.raises(ConfigError, match=expected):
        commands.standalone(ServerOptions(store=tmp_path / "store", config=file))
