"""Delivery of scheduled messages: when they are due, once each, also over a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.delay import delivered, delivery
from cometmq.broker.delay.delivery import RUN_MESSAGES_MAX, UNCONFIRMED_MAX, ScheduledDelivery
from cometmq.broker.delay.routing import schedule
from cometmq.broker.topics.table import TopicTable
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import DELAY_TOPIC, OP_HALF_TOPIC, TopicConfig
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import (
    RecordParts,
    decode_record,
    encode_host,
    iter_records,
    split_record,
)
from cometmq.system.failure_log import LINES_MAX
from support.checks.waiting import until
from support.stores.small_stores import put
from unit.broker.conftest import Tables, open_store

BORN = encode_host("10.0.0.9", 51000)
STORED = encode_host("10.0.0.7", 10911)
LEVELS = "1s 5s 1h"

pytestmark = pytest.mark.usefixtures("virtual_time")


class Delayed:
    """A store, its delivery, and the clock both go by."""

    confirms = False

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.clock = tables.clock
        self.levels = DelayLevels.parse(LEVELS)
        self.queue_for: Callable[[str, int, int], int | None] = lambda *target: (
            self.tables.topics.queue_for(*target)
        )
        tables.topic("T", queues=2)
        self.store = open_store(
            tables.config.parent / "store", tables, delay_levels=LEVELS, confirms=self.confirms
        )
        self.lack: ResponseError | None = None
        self.delivery = self._deliver()

    def _deliver(self) -> ScheduledDelivery:
        # The clock is moved by hand, so the delivery has to look at it more often.
        delivery = ScheduledDelivery(
            self.store,
            self.levels,
            self.tables.file("delayOffset"),
            queue_for=lambda *target: self.queue_for(*target),
            clock=self.clock,
            cold_reads=ColdReads(),
            refusal=lambda: self.lack,
            check_interval_s=0.002,
            store_busy_s=0.002,
        )
        delivery.load()
        self.store.notify_of_arrivals(
            lambda topic, queue, *_: delivery.arrived(queue) if topic == DELAY_TOPIC else None
        )
        return delivery

    def restart(self, *, persist: bool = True, levels: str | None = None) -> None:
        self.delivery.stop()
        if persist:
            self.delivery.persist()
        if levels is not None:
            self.levels = DelayLevels.parse(levels)
        self.delivery = self._deliver()
        self.delivery.start()

    def park(self, body: str, level: int, *, topic: str = "T", queue: int = 0, **more: str) -> None:
        properties = {"DELAY": str(level), "TAGS": "t", **more}
        parked = schedule(self.levels, topic, queue, properties)
        assert parked is not None
        self.put(parked.topic, parked.queue_id, parked.properties, body)

    def put(self, topic: str, queue: int, properties: dict[str, str], body: str) -> None:
        facts = {"flag": 7, "sys_flag": 2, "born_time_ms": 11, "reconsume_times": 3}
        hosts = {"born_host": BORN, "store_host": STORED}
        put(self.store, body.encode(), topic, queue, properties, **facts, **hosts)

    def lose_topics(self) -> None:
        for name in ("topics.json", "topics.json.bak"):
            (self.tables.config / name).unlink(missing_ok=True)

    def load_topics(self) -> None:
        """Load the table of topics as a start does."""
        tables = self.tables
        tables.topics = TopicTable(
            lambda: tables.settings, tables.file("topics"), clock=tables.clock
        )
        tables.topics.load(self.store)

    def bodies(self, topic: str = "T", queue: int = 0) -> list[str]:
        found = self.store.get(topic, queue, 0, 1000)
        return [m.body.decode() for part in found.slices for m in iter_records(part)]

    async def deliver_one_by_one(self, *bodies: str) -> None:
        """Deliver messages of level 1, and store the offsets once before the last of them."""
        self.delivery.start()
        for body in bodies:
            if body == bodies[-1]:
                self.delivery.persist()
            self.park(body, 1)
            await self.bodies_become(*bodies[: bodies.index(body) + 1], after_ms=1000)

    async def bodies_become(
        self, *bodies: str, after_ms: int = 0, topic: str = "T", queue: int = 0
    ) -> None:
        self.clock.advance(after_ms)
        await until(lambda: self.bodies(topic, queue) == list(bodies), timeout=60)


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
    await delayed.bodies_become("a", queue=1, after_ms=1)


async def test_nothing_is_delivered_while_too_few_replicas_would_have_it(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.lack = ResponseError(1, "in-sync replicas not enough")
    delayed.delivery.start()
    for body in ("a", "b"):
        delayed.park(body, 1)
    delayed.clock.advance(1000)
    await settle()
    assert delayed.bodies() == []
    assert delayed.delivery.offsets().get(1, 0) == 0
    assert "scheduled delivery waits for the store" in caplog.text
    assert "in-sync replicas not enough" in caplog.text
    delayed.lack = None
    await delayed.bodies_become("a", "b")


async def test_levels_do_not_wait_for_each_other(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("long", 2)
    delayed.park("short", 1)
    await delayed.bodies_become("short", after_ms=1000)
    await delayed.bodies_become("short", "long", after_ms=4000)


async def test_the_delivered_record_keeps_what_was_parked(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    await delayed.bodies_become("a", after_ms=1000)
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
    await delayed.bodies_become(*"01234", after_ms=1000)
    delayed.park("5", 1)
    delayed.restart()
    await delayed.bodies_become(*"012345", after_ms=1000)
    delayed.restart()
    await settle()
    assert delayed.bodies() == list("012345")


async def test_what_fell_due_while_the_broker_was_down_comes_at_its_start(delayed: Delayed) -> None:
    delayed.park("a", 1)
    delayed.clock.advance(3_600_000)
    delayed.delivery.start()
    await delayed.bodies_become("a")


async def test_a_message_whose_extension_unit_is_lost_is_not_early(delayed: Delayed) -> None:
    folder = delayed.tables.config.parent / "store"

    def open_again() -> None:
        delayed.store = open_store(
            folder, delayed.tables, delay_levels=LEVELS, consume_queue_ext_enabled=True
        )
        delayed.delivery = delayed._deliver()

    delayed.store.close()
    open_again()
    delayed.park("a", 2)
    delayed.store.close()
    shutil.rmtree(folder / "consumequeue_ext")
    open_again()
    delayed.delivery.start()

    await settle()
    assert delayed.bodies() == []
    delayed.clock.advance(4_999)
    await settle()
    assert delayed.bodies() == []
    await delayed.bodies_become("a", after_ms=1)


async def test_without_a_file_all_of_the_log_shows_what_was_delivered(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    await delayed.bodies_become("a", after_ms=1000)
    delayed.park("b", 1)
    for _ in range(2):
        delayed.restart(persist=False)
        assert delayed.delivery.offsets() == {1: 1}
    await delayed.bodies_become("a", "b", after_ms=1000)


async def test_what_was_delivered_before_a_crash_is_recognized_in_the_log(delayed: Delayed) -> None:
    await delayed.deliver_one_by_one("a", "b")
    delayed.park("c", 1)
    delayed.park("other", 2)
    delayed.restart(persist=False)
    assert delayed.delivery.offsets() == {1: 2}
    await delayed.bodies_become("a", "b", "c", "other", after_ms=5000)
    delayed.restart(persist=False)  # of which the stored offsets know neither
    await settle()
    assert delayed.bodies() == ["a", "b", "c", "other"]
    assert delayed.delivery.offsets() == {1: 3, 2: 1}


async def test_equal_messages_are_counted_one_by_one(delayed: Delayed) -> None:
    delayed.delivery.start()
    for _ in range(4):
        delayed.park("same", 1)
    delayed.delivery.persist()
    delayed.delivery.stop()
    delayed.clock.advance(1000)
    for at in range(3):
        log_offset, size, _ = delayed.store.consume_queue_units(DELAY_TOPIC, 0, at, 1)[0]
        delayed.delivery._deliver(1, at, log_offset, size)
    delayed.restart(persist=False)
    await delayed.bodies_become(*["same"] * 4)
    await settle()
    assert delayed.bodies() == ["same"] * 4


async def test_a_copy_by_a_broker_of_rocketmq_is_recognized(delayed: Delayed) -> None:
    """It writes the properties in another order."""
    delayed.park("a", 1)
    delayed.delivery.persist()
    log_offset, size, _ = delayed.store.consume_queue_units(DELAY_TOPIC, 0, 0, 1)[0]
    data = delayed.store.record_at(log_offset, size)
    assert data is not None
    properties = decode_properties(split_record(data).properties)
    delayed.put("T", 0, dict(reversed(properties.items())), "a")
    delayed.put("T", 1, {}, "another message")
    delayed.restart(persist=False)
    assert delayed.delivery.offsets() == {1: 1}


async def test_messages_that_were_skipped_before_a_crash_are_passed_over(delayed: Delayed) -> None:
    delayed.delivery.start()
    for _ in range(5):
        delayed.put(DELAY_TOPIC, 0, {"DELAY": "1"}, "bad")
    delayed.park("good", 1)
    delayed.delivery.persist()
    await delayed.bodies_become("good", after_ms=1000)
    delayed.restart(persist=False)
    assert delayed.delivery.offsets() == {1: 6}


async def test_a_start_does_not_read_more_of_the_log_than_it_may(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await delayed.deliver_one_by_one("a", "b")
    monkeypatch.setattr(delivered, "SCAN_BYTES_MAX", 100)
    delayed.restart(persist=False)
    assert "messages may be delivered again" in caplog.text
    await delayed.bodies_become("a", "b", "b")


async def test_the_end_of_the_log_is_stored_again_when_it_has_grown(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = delayed.tables.file("delayOffset").path
    delayed.delivery.start()
    delayed.delivery.persist()
    assert not path.exists()
    delayed.park("a", 3)
    delayed.delivery.persist()
    first = json.loads(path.read_bytes())
    assert first["logOffset"] == 0
    delayed.put("T", 0, {}, "more")
    await settle()
    delayed.delivery.persist()
    assert json.loads(path.read_bytes()) == first
    monkeypatch.setattr(delivery, "UNRECORDED_BYTES_MAX", 100)
    delayed.delivery.persist()
    assert json.loads(path.read_bytes()) == first | {"logOffset": delayed.store.written_to}


async def test_offsets_stored_by_rocketmq_have_no_end_of_the_log(delayed: Delayed) -> None:
    await delayed.deliver_one_by_one("a", "b")
    path = delayed.tables.file("delayOffset").path
    path.write_text('{"offsetTable":{1:1}}')
    delayed.restart(persist=False)
    await delayed.bodies_become("a", "b", "b")


@pytest.mark.parametrize("text", ["-1", "1.5", "true", '"7"'])
async def test_an_end_of_the_log_that_is_no_offset_is_refused(delayed: Delayed, text: str) -> None:
    path = delayed.tables.file("delayOffset").path
    path.write_text('{"offsetTable":{1:0},"logOffset":%s}' % text)
    with pytest.raises(StoreError, match=r"logOffset .* expected an offset"):
        delayed.delivery.load()


@pytest.mark.parametrize("log_offset", [1, 10**12])
async def test_an_end_of_the_log_where_no_record_begins_recognizes_nothing(
    delayed: Delayed, log_offset: int
) -> None:
    await delayed.deliver_one_by_one("a", "b")
    path = delayed.tables.file("delayOffset").path
    path.write_text('{"offsetTable":{1:1},"logOffset":%d}' % log_offset)
    delayed.restart(persist=False)
    await delayed.bodies_become("a", "b", "b")


async def test_messages_wait_in_order_while_the_store_takes_none(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
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
    assert "scheduled delivery continues" not in caplog.text
    appender.refusal = None
    await delayed.bodies_become("a", "b")
    assert caplog.text.count("scheduled delivery continues level=1") == 1
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
        {"REAL_TOPIC": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
    ],
)
async def test_a_message_without_a_real_place_does_not_stop_its_level(
    delayed: Delayed, place: dict[str, str]
) -> None:
    delayed.delivery.start()
    delayed.put(DELAY_TOPIC, 0, {"DELAY": "1"} | place, "bad")
    delayed.park("good", 1)
    await delayed.bodies_become("good", after_ms=1000)
    assert delayed.delivery.offsets() == {1: 2}
    assert delayed.bodies(OP_HALF_TOPIC) == []


@pytest.mark.parametrize(("queue", "moved"), [(2, 0), (3, 1), (999_999_999, 1)])
async def test_a_queue_that_the_topic_no_longer_has_is_replaced_by_another(
    delayed: Delayed, queue: int, moved: int, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.delivery.start()
    delayed.park("a", 1, queue=queue)
    await delayed.bodies_become("a", queue=moved, after_ms=1000)
    assert caplog.text.count("moved a scheduled message") == 1
    assert f"queue={queue} to={moved}" in caplog.text


async def test_a_queue_that_is_only_read_from_is_kept(delayed: Delayed) -> None:
    delayed.tables.topics.put_now(
        [TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=0)]
    )
    delayed.delivery.start()
    delayed.park("a", 1, queue=3)
    delayed.park("b", 1, queue=4)
    await delayed.bodies_become("a", queue=3, after_ms=1000)
    await delayed.bodies_become("b", queue=0)


async def test_messages_of_a_deleted_topic_are_skipped_with_few_lines(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(LINES_MAX + 7):
        delayed.park(str(n), 1, topic="gone")
    delayed.park("good", 1)
    delayed.delivery.start()
    await delayed.bodies_become("good", after_ms=1000)
    assert ("gone", 0) not in delayed.store.queue_keys()
    assert caplog.text.count("skipped a scheduled message") == LINES_MAX
    assert "met topic 'gone'" in caplog.text
    delayed.delivery.stop()
    assert "7 more scheduled messages were skipped or moved" in caplog.text


@pytest.mark.parametrize("had_queues", [True, False])
async def test_messages_of_topics_whose_settings_are_lost_are_delivered_with_one_line(
    delayed: Delayed, caplog: pytest.LogCaptureFixture, had_queues: bool
) -> None:
    tables = delayed.tables
    tables.topic("lost", queues=4)
    if had_queues:
        delayed.put("lost", 0, {}, "earlier")
    for body in "ab":
        delayed.park(body, 1, topic="lost", queue=3)
    delayed.lose_topics()
    delayed.load_topics()
    assert "no topic is known, though the store has queues" in caplog.text

    delayed.delivery.start()
    await delayed.bodies_become("a", "b", topic="lost", queue=3, after_ms=1000)
    assert caplog.text.count("message stored in a topic without settings") == 1
    delayed.tables.topic("lost", queues=4)
    delayed.park("c", 1, topic="lost", queue=3)
    await delayed.bodies_become("a", "b", "c", topic="lost", queue=3, after_ms=1000)


async def test_no_topic_counts_as_deleted_while_messages_from_before_the_loss_are_stored(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.park("a", 1, topic="lost", queue=3)
    delayed.lose_topics()
    delayed.load_topics()
    delayed.load_topics()  # finds the file that the first start has written
    assert caplog.text.count("no topic is known, though the store has queues") == 1
    delayed.delivery.start()
    await delayed.bodies_become("a", topic="lost", queue=3, after_ms=1000)

    mark = delayed.tables.config / "topics-lost.json"
    assert json.loads(mark.read_text())["logEnd"] < delayed.store.written_to
    mark.write_text(json.dumps({"logEnd": delayed.store.min_log_offset}))
    delayed.load_topics()
    assert delayed.tables.topics.queue_for("lost", 3, 0) == 3  # it has queues
    assert delayed.tables.topics.queue_for("gone", 0, 0) is None


async def test_a_note_of_lost_topics_that_cannot_be_read_stops_the_start(delayed: Delayed) -> None:
    (delayed.tables.config / "topics-lost.json").write_text('{"logEnd": "far"}')
    with pytest.raises(StoreError, match=r"topics-lost\.json"):
        delayed.load_topics()


async def test_messages_of_a_topic_that_an_old_file_does_not_name_are_delivered(
    delayed: Delayed,
) -> None:
    delayed.tables.topics.load(delayed.store)
    delayed.put("new", 0, {}, "earlier")
    delayed.park("a", 1, topic="new", queue=1)
    delayed.park("lost", 1, topic="gone")
    delayed.delivery.start()
    await delayed.bodies_become("a", topic="new", queue=1, after_ms=1000)
    assert ("gone", 0) not in delayed.store.queue_keys()


async def test_a_body_above_the_limit_of_today_does_not_stop_its_level(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.park("large", 1)
    delayed.park("ok", 1)
    delayed.store.appender.message_bytes_max = 4
    delayed.delivery.start()
    await delayed.bodies_become("ok", after_ms=1000)
    assert "level=1 offset=0 error=a body of 5 bytes, at most 4" in caplog.text


async def test_a_damaged_record_does_not_stop_its_level(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.park("bad", 1)
    delayed.park("good", 1)
    log_offset, size, _ = delayed.store.consume_queue_units(DELAY_TOPIC, 0, 0, 1)[0]
    path = next(delayed.store.paths.commit_log.iterdir())
    with path.open("r+b") as file:
        file.seek(log_offset + 4)
        file.write(bytes(4))
    delayed.delivery.start()
    await delayed.bodies_become("good", after_ms=1000)
    assert f"offset=0 error=no record of {size} bytes at {log_offset}" in caplog.text


async def test_a_message_that_fails_for_no_known_reason_is_skipped_after_some_tries(
    delayed: Delayed, caplog: pytest.LogCaptureFixture
) -> None:
    def find(topic: str, queue_id: int, log_offset: int) -> int | None:
        if topic == "poison":
            raise RuntimeError("a defect")
        return queue_id

    delayed.queue_for = find
    delayed.park("bad", 1, topic="poison")
    delayed.park("good", 1)
    delayed.park("other level", 2)
    delayed.delivery.start()
    await delayed.bodies_become("other level", after_ms=5000)
    await delayed.bodies_become("other level", "good")
    assert caplog.text.count("scheduled delivery failed level=1") == delivery.FAILURES_MAX
    assert caplog.text.count("skipped a scheduled message") == 1
    assert "error=RuntimeError: a defect" in caplog.text


async def test_an_error_after_a_delivery_does_not_repeat_it(delayed: Delayed) -> None:
    def count(*_: object) -> None:
        raise RuntimeError("a defect")

    delayed.delivery.on_delivery = count
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.park("b", 1)
    await delayed.bodies_become("a", "b", after_ms=1000)


async def test_a_level_that_the_settings_no_longer_have_is_delivered_when_due(
    delayed: Delayed,
) -> None:
    delayed.park("a", 3)
    delayed.park("b", 3)
    delayed.restart(levels="1s")
    delayed.clock.advance(3_599_999)
    await settle()
    assert delayed.bodies() == []
    await delayed.bodies_become("a", "b", after_ms=1)
    assert delayed.delivery.offsets() == {3: 2}
    delayed.restart(levels="2s")
    assert delayed.delivery.offsets() == {3: 2}
    assert delayed.delivery.progress() == {3: (2, 2)}
    delayed.delivery.persist()
    content = json.loads(delayed.tables.file("delayOffset").path.read_bytes())
    assert content["offsetTable"] == {"3": 2}


async def test_a_level_that_is_gone_does_not_wait_for_a_clock_that_was_set_back(
    delayed: Delayed,
) -> None:
    delayed.park("a", 3)
    delayed.restart(levels="1s")
    await settle()
    assert delayed.bodies() == []
    delayed.clock.set_wall(delayed.clock.now_ms() - 1)
    await delayed.bodies_become("a")


async def test_a_level_that_was_made_longer_keeps_the_times_of_its_messages(
    delayed: Delayed,
) -> None:
    delayed.park("old", 1)
    delayed.restart(levels="1h 5s")
    delayed.clock.advance(999)
    await settle()
    assert delayed.bodies() == []
    await delayed.bodies_become("old", after_ms=1)


async def test_a_level_that_was_made_shorter_delivers_what_is_due_too_late_for_it(
    delayed: Delayed,
) -> None:
    delayed.park("old", 3)
    delayed.restart(levels="1s 5s 10s")
    await delayed.bodies_become("old")


async def test_a_new_level_above_eighteen_is_delivered(delayed: Delayed) -> None:
    table = " ".join(["1h"] * 24 + ["2s"])
    delayed.store.close()
    delayed.store = open_store(
        delayed.tables.config.parent / "store", delayed.tables, delay_levels=table
    )
    delayed.restart(persist=False, levels=table)
    delayed.park("a", 99)
    assert delayed.store.bounds(DELAY_TOPIC, 24) == (0, 1)
    delayed.clock.advance(1999)
    await settle()
    assert delayed.bodies() == []
    await delayed.bodies_become("a", after_ms=1)


async def test_a_wall_clock_that_jumps_ahead_is_seen_within_a_second(delayed: Delayed) -> None:
    delayed.delivery._check_interval_s = delivery.CHECK_INTERVAL_S
    delayed.delivery.start()
    delayed.park("a", 3)
    await settle()
    delayed.clock.set_wall(delayed.clock.now_ms() + 3_600_000)
    began_s = asyncio.get_running_loop().time()
    await delayed.bodies_become("a")
    assert asyncio.get_running_loop().time() - began_s <= delivery.CHECK_INTERVAL_S + 0.01


@pytest.mark.parametrize(
    ("slice_s", "slice_bytes", "most"),
    [(60.0, 1 << 20, RUN_MESSAGES_MAX), (0.0, 1 << 20, 1), (60.0, 400, 3)],
)
async def test_other_work_runs_between_the_slices_of_all_levels(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch, slice_s: float, slice_bytes: int, most: int
) -> None:
    """A record has between 134 and 199 bytes."""
    monkeypatch.setattr(delivery, "SLICE_S", slice_s)
    monkeypatch.setattr(delivery, "RUN_BYTES_MAX", slice_bytes)
    count = 3 * (RUN_MESSAGES_MAX + 1)
    for n in range(count):
        delayed.park(str(n), 1 + n % 3)
    delayed.clock.advance(3_600_000)
    done: list[int] = []
    delayed.delivery.on_delivery = lambda *_: done.append(0)
    delayed.delivery.start()
    largest = 0
    async with asyncio.timeout(60):
        while len(done) < count:
            seen = len(done)
            await asyncio.sleep(0)
            largest = max(largest, len(done) - seen)
    assert largest == most


async def test_readers_that_wait_for_the_disk_get_a_sync_after_each_slice(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SLICE_S", 60.0)
    syncs: list[int] = []
    delayed.delivery.request_sync = lambda: syncs.append(delayed.store.bounds("T", 0)[1])
    delayed.delivery.start()
    await settle()
    assert syncs == []
    for n in range(RUN_MESSAGES_MAX + 1):
        delayed.park(str(n), 1)
    delayed.clock.advance(1000)
    await until(lambda: len(syncs) >= 2, timeout=60)
    assert syncs == [RUN_MESSAGES_MAX, RUN_MESSAGES_MAX + 1]


async def test_progress_names_the_levels_that_were_used(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    delayed.park("b", 1)
    await delayed.bodies_become("a", "b", after_ms=1000)
    delayed.park("c", 1)
    delayed.park("waits", 3)
    assert delayed.delivery.progress() == {1: (2, 3), 3: (0, 1)}


async def test_an_offset_beyond_its_queue_is_moved_to_the_end(delayed: Delayed) -> None:
    delayed.park("old", 1)
    path = delayed.tables.file("delayOffset").path
    path.write_text('{"offsetTable":{1:99,2:7}}')
    delayed.restart(persist=False)
    assert delayed.delivery.offsets() == {1: 1, 2: 0}
    delayed.park("new", 1)
    await delayed.bodies_become("new", after_ms=1000)


async def test_many_due_messages_come_in_order(delayed: Delayed) -> None:
    count = 2 * RUN_MESSAGES_MAX + 3
    for n in range(count):
        delayed.park(str(n), 1)
    delayed.clock.advance(1000)
    delayed.delivery.start()
    await until(lambda: delayed.store.bounds("T", 0)[1] >= count, timeout=60)
    found: list[str] = []
    while len(found) < count:
        part = delayed.store.get("T", 0, len(found), 32)
        found += [m.body.decode() for piece in part.slices for m in iter_records(piece)]
    assert found == [str(n) for n in range(count)]


async def test_the_file_names_levels_and_offsets(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 2)
    await delayed.bodies_become("a", after_ms=5000)
    delayed.delivery.persist()
    path = delayed.tables.file("delayOffset").path
    content = json.loads(path.read_bytes())
    assert content["offsetTable"] == {"2": 1}
    assert content["dataVersion"]["counter"] == 1
    assert content["logOffset"] == delayed.store.written_to
    path.unlink()
    delayed.delivery.persist()
    assert not path.exists()


async def test_what_counts_as_delivered_is_on_the_disk_first(delayed: Delayed) -> None:
    delayed.delivery.start()
    delayed.park("a", 1)
    await delayed.bodies_become("a", after_ms=1000)
    assert delayed.store.flushed_to < delayed.store.written_to
    delayed.delivery.persist()
    assert delayed.store.flushed_to == delayed.store.written_to


# --- messages for another broker ------------------------------------------------------------------


class OtherBroker:
    """Takes messages when a test lets it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.refusals = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def send(self, topic: str, record: RecordParts) -> None:
        assert topic == "T"
        await self.is_open.wait()
        if self.refusals:
            self.refusals -= 1
            raise StoreError("refused")
        self.bodies.append(record.body)

    async def bodies_become(self, *bodies: bytes) -> None:
        await until(lambda: self.bodies == list(bodies), timeout=60)


