"""Power cuts and kills at any operation of a broker whose timer messages wait.

Each case runs a random load in virtual time on a file system in memory: messages that are due soon,
recalls, flushes, writes of the index, stops and kills of the process, a clock that jumps ahead. The
power fails at a random operation, often again during the recovery. In the end, when all is due,
each message of the log is delivered once and not early, what was acknowledged is among them, and no
recalled one is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.timers import slot_delivery
from cometmq.model import property_names as names
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import split_record
from cometmq.store.timers.index import TimerIndex
from support.checks.randomness import SeededRandomness
from support.checks.waiting import until
from support.runner.tiers import rounds
from support.stores.power_files import PowerCutError, PowerFiles
from support.stores.timer_records import Recall, TimerRecord, wrong_timers
from support.stores.timer_stores import Timers, shrink_wheel

pytestmark = pytest.mark.usefixtures("virtual_time")

CASES = rounds(test=60, long=3_000)
MUTATION_CASES = 60
DELAY_MS_MAX = 9_000
WHEEL_SLOTS = 3_600
SETTINGS = {"commit_log_file_bytes": 64 * 1024, "roll_slots": 5}
"""Messages that are further away than five seconds are stored again on their way."""


class Case:
    """The files of one broker through load, cuts and starts."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = SeededRandomness(seed)
        self.files = PowerFiles(SeededRandomness(seed + 1), has_journal=self.chance.below(4) > 0)
        self.timers = Timers(folder, files=self.files, **SETTINGS)  # type: ignore[arg-type]
        self.number = 0
        self.stored: dict[str, int] = {}
        """The end of the record of each message that waits, or waited."""
        self.acknowledged: set[str] = set()
        self.recalls: dict[Recall, int] = {}
        """The ends of the records of recalls."""
        self.recalled: set[Recall] = set()
        """The acknowledged ones."""

    async def run(self) -> list[str]:
        """Load, cut, start again, several times; return what is wrong in the end."""
        self.timers.start()
        for _ in range(1 + self.chance.below(3)):
            span = (20, 100, 400)[self.chance.below(3)]
            self.files.cut_at = self.files.operations + 1 + self.chance.below(span)
            try:
                await self.load()
            except PowerCutError:
                await self.end()
            await self.start_again()
        await self.settle()
        found = self.wrong()
        await self.timers.stop()
        return found

    async def load(self) -> None:
        steps = [self.send] * 4 + [self.recall] * 2 + [self.acknowledge] * 2 + [self.save]
        while True:
            await asyncio.sleep(self.chance.fraction() * 1.5)
            if self.files.is_off:
                raise PowerCutError
            kind = self.chance.below(30)
            if kind == 0:
                await self.timers.reopen(crash=True)
            elif kind == 1:
                await self.timers.reopen()
                self.acknowledge()
            elif kind == 2:
                self.timers.clock.ahead_ms += self.chance.below(5_000)
            else:
                steps[self.chance.below(len(steps))]()

    def send(self) -> None:
        for _ in range(1 + self.chance.below(4)):
            name = f"t{self.number}"
            self.number += 1
            self.timers.send(name, 1 + self.chance.below(DELAY_MS_MAX))
            self.stored[name] = self.timers.store.written_to

    def recall(self) -> None:
        """Recall one of the messages that wait, as long as that is accepted."""
        waiting = [each for each in self.records() if each.waits and not each.is_copy]
        if not waiting:
            return
        message = waiting[self.chance.below(len(waiting))].recall
        if self.timers.clock.now_ms() <= message.slot_ms:
            name = message.key.removeprefix("T+K")
            self.timers.recall(name, message.slot_ms + 1)
            self.recalls[message] = self.timers.store.written_to

    def acknowledge(self) -> None:
        flushed_to = self.timers.store.flush()
        self.acknowledged |= {name for name, end in self.stored.items() if end <= flushed_to}
        self.recalled |= {recall for recall, end in self.recalls.items() if end <= flushed_to}

    def save(self) -> None:
        self.timers.delivery.save()

    async def end(self) -> None:
        """Let the machine stop, or only the process."""
        await self.timers.crash()
        if self.chance.below(3):
            self.files.power_on()
        else:
            self.files.kill()

    async def start_again(self) -> None:
        """Open the store, whose recovery may be cut, too; forget what it does not have."""
        self.files.cut_at = None
        while self.chance.below(2):
            self.files.cut_at = self.files.operations + 1 + self.chance.below(60)
            try:
                self.timers.open()
            except PowerCutError:
                self.timers.store.abandon()
                self.files.power_on()
                continue
            self.timers.start()
            await asyncio.sleep(self.chance.fraction())
            if self.files.is_off:
                await self.end()
            else:
                await self.timers.crash()
                self.files.kill()
        self.timers.open()
        self.timers.start()
        records = self.records()
        written = {each.name for each in records if each.waits and not each.recalls}
        self.stored = {name: end for name, end in self.stored.items() if name in written}
        recalls = {each.recall for each in records if each.recalls}
        self.recalls = {each: end for each, end in self.recalls.items() if each in recalls}

    async def settle(self) -> None:
        """Wait until everything is due and delivered."""
        index, delivery = self.timers.index, self.timers.delivery
        await until(
            lambda: delivery.figures().queue_behind == 0 and index.is_empty,
            timeout=600,
            pause_s=0.5,
        )

    # --- the audit ------------------------------------------------------------------------------

    def records(self) -> list[TimerRecord]:
        """Return the records of timer messages in the log."""
        found = []
        for topic in (TIMER_TOPIC, "T"):
            for unit in self.timers.store.written_units(topic, 0, 0):
                data = self.timers.store.written_record_at(*unit)
                assert data is not None
                record = split_record(data)
                properties = decode_properties(record.properties)
                if names.TIMER_OUT_MS in properties:
                    found.append(TimerRecord.of("b", topic, record, properties))
        return found

    def wrong(self) -> list[str]:
        records = self.records()
        waited = {each.name for each in records if each.waits and not each.recalls}
        lost = self.acknowledged - waited
        found = [f"lost: {name} was acknowledged" for name in sorted(lost)]
        return [*found, *wrong_timers(records, list(self.recalled))]


