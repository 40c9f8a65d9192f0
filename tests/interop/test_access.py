"""Clients of every language at servers with access control: only signed requests pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import acl_kit
import auth_kit
import kit
import pytest
from acl_kit import SignedConnection
from codes import Request
from mqadmin import MqAdmin
from programs import GO, JAVA_53, OURS, SIGNING_KINDS, Account, Client, CommandError, Kind
from servers import (
    CometBroker,
    CometNameServer,
    CometStandalone,
    RealBroker,
    Settings,
    connect,
    free_disk,
    registered_brokers,
    split_address,
    wait_for_route,
)
from wire import Connection

ALLOWED, DENIED, TRACES = "Allowed", "Denied", "RMQ_SYS_TRACE_TOPIC"
SETUP = "127.0.9.1"
ACCOUNTS = f"""
globalWhiteRemoteAddresses: [{SETUP}]
accounts:
- accessKey: clients
  secretKey: secret-of-clients
  topicPerms: [{ALLOWED}=PUB|SUB, {TRACES}=DENY]
  defaultGroupPerm: SUB
- accessKey: operations
  secretKey: secret-of-operations
  admin: true
"""
OPERATIONS = acl_kit.Account("operations", "secret-of-operations")
GOOD, WRONG = ("clients", "secret-of-clients"), ("clients", "secret-of-others")
KINDS = [
    kind if kind is JAVA_53 else pytest.param(kind, marks=pytest.mark.long)
    for kind in (*SIGNING_KINDS, OURS)
]


OF_ACCOUNTS: Settings = {"aclEnable": True}
OF_USERS: Settings = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"operations","password":"secret-of-operations"}',
}


AT_BOTH: Settings = {
    "aclEnable": True,
    "innerClientAuthenticationCredentials": (
        '{"accessKey":"operations","secretKey":"secret-of-operations"}'
    ),
}
"""Settings of a broker whose name server has the accounts, too."""


def guarded_name_server(folder: Path) -> CometNameServer:
    """A name server with the accounts, in a file of its own."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    return CometNameServer(folder, {"aclEnable": True, "rocketmqHome": str(folder)})


@contextmanager
def without_signatures_from(address: str, name_server: CometNameServer) -> Iterator[None]:
    """Let a name server serve an address for a while."""
    file = name_server.folder / "conf" / "plain_acl.yml"
    file.write_text(ACCOUNTS.replace(SETUP, f"{SETUP}, {address}"))
    kit.eventually(lambda: serves(name_server, address), timeout=60.0)
    yield
    file.write_text(ACCOUNTS)
    kit.eventually(lambda: not serves(name_server, address), timeout=60.0)


def serves(name_server: CometNameServer, source: str) -> bool:
    """Whether a name server responds to a request without signature from an address."""
    with closing(connect(name_server.address, source)) as connection:
        return connection.request(Request.GET_BROKER_CLUSTER_INFO).code == 0


