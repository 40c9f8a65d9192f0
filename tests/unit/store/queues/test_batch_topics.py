"""Which topics have queues that hold batches, and queues of the other type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.model.errors import StoreError
from cometmq.store import MessageStore
from support.stores.small_stores import TOPIC, bodies, opened, put, put_as_one, unwrapped

BATCH = {"queue.type": "BatchCQ"}


def write_topics(root: Path, attributes: dict[str, str], name: str = "topics.json") -> None:
    """The table as RocketMQ writes it."""
    topic = {"attributes": attributes, "order": False, "perm": 6, "topicName": TOPIC}
    table = {"dataVersion": {"counter": 1}, "topicConfigTable": {TOPIC: topic}}
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table))


def kinds(root: Path) -> list[str]:
    """The kinds of queue files that the topic has."""
    both = ("batchconsumequeue", "consumequeue")
    return [kind for kind in both if any((root / kind).glob(f"{TOPIC}/0/*"))]


@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak"])
def test_the_table_of_topics_names_them_before_the_broker_does(
    open_store: Callable[..., MessageStore], tmp_path: Path, name: str
) -> None:
    """A start dispatches the log before the broker has read its tables."""
    write_topics(tmp_path, BATCH, name)
    store = open_store()
    put(store, b"0")
    assert kinds(tmp_path) == ["batchconsumequeue"]


def test_other_topics_keep_queues_of_single_messages(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    write_topics(tmp_path, {"queue.type": "SimpleCQ", "message.type": "BatchCQ"})
    (tmp_path / "batchconsumequeue" / TOPIC / "0").mkdir(parents=True)  # of a deleted topic
    put(open_store(), b"0")
    assert kinds(tmp_path) == ["consumequeue"]


def test_a_damaged_table_is_refused(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    write_topics(tmp_path, BATCH)
    path = tmp_path / "config" / "topics.json"
    path.write_text(json.dumps({"topicConfigTable": ["BatchCQ"]}))
    with pytest.raises(StoreError, match="has no topicConfigTable"):
        open_store()


@pytest.mark.parametrize("at", ["start", "stop"])
def test_units_of_single_messages_are_moved_when_the_topic_holds_batches(
    open_store: Callable[..., MessageStore], tmp_path: Path, at: str
) -> None:
    """RocketMQ does not open a store whose queues are not of the type of their topic."""
    store = open_store()
    for number in range(60):
        put(store, b"%d" % number)
    if at == "start":
        write_topics(tmp_path, BATCH)
    else:
        store.expect_topics(lambda _: True, lambda _: True)
    store.close()
    if at == "start":
        assert kinds(tmp_path) == ["consumequeue"]
        store = open_store()
    assert kinds(tmp_path) == ["batchconsumequeue"]
    assert not (tmp_path / "consumequeue" / TOPIC).exists()
    write_topics(tmp_path, BATCH)
    store.close()
    again = open_store()
    assert bodies(again) == [b"%d" % number for number in range(60)]
    assert put_as_one(again, b"60", b"61").queue_offset == 60


def test_a_move_that_was_interrupted_begins_anew(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    store = open_store()
    put(store, b"0")
    put(store, b"1")
    store.close()
    partly = tmp_path / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"
    partly.parent.mkdir(parents=True)
    partly.write_bytes(b"\x01" * 46 * 20)
    write_topics(tmp_path, BATCH)
    assert unwrapped(open_store()) == {0: b"0", 1: b"1"}
    assert kinds(tmp_path) == ["batchconsumequeue"]


def test_a_deleted_topic_leaves_no_queues(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    store = open_store()
    store.expect_topics(lambda _: True, lambda _: True)
    put_as_one(store, b"0", b"1")
    assert store.delete_topic(TOPIC)
    assert not (tmp_path / "batchconsumequeue" / TOPIC).exists()
    store.close()
    again = open_store()
    again.expect_topics(lambda _: False, lambda _: False)
    assert not again.has_queues(TOPIC)


def test_queues_of_a_topic_that_the_table_lacks_are_deleted(tmp_path: Path) -> None:
    """RocketMQ, which wrote the store last, has deleted the topic, but the log has its batches."""
    store = opened(tmp_path)
    put_as_one(store, b"0", b"1")
    store.close()
    (tmp_path / "checkpoint").unlink()
    again = opened(tmp_path)
    assert again.holds_batches(TOPIC)
    again.expect_topics(lambda _: False, lambda _: False)
    assert not again.holds_batches(TOPIC)
    assert not (tmp_path / "batchconsumequeue" / TOPIC).exists()
