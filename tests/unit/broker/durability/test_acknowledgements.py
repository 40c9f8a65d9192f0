"""The waits of a synchronous master for slaves, and the responses to its producers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.acknowledgements import Acknowledgements
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.role import ASYNC_MASTER, SYNC_MASTER, Role
from cometmq.model.errors import StoreError
from cometmq.protocol.codes import ResponseCode

OK, NO_SLAVE, LATE = (
    int(code)
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
NO_DISK = int(ResponseCode.FLUSH_DISK_TIMEOUT)
LONG_MS, SHORT_MS = 60_000, 20


class Slave:
    def __init__(self, acknowledged_to: int = -1) -> None:
        self.acknowledged_to = acknowledged_to


class World:
    """A synchronous master and its slaves, of which a test moves the offsets."""

    def __init__(self, *offsets: int, **changes: int) -> None:
        self.settings = replace(
            BrokerSettings(broker_role=SYNC_MASTER), **{"slave_timeout_ms": LONG_MS, **changes}
        )
        self.role = Role(SYNC_MASTER)
        self.slaves = [Slave(offset) for offset in offsets]
        self.waits = Acknowledgements(self.role, lambda: self.settings, lambda: self.slaves)
        self.outcomes: dict[int, int] = {}
        self._has_outcome = asyncio.Event()

    def wait(self, end: int) -> int | None:
        def on_outcome(code: int) -> None:
            self.outcomes[end] = code
            self._has_outcome.set()

        self.waits.wait(end, on_outcome)
        return self.outcomes.get(end)

    def report(self, number: int, offset: int) -> None:
        self.slaves[number].acknowledged_to = offset
        self.waits.reported()

    async def ended(self) -> dict[int, int]:
        async with asyncio.timeout(60):
            while len(self.waits):
                self._has_outcome.clear()
                await self._has_outcome.wait()
        return self.outcomes


async def test_without_a_slave_a_send_is_answered_at_once() -> None:
    assert World().wait(100) == NO_SLAVE
    assert World(-1).wait(100) == NO_SLAVE  # connected, but nothing is known of it


@pytest.mark.parametrize(("behind", "code"), [(99, None), (100, NO_SLAVE), (101, NO_SLAVE)])
async def test_a_slave_that_has_fallen_behind_does_not_count(behind: int, code: int | None) -> None:
    assert World(1000 - behind, ha_slave_fallbehind_max=100).wait(1000) == code


async def test_the_reports_of_one_slave_end_the_waits_up_to_their_offset() -> None:
    world = World(0, 0)
    assert [world.wait(end) for end in (10, 20, 30)] == [None, None, None]
    world.report(1, 19)
    assert world.outcomes == {10: OK}
    world.report(0, 30)
    assert world.outcomes == {10: OK, 20: OK, 30: OK}
    assert len(world.waits) == 0


async def test_what_a_slave_has_already_does_not_wait() -> None:
    assert World(10).wait(10) == OK


async def test_a_slave_that_does_not_report_in_time() -> None:
    world = World(0, slave_timeout_ms=SHORT_MS)
    assert world.wait(10) is None
    assert await world.ended() == {10: LATE}
    world.report(0, 10)
    assert world.wait(20) is None  # the timer runs again
    assert await world.ended() == {10: LATE, 20: LATE}


async def test_as_many_slaves_as_the_setting_says() -> None:
    world = World(0, 0, 0, in_sync_replicas=3)
    assert world.wait(10) is None
    world.report(0, 10)
    assert world.outcomes == {}
    world.report(2, 11)
    assert world.outcomes == {10: OK}


async def test_with_that_setting_too_few_slaves_lead_to_a_timeout() -> None:
    world = World(in_sync_replicas=2, slave_timeout_ms=SHORT_MS)
    assert world.wait(10) is None
    assert await world.ended() == {10: LATE}


async def test_a_slave_that_is_gone_does_not_count() -> None:
    world = World(0, 0, in_sync_replicas=3)
    world.wait(10)
    world.report(0, 10)
    del world.slaves[0]
    world.report(0, 10)
    assert world.outcomes == {}


async def test_only_a_synchronous_master_waits_and_not_for_itself_alone() -> None:
    world = World()
    assert world.waits.are_needed()
    world.settings = replace(world.settings, in_sync_replicas=1)
    assert not world.waits.are_needed()
    world.settings = replace(world.settings, in_sync_replicas=0)
    world.role.change(ASYNC_MASTER, 0)
    assert not world.waits.are_needed()


async def test_a_stop_waits_for_slaves_for_a_while() -> None:
    world = World(0)
    world.wait(10)
    world.wait(20)
    asyncio.get_running_loop().call_soon(world.report, 0, 10)
    await world.waits.stop(0.05)
    assert world.outcomes == {10: OK, 20: LATE}


async def test_an_error_of_one_send_does_not_stop_the_others() -> None:
    world = World(0)

    def broken(code: int) -> None:
        raise ValueError(code)

    world.waits.wait(5, broken)
    world.wait(10)
    world.report(0, 10)
    assert world.outcomes == {10: OK}


# --- beside the disk ------------------------------------------------------------------------------


class Disk:
    """A disk whose syncs end when a test says so."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()

    def flush(self, least_pages: int = 0) -> int:
        return asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result()

    async def _wait(self) -> int:
        return await self.outcome


