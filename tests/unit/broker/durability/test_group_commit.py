"""Group commit: one sync for all waiters, and an error for each if it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.model.errors import StoreError
from cometmq.store import MessageStore, StoreUnavailableError
from support.checks.virtual_time import virtual
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import Announced, opened, put

WAIT_S = 60.0


async def turns() -> None:
    """Let the loop do all that it has to do now."""
    for _ in range(10):
        await asyncio.sleep(0)


class HangingFiles(FaultyFiles):
    """A disk whose syncs take until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.hanging = threading.Event()

    def refuse_sync(self) -> None:
        self.hanging.set()
        assert self.go_on.wait(WAIT_S)
        super().refuse_sync()


class Told:
    """What one send was told."""

    def __init__(self, commit: GroupCommit, log_offset_end: int) -> None:
        self.outcome: asyncio.Future[tuple[bool, StoreError | None]]
        self.outcome = asyncio.get_running_loop().create_future()
        self.times = 0
        commit.wait(log_offset_end, self._tell)

    def _tell(self, synced: bool, error: StoreError | None) -> None:
        self.times += 1
        if not self.outcome.done():
            self.outcome.set_result((synced, error))

    async def synced(self) -> bool:
        return (await asyncio.wait_for(asyncio.shield(self.outcome), WAIT_S))[0]

    async def error(self) -> StoreError | None:
        return (await asyncio.wait_for(asyncio.shield(self.outcome), WAIT_S))[1]


class Disk:
    """A store, its group commit, and the faults of the disk below."""

    def __init__(self, folder: Path) -> None:
        self.files = HangingFiles()
        self.store: MessageStore = opened(
            folder, files=self.files, commit_log_file_bytes=2**18, consume_queue_file_bytes=2**14
        )
        put(self.store)  # makes the files; what is left to sync is what the tests put
        self.commits: list[GroupCommit] = []

    def commit(self, timeout_s: float = WAIT_S, store: MessageStore | None = None) -> GroupCommit:
        commit = GroupCommit(store or self.store, timeout_s=timeout_s)
        commit.start()
        self.commits.append(commit)
        return commit

    def stored(self, commit: GroupCommit, body: bytes = b"x") -> Told:
        where = put(self.store, body)
        return Told(commit, where.log_offset + where.size_bytes)

    async def hang(self) -> None:
        """Return once the next sync hangs."""
        self.files.go_on.clear()
        self.files.hanging.clear()

    async def until_hanging(self) -> None:
        await asyncio.to_thread(self.files.hanging.wait, WAIT_S)


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.files.go_on.set()
    for commit in made.commits:
        await commit.stop()
        assert commit._thread is not None
        commit._thread.join(WAIT_S)
        assert not commit._thread.is_alive()
    made.store.abandon()


async def test_all_waits_end_at_once_and_later_ones_go_on(disk: Disk) -> None:
    commit = disk.commit()
    await disk.hang()
    syncing = disk.stored(commit)
    await disk.until_hanging()
    waiting = disk.stored(commit)
    commit.end_all()
    assert not await syncing.synced()
    assert not await waiting.synced()
    assert len(commit) == 0
    later = disk.stored(commit)
    disk.files.go_on.set()
    assert await later.synced()
    assert (syncing.times, waiting.times, later.times) == (1, 1, 1)


async def test_a_send_is_told_when_its_bytes_are_on_disk(disk: Disk) -> None:
    commit = disk.commit()
    told = disk.stored(commit)
    assert disk.store.flushed_to < disk.store.written_to

    assert await told.synced()
    assert disk.store.flushed_to == disk.store.written_to
    assert len(commit) == 0


async def test_all_sends_of_one_turn_share_one_sync(disk: Disk) -> None:
    commit = disk.commit()
    before = disk.files.syncs
    sends = [disk.stored(commit, b"%d" % number) for number in range(100)]

    assert all([await told.synced() for told in sends])
    assert disk.files.syncs - before == 1


async def test_sends_that_come_during_a_sync_share_the_next_one(disk: Disk) -> None:
    commit = disk.commit()
    await disk.hang()
    first = disk.stored(commit)
    await disk.until_hanging()
    before = disk.files.syncs
    later = [disk.stored(commit) for _ in range(50)]
    assert len(commit) == 51
    disk.files.go_on.set()

    assert await first.synced()
    assert all([await told.synced() for told in later])
    assert disk.files.syncs - before == 2


async def test_nobody_is_told_before_the_sync_has_ended(disk: Disk) -> None:
    commit = disk.commit()
    await disk.hang()
    told = disk.stored(commit)
    await disk.until_hanging()
    await turns()
    assert told.times == 0

    disk.files.go_on.set()
    assert await told.synced()