async def run(seed: int, folder: Path) -> list[str]:
    """Run one case; return what is wrong."""
    return await Case(seed, folder / "store").run()


async def test_timer_messages_survive_cuts_at_any_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink_wheel(monkeypatch, WHEEL_SLOTS)
    wrong = {seed: found for seed in range(CASES) if (found := await run(seed, tmp_path))}
    assert wrong == {}


def without_slots(save: Callable[..., None]) -> Callable[..., None]:
    """Let slots be lost that units and checkpoint count on."""
    return lambda self, snapshot: save(self, snapshot._replace(slots={}))


def passed_at_once(pass_to: Callable[..., None]) -> Callable[..., None]:
    """Let a slot count as passed up to a record that is not on the disk yet."""
    return lambda self, slot_ms, log_offset: pass_to(self, slot_ms, log_offset + 100_000)


def found_nothing(_: Callable[..., None]) -> Callable[..., bool]:
    return lambda self, record: False


MUTATIONS = {
    "slots are not written": (TimerIndex, "save", without_slots),
    "copies behind the passed slots are not looked at": (TimerIndex, "pass_to", passed_at_once),
    "copies do not count": (slot_delivery.Delivered, "has", found_nothing),
}
"""What is replaced, and by what, given the original."""


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_the_cases_notice_what_is_lost_or_repeated(
    mutation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink_wheel(monkeypatch, WHEEL_SLOTS)
    owner, name, replaced = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, replaced(getattr(owner, name)))
    for seed in range(MUTATION_CASES):
        if found := await run(seed, tmp_path):
            print(f"noticed by seed {seed}: {found[0]}")
            return
    pytest.fail(f"{MUTATION_CASES} cases noticed nothing")