async def test_disk_and_slaves_are_waited_for_side_by_side() -> None:
    for slave_first in (False, True):
        world, disk = World(0), Disk()
        commit = GroupCommit(disk)
        commit.start()
        both = DurabilityWait(commit, world.waits)
        ended: asyncio.Future[tuple[int, StoreError | None]]
        ended = asyncio.get_running_loop().create_future()
        both.wait(10, lambda *outcome, ended=ended: ended.set_result(outcome))
        if slave_first:
            world.report(0, 10)
        else:
            disk.outcome.set_result(10)
            while len(commit):
                await asyncio.sleep(0)
        assert not ended.done()
        if slave_first:
            disk.outcome.set_result(10)
        else:
            world.report(0, 10)
        assert await asyncio.wait_for(ended, 60) == (OK, None)
        await commit.stop()


@pytest.mark.parametrize(
    ("on_disk", "on_slave", "code"),
    [(10, 10, OK), (9, 10, NO_DISK), (10, 0, LATE), (9, 0, LATE)],
)
async def test_slaves_have_precedence_over_a_late_disk(
    on_disk: int, on_slave: int, code: int
) -> None:
    world, disk = World(on_slave, slave_timeout_ms=SHORT_MS), Disk()
    commit = GroupCommit(disk)
    commit.start()
    ended: asyncio.Future[tuple[int, StoreError | None]]
    ended = asyncio.get_running_loop().create_future()
    DurabilityWait(commit, world.waits).wait(10, lambda *outcome: ended.set_result(outcome))
    disk.outcome.set_result(on_disk)
    assert await asyncio.wait_for(ended, 60) == (code, None)
    await commit.stop()


async def test_a_failed_disk_is_the_outcome_whatever_slaves_have() -> None:
    world, disk = World(10), Disk()
    commit = GroupCommit(disk)
    commit.start()
    ended: asyncio.Future[tuple[int, StoreError | None]]
    ended = asyncio.get_running_loop().create_future()
    DurabilityWait(commit, world.waits).wait(10, lambda *outcome: ended.set_result(outcome))
    disk.outcome.set_exception(StoreError("broken"))
    _, error = await asyncio.wait_for(ended, 60)
    assert str(error) == "broken"
    await commit.stop()


async def test_what_waits_for_nothing_is_confirmed_at_once() -> None:
    world = World()
    world.role.change(ASYNC_MASTER, 0)
    durability = DurabilityWait(None, world.waits)
    assert not durability.waits()
    outcomes: list[tuple[int, StoreError | None]] = []
    durability.wait(10, lambda *outcome: outcomes.append(outcome))
    assert outcomes == [(OK, None)]
    world.role.change(SYNC_MASTER, 0)
    assert durability.waits()
    durability.wait(10, lambda *outcome: outcomes.append(outcome))
    assert outcomes[1:] == [(NO_SLAVE, None)]
