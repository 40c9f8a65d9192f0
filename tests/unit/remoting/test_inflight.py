"""The table of requests that wait for their responses."""

from __future__ import annotations

import asyncio
import gc

import pytest

from cometmq.protocol.command import INT32_MAX, Command
from cometmq.remoting import CallTimeoutError, ConnectionLostError, TooManyCallsError
from cometmq.remoting.inflight import SWEEP_S, Inflight

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
async def table() -> Inflight:
    return Inflight(asyncio.get_running_loop(), 3)


def answer(opaque: int) -> Command:
    return Command(0, flag=1, opaque=opaque)


async def test_an_answer_reaches_the_one_who_waits_for_it_once(table: Inflight) -> None:
    first, one = table.open(5)
    second, two = table.open(5)

    assert first != second
    assert table.complete(answer(second))
    assert not table.complete(answer(second))
    assert not one.done()
    assert (await two).opaque == second
    assert len(table) == 1


async def test_an_answer_to_nobody_is_not_taken(table: Inflight) -> None:
    opaque, future = table.open(5)
    table.forget(opaque)

    assert not table.complete(answer(opaque))
    assert not table.complete(answer(opaque + 1))
    assert not future.done()


async def test_an_answer_to_one_who_was_cancelled_is_not_taken(table: Inflight) -> None:
    opaque, future = table.open(5)
    future.cancel()

    assert not table.complete(answer(opaque))
    assert len(table) == 0


async def test_a_full_table_takes_no_more_until_one_leaves(table: Inflight) -> None:
    numbers = [table.open(5)[0] for _ in range(3)]
    with pytest.raises(TooManyCallsError, match="3 requests"):
        table.open(5)
    table.forget(numbers[0])

    assert table.open(5)[0] not in numbers


async def test_numbers_start_again_after_the_largest_and_skip_those_in_use(
    table: Inflight,
) -> None:
    first, _ = table.open(5)
    table._last_opaque = INT32_MAX - 1

    assert table.next_opaque() == INT32_MAX
    assert table.next_opaque() == first + 1


async def test_those_whose_time_is_over_are_told_and_the_others_wait_on(table: Inflight) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    _, soon = table.open(0.01)
    _, later = table.open(60)

    with pytest.raises(CallTimeoutError, match=r"0\.01 s"):
        await soon
    assert loop.time() - began == pytest.approx(0.01)
    assert not later.done()
    assert len(table) == 1


async def test_the_timer_rests_while_nothing_waits_and_starts_again(table: Inflight) -> None:
    opaque, _ = table.open(0.01)
    table.forget(opaque)
    await asyncio.sleep(2 * SWEEP_S)
    assert table._timer is None

    _, again = table.open(0.01)
    with pytest.raises(CallTimeoutError):
        await again


async def test_all_are_told_of_one_end(table: Inflight) -> None:
    futures = [table.open(60)[1] for _ in range(3)]
    futures[0].cancel()
    table.fail_all(ConnectionLostError("gone"))

    for future in futures[1:]:
        with pytest.raises(ConnectionLostError, match="gone"):
            await future
    assert len(table) == 0
    assert table._timer is None
    table.fail_all(ConnectionLostError("again"))


async def test_abandoned_calls_leave_nothing_behind(table: Inflight) -> None:
    """Two thousand of them, in a table of three."""
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(2_000):
        opaque, future = table.open(60)
        future.cancel()
        table.forget(opaque)
    gc.collect()

    assert len(table) == 0
    assert len(gc.get_objects()) - before < 1000


async def test_a_call_ends_on_time_whatever_the_time_of_the_clock() -> None:
    """Three sweeps after 0.15 s, sums of rounded numbers must not cost a fourth."""
    loop = asyncio.get_running_loop()
    for number in range(50):
        await asyncio.sleep(1000.1 * number)
        began = loop.time()
        _, future = Inflight(loop, 3).open(0.15)
        with pytest.raises(CallTimeoutError):
            await future
        assert loop.time() - began == pytest.approx(0.15), f"begun at {began}"
