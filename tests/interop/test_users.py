"""The folders of users and policies: RocketMQ 5.3.3 reads ours, and we read RocketMQ's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import auth_kit
import kit
import pytest
from acl_kit import Account, SignedConnection, refused
from auth_kit import ROOT, entry, subject
from servers import CometBroker, CometNameServer, RealBroker, Server, Settings, split_address

PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
SETTINGS: Settings = {
    "authenticationEnabled": True,
    "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
    "authorizationEnabled": True,
    "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
    "initAuthenticationUser": f'{{"username":"{ROOT.key}","password":"{ROOT.secret}"}}',
}
ALICE = Account("alice", 'pass"w\u00f6rd')
BOSS = Account("b\u00f6ss", "secret-of-boss")
Content = tuple[dict[str, Any], dict[str, Any]]


class Servers:
    """A name server, and brokers one after the other whose folders have the same users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = CometNameServer(folder / "names")
        self.names.start()
        self.running: Server | None = None
        self.started = 0
        self.config: Path | None = None

    def start(self, kind: str) -> SignedConnection:
        """Stop the broker, and start one of another kind with its users; sign as a super user."""
        self.stop()
        self.started += 1
        home = self.folder / str(self.started)
        config = home / "store" / "config"
        if self.config is not None:
            for name in ("users", "acls"):
                shutil.copytree(self.config / name, config / name)
        self.config = config
        self.running = (
            RealBroker("5.3.3", home, self.names.address, store=home / "store", settings=SETTINGS)
            if kind == "5.3.3"
            else CometBroker(home, self.names.address, store=home / "store", settings=SETTINGS)
        )
        self.running.start()
        return self.connect(ROOT)

    def connect(self, account: Account) -> SignedConnection:
        assert self.running is not None
        return SignedConnection(split_address(self.running.address), account, timeout=60.0)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.stop()
    made.names.stop()


def fill(root: SignedConnection) -> None:
    kit.ok(auth_kit.create_user(root, ALICE.key, ALICE.secret))
    kit.ok(auth_kit.create_user(root, BOSS.key, BOSS.secret, userType="Super"))
    kit.ok(auth_kit.create_user(root, "off", "p", userStatus="disable"))
    kit.ok(auth_kit.create_user(root, "gone", "p"))
    kit.ok(
        auth_kit.create_acl(
            root,
            subject(ALICE),
            entry("Topic:allowed", "Pub", "Sub"),
            entry("Topic:allowed-*", "All", ips=("127.0.0.0/8", "10.0.0.1")),
            entry("Topic:denied", "Pub", decision="Deny"),
            entry("Group:*", "Sub"),
        )
    )
    everything = entry("*", "Get", "List", "Create", "Update", "Delete")
    kit.ok(auth_kit.create_acl(root, subject(ALICE), everything, kind="Default"))
    kit.ok(auth_kit.create_acl(root, "User:gone", entry("*", "All")))


def change(root: SignedConnection) -> None:
    kit.ok(auth_kit.delete_user(root, "gone"))
    kit.ok(auth_kit.update_user(root, "off", userStatus="enable", password="q"))
    kit.ok(auth_kit.delete_acl(root, subject(ALICE), "Group:*"))
    kit.ok(auth_kit.update_acl(root, subject(ALICE), entry("Topic:allowed", "Pub")))


def content(root: SignedConnection) -> Content:
    """All users and policies as a broker lists them; the order of policies says nothing."""
    acls = auth_kit.list_acls(root)
    for acl in acls.values():
        acl["policies"].sort(key=lambda policy: policy["policyType"])
    return auth_kit.list_users(root), acls


@pytest.mark.parametrize("first", ["comet", "5.3.3"])
def test_each_broker_goes_on_with_the_users_of_the_other(servers: Servers, first: str) -> None:
    second = "comet" if first == "5.3.3" else "5.3.3"
    root = servers.start(first)
    fill(root)
    filled = content(root)
    root.close()

    root = servers.start(second)
    assert content(root) == filled
    check(servers.connect)
    change(root)
    changed = content(root)
    assert set(changed[0]) == {ALICE.key, BOSS.key, "off", ROOT.key}
    assert set(changed[1]) == {subject(ALICE)}
    root.close()

    root = servers.start(first)
    assert content(root) == changed
    check(servers.connect)
    root.close()


def check(connect: Callable[[Account], SignedConnection]) -> None:
    """Signatures and policies decide as they did."""
    alice, boss, wrong = map(connect, (ALICE, BOSS, Account(ALICE.key, BOSS.secret)))
    kit.store(alice, "allowed")
    kit.store(alice, "allowed-more")
    refused(kit.send(alice, "denied"), "denied", code=16)
    refused(kit.send(alice, "other"), "other", code=16)
    kit.store(boss, "denied")
    refused(kit.send(wrong, "allowed"), "signature", code=16)
    for connection in (alice, boss, wrong):
        connection.close()