async def test_a_slave_sends_what_is_due_in_the_order_of_its_level(delayed: Delayed) -> None:
    other = OtherBroker()
    other.refusals = 2 * delivery.FAILURES_MAX  # nothing is skipped
    for body in ("a", "b", "c"):
        delayed.park(body, 1)
    written_to = delayed.store.written_to
    await delayed.delivery.take_over(other.send)
    delayed.clock.advance(1000)
    await other.bodies_become(b"a", b"b", b"c")

    assert delayed.delivery.offsets() == {1: 3}
    assert delayed.store.written_to == written_to
    delayed.delivery.copy({1: 1}, None, 0)  # what was sent would be sent again
    assert delayed.delivery.offsets() == {1: 3}


async def test_a_slave_that_has_copied_no_offsets_finds_in_the_log_what_was_delivered(
    delayed: Delayed,
) -> None:
    """It is elected before its first copy of the master's offsets."""
    master = delayed.delivery
    delayed.delivery = delayed._deliver()
    delayed.park("a", 1)
    master.start()
    await delayed.bodies_become("a", after_ms=1000)
    master.stop()
    delayed.delivery.stop()  # another master is elected

    await delayed.delivery.take_over()
    delayed.park("b", 1)
    await delayed.bodies_become("a", "b", after_ms=1000)


