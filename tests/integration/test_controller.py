"""``cometmq controller`` as processes, with a real etcd."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.controller.config import EtcdSettings
from cometmq.controller.etcd import Compare, Delete, EtcdUnavailableError, Put
from cometmq.controller.etcd_gateway import EtcdGateway, open_gateway
from cometmq.model.errors import ConfigError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.controller import (
    ControllerApplyBrokerIdRequest,
    ControllerElectMasterRequest,
    ControllerGetReplicaInfoRequest,
    ControllerRegisterBrokerRequest,
)
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import RemotingClient
from support.brokers.certificates import Authority
from support.processes.etcd_server import etcd

TIMEOUT_S = 120.0
TAKEOVER_S = 60.0
"""The lease lasts 2 s; the rest is for a machine that does other work."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd(tmp_path_factory.mktemp("etcd")) as address:
        yield address


@contextmanager
def controller(folder: Path, name: str, store: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    file = folder / f"{name}.conf"
    file.write_text(
        f"controllerStore=etcd://{store}\ncontrollerDLegerSelfId={name}\nlistenPort=0\n"
        f"controllerDLegerGroup={folder.name}\ncontrollerLeaseSeconds=2\n"
        "scanInactiveMasterInterval=500\n"
    )
    with server("controller", file) as (process, addresses):
        yield process, addresses["controller"]


@contextmanager
def server(command: str, file: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a command until it is ready, and give its process and what its line says."""
    arguments = [sys.executable, "-m", "cometmq", command, "-c", str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, *words = process.stdout.readline().split()
            assert ready == "ready", words
            yield process, dict(word.split("=") for word in words)
        finally:
            process.kill()


async def ask(
    client: RemotingClient, address: str, code: RequestCode, header: Header | None = None
) -> Command:
    return await client.call(address, code, header, timeout=60)


async def until_active(client: RemotingClient, address: str) -> None:
    async with asyncio.timeout(TAKEOVER_S):
        while True:
            metadata = await ask(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            if (metadata.fields or {})["isLeader"] == "true":
                return
            await asyncio.sleep(0.05)


async def heartbeat(client: RemotingClient, address: str, id_: int) -> None:
    header = BrokerHeartbeatRequest(
        cluster_name="C",
        broker_name="b",
        broker_addr=f"10.0.0.{id_}:10911",
        broker_id=id_,
        heartbeat_timeout_mills=600_000,
    )
    response = await ask(client, address, RequestCode.BROKER_HEARTBEAT, header)
    assert response.code == ResponseCode.SUCCESS


@pytest.mark.needs("etcd")
async def test_a_second_controller_takes_over_and_knows_the_broker_set(
    tmp_path: Path, store: str, client: RemotingClient
) -> None:
    with (
        controller(tmp_path, "n0", store) as (first, first_address),
    ):
        await until_active(client, first_address)
        with controller(tmp_path, "n1", store) as (second, second_address):
            await begin(client, first_address)
            refused = await ask(
                client,
                second_address,
                RequestCode.CONTROLLER_GET_REPLICA_INFO,
                ControllerGetReplicaInfoRequest(broker_name="b"),
            )
            assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER
            await heartbeat(client, second_address, 1)

            first.kill()

            await until_active(client, second_address)
            known = await ask(
                client,
                second_address,
                RequestCode.CONTROLLER_GET_REPLICA_INFO,
                ControllerGetReplicaInfoRequest(broker_name="b"),
            )
            assert known.code == ResponseCode.SUCCESS
            assert known.fields == {
                "masterBrokerId": "1", "masterAddress": "10.0.0.1:10911", "masterEpoch": "1",
            }  # fmt: skip
            second.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.wait, TIMEOUT_S) == 0


@pytest.mark.needs("etcd")
async def test_a_name_server_runs_a_controller_too(
    tmp_path: Path, store: str, client: RemotingClient
) -> None:
    own = tmp_path / "controller.conf"
    own.write_text(
        f"controllerStore=etcd://{store}\nlistenPort=0\ncontrollerDLegerGroup={tmp_path.name}\n"
    )
    file = tmp_path / "namesrv.conf"
    file.write_text(
        f"listenPort=0\nkvConfigPath={tmp_path / 'kv.json'}\nenableControllerInNamesrv=true\n"
        f"controllerConfigPath={own}\n"
    )
    with server("namesrv", file) as (process, addresses):
        await until_active(client, addresses["controller"])
        await begin(client, addresses["controller"])
        listed = await ask(client, addresses["namesrv"], RequestCode.GET_BROKER_CLUSTER_INFO)
        assert listed.code == ResponseCode.SUCCESS
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0


def test_a_name_server_with_a_controller_needs_its_file(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("enableControllerInNamesrv=true\n")
    command = [sys.executable, "-m", "cometmq", "namesrv", "-c", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert ended.returncode == 2
    assert "enableControllerInNamesrv=true without controllerConfigPath" in ended.stderr


async def begin(client: RemotingClient, address: str) -> None:
    """Register broker 1, and let it become the first master."""
    applied = await ask(
        client,
        address,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        ControllerApplyBrokerIdRequest(
            cluster_name="C", broker_name="b", applied_broker_id=1, register_check_code="a;1"
        ),
    )
    registered = await ask(
        client,
        address,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        ControllerRegisterBrokerRequest(
            cluster_name="C", broker_name="b", broker_id=1, broker_address="10.0.0.1:10911"
        ),
    )
    await heartbeat(client, address, 1)
    elected = await ask(
        client,
        address,
        RequestCode.CONTROLLER_ELECT_MASTER,
        ControllerElectMasterRequest(cluster_name="C", broker_name="b", broker_id=1),
    )
    assert [applied.code, registered.code, elected.code] == [ResponseCode.SUCCESS] * 3


def test_a_mistake_in_the_address_of_etcd_is_named(tmp_path: Path) -> None:
    file = tmp_path / "controller.conf"
    file.write_text("controllerStore=http://127.0.0.1:2379\n")
    command = [sys.executable, "-m", "cometmq", "controller", "-c", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert ended.returncode == 2
    assert "controllerStore=http://127.0.0.1:2379: expected" in ended.stderr


@pytest.mark.needs("etcd")
async def test_a_client_of_etcd_keeps_its_promises(store: str) -> None:
    gateway = EtcdGateway(["127.0.0.1:1", store])
    try:
        await check_promises(gateway)
    finally:
        await gateway.close()


async def check_promises(gateway: EtcdGateway) -> None:
    """What the model of etcd promises, too; the first call comes to no server at all."""
    assert await gateway.get("/p/a") is None
    assert await gateway.range("/p/") == []
    assert await gateway.transact([Compare("/p/a", 0)], [Put("/p/a", b"\xff"), Put("/p/b", b"")])
    assert not await gateway.transact([Compare("/p/a", 0)], [Put("/p/a", b"2")])
    found = await gateway.get("/p/a")
    assert found is not None
    assert (found.key, found.value) == ("/p/a", b"\xff")
    assert [one.key for one in await gateway.range("/p/")] == ["/p/a", "/p/b"]
    assert await gateway.transact([Compare("/p/a", found.mod_revision)], [Delete("/p/a")])
    assert await gateway.get("/p/a") is None

    lease = await gateway.grant(60)
    assert await gateway.keep_alive(lease)
    assert await gateway.transact([], [Put("/p/lease", b"1", lease)])
    await gateway.revoke(lease)
    assert await gateway.get("/p/lease") is None
    assert not await gateway.keep_alive(lease)
    assert not await gateway.transact([], [Put("/p/lease", b"1", lease)])
    await gateway.revoke(lease)


async def test_without_etcd_calls_fail_within_their_time() -> None:
    gateway = EtcdGateway(["127.0.0.1:1"])
    try:
        with pytest.raises(EtcdUnavailableError, match="Cannot connect"):
            await gateway.transact([], [Put("/p", b"")])
    finally:
        await gateway.close()


@pytest.mark.needs("etcd")
async def test_tls_and_a_password_are_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("etcd")
    password = tmp_path / "password"
    password.write_text("secret\n")
    options = ["--cert-file", str(certificate), "--key-file", str(key)]
    with etcd(tmp_path / "etcd", *options, scheme="https") as address:
        settings = EtcdSettings(
            store=f"etcd://{address}",
            trusted=str(authority.file),
            user="root",
            password_file=str(password),
        )
        plain = open_gateway(EtcdSettings(store=f"etcd://{address}", trusted=settings.trusted))
        try:
            await allow_only_root(plain)
            with pytest.raises(EtcdUnavailableError, match="user name is empty"):
                await plain.get("/p/a")
        finally:
            await plain.close()
        gateway = open_gateway(settings)
        try:
            await check_promises(gateway)
        finally:
            await gateway.close()


@pytest.mark.needs("etcd")
async def test_a_certificate_is_presented_to_etcd(tmp_path: Path, client: RemotingClient) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("etcd")
    options = [
        "--cert-file", str(certificate), "--key-file", str(key),
        "--client-cert-auth", "--trusted-ca-file", str(authority.file),
    ]  # fmt: skip
    own, own_key = authority.issue("controller", password="secret")
    wrong, wrong_key = Authority(tmp_path, "stranger").issue("controller")
    with etcd(tmp_path / "etcd", *options, scheme="https") as address:
        none = EtcdSettings(store=f"etcd://{address}", trusted=str(authority.file))
        for refused in (
            none,
            replace(none, certificate=str(wrong), key=str(wrong_key)),
        ):
            gateway = open_gateway(refused)
            try:
                with pytest.raises(EtcdUnavailableError, match=r"alert|disconnected|reset"):
                    await gateway.transact([], [Put("/p", b"")])
            finally:
                await gateway.close()
        gateway = open_gateway(
            replace(none, certificate=str(own), key=str(own_key), key_password="secret")
        )
        try:
            await check_promises(gateway)
        finally:
            await gateway.close()

        file = tmp_path / "controller.conf"
        file.write_text(
            f"controllerStore=etcd://{address}\ncontrollerStoreTrustCertPath={authority.file}\n"
            f"controllerStoreCertPath={own}\ncontrollerStoreKeyPath={own_key}\n"
            "controllerStoreKeyPassword=secret\nlistenPort=0\n"
        )
        with server("controller", file) as (_, addresses):
            await until_active(client, addresses["controller"])
            await begin(client, addresses["controller"])
            shown = await ask(client, addresses["controller"], RequestCode.GET_CONTROLLER_CONFIG)
            assert b"controllerStoreKeyPassword=********" in shown.body


def test_a_certificate_that_cannot_be_used_is_named_before_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, _ = authority.issue("controller")
    _, other_key = authority.issue("other")
    settings = EtcdSettings(certificate=str(certificate), key=str(other_key))
    with pytest.raises(ConfigError, match="needs controllerStoreTrustCertPath"):
        open_gateway(settings)
    with pytest.raises(ConfigError, match=r"controllerStoreKeyPath=.*: not the private key of"):
        open_gateway(replace(settings, trusted=str(authority.file)))


async def allow_only_root(gateway: EtcdGateway) -> None:
    for path, asked in (
        ("/v3/auth/user/add", {"name": "root", "password": "secret"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        await gateway._call(path, asked)


def test_a_password_that_cannot_be_read_is_named_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"controllerStorePasswordFile=.*none: expected a file"):
        open_gateway(EtcdSettings(user="root", password_file=str(tmp_path / "none")))
