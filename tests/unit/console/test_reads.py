"""Values that are kept for seconds."""

from __future__ import annotations

import asyncio

from cometmq.console.reads import Kept


async def test_a_value_that_was_forgotten_while_it_was_read_is_read_again() -> None:
    answers: list[asyncio.Future[int]] = []

    async def read() -> int:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    kept = Kept(read, 60.0)
    before = asyncio.ensure_future(kept.get())
    after = asyncio.ensure_future(kept.get())
    await asyncio.sleep(0)
    kept.forget()  # something was changed: what is read now may be from before
    answers[0].set_result(1)
    assert await before == 1
    for _ in range(9):
        await asyncio.sleep(0)
    answers[1].set_result(2)
    assert await after == await kept.get() == 2
