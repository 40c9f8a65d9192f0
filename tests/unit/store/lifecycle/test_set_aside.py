"""Confirmed records that a master lacks are kept in a folder before the log is truncated."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from cometmq.model.errors import StoreError
from cometmq.store import CONFIRMS_ALL, MessageStore
from cometmq.store.inspect import StoreReader
from cometmq.store.lifecycle.set_aside import SetAsideError
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import Fault, PowerCutError, PowerFiles
from support.stores.small_stores import bodies, put, small_settings

COUNT = 30
"""Messages of a store: they fill some files."""
BODY = b"." * 400
EXPECTED = [b"%d" % number + BODY for number in range(COUNT)]
FILE_BYTES = 4096


def confirmed_store(root: Path, files: Files | None = None) -> tuple[MessageStore, list[int]]:
    """A store of which all is confirmed, and where its messages begin."""
    store = MessageStore(
        small_settings(root, commit_log_file_bytes=FILE_BYTES),
        clock=ManualClock(),
        files=files,
        confirms=True,
    )
    store.open()
    starts = [put(store, b"%d" % number + BODY).log_offset for number in range(COUNT)]
    store.confirm(CONFIRMS_ALL)
    store.confirm(store.written_to)
    store.flush()
    return store, starts


def kept(root: Path, name: str, files: Files | None = None) -> list[bytes]:
    """What a broker serves that is started on a folder with nothing but that log."""
    with opened_again(root / "aside" / name, files) as store:
        return bodies(store)


@pytest.mark.parametrize("first", [0, 3, 12, COUNT - 1])
def test_what_the_master_lacks_is_a_store_by_itself(tmp_path: Path, first: int) -> None:
    store, starts = confirmed_store(tmp_path)
    end = store.written_to
    store.truncate_log(starts[first])
    assert store.written_to == starts[first]
    [name] = store.folders_aside
    assert name.endswith(f"-{starts[first]}-{end}")
    settings = small_settings(tmp_path / "aside" / name, commit_log_file_bytes=FILE_BYTES)
    with StoreReader(settings) as reader:
        assert [one.queue_offset for one in reader.records(starts[first])] == [*range(first, COUNT)]
    assert kept(tmp_path, name)[first - COUNT :] == EXPECTED[first:]
    store.close()
    with opened_again(tmp_path) as again:
        assert bodies(again) == EXPECTED[:first]
    assert kept(tmp_path, name)[first - COUNT :] == EXPECTED[first:]


class opened_again:
    """The store of a root, within ``with``."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._store = MessageStore(
            small_settings(root, commit_log_file_bytes=FILE_BYTES),
            clock=ManualClock(),
            files=files,
            confirms=True,
        )

    def __enter__(self) -> MessageStore:
        self._store.open()
        self._store.confirm(self._store.written_to)
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_what_was_not_confirmed_is_not_kept(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path), clock=ManualClock(), confirms=True)
    store.open()
    put(store)
    store.confirm(store.written_to)
    start = put(store).log_offset
    store.truncate_log(start)
    assert store.folders_aside == []
    store.close()


def test_a_file_system_without_second_names_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no such names")

    monkeypatch.setattr(Files, "link", refuse)
    store, starts = confirmed_store(tmp_path)
    store.truncate_log(starts[2])
    [name] = store.folders_aside
    assert kept(tmp_path, name)[2 - COUNT :] == EXPECTED[2:]
    store.close()


def test_a_log_that_cannot_be_kept_is_not_truncated() -> None:
    """Whichever operation the full disk refuses."""
    root, refused = Path("/store"), 0
    for operation in range(100):
        files = PowerFiles(SeededRandomness(operation))
        store, starts = confirmed_store(root, files)
        store.write_out()
        end = store.written_to
        files.fault = Fault(files.operations + operation, errno.ENOSPC, lasts=False)
        problem = problem_of(store, starts[12])
        files.fault = None
        if isinstance(problem, SetAsideError):
            refused += 1
            assert "make room on the disk" in str(problem)
            assert store.written_to == end
            assert problem_of(store, starts[12]) is None
        names = store.folders_aside
        store.abandon()
        files.kill()
        if names:
            assert kept(root, names[0], files)[12 - COUNT :] == EXPECTED[12:]
        else:  # a sync has failed before
            with opened_again(root, files) as again:
                assert len(bodies(again)) == COUNT
        if files.faults == 0:
            break
    assert refused > 5


def problem_of(store: MessageStore, offset: int) -> StoreError | None:
    try:
        store.truncate_log(offset)
    except StoreError as problem:
        return problem
    return None


@pytest.mark.parametrize("seed", range(rounds(test=20, long=400)))
def test_a_power_cut_at_any_operation_leaves_the_records_in_the_log_or_in_the_folder(
    seed: int,
) -> None:
    root, chance = Path("/store"), SeededRandomness(seed)
    files = PowerFiles(chance, has_journal=seed % 2 == 0)
    store, starts = confirmed_store(root, files)
    first = chance.below(COUNT)
    files.cut_at = files.operations + 1 + chance.below(60)
    with contextlib.suppress(PowerCutError):
        store.truncate_log(starts[first])
    files.cut_at = files.operations
    files.power_on()
    with opened_again(root, files) as again:
        left = bodies(again)
        names = again.folders_aside
    if left != EXPECTED:
        [name] = names
        assert left == EXPECTED[: len(left)]
        assert len(left) >= first
        assert kept(root, name, files)[first - COUNT :] == EXPECTED[first:]
