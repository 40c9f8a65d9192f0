"""A name server and a broker that accept only TLS, as processes, and their clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.client import Message, Producer, PullConsumer, StartFrom
from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.remoting.ports import free_broker_port
from cometmq.testing import ServerProcess
from cometmq.testing.cluster import SMALL_FILES
from support.brokers.certificates import Authority
from support.processes import forks

START_S = 60.0
RECEIVE_S = 30.0


class Site:
    """Where one name server and one broker run, and the certificates of both and of a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder, "authority")
        self.certificate, self.key = map(str, self.authority.issue("server"))
        self.own, self.own_key = map(str, self.authority.issue("peer", password="open sesame"))

    @property
    def enforcing(self) -> dict[str, str]:
        """The server's keys that accept only TLS."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": self.certificate,
            "tls.server.keyPath": self.key,
        }

    @property
    def demanding(self) -> dict[str, str]:
        """The keys of a server that also accepts only clients with a certificate."""
        return self.enforcing | {
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": str(self.authority.file),
        }

    @property
    def outgoing(self) -> dict[str, str]:
        """Every key of the broker's own connections."""
        return {
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority.file),
            "tls.client.certPath": self.own,
            "tls.client.keyPath": self.own_key,
            "tls.client.keyPassword": "open sesame",
        }

    @property
    def client(self) -> ClientSettings:
        """A client that checks servers and shows its certificate."""
        return ClientSettings(
            use_tls=True,
            tls_trusted=str(self.authority.file),
            tls_certificate=self.own,
            tls_key=self.own_key,
            tls_key_password="open sesame",
        )

    def file(self, name: str, settings: Mapping[str, str]) -> str:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    @asynccontextmanager
    async def running(
        self, names: Mapping[str, str], broker: Mapping[str, str]
    ) -> AsyncIterator[str]:
        """Run both; gives the name server's address."""
        async with await ServerProcess.start(
            *("namesrv", "--port", "0"),
            *("-c", self.file("namesrv.conf", {"kvConfigPath": f"{self.folder}/kv.json", **names})),
            log=self.folder / "namesrv.log",
            timeout=START_S,
        ) as server:
            address = server.addresses["namesrv"]
            settings = {
                **SMALL_FILES,
                "listenPort": str(free_broker_port()),
                "storePathRootDir": f"{self.folder}/store",
                "namesrvAddr": address,
                **broker,
            }
            async with await ServerProcess.start(
                *("broker", "-c", self.file("broker.conf", settings)),
                log=self.folder / "broker.log",
                timeout=START_S,
            ):
                yield address


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def check_delivery(address: str, client: ClientSettings) -> None:
    """Send one message and receive it."""
    async with Producer(address, group="g", client=client) as producer:
        receipt = await producer.send(Message(topic="t", body=b"sealed"))
    async with PullConsumer(
        address, group="c", start_from=StartFrom.FIRST, client=client
    ) as consumer:
        await consumer.assign([receipt.queue])
        async with asyncio.timeout(RECEIVE_S):
            assert (await anext(consumer)).body == b"sealed"


async def test_servers_that_demand_certificates_form_a_cluster(site: Site) -> None:
    """The broker registers with all keys of its own connections."""
    async with site.running(site.demanding, site.demanding | site.outgoing) as address:
        await check_delivery(address, site.client)

    assert "registered namesrv=" in site.log("broker")


async def test_a_broker_that_accepts_only_tls_registers_over_tls(site: Site) -> None:
    """As in RocketMQ, `tls.enable` need not be set then."""
    async with site.running(site.enforcing, site.enforcing) as address:
        await check_delivery(address, ClientSettings(use_tls=True))


