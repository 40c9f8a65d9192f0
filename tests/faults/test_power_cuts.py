"""Power cuts at any operation of a broker: log, queues, index, offsets, tables, checkpoint.

Each case runs a random load on a file system in memory: single and batch sends, delayed messages,
offsets, topics that are made and deleted, retention, rolls, flushes, failed syncs, a checkpoint
that is lost, a clock that is set back, stops and kills of the process. It cuts the power, or kills
the process, at a random operation, often again during the recovery, and audits what starts then:

- What was acknowledged is there, and what a consumer saw with synchronous flush. After a kill all
  that was stored is there.
- Nothing is there that was not sent. All of it is found by offset, tag and key.
- No group is ahead of its queue, no delayed message is skipped, and the store goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.delay.routing import schedule
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import StoreError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import encode_properties
from cometmq.store import MessageStore, cleaner, loader, queue_ends, recovery
from cometmq.store.abort_file import AbortFile
from cometmq.store.config_files import JsonFile
from cometmq.store.queue_reader import TagMatcher
from cometmq.system.clock import ManualClock
from support.power_files import PowerCutError, PowerFiles
from support.randomness import SeededRandomness
from support.stores import BROKER, PRODUCER, bodies, small_settings, split
from support.tiers import rounds

CASES_EACH = 100
Queue = tuple[str, int]
LATER, FLEETING = ("later", 0), ("fleeting", 0)
"""Where delayed messages go, and the queue of a topic that is made and deleted."""
QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("bills", 0)]
ROOT = Path("/store")
TAGS = ["TagA", "TagB"]
"""Of messages with even numbers, and with odd ones."""
LEVELS = DelayLevels.parse("1s 5s")


@dataclass
class Sent:
    """What was sent to one queue, from its first message on."""

    bodies: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Where the record of each ends in the log."""
    safe: int = 0
    """How many were acknowledged, or seen by a consumer."""
    kept_from: int = 0
    """The least offset that retention has left."""


