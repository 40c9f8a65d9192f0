"""Power cuts and errors at any operation of a broker, over every file of its store.

Log, queues, extension units, index, offsets, tables, checkpoint and abort file; of a master, and of
a slave that copies a log.

Each case runs a random load on a file system in memory: single and batch sends, delayed messages,
offsets, topics that are made and deleted, retention, rolls, flushes, failed syncs, a checkpoint
that is lost, a clock that is set back, stops and kills of the process. It cuts the power, or kills
the process, at a random operation, often again during the recovery, and audits what starts then.
Other cases let an operation fail first (EIO, ENOSPC, a short write), once or from then on:

- What was acknowledged is there, and what a consumer saw with synchronous flush. After a kill all
  that was stored is there.
- Nothing is there that was not sent. All of it is found by offset, tag and key.
- No group is ahead of its queue, no delayed message is skipped, and the store goes on.
- The log of a slave is a beginning of its master's, up to the end of a record.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
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
from cometmq.store import MessageStore, ReplicaError
from cometmq.store.config_files import JsonFile
from cometmq.store.lifecycle import cleaner, loader, recovery
from cometmq.store.lifecycle.abort_file import AbortFile
from cometmq.store.queues import queue_ends
from cometmq.store.queues.queue_reader import TagMatcher
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import Fault, PowerCutError, PowerFiles
from support.stores.small_stores import (
    LOG_FILE_BYTES,
    all_messages,
    bodies,
    log_offsets,
    new_record,
    opened,
    put,
    small_settings,
    split,
)

CASES_EACH = 100
SLAVE_CASES_EACH = 40
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


def next_fault(files: PowerFiles, chance: SeededRandomness) -> Fault:
    """Return an error of the disk at one of the next operations."""
    span = (20, 100, 500)[chance.below(3)]
    code = (errno.EIO, errno.ENOSPC)[chance.below(2)]
    return Fault(files.operations + 1 + chance.below(span), code, lasts=chance.below(3) == 0)


def start_again(case: Case | SlaveCase) -> None:
    """Open the store, whose recovery may be cut, too."""
    while case.chance.below(2):
        case.files.cut_at = case.files.operations + 1 + case.chance.below(30)
        try:
            case.open()
        except PowerCutError:
            case.end()
        else:
            case.files.cut_at = None
            return
    case.open()


class Case:
    """One broker's files through its loads, cuts and starts."""

    def __init__(self, seed: int) -> None:
        self.chance = SeededRandomness(seed)
        has_journal = self.chance.below(4) > 0
        self.files = PowerFiles(SeededRandomness(seed + 1), has_journal=has_journal)
        self.clock = ManualClock()
        self.cold_reads = ColdReads()
        self.mapped_queue_files_max = (0, 1)[seed % 2]
        self.has_ext = seed // 4 % 2 == 1
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
        self.is_open = False

    def open(self) -> None:
        self.is_open = False
        settings = small_settings(
            ROOT,
            flush_disk_type=self.flush_type,
            delay_levels="1s 5s",
            file_reserved_hours=0,
            mapped_queue_files_max=self.mapped_queue_files_max,
            consume_queue_ext_enabled=self.has_ext,
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
            queue_for=lambda _topic, queue_id, _log_offset: queue_id,
            clock=self.clock,
            cold_reads=self.cold_reads,
        )
        self.delivery.load()
        self.delivery.on_delivery = lambda *_: None
        self.table = JsonFile(config / "topics.json", self.files)
        names = self.names_stored()
        self.store.expect_topics(lambda topic: topic != FLEETING[0] or topic in names)
        self.is_open = True

    # --- the load -------------------------------------------------------------------------------

    def load(self) -> None:
        """Do at random what a broker does; ends with the power cut at the latest."""
        span = (20, 100, 500)[self.chance.below(3)]
        self.files.cut_at = self.files.operations + 1 + self.chance.below(span)
        self.run_load()

    def run_load(self) -> None:
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
            with suppress(OSError):
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
            stored = put(self.store, body, *queue, properties)
            self.was_stored(stored.queue_offset, [stored.log_offset + stored.size_bytes])

    def send_batch(self) -> None:
        queue = self.any_queue()
        items = [BatchItem(0, *self.made()) for _ in range(1 + self.chance.below(5))]
        self.in_flight = queue, [item.body for item in items]
        stored = self.store.append_batch(new_record(encode_batch(items), *queue))
        ends = [*log_offsets(stored)[1:], stored.log_offset_end]
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
        place = scheduled.topic, scheduled.queue_id
        stored = put(self.store, body, *place, scheduled.properties)
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
        start_again(self)

    def fail(self) -> None:
        """Let an operation fail, then cut the power, and start on a disk that works."""
        self.files.fault = fault = next_fault(self.files, self.chance)
        self.files.cut_at = fault.at + 100
        try:
            self.run_load()
        except PowerCutError:
            self.files.fault = self.files.cut_at = None
        except StoreError:
            self.files.fault = self.files.cut_at = None
            if self.is_open:
                with suppress(StoreError):  # what a store acknowledges now must be on the disk
                    self.acknowledge()
        self.was_cut = False
        self.end()
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
            met = self.tagged(*queue, tag)
            if self.has_ext:  # a message whose unit is lost is filtered at the client
                met = [number for number in met if number % 2 == remainder]
            assert met == tagged, f"{queue}: {tag}"
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


