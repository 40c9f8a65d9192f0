"""Requests that show and change the settings of a running controller."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.controller.app import Controller
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import RemotingClient
from cometmq.system import java_properties
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller

TIMEOUT_S = 60.0


class Peer:
    """A tool, and a controller with a configuration file."""

    def __init__(self, controller: Controller, client: RemotingClient, file: Path) -> None:
        self.controller = controller
        self.file = file
        self._client = client

    async def call(self, code: RequestCode, body: bytes = b"") -> Command:
        address = self.controller.address
        return await self._client.call(address, code, body=body, timeout=TIMEOUT_S)

    async def shown(self) -> dict[str, str]:
        response = await self.call(RequestCode.GET_CONTROLLER_CONFIG)
        assert (response.code, response.remark) == (ResponseCode.SUCCESS, None)
        entries = java_properties.parse(response.body.decode())
        return {entry.key: entry.value for entry in entries}


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    file = tmp_path / "controller.conf"
    file.write_text("# kept\nenableElectUncleanMaster=false\n")
    client = RemotingClient(name="tool")
    async with listening_controller(EtcdStore(time.monotonic), config_store_path=file) as started:
        yield Peer(started, client, file)
    await client.close()


async def test_all_settings_are_shown(peer: Peer) -> None:
    shown = await peer.shown()

    assert shown["enableElectUncleanMaster"] == "false"
    assert shown["scanInactiveMasterInterval"] == "5000"
    assert shown["listenPort"] == str(peer.controller.port)
    assert shown["controllerStore"] == "etcd://127.0.0.1:2379"


async def test_a_change_is_in_force_and_in_the_file(peer: Peer) -> None:
    body = b"enableElectUncleanMaster=true\nscanInactiveMasterInterval=700\nunknown=1\n"
    response = await peer.call(RequestCode.UPDATE_CONTROLLER_CONFIG, body)

    assert (response.code, response.remark) == (ResponseCode.SUCCESS, None)
    shown = await peer.shown()
    assert shown["enableElectUncleanMaster"] == "true"
    assert shown["scanInactiveMasterInterval"] == "700"
    assert peer.file.read_text() == (
        "# kept\nenableElectUncleanMaster=true\nscanInactiveMasterInterval=700\n"
    )


@pytest.mark.parametrize(
    "key", ["configStorePath", "controllerStore", "controllerStoreTrustCertPath", "listenPort"]
)
async def test_what_no_request_may_change_is_refused(peer: Peer, key: str) -> None:
    before, text = await peer.shown(), peer.file.read_text()
    body = f"notifyBrokerRoleChanged=false\n{key}=1\n".encode()
    response = await peer.call(RequestCode.UPDATE_CONTROLLER_CONFIG, body)

    assert response.code == ResponseCode.NO_PERMISSION
    assert (response.remark or "").startswith("Can not update config in black list.")
    assert key == "configStorePath" or f" {key} cannot be changed" in (response.remark or "")
    assert await peer.shown() == before
    assert peer.file.read_text() == text


async def test_a_value_out_of_range_changes_nothing(peer: Peer) -> None:
    before = await peer.shown()
    body = b"notifyBrokerRoleChanged=false\nscanNotActiveBrokerInterval=0\n"
    response = await peer.call(RequestCode.UPDATE_CONTROLLER_CONFIG, body)

    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "scanNotActiveBrokerInterval=0: expected" in (response.remark or "")
    assert await peer.shown() == before


async def test_an_update_without_a_body_is_accepted(peer: Peer) -> None:
    response = await peer.call(RequestCode.UPDATE_CONTROLLER_CONFIG)

    assert response.code == ResponseCode.SUCCESS
