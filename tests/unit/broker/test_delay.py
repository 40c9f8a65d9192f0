"""Delayed delivery: parked messages come when due, once each, also over a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.delay.delivery import RUN_MESSAGES_MAX, ScheduledDelivery
from cometmq.broker.delay.routing import schedule
from cometmq.model.delay import DelayLevels
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import decode_record, encode_host, iter_records
from unit.broker.conftest import Tables, open_store

BORN = encode_host("10.0.0.9", 51000)
STORED = encode_host("10.0.0.7", 10911)
LEVELS = "1s 5s 1h"

pytestmark = pytest.mark.usefixtures("virtual_time")


class Delayed:
    """A store, its delivery, and the clock both go by."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.clock = tables.clock
        self.levels = DelayLevels.parse(LEVELS)
        self.store = open_store(tables.config.parent / "store", tables, delay_levels=LEVELS)
        self.delivery = self._deliver()

    def _deliver(self) -> ScheduledDelivery:
        # The clock is moved by hand, so the delivery has to look at it more often.
        delivery = ScheduledDelivery(
            self.store,
            self.levels,
            self.tables.file("delayOffset"),
            clock=self.clock,
            cold_reads=ColdReads(),
            check_interval_s=0.002,
            store_busy_s=0.002,
        )
        delivery.load()
        self.store.notify_of_arrivals(
            lambda topic, queue, *_: delivery.arrived(queue) if topic == DELAY_TOPIC else None
        )
        return delivery

    def restart(self, *, persist: bool = True) -> None:
        self.delivery.stop()
        if persist:
            self.delivery.persist()
        self.delivery = self._deliver()
        self.delivery.start()

    def park(self, body: str, level: int, *, topic: str = "T", queue: int = 0) -> None:
        properties = {"DELAY": str(level), "TAGS": "t"}
        parked = schedule(self.levels, topic, queue, properties)
        assert parked is not None
        self.put(parked.topic, parked.queue_id, parked.properties, body)

    def put(self, topic: str, queue: int, properties: dict[str, str], body: str) -> None:
        self.store.append(
            topic,
            queue,
            body.encode(),
            encode_properties(properties),
            flag=7,
            sys_flag=2,
            born_time_ms=11,
            born_host=BORN,
            store_host=STORED,
            reconsume_times=3,
        )

    def bodies(self, topic: str = "T", queue: int = 0) -> list[str]:
        found = self.store.get(topic, queue, 0, 1000)
        return [m.body.decode() for part in found.slices for m in iter_records(part)]

    async def bodies_become(self, *bodies: str, topic: str = "T", queue: int = 0) -> None:
        async with asyncio.timeout(60):
            while self.bodies(topic, queue) != list(bodies):
                await asyncio.sleep(0.002)


@pytest.fixture
async def delayed(tables: Tables) -> Iterator[Delayed]:
    made = Delayed(tables)
    yield made
    made.delivery.stop()
    made.store.close()


async def settle() -> None:
    """Give the delivery some turns and looks."""
    for _ in range(10):
        await asyncio.sleep(0.001)


async def test_a_message_comes_when_its_level_has_passed_and_not_before(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1, queue=1)
    delayed.clock.advance(999)
    await settle()
    assert delayed.bodies(queue=1) == []
    delayed.clock.advance(1)
    await delayed.bodies_become("a", queue=1)