async def test_copied_offsets_may_count_more_than_the_log_had_then(delayed: Delayed) -> None:
    master = delayed.delivery
    delayed.delivery = delayed._deliver()
    log_end = delayed.store.written_to
    for body in ("a", "b", "c"):
        delayed.park(body, 1)
    master.start()
    await delayed.bodies_become("a", "b", "c", after_ms=1000)
    master.stop()

    delayed.delivery.copy({1: 2}, None, log_end)
    await delayed.delivery.take_over()
    delayed.park("d", 1)
    await delayed.bodies_become("a", "b", "c", "d", after_ms=1000)


async def test_the_end_waits_for_the_message_that_is_being_sent(delayed: Delayed) -> None:
    other = OtherBroker()
    other.is_open.clear()
    for body, level in (("a", 1), ("b", 1), ("c", 2)):
        delayed.park(body, level)
    await delayed.delivery.take_over(other.send)
    delayed.clock.advance(1000)
    await settle()
    ending = asyncio.ensure_future(delayed.delivery.finish())
    await asyncio.sleep(0)
    delayed.clock.advance(5000)  # nothing more is sent that becomes due
    await settle()
    assert not ending.done()
    other.is_open.set()
    await ending

    assert other.bodies == [b"a"]
    assert delayed.delivery.offsets() == {1: 1}
    delayed.delivery.start()
    await delayed.bodies_become("b", "c")


