"""``cometmq admin controller`` with a controller of ours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.broker.app import Broker
from cometmq.cli.commands import app
from cometmq.client import Message, Producer
from cometmq.controller.app import Controller
from cometmq.remoting.ports import free_port
from support.brokers.pairs import LIMIT_S, Pairs
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    file = tmp_path / "controller.conf"
    file.write_text("enableElectUncleanMaster=false\n")
    async with listening_controller(EtcdStore(time.monotonic), config_store_path=file) as started:
        await until(lambda: started.active.is_active)
        yield started


async def run(controller: Controller, *words: str, code: int = 0) -> Any:
    line = ["admin", "controller", *words, "--json"]
    if words[0] != "epochs":  # brokers are asked for them
        line += ["--controller", controller.address]
    result = await asyncio.to_thread(CliRunner().invoke, app, line)
    assert result.exit_code == code, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


async def test_the_leader_is_shown_when_another_controller_is_down(controller: Controller) -> None:
    found = await run(controller, "status")
    line = ["admin", "controller", "status", "--json", "-a"]
    down = f"127.0.0.1:{free_port()}"
    both, alone = [
        await asyncio.to_thread(CliRunner().invoke, app, [*line, named])
        for named in (f"{down};{controller.address}", down)
    ]

    for words in ("getControllerMetaData", "getSyncStateSet -b nosuch"):
        line = ["mqadmin", *words.split(), "-a", f"{down};{controller.address}"]
        shown = await asyncio.to_thread(CliRunner().invoke, app, line)
        assert shown.exit_code == 0, shown.output
    assert found["active_address"] == controller.address
    assert json.loads(both.stdout) == found
    assert f"cannot connect to {down}" in str(alone.exception)


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


async def start(pairs: Pairs, controller: Controller, name: str) -> Broker:
    """Start a broker of the name ``pair``."""
    return await pairs.start(
        name,
        enableControllerMode="true",
        controllerAddr=controller.address,
        brokerHeartbeatInterval="100",
        syncBrokerMetadataPeriod="100",
        controllerHeartBeatTimeoutMills="2000",
    )


async def until_shown(
    look: Callable[[], Awaitable[list[dict[str, Any]]]], expected: list[tuple[Any, ...]], *keys: str
) -> None:
    """Wait until a command shows some values: brokers and controllers follow a change later."""
    async with asyncio.timeout(LIMIT_S):
        while [tuple(row[key] for key in keys) for row in await look()] != expected:
            await asyncio.sleep(0.05)


async def test_a_master_is_elected_and_a_broker_that_is_gone_is_forgotten(
    controller: Controller, pairs: Pairs
) -> None:
    namesrv = ("--namesrv", pairs.name_server.address)

    async def state() -> list[dict[str, Any]]:
        return list(await run(controller, "sync-state", *namesrv))

    async def epochs() -> list[dict[str, Any]]:
        return list(await run(controller, "epochs", *namesrv))

    brokers = [await start(pairs, controller, "a"), await start(pairs, controller, "b")]
    keys = ("set", "broker_id", "role", "in_sync", "alive", "master_epoch")
    await until_shown(
        state,
        [("pair", 1, "master", True, True, 1), ("pair", 2, "slave", True, True, 1)],
        *keys,
    )
    async with Producer(pairs.name_server.address, group="p") as producer:
        await producer.send(Message("TBW102", b"of the first master"))
    assert {(row["id"], row["epoch"]) for row in await epochs()} == {(0, 1), (2, 1)}

    elect = ("elect", "pair", "2", *namesrv)
    [planned] = await run(controller, *elect, "--dry-run")
    assert planned["state"] == "planned"
    assert planned["detail"] == f"master now 1 {brokers[0].address}"
    [elected] = await run(controller, *elect, "--yes")
    assert elected["state"] == "done"
    await until_shown(
        state,
        [("pair", 1, "slave", True, True, 2), ("pair", 2, "master", True, True, 2)],
        *keys,
    )

    await pairs.stop(brokers[0])
    await until_shown(state, [(2, True), (1, False)], "broker_id", "alive")
    [forgotten] = await run(controller, "forget", "pair", "1", *namesrv, "--yes")
    assert forgotten["state"] == "done"
    await until_shown(state, [(2, "master", True)], "broker_id", "role", "alive")


async def test_a_broker_that_lives_is_not_forgotten_unless_it_is_asked_for(
    controller: Controller, pairs: Pairs
) -> None:
    namesrv = ("--namesrv", pairs.name_server.address)
    await start(pairs, controller, "a")
    [refused] = await run(controller, "forget", "pair", *namesrv, "--yes", code=1)
    state = await run(controller, "sync-state", *namesrv)

    assert refused["state"] == "failed"
    assert [row["alive"] for row in state] == [True]
    [done] = await run(controller, "forget", "pair", "--living", *namesrv, "--yes")
    assert done["state"] == "done"


async def test_no_master_is_elected_of_brokers_that_the_controller_does_not_know(
    controller: Controller,
) -> None:
    line = ["admin", "controller", "elect", "nosuch", "1", "--yes", "-a", controller.address]
    result = await asyncio.to_thread(CliRunner().invoke, app, line)

    assert str(result.exception) == "the controller knows no broker set nosuch"
