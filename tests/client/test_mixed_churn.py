"""Members of our client and of Java's clients join, leave, stop and are killed at random.

The groups of all modes run at the same time on one cluster, each with a topic, members and a seed
of its own. In the tier ``all`` this takes ten minutes, on the interpreted build one;
``COMETMQ_CHURN_S`` sets another time in seconds. The choices follow from the seeds, which the
report names; what the machine makes of them does not. RocketMQ 4 and our broker have no pop
consumption, so the mode pop runs on RocketMQ 5 only.

The report counts for each mode what happened and, by cause, the messages that were delivered again.
A redelivery without a cause that docs/explanation/guarantees.md names is a failure.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import OURS, SMALL_JAVA, Kind
from servers import Cluster, connect, new_group, new_topic
from wire import Connection

from cometmq.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody
from support.clients.delivery_check import (
    Repeat,
    Seen,
    Tenures,
    behind_commits,
    lost,
    most_at_once,
    out_of_order,
    repeats,
    repeats_of_each,
    without_reason,
)
from support.clients.mixed_groups import QUEUES, End, Member, MixedGroup
from support.runner.versions import POP_SERVERS

pytestmark = pytest.mark.long

IS_REPETITION = os.environ.get("COMETMQ_BUILD") == "interpreted"
CHURN_S = float(os.environ.get("COMETMQ_CHURN_S", 60 if IS_REPETITION else 600))
MEMBERS_MAX, MEMBERS_MIN = 5, 2
JAVA_MAX = 3
"""Each Java member is a process with a heap of 64 MB."""
PACE_MS = 40
BURST_S = 0.25
"""All modes together send 80 messages a second, which two processors deliver between the starts of
new members."""
PAUSE_S = (0.5, 8.0)
"""A member stands still for less than a message stays invisible and than a lock lasts."""
LOCKED_S = 25.0
"""A member is certain of its lock for 30 s after each renewal, and renews it every 2 s."""
STEP_S = (0.5, 4.0)
ARRIVES_S = 400.0
"""A broker keeps the locks of a killed member for 60 s, and the next one may be killed as well."""
REPEATED_MAX = 1_000
"""Messages that a member may see again when it gets a queue: those that the member before it had
seen and not committed, which are fewer than a queue's messages in memory."""

JAVA_49, JAVA_53 = SMALL_JAVA


