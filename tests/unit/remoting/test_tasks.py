"""Tasks with an owner: kept alive, their failures logged, ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import side_by_side

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
async def owner() -> Supervisor:
    return Supervisor("owner")


async def test_a_task_has_the_owners_name_and_leaves_when_it_ends(owner: Supervisor) -> None:
    async def work() -> str:
        return "done"

    task = owner.spawn(work(), "job")
    assert (task.get_name(), len(owner)) == ("owner.job", 1)
    assert await task == "done"
    await asyncio.sleep(0)
    assert len(owner) == 0


def begin_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **_: object
) -> asyncio.Future[Any]:
    """As `asyncio.eager_task_factory`, which Python 3.11 has not; the work awaits nothing."""
    future = loop.create_future()
    try:
        work.send(None)
    except StopIteration as end:
        future.set_result(end.value)
    return future


async def test_a_task_begins_after_its_owner_has_noted_it_in_eager_loops_too(
    owner: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = getattr(asyncio, "eager_task_factory", begin_at_once)
    monkeypatch.setattr(asyncio, "eager_task_factory", eager, raising=False)
    events = []

    async def work() -> None:
        events.append("begun")

    asyncio.get_running_loop().set_task_factory(eager)
    task = owner.spawn(work(), "job")
    events.append("noted")
    await task

    assert events == ["noted", "begun"]


async def fail() -> None:
    raise RuntimeError("broken")


async def test_a_failure_is_logged_with_the_tasks_name(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    task = owner.spawn(fail(), "job")
    await asyncio.wait([task])
    await asyncio.sleep(0)

    (record,) = caplog.records
    assert (record.levelname, "owner.job" in record.getMessage()) == ("ERROR", True)
    assert record.exc_info is not None


async def test_a_failure_that_somebody_awaits_is_theirs(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await owner.spawn(fail(), "job", awaited=True)

    assert caplog.records == []
    assert len(owner) == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [RuntimeError, asyncio.CancelledError])
async def test_a_periodic_task_goes_on_after_a_failure(
    owner: Supervisor,
    is_async: bool,
    kind: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = 0
    enough = asyncio.Event()

    def act() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            enough.set()
        raise kind(f"turn {turns}")

    async def act_later() -> None:
        act()

    owner.every(0.001, act_later if is_async else act, "tick", first_s=0.0)
    async with asyncio.timeout(60):
        await enough.wait()
    await owner.cancel()

    assert "turn 1" in caplog.text
    assert "owner.tick" in caplog.text


async def test_turns_of_a_periodic_task_do_not_overlap(owner: Supervisor) -> None:
    running = most = turns = 0
    enough = asyncio.Event()

    async def act() -> None:
        nonlocal running, most, turns
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        turns += 1
        if turns == 3:
            enough.set()

    owner.every(0.001, act, "tick")
    async with asyncio.timeout(60):
        await enough.wait()
    await owner.cancel()

    assert most == 1


async def test_the_first_turn_waits_one_interval_unless_told_otherwise(owner: Supervisor) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    owner.every(60, first.set, "late")
    owner.every(60, second.set, "soon", first_s=0.0)
    async with asyncio.timeout(60):
        await second.wait()
    await owner.cancel()

    assert not first.is_set()


async def test_cancel_ends_all_and_waits_for_their_clean_up(owner: Supervisor) -> None:
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    tasks = [owner.spawn(work(number), "job", awaited=number == 7) for number in range(50)]
    await asyncio.sleep(0)
    await owner.cancel()

    assert cleaned == list(range(50)), "in the order of their start, in each process"
    assert all(task.cancelled() for task in tasks)
    assert len(owner) == 0
    await owner.cancel()


async def test_a_task_that_does_not_end_is_named_and_not_waited_for(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = owner.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await owner.cancel(timeout=0.01)

    assert "owner.stubborn" in caplog.text
    release.set()
    await task


async def test_drain_waits_for_the_tasks_but_not_for_ever(owner: Supervisor) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    task = owner.spawn(work(), "job")
    await owner.drain(0.01)
    assert not task.done()
    gate.set()
    await owner.drain(5)
    assert task.done()
    await owner.drain(5)


async def test_a_cancelled_task_is_no_failure(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    owner.spawn(asyncio.Event().wait(), "job")
    await asyncio.sleep(0)
    await owner.cancel()

    assert [record for record in caplog.records if record.name.startswith("cometmq")] == []


async def test_a_cancelled_error_of_which_no_cancellation_is_the_cause_is_a_failure(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_so() -> None:
        raise asyncio.CancelledError("from a hook")

    task = owner.spawn(fail_so(), "job")
    await asyncio.wait([task])
    await asyncio.sleep(0)

    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "task failed task=owner.job")
    assert record.exc_info is not None
    assert "from a hook" in str(record.exc_info[1])


async def test_cancelling_ends_a_periodic_task_in_the_middle_of_a_turn(
    owner: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def act() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = owner.every(0.001, act, "tick", first_s=0.0)
    await begun.wait()
    await owner.cancel()

    assert task.cancelled()
    assert caplog.records == []


async def test_results_come_in_the_order_of_the_items_and_the_limit_holds() -> None:
    running, most = 0, 0

    async def call(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - item):  # later items end earlier
            await asyncio.sleep(0)
        running -= 1
        return item * item

    assert await side_by_side(range(10), call, at_once=4) == [item * item for item in range(10)]
    assert most == 4


async def test_the_first_failure_is_raised_and_the_other_calls_are_cancelled() -> None:
    cancelled: list[int] = []

    async def call(item: int) -> None:
        if item == 1:
            raise ValueError("one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    with pytest.raises(ValueError, match="one"):
        await side_by_side(range(5), call, at_once=3)
    await asyncio.sleep(0)
    assert cancelled == [0, 2], "the others have not begun"
