"""Producer sessions: who may send, where earlier attempts stored, and what a restart reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.producer_sessions import sessions as module
from cometmq.broker.producer_sessions.sessions import (
    Opened,
    Opening,
    ProducerSessions,
    SessionLimits,
)
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import PRODUCER_SESSION_TOPIC
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.record import encode_host
from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import no_open_stores, opened, put

__all__ = ["no_open_stores"]

DAY_MS = 86_400_000
LIMITS = SessionLimits(sessions_max=100, expiry_ms=7 * DAY_MS, records_ms=DAY_MS)


class World:
    """A store and its producer sessions, which a restart reads again."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.files = FaultyFiles()
        self.limits = LIMITS._replace(**changes)
        self.store: MessageStore = self._open_store()
        self.sessions = self._new_sessions()

    def _open_store(self) -> MessageStore:
        return opened(self.folder, clock=self.clock, files=self.files)

    def _new_sessions(self) -> ProducerSessions:
        return ProducerSessions(
            self.store,
            lambda: self.limits,
            clock=self.clock,
            cold_reads=ColdReads(),
            store_host=encode_host("127.0.0.1", 0),
        )

    def restart(self) -> None:
        """Kill the broker, and open the store again."""
        self.store.abandon()
        self.store = self._open_store()
        self.sessions = self._new_sessions()

    def load(self) -> None:
        asyncio.run(self.sessions.load())

    def maintain(self) -> None:
        asyncio.run(self.sessions.maintain())

    def open(self, name: str = "s", owner: str = "a", batch: int = 0, **fields: Any) -> Opened:
        values: dict[str, Any] = {
            **{"topic": "T", "epoch": 0, "brokers": ("b",), "queues": 2, "expiry_ms": 0}
        }
        return self.sessions.open(Opening(name=name, owner=owner, batch=batch, **values | fields))

    def refusal(self, name: str = "s", epoch: int = 1, owner: str = "a", topic: str = "T") -> int:
        """The code with which a send is refused; 0 if it is not."""
        try:
            self.sessions.check_send(topic, name, epoch, owner)
        except ResponseError as refused:
            return refused.code
        return 0

    def send(self, queue_id: int) -> None:
        put(self.store, b"row", topic="T", queue_id=queue_id)

    @property
    def records(self) -> int:
        return self.store.next_offset(PRODUCER_SESSION_TOPIC, 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.load()
    return made


FENCED, UNKNOWN = ResponseCode.PRODUCER_FENCED, ResponseCode.PRODUCER_SESSION_UNKNOWN


def test_the_newest_attempt_sends_and_all_others_are_refused(world: World) -> None:
    assert world.refusal() == UNKNOWN
    assert world.open(owner="a").epoch == 1
    assert world.refusal(epoch=1, owner="a") == 0
    assert world.open(owner="b").epoch == 2

    assert world.refusal(epoch=1, owner="a") == FENCED
    assert world.refusal(epoch=2, owner="a") == FENCED  # the epoch of another attempt
    assert world.refusal(epoch=2, owner="b") == 0
    assert world.refusal(epoch=3, owner="b") == UNKNOWN
    assert world.refusal(epoch=2, owner="b", topic="U") == UNKNOWN
    assert world.refusal("another", epoch=2, owner="b") == UNKNOWN
    assert world.sessions.refused == 2


def test_an_attempt_that_opens_again_gets_the_rows_since_the_first_opening(world: World) -> None:
    world.send(0)
    first = world.open(owner="a")
    assert (first.begins, first.ends) == ([1, 0], [1, 0])

    world.send(0)
    world.send(1)
    again = world.open(owner="b", brokers=("c", "b"))

    assert (again.begins, again.ends) == ([1, 0], [2, 1])
    assert again.brokers == ("b", "c")
    assert again.is_complete
    third = world.open(owner="c")
    assert (third.begins, third.ends, third.brokers) == ([1, 0], [2, 1], ("b", "c"))


def test_a_new_batch_begins_at_the_end_and_an_older_one_is_refused(world: World) -> None:
    world.open(batch=6, brokers=("gone",))
    world.send(1)

    newer = world.open(owner="b", batch=7)

    assert (newer.epoch, newer.begins, newer.ends) == (2, [0, 1], [0, 1])
    with pytest.raises(ResponseError, match="batch 6 is older than batch 7") as refused:
        world.open(owner="a", batch=6)
    assert refused.value.code == ResponseCode.PRODUCER_BATCH_OLD
    assert world.refusal(epoch=2, owner="b") == 0


def test_an_epoch_of_another_broker_is_taken_if_it_is_newer_or_ones_own(world: World) -> None:
    assert world.open(owner="a", epoch=5).epoch == 5
    assert world.open(owner="a", epoch=5).epoch == 5  # its response was lost
    for owner, epoch in (("b", 5), ("a", 4)):
        with pytest.raises(ResponseError, match="a newer attempt has epoch 5") as refused:
            world.open(owner=owner, epoch=epoch)
        assert refused.value.code == FENCED
    assert world.open(owner="b").epoch == 6
    with pytest.raises(ResponseError, match="expected at most"):
        world.open(epoch=2**62 + 1)


def test_a_broker_that_openings_lack_for_less_than_a_minute_may_have_rows(world: World) -> None:
    world.open("s0", brokers=("a", "b"))
    world.clock.advance(DAY_MS)
    world.restart()
    world.load()

    assert world.open("s1", brokers=("b",)).brokers == ("b", "a"), "no batch was opened at both"
    world.clock.advance(59_999)
    assert world.open("s2", brokers=("b",)).brokers == ("b", "a")
    assert world.open("s2", topic="U", brokers=("b",)).brokers == ("b",)
    world.clock.advance(1)
    assert world.open("s1", brokers=("b",)).brokers == ("b",), "it is gone"
    assert world.open("s2", brokers=("a", "b"), batch=1).brokers == ("a", "b")
    assert world.open("s1", brokers=("b",), batch=1).brokers == ("b", "a")


def test_a_restart_reads_the_sessions_from_the_log(world: World) -> None:
    world.open("one", owner="a")
    world.send(0)
    world.open("two", owner="x", batch=3)
    world.open("one", owner="b", brokers=("b", "c"))

    world.restart()

    with pytest.raises(PrerequisiteError) as needed:
        world.refusal("one")
    asyncio.run(_run(needed.value))
    assert world.refusal("one", epoch=1, owner="a") == FENCED
    assert world.refusal("one", epoch=2, owner="b") == 0
    assert world.refusal("two", epoch=1, owner="x") == 0
    again = world.open("one", owner="c")
    assert (again.epoch, again.begins, again.ends) == (3, [0, 0], [1, 0])
    assert again.brokers == ("b", "c")
    assert len(world.sessions) == 2


async def _run(needed: PrerequisiteError) -> None:
    await needed.run()


def test_a_truncated_opening_is_forgotten(world: World) -> None:
    world.open(owner="a")
    end = world.store.written_to
    world.open(owner="b")

    world.sessions.unload()
    world.store.truncate_log(end)
    world.load()

    assert world.refusal(epoch=1, owner="a") == 0
    assert world.refusal(epoch=2, owner="b") == UNKNOWN


def test_a_change_of_the_role_ends_a_load(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(module.Slices, "pause", lambda slices: asyncio.sleep(0))
    for number in range(20):
        world.open(f"s{number}")
    world.sessions.unload()

    async def load() -> None:
        loading = asyncio.create_task(world.sessions.load())
        await asyncio.sleep(0)
        world.sessions.unload()
        with pytest.raises(StoreError, match="the role of this broker has changed"):
            await loading

    asyncio.run(load())
    with pytest.raises(PrerequisiteError):
        world.refusal()
    world.load()
    assert len(world.sessions) == 20


def test_an_opening_that_the_disk_refuses_changes_nothing(world: World) -> None:
    world.open(owner="a")
    world.store.hold("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        world.open(owner="b")

    assert world.refusal(epoch=1, owner="a") == 0


def test_rows_that_were_deleted_are_reported(world: World) -> None:
    world.open(owner="a")
    while world.store.written_to < 3 * 16 * 1024:
        world.send(0)
    world.store.write_out()
    assert world.store.clean(2**45, expired_at_any_hour=True) > 0

    assert not world.open(owner="b").is_complete


def test_the_number_of_sessions_is_limited_for_all_and_for_one_topic(tmp_path: Path) -> None:
    world = World(tmp_path, sessions_max=8)
    world.load()
    world.open("s1")
    world.open("s2")
    with pytest.raises(ResponseError, match="2 of topic T: expected less than 8, and less than 2"):
        world.open("s3")
    assert world.open("s2", owner="b").epoch == 2
    assert world.sessions.usage() == (2, 8, "T", 2, 2)
    assert world.sessions.usage().ratio == 1.0
    for number in range(6):
        world.open("s", topic=f"U{number}")
    with pytest.raises(ResponseError, match="8 producer sessions") as refused:
        world.open("s", topic="V")
    assert refused.value.code == ResponseCode.PRODUCER_SESSIONS_FULL
    assert world.sessions.refused_full == 2
    assert World(tmp_path / "empty", sessions_max=8).sessions.usage() == (0, 8, "", 0, 2)


def test_sessions_that_are_not_used_expire_also_over_a_restart(world: World) -> None:
    world.open("idle")
    world.open("used")
    world.open("short", expiry_ms=DAY_MS)
    world.clock.advance(DAY_MS + 1)
    world.maintain()
    assert world.refusal("short") == UNKNOWN
    world.clock.advance(6 * DAY_MS - 1)
    assert world.refusal("used") == 0
    world.clock.advance(1)

    world.maintain()

    assert world.refusal("idle") == UNKNOWN
    assert world.refusal("used") == 0
    assert len(world.sessions) == 1
    world.restart()
    world.load()
    assert len(world.sessions) == 1


def test_old_records_are_stored_again_before_they_are_deleted(world: World) -> None:
    world.open("old")
    world.clock.advance(2 * DAY_MS)
    world.open("new")

    world.maintain()
    world.maintain()

    assert world.records == 3
    world.restart()
    world.load()
    assert world.refusal("old") == 0
    assert world.refusal("new") == 0


def test_a_session_in_use_is_known_after_a_restart_however_old_its_record_is(world: World) -> None:
    world.open("long", expiry_ms=DAY_MS // 2)
    for _ in range(12):
        world.clock.advance(DAY_MS // 12)
        assert world.refusal("long") == 0
        world.maintain()

    assert world.records <= 12
    world.restart()
    world.load()
    assert world.refusal("long") == 0


def test_records_survive_the_forced_deletion_of_log_files(world: World) -> None:
    world.open("old")
    while world.store.written_to < 6 * 16 * 1024:
        world.send(0)
    world.maintain()
    assert world.records == 2, "stored again before a full disk deletes the older half"
    world.maintain()
    assert world.records == 2
    while world.store.written_to < 8 * 16 * 1024:
        world.send(0)
    world.store.write_out()
    assert world.store.clean(2**45, expired_at_any_hour=True) > 0

    world.maintain()

    assert world.records == 3, "stored again after the deletion"
    world.restart()
    world.load()
    assert world.refusal("old") == 0


def test_maintenance_ends_if_the_log_keeps_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, records_ms=0)
    world.load()
    for number in range(50):
        world.open(f"s{number}", topic=f"T{number}")
    now_ms = world.clock.now_ms

    def later() -> int:
        world.clock.advance(1)
        return now_ms()

    world.clock.now_ms = later  # type: ignore[method-assign]
    world.maintain()

    assert world.records <= 100


def test_attempts_cannot_add_brokers_without_end(world: World) -> None:
    world.open(brokers=tuple(f"broker-{number}" for number in range(1_000)))
    with pytest.raises(ResponseError, match="2000 brokers with 33670 characters, expected at most"):
        world.open(brokers=tuple(f"another-{number}" * 2 for number in range(1_000)))
    assert world.records == 1
    assert world.refusal(epoch=1) == 0


def test_the_texts_of_all_sessions_are_limited(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "TEXT_CHARS_MAX", 1_000)
    for number in range(10):
        world.open(f"s{number}", brokers=("b" * 100,))
    with pytest.raises(ResponseError) as refused:
        world.open("s10")
    assert refused.value.code == ResponseCode.PRODUCER_SESSIONS_FULL
    world.open("s3", brokers=("b",), batch=1)
    world.open("s4", brokers=("b",), batch=1)
    world.restart()
    world.load()
    world.open("s10")


def test_records_that_count_no_more_are_few(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "DEAD_RECORDS_MIN", 10)
    world.open("quiet")
    for _ in range(100):
        world.open("busy")

    world.maintain()
    read = []
    written_record_at = MessageStore.written_record_at

    def counted(store: MessageStore, log_offset: int, size: int) -> bytes | None:
        read.append(log_offset)
        return written_record_at(store, log_offset, size)

    monkeypatch.setattr(MessageStore, "written_record_at", counted)
    world.restart()
    world.load()

    assert len(read) <= 3 + 14
    assert world.refusal("quiet") == 0
    assert world.refusal("busy", epoch=100) == 0


def test_a_damaged_record_is_passed_over(world: World, caplog: Any) -> None:
    world.open("one")
    world.open("two")
    (log,) = world.store.paths.commit_log.iterdir()
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(data.index(b'"name":"one"') + 8)
        file.write(b"X")
    world.sessions.unload()

    world.load()

    assert "passed over damaged records of producer sessions count=1" in caplog.text
    assert world.refusal("two") == 0
    assert world.refusal("one") == UNKNOWN
