"""Checks what the members of a group did with a stream of messages, and lists what is wrong.

- Nothing is lost: a member has seen every stored message.
- Order: a message is first seen after all earlier messages of its queue. A queue may go back, since
  a killed member leaves uncommitted messages to the next owner, but not behind what is committed.
- Repeats: a member sees a message twice only if it has lost the queue in between.
- Owners: every queue has an owner, and two owners for the time of a rebalance at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

TOLD_MAX = 10


@dataclass(frozen=True)
class Stored:
    """A message that a broker has confirmed."""

    queue: str
    offset: int
    body: str


@dataclass(frozen=True)
class Seen:
    """A message in a handler's hands."""

    member: str
    queue: str
    offset: int
    body: str
    at_ms: int


@dataclass(frozen=True)
class Assigned:
    """The queues that a member is about to have."""

    member: str
    queues: frozenset[str]
    at_ms: int


@dataclass(frozen=True)
class Committed:
    """A committed offset as a broker gave it before this time."""

    queue: str
    offset: int
    at_ms: int


def lost(stored: Iterable[Stored], seen: Iterable[Seen]) -> list[str]:
    """The messages that nobody has seen."""
    found = {one.body for one in seen}
    missing = [one for one in stored if one.body not in found]
    return _some(
        [f"{one.body} is lost: it is stored as {one.queue} {one.offset}" for one in missing]
    )


def out_of_order(seen: Iterable[Seen]) -> list[str]:
    """The messages that were seen for the first time before an earlier one of their queue was.

    Members on one machine share its clock; what falls into one millisecond is not told apart.
    """
    first: dict[str, dict[int, Seen]] = {}
    for one in seen:
        of_queue = first.setdefault(one.queue, {})
        if one.offset not in of_queue or one.at_ms < of_queue[one.offset].at_ms:
            of_queue[one.offset] = one
    problems = []
    for queue, of_queue in first.items():
        latest: Seen | None = None
        for offset in sorted(of_queue):
            one = of_queue[offset]
            if latest is not None and one.at_ms < latest.at_ms:
                problems.append(
                    f"{queue} {offset} was seen by {one.member} {latest.at_ms - one.at_ms} ms "
                    f"before {latest.offset} was by {latest.member}"
                )
            if latest is None or one.at_ms >= latest.at_ms:
                latest = one
    return _some(problems)


def skipped(seen: Iterable[Seen]) -> list[str]:
    """The gaps in what was seen of each queue, from its first offset to its last."""
    offsets: dict[str, set[int]] = {}
    for one in seen:
        offsets.setdefault(one.queue, set()).add(one.offset)
    problems = []
    for queue, found in offsets.items():
        gaps = [offset for offset in range(max(found)) if offset not in found]
        problems += [f"{queue} {offset} was never seen" for offset in gaps]
    return _some(problems)


class Tenures:
    """When members got queues that they did not have before.

    Args:
        assigned: all assignments of all members; of members that have none, all queues are always.
    """

    def __init__(self, assigned: Iterable[Assigned]) -> None:
        self._begun: dict[tuple[str, str], list[int]] = defaultdict(list)
        before: dict[str, frozenset[str]] = {}
        for one in sorted(assigned, key=lambda one: one.at_ms):
            for queue in one.queues - before.get(one.member, frozenset()):
                self._begun[one.member, queue].append(one.at_ms)
            before[one.member] = one.queues

    def number(self, one: Seen) -> int:
        """How often the member had got the queue when it saw this message."""
        return bisect_right(self._begun[one.member, one.queue], one.at_ms)


Repeat = tuple[Seen, Seen]
"""A message as it was seen the time before, and as it was seen again."""


def repeats(seen: Iterable[Seen]) -> list[Repeat]:
    """All messages that were seen again, by the time they were; ``seen`` is in this order."""
    found, last = [], dict[str, Seen]()
    for one in seen:
        if (before := last.get(one.body)) is not None:
            found.append((before, one))
        last[one.body] = one
    return found


def repeats_of_each(seen: Iterable[Seen]) -> list[Repeat]:
    """The messages that one and the same member has seen again."""
    by_member: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        by_member[one.member].append(one)
    return [pair for of_member in by_member.values() for pair in repeats(of_member)]


def without_reason(pairs: Iterable[Repeat], may: Callable[[Seen, Seen], bool]) -> list[str]:
    """The repeats that ``may`` does not allow."""
    return _some(
        [
            f"{again.queue} {again.offset} was seen by {again.member} "
            f"{again.at_ms - before.at_ms} ms after it was by {before.member}"
            for before, again in pairs
            if not may(before, again)
        ]
    )


def most_at_once(pairs: Iterable[Repeat], tenures: Tenures) -> int:
    """How many messages of a queue were repeated at most to one member that had got it."""
    counts = Counter((again.queue, again.member, tenures.number(again)) for _, again in pairs)
    return max(counts.values(), default=0)


def behind_commits(
    seen: Iterable[Seen], commits: Iterable[Committed], may: Callable[[Seen], bool]
) -> list[str]:
    """The messages that were seen after a higher offset of their queue was committed.

    Args:
        seen: what members saw.
        commits: what brokers gave, in this order of time.
        may: which messages may be; for members that unlock queues before they commit.
    """
    times: dict[str, list[int]] = defaultdict(list)
    highest: dict[str, list[int]] = defaultdict(list)
    for one in commits:
        times[one.queue].append(one.at_ms)
        before = highest[one.queue]
        before.append(max(one.offset, before[-1] if before else 0))
    problems = []
    for each in seen:
        count = bisect_left(times[each.queue], each.at_ms)
        committed = highest[each.queue][count - 1] if count else 0
        if each.offset < committed and not may(each):
            problems.append(
                f"{each.queue} {each.offset} was seen by {each.member} after {committed} was "
                "committed"
            )
    return _some(problems)


def badly_shared(queues: Collection[str], owned: Mapping[str, Collection[str]]) -> list[str]:
    """The queues that nobody or several members have, and members whose share is not fair.

    Args:
        queues: all queues of the topic.
        owned: member to its queues, now.
    """
    problems = []
    for queue in sorted(queues):
        owners = sorted(member for member, has in owned.items() if queue in has)
        if len(owners) != 1:
            problems.append(f"{queue} belongs to {' and '.join(owners) or 'nobody'}")
    least, most = len(queues) // len(owned), -(-len(queues) // len(owned))
    for member, has in sorted(owned.items()):
        if not least <= len(set(has) & set(queues)) <= most:
            problems.append(f"{member} has {len(has)} of {len(queues)} queues")
    return problems


class Overlaps:
    """Watches for queues that two members have at once for too long.

    Args:
        limit_s: how long a rebalance may take.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[tuple[str, str, str], float] = {}
        self.problems: list[str] = []

    def look(self, owned: Mapping[str, Collection[str]], now_s: float) -> None:
        """Note who has what at a moment; members that are gone are left out of ``owned``."""
        shared = {
            (queue, one, other)
            for one, has in owned.items()
            for other, others in owned.items()
            if one < other
            for queue in set(has) & set(others)
        }
        self._since = {pair: self._since.get(pair, now_s) for pair in shared}
        for (queue, one, other), since in self._since.items():
            if now_s - since > self._limit_s:
                self.problems.append(
                    f"{queue} belongs to {one} and {other} for {now_s - since:.1f} s"
                )


def _some(problems: list[str]) -> list[str]:
    if len(problems) <= TOLD_MAX:
        return problems
    return [*problems[:TOLD_MAX], f"… and {len(problems) - TOLD_MAX} more"]
