"""The vulnerabilities that RocketMQ had: each attack is made, and fails.

`docs/explanation/threat-model.md` lists them with these tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.access.plain.account_file import parse
from cometmq.broker.app import Broker
from cometmq.controller.app import Controller
from cometmq.model.errors import ConfigError
from cometmq.namesrv.app import NameServer
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import RemotingClient, RemotingServer, TlsSettings
from support.brokers.accounts import SECRETS, credentials, guarded, home_with_accounts, signer
from support.brokers.certificates import Authority
from support.brokers.pairs import running_pairs
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller

TIMEOUT_S = 30.0
TRAVERSAL = "../../../../topic2020"
SHORT_SEND = {
    "a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
}  # fmt: skip
GADGET = {
    "@type": "com.sun.rowset.JdbcRowSetImpl",
    "dataSourceName": "rmi://127.0.0.1:{port}/x",
    "autoCommit": True,
}
"""What made fastjson load a class that opens a connection (CVE-2017-18349, CVE-2022-25845)."""


class Servers:
    """A name server, a broker and a controller without access control, and a client."""

    def __init__(
        self, folder: Path, name_server: NameServer, broker: Broker, controller: Controller
    ) -> None:
        self.folder = folder
        self.name_server, self.broker, self.controller = name_server, broker, controller
        self.client = RemotingClient(name="attacker")

    @property
    def settings_requests(self) -> tuple[tuple[str, RequestCode], ...]:
        """Where settings are changed: address and code."""
        return (
            (self.broker.address, RequestCode.UPDATE_BROKER_CONFIG),
            (self.name_server.address, RequestCode.UPDATE_NAMESRV_CONFIG),
            (self.controller.address, RequestCode.UPDATE_CONTROLLER_CONFIG),
        )

    async def call(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        return await self.client.call(address, code, body=body, fields=fields, timeout=TIMEOUT_S)

    def paths(self) -> set[Path]:
        """All files and folders of the test, and those beside it, but not in the store."""
        above = self.folder.parents[2].rglob("*")
        return {path for path in above if not path.is_relative_to(self.folder / "a")}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    folder = tmp_path / "one" / "two" / "three"
    folder.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(
            running_pairs(folder, config_store_path=folder / "namesrv.properties")
        )
        controller = await stack.enter_async_context(
            listening_controller(
                EtcdStore(time.monotonic), config_store_path=folder / "controller.properties"
            )
        )
        broker = await pairs.start("a")
        made = Servers(folder, pairs.name_server, broker, controller)
        stack.push_async_callback(made.client.close)
        yield made


def child_processes() -> set[str]:
    """The processes that this process, which runs the servers, has started."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {pid for path in tasks for pid in path.read_text().split()}


async def test_cve_2023_33246_no_setting_becomes_a_command(servers: Servers) -> None:
    """A home directory with a command, and filter servers that a shell starts with it."""
    marker = servers.folder / "marker"
    before = child_processes()
    home = f"rocketmqHome=-c $@|sh . echo touch {marker};"
    for address, code in servers.settings_requests:
        for body in (f"filterServerNums=1\n{home}", home, "filterServerNums=1"):
            response = await servers.call(address, code, body=body.encode())
            known = code == RequestCode.UPDATE_BROKER_CONFIG or body != "filterServerNums=1"
            assert response.code == (ResponseCode.NO_PERMISSION if known else ResponseCode.SUCCESS)
    shown = (await servers.call(servers.broker.address, RequestCode.GET_BROKER_CONFIG)).body
    assert b"filterServerNums=0" in shown
    assert b"touch" not in shown
    assert child_processes() == before
    assert not marker.exists()


@pytest.mark.parametrize("key", ["configStorePath", "kvConfigPath", "rocketmqHome"])
async def test_cve_2023_37582_no_request_chooses_a_file(servers: Servers, key: str) -> None:
    """A path for the settings, and a value with the content that the file shall have."""
    target = servers.folder.parent / "crontab"
    before = servers.paths()
    content = r"productEnvName=x\n* * * * * root touch marker"
    for address, code in servers.settings_requests:
        for body in (f"{key}={target}\n{content}", f"{content}\n{key}={target}"):
            response = await servers.call(address, code, body=body.encode())
            assert response.code == ResponseCode.NO_PERMISSION, (code, body)
    assert servers.paths() == before


async def test_cve_2023_37582_an_unknown_key_is_not_written(servers: Servers) -> None:
    body = "x\\n* * * * * root touch marker=1\ny=2"
    before = servers.paths()
    for address, code in servers.settings_requests:
        response = await servers.call(address, code, body=body.encode())
        assert response.code == ResponseCode.SUCCESS  # as RocketMQ, which ignores unknown keys
    assert servers.paths() == before