async def test_offsets_of_a_slave_that_sent_messages_are_taken_over(delayed: Delayed) -> None:
    for body in ("a", "b"):
        delayed.park(body, 1)
    assert delayed.delivery.advance({1: 1, 2: 7}) == 1
    assert delayed.delivery.advance({1: 0}) == 0
    delayed.delivery.start()
    await delayed.bodies_become("b", after_ms=1000)


# --- a log that other replicas confirm ----------------------------------------------------------


class Confirmed(Delayed):
    """The same with a store whose readers wait for other replicas."""

    confirms = True

    def confirm(self) -> int:
        """Confirm all that is there; return where it ends."""
        self.store.confirm(self.store.written_to)
        return self.store.written_to


@pytest.fixture
async def confirmed(tables: Tables) -> AsyncIterator[Confirmed]:
    made = Confirmed(tables)
    yield made
    made.delivery.stop()
    made.store.close()


async def deliver(confirmed: Confirmed, body: str) -> None:
    """Have a message of level 1 delivered; what was there before is confirmed."""
    count = confirmed.store.next_offset("T", 0)
    confirmed.park(body, 1)
    confirmed.confirm()
    confirmed.delivery.arrived(0)
    confirmed.clock.advance(1000)
    await until(lambda: confirmed.store.next_offset("T", 0) != count, timeout=60)


