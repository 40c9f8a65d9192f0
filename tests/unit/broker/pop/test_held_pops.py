"""Held pops: which of them a message, a free queue and a deleted topic notify."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.pop.config import PopSettings
from cometmq.broker.pop.held_pops import HeldPop, HeldPops
from cometmq.broker.pop.receipts import retry_topic_of
from cometmq.broker.pulling.arrivals import ANY_QUEUE, Arrivals
from cometmq.broker.pulling.long_polling import HeldPulls
from support.stores.small_stores import no_open_stores, opened, put

__all__ = ["no_open_stores"]

TOPIC, ENDS_MS = "T", 300_000


class Pop(HeldPop):
    """A pop that counts its runs."""

    def __init__(self, waiting: Waiting, number: int, group: str = "G", owner: str = "c") -> None:
        super().__init__(group, TOPIC, number, owner, ENDS_MS, "")
        self.waiting = waiting
        self.runs = 0

    def rerun(self) -> None:
        self.waiting.pops.runs(self)
        self.runs += 1


class Waiting:
    """A store with asynchronous flush, and pops that wait for its messages."""

    def __init__(self, root: Path) -> None:
        self.store = opened(root)
        self.arrivals = Arrivals(self.store, HeldPulls(), print, print, print)
        settings = PopSettings()
        self.pops = HeldPops(self.arrivals, lambda: settings)

    def hold(self, number: int = ANY_QUEUE, **more: str) -> Pop:
        pop = Pop(self, number, **more)
        assert self.pops.hold(pop, 0)
        return pop

    async def run(self) -> None:
        """Let all steps run."""
        for _ in range(200):
            await asyncio.sleep(0)


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[Waiting]:
    made = Waiting(tmp_path)
    yield made
    made.pops.close()


@pytest.mark.parametrize("number", [0, 63, 64, 1_000])
async def test_the_pop_of_a_queue_is_notified_when_that_queue_is_free(
    waiting: Waiting, number: int
) -> None:
    first, other = waiting.hold(number), waiting.hold(7)
    waiting.pops.notify("G", TOPIC, number)
    await waiting.run()
    assert (first.runs, other.runs) == (1, 0)


@pytest.mark.parametrize("number", [ANY_QUEUE, 0, 64, 1_000])
async def test_a_message_of_a_retry_topic_notifies_one_pop_of_any_queue(
    waiting: Waiting, number: int
) -> None:
    pops = [waiting.hold(number), waiting.hold(number)]
    put(waiting.store, b"m", topic=retry_topic_of("G", TOPIC, is_second_form=True))
    await waiting.run()
    assert [pop.runs for pop in pops] == [1, 0]


async def test_pops_of_all_queues_get_their_turn(waiting: Waiting) -> None:
    """Also behind very many queues whose pops have left with their connection."""
    for number in range(200):
        waiting.hold(number, owner="gone")
    left = [waiting.hold(number) for number in (300, 301, 302)]
    waiting.pops.connection_closed("gone")
    await waiting.run()
    for _ in left:
        waiting.pops.notify("G", TOPIC, ANY_QUEUE)
        await waiting.run()
    assert [pop.runs for pop in left] == [1, 1, 1]


async def test_a_message_notifies_the_pops_of_very_many_groups_in_steps(waiting: Waiting) -> None:
    pops = [waiting.hold(group=f"g{number}") for number in range(1_000)]
    put(waiting.store, b"m", topic=TOPIC)
    at_once = len(pops) - len(waiting.pops)
    again = waiting.hold(group="g0")
    put(waiting.store, b"m", topic=TOPIC)
    assert 0 < at_once < 100
    await waiting.run()
    assert {pop.runs for pop in [*pops, again]} == {1}


async def test_a_deleted_topic_or_group_runs_its_pops_again(waiting: Waiting) -> None:
    pops = [waiting.hold(), waiting.hold(64), waiting.hold(group="other")]
    await waiting.pops.rerun_deleted(group="G")
    await waiting.run()
    assert [pop.runs for pop in pops] == [1, 1, 0]
    await waiting.pops.rerun_deleted(topic=TOPIC)
    await waiting.run()
    assert [pop.runs for pop in pops] == [1, 1, 1]


async def test_nothing_is_left_of_topics_for_which_no_pop_is_held_any_more(
    waiting: Waiting,
) -> None:
    """Without a message that would show it, as in a topic that was deleted."""
    before = dict(waiting.arrivals.awaited)
    waiting.hold(owner="gone")
    waiting.hold(64, owner="gone")
    stays = waiting.hold(group="stays")
    waiting.pops.connection_closed("gone")
    await waiting.pops.forget_unused()
    assert waiting.arrivals.awaited[TOPIC] == 1
    waiting.pops.connection_closed(stays.owner)
    await waiting.pops.forget_unused()
    assert waiting.arrivals.awaited == before