async def test_cve_2019_17572_no_topic_leaves_the_store(servers: Servers) -> None:
    """Topics are created by the first send; a name is no path."""
    before = servers.paths()
    topics = (TRAVERSAL, "..", "/tmp/topic2020", "a/../../../b", f"%RETRY%{TRAVERSAL}")
    for topic in topics:
        sent = SHORT_SEND | {"b": topic}
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            response = await servers.call(servers.broker.address, code, sent, b"body")
            assert response.code != ResponseCode.SUCCESS, topic
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        response = await servers.call(servers.broker.address, code, fields)
        assert response.code != ResponseCode.SUCCESS, topic
        group = json.dumps({"groupName": topic}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        response = await servers.call(servers.broker.address, code, body=group)
        assert response.code != ResponseCode.SUCCESS, topic
    assert servers.paths() == before
    names = {path.name for path in (servers.folder / "a").rglob("*")}
    assert not {name for name in names if "topic2020" in name or name in ("b", "..")}


async def test_cve_2024_23321_no_response_has_a_secret_of_an_account(tmp_path: Path) -> None:
    """An ordinary account, and a client with a white address, ask for everything."""
    own = {
        "aclEnable": "true",
        "rocketmqHome": str(guarded(tmp_path).rocketmq_home),
        "innerClientAuthenticationCredentials": credentials("operations"),
    }
    seen = bytearray()
    async with running_pairs(tmp_path, accounts=guarded(tmp_path)) as pairs:
        broker = await pairs.start("a", **own)
        signed = RemotingClient(name="service", hooks=[signer("order-service")])
        white = RemotingClient(name="white")

        async def ask(client: RemotingClient) -> set[int]:
            codes = set()
            for server, address in (
                (broker.listening.servers[0], broker.address),
                (pairs.name_server._server, pairs.name_server.address),
            ):
                for code in server._handlers:
                    if code not in CHANGES:
                        response = await client.call(
                            address, code, fields={"topic": "T", "group": "G"}, timeout=TIMEOUT_S
                        )
                        seen.extend(response.body + f"{response.fields}{response.remark}".encode())
                        codes.add(response.code)
            return codes

        try:
            assert ResponseCode.SYSTEM_ERROR in await ask(signed)
            file = home_with_accounts(tmp_path) / "conf" / "plain_acl.yml"
            file.write_text(f"globalWhiteRemoteAddresses: [127.0.0.1]\n{file.read_text()}")
            async with asyncio.timeout(TIMEOUT_S):
                while (
                    await white.call(
                        broker.address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, timeout=TIMEOUT_S
                    )
                ).code != ResponseCode.SUCCESS:
                    await asyncio.sleep(0.1)
            assert ResponseCode.SUCCESS in await ask(white)
        finally:
            await signed.close()
            await white.close()
    assert b"order-service" in seen, "the listing of accounts was not seen"
    assert not [secret for secret in SECRETS.values() if secret.encode() in seen]


CHANGES = frozenset({RequestCode.DELETE_ACL_CONFIG, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG})
"""Requests that would end the access that the test needs."""


async def test_cve_2017_18349_no_text_loads_a_class(servers: Servers) -> None:
    """JSON that names a class, wherever JSON is read: it is a field as any other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        text = json.dumps(GADGET).replace("{port}", str(port))
        bodies = (text, f"[{text}]", f'{{"x":{text}}}', f'{{"clientID":{text}}}')
        for server, address in (
            (servers.broker.listening.servers[0], servers.broker.address),
            (servers.name_server._server, servers.name_server.address),
            (servers.controller._server, servers.controller.address),
        ):
            for code in server._handlers:
                for body in bodies:
                    await servers.call(address, code, {"topic": text, "group": text}, body.encode())
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "accounts: !!python/object/apply:os.system ['touch {marker}']",
        "accounts:\n- !!javax.script.ScriptEngineManager [!!java.net.URL ['http://127.0.0.1:1']]",
    ],
)
def test_cve_2022_1471_no_file_of_accounts_loads_a_class(tmp_path: Path, text: str) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(ConfigError):
        parse(text.replace("{marker}", str(marker)).encode())
    assert not marker.exists()


@pytest.mark.needs("openssl")
async def test_cve_2011_1473_a_client_cannot_renegotiate(tmp_path: Path) -> None:
    """TLS 1.2 lets a client ask for handshakes again and again; the server refuses."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no client here can renegotiate")
    certificate, key = map(str, Authority(tmp_path, "own").issue("server"))
    server = RemotingServer({}, tls=TlsSettings(certificate=certificate, key=key))
    await server.start("127.0.0.1", 0)
    process = await asyncio.create_subprocess_exec(
        *(openssl, "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            out = await process.stdout.readuntil(b"Verify return code")
            process.stdin.write(b"R\n")
            await process.stdin.drain()
            out += await process.stdout.read()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await server.stop(0.1)
    assert b"RENEGOTIATING" in out
    assert b"no renegotiation" in out, out[-500:]