async def test_a_failed_sync_is_told_to_all_who_wait_and_to_all_who_come(disk: Disk) -> None:
    commit = disk.commit()
    await disk.hang()
    waiting = [disk.stored(commit)]
    await disk.until_hanging()
    waiting += [disk.stored(commit) for _ in range(3)]
    disk.files.fail_sync = True
    disk.files.go_on.set()

    for told in waiting:
        error = await told.error()
        assert "the disk is gone" in str(error)
        assert not await told.synced()
    disk.files.fail_sync = False
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        disk.stored(commit)
    assert "the disk is gone" in str(await Told(commit, 0).error())
    assert [told.times for told in waiting] == [1, 1, 1, 1]
    assert len(commit) == 0


async def test_an_accident_in_the_thread_is_told_and_the_thread_goes_on(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    class Brittle:
        broken = True

        def flush(self, least_pages: int = 0) -> int:
            if self.broken:
                raise ValueError("mmap closed")
            return disk.store.flush(least_pages)

    store = Brittle()
    commit = GroupCommit(store)
    commit.start()
    disk.commits.append(commit)
    assert "ValueError: mmap closed" in str(await disk.stored(commit).error())

    store.broken = False
    assert await disk.stored(commit).synced()
    assert "unexpected error in a sync" in caplog.text


async def test_one_that_cannot_be_told_keeps_the_others_from_nothing(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    commit = disk.commit()

    def broken(synced: bool, error: StoreError | None) -> None:
        raise RuntimeError("nobody listens")

    first = disk.stored(commit)
    commit.wait(0, broken)
    last = disk.stored(commit)

    assert await first.synced()
    assert await last.synced()
    assert "nobody listens" in caplog.text


async def test_a_send_whose_time_is_over_is_told_so_once(disk: Disk) -> None:
    """Not synced and no error: code 10 to the client. The end of the sync changes nothing."""
    commit = disk.commit(timeout_s=30.0)
    await disk.hang()
    first = disk.stored(commit)
    await disk.until_hanging()
    second = disk.stored(commit)

    with virtual(asyncio.get_running_loop()):
        for told in (first, second):
            assert not await told.synced()
            assert await told.error() is None
    assert len(commit) == 0
    disk.files.go_on.set()
    assert await disk.stored(commit).synced()
    assert (first.times, second.times) == (1, 1)


async def test_the_watch_rests_while_nobody_waits(disk: Disk) -> None:
    commit = disk.commit()
    assert await disk.stored(commit).synced()
    with virtual(asyncio.get_running_loop()):
        await asyncio.sleep(2.0)
    assert commit._overdue is None


async def test_a_kick_syncs_what_nobody_waits_for(disk: Disk) -> None:
    synced = Announced(disk.store)
    commit = disk.commit(store=synced)
    put(disk.store, b"in no hurry")
    commit.request_sync()
    await synced.wait()
    assert disk.store.flushed_to == disk.store.written_to


async def test_the_oldest_wait_is_known(disk: Disk) -> None:
    commit = disk.commit()
    assert commit.oldest_age_s() == 0.0
    await disk.hang()
    told = disk.stored(commit)
    await disk.until_hanging()
    with virtual(asyncio.get_running_loop()):
        before_s = commit.oldest_age_s()
        await asyncio.sleep(3.0)
        assert commit.oldest_age_s() - before_s == pytest.approx(3.0)

    disk.files.go_on.set()
    assert await told.synced()
    assert commit.oldest_age_s() == 0.0


async def test_stopping_lets_those_who_wait_have_their_sync(disk: Disk) -> None:
    commit = disk.commit()
    sends = [disk.stored(commit) for _ in range(10)]
    await commit.stop(timeout_s=WAIT_S)

    assert [told.times for told in sends] == [1] * 10
    assert all([await told.synced() for told in sends])
    assert disk.store.flushed_to == disk.store.written_to


async def test_stopping_does_not_wait_for_a_disk_that_hangs(disk: Disk) -> None:
    commit = disk.commit()
    await disk.hang()
    first = disk.stored(commit)
    await disk.until_hanging()
    second = disk.stored(commit)
    loop = asyncio.get_running_loop()
    with virtual(loop):
        began = loop.time()
        await commit.stop(timeout_s=2.0)
        assert loop.time() - began == pytest.approx(2.0)
    for told in (first, second):
        assert "has stopped" in str(await told.error())
    disk.files.go_on.set()
    assert commit._thread is not None
    await asyncio.to_thread(commit._thread.join, WAIT_S)
    await turns()
    assert (first.times, second.times) == (1, 1)


async def test_who_comes_after_the_stop_is_told_at_once(disk: Disk) -> None:
    commit = disk.commit()
    await commit.stop()
    await commit.stop()

    told = disk.stored(commit)
    assert told.times == 1
    assert "has stopped" in str(await told.error())


async def test_what_was_never_started_can_be_stopped(disk: Disk) -> None:
    await GroupCommit(disk.store).stop()
