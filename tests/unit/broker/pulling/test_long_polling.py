"""Held pulls: which messages notify them, and when they expire."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from cometmq.broker.pulling import long_polling
from cometmq.broker.pulling.long_polling import HeldPull, HeldPulls

LONG_MS = 60_000


class Odd:
    """Wants messages with odd tag codes, and if asked to look, those that say yes."""

    def __init__(self, *, needs_properties: bool = False) -> None:
        self.needs_properties = needs_properties

    def matches_properties(self, properties: bytes) -> bool:
        return properties == b"yes"

    def matches_tags(self, tags_code: int) -> bool:
        return tags_code % 2 == 1


class Held(HeldPull):
    """A pull that does something when it runs again."""

    def __init__(self, *where: Any, act: Callable[[], None], is_short_poll: bool = False) -> None:
        super().__init__(*where, is_short_poll=is_short_poll)
        self.act = act
        self.failures: list[Exception] = []

    def rerun(self) -> None:
        self.act()

    def fail(self, problem: Exception) -> None:
        self.failures.append(problem)


class Waiting:
    """Pulls that note their names when they run again."""

    def __init__(self, pulls: HeldPulls) -> None:
        self.pulls = pulls
        self.answered: list[str] = []
        self.held: list[Held] = []

    def hold(
        self,
        name: str,
        *,
        topic: str = "T",
        queue: int = 0,
        offset: int = 0,
        matcher: Odd | None = None,
        owner: object = "connection",
        hold_ms: int = LONG_MS,
        rerun: Callable[[], None] | None = None,
        is_short_poll: bool = False,
    ) -> bool:
        act = rerun or (lambda: self.answered.append(name))
        pull = Held(topic, queue, offset, matcher, owner, act=act, is_short_poll=is_short_poll)
        self.held.append(pull)
        return self.pulls.hold(pull, hold_ms)


async def settle() -> None:
    """Let the notified pulls run again: each iteration of the loop runs at least one of them.

    How many more it runs depends on the time that the first ones took.
    """
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting(HeldPulls(held_max=3))


async def test_a_message_wakes_the_pulls_of_its_queue_in_a_later_turn(waiting: Waiting) -> None:
    waiting.hold("a")
    waiting.hold("b")
    waiting.hold("other queue", queue=1)
    waiting.pulls.arrived("T", 0, 0, 7)
    assert waiting.answered == []
    await settle()
    assert waiting.answered == ["a", "b"]
    assert len(waiting.pulls) == 1


async def test_a_burst_wakes_a_pull_once(waiting: Waiting) -> None:
    waiting.hold("a")
    for offset in range(5):
        waiting.pulls.arrived("T", 0, offset, 0)
    await settle()
    assert waiting.answered == ["a"]


async def test_only_matching_messages_wake_a_pull(waiting: Waiting) -> None:
    waiting.hold("odd", matcher=Odd())
    waiting.pulls.arrived("T", 0, 0, 2)
    await settle()
    assert waiting.answered == []
    waiting.pulls.arrived("T", 0, 1, 3)
    await settle()
    assert waiting.answered == ["odd"]


async def test_properties_are_looked_at_where_they_matter(waiting: Waiting) -> None:
    waiting.hold("yes", matcher=Odd(needs_properties=True))
    waiting.pulls.arrived("T", 0, 0, 3, 9, b"no")
    waiting.pulls.arrived("T", 0, 1, 2, 9, b"yes")
    await settle()
    assert waiting.answered == []
    waiting.pulls.arrived("T", 0, 2, 3, 9, b"yes")
    await settle()
    assert waiting.answered == ["yes"]


async def test_expressions_are_evaluated_in_steps(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages arrive at once, each iteration of the loop evaluates a few."""
    seen: list[int] = []

    class Slow(Odd):
        def matches_properties(self, properties: bytes) -> bool:
            seen.append(int(properties))
            end_s = monotonic() + long_polling.SLICE_S
            while monotonic() < end_s:
                pass
            return False

    waiting.hold("slow", matcher=Slow(needs_properties=True))
    for number in range(20):
        waiting.pulls.arrived("T", 0, number, 1, 9, b"%d" % number)
    await asyncio.sleep(0)
    assert len(seen) <= 2
    for _ in range(40):
        await asyncio.sleep(0)
    assert seen == list(range(20))
    assert waiting.answered == []


