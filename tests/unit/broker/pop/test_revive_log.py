"""The revive topic: what a start, or a new master, reads of what was in flight."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.pop import revive_log as module
from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.pop.records import AckOf, properties_of
from cometmq.broker.pop.revive_log import REVIVE_GROUP, ReviveLog
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.role import SLAVE, Role
from cometmq.model.errors import ResponseError
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import no_open_stores, opened, put

__all__ = ["no_open_stores"]

REVIVE = "rmq_sys_REVIVE_LOG_c"


class World:
    """A store with the check points of a broker, which a restart reads again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.file = JsonFile(folder / "consumerOffset.json", Files())
        self.role = Role()
        self.restart(is_first=True)

    def restart(self, *, is_first: bool = False) -> None:
        """Kill the broker, and open the store again."""
        if not is_first:
            self.store.abandon()
        self.store = opened(self.folder, clock=self.clock, commit_log_file_bytes=1 << 20)
        self.offsets = OffsetStore(self.file, clock=self.clock)
        self.offsets.load(self.store.bounds)
        self.log = ReviveLog(
            self.store,
            self.offsets,
            clock=self.clock,
            cold_reads=ColdReads(),
            may_load=lambda: not self.role.is_slave,
            topic=REVIVE,
            queues=lambda: 2,
            broker_name="b",
        )
        asyncio.run(self.log.load())

    def persist(self) -> None:
        self.offsets.persist(lambda: None)

    def pop(self, start: int, count: int = 3, *, invisible_ms: int = 60_000) -> CheckPoint:
        """Pop messages, as a pop does."""
        while self.store.next_offset("T", 0) < start + count:
            put(self.store, b"m", topic="T")
        now_ms = self.clock.now_ms()
        offsets = range(start, start + count)
        point = CheckPoint("g", "T", 0, start, offsets, now_ms, invisible_ms, 1)
        self.log.add([point], now_ms)
        self.offsets.commit("g", "T", 0, start + count)
        return point

    def ack(self, point: CheckPoint, *offsets: int) -> None:
        bits = sum(point.bit_of(offset) for offset in offsets)
        self.log.acknowledge({point: bits}, self.clock.now_ms())

    def in_flight(self) -> list[int]:
        return sorted(
            offset
            for point in self.log.points.all()
            for offset in point.offsets_of(point.all_bits() & ~point.acked)
        )

    def committed(self) -> int | None:
        return self.offsets.committed("g", "T", 0)

    @property
    def records(self) -> int:
        return self.store.next_offset(REVIVE, 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_in_flight_outlives_the_process(world: World) -> None:
    first, second = world.pop(0), world.pop(3)
    world.ack(first, 0, 2)
    world.ack(second, 3, 4, 5)

    world.restart()

    assert world.in_flight() == [1]
    (point,) = world.log.points.all()
    assert (point.start, point.pop_ms, point.due_ms) == (0, first.pop_ms, first.due_ms)


def test_the_offset_of_a_group_is_that_of_its_last_pop_after_a_crash(world: World) -> None:
    """The file of the committed offsets is older: nothing acknowledged is delivered again."""
    world.pop(0)
    world.persist()
    world.ack(world.pop(3), 3, 4, 5)
    world.restart()
    assert world.committed() == 6
    assert world.in_flight() == [0, 1, 2]


def test_an_offset_that_was_reset_stays_reset_after_a_crash(world: World) -> None:
    """Check points that are older than the committed offsets do not move them."""
    world.pop(0)
    world.pop(3)
    world.offsets.commit("g", "T", 0, 1)
    world.persist()
    world.restart()
    assert world.committed() == 1


def test_an_ordered_acknowledgement_moves_the_offset_after_a_crash(world: World) -> None:
    world.pop(0)
    world.persist()
    now_ms = world.clock.now_ms()
    world.log.acknowledge_apart(AckOf("g", "T", 0, 3, now_ms, "b", (3,), next_offset=4), 0)
    put(world.store, b"m", topic="T")
    world.restart()
    assert world.committed() == 4
    assert world.in_flight() == [0, 1, 2]


def test_a_changed_invisible_time_outlives_the_process(world: World) -> None:
    point = world.pop(0)
    world.clock.advance(5_000)
    now_ms = world.clock.now_ms()
    renewed = CheckPoint("g", "T", 0, 1, range(1, 2), now_ms, 9_000, 1)
    world.log.replace(point, point.bit_of(1), renewed, now_ms)
    assert world.in_flight() == [0, 1, 2]

    world.restart()

    assert world.in_flight() == [0, 1, 2]
    again = world.log.points.find("g", "T", 0, 1, now_ms)
    assert again is not None
    assert (list(again.offsets_of(1)), again.due_ms) == ([1], now_ms + 9_000)


def test_records_that_count_no_more_are_not_read(world: World) -> None:
    for start in range(0, 30, 3):
        world.ack(world.pop(start), *range(start, start + 3))
    last = world.pop(30)
    asyncio.run(world.log.maintain())
    assert world.offsets.committed(REVIVE_GROUP, REVIVE, 1) == world.records - 2
    world.persist()
    world.restart()
    assert world.log._read_to[1] == world.records
    assert world.in_flight() == list(last.offsets)


def test_a_check_point_in_flight_for_long_is_stored_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start reads depends on what is in flight, not on what was acknowledged."""
    monkeypatch.setattr(module, "DEAD_RECORDS_MIN", 10)
    slow = world.pop(0)
    world.ack(slow, 1)
    for start in range(3, 60, 3):
        world.ack(world.pop(start), *range(start, start + 3))
    asyncio.run(world.log.maintain())
    handled = world.offsets.committed(REVIVE_GROUP, REVIVE, 1)
    assert handled is not None
    assert world.records - handled <= 3
    world.persist()

    world.restart()

    assert world.in_flight() == [0, 2]
    (again,) = world.log.points.all()
    assert (again.start, again.pop_ms) == (slow.start, slow.pop_ms)


def test_another_process_may_have_stored_a_check_point_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one check point, with all acknowledgements."""
    monkeypatch.setattr(module, "DEAD_RECORDS_MIN", 1)
    slow = world.pop(0)
    world.ack(slow, 0)
    world.ack(world.pop(3), 3, 4, 5)
    asyncio.run(world.log.maintain())  # stores it again; the committed offsets are lost
    world.ack(slow, 1)
    world.restart()
    assert world.in_flight() == [2]
    assert len(world.log.points) == 1


def foreign(world: World, tag: bytes, body: bytes) -> None:
    """A timer of RocketMQ delivers a record."""
    put(
        world.store,
        body,
        topic=REVIVE,
        queue_id=1,
        properties={"TAGS": tag.decode(), "UNIQ_KEY": "k"},
    )


def test_check_points_of_rocketmq_are_read_when_its_timer_delivers_them(world: World) -> None:
    world.pop(0)
    pop_ms = world.clock.now_ms() - 59_000
    ids = b'"bn":"b","c":"g","pt":%d,"q":0,"so":3,"t":"T"' % pop_ms
    foreign(world, b"ck", b'{"bm":0,"it":60000,"n":3,%b}' % ids)
    world.pop(6)
    asyncio.run(world.log.read_new())
    assert world.in_flight() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    foreign(world, b"ack", b'{"ao":4,%b}' % ids)
    asyncio.run(world.log.read_new())
    assert world.in_flight() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert world.log._read_to[1] == world.records
    # Its acknowledgements may be delivered after the end of the invisible time.
    due = world.log.points.find("g", "T", 0, 3, pop_ms)
    assert due is not None
    assert due.visible_ms > due.due_ms


def test_an_early_acknowledgement_waits_for_its_check_point(world: World) -> None:
    """The master before was a broker of RocketMQ, whose timer delays the check point."""
    pop_ms = world.clock.now_ms()
    world.log.acknowledge_apart(AckOf("g", "T", 0, 0, pop_ms, "b", (1,), 60_000), 1)
    world.restart()
    world.clock.advance(59_000)
    asyncio.run(world.log.maintain())
    foreign(
        world,
        b"ck",
        b'{"bm":0,"bn":"b","c":"g","it":60000,"n":3,"pt":%d,"q":0,"so":0,"t":"T"}' % pop_ms,
    )
    asyncio.run(world.log.read_new())
    assert world.in_flight() == [0, 2]


def test_records_of_another_broker_and_damaged_ones_are_passed_over(world: World) -> None:
    body = b'{"bm":0,"bn":"other","c":"g","it":60000,"n":3,"pt":1,"q":0,"so":0,"t":"T"}'
    foreign(world, b"ck", body)
    foreign(world, b"ck", b"{")
    foreign(world, b"note", b"")
    world.restart()
    assert world.in_flight() == []
    assert world.log._read_to[1] == 3


def test_a_broker_that_lost_its_role_forgets_what_is_in_flight(world: World) -> None:
    world.pop(0)
    world.log.unload()
    with pytest.raises(PrerequisiteError):
        world.log.require_loaded()
    assert len(world.log.points) == 0
    asyncio.run(world.log.load())
    world.log.require_loaded()
    assert world.in_flight() == [0, 1, 2]


def test_records_have_no_unique_key_and_say_when_they_were_stored() -> None:
    assert properties_of(b"ck", 5) == b"TAGS\x01ck\x02TIMER_DELIVER_MS\x015\x02"


def test_a_slave_loads_no_check_points(world: World) -> None:
    """It would revive them into its log, which gets the records of its master."""
    world.pop(0)
    world.log.unload()
    world.role.change(SLAVE, 1)
    with pytest.raises(ResponseError, match="this broker is a slave"):
        asyncio.run(world.log.load())
    assert not world.log.is_loaded


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("was_looked_at", [False, True])
def test_a_clock_that_is_set_back_leaves_nothing_invisible_for_longer(
    world: World, *, was_looked_at: bool, is_restarted: bool
) -> None:
    world.pop(0, invisible_ms=5_000)
    if was_looked_at:
        asyncio.run(world.log.follow_clock())
    world.clock.set_wall(world.clock.now_ms() - 7_200_000)
    if is_restarted:
        world.restart()
    asyncio.run(world.log.follow_clock())
    now_ms = world.clock.now_ms()
    assert world.log.points.take_due(now_ms + 4_800, 1) == []
    assert len(world.log.points.take_due(now_ms + 5_100, 1)) == 1


def test_very_many_early_acknowledgements_are_dropped_in_slices(world: World) -> None:
    """Each stands for a receipt that a peer has sent."""
    pop_ms, count = world.clock.now_ms(), 100_000
    for start in range(count):
        world.log._keep_early(AckOf("g", "T", 0, start, pop_ms, "b", (start,), 1_000), 1, start)
    world.clock.advance(60_000)

    async def turns() -> int:
        """Return how often others run meanwhile."""
        running, turns = asyncio.ensure_future(world.log.maintain()), 0
        while not running.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(turns()) > 3
    assert not world.log.has_early("g", "T", 0, count - 1, pop_ms, count - 1)


def test_an_early_acknowledgement_is_stored_once(world: World) -> None:
    ack = AckOf("g", "T", 0, 0, world.clock.now_ms(), "b", (1, 2), 60_000)
    end = world.log.acknowledge_apart(ack, 1)
    assert world.log.acknowledge_apart(ack, 1) >= end
    assert world.records == 1


def test_messages_of_a_deleted_topic_are_not_in_flight_any_more(world: World) -> None:
    """Also after a restart."""
    for start in range(0, 600, 3):
        world.pop(start)
    now_ms = world.clock.now_ms()
    world.log.add([CheckPoint("g", "other", 0, 7, range(7, 8), now_ms, 60_000, 0)], now_ms)
    asyncio.run(world.log.forget("T"))
    assert world.in_flight() == [7]
    world.restart()
    assert world.in_flight() == [7]
