"""Replays to brokers of ours and of RocketMQ: all messages, in order, with their origin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.reading import read_archive
from cometmq.spark.pipelines.dead_letters.export import Selection, export
from cometmq.spark.pipelines.replay import ReplaySettings, replay
from cometmq.spark.pipelines.replay import pipeline as replay_module
from support.checks.waiting import wait_until
from support.spark.topic_audit import stored, unique_key_of
from support.stores.small_stores import opened, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.model.message import StoredMessage

COUNT = 600


@pytest.fixture
def archived(tmp_path: Path) -> str:
    """An archive of one topic with three queues; bodies say in which one they were, and where."""
    store = opened(tmp_path / "store", commit_log_file_bytes=64 * 1024)
    for number in range(COUNT):
        put(
            store,
            f"{number % 3}:{number // 3}".encode(),
            queue_id=number % 3,
            flag=7,
            properties={
                "TAGS": f"t{number % 2}",
                "KEYS": f"k{number} all",
                "UNIQ_KEY": f"{number:032X}",
                "own": "é",
                "DELAY": "3",
            },
        )
    store.close()
    archive(
        None,
        ArchiveSettings(
            store=str(tmp_path / "store"), to=str(tmp_path / "archive"), range_bytes=20_000
        ),
    )
    return str(tmp_path / "archive")


@pytest.fixture
def settings(archived: str, name_servers: str, topic: str) -> ReplaySettings:
    return ReplaySettings(
        archive=archived, name_servers=name_servers, topic_map=(f"orders={topic}",), job="j"
    )


def queues_of(settings: ReplaySettings, topic: str, count: int = COUNT) -> dict[Any, Any]:
    """What is in a topic once so many messages can be seen; brokers may show them a little late."""
    found: dict[Any, Any] = {}

    def are_there() -> bool:
        found.update(stored(settings.name_servers, topic))
        return sum(map(len, found.values())) >= count

    wait_until(are_there, f"{count} messages of {topic}")
    return found


def messages(settings: ReplaySettings, topic: str, count: int = COUNT) -> list[StoredMessage]:
    return [m for queue in queues_of(settings, topic, count).values() for m in queue]


def all_bodies(count: int = COUNT) -> list[str]:
    return sorted(f"{number % 3}:{number // 3}" for number in range(count))


def in_order(queues: dict[Any, list[StoredMessage]]) -> bool:
    """Whether each original queue came to one queue, in order."""
    homes: dict[str, set[Any]] = {}
    for name, found in queues.items():
        for message in found:
            homes.setdefault(message.body.decode().split(":")[0], set()).add(name)
        for origin in ("0", "1", "2"):
            numbers = [
                int(m.body.decode().split(":")[1])
                for m in found
                if m.body.decode().startswith(f"{origin}:")
            ]
            if numbers != sorted(numbers):
                return False
    return all(len(places) == 1 for places in homes.values())


def test_all_come_back_in_order(spark: SparkSession, settings: ReplaySettings, topic: str) -> None:
    result = replay(spark, settings)
    assert result.run.counts["sent"] == COUNT
    assert result.run.outputs == [topic]
    queues = queues_of(settings, topic)
    found = [message for queue in queues.values() for message in queue]
    assert sorted(message.body.decode() for message in found) == all_bodies()
    assert in_order(queues)
    assert len({unique_key_of(message) for message in found}) == COUNT


def test_a_message_keeps_what_its_sender_said(settings: ReplaySettings, topic: str) -> None:
    replay(None, settings)
    (one,) = [m for m in messages(settings, topic) if m.body == b"1:0"]
    assert (one.tags, one.keys, one.flag) == ("t1", ["k1", "all"], 7)
    assert one.properties["own"] == "é"
    assert one.properties["ORIGIN_MSG_ID"] == f"{1:032X}"
    assert one.properties["REPLAY_JOB"] == "j"
    assert "DELAY" not in one.properties


def test_queues_keep_their_numbers_if_asked(settings: ReplaySettings, topic: str) -> None:
    replay(None, replace(settings, queues="same"))
    queues = queues_of(settings, topic)
    homes = {(m.body.decode()[0], number) for (_, number), q in queues.items() for m in q}
    assert homes == {("0", 0), ("1", 1), ("2", 2)}
    assert in_order(queues)


def test_only_what_is_chosen_is_sent(settings: ReplaySettings, topic: str) -> None:
    result = replay(None, replace(settings, tags=("t1",)))
    counts = {"archived": COUNT, "sent": COUNT // 2, "resent": 0, "retries": 0}
    assert result.run.counts == counts
    found = messages(settings, topic, COUNT // 2)
    assert [m.tags for m in found] == ["t1"] * (COUNT // 2)


class KilledError(BaseException):
    """Ends a run where it stands."""


def test_a_killed_replay_goes_on_and_twins_have_equal_keys(
    settings: ReplaySettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after sending and before noting it, which is the worst moment."""
    portions = replace(settings, portion_rows=150)
    original: Callable[..., Any] = replay_module.send_share
    sent: list[int] = []

    def killed(job: Any, share: Any) -> Any:
        answer = original(job, share)
        sent.append(answer.rows)
        if share.number == 1:
            raise KilledError
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(replay_module, "send_share", killed)
        with pytest.raises(KilledError):
            replay(None, portions)
    assert 0 < sum(sent) < COUNT
    result = replay(None, replace(portions, resume="latest"))
    found = messages(settings, topic, COUNT + sent[-1])
    assert result.run.counts["sent"] == COUNT
    assert result.run.counts["resent"] >= sent[-1]
    assert len(found) == COUNT + sent[-1]  # only the portion that was under way is there twice
    twins: dict[str, set[bytes]] = {}
    for message in found:
        twins.setdefault(unique_key_of(message), set()).add(message.body)
    assert len(twins) == COUNT
    assert all(len(bodies) == 1 for bodies in twins.values())


@pytest.mark.only_on("comet")
def test_the_rate_is_kept(settings: ReplaySettings, topic: str) -> None:
    """On the way, not only at the end: the topic grows as time goes by."""
    grown: list[int] = []
    begun = time.monotonic()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            grown.append(len(messages(settings, topic, 0)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        replay(None, replace(settings, rate=300.0))
    finally:
        done.set()
        watcher.join()
    assert time.monotonic() - begun >= 2.0
    assert len(set(grown)) > 2
    assert len(messages(settings, topic)) == COUNT


def test_exported_dead_letters_come_back_where_they_were_sent_to(
    spark: SparkSession, tmp_path: Path, name_servers: str, topic: str
) -> None:
    """The letters of two groups, which have equal queues and offsets, are kept apart."""
    store = opened(tmp_path / "store")
    for number in range(60):
        put(
            store,
            f"{number}".encode(),
            topic=f"%DLQ%g{number % 2}",
            properties={"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": f"id{number}"},
        )
    store.close()
    archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=str(tmp_path / "archive")))
    letters = str(tmp_path / "letters")
    assert export(read_archive(spark, tmp_path / "archive"), Selection(), letters)["rows"] == 60
    replay(spark, ReplaySettings(archive=letters, name_servers=name_servers))
    found = messages(ReplaySettings(name_servers=name_servers), topic, 60)
    assert sorted(int(message.body) for message in found) == list(range(60))
    assert len({unique_key_of(message) for message in found}) == 60