async def test_slaves_copy_offsets_whose_deliveries_are_confirmed(confirmed: Confirmed) -> None:
    confirmed.delivery.start()
    await deliver(confirmed, "a")
    assert confirmed.delivery.offsets() == {1: 1}
    assert confirmed.delivery.confirmed_offsets() == {}
    confirmed.confirm()
    assert confirmed.delivery.confirmed_offsets() == {1: 1}
    for number in range(UNCONFIRMED_MAX + 10):
        confirmed.delivery.persist()
        confirmed.delivery.stop()  # notes the offsets
        confirmed.delivery.start()
        if number == 0:
            await deliver(confirmed, "b")
    assert confirmed.delivery.offsets() == {1: 2}
    assert confirmed.delivery.confirmed_offsets() == {1: 1}
    confirmed.confirm()
    assert confirmed.delivery.confirmed_offsets() == {1: 2}


async def test_what_is_confirmed_after_a_start_counts_as_delivered(confirmed: Confirmed) -> None:
    """A broker that is elected after a kill cannot read the end of its log at its start."""
    confirmed.delivery.start()
    await deliver(confirmed, "a")
    confirmed.delivery.stop()
    confirmed.delivery = confirmed._deliver()
    confirmed.confirm()

    await confirmed.delivery.take_over()
    await deliver(confirmed, "b")
    await settle()
    confirmed.confirm()
    assert confirmed.bodies() == ["a", "b"]


