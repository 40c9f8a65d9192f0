"""Simulated clusters: no seed loses, repeats beyond the promise, reorders or invents a message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.durability.acknowledgements import SUCCESS, Acknowledgements
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.failover.elected_role import ElectedRole
from cometmq.broker.failover.epochs.acknowledgements import EpochAcknowledgements
from cometmq.broker.failover.epochs.slave import EpochMasterConnection
from cometmq.broker.failover.epochs.wire import MasterEpochs
from cometmq.broker.pop.revive_log import ReviveLog
from cometmq.broker.producer_sessions.sessions import ProducerSessions
from cometmq.broker.replication.greeting import GREETING_BYTES, SlaveNames, Tickets
from cometmq.broker.replication.slave import MasterConnection
from cometmq.broker.timers.delivered import Delivered
from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.broker.timers.queue_reader import TimerQueue
from cometmq.broker.timers.slot_delivery import SlotDelivery
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.controller import broker_set, handler
from cometmq.controller.broker_set import Heard
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.remoting import Request, Response
from cometmq.store.lifecycle import set_aside
from cometmq.store.lifecycle.recovery import Recovery
from cometmq.store.queues.redispatch import Redispatched
from cometmq.store.timers import index
from simulation.faults import STRANGER, Faults
from simulation.job import JOB_FAULTS
from simulation.kernel import UNCLOSED
from simulation.layouts import LAYOUTS, Layout
from simulation.machines import SimulatedCommit
from simulation.poppers import POP_FAULTS
from simulation.strangers import Stranger
from simulation.timer_sends import TIMER_COUNTS
from simulation.world import simulate
from support.runner.tiers import rounds

pytestmark = pytest.mark.filterwarnings(UNCLOSED)

REPLAY = Path(__file__).with_name("replay.py")
SEEDS = rounds(test=330, long=10_000)
PARTS = rounds(test=3, long=9)
"""A part has each third, or each ninth, of the layouts, and all their seeds."""
PLANTED_SEEDS = 40
"""The number of worlds that is enough to find each planted bug."""


@pytest.mark.parametrize("part", range(PARTS))
def test_messages_survive_everything_that_happens_to_a_cluster(part: int) -> None:
    seeds = range(part, SEEDS, PARTS)
    command = [sys.executable, str(REPLAY), "--counts", *map(str, seeds)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    worlds = [json.loads(line) for line in output.splitlines()]
    assert [world["seed"] for world in worlds] == list(seeds)
    wrong = [
        f"python tests/simulation/{REPLAY.name} {world['seed']}: {world['failures']}"
        for world in worlds
        if world["failures"]
    ]
    assert not wrong, f"{len(wrong)} of {len(seeds)} seeds:\n" + "\n".join(wrong[:20])
    strangers = {name for world in worlds for name in world["faults"] if name.startswith(STRANGER)}
    assert strangers == {f"{STRANGER}{kind}" for kind in Stranger.kinds()}
    for layout in LAYOUTS[part::PARTS]:
        here = [world for world in worlds if LAYOUTS[world["seed"] % len(LAYOUTS)] is layout]
        faults = sum((Counter(world["faults"]) for world in here), Counter[str]())
        elections = sum(world["elections"] for world in here)
        print(f"{layout.name}: {len(here)} worlds, {elections} elections, {dict(faults)}")
        assert {name for name in faults if not name.startswith(STRANGER)} == (
            Faults.counted(layout) | JOB_FAULTS | TIMER_COUNTS | POP_FAULTS
        )
        assert sum(world["acknowledged"] for world in here) > 20 * len(here)
        assert elections >= 2 * len(here) * bool(layout.controllers)


def test_a_seed_gives_the_same_history_in_every_process_and_build() -> None:
    # In 26 a slave forwards several sends at once; in 2554 a broker dies between a queue and a log.
    # In 45 and 52 groups pop.
    seeds = [*range(len(LAYOUTS)), 26, 45, 52, 2554]
    here = [simulate(seed).digest() for seed in seeds]
    for hash_seed, build in (("1", {}), ("2", {"COMETMQ_BUILD": "interpreted"})):
        command = [sys.executable, str(REPLAY), "--digest", *map(str, seeds)]
        variables = os.environ | {"PYTHONHASHSEED": hash_seed} | build
        done = subprocess.run(command, env=variables, capture_output=True, check=True)
        assert done.stdout.decode().split() == here, build


def acknowledge_before_the_sync(wait: Any) -> Any:
    def early(self: SimulatedCommit, log_offset_end: int, on_outcome: Any) -> None:
        wait(self, log_offset_end, lambda is_synced, error: None)
        on_outcome(True, None)

    return early


def commit_before_handled(update: Any) -> Any:
    def early(self: RemoteOffsetStore, queue: Any, offset: int, **options: Any) -> None:
        update(self, queue, offset + 2, **options)

    return early


def leave_the_end_out_of_the_queues(redispatch: Any) -> Any:
    def short(self: Recovery, start: int, end: int) -> Redispatched:
        done: Redispatched = redispatch(self, start, max(start, end - 1500))
        return done

    return short


def acknowledge_before_a_slave_has_it(wait: Any) -> Any:
    return lambda self, log_offset_end, on_outcome: on_outcome(SUCCESS)


def report_before_the_sync(acknowledge: Any) -> Any:
    return lambda self: self._report(self._whole_to)


def keep_what_the_master_lacks(join: Any) -> Any:
    def untruncated(self: EpochMasterConnection, master: MasterEpochs) -> None:
        self._epochs.keep(master.epochs)
        self._whole_to = self._replica.received_to
        self._may_report = True

    return untruncated


def act_as_before(check_epochs: Any) -> Any:
    async def unchecked(self: ElectedRole, decision: Any, known: Any) -> None:
        """Do not look what the controllers know."""

    return unchecked


def hear_nothing(hear: Any) -> Any:
    return lambda self, header: Heard()


def note_nothing(note: Any) -> Any:
    return lambda self, known: None


def take_any_set(check_set: Any) -> Any:
    return lambda *_: None


def trust_each_log(is_able: Any) -> Any:
    return lambda replica, candidate: True


def forget_the_members_before(members: Any) -> Any:
    return lambda before, known: before.in_sync


def take_any_ticket(take: Any) -> Any:
    def unchecked(self: Tickets, data: bytes) -> SlaveNames | None:
        return SlaveNames.decode(data[8:64]) if len(data) >= GREETING_BYTES else None

    return unchecked


def keep_nothing(kept: Any) -> Any:
    return lambda *_, **__: None


def check_no_session(check_send: Any) -> Any:
    return lambda *_: None


def load_no_sessions(load: Any) -> Any:
    async def forgotten(self: ProducerSessions) -> None:
        self._is_loaded = True

    return forgotten


def load_nothing_in_flight(load: Any) -> Any:
    async def forgotten(self: ReviveLog) -> None:
        self.is_loaded = True

    return forgotten


def respond_before_the_sync(respond: Any) -> Any:
    return lambda self, request, log_offset_end, response=None: response or Response()


def respond_to_all_before_the_sync(respond_to_all: Any) -> Any:
    def at_once(self: DurabilityWait, requests: list[Request], log_offset_end: int) -> None:
        for request in requests:
            request.reply(Response())

    return at_once


def find_no_copy(has: Any) -> Any:
    return lambda self, record: False


def take_no_recall(take: Any) -> Any:
    async def untaken(self: SlotDelivery, opened: Any, units: Any, slices: Any) -> None:
        """Let recalled messages be delivered."""

    return untaken


def read_nothing_late(read: Any) -> Any:
    async def unread(self: TimerQueue, slices: Any) -> None:
        """Leave late messages in slots that are passed."""

    return unread


def has_not_begun(has_begun: Any) -> Any:
    return lambda self, slot_ms: False


def want_at_once(wanted: Any) -> Any:
    return lambda properties, store_ms: 0


ASYNCHRONOUS = "elected, asynchronous flush"
TRUSTS = broker_set, "_is_able", trust_each_log
FAILURES = ("blackout", "power_cut", "kill_master")
CUTS = ("power_cut", "blackout")


@dataclass(frozen=True)
class Planted:
    """A bug: what is replaced, and by what, given the original."""

    replaced: tuple[tuple[object, str, Callable[[Any], Any]], ...]
    layout: str
    """The cluster that shows it."""
    faults: tuple[str, ...] = ()
    """The only faults that happen; empty for all."""
    first_seed: int = 0
    """So that few worlds are enough."""
    finds: str = ""
    """The beginning of the failure."""
    has_job: bool = False
    """Whether it shows only in producer sessions."""
    has_timers: bool = False
    """Whether it shows only in timer messages."""
    has_pop: bool = False
    """Whether it shows only in pops."""

    @classmethod
    def one(
        cls, owner: object, name: str, replacement: Callable[[Any], Any], layout: str, **more: Any
    ) -> Planted:
        """Return a bug of which one thing is replaced."""
        return cls(((owner, name, replacement),), layout, **more)


PLANTED = {
    "acknowledges before the sync": Planted.one(
        SimulatedCommit, "wait", acknowledge_before_the_sync, "one broker"
    ),
    "commits two messages ahead": Planted.one(
        RemoteOffsetStore, "update", commit_before_handled, "one broker"
    ),
    "leaves queues short": Planted.one(
        Recovery, "_redispatch", leave_the_end_out_of_the_queues, "one broker", first_seed=95
    ),
    "acknowledges before a slave has it": Planted.one(
        Acknowledgements, "wait", acknowledge_before_a_slave_has_it, "lost master", first_seed=3
    ),
    "a slave reports what is not on its disk": Planted.one(
        MasterConnection, "_acknowledge", report_before_the_sync, "lost master", first_seed=16
    ),
    "a master acknowledges alone": Planted.one(
        EpochAcknowledgements, "wait", acknowledge_before_a_slave_has_it, "elected"
    ),
    "a slave is not truncated": Planted.one(
        EpochMasterConnection, "_join", keep_what_the_master_lacks, "elected"
    ),
    "acknowledges though the controllers know less": Planted(
        (
            (ElectedRole, "_check_epochs", act_as_before),
            (LiveBrokers, "_hear", hear_nothing),
            (LiveBrokers, "note", note_nothing),
        ),
        "elected",
        ("restore_etcd",),
        first_seed=1,
    ),
    "follows the log of another set": Planted(
        (
            (broker_set, "check_set", take_any_set),
            (handler, "check_set", take_any_set),
            (ElectedRole, "_check_set", take_any_set),
        ),
        "elected",
        ("empty_etcd",),
        first_seed=2,
    ),
    "elects without a comparison after an unclean stop": Planted(
        (TRUSTS,), ASYNCHRONOUS, FAILURES, first_seed=2
    ),
    "compares one that never led with nobody": Planted.one(
        *(broker_set, "_members", forget_the_members_before, ASYNCHRONOUS),
        faults=FAILURES,
        first_seed=80,
    ),
    "counts an acknowledgement for a claimed id": Planted(
        ((Tickets, "take", take_any_ticket),), "elected", ("stranger",), finds="early: "
    ),
    "does not fence older attempts": Planted.one(
        *(ProducerSessions, "check_send", check_no_session, "three masters"),
        has_job=True,
        finds="zombie: ",
    ),
    "forgets producer sessions with a restart": Planted.one(
        *(ProducerSessions, "_load", load_no_sessions, "elected"),
        has_job=True,
        finds="repeated: ",
    ),
    "opens a producer session before the sync": Planted.one(
        *(DurabilityWait, "respond", respond_before_the_sync, "one broker"),
        faults=CUTS,
        has_job=True,
        finds="zombie: ",
    ),
    "delivers timer messages again": Planted.one(
        Delivered, "has", find_no_copy, "one broker", has_timers=True, finds="twice: "
    ),
    "a new master loses timer messages that came late": Planted.one(
        *(TimerQueue, "read_late", read_nothing_late, "elected"),
        faults=("clock_jump", "kill_master"),
        has_timers=True,
        finds="lost: ",
    ),
    "recalls timer messages that are delivered already": Planted.one(
        *(TimerDelivery, "has_begun", has_not_begun, "one broker"),
        faults=("clock_jump",),
        has_timers=True,
        finds="recalled: ",
    ),
    "delivers recalled timer messages": Planted.one(
        *(SlotDelivery, "_take_recalls", take_no_recall, "one broker"),
        has_timers=True,
        finds="recalled: ",
    ),
    "delivers timer messages at the beginning of a slot": Planted.one(
        index, "_wanted_ms", want_at_once, "one broker", has_timers=True, finds="too soon: "
    ),
    "forgets what is in flight with a restart": Planted.one(
        *(ReviveLog, "_load", load_nothing_in_flight, "one broker"),
        has_pop=True,
        finds="again: ",
    ),
    "acknowledges a popped message before the sync": Planted.one(
        *(DurabilityWait, "respond_to_all", respond_to_all_before_the_sync, "one broker"),
        faults=CUTS,
        has_pop=True,
        finds="again: ",
    ),
    "erases what was confirmed": Planted(
        (TRUSTS, (set_aside, "set_aside", keep_nothing)),
        ASYNCHRONOUS,
        FAILURES,
        first_seed=2,
        finds="erased: ",
    ),
}


def planted_layout(planted: Planted) -> Layout:
    found = next(layout for layout in LAYOUTS if layout.name == planted.layout)
    return replace(
        found,
        faults=planted.faults,
        has_job=planted.has_job,
        has_timers=planted.has_timers,
        has_pop=planted.has_pop,
    )


@pytest.mark.parametrize("bug", PLANTED)
def test_the_simulation_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[bug]
    for owner, name, replacement in planted.replaced:
        monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    for seed in range(planted.first_seed, planted.first_seed + PLANTED_SEEDS):
        failures = simulate(seed, layout=planted_layout(planted)).failures
        if found := [failure for failure in failures if failure.startswith(planted.finds)]:
            print(f"{bug}: found by seed {seed}: {found[0]}")
            return
    pytest.fail(f"{PLANTED_SEEDS} seeds have not found it")
