"""The table of topics: its file, its own topics, creation, change and deletion."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import InvalidNameError, ResponseError, StoreError
from cometmq.model.topic import Perm, TopicConfig
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.wire.recorded import unpack_store
from unit.broker.conftest import nothing_else


class World:
    """A table in a folder, whose settings a test may replace."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.path = folder / "config" / "topics.json"
        self.clock = ManualClock()
        self.settings = dataclasses.replace(
            BrokerSettings(broker_name="broker-a"),
            **settings,  # type: ignore[arg-type]
        )
        self.changes = 0
        self.open()

    def open(self) -> TopicTable:
        file = JsonFile(self.path, Files())
        self.table = TopicTable(lambda: self.settings, file, clock=self.clock)
        self.table.load()
        self.table.notify(self.count)
        return self.table

    def count(self) -> None:
        self.changes += 1

    async def send_to(self, name: str, queues: int = 4, **options: object) -> TopicConfig | None:
        facts: dict[str, object] = {"template": "TBW102", "unit_mode": False} | options
        return await after_prerequisites(
            lambda: self.table.require_for_send(
                name,
                str(facts["template"]),
                queues,
                unit_mode=bool(facts["unit_mode"]),
                producer="10.0.0.9:1",
            )
        )

    async def internal(self, name: str, queues: int) -> TopicConfig:
        return await after_prerequisites(lambda: self.table.require_internal(name, queues))

    def on_disk(self) -> dict[str, dict[str, object]]:
        table: dict[str, dict[str, object]] = json.loads(self.path.read_text())["topicConfigTable"]
        return table


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- the broker's own topics ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "queues", "perm"),
    [
        ("TBW102", 8, 7),
        ("BenchmarkTest", 1024, 6),
        ("SELF_TEST_TOPIC", 1, 6),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
    ],
)
def test_broker_has_its_own_topics(world: World, name: str, queues: int, perm: int) -> None:
    config = world.table.get(name)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, perm)
    assert world.table.is_system(name)


async def test_settings_shape_the_brokers_own_topics(tmp_path: Path) -> None:
    table = World(
        tmp_path,
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
        msg_trace_topic_name="traces",
    ).table
    assert "TBW102" not in table
    assert [table.all()[name].perm for name in ("DefaultCluster", "broker-a")] == [Perm.INHERIT] * 2
    assert table.all()["traces"].read_queue_nums == 1
    assert {"TBW102", "traces", "RMQ_SYS_TRACE_TOPIC"} <= set(await table.system_names())


async def test_file_wins_over_the_brokers_own_settings_of_a_topic(world: World) -> None:
    changed = TopicConfig(topic_name="TBW102", read_queue_nums=3, write_queue_nums=3, perm=7)
    await world.table.put([changed])
    assert world.open().get("TBW102") == changed


