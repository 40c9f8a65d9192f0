"""Committed offsets: the table, its file, and its copies on slaves."""

import json
import sys
import threading
from pathlib import Path

import pytest

from cometmq.broker.offsets.offset_store import (
    COMMITS_PER_VERSION,
    REVIVE_END_GROUP,
    OffsetStore,
)
from cometmq.model.errors import ProtocolError, StoreError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.store import MessageStore
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import TOPIC, opened, put
from unit.broker.conftest import Tables


@pytest.fixture
def offsets(tables: Tables) -> OffsetStore:
    return tables.offsets


def flush_nothing() -> None:
    """The log of tests without messages is on disk."""


def endless(topic: str, queue_id: int) -> tuple[int, int]:
    """Bounds of queues that contain every offset."""
    return 0, 2**63 - 1


def reopened(tables: Tables) -> OffsetStore:
    again = OffsetStore(tables.file("consumerOffset"), clock=tables.clock)
    again.load(endless)
    return again


def test_what_was_committed_comes_back_by_group_topic_and_queue(offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 6)
    offsets.commit("h", "T", 0, 7)
    assert offsets.committed("g", "T", 0) == 5
    assert offsets.committed("g", "T", 1) == 6
    assert offsets.committed("h", "T", 0) == 7
    assert offsets.committed("g", "T", 2) is None
    assert offsets.committed("g", "U", 0) is None


def test_a_smaller_offset_replaces_a_greater_one(offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 0, 2)
    assert offsets.committed("g", "T", 0) == 2


