"""Power cuts at any operation of a broker: log, queues, index, offsets, tables, checkpoint.

Each case runs a random load on a file system in memory, with stops and kills of the process in
between. It cuts the power, or kills the process, at a random operation, often once more during the
recovery, and audits what starts afterwards. What was acknowledged is there, after a kill all that
was stored; nothing is there that was not sent; all of it is found by offset, tag and key; no group
is ahead of its queue; and the store goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import encode_properties
from cometmq.store import MessageStore, recovery
from cometmq.store.config_files import JsonFile
from cometmq.store.reading import TagMatcher
from cometmq.system.clock import ManualClock
from cometmq.system.randomness import SeededRandomness
from support.power_files import PowerCutError, PowerFiles
from support.stores import BROKER, PRODUCER, bodies, small_settings, split
from support.tiers import rounds

CASES_EACH = 100
QUEUES = [("orders", 0), ("orders", 1), ("bills", 0)]
ROOT = Path("/store")
TAGS = ["TagA", "TagB"]
"""Of messages with even numbers, and with odd ones."""


@dataclass
class Sent:
    """What was sent to one queue, and how much of it was acknowledged."""

    bodies: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    acknowledged: int = 0


class Case:
    """One broker's files through its loads, cuts and starts."""

    def __init__(self, seed: int) -> None:
        self.chance = SeededRandomness(seed)
        self.files = PowerFiles(SeededRandomness(seed + 1))
        self.clock = ManualClock()
        self.sent = {queue: Sent() for queue in QUEUES}
        self.topics_acknowledged: set[str] = set()
        self.topics: set[str] = set()
        self.number = 0
        self.in_flight = (QUEUES[0], b"")
        self.was_cut = False

    def open(self) -> None:
        self.store = MessageStore(small_settings(ROOT), clock=self.clock, files=self.files)
        self.store.open()
        self.offsets = OffsetStore(
            JsonFile(ROOT / "config" / "consumerOffset.json", self.files), clock=self.clock
        )
        self.offsets.load(self.store.bounds)
        self.table = JsonFile(ROOT / "config" / "topics.json", self.files)

    def load(self) -> None:
        """Do at random what a broker does; ends with the power cut at the latest."""
        span = (20, 100, 500)[self.chance.below(3)]
        self.files.cut_at = self.files.operations + 1 + self.chance.below(span)
        while True:
            self.clock.advance(self.chance.below(2000))
            step = self.chance.below(12)
            if step < 5:
                self.send()
            elif step == 5:
                self.acknowledge()
            elif step == 6:
                self.store.flush_queues(self.chance.below(2), with_index=self.chance.below(2) == 0)
            elif step == 7:
                self.store.write_checkpoint()
            elif step == 8:
                self.commit()
            elif step == 9:
                self.offsets.persist(self.store.flush)
            elif step == 10:
                self.create_topic()
            elif self.chance.below(4) == 0:
                self.offsets.persist(self.store.flush)
                self.store.close()
                self.acknowledge_all()
                self.open()
            elif self.chance.below(4) == 0:
                self.store.abandon()
                self.files.unlock()
                self.open()

    def send(self) -> None:
        for _ in range(1 + self.chance.below(8)):
            topic, queue_id = QUEUES[self.chance.below(len(QUEUES))]
            body = b"%d-" % self.number + b"x" * self.chance.below(900)
            self.in_flight = (topic, queue_id), body
            tag = TAGS[self.number % 2]
            properties = encode_properties({"KEYS": f"k{self.number}", "TAGS": tag})
            stored = self.store.append(
                topic,
                queue_id,
                body,
                properties,
                born_time_ms=0,
                born_host=PRODUCER,
                store_host=BROKER,
            )
            sent = self.sent[topic, queue_id]
            assert stored.queue_offset == len(sent.bodies)
            sent.bodies.append(body)
            sent.ends.append(stored.log_offset + stored.size_bytes)
            self.number += 1
            self.in_flight = QUEUES[0], b""

    def acknowledge(self) -> None:
        flushed_to = self.store.flush()
        for sent in self.sent.values():
            sent.acknowledged = sum(end <= flushed_to for end in sent.ends)

    def acknowledge_all(self) -> None:
        for sent in self.sent.values():
            sent.acknowledged = len(sent.bodies)

    def commit(self) -> None:
        topic, queue_id = QUEUES[self.chance.below(len(QUEUES))]
        low, high = self.store.bounds(topic, queue_id)
        self.offsets.commit("g", topic, queue_id, low + self.chance.below(high - low + 1))

    def create_topic(self) -> None:
        self.topics.add(f"topic-{len(self.topics)}")
        self.table.save({"topicConfigTable": {name: {} for name in sorted(self.topics)}})
        self.topics_acknowledged = set(self.topics)

    def cut(self) -> None:
        with pytest.raises(PowerCutError):
            self.load()
        self.was_cut = False
        self.end()
        while self.chance.below(2):  # it may happen again while the store recovers
            self.files.cut_at = self.files.operations + 1 + self.chance.below(12)
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

    def audit(self) -> None:
        for (topic, queue_id), sent in self.sent.items():
            found = bodies(self.store, topic, queue_id)
            known = list(sent.bodies)
            if self.in_flight[0] == (topic, queue_id) and len(found) > len(known):
                known.append(self.in_flight[1])
            assert found == known[: len(found)], f"{topic}/{queue_id}: not what was sent"
            least = sent.acknowledged if self.was_cut else len(sent.bodies)
            assert len(found) >= least, f"{topic}/{queue_id}: acknowledged and lost"
            numbers = [int(body.split(b"-")[0]) for body in found]
            for number in numbers:
                key = f"k{number}"
                assert len(self.store.query(topic, key, 9, 0, 2**62).records) == 1, key
            for remainder, tag in enumerate(TAGS):
                tagged = [number for number in numbers if number % 2 == remainder]
                assert self.tagged(topic, queue_id, tag) == tagged, f"{topic}/{queue_id}: {tag}"
            committed = self.offsets.committed("g", topic, queue_id) or 0
            assert committed <= len(found), f"{topic}/{queue_id}: the group is ahead of the queue"
            sent.bodies, sent.ends = found, sent.ends[: len(found)]
            sent.acknowledged = len(found)
        content = self.table.load() or {"topicConfigTable": {}}
        assert self.topics_acknowledged <= content["topicConfigTable"].keys() <= self.topics
        self.topics = set(content["topicConfigTable"])
        self.topics_acknowledged = set(self.topics)
        self.send()
        self.acknowledge()


@pytest.mark.parametrize("first", range(0, rounds(test=2_000, long=50_000), CASES_EACH))
def test_a_power_cut_at_any_operation_breaks_no_promise(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files are small: without this the recovery would always read the whole log.
    monkeypatch.setattr(recovery, "_WALKED_BYTES", (0, 2_000, 100_000)[first // CASES_EACH % 3])
    for seed in range(first, first + CASES_EACH):
        case = Case(seed)
        try:
            case.open()
            for _ in range(3):
                case.cut()
                case.audit()
        except (AssertionError, Exception) as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem
