"""The table of consumer groups: its file, first use, what is forbidden."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.table import PREDEFINED_GROUPS, GroupTable
from cometmq.model.errors import InvalidNameError, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.group import SubscriptionGroupWrapper
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.wire.recorded import unpack_store


class World:
    """A table in a folder, whose settings a test may replace."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config" / "subscriptionGroup.json"
        self.clock = ManualClock()
        self.settings = BrokerSettings(broker_name="broker-a")
        self.open()

    def open(self) -> GroupTable:
        file = JsonFile(self.path, Files())
        self.table = GroupTable(lambda: self.settings, file, clock=self.clock)
        self.table.load()
        return self.table

    def set(self, **settings: bool) -> None:
        self.settings = dataclasses.replace(self.settings, **settings)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_predefined_groups_are_there_from_the_start(world: World) -> None:
    assert set(world.table.all()) == set(PREDEFINED_GROUPS)


async def test_unknown_group_is_made_at_its_first_use(world: World) -> None:
    assert world.table.get("g") is None
    made = await world.table.get_or_create("g")
    assert made == SubscriptionGroupConfig(group_name="g")
    assert await world.table.get_or_create("g") is made
    assert "g" in json.loads(world.path.read_text())["subscriptionGroupTable"]


async def test_a_copy_that_began_before_an_election_removes_no_group_of_the_new_master(
    world: World,
) -> None:
    names = [f"g{number}" for number in range(20_000)]
    table = {name: SubscriptionGroupConfig(group_name=name) for name in names}
    version = DataVersion(timestamp=1, counter=9)
    is_slave = True
    copying = asyncio.create_task(
        world.table.copy(
            SubscriptionGroupWrapper(subscription_group_table=table, data_version=version),
            lambda: is_slave,
        )
    )
    await asyncio.sleep(0)
    assert not copying.done()
    is_slave = False
    await world.table.get_or_create("new")
    assert not await copying
    assert "new" in world.table
    assert "g1" not in world.table


async def test_making_groups_can_be_switched_off_but_for_system_groups(world: World) -> None:
    world.set(auto_create_subscription_group=False)
    assert await world.table.get_or_create("g") is None
    assert await world.table.get_or_create("CID_RMQ_SYS_x") is not None
    world.set(enable_create_sys_group=False)
    assert await world.table.get_or_create("CID_RMQ_SYS_y") is None


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", "g" * 256, "a b", "ü", "g\0"])
async def test_illegal_name_makes_no_group(world: World, name: str) -> None:
    assert await world.table.get_or_create(name) is None
    with pytest.raises(InvalidNameError):
        await world.table.put([SubscriptionGroupConfig(group_name=name, retry_max_times=1)])
    assert name not in world.table


async def test_longest_name_is_allowed(world: World) -> None:
    assert await world.table.get_or_create("g" * 255) is not None


async def test_groups_are_put_together_or_not_at_all(world: World) -> None:
    good, bad = (SubscriptionGroupConfig(group_name=name) for name in ("g", "b/d"))
    with pytest.raises(InvalidNameError):
        await world.table.put([good, bad])
    assert "g" not in world.table
    assert await world.table.put([good])
    assert not await world.table.put([good])


async def test_deleted_group_is_gone_with_what_it_was_forbidden(world: World) -> None:
    await world.table.get_or_create("g")
    await world.table.set_readable("g", "T", False)
    assert await world.table.delete("g")
    assert not await world.table.delete("g")
    again = world.open()
    assert again.get("g") is None
    assert not again.is_forbidden("g", "T")


async def test_a_group_is_served_although_the_disk_refuses_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads go on when the disk is full, those of new groups included."""

    def refuse(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(JsonFile, "save_text", refuse)
        assert await world.table.get_or_create("g") is not None
        with pytest.raises(StoreError):
            await world.table.set_readable("g", "T", False)
    assert "g" in world.table
    await world.table.get_or_create("h")
    assert {"g", "h"} <= world.open().all().keys()


async def test_reading_can_be_forbidden_and_allowed_again(world: World) -> None:
    await world.table.set_readable("g", "T", False)
    assert world.table.is_forbidden("g", "T")
    assert not world.table.is_forbidden("g", "U")
    assert not world.table.is_forbidden("h", "T")
    assert world.open().is_forbidden("g", "T")
    await world.table.set_readable("g", "T", True)
    assert not world.open().is_forbidden("g", "T")
    assert world.table.forbidden() == {}


async def test_other_forbidden_bits_are_left_alone(world: World) -> None:
    content = json.loads(world.path.read_text())
    content["forbiddenTable"] = {"g": {"T": 2}}
    world.path.write_text(json.dumps(content))
    table = world.open()
    assert not table.is_forbidden("g", "T")
    await table.set_readable("g", "T", False)
    await table.set_readable("g", "T", True)
    assert table.forbidden() == {"g": {"T": 2}}


async def test_setting_what_is_so_already_is_no_change(world: World) -> None:
    version = world.table.version
    await world.table.set_readable("g", "T", True)
    assert world.table.version == version


async def test_change_that_cannot_be_written_is_not_made(world: World) -> None:
    version = world.table.version
    world.path.with_name("subscriptionGroup.json.tmp").mkdir()
    with pytest.raises(StoreError):
        await world.table.set_readable("g", "T", False)
    assert world.table.get("g") is None
    assert not world.table.is_forbidden("g", "T")
    assert world.table.version == version


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_file_of_a_real_broker_is_read(tmp_path: Path, version: str) -> None:
    (unpack_store(f"{version}-main", tmp_path) / "config").rename(tmp_path / "config")
    written = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    table = World(tmp_path).table
    assert written["subscriptionGroupTable"].keys() <= table.all().keys()
    for group, row in written["subscriptionGroupTable"].items():
        assert table.all()[group].retry_max_times == row["retryMaxTimes"]


@pytest.mark.parametrize("text", ['{"subscriptionGroupTable":7}', '{"forbiddenTable":[1]}', "{"])
def test_file_of_another_shape_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(text)
    with pytest.raises(StoreError, match=r"subscriptionGroup\.json"):
        World(tmp_path)


async def test_a_change_finds_those_that_are_still_being_written(world: World) -> None:
    outcomes = await asyncio.gather(
        world.table.put([SubscriptionGroupConfig(group_name="g")]),
        world.table.delete("g"),
        world.table.delete("g"),
        world.table.set_readable("h", "T", False),
        world.table.set_readable("h", "T", True),
    )
    assert outcomes[1:3] == [True, False]
    assert "g" not in world.open()
    assert not world.table.is_forbidden("h", "T")