def test_a_pending_reset_is_taken_once(offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.reset("g", "T", 0, 1)
    assert offsets.is_reset_pending("g", "T", 0)
    assert not offsets.is_reset_pending("g", "T", 1)
    assert offsets.committed("g", "T", 0) == 1
    assert offsets.take_reset("g", "T", 1) is None
    assert offsets.take_reset("g", "T", 0) == 1
    assert offsets.take_reset("g", "T", 0) is None
    assert not offsets.has_resets
    assert offsets.committed("g", "T", 0) == 1


def test_cloning_copies_and_does_not_share(offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.clone("g", "h", "T")
    offsets.commit("g", "T", 0, 9)
    assert offsets.committed("h", "T", 0) == 5


def test_groups_and_topics_find_each_other(offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "%RETRY%g", 0, 1)
    offsets.commit("h", "T", 0, 5)
    assert offsets.topics_of("g") == ["T", "%RETRY%g"]
    assert offsets.groups_of("T") == ["g", "h"]


async def test_a_forgotten_group_or_topic_leaves_nothing(offsets: OffsetStore) -> None:
    for group in ("g", "h"):
        for topic in ("T", "U"):
            offsets.reset(group, topic, 0, 5)
            offsets.note_pulled(group, topic, 0, 6)
    await offsets.forget_group("g")
    await offsets.forget_topic("T")
    assert offsets.table() == {"U@h": {0: 5}}
    assert offsets.pulled("g", "U", 0) is None
    assert offsets.take_reset("h", "T", 0) is None
    assert offsets.take_reset("h", "U", 0) == 5


def test_offsets_outlive_a_restart(tables: Tables, offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 12, 2**62)
    offsets.persist(flush_nothing)
    again = reopened(tables)
    assert again.table() == {"T@g": {0: 5, 12: 2**62}}
    assert again.version == offsets.version


def test_a_copy_counts_no_pop_that_its_offsets_lack(offsets: OffsetStore) -> None:
    """A thread copies them for the file while pops commit both."""
    groups, ends = 300, REVIVE_END_GROUP
    for number in range(groups):
        offsets.commit(f"g{number}", "T", 0, 0)
    offsets.commit(ends, "R", 0, 0)
    tables: list[dict[str, dict[int, int]]] = []

    def copy() -> None:
        while len(tables) < 100:
            tables.append(offsets.table())

    copying = threading.Thread(target=copy)
    interval_s, popped = sys.getswitchinterval(), 0
    sys.setswitchinterval(1e-6)
    try:
        copying.start()
        while copying.is_alive():
            popped += 1
            offsets.commit("g0", "T", 0, popped)
            offsets.commit(ends, "R", 0, popped)
    finally:
        sys.setswitchinterval(interval_s)
        copying.join()
    assert all(table[f"R@{ends}"][0] <= table["T@g0"][0] for table in tables)
    assert len(tables[0]) == groups + 1
    assert next(iter(tables[0])) == f"R@{ends}"


def test_nothing_is_written_when_nothing_has_changed(tables: Tables, offsets: OffsetStore) -> None:
    path = tables.file("consumerOffset").path
    offsets.persist(flush_nothing)
    assert not path.exists()
    offsets.commit("g", "T", 0, 5)
    offsets.persist(flush_nothing)
    path.unlink()
    offsets.persist(flush_nothing)
    assert not path.exists()


def test_a_failed_write_is_tried_again(tables: Tables, offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    target = tables.config / "consumerOffset.json.tmp"
    target.mkdir()
    with pytest.raises(StoreError):
        offsets.persist(flush_nothing)
    target.rmdir()
    offsets.persist(flush_nothing)
    assert reopened(tables).committed("g", "T", 0) == 5


def test_the_file_has_the_members_of_the_original(tables: Tables, offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.persist(flush_nothing)
    content = json.loads(tables.file("consumerOffset").path.read_bytes())
    assert content["offsetTable"] == {"T@g": {"0": 5}}
    assert content["groupTopicMap"] == {"g": ["T"]}
    assert content["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}


def test_files_of_both_lines_are_read(tables: Tables) -> None:
    path = tables.file("consumerOffset").path
    path.write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:5,1:7\n\t\t}\n\t}\n}')
    assert reopened(tables).table() == {"T@g": {0: 5, 1: 7}}


@pytest.mark.parametrize("table", ['{"T":{0:5}}', '{"T@g":{0:-5}}', '{"T@g":{"x":5}}', '{"T@g":7}'])
def test_a_table_that_makes_no_sense_is_refused(tables: Tables, table: str) -> None:
    tables.file("consumerOffset").path.write_text(f'{{"offsetTable":{table}}}')
    with pytest.raises(StoreError, match="consumerOffset"):
        reopened(tables)


def test_the_version_counts_every_few_hundred_commits(offsets: OffsetStore) -> None:
    before = offsets.version.counter
    for n in range(COMMITS_PER_VERSION):
        offsets.commit("g", "T", 0, n)
    assert offsets.version.counter == before + 1


# --- power cuts ---------------------------------------------------------------------------------


def lose_the_unsynced(store: MessageStore, files: FaultyFiles) -> None:
    store.abandon()
    files.crash(lambda path, number: False)


def test_messages_that_count_as_consumed_survive_a_power_cut(
    tmp_path: Path, tables: Tables, offsets: OffsetStore
) -> None:
    files = FaultyFiles()
    store = opened(tmp_path / "store", files=files)
    for _ in range(5):
        put(store, b"consumed and never flushed")
    offsets.commit("g", TOPIC, 0, 5)
    offsets.persist(store.flush)
    lose_the_unsynced(store, files)

    store = opened(tmp_path / "store", files=files)
    assert store.bounds(TOPIC, 0) == (0, 5)
    again = OffsetStore(tables.file("consumerOffset"), clock=tables.clock)
    again.load(store.bounds)
    assert again.committed("g", TOPIC, 0) == 5
    store.close()


def test_an_offset_beyond_the_recovered_queue_goes_back_to_its_end(
    tmp_path: Path, tables: Tables, offsets: OffsetStore
) -> None:
    files = FaultyFiles()
    store = opened(tmp_path / "store", files=files)
    put(store, b"kept")
    store.flush()
    put(store, b"lost")
    offsets.commit("g", TOPIC, 0, 2)
    offsets.commit("g", "T", 7, 3)
    offsets.commit("h", TOPIC, 0, 1)
    offsets.persist(flush_nothing)  # as RocketMQ does
    lose_the_unsynced(store, files)

    store = opened(tmp_path / "store", files=files)
    again = OffsetStore(tables.file("consumerOffset"), clock=tables.clock)
    again.load(store.bounds)
    assert again.table() == {f"{TOPIC}@g": {0: 1}, "T@g": {7: 0}, f"{TOPIC}@h": {0: 1}}
    again.persist(store.flush)
    assert reopened(tables).table() == again.table(), "the correction must be on disk, too"
    store.close()


# --- copies of the master's offsets -------------------------------------------------------------


async def test_copied_offsets_are_merged_and_stored(tables: Tables, offsets: OffsetStore) -> None:
    offsets.commit("g", "T", 0, 9)
    offsets.commit("g", "T", 1, 9)
    offsets.commit("own", "T", 0, 3)
    version = DataVersion(timestamp=7, counter=70)
    await offsets.copy({"T@g": {0: 5, 2: 6}, "U@h": {0: 1}}, version)
    assert offsets.of("g", "T") == {0: 5, 1: 9, 2: 6}
    assert offsets.of("own", "T") == {0: 3}
    assert offsets.topics_of("h") == ["U"]
    assert offsets.version == version
    offsets.persist(flush_nothing)
    assert reopened(tables).of("g", "T") == {0: 5, 1: 9, 2: 6}
    assert reopened(tables).version == version


async def test_a_copy_without_news_writes_nothing(tables: Tables, offsets: OffsetStore) -> None:
    await offsets.copy({"T@g": {0: 5}}, None)
    offsets.persist(flush_nothing)
    file = tables.config / "consumerOffset.json"
    file.unlink()
    await offsets.copy({"T@g": {0: 5}}, None)
    offsets.persist(flush_nothing)
    assert not file.exists()


@pytest.mark.parametrize("table", [{"T": {0: 1}}, {"T@g": {0: -1}}, {"T@g": {-1: 1}}])
async def test_a_copy_with_impossible_offsets_is_refused(
    offsets: OffsetStore, table: dict[str, dict[int, int]]
) -> None:
    with pytest.raises(ProtocolError, match="expected topic@group and offsets of 0 or more"):
        await offsets.copy(table, None)
    assert offsets.keys() == []


async def test_offsets_of_a_new_master_are_moved_back_to_the_ends_of_its_queues(
    offsets: OffsetStore,
) -> None:
    await offsets.copy({"T@g": {0: 5, 1: 2}}, None)
    await offsets.correct(lambda topic, queue_id: 3)
    assert offsets.of("g", "T") == {0: 3, 1: 2}


async def test_only_larger_offsets_of_a_slave_are_taken_back(
    tables: Tables, offsets: OffsetStore
) -> None:
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 5)
    table = {"T@g": {0: 7, 1: 3, 2: 9}, "U@h": {0: 0}, "V@h": {0: 4}}
    ends = {"T": 8, "U": 8, "V": 0}  # the topic V was lost with the end of the log
    assert await offsets.advance(table, lambda topic, queue_id: (0, ends[topic])) == 2
    assert offsets.of("g", "T") == {0: 7, 1: 5, 2: 8}
    assert offsets.topics_of("h") == []
    offsets.persist(flush_nothing)
    assert reopened(tables).of("g", "T") == {0: 7, 1: 5, 2: 8}


async def test_impossible_offsets_of_a_slave_are_refused(offsets: OffsetStore) -> None:
    with pytest.raises(ProtocolError, match="expected topic@group and offsets of 0 or more"):
        await offsets.advance({"T@g": {0: -1}}, lambda topic, queue_id: (0, 9))
    assert offsets.keys() == []


async def test_a_copy_ends_when_its_master_is_none_any_more(offsets: OffsetStore) -> None:
    """An election comes between two slices; what comes later would not be corrected.

    What counts the pops of all groups comes last.
    """
    is_current = iter([True, True, False])
    table = {f"R@{REVIVE_END_GROUP}": {0: 5}}
    table |= {f"T@g{number}": {0: 5} for number in range(10)}
    version = offsets.version
    await offsets.copy(table, DataVersion(counter=99), lambda: next(is_current))
    assert sorted(offsets.keys()) == ["T@g8", "T@g9"]
    assert offsets.version == version