async def truncated_behind_a_delivery(made: Delayed, *, persist: bool) -> None:
    """Deliver "a" and "b"; start again as a slave whose master has no copy of "b"."""
    made.delivery.start()
    made.park("a", 1)
    made.park("b", 1)
    made.store.confirm(made.store.written_to)
    made.clock.advance(1000)
    made.delivery.arrived(0)
    await until_appended(made, 2)
    made.store.confirm(made.store.written_to)
    (_, (end, _)) = list(made.store.written_units("T", 0, 0))
    if persist:
        made.delivery.persist()
    made.delivery.stop()
    made.delivery = made._deliver()
    made.store.truncate_log(end, made.delivery.take_back)


async def until_appended(made: Delayed, count: int) -> None:
    await until(lambda: made.store.next_offset("T", 0) >= count, timeout=60)


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("confirms", [True, False])
async def test_a_message_whose_copy_is_truncated_is_delivered_again(
    tables: Tables, confirms: bool, persist: bool
) -> None:
    made = Confirmed(tables) if confirms else Delayed(tables)
    try:
        await truncated_behind_a_delivery(made, persist=persist)
        assert made.delivery.offsets() == {1: 1}
        made.delivery = made._deliver()  # the process was killed after the truncation
        assert made.delivery.offsets() == {1: 1}
        await made.delivery.take_over()
        await until_appended(made, 2)
        made.store.confirm(made.store.written_to)
        await settle()
        assert made.bodies() == ["a", "b"]
    finally:
        made.delivery.stop()
        made.store.close()