async def command(*arguments: str, **environment: str) -> tuple[int | None, str]:
    """Run a command; gives its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(*forks.python(), "-m", "cometmq", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | environment,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_commands_use_tls_if_the_environment_says_so(site: Site) -> None:
    tls = {
        "COMETMQ_CLIENT_USE_TLS": "true",
        "COMETMQ_CLIENT_TLS_TRUSTED": str(site.authority.file),
        "COMETMQ_CLIENT_TLS_CERTIFICATE": site.own,
        "COMETMQ_CLIENT_TLS_KEY": site.own_key,
        "COMETMQ_CLIENT_TLS_KEY_PASSWORD": "open sesame",
    }
    async with site.running(site.demanding, site.demanding | site.outgoing) as address:
        refused, why = await command("send", "-n", address, "t", "plain")
        sent, receipt = await command("send", "-n", address, "t", "sealed", **tls)
        read, found = await command("tail", "-n", address, "t", "--count", "1", **tls)

    assert refused == 1
    assert "[Errno 104] Connection reset by peer" in why
    assert sent == 0, receipt
    assert read == 0, found
    assert "'sealed'" in found


async def test_a_broker_without_tls_names_the_key_to_set(site: Site) -> None:
    plain = site.enforcing | {"tls.enable": "false"}
    async with (
        site.running(site.enforcing, plain) as address,
        Producer(address, group="g") as producer,
    ):
        with pytest.raises(NameServerError):
            await producer.send(Message(topic="t", body=b"lost"))

    refusals = [line for line in site.log("broker").splitlines() if "cannot register" in line]
    assert len(refusals) == 1
    assert address in refusals[0]
    assert "tls.server.mode=enforcing" in refusals[0]
    assert "set tls.enable=true" in refusals[0]


async def test_each_server_warns_once_of_plain_clients_that_need_no_certificate(
    site: Site,
) -> None:
    lax = {"tls.server.need.client.auth": "require"}
    async with site.running(lax, lax) as address, Producer(address, group="g") as producer:
        await producer.send(Message(topic="t", body=b"plain"))

    for name in ("namesrv", "broker"):
        lines = site.log(name).splitlines()
        warnings = [line for line in lines if " WARNING " in line and "tls.server" in line]
        plain, unverified = warnings
        assert "set tls.server.mode=enforcing" in plain
        assert "set tls.server.trustCertPath" in unverified


async def test_in_one_process_a_broker_that_accepts_only_tls_registers_plainly(site: Site) -> None:
    """The name server there makes its certificate itself, and no authority has signed it."""
    wanted = site.enforcing | {"tls.client.trustCertPath": str(site.authority.file)}
    async with await ServerProcess.start(
        *("standalone", "--namesrv-port", "0", "--broker-port", "0"),
        *("--store", str(site.folder / "store")),
        *("-c", site.file("broker.conf", SMALL_FILES | wanted)),
        log=site.folder / "broker.log",
        timeout=START_S,
    ) as server:
        await check_delivery(server.addresses["namesrv"], ClientSettings(use_tls=True))

    assert "registered namesrv=" in site.log("broker")


async def test_a_broker_without_a_trusted_certificate_says_why_it_does_not_register(
    site: Site,
) -> None:
    theirs = Authority(site.folder, "theirs")
    wrong = {"tls.enable": "true", "tls.client.trustCertPath": str(theirs.file)}
    async with site.running(site.enforcing, wrong):
        pass

    (refusal,) = [line for line in site.log("broker").splitlines() if "cannot register" in line]
    assert "certificate verify failed" in refusal
    assert "tls.enable" not in refusal


async def test_a_file_of_the_broker_s_own_connections_that_cannot_be_used_stops_it(
    site: Site,
) -> None:
    file = site.file("broker.conf", {"tls.enable": "true", "tls.client.certPath": "/nowhere.pem"})
    process = await asyncio.create_subprocess_exec(
        *(*forks.python(), "-m", "cometmq", "broker", "-c", file, "--store", str(site.folder)),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env=os.environ,
    )
    _, said = await process.communicate()

    assert process.returncode == 2
    assert b"tls.client.certPath=/nowhere.pem: cannot be read" in said