async def test_levels_do_not_wait_for_each_other(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("long", 2)
    delayed.park("short", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("short")
    delayed.clock.advance(4000)
    await delayed.bodies_become("short", "long")


async def test_the_delivered_record_keeps_what_was_parked(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("a")
    message = decode_record(delayed.store.get("T", 0, 0, 1).slices[0])
    assert message.properties == {
        "DELAY": "1",
        "TAGS": "t",
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
    }
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 0, 0)
    assert (message.born_host, message.store_host) == ("10.0.0.9:51000", "10.0.0.7:10911")
    assert (message.flag, message.sys_flag, message.born_time_ms) == (7, 2, 11)
    assert message.reconsume_times == 3
    assert message.store_time_ms == delayed.clock.now_ms()


async def test_each_message_comes_once_over_restarts(delayed: Delayed) -> None:
    delayed.delivery.start()
    for n in range(5):
        delayed.park(str(n), 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become(*"01234")
    delayed.park("5", 1)
    delayed.restart()
    delayed.clock.advance(1000)
    await delayed.bodies_become(*"012345")
    delayed.restart()
    await settle()
    assert delayed.bodies() == list("012345")


async def test_what_fell_due_while_the_broker_was_down_comes_at_its_start(delayed: Delayed) -> None:
    delayed.park("a", 1)
    delayed.clock.advance(3_600_000)
    delayed.delivery.start()
    await delayed.bodies_become("a")


async def test_offsets_that_were_not_kept_deliver_again_but_lose_nothing(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("a")
    delayed.restart(persist=False)
    await delayed.bodies_become("a", "a")


async def test_messages_wait_in_order_while_the_store_takes_none(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.park("b", 1)
    appender = delayed.store._appender
    appender.refusal = "the disk is full"
    delayed.clock.advance(1000)
    await settle()
    assert delayed.bodies() == []
    assert delayed.delivery.offsets() == {}
    assert caplog.text.count("scheduled delivery waits for the store") == 1
    appender.refusal = None
    await delayed.bodies_become("a", "b")
    assert delayed.delivery.offsets() == {1: 2}


async def test_a_message_due_later_than_its_level_allows_comes_at_once(delayed: Delayed) -> None:
    """The wall clock was set back, or the level was made shorter."""
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.clock.set_wall(delayed.clock.now_ms() - 3_600_000)
    await delayed.bodies_become("a")


@pytest.mark.parametrize(
    "place",
    [
        {"REAL_TOPIC": "../T", "REAL_QID": "0"},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T", "REAL_QID": "9999999999"},
        {"REAL_TOPIC": "T"},
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
    ],
)
async def test_a_message_without_a_real_place_does_not_stop_its_level(
    delayed: Delayed, place: dict[str, str]
) -> None:
    delayed.delivery.start()
    delayed.put(DELAY_TOPIC, 0, {"DELAY": "1"} | place, "bad")
    delayed.park("good", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("good")
    assert delayed.delivery.offsets() == {1: 2}


async def test_progress_names_the_levels_that_were_used(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.park("b", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("a", "b")
    delayed.park("c", 1)
    assert delayed.delivery.progress() == {1: (2, 3)}


async def test_an_offset_beyond_its_queue_is_moved_to_the_end(delayed: Delayed) -> None:
    delayed.park("old", 1)
    path = delayed.tables.file("delayOffset").path
    path.write_text('{"offsetTable":{1:99,2:7}}')
    delayed.restart(persist=False)
    assert delayed.delivery.offsets() == {1: 1, 2: 0}
    delayed.park("new", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("new")


async def test_many_due_messages_come_in_order(delayed: Delayed) -> None:
    count = 2 * RUN_MESSAGES_MAX + 3
    for n in range(count):
        delayed.park(str(n), 1)
    delayed.clock.advance(1000)
    delayed.delivery.start()
    async with asyncio.timeout(60):
        while delayed.store.bounds("T", 0)[1] < count:
            await asyncio.sleep(0.002)
    found: list[str] = []
    while len(found) < count:
        part = delayed.store.get("T", 0, len(found), 32)
        found += [m.body.decode() for piece in part.slices for m in iter_records(piece)]
    assert found == [str(n) for n in range(count)]


async def test_the_file_names_levels_and_offsets(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 2)
    delayed.clock.advance(5000)
    await delayed.bodies_become("a")
    delayed.delivery.persist()
    path = delayed.tables.file("delayOffset").path
    content = json.loads(path.read_bytes())
    assert content["offsetTable"] == {"2": 1}
    assert content["dataVersion"]["counter"] == 1
    path.unlink()
    delayed.delivery.persist()
    assert not path.exists()


async def test_what_counts_as_delivered_is_on_the_disk_first(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.clock.advance(1000)
    await delayed.bodies_become("a")
    assert delayed.store.flushed_to < delayed.store.written_to
    delayed.delivery.persist()
    assert delayed.store.flushed_to == delayed.store.written_to
