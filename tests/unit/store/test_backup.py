"""Backups of a store that is written meanwhile, and their restore."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import ConfigError, StoreError
from cometmq.store import MessageStore, StoreCorruptError, backup
from cometmq.store.backup import (
    FILE_NAME,
    Backup,
    _Taking,
    read_backup,
    restore_backup,
    take_backup,
)
from cometmq.store.config_files import JsonFile
from cometmq.store.inspect import StoreReader
from cometmq.store.lifecycle.checkpoint import Checkpoint, write_checkpoint
from cometmq.system import sparse_files
from cometmq.system.files import Files
from cometmq.system.platforms import SERVERS
from cometmq.system.sparse_files import copy_sparse, digest_of
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import new_seed, rounds
from support.stores.small_stores import bodies, files_of, opened, put, small_settings

NOW_MS = 1_700_000_000_000
LATER_MS = 2**42
"""When all files have expired."""
SMALL_BLOCKS = 512
PLANTED_SEEDS = 100


class Load:
    """A broker's store under a random load, with its tables of topics and offsets."""

    def __init__(self, store: MessageStore, chance: SeededRandomness) -> None:
        self.store = store
        self.chance = chance
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self._topics = JsonFile(store.paths.config / "topics.json", Files())
        self._offsets = JsonFile(store.paths.config / "consumerOffset.json", Files())
        self._made = 0

    def step(self) -> None:
        """Do one thing that a broker does."""
        draw = self.chance.below(40)
        if draw < 29:
            self._send(f"topic-{self.chance.below(3)}")
        elif draw < 31:
            self._made += 1
            self._send(f"new-{self._made}")
        elif draw == 31:
            self._offsets.save(self.ends())
        elif draw < 34:
            self.store.flush()
        elif draw < 36:
            self.store.flush_queues()
        elif draw < 39:
            self.store.flush()
            self.store.write_checkpoint()
        else:
            self.store.clean(LATER_MS, expired_at_any_hour=True)

    def ends(self) -> dict[str, int]:
        """The end of each queue, as offsets of a group that has consumed everything."""
        return {f"{topic}@{queue_id}": len(sent) for (topic, queue_id), sent in self.sent.items()}

    def _send(self, topic: str) -> None:
        queue = topic, self.chance.below(2)
        if not any(known == topic for known, _ in self.sent):
            self._topics.save({topic: 1} | {known: 1 for known, _ in self.sent})
        sent = self.sent.setdefault(queue, [])
        size = self.chance.below(1500)
        body = (
            f"{topic}-{queue[1]}-{len(sent)} ".encode() + bytes([1 + self.chance.below(255)]) * size
        )
        put(self.store, body, topic=topic, queue_id=queue[1], properties={"KEYS": f"k{len(sent)}"})
        sent.append(body)


def backup_of(store: MessageStore, target: Path, **options: Any) -> Backup:
    return take_backup(store.settings, target, now_ms=lambda: NOW_MS, **options)


def store_min(load: Load, queue: tuple[str, int]) -> int:
    """The offset of the first message of a queue that the broker still has."""
    return load.store.bounds(*queue)[0]


def check_content(
    settings: Any, load: Load, least: dict[tuple[str, int], int], message: str
) -> None:
    """Check that a store has what was sent, from some message on, at least up to a number."""
    with StoreReader(settings) as reader:
        assert list(reader.verify()) == [], message
        assert reader.was_closed(), message
        met = {(queue.topic, queue.queue_id): queue for queue in reader.queues()}
        for queue, sent in load.sent.items():
            low, high = (met[queue].min_offset, met[queue].max_offset) if queue in met else (0, 0)
            # A queue whose messages have all expired meanwhile may have no file.
            is_expired = store_min(load, queue) >= least.get(queue, 0)
            assert high >= least.get(queue, 0) or is_expired, message
            units = reader.units(*queue, low, high - low)
            found = [next(reader.records(at)) for at, _, _ in units]
            assert len(found) == high - low, message
            for number, record in enumerate(found, low):
                assert sent[number] in reader.record_bytes(record), message


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_files, "BLOCK_BYTES", SMALL_BLOCKS)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(rounds(test=25, long=1500)))
def test_a_backup_of_a_store_in_use_has_all_that_was_acknowledged_before(
    tmp_path: Path, seed: int
) -> None:
    check_backup_in_use(tmp_path, seed)