async def test_a_pull_that_evaluates_leaves_nothing_behind(waiting: Waiting) -> None:
    waiting.hold("yes", matcher=Odd(needs_properties=True))
    waiting.hold("too", matcher=Odd(needs_properties=True))
    waiting.pulls.arrived("T", 0, 0, 3, 9, b"yes")
    await settle()
    assert waiting.answered == ["yes", "too"]
    waiting.hold("all")
    waiting.pulls.arrived("T", 0, 1, 2, 9, b"no")
    await settle()
    assert waiting.answered == ["yes", "too", "all"]
    assert len(waiting.pulls) == 0


async def test_a_message_before_the_wanted_offset_wakes_nobody(waiting: Waiting) -> None:
    waiting.hold("later", offset=5)
    waiting.pulls.arrived("T", 0, 4, 0)
    await settle()
    assert waiting.answered == []


@pytest.mark.usefixtures("virtual_time")
async def test_a_pull_ends_when_its_time_is_over(waiting: Waiting) -> None:
    ended = asyncio.Event()
    waiting.hold("a", hold_ms=20, rerun=ended.set)
    await asyncio.wait_for(ended.wait(), 2)
    assert len(waiting.pulls) == 0


@pytest.mark.usefixtures("virtual_time")
async def test_pulls_end_each_at_its_own_time(waiting: Waiting) -> None:
    last = asyncio.Event()
    waiting.hold("late", hold_ms=60, rerun=last.set)
    waiting.hold("early", hold_ms=20)
    waiting.hold("woken", hold_ms=40, queue=1)
    waiting.pulls.arrived("T", 1, 0, 0)
    await asyncio.wait_for(last.wait(), 2)
    assert waiting.answered == ["woken", "early"]
    assert len(waiting.pulls) == 0


@pytest.mark.usefixtures("virtual_time")
async def test_a_pull_that_was_woken_leaves_no_timer_that_ends_a_later_one(
    waiting: Waiting,
) -> None:
    waiting.hold("woken", hold_ms=20)
    waiting.pulls.arrived("T", 0, 0, 0)
    await settle()
    ended = asyncio.Event()
    waiting.hold("stays")
    waiting.hold("ends", hold_ms=50, rerun=ended.set)
    await asyncio.wait_for(ended.wait(), 2)
    assert waiting.answered == ["woken"]
    assert len(waiting.pulls) == 1


async def test_no_more_pulls_are_held_than_allowed(waiting: Waiting) -> None:
    assert [waiting.hold(str(n)) for n in range(4)] == [True, True, True, False]


async def test_pulls_of_a_closed_connection_are_forgotten(waiting: Waiting) -> None:
    waiting.hold("gone", owner="leaver")
    waiting.hold("stays", owner="other")
    waiting.pulls.connection_closed("leaver")
    waiting.pulls.connection_closed("leaver")
    waiting.pulls.arrived("T", 0, 0, 0)
    await settle()
    assert waiting.answered == ["stays"]


async def test_pulls_of_a_deleted_topic_run_again(waiting: Waiting) -> None:
    waiting.hold("gone", topic="T")
    waiting.hold("stays", topic="T2")
    waiting.pulls.rerun_topic("T")
    await settle()
    assert waiting.answered == ["gone"]


async def test_closing_answers_all_and_holds_nothing_more(waiting: Waiting) -> None:
    waiting.hold("a")
    waiting.hold("woken", queue=1)
    waiting.pulls.arrived("T", 1, 0, 0)
    waiting.pulls.close()
    assert sorted(waiting.answered) == ["a", "woken"]
    assert not waiting.hold("late")
    await settle()
    assert len(waiting.answered) == 2