class Churn:
    """Lets members of a group come, go, stand still and die.

    Args:
        group: whose members they are.
        kinds: the clients they are of; the first one is chosen as often as all others together.
        names: the members' names if a member that is gone comes back under its name; empty if not.
        choice: what is chosen.
        stopped: ends it early.
    """

    def __init__(
        self,
        group: MixedGroup,
        kinds: Sequence[Kind],
        names: Mapping[str, Kind],
        choice: random.Random,
        stopped: threading.Event,
    ) -> None:
        self.group = group
        self._kinds = kinds
        self._names = names
        self._choice = choice
        self._stopped = stopped
        self._resume_at: dict[str, float] = {}

    def run(self, seconds: float) -> None:
        """Do something every few seconds, and look at what is committed."""
        for _ in range(MEMBERS_MIN):
            self._join()
        self.group.send()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopped.is_set():
            self._choice.choice(list(self._possible()))()
            self._wait(self._choice.uniform(*STEP_S))
            self.group.look_at_commits()
        for name in list(self._resume_at):
            self._resume(name)
        for name in self._names.keys() - self.group.members.keys():
            self.group.join(self._names[name], name)
        while len(self.group.members) < MEMBERS_MIN:
            self._join()

    def _wait(self, seconds: float) -> None:
        """Wait, and resume members meanwhile when it is their time."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for name in [name for name, at in self._resume_at.items() if at <= now]:
                self._resume(name)
            if now >= end or self._stopped.wait(min([end, *self._resume_at.values()]) - now):
                return

    def _possible(self) -> Iterator[Callable[[], None]]:
        there = len(self.group.members)
        if there < min(MEMBERS_MAX, len(self._names) or MEMBERS_MAX):
            yield self._join
            yield self._join
        if not self._resume_at:
            yield self._pause
        if there > MEMBERS_MIN:
            yield self._leave
            yield self._kill
            yield self._abort

    def _join(self) -> None:
        if self._names:
            name = self._choice.choice(sorted(self._names.keys() - self.group.members.keys()))
            self.group.join(self._names[name], name)
            return
        ours, *others = self._kinds
        kind = self._choice.choice([ours, self._choice.choice(others)])
        if sum(member.kind is not ours for member in self.group.members.values()) >= JAVA_MAX:
            kind = ours
        self.group.join(kind, f"{kind.name}-{len(self.group.everybody())}")

    def _one(self, kinds: Sequence[Kind], *, even_paused: bool = False) -> str | None:
        names = [
            name
            for name, member in sorted(self.group.members.items())
            if member.kind in kinds and (even_paused or name not in self._resume_at)
        ]
        return self._choice.choice(names) if names else None

    def _leave(self) -> None:
        if (name := self._one(self._kinds)) is not None:
            self.group.leave(name)

    def _abort(self) -> None:
        if (name := self._one([OURS])) is not None:
            self.group.abort(name)

    def _kill(self) -> None:
        if (name := self._one(self._kinds, even_paused=True)) is not None:
            self._resume_at.pop(name, None)
            self.group.kill(name)

    def _pause(self) -> None:
        if (name := self._one(self._kinds)) is not None:
            self.group.pause(name)
            self._resume_at[name] = time.monotonic() + self._choice.uniform(*PAUSE_S)

    def _resume(self, name: str) -> None:
        del self._resume_at[name]
        self.group.resume(name)


Cause = Callable[["Judgement", Seen, Seen], str | None]
"""Why a message may be delivered again after it was before; None if it may not."""


@dataclass(frozen=True)
class Mode:
    """How the members of a group consume, and what they promise."""

    name: str
    kinds: tuple[Kind, ...]
    cause: Cause
    names: Mapping[str, Kind] = field(default_factory=dict)
    """The members' names if each of them gets every message; they come back under these names."""
    is_ordered: bool = False
    has_assignments: bool = True
    """Whether a member may see a message again only if it got the queue anew."""
    commits: bool = True
    """Whether the broker has the group's offsets."""


@dataclass(frozen=True)
class TakenBack:
    """A commit that RocketMQ's broker replaced with an earlier, lower one.

    A pull carries a commit too. The broker handles pulls and commits of one connection in different
    threads, and stores the lower offset of the pull when it comes later. It logs a warning then.
    """

    queue: str
    low: int
    high: int
    at_ms: int

    def covers(self, one: Seen) -> bool:
        """Whether the message was committed and no longer is."""
        is_later = self.at_ms <= one.at_ms
        return self.queue == one.queue and self.low <= one.offset < self.high and is_later


def taken_back(warnings: str, topic: str, group: str) -> list[TakenBack]:
    """The commits of a group that the broker's warnings name."""
    found = re.findall(
        r"^(\S+ \S+) WARN PullMessageThread.*update consumer offset less than store\..*"
        rf"key={re.escape(topic)}@{re.escape(group)}, "
        r"queueId=(\d+), requestOffset=(\d+), storeOffset=(\d+)",
        warnings,
        re.MULTILINE,
    )
    return [
        TakenBack(queue, int(low), int(high), _ms_of(logged)) for logged, queue, low, high in found
    ]


