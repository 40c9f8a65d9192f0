"""Backups of a store, which a broker may use meanwhile, and their restore.

    <backup>/backup.json     what the backup contains, and the digest of every other file
    <backup>/...             a store, closed at a log offset: its end

The broker takes no part. The files are copied in an order in which a power cut could have left
them, and the copy is recovered like a store at its start. The broker may write meanwhile if the
files are read in this order:

    checkpoint        whatever it says is on disk is in the files that are read after it
    tables            no offset is ahead of its queue
    end of the log    that of the last whole record: all that was acknowledged before is in it
    queues, index     what they have beyond the checkpoint is dispatched again from the log
    log               up to the end; the oldest file last, because a broker may delete it meanwhile
    topics            again: messages of a topic that was created meanwhile would be deleted

A directory is complete when it has its name: until then it is called ``<name>.part``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.model.errors import ConfigError, StoreError
from cometmq.store.config import StoreSettings
from cometmq.store.errors import StoreCorruptError
from cometmq.store.lifecycle import recovery
from cometmq.store.lifecycle.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from cometmq.store.lifecycle.loader import Loader
from cometmq.store.log.segments import Segments
from cometmq.store.message_store import MessageStore
from cometmq.store.paths import StorePaths, segment_name
from cometmq.system.files import Files
from cometmq.system.platforms import SERVERS
from cometmq.system.settings import describe
from cometmq.system.sparse_files import copy_sparse, digest_of

TRIES_MAX: Final = 100
"""How often the file of a table is copied, if it is replaced meanwhile."""
FILE_NAME: Final = "backup.json"
FORMAT: Final = 1
LAYOUT: Final = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeConsumeQueueExt",
    "enableConsumeQueueExt",
    "messageIndexEnable",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageDelayLevel",
)
"""The keys of the settings without which the files cannot be read."""
_IDENTITY: Final = (
    *("brokerIdentity", "brokerIdentity.bak", "brokerIdentity-temp"),
    *("storeIdentity", "storeIdentity.bak", "storeIdentity.tmp"),
)
"""The id and the names under which a controller knows the broker. With them a broker with an older
log would count as in sync."""
_NOT_COPIED: Final = frozenset(
    (
        *(
            "lock",
            "abort",
            "checkpoint",
            "unitbuffers",
            "queueends",
            "deleted",
            "aside",
            "embedded",
            "timerwheel",
            "timerlog",
            FILE_NAME,
        ),
        *_IDENTITY,
    )
)
"""Files that only the process with the open store uses, and files that are written anew. The index
of timer messages is made again from the log."""
_TRIES_MAX: Final = 10
"""How often the log is read again when it has changed meanwhile."""


class FileFacts(msgspec.Struct, frozen=True):
    """Size and digest of one file of a backup."""

    bytes: int
    digest: str
    """See `cometmq.system.sparse_files`."""


class Backup(msgspec.Struct, frozen=True, rename="camel"):
    """The content of ``backup.json``."""

    taken_ms: int
    """When the end of the log was found: all that was acknowledged before is in the backup."""
    begin: int
    """The log offset of the first record."""
    end: int
    """The log offset behind the last record."""
    last_store_ms: int
    """When the last record was stored; 0 if there is none."""
    settings: dict[str, str | int | bool]
    """The settings without which the files cannot be read."""
    files: dict[str, FileFacts]
    """Every file by its path in the backup."""

    @property
    def bytes(self) -> int:
        """The size of all files, with their holes."""
        return sum(facts.bytes for facts in self.files.values())

    def read_settings(self, root: Path) -> StoreSettings:
        """Return settings with which the backup, or a copy of it, is read."""
        names = {setting.key: setting.name for setting in describe(StoreSettings)}
        values: dict[str, Any] = {names[key]: self.settings[key] for key in LAYOUT}
        return StoreSettings(root=root, **values)


class _Described(msgspec.Struct, frozen=True):
    """The content of ``backup.json``."""

    format: int
    digest: str
    """The SHA-256 of what follows, without blanks."""
    backup: Backup


def read_backup(path: Path) -> Backup | None:
    """Return what a directory says of its backup; None if it has no ``backup.json``.

    Raises:
        StoreCorruptError: the file is damaged, or of a later version.
    """
    file = path / FILE_NAME
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        described = msgspec.json.decode(content, type=_Described)
    except ValueError as problem:
        raise StoreCorruptError(
            file, None, str(problem), "the description of a backup"
        ) from problem
    if described.format != FORMAT:
        raise StoreCorruptError(file, None, f"format {described.format}", f"format {FORMAT}")
    if described.digest != _digest(described.backup):
        raise StoreCorruptError(file, None, "content with another digest", described.digest)
    return described.backup


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what differs after a file was replaced; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _write_backup(path: Path, backup: Backup) -> None:
    content = msgspec.json.encode(_Described(FORMAT, _digest(backup), backup))
    (path / FILE_NAME).write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def _digest(backup: Backup) -> str:
    return hashlib.sha256(msgspec.json.encode(backup)).hexdigest()


def take_backup(
    settings: StoreSettings,
    target: Path,
    *,
    now_ms: Callable[[], int],
    link: bool = False,
    on_block: Callable[[], object] | None = None,
) -> Backup:
    """Make a backup of a store, which a broker may use meanwhile.

    Args:
        settings: the directories of the store, and the sizes of its files.
        target: the directory to be made.
        now_ms: the wall clock.
        link: make hard links to the full files of the log instead of copies.
        on_block: called before each block of a file is copied.

    Raises:
        ConfigError: the target exists, or the store cannot be linked.
        StoreError: the store is damaged, or a disk refused; there is no backup.
    """
    for folder in (settings.root, settings.commit_log):
        if target.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{target} is in {folder}: name a directory outside of the store")
    with _new_directory(target, like=settings.root) as part:
        return _Taking(settings, part, now_ms, link, on_block).run()


def restore_backup(path: Path, settings: StoreSettings) -> Backup:
    """Make a store of a backup, compare each file with its digest, and read the whole log.

    Args:
        path: the backup.
        settings: the directories of the new store.

    Raises:
        ConfigError: there is no backup, or the store exists.
        StoreCorruptError: the backup is damaged; there is no new store.
        StoreError: a disk refused; there is no new store.
    """
    backup = read_backup(path)
    if backup is None:
        raise ConfigError(f"no backup in {path}: there is no file {path / FILE_NAME}")
    _check_names(path, backup)
    log_target = settings.commit_log_dir
    with contextlib.ExitStack() as made:
        part = made.enter_context(_new_directory(settings.root, like=path))
        log_part = None
        if log_target is not None:  # on the stack above the root: it gets its name first
            log_part = made.enter_context(_new_directory(log_target, like=path))
        for name, facts in backup.files.items():
            folder, _, rest = name.partition("/")
            to = log_part / rest if log_part and folder == "commitlog" else part / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if copy_sparse(path / name, to) != facts.digest:
                raise StoreCorruptError(
                    path / name, None, "a file with another digest", f"that of {path / FILE_NAME}"
                )
        copied = dataclasses.replace(backup.read_settings(part), commit_log_dir=log_part)
        _check_log(copied, path / "commitlog", backup.begin, backup.end)
    return backup


def _check_names(path: Path, backup: Backup) -> None:
    """Refuse a backup in which files are missing, have another size, or are not listed.

    Raises:
        StoreCorruptError: names the first of them.
    """
    found = {name: (path / name).stat().st_size for name in _names(path) if name != FILE_NAME}
    for name in sorted(found.keys() | backup.files.keys()):
        facts = backup.files.get(name)
        if facts is None:
            raise StoreCorruptError(path / name, None, "a file", "none with this name")
        if name not in found:
            raise StoreCorruptError(path / name, None, "no file", f"one of {facts.bytes} bytes")
        if facts.bytes != found[name]:
            met = f"a file of {found[name]} bytes"
            raise StoreCorruptError(path / name, None, met, f"one of {facts.bytes} bytes")


class _Taking:
    """A backup that is being taken into a new directory."""

    def __init__(
        self,
        settings: StoreSettings,
        part: Path,
        now_ms: Callable[[], int],
        link: bool,
        on_block: Callable[[], object] | None,
    ) -> None:
        self._settings = settings
        self._paths = StorePaths(settings)
        self._part = part
        self._now_ms = now_ms
        self._link = link
        self._on_block = on_block
        self._files: Files = Files()
        self._copy = dataclasses.replace(
            settings, root=part, commit_log_dir=None, cut_damaged_log=False
        )
        self._digests: dict[str, str] = {}
        """Digests of files that the recovery of the copy does not change."""

    def run(self) -> Backup:
        """Copy the store and recover the copy."""
        paths, copy = self._paths, StorePaths(self._copy)
        checkpoint = read_checkpoint(self._files, paths.checkpoint)
        self._copy_others()
        taken_ms = self._now_ms()
        end = self._find_end(checkpoint)
        for source, target in (
            (paths.consume_queues, copy.consume_queues),
            (paths.batch_queues, copy.batch_queues),
            (paths.consume_queues_ext, copy.consume_queues_ext),
            (paths.index, copy.index),
        ):
            self._copy_tree(source, target)
        begin = self._copy_log(end, checkpoint)
        self._copy_topics()
        if not self._holds(checkpoint):
            raise StoreError(
                f"the log of {paths.root} was truncated while the backup was taken: take it again"
            )
        write_checkpoint(self._files, copy.checkpoint, checkpoint)
        # As after a power cut, but with all pages on the disk that the page cache has.
        copy.abort.write_bytes(f"{os.getpid()}\nbackup".encode())
        last_store_ms = _check_log(self._copy, self._settings.commit_log, begin, end)
        store = MessageStore(self._copy)
        store.open()
        store.close()
        copy.lock.unlink()
        self._free_reserved(end)
        facts = self._file_facts()
        backup = Backup(taken_ms, begin, end, last_store_ms, self._layout(), facts)
        _write_backup(self._part, backup)
        return backup

    # --- what is copied -----------------------------------------------------------------------

    def _copy_others(self) -> None:
        """Copy the tables, and files that the store does not know."""
        paths = self._paths
        parts = {self._settings.commit_log, paths.root / "commitlog"}
        parts |= {paths.consume_queues, paths.batch_queues, paths.consume_queues_ext, paths.index}
        for entry in _entries(paths.root):
            source = Path(entry.path)
            if source in parts or entry.name in _NOT_COPIED or entry.name.endswith(".tmp"):
                continue
            if entry.is_dir():
                self._copy_tree(source, self._part / entry.name)
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._copy_file(source, self._part / entry.name)

    def _copy_topics(self) -> None:
        # A start adds the queues of a newer mapping to its topic.
        for name in ("topics", "topicQueueMapping", "subscriptionGroup"):
            self._copy_table(f"config/{name}.json", f"config/{name}.json.changes")

    def _copy_table(self, whole: str, changes: str) -> None:
        """Copy a table and its latest changes, which count for this file of the table only."""
        source = self._paths.root / whole
        for _ in range(TRIES_MAX):
            before = _identity(source)
            for name in (whole, changes):
                (self._part / name).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self._copy_file(self._paths.root / name, self._part / name)
            if _identity(source) == before:
                return
        raise StoreError(
            f"{source} was replaced {TRIES_MAX} times while it was copied: try again when fewer"
            " topics and groups are created"
        )

    def _copy_tree(self, source: Path, target: Path) -> None:
        """Copy a directory; the newest files first, because the oldest are deleted first."""
        for entry in _entries(source):
            if entry.is_dir():
                self._copy_tree(Path(entry.path), target / entry.name)
            elif not entry.name.endswith(".tmp"):
                try:
                    self._copy_file(Path(entry.path), target / entry.name)
                except FileNotFoundError:  # deleted meanwhile, and so are those before it
                    break

    def _copy_file(self, source: Path, target: Path, *, end: int | None = None) -> str:
        target.parent.mkdir(parents=True, exist_ok=True)
        return copy_sparse(source, target, end=end, on_block=self._on_block)

    def _copy_log(self, end: int, checkpoint: Checkpoint) -> int:
        """Copy the log up to its end; return the log offset at which the copy begins."""
        size_bytes = self._settings.commit_log_file_bytes
        synced_to = 0 if checkpoint.position is None else checkpoint.position.log_offset
        entries = _entries(self._settings.commit_log)
        bases = [int(entry.name) for entry in entries if entry.name.isdigit()]
        # An empty log has its offset in the name of its file.
        bases = [base for base in bases if base < end] or [base for base in bases if base == end]
        begin = None if end else 0
        for base in bases:
            name = segment_name(base)
            source, target = self._settings.commit_log / name, self._part / "commitlog" / name
            stop = base + size_bytes
            try:
                if self._link and stop <= min(end, synced_to):
                    target.parent.mkdir(exist_ok=True)
                    digest = self._link_file(source, target)
                else:
                    digest = self._copy_file(source, target, end=end - base)
            except FileNotFoundError:
                break
            if stop <= end:
                self._digests[f"commitlog/{name}"] = digest
            begin = base
        if begin is None:
            raise StoreError(
                f"the log of {self._paths.root} expired while the backup was taken: take it again"
            )
        return begin

    def _link_file(self, source: Path, target: Path) -> str:
        name = self._paths.epochs.name
        if self._paths.epochs.exists():
            raise ConfigError(
                f"cannot link the log of {self._paths.root}: a broker with {name} may truncate"
                " it, and the backup with it; copy it"
            )
        try:
            target.hardlink_to(source)
        except OSError as problem:
            if problem.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            raise ConfigError(
                f"cannot link {source} to {target}: {problem.strerror}; links need one file system,"
                " and the user that the files belong to"
            ) from problem
        return digest_of(target)

    def _free_reserved(self, end: int) -> None:
        """Free the space behind the end of the log, which the recovery has reserved."""
        size_bytes = self._settings.commit_log_file_bytes
        newest = self._part / "commitlog" / segment_name(end - end % size_bytes)
        if newest.exists():
            os.truncate(newest, end % size_bytes)
            os.truncate(newest, size_bytes)

    # --- what is found out --------------------------------------------------------------------

    def _find_end(self, checkpoint: Checkpoint) -> int:
        """Return the end of the last whole record.

        Raises:
            StoreCorruptError: the log is damaged in the middle.
        """
        for _ in range(_TRIES_MAX):
            loader = Loader(self._settings, self._paths, self._files, self._now_ms, read_only=True)
            segments = loader.log_segments()
            try:
                segments.load()
                return _end_of(segments, self._paths, checkpoint)
            except FileNotFoundError:
                continue
            finally:
                segments.close()
        raise StoreError(
            f"{self._settings.commit_log}: files are deleted faster than they are read"
        )

    def _holds(self, checkpoint: Checkpoint) -> bool:
        """Return whether the log was not truncated since a checkpoint was read."""
        now = read_checkpoint(self._files, self._paths.checkpoint).position
        before = checkpoint.position
        return now is None or before is None or now.log_offset >= before.log_offset

    def _layout(self) -> dict[str, str | int | bool]:
        values = {
            setting.key: getattr(self._settings, setting.name)
            for setting in describe(StoreSettings)
        }
        return {key: values[key] for key in LAYOUT}

    def _file_facts(self) -> dict[str, FileFacts]:
        return {
            name: FileFacts(
                (self._part / name).stat().st_size,
                self._digests.get(name) or digest_of(self._part / name),
            )
            for name in _names(self._part)
        }


def _end_of(segments: Segments, paths: StorePaths, checkpoint: Checkpoint) -> int:
    """Return the end of the last whole record of a log that may grow meanwhile."""
    first = segments.first()
    if first is None:
        return 0
    at = checkpoint.position
    synced_to = None if at is None else at.log_offset
    start = max(first.base_offset, synced_to or 0)
    tries = 0
    while True:
        end = recovery.find_end(
            segments, start, check_crc=True, synced_ms=checkpoint.physic_ms, synced_to=synced_to
        )
        follower = recovery.find_follower(segments, end)
        if follower is None:
            return end.offset
        grown = recovery.find_end(segments, end.offset, check_crc=True)
        if grown.offset > end.offset:  # the follower is newer than the end
            return end.offset
        tries += 1
        if tries == _TRIES_MAX:
            break
    segment = segments.find(end.offset)
    raise StoreCorruptError(
        paths.commit_log if segment is None else segment.file.path,
        0 if segment is None else end.offset - segment.base_offset,
        end.problem,
        f"a record, as whole records follow from log offset {follower.log_offset} on",
    )


def _check_log(settings: StoreSettings, original: Path, begin: int, end: int) -> int:
    """Read the whole log of a copy; return when its last record was stored, 0 for none.

    Args:
        settings: the settings of the copy.
        original: the directory of the log that was copied, for the error.
        begin, end: the log offsets between which there must be nothing but whole records.

    Raises:
        StoreCorruptError: there is something else.
    """
    segments = Loader(
        settings, StorePaths(settings), Files(), lambda: 0, read_only=True
    ).log_segments()
    try:
        segments.load()
        met = recovery.find_end(segments, begin, check_crc=True)
        if met.offset == end and max(segments.first_base(), 0) == begin:
            return met.last_store_ms
        base = met.offset - met.offset % settings.commit_log_file_bytes
        raise StoreCorruptError(
            original / segment_name(base),
            met.offset - base,
            met.problem,
            f"whole records from log offset {begin} to {end}",
        )
    finally:
        segments.close()


@contextlib.contextmanager
def _new_directory(target: Path, *, like: Path) -> Iterator[Path]:
    """Make a directory that has its name once the block has ended, and all of it is on the disk.

    Args:
        target: the directory.
        like: the one whose permissions it gets.

    Raises:
        ConfigError: it exists.
        StoreError: the disk refused.
    """
    if os.path.ismount(target):
        raise ConfigError(f"{target} is the root of a file system: name a directory in it")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists: name a directory that does not, or an empty one")
    part = target.with_name(f"{target.name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir(mode=0o700)
    except FileExistsError as problem:
        raise ConfigError(
            f"{part} exists: it is the rest of an interrupted run; remove it"
        ) from problem
    except OSError as problem:
        raise StoreError(f"cannot make {target}: {problem}") from problem
    try:
        yield part
        part.chmod(like.stat().st_mode & 0o777)
        SERVERS.sync_tree(part)
        part.rename(target)
        Files().sync_dir(target.parent)
    except OSError as problem:
        shutil.rmtree(part, ignore_errors=True)
        raise StoreError(f"cannot make {target}: {problem}") from problem
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, the last by name first; none if it is missing."""
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda entry: entry.name, reverse=True)
    except FileNotFoundError:
        return []


def _names(path: Path) -> list[str]:
    """Return the paths of all files below a directory, relative to it."""
    return sorted(
        str((Path(folder) / name).relative_to(path))
        for folder, _, names in os.walk(path)
        for name in names
    )