def leave_out_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Taking, "_copy_topics", lambda _: None)


def read_tables_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Taking, "_copy_topics", _Taking._copy_others)
    patch.setattr(_Taking, "_copy_others", lambda _: None)


def read_the_checkpoint_last(patch: pytest.MonkeyPatch) -> None:
    read = backup.read_checkpoint
    patch.setattr(
        backup, "write_checkpoint", lambda files, path, _: write_checkpoint(files, path, latest())
    )
    latest: Callable[[], Checkpoint] = Checkpoint

    def remember(files: Files, path: Path) -> Checkpoint:
        nonlocal latest
        latest = partial(read, files, path)
        return read(files, path)

    patch.setattr(backup, "read_checkpoint", remember)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("plant", [leave_out_topics, read_tables_last, read_the_checkpoint_last])
def test_the_cases_notice_a_backup_that_reads_in_another_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)

    for seed in range(PLANTED_SEEDS):
        try:
            check_backup_in_use(tmp_path / str(seed), seed)
        except (AssertionError, StoreError):
            return
    pytest.fail(f"{PLANTED_SEEDS} seeds have not found it")


def check_backup_in_use(folder: Path, seed: int) -> None:
    """Take a backup while a broker goes on between any two blocks that are copied; restore it."""
    chance = SeededRandomness(seed)
    message = f"seed {seed}"
    store = opened(
        folder / "store",
        file_reserved_hours=0,
        consume_queue_ext_enabled=chance.below(3) == 0,
        mapped_queue_files_max=chance.below(3),  # 0 for many; else units wait in buffers
    )
    load = Load(store, chance)
    for _ in range(chance.below(150)):
        load.step()
    (folder / "store/another").write_bytes(b"x" * 20 * SMALL_BLOCKS)
    before = {queue: len(sent) for queue, sent in load.sent.items()}
    pace = 1 + chance.below(30)

    def go_on() -> None:
        if chance.below(pace) == 0:
            load.step()

    try:
        made = backup_of(store, folder / "backup", on_block=go_on)
    except StoreError as problem:
        if "expired while the backup was taken" not in str(problem):
            raise
        ends = {queue: store.bounds(*queue)[0] for queue in before}
        assert all(ends[queue] >= count for queue, count in before.items()), message
        return

    settings = made.read_settings(folder / "backup")
    assert made.begin <= store.min_log_offset, message
    check_content(settings, load, before, message)
    with StoreReader(settings) as reader:
        assert (reader.log_files()[0].base_offset if made.end else 0) == made.begin
        assert reader.end.offset == made.end, message
        topics = JsonFile(settings.root / "config" / "topics.json", Files()).load() or {}
        ends = {f"{queue.topic}@{queue.queue_id}": queue.max_offset for queue in reader.queues()}
    assert {name.partition("@")[0] for name in ends} <= topics.keys(), message
    offsets = JsonFile(settings.root / "config" / "consumerOffset.json", Files()).load()
    for name, offset in (offsets or {}).items():
        assert offset <= ends.get(name, offset), message

    restored = made.read_settings(folder / "restored")
    assert restore_backup(folder / "backup", restored) == made
    check_content(restored, load, before, message)
    store.abandon()


def filled(root: Path, messages: int = 60, **changes: Any) -> MessageStore:
    store = opened(root, **changes)
    for number in range(messages):
        put(store, b"%05d" % number * 100, properties={"KEYS": f"k{number}"})
    return store


