"""Members of our client and of RocketMQ's Java clients come, go, stand still and die at random.

In the tier ``all`` each mode takes ten minutes; ``COMETMQ_CHURN_S`` sets another time in seconds.
The choices follow from a seed, which is printed; what the machine makes of them does not.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import JAVA_49, JAVA_53, OURS, Kind
from servers import Cluster, connect, new_group, new_topic
from wire import Connection

from cometmq.protocol.bodies import MessageRequestMode, SetMessageRequestModeRequestBody
from support.counting import (
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
from support.mixed_groups import QUEUES, End, Member, MixedGroup
from support.versions import VERSIONS_5

pytestmark = pytest.mark.long

CHURN_S = float(os.environ.get("COMETMQ_CHURN_S", 600))
MEMBERS_MAX, MEMBERS_MIN = 6, 2
PACE_MS = 40
PAUSE_S = (0.5, 8.0)
"""A member stands still for less than a message stays invisible and than a lock lasts."""
STEP_S = (0.1, 1.0)
SHARED_S = 400.0
"""A broker keeps the locks of a killed member for 60 s, and the next one may be killed as well."""
ARRIVES_S = 400.0
REPEATED_MAX = 1_000
"""Messages that a member may see again when it gets a queue: those that the member before it had
seen and not committed, which are fewer than a queue's messages in memory."""

JAVA = [JAVA_49, JAVA_53]
"""Java members of every mode; the older ones have no pop consumption."""


class Churn:
    """Lets members of a group come, go, stand still and die.

    Args:
        group: whose members they are.
        kinds: the clients they are of; the first one is chosen as often as all others together.
        names: the members' names if a member that is gone comes back under its name; empty if not.
        choice: what is chosen.
    """

    def __init__(
        self,
        group: MixedGroup,
        kinds: Sequence[Kind],
        names: dict[str, Kind],
        choice: random.Random,
    ) -> None:
        self.group = group
        self._kinds = kinds
        self._names = names
        self._choice = choice
        self._resume_at: dict[str, float] = {}

    def run(self, seconds: float) -> None:
        """Do something several times in two seconds, and look at what is committed."""
        for _ in range(MEMBERS_MIN):
            self._join()
        self.group.send()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._choice.choice(list(self._possible()))()
            for name in [name for name, at in self._resume_at.items() if at < time.monotonic()]:
                self._resume(name)
            self.group.look_at_commits()
            time.sleep(self._choice.uniform(*STEP_S))
        for name in list(self._resume_at):
            self._resume(name)
        for name in self._names.keys() - self.group.members.keys():
            self.group.join(self._names[name], name)
        while len(self.group.members) < MEMBERS_MIN:
            self._join()

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


class Judgement:
    """What the members of a group have seen, after the churn.

    Args:
        group: whose members they are.
        record: keeps figures in the test's report.
    """

    def __init__(self, group: MixedGroup, record: Callable[[str, object], None]) -> None:
        self.group = group
        self.seen = group.seen()
        self.tenures = Tenures(group.assigned())
        self.members: dict[str, Member] = {str(member): member for member in group.everybody()}
        audiences: dict[str, list[Seen]] = defaultdict(list)
        for one in self.seen:
            shares = group.mode != "broadcast"
            audiences["" if shares else self.members[one.member].name].append(one)
        self.repeats = [pair for each in audiences.values() for pair in repeats(each)]
        """What the group has seen again; of a broadcast, what members of one name have."""
        for name, figure in {
            "stored": len(group.stored),
            "deliveries": len(self.seen),
            "members": len(self.members),
            "repeated": len(self.repeats),
            "repeated at once": most_at_once(self.repeats, self.tenures),
        }.items():
            print(f"{name}: {figure}")
            record(name, figure)
        print(*group.done, sep="\n")

    def is_ours(self, one: Seen) -> bool:
        return self.members[one.member].kind is OURS

    def was_interrupted(self, one: Seen) -> bool:
        """Whether the member stood still, or did not end in good order."""
        member = self.members[one.member]
        return member.was_paused or member.end in (End.ABORTED, End.KILLED)

    def got_queue_anew(self, before: Seen, again: Seen) -> bool:
        return self.tenures.number(again) > self.tenures.number(before)

    def of_keys(self) -> list[Seen]:
        """The same with keys instead of queues."""
        keyed = []
        for one in self.seen:
            key, _, number = one.body.partition(":")
            keyed.append(replace(one, queue=key, offset=int(number)))
        return keyed


def until_nothing_is_lost(group: MixedGroup) -> None:
    """Stop sending, and wait until everything has been seen."""
    group.finish()
    assert len(group.stored) > CHURN_S
    kit.eventually(lambda: not lost(group.stored, group.seen()), timeout=ARRIVES_S, pause=1.0)