class Broker:
    """A name server and a broker of ours with accounts or users, and a connection to set up."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.accounts = folder / "conf" / "plain_acl.yml"
        self.accounts.parent.mkdir(parents=True)
        self.accounts.write_text(ACCOUNTS)
        # The connection of the set-up is silent while a client is installed.
        patient = {"serverChannelMaxIdleTimeSeconds": 3600, "traceTopicEnable": True}
        home: Settings = {"rocketmqHome": str(folder)}
        self.store = folder / "store"
        self.name_server = guarded_name_server(folder / "namesrv")
        self.server: CometBroker | CometStandalone
        if settings is AT_BOTH:
            self.name_server.start()
            self.namesrv = self.name_server.address
            self.server = CometBroker(
                folder / "server",
                self.namesrv,
                store=self.store,
                settings=settings | patient | home,
            )
            self.server.source = SETUP
        else:
            self.server = CometStandalone(
                folder / "server", store=self.store, settings=settings | patient | home
            )
            self.namesrv = self.server.namesrv
        self.server.start()
        self.has_users = "authenticationEnabled" in settings
        address = split_address(self.server.address)
        if self.has_users:
            self.unsigned = "username cannot be null"
            self.setup: Connection = SignedConnection(address, OPERATIONS, timeout=60.0)
            kit.ok(auth_kit.create_user(self.setup, *GOOD))
            topics = [f"Topic:{name}" for name in (ALLOWED, TRACES)]
            entries = [auth_kit.entry(topic, "Pub", "Sub", "Get") for topic in topics]
            entries.append(auth_kit.entry("Group:*", "Sub"))
            kit.ok(auth_kit.create_acl(self.setup, f"User:{GOOD[0]}", *entries))
        else:
            self.unsigned = "No accessKey is configured"
            self.setup = Connection(address, timeout=60.0, source=SETUP)
        for topic in (ALLOWED, DENIED):
            kit.ok(kit.create_topic(self.setup, topic, read=4, write=4))
        for topic in (ALLOWED, DENIED, TRACES):
            wait_for_route(self.namesrv, topic, SETUP)

    @property
    def guards_routes(self) -> bool:
        """Whether its name server has accounts, too."""
        return self.name_server.is_running

    def stored(self, topic: str) -> int:
        """How many messages a topic has."""
        return sum(kit.max_offset(self.setup, topic, queue) for queue in range(4))

    def make_group(self) -> str:
        """A group whose retry topic clients can find at once."""
        group = kit.unique("group")
        kit.ok(kit.heartbeat(self.setup, group, kit.consumer(group, kit.subscription("TBW102"))))
        kit.ok(kit.unregister(self.setup, group, consumer=group))
        wait_for_route(self.namesrv, f"%RETRY%{group}", SETUP)
        return group

    def close(self) -> None:
        """Stop the servers."""
        self.setup.close()
        self.server.stop()
        self.name_server.stop()
        free_disk(self.store)


@pytest.fixture(
    scope="module",
    params=[OF_ACCOUNTS, OF_USERS, AT_BOTH],
    ids=["accounts", "users", "accounts-at-both"],
)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("access"), request.param)
    yield made
    made.close()


@pytest.fixture
def client_of(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    started: list[Client] = []

    def start(kind: Kind, account: Account | None) -> Client:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Client(kind, broker.namesrv, folder, account))
        return started[-1]

    yield start
    for client in started:
        client.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_signed_requests_pass_and_others_are_refused(
    kind: Kind, broker: Broker, client_of: Callable[..., Client]
) -> None:
    client = client_of(kind, GOOD)
    group = client.group(broker.make_group(), ALLOWED)
    bodies = []
    for style in kind.styles:
        messages = [{"body": f"{kind} {style} ümlaut {n}", "keys": "k", "tag": "t"} for n in (1, 2)]
        client.send(ALLOWED, messages, style=style, shard="one")
        bodies += [str(message["body"]) for message in messages]
    client.send(ALLOWED, [{"body": "retry me"}])

    group.wait_for(bodies)
    kit.eventually(lambda: any(e["reconsumed"] == 1 for e in group.received), timeout=120.0)
    if kind.can_pull and not (kind is GO and broker.guards_routes):
        pulled = client.main.ask(
            "pull", group=broker.make_group(), topic=ALLOWED, expression="*", count=len(bodies)
        )
        assert set(bodies) <= {message["body"] for message in pulled}
    group.stop()

    with pytest.raises(CommandError):
        client.send(DENIED, [{"body": "no permission"}])
    before = broker.stored(ALLOWED)
    for account in (WRONG, None):
        stranger = client_of(kind, account)
        with pytest.raises(CommandError):
            stranger.send(ALLOWED, [{"body": "no signature"}])
    assert broker.stored(ALLOWED) == before
    assert broker.stored(DENIED) == 0


at_both = pytest.mark.parametrize(
    "broker", [pytest.param(AT_BOTH, id="accounts-at-both")], indirect=True
)


@pytest.mark.long
@at_both
def test_pull_consumers_of_go_do_not_sign_requests_to_name_servers(
    broker: Broker, client_of: Callable[..., Client]
) -> None:
    client = client_of(GO, GOOD)
    body = "pulled without a signed route"
    client.send(ALLOWED, [{"body": body}])
    request = {"topic": ALLOWED, "expression": "*", "count": broker.stored(ALLOWED)}
    with pytest.raises(CommandError, match="route info not found"):
        client.main.ask("pull", group=broker.make_group(), **request)
    with without_signatures_from("127.0.0.1", broker.name_server):
        pulled = client.main.ask("pull", group=broker.make_group(), **request)
    assert body in {message["body"] for message in pulled}


@pytest.mark.long
@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_real_brokers_register_with_credentials_or_from_a_white_address(
    version: str, tmp_path: Path
) -> None:
    name_server = guarded_name_server(tmp_path / "namesrv")
    signs: Settings = {
        "innerClientAuthenticationCredentials": AT_BOTH["innerClientAuthenticationCredentials"],
        "authenticationMetadataProvider": (
            "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
    }
    settings = signs if version == "5.3.3" else {}
    store = tmp_path / "store"
    broker = RealBroker(
        version, tmp_path / "broker", name_server.address, store=store, settings=settings
    )
    broker.source = SETUP
    name_server.start()
    try:
        if version == "4.9.7":
            with without_signatures_from("127.0.0.1", name_server):
                broker.start()
        else:
            broker.start()
        assert list(registered_brokers(name_server.address, SETUP).values()) == [broker.address]
    finally:
        broker.stop()
        name_server.stop()
        free_disk(store)


@pytest.mark.long
@pytest.mark.parametrize("kind", [SIGNING_KINDS[0], JAVA_53], ids=str)
def test_signed_transactions_are_decided(
    kind: Kind, broker: Broker, client_of: Callable[..., Client]
) -> None:
    client = client_of(kind, GOOD)
    group = client.group(broker.make_group(), ALLOWED, members=1)
    bodies = [f"commit {kind} {n}" for n in range(3)]
    client.main.ask(
        "transaction", group="deciders", topic=ALLOWED, messages=[{"body": b} for b in bodies]
    )
    group.wait_for(bodies)
    group.stop()


@pytest.mark.long
@pytest.mark.parametrize("kind", [SIGNING_KINDS[0], JAVA_53, GO, OURS], ids=str)
def test_traces_are_signed(kind: Kind, broker: Broker, client_of: Callable[..., Client]) -> None:
    before = kit.max_offset(broker.setup, TRACES)
    client = client_of(kind, GOOD)

    def is_sent() -> bool:
        try:
            client.send(ALLOWED, [{"body": "traced"}], group="traced-producers", trace=True)
        except CommandError:  # a JVM that has just started on a busy machine takes too long
            return False
        return True

    kit.eventually(is_sent, timeout=120.0)
    kit.eventually(lambda: kit.max_offset(broker.setup, TRACES) > before, timeout=60.0)


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_mqadmin_signs_its_requests(version: str, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    tools = tmp_path / "conf" / "tools.yml"
    tools.write_text("accessKey: operations\nsecretKey: secret-of-operations\n")
    admin = MqAdmin(tmp_path, version)
    create = ("updateTopic", "-b", broker.server.address, "-t", f"By-{version.replace('.', '-')}")
    try:
        assert "create topic" in admin.run(broker.namesrv, *create).out
        shown = admin.run(broker.namesrv, "topicStatus", "-t", ALLOWED).out
        assert "#Broker Name" in shown
        listed = admin.run(broker.namesrv, "topicList").out
        assert ALLOWED in listed
        tools.unlink()
        refused = admin.run(broker.namesrv, *create)
        assert broker.unsigned in refused.out + refused.err
        listed = admin.run(broker.namesrv, "topicList").out
        assert (ALLOWED in listed) != broker.guards_routes
    finally:
        admin.close()


@pytest.mark.long
@pytest.mark.parametrize("broker", [pytest.param(OF_ACCOUNTS, id="accounts")], indirect=True)
def test_mqadmin_of_4_9_changes_accounts(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    tools = tmp_path / "conf" / "tools.yml"
    tools.write_text("accessKey: operations\nsecretKey: secret-of-operations\n")
    admin = MqAdmin(tmp_path, "4.9.8")
    address = broker.server.address

    def run(command: str, *arguments: str) -> str:
        printed = admin.run(broker.namesrv, command, *arguments)
        return printed.out + printed.err

    try:
        created = run(
            "updateAclConfig", "-b", address, "-a", "created", "-s", "secret-of-created",
            "-t", f"{DENIED}=PUB", "-g", "g=SUB", "-m", "false",
        )  # fmt: skip
        assert "success" in created
        assert "- accessKey: created" in broker.accounts.read_text()
        versions = run("clusterAclConfigVersion", "-b", address)
        assert str(broker.accounts) in versions
        assert "success" in run("deleteAclConfig", "-b", address, "-a", "created")
        white = ("-g", f"{SETUP},127.0.8.1", "-p", str(broker.accounts))
        assert "success" in run("updateGlobalWhiteAddr", "-b", address, *white)
        tools.write_text("accessKey: clients\nsecretKey: secret-of-clients\n")
    finally:
        admin.close()

    with closing(MqAdmin(tmp_path, "4.9.8")) as ordinary:
        printed = ordinary.run(broker.namesrv, "deleteAclConfig", "-b", address, "-a", "clients")
        assert "Need admin permission" in printed.out + printed.err
    connection = connect(address)
    assert connection.request(Request.GET_MAX_OFFSET, {"topic": ALLOWED, "queueId": 0}).code == 1
    connection.close()
