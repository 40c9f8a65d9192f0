"""Runs the files and commands of the how-to pages about accounts, users and TLS."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import CometBroker, CometNameServer, Settings

from cometmq.access.account_settings import AccountSettings
from cometmq.client import AdminClient, Message, Producer, PullConsumer
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from cometmq.remoting.ports import free_port
from cometmq.system import java_properties
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import NAMESRV_KEYS
from support.brokers.pairs import running_pairs
from support.brokers.replicas import SLAVE, Registered
from support.checks.waiting import wait_until
from support.processes.howto_pages import Guide, following

SERVICE = ClientSettings(access_key="order-service", secret_key="change-this-secret-too")
OPERATIONS = ClientSettings(access_key="operations", secret_key="change-this-secret")


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    with following("secure-a-broker", tmp_path) as guide:
        yield guide


@pytest.fixture
def users_guide(tmp_path: Path) -> Iterator[Guide]:
    with following("users-and-policies", tmp_path) as guide:
        yield guide


async def test_the_page_holds(guide: Guide) -> None:
    guide.run("install -m 600")
    guide.start("namesrv")
    guide.start("broker.conf")
    assert "chmod" not in guide.log()
    guide.run("topic create Orders --queues 4")
    async with AdminClient(guide.name_servers, client=OPERATIONS) as admin:
        (orders,) = await admin.create_topic("Orders", queues=1)
        (invoices,) = await admin.create_topic("Invoices", queues=1)

    guide.run("cometmq send", "order-service")
    async with Producer(guide.name_servers, group="p", client=SERVICE) as producer:
        await producer.send(Message("Invoices", b"invoice 1"))
        with pytest.raises(ResponseError, match="No default permission for topic:Other"):
            await producer.send(Message("Other", b"x"))
    async with PullConsumer(guide.name_servers, group="order-service", client=SERVICE) as consumer:
        found = await consumer.pull(invoices, 0)
        assert [message.body for message in found.messages] == [b"invoice 1"]
        with pytest.raises(ResponseError, match="No default permission for topic:Orders"):
            await consumer.pull(orders, 0)
    async with Producer(guide.name_servers, group="p") as producer:
        with pytest.raises(ResponseError, match="No accessKey is configured"):
            await producer.send(Message("Orders", b"x"))
    assert "change-this-secret" not in guide.log()


async def test_a_name_server_has_the_accounts_of_the_page(guide: Guide) -> None:
    guide.run("install -m 600")
    section = guide.page.partition("## Name servers and controllers")[2]
    block = section.partition("```properties\n")[2].partition("```")[0]
    entries = java_properties.parse(block)
    own = {entry.key: entry.value for entry in entries} | {"rocketmqHome": str(guide.folder)}
    accounts = load([AccountSettings], known_keys=NAMESRV_KEYS, command_line=own)[AccountSettings]
    async with running_pairs(guide.folder, accounts=accounts) as pairs:
        await pairs.start("a", **own)
        async with AdminClient(pairs.name_server.address, client=OPERATIONS) as admin:
            assert "pair" in str(await admin.cluster_info())
        async with AdminClient(pairs.name_server.address) as admin:
            with pytest.raises(ResponseError, match="No accessKey is configured"):
                await admin.cluster_info()


async def test_the_page_about_users_holds(users_guide: Guide) -> None:
    guide = users_guide
    guide.run("chmod 600 users.conf")
    guide.start("namesrv")
    guide.start("users.conf")
    async with Producer(guide.name_servers, group="p", client=SERVICE) as producer:
        with pytest.raises(ResponseError, match="User:order-service is not found"):
            await producer.send(Message("Orders", b"x"))

    guide.run("> secret.txt")
    assert (guide.folder / "secret.txt").stat().st_mode & 0o777 == 0o600
    listed = guide.run("create-user")
    assert re.search(r"User:order-service +Custom +Topic:Orders +Pub +- +Allow", listed)
    assert re.search(r"Group:order-\* +Sub +127\.0\.0\.1, 10\.0\.0\.0/8 +Allow", listed)
    guide.run("cometmq send", "order-service")

    async with Producer(guide.name_servers, group="p", client=SERVICE) as producer:
        await producer.send(Message("Invoices", b"invoice 1"))
        with pytest.raises(ResponseError, match="no permission to access Topic:Other") as raised:
            await producer.send(Message("Other", b"x"))
        assert raised.value.code == 16
    async with AdminClient(guide.name_servers, client=OPERATIONS) as admin:
        (orders,) = await admin.create_topic("Orders", queues=1)
    async with PullConsumer(guide.name_servers, group="order-service", client=SERVICE) as consumer:
        with pytest.raises(ResponseError, match="no permission to access Topic:Orders"):
            await consumer.pull(orders, 0)
    guide.stop("users.conf")
    assert "change-this-secret" not in guide.log()


def test_the_page_about_tls_holds_up_to_a_slave_with_tls_and_an_account(tmp_path: Path) -> None:
    port = free_port()
    where = f"127.0.0.1:{port}"
    with following("tls", tmp_path, name_servers=where, ports={"9876": port}) as guide:
        guide.run("openssl req")
        guide.start("namesrv.conf")
        guide.start("broker.conf")
        sent, _, received = guide.run("cometmq tail").partition("\n")
        assert sent.startswith("SEND_OK ")
        assert "a hat" in received

        guide.run("install -m 600")
        guide.run("chmod 600")
        guide.start("master.conf")
        guide.start("slave.conf")
        wait_until(lambda: "slave connected" in guide.log())
        replicated = guide.run("topic create invoices")
        assert "SEND_OK " in replicated
        assert re.search(rf"^broker-b  {guide.address('10921')} .*  yes ", replicated, re.M)
        assert "change-this-secret" not in guide.log()
        assert "chmod" not in guide.log()


ACCOUNTS = """
accounts:
- {accessKey: brokers, secretKey: secret-of-brokers, admin: true}
"""
OF_BROKERS = '{"accessKey":"brokers","secretKey":"secret-of-brokers"}'
BROKERS = ClientSettings(access_key="brokers", secret_key="secret-of-brokers")


class Replica(Registered, CometBroker):
    """A slave, with further settings."""


@pytest.mark.parametrize(
    "guard",
    [{"aclEnable": True}, {"authenticationEnabled": True, "authorizationEnabled": True}],
    ids=["accounts", "users"],
)
async def test_a_slave_signs_its_requests(tmp_path: Path, guard: Settings) -> None:
    home = tmp_path / "conf"
    home.mkdir()
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    guarded: Settings = guard | {"rocketmqHome": str(tmp_path)}
    signed = SLAVE | guarded | {"innerClientAuthenticationCredentials": OF_BROKERS}
    if "authenticationEnabled" in guard:  # the start of the master creates the user
        guarded = guarded | {"innerClientAuthenticationCredentials": OF_BROKERS}
    names = CometNameServer(tmp_path / "namesrv")
    names.start()
    stores = tmp_path / "a-store", tmp_path / "b-store"
    master = CometBroker(tmp_path / "a", names.address, store=stores[0], settings=guarded)
    slave = Replica(tmp_path / "b", names.address, store=stores[1], settings=signed)
    try:
        master.start()
        slave.start()
        async with asyncio.timeout(60), AdminClient(names.address, client=BROKERS) as admin:
            await admin.create_topic("copied", queues=1)
            while "copied" not in await admin.broker_topics(slave.address):
                await asyncio.sleep(0.2)
        assert "secret-of-brokers" not in slave.process.log.read_text()
    finally:
        for server in (slave, master, names):
            server.kill()