async def test_a_pull_that_fails_does_not_keep_others_waiting(waiting: Waiting) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    waiting.hold("bad", rerun=fail)
    waiting.hold("good")
    waiting.pulls.arrived("T", 0, 0, 0)
    await settle()
    assert waiting.answered == ["good"]
    assert [str(problem) for problem in waiting.held[0].failures] == ["broken"]


async def test_very_many_pulls_are_woken_over_several_turns() -> None:
    waiting = Waiting(HeldPulls(held_max=20_000))
    for number in range(20_000):
        waiting.hold(str(number))
    waiting.pulls.arrived("T", 0, 0, 0)
    turns = 0
    while len(waiting.pulls):
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2
    while len(waiting.answered) < 20_000:
        await asyncio.sleep(0)
    assert waiting.answered == [str(number) for number in range(20_000)]


async def test_of_very_many_pulls_only_those_are_woken_that_want_the_message() -> None:
    waiting = Waiting(HeldPulls(held_max=1_000))
    for number in range(500):
        waiting.hold(str(number), matcher=Odd() if number % 2 else None)
    waiting.pulls.arrived("T", 0, 0, 2)
    waiting.pulls.arrived("T", 0, 1, 4)
    while len(waiting.answered) < 250:
        await asyncio.sleep(0)
    await settle()
    assert waiting.answered == [str(number) for number in range(0, 500, 2)]
    assert len(waiting.pulls) == 250


async def test_a_connection_takes_very_many_pulls_with_it() -> None:
    waiting = Waiting(HeldPulls(held_max=1_000))
    for number in range(500):
        waiting.hold(str(number), owner="gone")
    waiting.hold("stays")
    waiting.pulls.connection_closed("gone")
    while len(waiting.pulls) > 1:
        await asyncio.sleep(0)
    assert waiting.answered == []


async def test_short_polling_ignores_arrivals() -> None:
    waiting = Waiting(HeldPulls())
    waiting.hold("a", is_short_poll=True)
    waiting.pulls.arrived("T", 0, 0, 0)
    await settle()
    assert waiting.answered == []
    waiting.pulls.close()


@pytest.mark.usefixtures("virtual_time")
async def test_pulls_that_are_due_together_end_once_and_later_ones_at_their_time() -> None:
    """However often the timer goes off while they are ended in steps."""
    waiting = Waiting(HeldPulls(held_max=1000))
    for number in range(500):
        waiting.hold(f"due {number}", hold_ms=100)
    waiting.hold("later", hold_ms=300)
    async with asyncio.timeout(60):
        while not waiting.answered:
            await asyncio.sleep(0.01)
            waiting.pulls._end_those_due()
            waiting.pulls._end_those_due()
        while len(waiting.answered) < 500:
            await asyncio.sleep(0)
            waiting.pulls._end_those_due()
        assert len(waiting.pulls) == 1
        while len(waiting.pulls):
            await asyncio.sleep(0.01)
    assert waiting.answered[500:] == ["later"]
    assert len(set(waiting.answered)) == 501


class Raising(Odd):
    """A matcher that cannot decide."""

    def matches_tags(self, tags_code: int) -> bool:
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("count", [10, 500])
@pytest.mark.parametrize("by_check", [False, True])
async def test_a_filter_that_fails_runs_its_pull_again_and_keeps_no_other_waiting(
    count: int, by_check: bool
) -> None:
    waiting = Waiting(HeldPulls(held_max=1_000))
    for number in range(count):
        waiting.hold(str(number), matcher=Raising() if number == 3 else None)

    def finds(pull: HeldPull) -> bool:
        return pull.matcher is None or pull.matcher.matches_tags(1)

    if by_check:
        waiting.pulls.check("T", 0, finds)
    else:
        waiting.pulls.arrived("T", 0, 0, 1)
    while len(waiting.answered) < count:
        await asyncio.sleep(0)
    assert sorted(waiting.answered, key=int) == [str(number) for number in range(count)]