class Case:
    """One broker's files through its loads, cuts and starts."""

    def __init__(self, seed: int) -> None:
        self.chance = SeededRandomness(seed)
        has_journal = self.chance.below(4) > 0
        self.files = PowerFiles(SeededRandomness(seed + 1), has_journal=has_journal)
        self.clock = ManualClock()
        self.cold_reads = ColdReads()
        self.mapped_queue_files_max = (0, 1)[seed % 2]
        self.flush_type = ("SYNC_FLUSH", "ASYNC_FLUSH")[self.chance.below(3) == 0]
        self.sent = {queue: Sent() for queue in (*QUEUES, LATER, FLEETING)}
        self.earlier: list[list[bytes]] = []
        """What was sent to the fleeting topic before it was deleted."""
        self.delayed: dict[int, int] = {}
        """The numbers of delayed messages, and where their records end in the log."""
        self.delayed_safe: set[int] = set()
        self.topics_acknowledged: set[str] = set()
        self.topics: set[str] = set()
        self.number = 0
        self.in_flight: tuple[Queue, list[bytes]] = QUEUES[0], []
        self.is_cleaning = False
        self.was_cleaned = False
        self.was_cut = False

    def open(self) -> None:
        settings = small_settings(
            ROOT,
            flush_disk_type=self.flush_type,
            delay_levels="1s 5s",
            file_reserved_hours=0,
            mapped_queue_files_max=self.mapped_queue_files_max,
        )
        self.store = MessageStore(settings, clock=self.clock, files=self.files)
        self.store.open()
        config = ROOT / "config"
        self.offsets = OffsetStore(JsonFile(config / "offsets.json", self.files), clock=self.clock)
        self.offsets.load(self.store.bounds)
        self.delivery = ScheduledDelivery(
            self.store,
            LEVELS,
            JsonFile(config / "delay.json", self.files),
            queue_for=lambda _, queue_id: queue_id,
            clock=self.clock,
            cold_reads=self.cold_reads,
        )
        self.delivery.load()
        self.delivery.on_delivery = lambda *_: None
        self.table = JsonFile(config / "topics.json", self.files)
        names = self.names_stored()
        self.store.expect_topics(lambda topic: topic != FLEETING[0] or topic in names)

    # --- the load -------------------------------------------------------------------------------

    def load(self) -> None:
        """Do at random what a broker does; ends with the power cut at the latest."""
        span = (20, 100, 500)[self.chance.below(3)]
        self.files.cut_at = self.files.operations + 1 + self.chance.below(span)
        steps = [self.send] * 4 + [self.acknowledge, self.see, self.commit, self.persist] * 2
        steps += [self.send_batch, self.send_delayed, self.deliver, self.flush_queues]
        steps += [self.store_checkpoint, self.create_topic, self.recreate_topic, self.clean]
        steps += [self.rarely]
        while True:
            self.clock.advance(self.chance.below(2000))
            steps[self.chance.below(len(steps))]()

    def rarely(self) -> None:
        step = self.chance.below(16)
        if step < 4:
            self.stop()
        elif step < 8:
            self.kill()
        elif step < 10:
            self.fail_sync()
        elif step == 10:
            self.clock.set_wall(max(1, self.clock.now_ms() - self.chance.below(100_000)))

    def stop(self) -> None:
        self.persist()
        self.store.close()
        self.acknowledge_all()
        self.lose_checkpoint()
        self.open()

    def kill(self) -> None:
        self.store.abandon()
        self.files.unlock()
        self.lose_checkpoint()
        self.open()

    def fail_sync(self) -> None:
        """Let syncs fail until the next start of the process."""
        self.files.fail_sync = True
        with suppress(StoreError):
            self.store.flush()
            self.store.flush_queues(0)
            self.store.write_checkpoint()
        with suppress(StoreError):
            self.offsets.persist(self.store.flush)
        if self.chance.below(2):
            with suppress(StoreError):
                self.store.close()
        else:
            self.store.abandon()
            self.files.unlock()
        self.files.fail_sync = False
        self.open()

    def lose_checkpoint(self) -> None:
        if self.chance.below(8) == 0:
            self.files.remove(ROOT / "checkpoint")
            self.files.sync_dir(ROOT)

    def any_queue(self) -> Queue:
        queue = [*QUEUES, FLEETING][self.chance.below(len(QUEUES) + 1)]
        return queue if queue != FLEETING or FLEETING[0] in self.topics_acknowledged else QUEUES[0]

    def made(self) -> tuple[bytes, bytes]:
        """Body and properties of the next message."""
        body = b"%d-" % self.number + b"x" * self.chance.below(900)
        tag = TAGS[self.number % 2]
        properties = encode_properties({"KEYS": f"k{self.number}", "TAGS": tag})
        self.number += 1
        return body, properties

    def send(self) -> None:
        for _ in range(1 + self.chance.below(8)):
            queue = self.any_queue()
            body, properties = self.made()
            self.in_flight = queue, [body]
            stored = self.store.append(
                *queue, body, properties, born_time_ms=0, born_host=PRODUCER, store_host=BROKER
            )
            self.was_stored(stored.queue_offset, [stored.log_offset + stored.size_bytes])

    def send_batch(self) -> None:
        queue = self.any_queue()
        items = [BatchItem(0, *self.made()) for _ in range(1 + self.chance.below(5))]
        self.in_flight = queue, [item.body for item in items]
        stored = self.store.append_batch(
            *queue,
            encode_batch(items),
            b"",
            born_time_ms=0,
            born_host=PRODUCER,
            store_host=BROKER,
        )
        ends = [*stored.log_offsets[1:], stored.log_offset_end]
        self.was_stored(stored.queue_offset, ends)

    def was_stored(self, queue_offset: int, ends: list[int]) -> None:
        queue, made = self.in_flight
        sent = self.sent[queue]
        if queue == FLEETING and not sent.bodies and queue_offset:
            # A kill before the queues are synced brings back what was deleted; nothing new is lost.
            earlier = reversed(self.earlier)
            sent.bodies = next(old[:queue_offset] for old in earlier if len(old) >= queue_offset)
            sent.ends = [0] * queue_offset
        assert queue_offset == len(sent.bodies), f"{queue}: offset {queue_offset}"
        sent.bodies += made
        sent.ends += ends
        self.in_flight = queue, []

    def send_delayed(self) -> None:
        number = self.number
        body, _ = self.made()
        level = 1 + self.chance.below(2)
        scheduled = schedule(LEVELS, *LATER, {"DELAY": str(level), "KEYS": f"k{number}"})
        assert scheduled is not None
        stored = self.store.append(
            scheduled.topic,
            scheduled.queue_id,
            body,
            encode_properties(scheduled.properties),
            born_time_ms=0,
            born_host=PRODUCER,
            store_host=BROKER,
        )
        self.delayed[number] = stored.log_offset + stored.size_bytes

    def deliver(self) -> None:
        self.delivery._deliver_due(1 + self.chance.below(2))

    def acknowledge(self) -> None:
        flushed_to = self.store.flush()
        for sent in self.sent.values():
            sent.safe = max(sent.safe, sum(end <= flushed_to for end in sent.ends))
        self.delayed_safe |= {number for number, end in self.delayed.items() if end <= flushed_to}

    def acknowledge_all(self) -> None:
        for sent in self.sent.values():
            sent.safe = len(sent.bodies)
        self.delayed_safe |= self.delayed.keys()

    def see(self) -> None:
        """With synchronous flush, what a consumer was able to receive must not be lost."""
        if self.flush_type == "SYNC_FLUSH":
            for queue in QUEUES:
                self.sent[queue].safe = max(self.sent[queue].safe, self.store.bounds(*queue)[1])

    def commit(self) -> None:
        topic, queue_id = self.any_queue()
        low, high = self.store.bounds(topic, queue_id)
        self.offsets.commit("g", topic, queue_id, low + self.chance.below(high - low + 1))

    def persist(self) -> None:
        self.offsets.persist(self.store.flush)
        self.delivery.persist()

    def flush_queues(self) -> None:
        self.store.flush_queues(self.chance.below(2), with_index=self.chance.below(2) == 0)

    def store_checkpoint(self) -> None:
        self.store.write_checkpoint()

    def clean(self) -> None:
        self.is_cleaning = self.was_cleaned = True
        self.store.clean(self.clock.now_ms() + 3_600_000, expired_at_any_hour=True)
        for queue, sent in self.sent.items():
            sent.kept_from = max(sent.kept_from, self.store.bounds(*queue)[0])
        self.is_cleaning = False

    def names_stored(self) -> set[str]:
        content = self.table.load() or {"topicConfigTable": {}}
        return set(content["topicConfigTable"])

    def store_names(self, names: set[str]) -> None:
        self.table.save({"topicConfigTable": {name: {} for name in sorted(names)}})

    def create_topic(self) -> None:
        self.topics.add(f"topic-{len(self.topics)}")
        self.store_names(self.topics)
        self.topics_acknowledged = set(self.topics)

    def recreate_topic(self) -> None:
        """Delete the fleeting topic if it exists, else create it."""
        name = FLEETING[0]
        if name not in self.topics:
            self.topics.add(name)
            self.store_names(self.topics)
        else:
            self.topics_acknowledged.discard(name)
            self.store_names(self.topics - {name})
            self.topics.discard(name)
            self.forget_fleeting()
        self.topics_acknowledged = set(self.topics)

    def forget_fleeting(self) -> None:
        asyncio.run(self.offsets.forget_topic(FLEETING[0]))
        self.earlier.append(self.sent[FLEETING].bodies)
        self.sent[FLEETING] = Sent()
        self.store.delete_topic(FLEETING[0])

    # --- the cut --------------------------------------------------------------------------------

    def cut(self) -> None:
        with pytest.raises(PowerCutError):
            self.load()
        self.was_cut = False
        self.end()
        while self.chance.below(2):  # it may happen again while the store recovers
            self.files.cut_at = self.files.operations + 1 + self.chance.below(30)
            try:
                self.open()
            except PowerCutError:
                self.end()
            else:
                self.files.cut_at = None
                return
        self.open()

    def end(self) -> None:
        """Let the machine stop, or only the process."""
        self.store.abandon()
        if self.chance.below(3):
            self.files.power_on()
            self.was_cut = True
        else:
            self.files.kill()

    # --- the audit ------------------------------------------------------------------------------

    def audit(self) -> None:
        self.store.flush()
        self.audit_topics()
        for queue in (*QUEUES, FLEETING):
            self.audit_queue(queue)
        self.audit_delayed()
        self.is_cleaning = False
        self.in_flight = QUEUES[0], []
        self.send()
        self.acknowledge()

    def audit_topics(self) -> None:
        names = self.names_stored()
        assert self.topics_acknowledged <= names <= self.topics, f"{names} of {self.topics}"
        self.topics_acknowledged, self.topics = set(names), set(names)
        if FLEETING[0] not in names:  # as it is when somebody deletes unused topics
            self.forget_fleeting()

    def audit_queue(self, queue: Queue) -> None:
        sent = self.sent[queue]
        low, high = self.store.bounds(*queue)
        found = bodies(self.store, *queue)
        known = sent.bodies + (self.in_flight[1] if self.in_flight[0] == queue else [])
        if queue == FLEETING and not sent.safe:
            # The deletion may be undone as long as nothing new is on disk.
            known = next((old for old in [known, *self.earlier] if old[low:high] == found), known)
        assert found == known[low:high], f"{queue}: not what was sent"
        least = sent.safe if self.was_cut else len(sent.bodies)
        assert high >= least, f"{queue}: {least} acknowledged, {high} kept"
        assert self.is_cleaning or queue == FLEETING or low <= sent.kept_from, (
            f"{queue}: begins at {low}"
        )
        numbers = [int(body.split(b"-")[0]) for body in found]
        for number in numbers[max(0, sent.kept_from - low) :]:
            key = f"k{number}"
            count = len(self.store.query(queue[0], key, 9, 0, 2**62).records)
            assert count == 1, f"{queue}: {key} is found {count} times"
        for remainder, tag in enumerate(TAGS):
            tagged = [number for number in numbers if number % 2 == remainder]
            assert self.tagged(*queue, tag) == tagged, f"{queue}: {tag}"
        committed = self.offsets.committed("g", *queue) or 0
        assert committed <= high, f"{queue}: the group is ahead of the queue"
        sent.bodies = known[:high]
        sent.ends = (sent.ends + [0] * high)[:high]
        sent.safe = high
        sent.kept_from = max(sent.kept_from, low)

    def audit_delayed(self) -> None:
        """Each is in its topic, or waits for its delivery."""
        delivered = {int(body.split(b"-")[0]) for body in bodies(self.store, *LATER)}
        waiting: set[int] = set()
        for level in (1, 2):
            begin, end = self.store.bounds(DELAY_TOPIC, level - 1)
            offset = min(max(self.delivery.offsets().get(level, 0), begin), end)
            found = bodies(self.store, DELAY_TOPIC, level - 1)[offset - begin :]
            waiting |= {int(body.split(b"-")[0]) for body in found}
        known = self.delayed_safe if self.was_cut else set(self.delayed)
        assert delivered | waiting <= set(range(self.number)), "delayed: not what was sent"
        if not self.was_cleaned:
            assert known <= delivered | waiting, f"delayed: {known - delivered - waiting} skipped"
        self.delayed = dict.fromkeys(delivered | waiting, 0)
        self.delayed_safe = delivered | waiting

    def tagged(self, topic: str, queue_id: int, tag: str) -> list[int]:
        """The numbers of the messages that a consumer of one tag gets."""
        matcher = TagMatcher(frozenset({java_hash(tag)}))
        numbers, (offset, end) = [], self.store.bounds(topic, queue_id)
        while offset < end:
            result = self.store.get(topic, queue_id, offset, 32, matcher)
            found = split(b"".join(result.slices))
            numbers += [int(message.body.split(b"-")[0]) for message in found]
            offset = result.next_begin_offset
        return numbers


