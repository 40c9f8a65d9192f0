"""Queues of which each iteration of the event loop takes a few items."""

from __future__ import annotations

import asyncio
from typing import Any

from cometmq.remoting.paced_queue import PacedQueue


async def test_each_iteration_takes_a_few_items_in_order() -> None:
    taken: list[int] = []
    queue = PacedQueue(taken.append, 2)
    queue.add(range(3))
    queue.add([3, 4])
    seen: list[list[int]] = []
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(list(taken))
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    queue.add([5])
    await asyncio.sleep(0)
    assert taken == [0, 1, 2, 3, 4, 5]


async def test_an_item_that_fails_does_not_keep_the_others() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    taken: list[int] = []

    def act(item: int) -> None:
        if item == 1:
            raise RuntimeError("not this one")
        taken.append(item)

    queue = PacedQueue(act, 3)
    queue.add(range(5))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (taken, len(reported)) == ([0, 2, 3, 4], 1)


async def test_items_that_an_item_adds_wait_for_the_next_iterations() -> None:
    taken: list[int] = []

    def act(item: int) -> None:
        taken.append(item)
        queue.add([item + 1] if item < 4 else [])

    queue = PacedQueue(act, 1)
    queue.add([1, 11])
    counts = []
    for _ in range(6):
        await asyncio.sleep(0)
        counts.append(len(taken))
    assert (taken, counts) == ([1, 11, 2, 3, 4], [1, 2, 3, 4, 5, 5])