def test_a_restored_store_goes_on_where_the_backup_ends(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    sent = bodies(store)
    backup_of(store, tmp_path / "backup")
    put(store, b"later")
    store.close()

    restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored"))

    restored = opened(tmp_path / "restored")
    assert restored.was_closed
    assert put(restored, b"next").queue_offset == len(sent)
    assert bodies(restored) == [*sent, b"next"]
    assert len(restored.query("orders", "k7", 10, 0, 2**62).records) == 1
    restored.close()


@pytest.mark.parametrize("name", ["topics", "topicQueueMapping", "subscriptionGroup"])
def test_a_backup_has_a_table_with_the_changes_that_count_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The broker merges the changes into the file of the table between the two copies."""
    store = filled(tmp_path / "store")
    config = tmp_path / "store" / "config"
    config.mkdir(exist_ok=True)
    whole, changes = config / f"{name}.json", config / f"{name}.json.changes"
    whole.write_text("the whole table")
    changes.write_text("changes of it")
    copied = backup_of(store, tmp_path / "first") and (tmp_path / "first" / "config")
    assert (copied / whole.name).read_text() == "the whole table"
    assert (copied / changes.name).read_text() == "changes of it"

    copy_file, merges = _Taking._copy_file, 0

    def merge_once(taking: _Taking, source: Path, target: Path, **options: Any) -> str:
        nonlocal merges
        digest = copy_file(taking, source, target, **options)
        if source == whole and target.exists() and not changes.exists():
            return digest
        if source == whole:
            merges += 1
            if merges == 2:  # while it is copied for the last time
                fresh = whole.with_suffix(".fresh")
                fresh.write_text("the whole table with its changes")
                fresh.replace(whole)
                changes.unlink()
        return digest

    monkeypatch.setattr(_Taking, "_copy_file", merge_once)
    backup_of(store, tmp_path / "second")
    store.close()
    copied = tmp_path / "second" / "config"
    assert (copied / whole.name).read_text() == "the whole table with its changes"
    assert not (copied / changes.name).exists()


def test_an_empty_store_is_restored(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    backup = backup_of(store, tmp_path / "backup")
    store.close()

    restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored"))

    assert (backup.begin, backup.end, backup.last_store_ms) == (0, 0, 0)
    restored = opened(tmp_path / "restored")
    assert put(restored).queue_offset == 0
    restored.close()


def test_full_files_of_the_log_are_linked_and_no_store_of_a_backup_shares_them(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "store")
    store.flush()
    store.write_checkpoint()
    put(store, b"last")
    sent = bodies(store)
    backup = backup_of(store, tmp_path / "backup", link=True)
    shared = {
        path.name
        for path in (tmp_path / "backup/commitlog").iterdir()
        if path.stat().st_ino == (tmp_path / "store/commitlog" / path.name).stat().st_ino
    }

    assert shared == {
        path.name
        for path in (tmp_path / "backup/commitlog").iterdir()
        if int(path.name) + store.settings.commit_log_file_bytes <= backup.end
    }
    assert len(shared) >= 2
    restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored"))
    for path in (tmp_path / "restored/commitlog").iterdir():
        assert path.stat().st_nlink == 1
    store.close()
    restored = opened(tmp_path / "restored")
    assert bodies(restored) == sent
    restored.close()


def test_the_log_of_a_broker_with_epochs_is_not_linked(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    store.flush()
    store.write_checkpoint()
    (tmp_path / "store/epochFileCheckpoint").write_text("1\n0\n1-0\n")

    with pytest.raises(ConfigError, match=r"may truncate it.*; copy it"):
        backup_of(store, tmp_path / "backup", link=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    backup_of(store, tmp_path / "backup")
    assert (tmp_path / "backup/epochFileCheckpoint").exists()
    store.close()


def test_a_log_in_a_directory_of_its_own_is_backed_up_and_restored_into_one(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "store", commit_log_dir=tmp_path / "log")
    sent = bodies(store)
    backup_of(store, tmp_path / "backup")
    store.close()
    other = {"commit_log_dir": tmp_path / "new-log"}

    restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored", **other))

    assert not (tmp_path / "restored/commitlog").exists()
    restored = opened(tmp_path / "restored", **other)
    assert bodies(restored) == sent
    restored.close()


def test_damage_of_the_log_behind_the_checkpoint_fails_the_backup(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 5)
    [file] = (tmp_path / "store/commitlog").iterdir()
    at = file.read_bytes().index(b"00002")
    with file.open("r+b") as log:
        log.seek(at)
        log.write(b"x")

    with pytest.raises(StoreCorruptError, match=r"a body with checksum .* whole records follow"):
        backup_of(store, tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    store.abandon()


def test_damage_of_the_log_before_the_checkpoint_fails_the_backup(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    store.flush()
    store.flush_queues()
    store.write_checkpoint()
    file = min((tmp_path / "store/commitlog").iterdir())
    at = file.read_bytes().index(b"00002")
    with file.open("r+b") as log:
        log.seek(at)
        log.write(b"x")

    with pytest.raises(
        StoreCorruptError,
        match=r"store/commitlog/0{20}, byte \d+: met a body .* from log offset 0 to",
    ):
        backup_of(store, tmp_path / "backup")
    store.abandon()


def test_a_changed_bit_in_any_file_of_a_backup_is_found(tmp_path: Path) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = SeededRandomness(seed)
    store = filled(tmp_path / "store", 8)
    JsonFile(store.paths.config / "topics.json", Files()).save({"orders": 1})
    made = backup_of(store, tmp_path / "backup")
    store.abandon()
    files = sorted(path for path in (tmp_path / "backup").rglob("*") if path.is_file())
    settings = small_settings(tmp_path / "restored")
    for _ in range(rounds(test=400, long=20_000)):
        path = files[chance.below(len(files))]
        content = path.read_bytes()
        bit = chance.below(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        if path.name == FILE_NAME:
            with contextlib.suppress(StoreCorruptError):
                assert read_backup(tmp_path / "backup") == made  # a blank between its words
        else:
            with pytest.raises(StoreCorruptError, match=rf"{path.name}: met .* another digest"):
                restore_backup(tmp_path / "backup", settings)
        assert not settings.root.exists()
        path.write_bytes(content)

    restore_backup(tmp_path / "backup", settings)
    restored = opened(settings.root)
    assert len(bodies(restored)) == 8
    restored.close()


def remove(backup: Path) -> None:
    (backup / "checkpoint").unlink()


def add(backup: Path) -> None:
    (backup / "commitlog/stray").write_bytes(b"x")


def shorten(backup: Path) -> None:
    os.truncate(backup / "checkpoint", 100)


def outdate(backup: Path) -> None:
    file = backup / FILE_NAME
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))


def forget(backup: Path) -> None:
    file = backup / FILE_NAME
    file.write_text(file.read_text().replace("maxIndexNum", "minIndexNum"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (remove, r"checkpoint: met no file, expected one of 4096 bytes"),
        (add, r"stray: met a file, expected none with this name"),
        (shorten, r"met a file of 100 bytes, expected one of 4096 bytes"),
        (outdate, r"met format 2, expected format 1"),
        (forget, r"met content with another digest"),
    ],
)
def test_a_backup_with_other_files_is_refused(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    store = filled(tmp_path / "store", 3)
    backup_of(store, tmp_path / "backup")
    store.close()
    change(tmp_path / "backup")

    with pytest.raises(StoreCorruptError, match=reason):
        restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 3)
    before = files_of(tmp_path / "store")
    (tmp_path / "backup.part").mkdir()
    with pytest.raises(ConfigError, match=r"backup\.part exists: .* interrupted run; remove it"):
        backup_of(store, tmp_path / "backup")
    (tmp_path / "backup.part").rmdir()
    with pytest.raises(ConfigError, match="name a directory outside of the store"):
        backup_of(store, tmp_path / "store/backup")
    backup_of(store, tmp_path / "backup")
    with pytest.raises(ConfigError, match="backup exists: name a directory that does not"):
        backup_of(store, tmp_path / "backup")
    with pytest.raises(ConfigError, match="store exists"):
        restore_backup(tmp_path / "backup", small_settings(tmp_path / "store"))
    with pytest.raises(ConfigError, match="is the root of a file system"):
        restore_backup(tmp_path / "backup", small_settings(Path("/proc")))
    with pytest.raises(ConfigError, match=r"no backup in .*: there is no file"):
        restore_backup(tmp_path / "store", small_settings(tmp_path / "restored"))
    assert files_of(tmp_path / "store") == before
    store.abandon()


def test_a_failure_leaves_no_directory(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 3)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup_of(store, tmp_path / "backup", on_block=fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    store.abandon()


def test_a_full_disk_fails_the_backup_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "store", 3)
    backup_of(store, tmp_path / "whole")
    writes = itertools.count()

    def write(descriptor: int, block: bytes, position: int) -> None:
        if next(writes) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.pwrite(descriptor, block, position)

    monkeypatch.setattr(SERVERS, "write_at", write)
    with pytest.raises(StoreError, match=r"cannot make \S+/backup: .* No space left on device"):
        backup_of(store, tmp_path / "backup")
    writes = itertools.count()
    with pytest.raises(StoreError, match=r"cannot make \S+/restored: .* No space left on device"):
        restore_backup(tmp_path / "whole", small_settings(tmp_path / "restored"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "whole"]
    store.abandon()


def test_a_backup_has_the_permissions_of_its_store_and_not_the_id_of_its_broker(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "store", 3)
    (tmp_path / "store").chmod(0o750)
    (tmp_path / "store/brokerIdentity").write_text("DefaultCluster#broker-a#3")
    (tmp_path / "store/storeIdentity").write_text("")
    (tmp_path / "store/other").write_text("other")
    backup_of(store, tmp_path / "backup")
    store.close()
    restore_backup(tmp_path / "backup", small_settings(tmp_path / "restored"))

    for folder in (tmp_path / "backup", tmp_path / "restored"):
        assert folder.stat().st_mode & 0o777 == 0o750
        assert (folder / "other").read_text() == "other"
        assert not (folder / "brokerIdentity").exists()
        assert not (folder / "storeIdentity").exists()


def test_a_log_that_is_truncated_meanwhile_fails_the_backup(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 8)
    second = put(store).log_offset
    put(store)
    store.flush()
    store.flush_queues()
    store.write_checkpoint()
    calls = iter(range(100))

    def truncate() -> None:
        if next(calls) == 1:
            store.truncate_log(second)

    with pytest.raises(StoreError, match="was truncated while the backup was taken"):
        backup_of(store, tmp_path / "backup", on_block=truncate)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    store.abandon()


def test_a_backup_describes_itself(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path / "store"), clock=ManualClock(NOW_MS))
    store.open()
    put(store)
    backup = backup_of(store, tmp_path / "backup")

    assert read_backup(tmp_path / "backup") == backup
    assert backup.taken_ms == NOW_MS
    assert backup.last_store_ms == NOW_MS
    assert backup.end == store.written_to
    assert read_backup(tmp_path / "store") is None
    store.close()


@pytest.mark.parametrize("end", [None, 0, 1, SMALL_BLOCKS, 3 * SMALL_BLOCKS + 7, 10_000])
def test_a_sparse_copy_has_the_bytes_up_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int | None
) -> None:
    monkeypatch.setattr(sparse_files, "BLOCK_BYTES", SMALL_BLOCKS)
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(7000)
        for position in (0, 700, 1535, 3000, 6999):
            file.seek(position)
            file.write(b"x")
    os.utime(source, ns=(5, 6))

    digest = copy_sparse(source, target, end=end)

    content = source.read_bytes()
    expected = content if end is None else content[:end].ljust(7000, b"\0")
    assert target.read_bytes() == expected
    assert target.stat().st_mtime_ns == 6
    assert digest == digest_of(target)
    assert (digest == digest_of(source)) == (expected == content)
    (tmp_path / "full").write_bytes(expected)
    assert digest_of(tmp_path / "full") == digest


def test_a_digest_counts_zeros_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" + bytes(99))
    (tmp_path / "b").write_bytes(b"x" + bytes(100))

    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "b")