async def test_a_kill_before_the_log_is_truncated_delivers_nothing_twice(delayed: Delayed) -> None:
    await delayed.deliver_one_by_one("a", "b")
    delayed.delivery.stop()
    (_, (end, _)) = list(delayed.store.written_units("T", 0, 0))
    delayed.delivery.take_back(end)
    assert delayed.delivery.offsets() == {1: 1}
    delayed.delivery = delayed._deliver()
    assert delayed.delivery.offsets() == {1: 2}
    assert delayed.bodies() == ["a", "b"]


async def test_equal_messages_are_taken_back_from_the_first_that_may_be_lost(
    delayed: Delayed,
) -> None:
    delayed.delivery.start()
    for _ in range(3):
        delayed.park("same", 1)
    await delayed.bodies_become(*["same"] * 3, after_ms=1000)
    delayed.delivery.stop()
    end = list(delayed.store.written_units("T", 0, 0))[2][0]
    delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.delivery.offsets()[1] <= 2


async def test_an_offset_counts_no_message_that_is_truncated_itself(delayed: Delayed) -> None:
    """Otherwise the next message with this queue offset would count as delivered."""
    await delayed.deliver_one_by_one("a")
    end = delayed.store.written_to
    delayed.park("skipped", 1, topic="deleted")
    delayed.clock.advance(1000)
    await until(lambda: delayed.delivery.offsets() == {1: 2}, timeout=60)
    delayed.delivery.stop()
    delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.delivery.offsets() == {1: 1}


