"""The file of mappings, and what a start makes of a crash between it and the topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.static_topics.changes import merged
from cometmq.broker.static_topics.table import StaticTopicTable
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import StoreError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.logical_queues import InvalidMappingError
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.files import Files

Hosted = dict[int, list[LogicQueueMappingItem]]


def item(gen: int, broker: str, queue: int, begin: int = 0) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, bname=broker, queue_id=queue, logic_offset=begin)


def part(
    topic: str, hosted: Hosted, *, epoch: int = 1, broker: str = "a"
) -> TopicQueueMappingDetail:
    return TopicQueueMappingDetail(
        topic=topic,
        total_queues=4,
        bname=broker,
        epoch=epoch,
        curr_id_map={},
        hosted_queues=hosted,
    )


@pytest.fixture
def tables(tmp_path: Path) -> Callable[[], tuple[TopicTable, StaticTopicTable]]:
    """Read the tables as a start does."""

    def load() -> tuple[TopicTable, StaticTopicTable]:
        clock, files = Clock(), Files()
        topics = TopicTable(BrokerSettings, JsonFile(tmp_path / "topics.json", files), clock=clock)
        mappings = StaticTopicTable(
            JsonFile(tmp_path / "topicQueueMapping.json", files), "a", clock=clock
        )
        topics.load()
        mappings.load(topics)
        return topics, mappings

    return load


async def test_mappings_outlive_a_restart(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    topics, mappings = tables()
    topics.put_now([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
    told: list[str] = []
    mappings.on_change(told.append)
    wanted = part("T", {0: [item(0, "a", 0), item(1, "b", 0, 5)], 1: [item(0, "a", 1)]})
    assert await mappings.replace(wanted, topics.require("T")) == 0

    _, again = tables()

    assert told == ["T"]
    assert again.get("T") == wanted
    assert again.version == mappings.version
    assert (again.is_ended("T", 0), again.is_ended("T", 1)) == (True, False)


async def test_a_start_repairs_what_a_crash_left_between_the_two_files(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    topics, mappings = tables()
    topics.put_now([TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)])
    await mappings.take(part("T", {0: [item(0, "b", 7), item(1, "a", 2, 5)]}))
    await mappings.take(part("no-topic", {0: [item(0, "a", 0)]}))

    topics, mappings = tables()

    assert topics.require("T").write_queue_nums == topics.require("T").read_queue_nums == 3
    assert "no-topic" not in mappings


async def test_topics_whose_file_was_lost_are_made_from_their_mappings(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    topics, mappings = tables()
    await mappings.take(part("T", {0: [item(0, "b", 7), item(1, "a", 2, 5)]}))
    await mappings.take(part("empty", {}))

    topics.was_lost = True
    mappings.load(topics)

    assert topics.require("T").write_queue_nums == topics.require("T").read_queue_nums == 3
    assert topics.require("empty").read_queue_nums == 0
    assert set(mappings.all()) == {"T", "empty"}


async def test_a_list_is_cut_only_in_the_part_that_has_it(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    _, mappings = tables()
    first, second = item(0, "b", 7), item(1, "a", 2, 5)
    await mappings.take(part("T", {0: [first, second], 1: [item(0, "b", 1)]}))
    old = mappings.get("T")
    assert old is not None
    notified: list[str] = []
    mappings.on_change(notified.append)

    assert await mappings.cut(old, {0: [second], 1: []})
    assert not await mappings.cut(old, {0: []})

    assert notified == ["T"]
    assert mappings.get("T") == part("T", {0: [second]})
    assert (mappings.is_ended("T", 2), mappings.is_ended("T", 7)) == (False, True)
    await mappings.forget("T")
    assert not await mappings.cut(old, {0: []})
    assert "T" not in mappings


async def test_a_slave_copies_mappings_and_refuses_those_of_another_broker(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    _, mappings = tables()
    await mappings.take(part("old", {0: [item(0, "a", 0)]}))
    version = DataVersion(counter=9, timestamp=9)

    assert await mappings.copy({"T": part("T", {0: [item(0, "a", 0)]})}, version, 0)
    assert not await mappings.copy({}, version, 0)
    with pytest.raises(StoreError, match="of broker b, expected a"):
        await mappings.copy({"U": part("U", {}, broker="b")}, DataVersion(counter=10), 0)

    assert list(mappings.all()) == ["T"]
    assert mappings.version == version


KNOWN = part("T", {0: [item(0, "a", 0), item(1, "b", 0, -1)]})


def test_an_offset_is_decided_once_and_an_end_is_set_once() -> None:
    decided = part("T", {0: [item(0, "a", 0), item(1, "b", 0, 50)]})
    ended = LogicQueueMappingItem(bname="a", logic_offset=0, end_offset=9)
    with_end = part("T", {0: [ended, item(1, "b", 0, 50)]})

    for before, after in ((KNOWN, decided), (decided, with_end)):
        assert merged(after, before, topic="T", broker="a", force=False) == after
        with pytest.raises(InvalidMappingError, match="has changed"):
            merged(before, after, topic="T", broker="a", force=False)


def test_items_may_go_from_the_front_only() -> None:
    before = part("T", {0: [item(0, "a", 0), item(1, "b", 0, 50), item(2, "c", 0, 90)]})
    cut = part("T", {0: before.hosted_queues[0][1:]}, epoch=2)  # type: ignore[index]
    holed = part("T", {0: [item(0, "a", 0), item(2, "c", 0, 90)]}, epoch=2)

    assert merged(cut, before, topic="T", broker="a", force=False) == cut
    with pytest.raises(InvalidMappingError, match="gen=1 of queue 0 is missing"):
        merged(holed, before, topic="T", broker="a", force=False)
    assert merged(holed, before, topic="T", broker="a", force=True) == holed


def test_an_item_of_a_move_that_was_given_up_binds_only_with_messages() -> None:
    """The broker was away, and another one got the queue."""
    before = part("T", {0: [item(0, "b", 7), item(1, "a", 0, -1)]})
    elsewhere = part("T", {0: [item(0, "b", 7), item(2, "c", 0, 50)]}, epoch=2)

    def merge(wanted: TopicQueueMappingDetail, *, has_messages: bool) -> TopicQueueMappingDetail:
        return merged(
            wanted, before, topic="T", broker="a", force=False, is_unused=lambda _: not has_messages
        )

    assert merge(elsewhere, has_messages=False) == elsewhere
    with pytest.raises(InvalidMappingError, match="gen=1 of queue 0 is missing"):
        merge(elsewhere, has_messages=True)
    same_epoch = part("T", elsewhere.hosted_queues or {})
    with pytest.raises(InvalidMappingError, match="The new leader is different but epoch equal"):
        merge(same_epoch, has_messages=False)


async def test_changes_of_the_log_are_made_unless_the_table_has_newer_parts(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    topics, mappings = tables()
    for name in ("newer", "changed", "deleted"):
        config = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
        topics.put_now([config])
        await mappings.take(part(name, {0: [item(0, "a", 0)]}, epoch=5))
    changed = part("changed", {0: [item(0, "a", 0), item(1, "b", 0, -1)]}, epoch=5)
    gone = TopicQueueMappingDetail(topic="deleted", bname="a", epoch=5, total_queues=0)
    unknown = TopicQueueMappingDetail(topic="unknown", bname="a", epoch=5, total_queues=0)
    notified: list[str] = []
    mappings.on_change(notified.append)

    await mappings.make([part("newer", {}, epoch=4), changed, gone, unknown], 9)

    assert set(mappings.all()) == {"newer", "changed"}
    assert mappings.get("changed") == changed
    assert notified == ["changed", "deleted"]
    assert tables()[1].changes_known == 9


async def test_a_copy_of_a_master_that_counts_no_changes_counts_those_before_it(
    tables: Callable[[], tuple[TopicTable, StaticTopicTable]],
) -> None:
    _, mappings = tables()
    await mappings.copy({}, DataVersion(counter=1, state_version=0), 4)
    assert mappings.changes_known == 4
    await mappings.copy({}, DataVersion(counter=2, state_version=6), 8)
    assert mappings.changes_known == 6
