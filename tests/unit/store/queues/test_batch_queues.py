"""A store with queues of batches, as RocketMQ 5 has them for topics with queue.type=BatchCQ."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.model.errors import StoreError
from cometmq.store import MessageStore, ReplicaError
from support.stores.small_stores import all_messages, bodies, files_of, opened, put

BATCH = {"queue.type": "BatchCQ"}
INNER_BATCH = 0xC0
SYS_FLAG_AT = 36


def write_topics(root: Path, attributes: dict[str, str], name: str = "topics.json") -> None:
    """The table as RocketMQ writes it."""
    topic = {"attributes": attributes, "order": False, "perm": 6, "topicName": "in-batches"}
    table = {"dataVersion": {"counter": 1}, "topicConfigTable": {"in-batches": topic}}
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table))


def write_queue(root: Path) -> None:
    file = root / "batchconsumequeue" / "in-batches" / "0" / f"{0:020d}"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(46 * 10))


STORES: dict[str, Callable[[Path], None]] = {
    "the table names it": lambda root: write_topics(root, BATCH),
    "only the backup of the table names it": lambda root: write_topics(
        root, BATCH, "topics.json.bak"
    ),
    "the table is lost": write_queue,
}


@pytest.mark.parametrize("case", STORES)
def test_a_store_with_such_a_topic_is_refused_and_stays_as_it_is(
    open_store: Callable[..., MessageStore], tmp_path: Path, case: str
) -> None:
    store = open_store()
    put(store)
    store.abandon()
    STORES[case](tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(StoreError) as refused:
        open_store()
    assert "topic in-batches" in str(refused.value)
    assert "queue.type=BatchCQ" in str(refused.value)
    assert "mqadmin deleteTopic" in str(refused.value)
    assert files_of(tmp_path) == before


def test_a_store_is_opened_when_the_topic_was_deleted(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    (tmp_path / "batchconsumequeue" / "in-batches" / "0").mkdir(parents=True)
    write_topics(tmp_path, {"queue.type": "SimpleCQ", "message.type": "BatchCQ"})
    assert put(open_store()).queue_offset == 0


def with_a_batch_as_one_record(root: Path) -> tuple[bytes, int]:
    """The log of a store whose second record of three is a batch; that record's offset."""
    store = opened(root)
    put(store, b"1")
    at = put(store, b"2", topic="in-batches").log_offset
    end = put(store, b"3")
    store.close()
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[at + SYS_FLAG_AT : at + SYS_FLAG_AT + 4] = INNER_BATCH.to_bytes(4)
    path.write_bytes(data)
    return bytes(data[: end.log_offset + end.size_bytes]), at


def test_queues_made_again_from_the_log_leave_out_the_batches_of_a_deleted_topic(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    with_a_batch_as_one_record(tmp_path)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / folder)
    store = open_store()
    assert bodies(store) == [b"1", b"3"]
    assert not all_messages(store, "in-batches")


def test_a_slave_does_not_copy_a_batch_that_is_one_record(tmp_path: Path) -> None:
    data, at = with_a_batch_as_one_record(tmp_path / "master")
    slave = opened(tmp_path / "slave")
    slave.replica.begin()
    with pytest.raises(ReplicaError, match=f"topic in-batches as one record for log offset {at}:"):
        slave.replica.append(data)
    assert bodies(slave) == [b"1"]
    assert slave.written_to == at
    assert slave.replica.begin() == at