def run(
    seed: int, monkeypatch: pytest.MonkeyPatch, episode: Callable[[Case], None] = Case.cut
) -> None:
    """Run one case: three cuts, or errors of the disk, each with its audit."""
    case = Case(seed)
    with monkeypatch.context() as patch:  # of this case alone, so that its seed replays it
        # Files are small: without this the recovery would always read the whole log.
        patch.setattr(recovery, "_WALKED_BYTES", (0, 2_000, 100_000)[seed // CASES_EACH % 3])
        if case.mapped_queue_files_max:
            patch.setattr(queue_ends, "QUEUES_MIN", 1)
            patch.setattr(loader, "BUFFERS_MAX", 1 + seed // 2 % 3)
        case.open()
        for _ in range(3):
            episode(case)
            case.audit()


@pytest.mark.parametrize("first", range(0, rounds(test=200, long=10_000), CASES_EACH))
def test_an_error_at_any_operation_breaks_no_promise(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + CASES_EACH):
        try:
            run(seed, monkeypatch, Case.fail)
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem


@pytest.mark.parametrize("first", range(0, rounds(test=600, long=50_000), CASES_EACH))
def test_a_power_cut_at_any_operation_breaks_no_promise(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + CASES_EACH):
        try:
            run(seed, monkeypatch)
        except (AssertionError, Exception) as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem


# --- a slave ------------------------------------------------------------------------------------

BLANK_BYTES = 8
"""The size and the magic number of a blank, which fills the end of a log file."""


@dataclass(frozen=True)
class MasterLog:
    """The log of a master, and what is in it."""

    data: bytes
    messages: dict[int, tuple[Queue, bytes]]
    """By the log offset where the record of a message begins: its queue and body."""
    ends: frozenset[int]
    """The log offsets where a slave may end: behind a record, or a blank."""

    def whole_to(self, received_to: int) -> int:
        """Return where the log of a slave may end that has received so much.

        The first 8 bytes of a blank are enough for a start: the rest of the file is zeros.
        """
        file_end = (received_to // LOG_FILE_BYTES + 1) * LOG_FILE_BYTES
        last_end = max(end for end in self.ends if end < file_end)
        is_blank_known = last_end + BLANK_BYTES <= received_to and file_end <= len(self.data)
        return file_end if is_blank_known else received_to


@cache
def master_log() -> MasterLog:
    """Return a log of a few files; it is the same each time."""
    chance = SeededRandomness(0)
    store = opened(ROOT, files=PowerFiles(SeededRandomness(1)))
    messages: dict[int, tuple[Queue, bytes]] = {}
    ends = {0}
    for number in range(60):
        queue = QUEUES[chance.below(len(QUEUES))]
        body = b"%d-" % number + b"x" * chance.below((100, 900, 5000)[chance.below(3)])
        properties = {"KEYS": f"k{number}", "TAGS": TAGS[number % 2]}
        stored = put(store, body, topic=queue[0], queue_id=queue[1], properties=properties)
        messages[stored.log_offset] = queue, body
        ends |= {stored.log_offset, stored.log_offset + stored.size_bytes}
    data = log_of(store)
    store.close()
    return MasterLog(data, messages, frozenset(ends))


def log_of(store: MessageStore) -> bytes:
    found = b""
    while (part := store.log_bytes(len(found), LOG_FILE_BYTES)) is not None:
        found += bytes(part)
    return found


class SlaveCase:
    """One slave's files through its copies, cuts and starts."""

    def __init__(self, seed: int) -> None:
        self.chance = SeededRandomness(seed)
        self.files = PowerFiles(
            SeededRandomness(seed + 1),
            has_journal=self.chance.below(4) > 0,
            keeps_prefixes=self.chance.below(2) == 0,
        )
        self.clock = ManualClock()
        self.master = master_log()
        self.settings = small_settings(
            ROOT,
            flush_disk_type=("SYNC_FLUSH", "ASYNC_FLUSH")[self.chance.below(2)],
            mapped_queue_files_max=self.chance.below(2),
            consume_queue_ext_enabled=self.chance.below(2) == 0,
        )
        self.copied_to = 0
        """The end of the last whole record that was copied."""
        self.synced_to = 0
        """What the slave may have acknowledged to its master."""
        self.received_to = 0
        """Where its log may end at most."""
        self.is_open = False

    def open(self) -> None:
        self.is_open = False
        self.store = MessageStore(self.settings, clock=self.clock, files=self.files, is_copy=True)
        self.store.open()
        self.is_open = True

    def run(self, episode: Callable[[SlaveCase], None]) -> None:
        """Run three cuts, or errors of the disk, each with its audit; then copy all."""
        self.open()
        for _ in range(3):
            episode(self)
            self.audit()
        while self.store.replica.received_to < len(self.master.data):
            self.copy()
        self.audit()
        assert self.store.written_to == len(self.master.data)
        self.store.close()

    def cut(self) -> None:
        """Copy until the power fails, or the log ends."""
        span = (10, 50, 300)[self.chance.below(3)]
        self.files.cut_at = self.files.operations + 1 + self.chance.below(span)
        with suppress(PowerCutError):
            self.load()
        self.end()
        start_again(self)

    def fail(self) -> None:
        """Let an operation fail, then start on a disk that works."""
        self.files.fault = next_fault(self.files, self.chance)
        try:
            self.load()
        except ReplicaError:  # the bytes of the master are right
            raise
        except StoreError:
            self.files.fault = None
            if self.is_open:
                with suppress(StoreError):  # what a slave acknowledges now must be on the disk
                    self.flush()
        self.files.fault = None
        self.end()
        self.open()

    def end(self) -> None:
        """Let the machine stop, or only the process."""
        self.store.abandon()
        if self.chance.below(3):
            self.files.power_on()
            self.copied_to = self.synced_to
        else:
            self.files.kill()

    def load(self) -> None:
        self.store.replica.begin()
        steps = [self.copy] * 8 + [self.flush] * 3
        steps += [self.flush_queues, self.store_checkpoint, self.reconnect, self.stop]
        while self.store.replica.received_to < len(self.master.data):
            self.clock.advance(self.chance.below(2000))
            steps[self.chance.below(len(steps))]()

    def copy(self) -> None:
        """Receive a piece of the log, which ends anywhere in a file."""
        replica = self.store.replica
        at = replica.received_to
        size = 1 + self.chance.below((40, 1000, 9000)[self.chance.below(3)])
        stop = min(at + size, len(self.master.data), at - at % LOG_FILE_BYTES + LOG_FILE_BYTES)
        self.received_to = max(self.received_to, self.master.whole_to(stop))
        replica.expect(at)
        replica.append(self.master.data[at:stop])
        self.copied_to = self.store.written_to

    def flush(self) -> None:
        self.synced_to = self.store.flush()

    def flush_queues(self) -> None:
        self.store.flush_queues(self.chance.below(2), with_index=self.chance.below(2) == 0)

    def store_checkpoint(self) -> None:
        self.store.write_checkpoint()

    def reconnect(self) -> None:
        """The part of a record that is here is received again."""
        self.store.replica.begin()

    def stop(self) -> None:
        self.store.close()
        self.synced_to = self.copied_to
        self.open()
        assert self.copied_to <= self.store.replica.begin() <= self.received_to

    def audit(self) -> None:
        """Compare with the master; everything that is there is found in each way."""
        self.store.flush()
        end = self.store.replica.begin()
        assert end >= self.copied_to, f"{self.copied_to} copied or acknowledged, {end} kept"
        assert end <= self.received_to, f"{self.received_to} received, {end} there"
        assert end in self.master.ends or end % LOG_FILE_BYTES == 0, f"{end} is inside a record"
        assert log_of(self.store) == self.master.data[:end], "not the bytes of the master"
        self.copied_to = self.synced_to = end
        for queue in QUEUES:
            messages = self.master.messages.items()
            known = [body for at, (of, body) in messages if of == queue and at < end]
            found = all_messages(self.store, *queue)
            assert [message.body for message in found] == known, f"{queue}: not what was sent"
            for message in found:
                key = "k" + message.body.split(b"-")[0].decode()
                count = len(self.store.query(queue[0], key, 9, 0, 2**62).records)
                assert count == 1, f"{queue}: {key} is found {count} times"


def run_slave(
    seed: int, monkeypatch: pytest.MonkeyPatch, episode: Callable[[SlaveCase], None]
) -> None:
    """Run one case of a slave, with fewer buffers than queues or as many."""
    with monkeypatch.context() as patch:
        patch.setattr(loader, "BUFFERS_MAX", 1 + seed % len(QUEUES))
        SlaveCase(seed).run(episode)


@pytest.mark.parametrize("episode", [SlaveCase.cut, SlaveCase.fail], ids=["cut", "error"])
@pytest.mark.parametrize("first", range(0, rounds(test=40, long=5_000), SLAVE_CASES_EACH))
def test_a_slave_keeps_a_beginning_of_its_masters_log(
    first: int, episode: Callable[[SlaveCase], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + SLAVE_CASES_EACH):
        try:
            run_slave(seed, monkeypatch, episode)
        except Exception as problem:
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


def check_noticed(run_case: Callable[[int], None]) -> None:
    for seed in range(MUTATION_CASES):
        try:
            run_case(seed)
        except Exception as noticed:
            print(f"noticed by seed {seed}: {noticed!r}")
            return
    pytest.fail(f"{MUTATION_CASES} cases noticed nothing")


def flush_ignoring_failures(flush: Callable[..., int]) -> Callable[..., int]:
    def replaced(store: MessageStore, least_pages: int = 0) -> int:
        try:
            return flush(store, least_pages)
        except StoreError:
            return store.written_to

    return replaced


@pytest.mark.long
@pytest.mark.parametrize("case", ["master", "slave"])
def test_the_cases_notice_a_failed_sync_that_is_acknowledged(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "flush", flush_ignoring_failures(MessageStore.flush))
    check_noticed(
        lambda seed: (
            run(seed, monkeypatch, Case.fail)
            if case == "master"
            else run_slave(seed, monkeypatch, SlaveCase.fail)
        )
    )


@pytest.mark.long
def test_the_cases_notice_a_slave_that_keeps_a_part_of_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_end = recovery.find_end
    monkeypatch.setattr(
        recovery, "find_end", lambda *log, **more: find_end(*log, **{**more, "synced_ms": None})
    )
    check_noticed(lambda seed: run_slave(seed, monkeypatch, SlaveCase.cut))


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_recovery_that_leaves_something_out(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, replaced = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, replaced(getattr(owner, name)))
    check_noticed(lambda seed: run(seed, monkeypatch))