def _ms_of(logged: str) -> int:
    at = datetime.strptime(logged, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


class Judgement:
    """What the members of a group have seen, after the churn."""

    def __init__(self, mode: Mode, group: MixedGroup) -> None:
        self.mode = mode
        self.group = group
        self.seen = group.seen()
        self.tenures = Tenures(group.assigned())
        self.taken_back: list[TakenBack] = []
        if mode.is_ordered:
            warnings = group.cluster.broker_warnings()
            self.taken_back = taken_back(warnings, group.topic, group.group)
        self.members: dict[str, Member] = {str(member): member for member in group.everybody()}
        audiences: dict[str, list[Seen]] = defaultdict(list)
        for one in self.seen:
            audiences[self.members[one.member].name if mode.names else ""].append(one)
        self.audiences = {name: audiences[name] for name in mode.names or [""]}
        """What each of those has seen that get every message."""
        self.repeats: list[Repeat] = [
            pair for seen in self.audiences.values() for pair in repeats(seen)
        ]

    def figures(self) -> dict[str, int]:
        """What the report counts."""
        causes = Counter(
            self.mode.cause(self, before, again) or "without a cause"
            for before, again in self.repeats
        )
        return {
            "stored": len(self.group.stored),
            "deliveries": len(self.seen),
            **{what: self.group.counts[what] for what in ("joined", "paused")},
            **{end.value: self.group.counts[end.value] for end in End},
            "redelivered": len(self.repeats),
            **{f"redelivered: {cause}": count for cause, count in sorted(causes.items())},
            "redelivered at once": most_at_once(self.repeats, self.tenures),
            "commits taken back": len(self.taken_back),
        }

    def problems(self) -> Iterator[str]:
        """What breaks a promise."""
        if len(self.group.stored) <= CHURN_S:
            yield f"only {len(self.group.stored)} messages were stored in {CHURN_S:g} s"
        for name, seen in self.audiences.items():
            yield from (f"{name} {problem}".strip() for problem in lost(self.group.stored, seen))
        if self.mode.is_ordered:
            yield from out_of_order(self.seen)
            yield from out_of_order(self._of_keys())
            yield from behind_commits(self.seen, self.group.commits, self.was_taken_back)
            yield from self._several_after_a_handover()
        unexplained = without_reason(
            self.repeats, lambda *pair: self.mode.cause(self, *pair) is not None
        )
        if self.mode.has_assignments:
            unexplained += without_reason(repeats_of_each(self.seen), self.got_queue_anew)
        yield from (f"redelivered without a cause: {problem}" for problem in unexplained)
        if (most := most_at_once(self.repeats, self.tenures)) > REPEATED_MAX:
            yield f"{most} messages were redelivered at once, more than {REPEATED_MAX}"

    def got_queue_anew(self, before: Seen, again: Seen) -> bool:
        return self.tenures.number(again) > self.tenures.number(before)

    def ended(self, before: Seen, again: Seen) -> End | None:
        """How the member that had the message before had ended when it was redelivered."""
        member = self.members[before.member]
        return member.end if member.end is not None and member.ended_ms <= again.at_ms else None

    def interruption(self, before: Seen, again: Seen, paused_s: float = 0.0) -> str | None:
        """What kept the member that had the message before from committing it.

        Args:
            before: the delivery to this member.
            again: the next one.
            paused_s: pauses that are shorter are none.
        """
        member, end = self.members[before.member], self.ended(before, again)
        if end in (End.ABORTED, End.KILLED):
            return f"{member.kind} was {end.value}"
        if any(
            since <= again.at_ms and before.at_ms <= until and until - since >= paused_s * 1000
            for since, until in member.pauses
        ):
            return f"{member.kind} was paused"
        return None

    def was_taken_back(self, again: Seen) -> bool:
        """Whether the message was committed, and RocketMQ's broker took the commit back."""
        return any(one.covers(again) for one in self.taken_back)

    def unlocked_anew(self, before: Seen) -> bool:
        """Whether a member of Java 4.9 may have unlocked the queue while it consumed it.

        It unlocks a queue that it gives up with messages left 20 s later, even if it has got the
        queue anew by then. The next member then consumes at the same time.
        """
        is_old = self.members[before.member].kind is JAVA_49
        return is_old and self.tenures.number(before) > 1

    def by_java(self, before: Seen, again: Seen) -> str | None:
        """What the member that had the message before did, if it was a Java member."""
        kind = self.members[before.member].kind
        return None if kind is OURS else f"{kind} {self.way_of_leaving(before, again)}"

    def way_of_leaving(self, before: Seen, again: Seen) -> str:
        """Whether the member that had the message before left the group, or the queue alone."""
        return "left" if self.ended(before, again) is End.LEFT else "gave the queue up"

    def _several_after_a_handover(self) -> Iterator[str]:
        """The queues that a Java member gave up with more than one message uncommitted.

        It drops the result of the message that is being consumed when the queue is revoked, and
        commits what it consumed before.
        """
        left = Counter(
            (before.member, before.queue, self.tenures.number(before))
            for before, again in self.repeats
            if self.interruption(before, again) is None
            and not self.ended(before, again)
            and not self.was_taken_back(again)
            and not self.unlocked_anew(before)
        )
        for (member, queue, _), count in left.items():
            if count > 1:
                yield f"{count} messages of {queue} were redelivered after {member} gave it up"

    def _of_keys(self) -> list[Seen]:
        """The same with keys instead of queues."""
        keyed = []
        for one in self.seen:
            key, _, number = one.body.partition(":")
            keyed.append(replace(one, queue=key, offset=int(number)))
        return keyed


def when_concurrent(found: Judgement, before: Seen, again: Seen) -> str | None:
    """The new owner of a queue does not wait for the one before it."""
    if interruption := found.interruption(before, again):
        return interruption
    if before.member == again.member and not found.got_queue_anew(before, again):
        return None
    return f"{found.members[before.member].kind} {found.way_of_leaving(before, again)}"


def when_ordered(found: Judgement, before: Seen, again: Seen) -> str | None:
    """The lock of our members lasts until the commit; that of Java's members may end before it.

    A pause that is shorter than the lock is no reason for our members.
    """
    paused_s = LOCKED_S if found.members[before.member].kind is OURS else 0.0
    if interruption := found.interruption(before, again, paused_s):
        return interruption
    if found.was_taken_back(again):
        return "the broker took the commit back"
    if found.unlocked_anew(before) and not found.ended(before, again):
        return f"{JAVA_49} had got the queue anew"
    return found.by_java(before, again)


def when_broadcast(found: Judgement, before: Seen, again: Seen) -> str | None:
    """A member that comes back goes on where it ended; closing commits all that was handled."""
    end = found.ended(before, again)
    if end in (End.ABORTED, End.KILLED):
        return f"{found.members[before.member].kind} was {end.value}"
    return found.by_java(before, again) if end else None


def when_popped(found: Judgement, before: Seen, again: Seen) -> str | None:
    """What was handled is acknowledged, by our members even when they are closed."""
    left = found.ended(before, again) is End.LEFT
    return found.interruption(before, again) or (found.by_java(before, again) if left else None)


ALL_KINDS = (OURS, JAVA_49, JAVA_53)
CONCURRENT = Mode("concurrent", ALL_KINDS, when_concurrent)
ORDERED = Mode("orderly", ALL_KINDS, when_ordered, is_ordered=True)
BROADCAST = Mode(
    "broadcast",
    ALL_KINDS,
    when_broadcast,
    names={"ours-1": OURS, "ours-2": OURS, "java49": JAVA_49, "java53": JAVA_53},
    commits=False,
)
POP = Mode("pop", (OURS, JAVA_53), when_popped, has_assignments=False, commits=False)
"""The older Java client has no pop consumption."""


@dataclass
class Report:
    """What came of one mode."""

    mode: Mode
    seed: int
    figures: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        figures = "; ".join(f"{name} {figure}" for name, figure in self.figures.items())
        return f"{self.mode.name} (seed {self.seed}): {figures}"


class Round:
    """One group in one mode, from its topic to its report; it runs in a thread of its own.

    The processes of its members end with this thread.
    """

    def __init__(
        self, mode: Mode, cluster: Cluster, folder: Path, stopped: threading.Event
    ) -> None:
        self.report = Report(mode, random.randrange(2**32))
        self._mode = mode
        self._cluster = cluster
        self._folder = folder
        self._stopped = stopped

    def run(self) -> Report:
        """Let the members come and go, wait until they are done, and judge."""
        broker = connect(self._cluster.broker)
        try:
            with closing(self._gather(broker)) as group:
                self._churn(group)
        except Exception:
            self.report.problems.append(traceback.format_exc())
        finally:
            broker.close()
        return self.report

    def _gather(self, broker: Connection) -> MixedGroup:
        topic = new_topic(self._cluster, broker, queues=QUEUES)
        name = new_group(self._cluster, broker)
        if self._mode is POP:
            let_pop(broker, topic, name)
        return MixedGroup(
            self._cluster, broker, self._folder, topic, name, self._mode.name, PACE_MS, BURST_S
        )

    def _churn(self, group: MixedGroup) -> None:
        choice = random.Random(self.report.seed)
        try:
            Churn(group, self._mode.kinds, self._mode.names, choice, self._stopped).run(CHURN_S)
            group.finish()
            self._settle(group)
        finally:
            found = Judgement(self._mode, group)
            self.report.figures, self.report.done = found.figures(), group.done
            self.report.problems += found.problems()
            if self.report.problems:
                self._save(found)

    def _settle(self, group: MixedGroup) -> None:
        """Wait until the queues are shared out, and all messages have arrived and are committed."""
        end = time.monotonic() + ARRIVES_S
        try:
            if self._mode.commits:
                group.is_shared_out(ARRIVES_S)
            kit.eventually(
                lambda: not any(self._missing(group)), timeout=end - time.monotonic(), pause=1.0
            )
            if self._mode.commits:
                kit.eventually(lambda: group.lag() == 0, timeout=end - time.monotonic(), pause=0.5)
        except AssertionError as error:
            self.report.problems.append(f"while the group settled: {error}")

    def _missing(self, group: MixedGroup) -> Iterator[list[str]]:
        for seen in Judgement(self._mode, group).audiences.values():
            yield lost(group.stored, seen)

    def _save(self, found: Judgement) -> None:
        """Keep all deliveries and events beside the members' logs."""
        path = self._folder / "deliveries.txt"
        path.write_text(
            "\n".join([*map(str, found.seen), *map(str, found.group.commits), *found.group.done])
        )
        self.report.problems.append(f"all deliveries are in {path}")


def let_pop(broker: Connection, topic: str, group: str) -> None:
    """Have the broker let the members of a group pop a topic's messages."""
    body = SetMessageRequestModeRequestBody(
        topic=topic,
        consumer_group=group,
        mode=MessageRequestMode.POP,
        pop_share_queue_num=-1,
    )
    kit.ok(broker.request(Request.SET_MESSAGE_REQUEST_MODE, {}, body.encode()))


def test_groups_of_every_mode_lose_nothing_keep_the_order_and_repeat_only_with_a_cause(
    cluster: Cluster,
    target: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    modes = [CONCURRENT, ORDERED, BROADCAST]
    if target in POP_SERVERS:
        modes.append(POP)
    stopped = threading.Event()
    rounds = [Round(mode, cluster, tmp_path / mode.name, stopped) for mode in modes]
    with ThreadPoolExecutor(len(rounds), "churn") as threads:
        try:
            reports = list(threads.map(Round.run, rounds))
        finally:
            stopped.set()

    for report in reports:
        print(*report.done, sep="\n")
    for report in reports:
        print(report)
        record_property(f"{report.mode.name}: seed", report.seed)
        for name, figure in report.figures.items():
            record_property(f"{report.mode.name}: {name}", figure)
    problems = [
        f"{report}\n  " + "\n  ".join(report.problems) for report in reports if report.problems
    ]
    assert not problems, "\n".join(problems)
