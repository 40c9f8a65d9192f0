"""The delivery of timer messages: at their times, once each, also over crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.timers import delivery, slot_delivery
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import StoreUnavailableError
from cometmq.store.backup import restore_backup, take_backup
from cometmq.store.timers.checkpoint import Passed
from cometmq.store.timers.wheel import SLOTS
from support.checks.waiting import until
from support.stores.small_stores import put, small_settings
from support.stores.timer_stores import Timers

pytestmark = pytest.mark.usefixtures("virtual_time")

DAY_MS = 24 * 3_600_000


@pytest.fixture
async def timers(tmp_path: Path) -> AsyncIterator[Timers]:
    made = Timers(tmp_path / "store")
    made.start()
    yield made
    await made.crash()


async def test_messages_are_delivered_at_their_times_in_their_order(timers: Timers) -> None:
    for delay_ms in (4_300, 1_000, 2_999, 2_001, 65_000):
        timers.send(str(delay_ms), delay_ms)
    began_ms = timers.clock.now_ms()

    await timers.bodies_become("4300", "1000", "2999", "2001", "65000")

    found = timers.delivered()
    assert timers.bodies() == ["1000", "2001", "2999", "4300", "65000"]
    for message in found:
        late_ms = message.store_time_ms - began_ms - int(message.body)
        assert 0 <= late_ms < 100, message.body


async def test_the_delivered_record_says_what_it_waited_for(timers: Timers) -> None:
    timers.send("a", 1_500, mine="x")
    await timers.bodies_become("a")

    (message,) = timers.delivered()
    properties = message.properties
    out_ms, entered_ms, left_ms = (
        int(properties[name])
        for name in (names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS)
    )
    assert properties["mine"] == "x"
    assert (properties[names.REAL_TOPIC], properties[names.REAL_QID]) == ("T", "0")
    assert entered_ms <= out_ms < left_ms <= message.store_time_ms
    waiting = timers.store.written_units(TIMER_TOPIC, 0, 0)
    assert message.prepared_offset == next(waiting)[0]


async def test_messages_that_wait_are_counted_by_topic(timers: Timers) -> None:
    timers.send("a", 2_500)
    timers.send("b", 2_500, topic="U")
    timers.send("c", 9_500, topic="U")
    await until(lambda: timers.counts() == {"T": 1, "U": 2})

    await until(lambda: timers.counts() == {"U": 1}, timeout=60)
    await until(lambda: timers.counts() == {}, timeout=60)


async def test_a_recalled_message_is_not_delivered_and_others_of_its_slot_are(
    timers: Timers,
) -> None:
    due_ms = timers.clock.now_ms() + 3_500
    timers.send("back", 3_500)
    timers.send("stays", 3_500)
    timers.send("back", 4_500)  # at another time
    timers.recall("back", due_ms)
    timers.recall("nobody", due_ms)
    await timers.bodies_become("stays", "back")

    assert timers.bodies() == ["stays", "back"]
    assert timers.delivery.figures().recalled == 1
    await until(lambda: timers.counts() == {}, timeout=60)


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
async def test_a_restart_delivers_what_waits_once(timers: Timers, crash: bool) -> None:
    for number in range(30):
        timers.send(str(number), 1_000 + number * 300)
    await until(lambda: len(timers.bodies()) >= 7, timeout=60)
    await timers.delivery.persist()
    await until(lambda: len(timers.bodies()) >= 12, timeout=60)

    await timers.reopen(crash=crash)

    await timers.bodies_become(*map(str, range(30)))
    await until(lambda: timers.counts() == {}, timeout=60)


async def test_a_crash_in_the_middle_of_a_slot_doubles_nothing(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_delivery, "RUN_MESSAGES_MAX", 1)
    routed: list[int] = []

    def on_route(log_offset: int) -> None:
        routed.append(log_offset)
        if len(routed) == 8:
            timers.store.hold("for a test")

    timers.on_route = on_route
    for number in range(20):
        timers.send(str(number), 2_400)
    await timers.delivery.persist()
    await until(lambda: len(routed) >= 8, timeout=60)
    assert len(timers.bodies()) == 7

    await timers.reopen(crash=True)

    await timers.bodies_become(*map(str, range(20)))


async def test_what_was_delivered_since_nothing_waited_is_not_delivered_again(
    timers: Timers,
) -> None:
    timers.send("before", 1_000)
    await timers.bodies_become("before")
    await asyncio.sleep(5)
    timers.delivery.save()
    timers.send("a", 1_000)
    await timers.bodies_become("before", "a")
    for name in ("b", "c"):
        await timers.reopen(crash=True)
        timers.send(name, 2_000)
        await until(lambda name=name: name in timers.bodies(), timeout=60)  # type: ignore[misc]
        timers.delivery.save()

    assert timers.bodies() == ["before", "a", "b", "c"]


async def test_a_second_crash_after_earlier_slots_were_passed_again_doubles_nothing(
    timers: Timers,
) -> None:
    timers.send("0", 1_000)
    await timers.bodies_become("0")
    timers.delivery.save()
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 1_000
    for name, at_ms in (("a", slot_ms + 500), ("b", slot_ms + 1_200), ("c", slot_ms + 1_900)):
        timers.send(name, at_ms - timers.clock.now_ms())
    await timers.bodies_become("0", "a", "b")

    await timers.reopen(crash=True)
    await until(lambda: timers.index.passed.read_ms == slot_ms + 1_000, timeout=60)
    timers.delivery.save()  # the slot of "b" is not passed, and "b" is before the end of the log
    await timers.reopen(crash=True)

    await timers.bodies_become("0", "a", "b", "c")


async def test_more_messages_are_due_at_once_than_a_small_file_of_the_log_has_room_for(
    tmp_path: Path,
) -> None:
    timers = Timers(tmp_path / "store", commit_log_file_bytes=8_192)
    for number in range(60):
        timers.send(str(number), 1_000)
    await asyncio.sleep(2)
    timers.start()

    await timers.bodies_become(*map(str, range(60)))
    await timers.crash()


async def test_a_clock_that_was_set_back_and_is_right_again_delays_nothing(timers: Timers) -> None:
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 1_000
    timers.send("a", slot_ms + 100 - timers.clock.now_ms())
    timers.send("b", slot_ms + 900 - timers.clock.now_ms())
    await timers.bodies_become("a")
    timers.clock.ahead_ms = -3_600_000
    timers.delivery.arrived()
    await asyncio.sleep(5)
    assert timers.bodies() == ["a"]
    assert timers.delivery.has_begun(slot_ms), "a recall is refused"

    timers.clock.ahead_ms = 0
    await asyncio.sleep(2)

    assert timers.bodies() == ["a", "b"]


async def test_a_message_that_is_sent_after_the_clock_was_set_back_is_not_early(
    timers: Timers,
) -> None:
    """RocketMQ delivers it at once: it is due before the last slot that was passed."""
    timers.send("before", 1_000)
    await timers.bodies_become("before")
    timers.clock.ahead_ms = -60_000
    due_ms = timers.clock.now_ms() + 1_000
    timers.send("after", 1_000)
    await asyncio.sleep(50)
    assert timers.bodies() == ["before"]

    await timers.bodies_become("before", "after")

    assert timers.delivered()[-1].store_time_ms >= due_ms


async def test_a_broker_that_was_down_passes_every_slot(timers: Timers) -> None:
    for number in range(100):
        timers.send(str(number), 1_000 + number * 997)
    await timers.stop()
    timers.clock.ahead_ms += 40 * DAY_MS  # longer than the ring is
    timers.open()
    timers.start()
    timers.send("later", 2_000)

    await timers.bodies_become(*map(str, range(100)), "later")


async def test_the_index_is_made_again_from_the_queue_if_its_files_are_lost(
    timers: Timers,
) -> None:
    for number in range(50):
        timers.send(str(number), 1_000 + number * 400)
    await until(lambda: len(timers.bodies()) >= 20, timeout=60)
    await timers.stop()
    (timers.folder / "timerwheel").unlink()

    timers.open()
    timers.start()

    await timers.bodies_become(*map(str, range(50)))
    await until(lambda: timers.counts() == {}, timeout=60)


async def test_without_a_checkpoint_the_log_shows_what_was_delivered(timers: Timers) -> None:
    for number in range(50):
        timers.send(str(number), 1_000 + number * 400)
    await until(lambda: len(timers.bodies()) >= 20, timeout=60)
    await timers.stop()
    (timers.folder / "config" / "timercheck").unlink()

    timers.open()
    timers.start()

    await timers.bodies_become(*map(str, range(50)))


async def test_a_message_far_away_is_stored_again_on_its_way(tmp_path: Path) -> None:
    timers = Timers(tmp_path / "store", roll_slots=20)
    timers.start()
    began_ms = timers.clock.now_ms()
    timers.send("far", 95_500)
    timers.send("near", 15_000)
    timers.recall("gone", began_ms + 95_500)
    timers.send("gone", 95_500)
    await timers.bodies_become("near")
    await timers.reopen(crash=True)

    await timers.bodies_become("near", "far")

    _, message = timers.delivered()
    rolled = int(message.properties[names.TIMER_ROLL_TIMES])
    assert 3 <= rolled <= 8
    assert 95_500 <= message.store_time_ms - began_ms < 96_600
    assert timers.store.bounds(TIMER_TOPIC, 0)[1] == 4 + 3 * rolled
    await timers.crash()


async def test_finer_slots_deliver_as_well(tmp_path: Path) -> None:
    timers = Timers(tmp_path / "store", precision_ms=100)
    timers.start()
    for number in range(20):
        timers.send(str(number), 50 + number * 130)
    await timers.bodies_become(*map(str, range(20)))
    await timers.crash()


async def test_another_length_of_slots_keeps_what_waits_to_its_time(timers: Timers) -> None:
    for number in range(9):
        timers.send(str(number), 500 + number * 1_090)
    timers.send("9", 11_000 - timers.clock.now_ms() % 1_000)  # at the end of its slot
    await until(lambda: len(timers.bodies()) >= 4, timeout=60)
    await timers.stop()

    timers.precision_ms = 200
    timers.open()
    timers.start()

    await timers.bodies_become(*map(str, range(10)))
    for message in timers.delivered():
        late_ms = message.store_time_ms - int(message.properties[names.TIMER_DELIVER_MS])
        assert 0 <= late_ms < 1_100, message.body


async def test_a_message_whose_topic_is_gone_is_skipped(timers: Timers) -> None:
    timers.gone.add("U")
    timers.send("lost", 1_500, topic="U")
    timers.send("kept", 1_600)

    await timers.bodies_become("kept")

    assert timers.bodies("U") == []
    await until(lambda: timers.counts() == {}, timeout=60)


async def test_delivery_waits_while_replicas_lack_or_the_store_refuses(timers: Timers) -> None:
    timers.lack = ResponseError(1, "too few replicas")
    timers.send("a", 1_200)
    await asyncio.sleep(5)
    assert timers.bodies() == []

    timers.store.hold("for a test")
    timers.lack = None
    await asyncio.sleep(5)
    assert timers.bodies() == []
    timers.store.release()

    await timers.bodies_become("a")


async def test_what_is_no_timer_message_is_passed_over(timers: Timers) -> None:
    put(timers.store, b"odd", TIMER_TOPIC, 0, {"REAL_TOPIC": "T", "REAL_QID": "0"})
    put(timers.store, b"odd", TIMER_TOPIC, 0, {"TIMER_OUT_MS": "soon"})
    timers.send("a", 1_200)

    await timers.bodies_become("a")


async def test_a_slave_reads_the_queue_and_delivers_as_the_master(timers: Timers) -> None:
    for number in range(20):
        timers.send(str(number), 1_000 + number * 400)
    await until(lambda: len(timers.bodies()) >= 8, timeout=60)
    passed = timers.index.passed
    await until(lambda: len(timers.bodies()) >= 11, timeout=60)
    await timers.crash()
    for name in ("timerwheel", "config/timercheck", "config/timermetrics"):
        (timers.folder / name).unlink(missing_ok=True)

    timers.open()
    timers.start(delivers=False)  # a slave with the same log
    await until(lambda: timers.index.queue_offset == 20, timeout=60)
    await timers.delivery.follow(passed, False)
    count = len(timers.bodies())
    await asyncio.sleep(10)
    assert len(timers.bodies()) == count
    timers.delivery.start()

    await timers.bodies_become(*map(str, range(20)))


async def test_a_slave_delivers_what_came_when_its_slot_was_passed_at_the_master(
    timers: Timers,
) -> None:
    timers.delivery.stop()
    timers.send("a", 1_500)
    timers.send("b", 20_000)
    await until(lambda: timers.index.queue_offset == 2)
    ahead_ms = timers.clock.now_ms() // 1000 * 1000 + 9_000  # the clock of the master was ahead
    await timers.delivery.follow(Passed(ahead_ms, 0, 0), is_rocketmq=False)
    assert timers.counts() == {"T": 1}

    timers.delivery.start()

    await timers.bodies_become("a", "b")
    await timers.reopen(crash=True)
    timers.send("c", 2_000)
    await timers.bodies_become("a", "b", "c")


async def test_a_slave_of_rocketmq_that_starts_as_the_master_knows_its_copies(
    timers: Timers,
) -> None:
    timers.delivery.stop()
    for name, delay_ms in (("a", 3_000), ("b", 3_300), ("c", 4_000)):
        timers.send(name, delay_ms)
    await until(lambda: timers.index.queue_offset == 3)
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 1_000
    await timers.delivery.follow(Passed(slot_ms, 0, 1), is_rocketmq=True)
    _, second, _ = timers.store.written_units(TIMER_TOPIC, 0, 0)
    data = timers.store.record_at(*second)
    waiting = decode_properties(split_record(data or b"").properties)
    await asyncio.sleep(5)
    put(timers.store, b"b", "T", 0, waiting | {names.TIMER_DEQUEUE_MS: "1"})  # a copy of RocketMQ's
    timers.delivery.save()

    await timers.reopen()

    await timers.bodies_become("a", "b", "c")


async def test_a_master_that_was_a_slave_for_a_moment_looks_again_for_what_was_delivered(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers.send("0", 1_000)
    await timers.bodies_become("0")
    await asyncio.sleep(2)
    timers.delivery.save()
    await asyncio.sleep(3)
    timers.send("a", 1_000)
    timers.send("z", 20_000)
    await timers.bodies_become("0", "a")
    changes = 1

    class Interrupted(Slices):
        """The role changes while earlier slots are passed."""

        async def pause(self) -> None:
            nonlocal changes
            if changes and timers.delivery._slot.knows_delivered:
                changes -= 1
                timers.delivery.stop()
                timers.delivery.start()

    monkeypatch.setattr(delivery, "Slices", Interrupted)
    await timers.reopen(crash=True)

    await timers.bodies_become("0", "a", "z")
    assert changes == 0


async def test_truncated_copies_are_delivered_again(timers: Timers) -> None:
    for number in range(20):
        timers.send(str(number), 1_000 + number * 400)
    await until(lambda: len(timers.bodies()) >= 5, timeout=60)
    kept, end = len(timers.bodies()), timers.store.written_to
    await until(lambda: len(timers.bodies()) >= 12, timeout=60)
    timers.send("truncated", 2_000)
    await until(lambda: timers.index.queue_offset == 21, timeout=60)

    timers.delivery.stop()
    timers.store.truncate_log(end, timers.delivery.take_back)
    assert len(timers.bodies()) == kept
    timers.delivery.start()

    await timers.bodies_become(*map(str, range(20)))


async def test_an_acting_master_sends_to_other_brokers(timers: Timers) -> None:
    timers.delivery.stop()
    sent: list[tuple[str, bytes]] = []
    refusing = True

    async def send(topic: str, record: RecordParts) -> None:
        if refusing:
            raise StoreUnavailableError("nobody")
        sent.append((topic, record.body))

    timers.delivery.start(send)
    timers.send("a", 1_200)
    timers.send("b", 2_200)
    await asyncio.sleep(3)
    assert sent == []

    refusing = False

    await until(lambda: sent == [("T", b"a"), ("T", b"b")], timeout=60)
    assert timers.bodies() == []


@pytest.mark.parametrize("has_rolled", [False, True], ids=["not before", "before"])
async def test_what_rolls_while_a_slave_acts_is_delivered_by_the_master_that_returns(
    tmp_path: Path, has_rolled: bool
) -> None:
    timers = Timers(tmp_path / "store", roll_slots=20)
    timers.start(delivers=has_rolled)
    timers.send("far", 45_500)
    began_ms = timers.clock.now_ms()
    await until(lambda: timers.index.queue_offset == 1)
    timers.delivery.save()
    if has_rolled:
        await until(lambda: timers.index.queue_offset == 2, timeout=60)
    await timers.crash()
    await asyncio.sleep(30)

    timers.open()
    present_ms = timers.clock.now_ms() // 1000 * 1000
    timers.delivery.advance(Passed(present_ms, timers.store.written_to, 1 + has_rolled))
    timers.start()

    await timers.bodies_become("far")
    assert timers.delivered()[0].store_time_ms >= began_ms + 45_500
    await asyncio.sleep(60)
    assert timers.bodies() == ["far"]
    await timers.crash()


@pytest.mark.parametrize("delivered", [0, 1])
async def test_a_lost_unit_of_the_index_loses_and_doubles_nothing(
    timers: Timers, delivered: int
) -> None:
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 2_000
    for after_ms in (100, 500, 800):
        timers.send(str(after_ms), slot_ms + after_ms - timers.clock.now_ms())
    timers.send("later", 9_000)
    await until(lambda: timers.index.queue_offset == 4 and len(timers.bodies()) == delivered)
    with (timers.folder / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(52)
        file.write(bytes(52))

    await timers.bodies_become("100", "500", "800", "later")

    await until(lambda: timers.counts() == {}, timeout=60)
    assert timers.bodies() == ["100", "500", "800", "later"]


SLOT_FIELDS = {"time": (0, 7), "first": (8, 15), "last": (16, 23), "count": (24, 27),
               "check": (28, 31)}  # fmt: skip
UNIT_FIELDS = {
    "size": (0, 3), "previous": (4, 11), "magic": (12, 15), "written_ms": (16, 23),
    "delay_ms": (24, 27), "log_offset": (28, 35), "record_size": (36, 39), "topic_hash": (40, 43),
    "due_ms": (44, 51),
}  # fmt: skip
"""The first and the last byte of each field."""


@pytest.mark.parametrize("mask", [1, 4, 64])
@pytest.mark.parametrize(("file", "at"), [
    *(("timerwheel", at) for ends in SLOT_FIELDS.values() for at in ends),
    *(("timerlog", at) for ends in UNIT_FIELDS.values() for at in ends),
])  # fmt: skip
async def test_a_flipped_bit_of_the_index_loses_and_doubles_nothing(
    timers: Timers, file: str, at: int, mask: int
) -> None:
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 2_000
    for after_ms in (100, 500, 800):
        timers.send(str(after_ms), slot_ms + after_ms - timers.clock.now_ms())
    timers.send("later", 9_000)
    await until(lambda: timers.index.queue_offset == 4)
    timers.delivery.save()
    path = timers.folder / file
    if file == "timerwheel":
        at += slot_ms // 1000 % SLOTS * 32
    else:
        path, at = path / f"{0:020d}", at + 52
    with path.open("r+b") as opened:
        opened.seek(at)
        (before,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([before ^ mask]))

    await until(lambda: "later" in timers.bodies(), timeout=60)

    assert sorted(timers.bodies()) == ["100", "500", "800", "later"]
    times = {message.body.decode(): message.store_time_ms for message in timers.delivered()}
    assert all(times[body] >= slot_ms + int(body) for body in ("100", "500", "800"))


async def test_a_stop_passes_the_slot_that_has_begun(timers: Timers) -> None:
    slot_ms = timers.clock.now_ms() // 1000 * 1000 + 2_000
    for after_ms in (100, 500):
        timers.send(str(after_ms), slot_ms + after_ms - timers.clock.now_ms())
    await until(lambda: timers.bodies() == ["100"], timeout=60)

    await timers.delivery.end()

    assert timers.bodies() == ["100", "500"]
    assert timers.index.passed.read_ms == slot_ms + 1_000
    assert timers.counts() == {}


async def test_a_backup_has_what_waits_and_what_was_delivered(
    timers: Timers, tmp_path: Path
) -> None:
    for number in range(20):
        timers.send(str(number), 1_000 + number * 300)
    timers.send("recalled", 6_500)
    timers.recall("recalled", timers.clock.now_ms() + 6_500)
    await until(lambda: len(timers.bodies()) >= 7, timeout=60)
    timers.delivery.save()
    await until(lambda: len(timers.bodies()) >= 9, timeout=60)
    stored, again = (
        small_settings(folder, **timers.settings) for folder in (timers.folder, tmp_path / "again")
    )
    take_backup(stored, tmp_path / "backup", now_ms=timers.clock.now_ms)
    restore_backup(tmp_path / "backup", again)

    restored = Timers(tmp_path / "again")
    assert 9 <= len(restored.bodies()) < 20
    restored.start()

    await restored.bodies_become(*map(str, range(20)))
    await until(lambda: restored.counts() == {}, timeout=60)
    await restored.crash()
