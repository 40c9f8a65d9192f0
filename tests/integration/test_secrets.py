"""Secrets of servers are in no log, no response, no listing, and no error."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.access.account_settings import AccountSettings, signing_hooks
from cometmq.broker.app import SETTINGS as BROKER_SETTINGS
from cometmq.client import Message, Producer
from cometmq.client.settings import ClientSettings
from cometmq.controller.config import EtcdSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingClient, TlsClientSettings, TlsSettings
from cometmq.remoting.tls import outgoing_context, server_context
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import BROKER_KEYS
from support.brokers.accounts import SECRETS, credentials, guarded, signer
from support.brokers.certificates import Authority
from support.brokers.pairs import running_pairs
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller
from support.processes import forks

TIMEOUT_S = 60.0
NO_CODE = 31_999
KEY_PASSWORD = "password-of-server-key"
OTHERS = {
    "initAuthenticationUser": '{"username":"root","password":"password-of-first-user"}',
    "metricsGrpcExporterHeader": "authorization:token-of-metrics",
    "socksProxyConfig": '{"*":{"addr":"127.0.0.1:1","password":"password-of-proxy"}}',
}
"""Settings with secrets, with effect here or without."""
ALL_SECRETS = (
    *SECRETS.values(), KEY_PASSWORD, "password-of-first-user", "token-of-metrics",
    "password-of-proxy",
)  # fmt: skip
FIELDS = {
    "topic": "Orders", "group": "order-service", "consumerGroup": "order-service",
    "groupName": "order-service", "producerGroup": "p", "clientId": "c", "queueId": "0",
    "accessKey": "order-service", "secretKey": SECRETS["order-service"], "namespace": "N",
    "key": "k", "value": "v", "brokerName": "pair", "clusterName": "DefaultCluster",
    "username": "operations", "subject": "User:operations",
}  # fmt: skip
"""What most requests need; an unknown field is ignored."""


class Recorder:
    """Keeps the bytes of every response."""

    def __init__(self) -> None:
        self.seen = bytearray()

    def before_request(self, address: str, call: Any) -> None:
        pass

    def after_response(self, address: str, call: Any, response: Any) -> None:
        self.seen += response.body + f"{response.fields} {response.remark}".encode()


def found_in(text: str | bytes) -> list[str]:
    """The secrets that a text contains."""
    data = text if isinstance(text, bytes) else text.encode()
    return [secret for secret in ALL_SECRETS if secret.encode() in data]


def server_settings(folder: Path) -> dict[str, str]:
    """Settings of a broker that have each secret."""
    certificate, key = map(str, Authority(folder, "own").issue("server", password=KEY_PASSWORD))
    return OTHERS | {
        "aclEnable": "true",
        "rocketmqHome": str(guarded(folder).rocketmq_home),
        "innerClientAuthenticationCredentials": credentials("operations"),
        "tls.server.certPath": certificate,
        "tls.server.keyPath": key,
        "tls.server.keyPassword": KEY_PASSWORD,
        "tls.client.certPath": certificate,
        "tls.client.keyPath": key,
        "tls.client.keyPassword": KEY_PASSWORD,
        "tls.enable": "false",
    }


async def test_no_log_and_no_response_of_a_run_has_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    accounts, settings = guarded(tmp_path), server_settings(tmp_path)
    recorder = Recorder()
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        controller = await stack.enter_async_context(
            listening_controller(EtcdStore(time.monotonic), accounts=accounts, lease_s=2)
        )
        broker = await pairs.start("a", **settings)
        hooks = {"signed": [recorder, signer("operations")], "unsigned": [recorder]}
        clients = {name: RemotingClient(name=name, hooks=each) for name, each in hooks.items()}
        for client in clients.values():
            stack.push_async_callback(client.close)
        service = ClientSettings(access_key="order-service", secret_key=SECRETS["order-service"])
        async with Producer(pairs.name_server.address, group="p", client=service) as producer:
            await producer.send(Message("Orders", b"x"))

        codes = {
            pairs.name_server.address: pairs.name_server._server._handlers,
            controller.address: controller.routes,
            broker.address: broker.listening.servers[0]._handlers,
        }
        for address, handlers in codes.items():
            for code in (*handlers, NO_CODE):
                for client in clients.values():
                    await client.call(address, code, fields=FIELDS, timeout=TIMEOUT_S)
        for name in ("a", "b"):  # what is wrong may be shown
            body = f"innerClientAuthenticationCredentials={credentials('operations')}\nx{name}=1"
            for address, code in (
                (broker.address, RequestCode.UPDATE_BROKER_CONFIG),
                (pairs.name_server.address, RequestCode.UPDATE_NAMESRV_CONFIG),
                (controller.address, RequestCode.UPDATE_CONTROLLER_CONFIG),
            ):
                await clients["signed"].call(address, code, body=body.encode(), timeout=TIMEOUT_S)
    assert found_in(bytes(recorder.seen)) == []
    assert found_in(caplog.text) == []
    assert b"innerClientAuthenticationCredentials=********" in recorder.seen
    assert "access refused" in caplog.text
    assert "configuration change refused" in caplog.text


@pytest.mark.parametrize("server", ["broker", "namesrv", "controller", "standalone", "filtersrv"])
async def test_the_printed_configuration_of_a_server_has_no_secret(
    tmp_path: Path, server: str
) -> None:
    settings = server_settings(tmp_path)
    if server in ("namesrv", "controller"):
        settings = {key: value for key, value in settings.items() if key not in OTHERS}
    if server == "controller":
        settings |= {"controllerStoreKeyPassword": KEY_PASSWORD}
    if server == "filtersrv":
        settings = {key: value for key, value in settings.items() if key.startswith("tls.")}
    text = await printed(server, tmp_path, settings)
    assert found_in(text) == []
    assert "********" in text


async def printed(server: str, folder: Path, settings: Mapping[str, str]) -> str:
    """Return what a server prints as its configuration."""
    file = folder / "server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    process = await asyncio.create_subprocess_exec(
        *(*forks.python(), "-m", "cometmq", server, "-c", str(file), "--print-config"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.mark.parametrize("command", ["getBrokerConfig", "exportConfigs", "clusterAclConfigVersion"])
async def test_commands_that_show_settings_show_no_secret(tmp_path: Path, command: str) -> None:
    accounts = guarded(tmp_path)
    async with running_pairs(tmp_path, accounts=accounts) as pairs:
        broker = await pairs.start("a", **server_settings(tmp_path))
        target = ("-b", broker.address)
        if command == "exportConfigs":
            target = ("-c", "DefaultCluster", "-f", str(tmp_path / "exported"))  # type: ignore[assignment]
        process = await asyncio.create_subprocess_exec(
            *(*forks.python(), "-m", "cometmq", "mqadmin", command, *target),
            *("-n", pairs.name_server.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ
            | {
                "COMETMQ_CLIENT_ACCESS_KEY": "operations",
                "COMETMQ_CLIENT_SECRET_KEY": SECRETS["operations"],
            },
        )
        out, _ = await process.communicate()
    text = out.decode() + "".join(
        path.read_text() for path in (tmp_path / "exported").rglob("*") if path.is_file()
    )
    assert process.returncode == 0, text
    assert found_in(text) == []
    assert "pair" in text


def test_errors_about_settings_show_no_secret(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path, "own").issue("server", password="another one"))
    errors: list[str] = []
    wrong = {
        "innerClientAuthenticationCredentials": f"[{SECRETS['operations']}",
        "tls.server.keyPassword": KEY_PASSWORD,
    }
    configuration = load(BROKER_SETTINGS, known_keys=BROKER_KEYS, command_line=wrong)
    for attempt in (
        lambda: signing_hooks(wrong["innerClientAuthenticationCredentials"]),
        lambda: server_context(
            TlsSettings(certificate=certificate, key=key, key_password=KEY_PASSWORD)
        ),
        lambda: outgoing_context(
            TlsClientSettings(
                enable=True, certificate=certificate, key=key, key_password=KEY_PASSWORD
            ),
            TlsSettings(),
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            attempt()
        errors.append(f"{refused.value!r} {refused.value}")
    shown = [
        AccountSettings(inner_client_credentials=credentials("operations")),
        EtcdSettings(key_password=KEY_PASSWORD),
        *(configuration[kind] for kind in BROKER_SETTINGS),
    ]
    assert found_in(f"{errors} {shown!r}") == []