def until_all_is_committed(group: MixedGroup) -> None:
    kit.eventually(lambda: group.lag() == 0, timeout=ARRIVES_S, pause=0.5)


@pytest.fixture
def broker(cluster: Cluster) -> Iterator[Connection]:
    """A raw connection to the broker."""
    connection = connect(cluster.broker)
    yield connection
    connection.close()


@pytest.fixture
def churned(
    cluster: Cluster, broker: Connection, tmp_path: Path
) -> Iterator[Callable[..., MixedGroup]]:
    """Let members of a new group come and go for a while; the rest ends with the test."""
    groups: list[MixedGroup] = []

    def churn(
        mode: str, kinds: Sequence[Kind], *, names: dict[str, Kind] | None = None
    ) -> MixedGroup:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        topic, name = new_topic(cluster, broker, queues=QUEUES), new_group(cluster, broker)
        if mode == "pop":
            hand_out(broker, topic, name)
        group = MixedGroup(cluster, broker, tmp_path, topic, name, mode, PACE_MS)
        groups.append(group)
        Churn(group, kinds, names or {}, random.Random(seed)).run(CHURN_S)
        return group

    yield churn
    for group in groups:
        group.close()


def hand_out(broker: Connection, topic: str, group: str) -> None:
    """Have the broker let the members of a group pop a topic's messages."""
    body = SetMessageRequestModeRequestBody(
        topic=topic,
        consumer_group=group,
        mode=MessageRequestMode.POP,
        pop_share_queue_num=-1,
    )
    kit.ok(broker.request(Request.SET_MESSAGE_REQUEST_MODE, {}, body.encode()))


def test_a_concurrent_group_loses_nothing_and_repeats_only_what_changes_hands(
    churned: Callable[..., MixedGroup], record_property: Callable[[str, object], None]
) -> None:
    group = churned("concurrent", [OURS, *JAVA])
    group.is_shared_out(SHARED_S)
    until_nothing_is_lost(group)
    until_all_is_committed(group)

    found = Judgement(group, record_property)
    assert without_reason(repeats_of_each(found.seen), found.got_queue_anew) == []
    assert most_at_once(found.repeats, found.tenures) <= REPEATED_MAX


def test_an_ordered_group_keeps_the_order_and_goes_back_behind_no_commit(
    churned: Callable[..., MixedGroup], record_property: Callable[[str, object], None]
) -> None:
    group = churned("orderly", [OURS, *JAVA])
    group.is_shared_out(SHARED_S)
    until_nothing_is_lost(group)
    until_all_is_committed(group)

    found = Judgement(group, record_property)
    assert out_of_order(found.seen) == []
    assert out_of_order(found.of_keys()) == []
    assert behind_commits(found.seen, group.commits, lambda _: False) == []
    assert without_reason(repeats_of_each(found.seen), found.got_queue_anew) == []
    assert most_at_once(found.repeats, found.tenures) <= REPEATED_MAX

    def may(before: Seen, _: Seen) -> bool:
        return not found.is_ours(before) or found.was_interrupted(before)

    assert without_reason(found.repeats, may) == [], "the lock lasts until the commit"


def test_each_member_that_comes_back_gets_the_whole_broadcast(
    churned: Callable[..., MixedGroup], record_property: Callable[[str, object], None]
) -> None:
    """It goes on where it ended, or repeats what it had not committed."""
    names = {"ours-1": OURS, "ours-2": OURS, "java49": JAVA_49, "java53": JAVA_53}
    group = churned("broadcast", [OURS, *JAVA], names=names)
    group.finish()

    def seen_by(name: str) -> list[Seen]:
        return [one for one in group.seen() if one.member.startswith(f"{name}#")]

    for name in names:
        kit.eventually(
            lambda name=name: not lost(group.stored, seen_by(name)), timeout=ARRIVES_S, pause=1.0
        )

    found = Judgement(group, record_property)
    assert without_reason(repeats_of_each(found.seen), lambda *_: False) == []
    assert most_at_once(found.repeats, found.tenures) <= REPEATED_MAX

    def may(before: Seen, _: Seen) -> bool:
        return not found.is_ours(before) or found.members[before.member].end is not End.LEFT

    assert without_reason(found.repeats, may) == [], "closing commits all that was handled"


@pytest.mark.only_on(*VERSIONS_5)
def test_a_group_that_pops_loses_nothing_and_repeats_only_what_was_not_acknowledged(
    churned: Callable[..., MixedGroup], record_property: Callable[[str, object], None]
) -> None:
    group = churned("pop", [OURS, JAVA_53])
    until_nothing_is_lost(group)

    found = Judgement(group, record_property)

    def may(before: Seen, _: Seen) -> bool:
        return not found.is_ours(before) or found.was_interrupted(before)

    assert without_reason(found.repeats, may) == []
    assert most_at_once(found.repeats, found.tenures) <= REPEATED_MAX
