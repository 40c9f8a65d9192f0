"""``cometmq admin controller`` with a controller of ours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.controller.app import Controller
from support.controllers import listening_controller
from support.etcd_model import EtcdStore


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    file = tmp_path / "controller.conf"
    file.write_text("enableElectUncleanMaster=false\n")
    async with listening_controller(EtcdStore(time.monotonic), config_store_path=file) as started:
        yield started


async def run(controller: Controller, *words: str) -> Any:
    line = ["admin", "controller", *words, "--controller", controller.address, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, line)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def test_the_leader_is_shown(controller: Controller) -> None:
    found = await run(controller, "status")

    assert found["active_address"] == controller.address


async def test_a_setting_is_changed_after_a_dry_run_that_changes_nothing(
    controller: Controller,
) -> None:
    async def value() -> str:
        rows = await run(controller, "config", "--name", "enableElectUncleanMaster")
        return str(rows[0]["value"])

    change = ("set-config", "enableElectUncleanMaster=true")
    planned = await run(controller, *change, "--dry-run")
    before = await value()
    done = await run(controller, *change, "--yes")

    assert [planned[0]["state"], done[0]["state"]] == ["planned", "done"]
    assert [before, await value()] == ["false", "true"]
