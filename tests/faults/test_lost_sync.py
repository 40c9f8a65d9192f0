"""A power cut: any page that was not synced may be lost, and any other may be on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store import StoreUnavailableError
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import TOPIC, bodies, opened, put


@pytest.mark.parametrize("seed", range(40))
def test_what_was_flushed_is_there_and_the_rest_is_a_beginning_of_it(
    tmp_path: Path, seed: int
) -> None:
    """Nothing that a flush vouched for is lost, and nothing appears out of order."""
    print(f"seed {seed}")
    files, clock, chance = FaultyFiles(), ManualClock(), SeededRandomness(seed)
    made: list[bytes] = []
    flushed = 0
    for _ in range(3):
        store = opened(tmp_path, files=files, clock=clock)
        assert bodies(store) == made
        for _ in range(chance.below(60) + 1):
            body = b"%d-" % len(made) + b"x" * chance.below(900)
            put(store, body, properties={"KEYS": f"k{len(made)}", "TAGS": "TagA"})
            made.append(body)
            clock.advance(chance.below(400))
            if chance.below(8) == 0:
                store.flush()
                flushed = len(made)
            if chance.below(20) == 0:
                store.flush_queues()
                store.write_checkpoint()
        store.abandon()
        files.crash_by_chance(seed)
        store = opened(tmp_path, files=files, clock=clock)
        found = bodies(store)
        assert len(found) >= flushed
        assert found == made[: len(found)]
        for number in range(len(found)):
            assert len(store.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1
        made = found
        put(store, b"after", properties={"KEYS": f"k{len(made)}"})
        made.append(b"after")
        store.close()
        flushed = len(made)


@pytest.mark.parametrize("seed", range(10))
def test_a_store_that_was_closed_loses_nothing(tmp_path: Path, seed: int) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    made = [b"%d" % number * 30 for number in range(200)]
    for body in made:
        put(store, body)
    store.close()
    files.crash_by_chance(seed)
    again = opened(tmp_path, files=files)
    assert bodies(again) == made
    again.close()


def test_a_failed_sync_is_never_taken_back(tmp_path: Path) -> None:
    """What a failed sync was for may be gone for good, so nothing may be built on top of it."""
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    put(store, b"kept")
    store.flush()
    put(store, b"in doubt")
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.flush()
    files.fail_sync = False
    with pytest.raises(StoreUnavailableError, match="a sync has failed"):
        store.flush()
    with pytest.raises(StoreUnavailableError, match="a sync has failed"):
        put(store, b"too late")
    assert store.flushed_to < store.written_to
    store.close()
    files.crash(lambda path, page: False)
    again = opened(tmp_path, files=files)
    assert bodies(again) == [b"kept"]
    again.close()


class KilledError(BaseException):
    """The process is killed."""


class KilledAtTheMark(FaultyFiles):
    """Kills the process before it can write down that a sync has failed."""

    def overwrite(self, path: Path, data: bytes) -> None:
        if self.fail_sync and path.name == "abort":
            raise KilledError
        super().overwrite(path, data)


def test_a_kill_right_after_a_failed_sync_loses_nothing_that_is_flushed_later(
    tmp_path: Path,
) -> None:
    files = KilledAtTheMark()
    store = opened(tmp_path, files=files)
    put(store, b"kept")
    store.flush()
    put(store, b"dropped by the kernel")
    files.fail_sync = True
    with pytest.raises(KilledError):
        store.flush()
    files.fail_sync = False
    store.abandon()
    store = opened(tmp_path, files=files)
    assert bodies(store) == [b"kept", b"dropped by the kernel"]
    store.flush()
    store.abandon()
    files.crash(lambda path, number: False)
    again = opened(tmp_path, files=files)
    assert bodies(again) == [b"kept", b"dropped by the kernel"]
    again.close()