async def test_too_much_to_read_takes_back_what_was_due_since_the_new_end(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.delay.delivered.SCAN_BYTES_MAX", 10)
    delayed.delivery.start()
    for body in ("a", "b", "c"):
        delayed.park(body, 1)
        await delayed.bodies_become(*"abc"[: "abc".index(body) + 1], after_ms=1000)
    delayed.delivery.stop()
    end = list(delayed.store.written_units("T", 0, 0))[1][0]
    delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.delivery.offsets() == {1: 1}


async def test_too_much_to_read_takes_back_what_was_delivered_late(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.delay.delivered.SCAN_BYTES_MAX", 10)
    for body in ("a", "b", "c"):
        delayed.park(body, 1)
    delayed.clock.advance(1005)
    delayed.delivery.start()
    await delayed.bodies_become("a", "b", "c")
    delayed.delivery.stop()
    end = list(delayed.store.written_units("T", 0, 0))[1][0]
    delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.delivery.offsets() == {1: 1}


async def test_many_skipped_messages_hide_none_whose_copy_is_truncated(delayed: Delayed) -> None:
    delayed.park("a", 1)
    delayed.park("b", 1)
    for _ in range(delivered.SKIPPED_MAX + 1):
        delayed.park("skipped", 1, topic="deleted")
    count = delayed.store.next_offset(DELAY_TOPIC, 0)
    delayed.clock.advance(1000)
    delayed.delivery.start()
    await until(lambda: delayed.delivery.offsets() == {1: count}, timeout=60)
    delayed.delivery.stop()
    end = list(delayed.store.written_units("T", 0, 0))[1][0]
    delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.delivery.offsets() == {1: 1}


async def test_a_disk_that_refuses_the_offsets_leaves_the_log_as_it_is(delayed: Delayed) -> None:
    await delayed.deliver_one_by_one("a", "b")
    delayed.delivery.persist()
    delayed.delivery.stop()
    before = delayed.store.written_to
    (_, (end, _)) = list(delayed.store.written_units("T", 0, 0))
    delayed.tables.config.joinpath("delayOffset.json.tmp").mkdir()
    with pytest.raises(StoreError):
        delayed.store.truncate_log(end, delayed.delivery.take_back)
    assert delayed.store.written_to == before
    assert delayed.bodies() == ["a", "b"]
