"""The table of consumer groups: its file, first use, what is forbidden."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.table import PREDEFINED_GROUPS, GroupTable
from cometmq.model.errors import InvalidNameError, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import ManualClock
from cometmq.system.files import SystemFiles

STORES = Path(__file__).parents[2] / "vectors" / "stores"


class World:
    """A table in a folder, whose settings a test may replace."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config" / "subscriptionGroup.json"
        self.clock = ManualClock()
        self.settings = BrokerSettings(broker_name="broker-a")
        self.open()

    def open(self) -> GroupTable:
        file = JsonFile(self.path, SystemFiles())
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


def test_unknown_group_is_made_at_its_first_use(world: World) -> None:
    assert world.table.get("g") is None
    made = world.table.get_or_create("g")
    assert made == SubscriptionGroupConfig(group_name="g")
    assert world.table.get_or_create("g") is made
    assert "g" in json.loads(world.path.read_text())["subscriptionGroupTable"]


def test_making_groups_can_be_switched_off_but_for_system_groups(world: World) -> None:
    world.set(auto_create_subscription_group=False)
    assert world.table.get_or_create("g") is None
    assert world.table.get_or_create("CID_RMQ_SYS_x") is not None
    world.set(enable_create_sys_group=False)
    assert world.table.get_or_create("CID_RMQ_SYS_y") is None


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", "g" * 256, "a b", "ü", "g\0"])
def test_illegal_name_makes_no_group(world: World, name: str) -> None:
    assert world.table.get_or_create(name) is None
    with pytest.raises(InvalidNameError):
        world.table.put([SubscriptionGroupConfig(group_name=name, retry_max_times=1)])
    assert name not in world.table


def test_longest_name_is_allowed(world: World) -> None:
    assert world.table.get_or_create("g" * 255) is not None


def test_groups_are_put_together_or_not_at_all(world: World) -> None:
    good, bad = (SubscriptionGroupConfig(group_name=name) for name in ("g", "b/d"))
    with pytest.raises(InvalidNameError):
        world.table.put([good, bad])
    assert "g" not in world.table
    assert world.table.put([good])
    assert not world.table.put([good])


def test_deleted_group_is_gone_with_what_it_was_forbidden(world: World) -> None:
    world.table.get_or_create("g")
    world.table.set_readable("g", "T", False)
    assert world.table.delete("g")
    assert not world.table.delete("g")
    again = world.open()
    assert again.get("g") is None
    assert not again.is_forbidden("g", "T")


def test_reading_can_be_forbidden_and_allowed_again(world: World) -> None:
    world.table.set_readable("g", "T", False)
    assert world.table.is_forbidden("g", "T")
    assert not world.table.is_forbidden("g", "U")
    assert not world.table.is_forbidden("h", "T")
    assert world.open().is_forbidden("g", "T")
    world.table.set_readable("g", "T", True)
    assert not world.open().is_forbidden("g", "T")
    assert world.table.forbidden() == {}


def test_other_forbidden_bits_are_left_alone(world: World) -> None:
    content = json.loads(world.path.read_text())
    content["forbiddenTable"] = {"g": {"T": 2}}
    world.path.write_text(json.dumps(content))
    table = world.open()
    assert not table.is_forbidden("g", "T")
    table.set_readable("g", "T", False)
    table.set_readable("g", "T", True)
    assert table.forbidden() == {"g": {"T": 2}}


def test_setting_what_is_so_already_is_no_change(world: World) -> None:
    version = world.table.version
    world.table.set_readable("g", "T", True)
    assert world.table.version == version


def test_change_that_cannot_be_written_is_not_made(world: World) -> None:
    version = world.table.version
    world.path.with_name("subscriptionGroup.json.tmp").mkdir()
    with pytest.raises(StoreError):
        world.table.get_or_create("g")
    with pytest.raises(StoreError):
        world.table.set_readable("g", "T", False)
    assert world.table.get("g") is None
    assert not world.table.is_forbidden("g", "T")
    assert world.table.version == version


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_file_of_a_real_broker_is_read(tmp_path: Path, version: str) -> None:
    name = "store/config/subscriptionGroup.json"
    with tarfile.open(STORES / f"{version}-main.tar.gz") as archive:
        archive.extract(name, tmp_path, filter="data")
    (tmp_path / "store" / "config").rename(tmp_path / "config")
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