def run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one case: three cuts, each with its audit."""
    # Files are small: without this the recovery would always read the whole log.
    monkeypatch.setattr(recovery, "_WALKED_BYTES", (0, 2_000, 100_000)[seed // CASES_EACH % 3])
    case = Case(seed)
    if case.mapped_queue_files_max:
        monkeypatch.setattr(queue_ends, "QUEUES_MIN", 1)
        monkeypatch.setattr(loader, "BUFFERS_MAX", 1 + seed // 2 % 3)
    case.open()
    for _ in range(3):
        case.cut()
        case.audit()


@pytest.mark.parametrize("first", range(0, rounds(test=2_000, long=50_000), CASES_EACH))
def test_a_power_cut_at_any_operation_breaks_no_promise(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + CASES_EACH):
        try:
            run(seed, monkeypatch)
        except (AssertionError, Exception) as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem


# --- do the cases notice a recovery that leaves something out? -----------------------------------

MUTATION_CASES = 3_000
MUTATIONS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "offsets stay beyond the end of their queue": (
        OffsetStore,
        "load",
        lambda load: lambda offsets, bounds: load(offsets, None),
    ),
    "checksums are not looked at": (
        recovery,
        "find_end",
        lambda find_end: lambda *log, **more: find_end(*log, **{**more, "check_crc": False}),
    ),
    "the checkpoint counts beyond the end of the log": (
        recovery.Recovery,
        "_truncate_position",
        lambda _: lambda *_: None,
    ),
    "queues are not truncated": (
        recovery.Recovery,
        "_truncate_queues",
        lambda _: lambda *_: None,
    ),
    "the index is not truncated": (
        recovery.Recovery,
        "_repair_index",
        lambda _: lambda *_, **__: None,
    ),
    "pages of a failed sync are not written again": (
        AbortFile,
        "has_unsynced_pages",
        lambda _: lambda _: False,
    ),
    "log files go that a start needs": (
        cleaner,
        "drop_log_files",
        lambda drop: lambda *log, **more: drop(*log, **{**more, "needed_from": 2**62}),
    ),
    "names in directories are not synced": (
        PowerFiles,
        "sync_dir",
        lambda _: lambda files, _: files.operate(),
    ),
}
"""What is replaced, and by what, given the original."""


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_recovery_that_leaves_something_out(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, replaced = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, replaced(getattr(owner, name)))
    for seed in range(MUTATION_CASES):
        try:
            run(seed, monkeypatch)
        except Exception as noticed:
            print(f"{mutation}: noticed by seed {seed}: {noticed!r}")
            return
    pytest.fail(f"{MUTATION_CASES} cases did not notice that {mutation}")