@pytest.mark.parametrize("name", ["rmq_sys_anything", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_reserved_names_are_system_topics_even_before_they_exist(world: World, name: str) -> None:
    assert name not in world.table
    assert world.table.is_system(name)
    assert not world.table.is_system("mine")


async def test_a_new_master_puts_its_epoch_into_the_version(world: World) -> None:
    before = world.table.version
    await world.table.begin_epoch(7)
    assert world.table.version.state_version == 7
    assert world.table.version.counter == before.counter + 1
    await world.table.touch()
    assert (world.table.version.state_version, world.open().version) == (7, world.table.version)


# --- creation by a send -----------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (8, 8), (9, 8), (0, 0), (-3, 0)])
async def test_queues_of_a_created_topic_are_bounded_by_the_template(
    world: World, asked: int, given: int
) -> None:
    config = await world.send_to("T", asked)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums) == (given, given)
    assert config.perm == Perm.READ | Perm.WRITE


async def test_created_topic_is_on_disk_announced_and_counted(world: World) -> None:
    before = world.table.version
    world.clock.advance(10)
    await world.send_to("T", 2)
    assert world.on_disk()["T"]["readQueueNums"] == 2
    assert world.changes == 1
    assert world.table.version.counter == before.counter + 1
    assert world.table.version.timestamp == world.clock.now_ms()


async def test_existing_topic_is_returned_as_it_is(world: World) -> None:
    first = await world.send_to("T", 2)
    assert await world.send_to("T", 7) is first
    assert world.changes == 1


async def test_template_without_the_inherit_bit_creates_nothing(world: World) -> None:
    assert await world.send_to("T", template="BenchmarkTest") is None
    assert await world.send_to("T", template="nowhere") is None
    assert "T" not in world.table


async def test_cluster_topic_can_be_the_template(world: World) -> None:
    config = await world.send_to("T", 100, template="DefaultCluster")
    assert config is not None
    assert config.write_queue_nums == 16


async def test_creation_can_be_switched_off_and_on_while_the_template_stays(world: World) -> None:
    world.settings = dataclasses.replace(world.settings, auto_create_topic_enable=False)
    assert await world.send_to("T") is None
    template = world.table.get("TBW102")
    assert template is not None
    assert template.perm == 7
    world.settings = dataclasses.replace(world.settings, auto_create_topic_enable=True)
    assert await world.send_to("T") is not None


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a.b", "ü", "x" * 128, "a\0"])
async def test_illegal_name_creates_nothing(world: World, name: str) -> None:
    with pytest.raises(InvalidNameError):
        await world.send_to(name)
    assert world.changes == 0


@pytest.mark.parametrize(("name", "flag"), [("T", 1), ("%RETRY%g", 2)])
async def test_unit_mode_marks_the_topic(world: World, name: str, flag: int) -> None:
    config = await world.send_to(name, unit_mode=True)
    assert config is not None
    assert config.topic_sys_flag == flag


async def test_internal_topic_may_have_a_long_name_but_no_illegal_one(world: World) -> None:
    long = "%RETRY%" + "g" * 200
    assert (await world.internal(long, 1)).perm == 6
    assert (await world.internal(long, 9)).read_queue_nums == 1
    for name in ("%RETRY%../x", "%DLQ%" + "g" * 255, ""):
        with pytest.raises(InvalidNameError):
            await world.internal(name, 1)


# --- change and deletion ----------------------------------------------------------------------


async def test_several_topics_are_put_at_once_with_one_change(world: World) -> None:
    configs = [TopicConfig(topic_name=name) for name in ("A", "B")]
    assert await world.table.put(configs)
    assert not await world.table.put(configs)
    assert world.changes == 1


async def test_deleted_topic_is_gone_for_good(world: World) -> None:
    await world.send_to("T")
    assert await world.table.delete("T", nothing_else)
    assert not await world.table.delete("T", nothing_else)
    assert "T" not in world.open()


async def test_a_topic_is_not_created_again_before_it_is_forgotten(world: World) -> None:
    """Its old offsets are beyond the new messages until they are off the disk."""
    await world.send_to("T")
    forgetting, go_on = asyncio.Event(), asyncio.Event()

    async def forget(_: str) -> None:
        forgetting.set()
        await go_on.wait()

    deletion = asyncio.ensure_future(world.table.delete("T", forget))
    await forgetting.wait()
    creation = asyncio.ensure_future(world.send_to("T"))
    change = asyncio.ensure_future(world.table.put([TopicConfig(topic_name="T")]))
    await world.send_to("U")
    assert "T" not in world.table
    go_on.set()
    await asyncio.gather(deletion, creation, change)
    assert "T" in world.open()


async def test_ordered_topics_are_marked_once(world: World) -> None:
    await world.send_to("T")
    await world.table.order(["T", "unknown"])
    await world.table.order(["T"])
    assert world.table.all()["T"].order
    assert world.changes == 2


async def test_touching_counts_the_version_up_and_changes_no_topic(world: World) -> None:
    before, version = dict(world.table.all()), world.table.version
    await world.table.touch()
    assert dict(world.table.all()) == before
    assert world.table.version.counter == version.counter + 1


async def test_change_that_cannot_be_written_is_not_made(world: World) -> None:
    version = world.table.version
    world.path.with_name("topics.json.tmp").mkdir()
    with pytest.raises(ResponseError, match=r"topics\.json"):
        await world.send_to("T")
    assert "T" not in world.table
    assert world.table.version == version
    assert world.changes == 0


# --- the file ---------------------------------------------------------------------------------


async def test_table_is_the_same_after_a_restart(world: World) -> None:
    await world.table.put(
        [TopicConfig(topic_name="T", order=True, attributes={"message.type": "FIFO"})]
    )
    before, version = dict(world.table.all()), world.table.version
    again = world.open()
    assert dict(again.all()) == before
    assert again.version == version


async def test_broken_file_is_read_from_its_backup(world: World) -> None:
    await world.send_to("T")
    await world.send_to("U")
    world.path.write_text('{"topicConfigTable":{"T":')
    assert "T" in world.open()


@pytest.mark.parametrize(
    "text", ["[]", '{"topicConfigTable":[]}', '{"topicConfigTable":{"T":1}}', "{"]
)
def test_file_of_another_shape_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(text)
    with pytest.raises(StoreError, match=r"topics\.json"):
        World(tmp_path)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_file_of_a_real_broker_is_read(tmp_path: Path, version: str) -> None:
    (unpack_store(f"{version}-main", tmp_path) / "config").rename(tmp_path / "config")
    written = json.loads((tmp_path / "config" / "topics.json").read_text())
    table = World(tmp_path).table
    for name, row in written["topicConfigTable"].items():
        config = table.all()[name]
        assert (config.read_queue_nums, config.perm) == (row["readQueueNums"], row["perm"])
    assert table.version.counter >= written["dataVersion"]["counter"]


async def test_a_topic_that_is_still_being_written_can_be_deleted(world: World) -> None:
    _, was_there = await asyncio.gather(
        world.table.put([TopicConfig(topic_name="T")]), world.table.delete("T", nothing_else)
    )
    assert was_there
    assert "T" not in world.open()


async def test_a_start_names_the_topics_that_rocketmq_compacts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.table.put(
        [
            TopicConfig(topic_name="compacted", attributes={"cleanup.policy": "COMPACTION"}),
            TopicConfig(topic_name="deleted", attributes={"cleanup.policy": "DELETE"}),
        ]
    )
    world.open()
    assert "older than fileReservedTime count=1 topics=compacted" in caplog.text
