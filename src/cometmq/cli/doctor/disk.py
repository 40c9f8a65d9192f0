"""Checks of the disk below a store: its file system, its room, and how fast it syncs.

Source: proc_pid_mountinfo(5); mount(8) for options.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cometmq.cli.doctor.findings import Finding, Level, fine
from cometmq.cli.doctor.host import MIB, Host
from cometmq.store import StoreSettings, kept_log_file_bytes
from cometmq.system.files import Files
from cometmq.system.platforms import SERVERS

SYNCS = 16
SYNC_BYTES = 4096
SYNCS_S = 2.0
"""The seconds after which the measurement ends."""
SYNC_WARNING_MS, SYNC_PROBLEM_MS = 20.0, 200.0
INODES_WARNING, INODES_PROBLEM = 0.10, 0.01
"""Shares of the inodes that are free."""
FILES_AHEAD = 2
"""A broker allocates the next file of the log before it needs it."""
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"))
REMOTE = re.compile(r"nfs\d*|cifs|smb3|smbfs|9p|virtiofs|ceph|glusterfs|lustre|afs|fuse(\..*)?")
PAGE = "see docs/howto/full-disk.md"


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str
    options: frozenset[str]


def mount_of(host: Host, path: Path) -> Mount | None:
    """Return the file system that contains a path; None if the kernel does not say."""
    best: Mount | None = None
    for line in (host.text("proc/self/mountinfo") or "").splitlines():
        own, _, rest = line.partition(" - ")
        words, more = own.split(), rest.split()
        if len(words) < 6 or len(more) < 2:
            continue
        point = _unescaped(words[4])
        options = frozenset(",".join([words[5], *more[2:3]]).split(","))
        within = path == Path(point) or Path(point) in path.parents
        if within and (best is None or len(point) >= len(best.point)):  # a later one is above
            best = Mount(point, more[0], options)
    return best


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.resolve()


def folders(settings: StoreSettings) -> list[Path]:
    """Return the directories of a store that may be on different disks."""
    by_device: dict[int, Path] = {}
    for path in (settings.root, settings.commit_log):
        by_device.setdefault(existing(path).stat().st_dev, path)
    return list(by_device.values())


def access(folder: Path) -> Iterator[Finding]:
    """Check that this user may write into the directory."""
    where = existing(folder)
    if not where.is_dir():
        yield Finding(
            "store-access", Level.PROBLEM, str(folder), f"{where} is not a directory",
            "a directory, or a path at which one can be made", "set storePathRootDir",
        )  # fmt: skip
    elif os.access(where, os.R_OK | os.W_OK | os.X_OK):
        yield fine("store-access", str(folder), f"user {os.geteuid()} may write")
    else:
        owner = where.stat()
        yield Finding(
            "store-access",
            Level.PROBLEM,
            str(folder),
            f"user {os.geteuid()} may not write {where}, which belongs to user {owner.st_uid} with"
            f" mode {owner.st_mode & 0o7777:04o}",
            "a directory that the user of the broker may read and write",
            f"run this command as the user of the broker, or chown -R USER {where}",
        )


def file_system(folder: Path, host: Host) -> Iterator[Finding]:
    """Check the type of the file system and the options of its mount."""
    mount = mount_of(host, existing(folder))
    if mount is None:
        yield fine("file-system", str(folder), "the kernel does not show the mount")
        return
    found = [
        Finding("file-system", level, str(folder), f"{mount.kind} at {mount.point}: {met}", *more)
        for level, met, *more in _problems_of(mount)
    ]
    yield from found or [fine("file-system", str(folder), f"{mount.kind} at {mount.point}")]


def _problems_of(mount: Mount) -> Iterator[tuple[Level, str, str, str]]:
    kind, options = mount.kind, mount.options
    move = "set storePathRootDir to a directory on a local disk; see docs/howto/move-a-broker.md"
    if kind in IN_MEMORY:
        yield (
            Level.PROBLEM, "messages are in memory, and lost when the machine stops",
            "a file system on a disk", move,
        )  # fmt: skip
    elif kind == "overlay":
        yield (
            Level.WARNING, "messages are in a container's own layer, and lost with the container",
            "a volume", "mount a volume at the store; see docs/howto/run-as-a-service.md",
        )  # fmt: skip
    elif REMOTE.fullmatch(kind):
        yield (
            Level.WARNING,
            "a network file system: syncs are slow, and locks may not keep a second broker out",
            "ext4 or XFS on a local disk or a block device", move,
        )  # fmt: skip
    elif kind not in LOCAL:
        yield (
            Level.WARNING, "a file system on which CometMQ is not tested", "ext4 or XFS", move,
        )  # fmt: skip
    if "ro" in options:
        yield (
            Level.PROBLEM, "it is read-only, perhaps after an error of the disk",
            "a file system that can be written",
            "look for errors with dmesg; see docs/howto/replace-a-disk.md",
        )  # fmt: skip
    if options & {"nobarrier", "barrier=0"}:
        yield (
            Level.PROBLEM, "mounted without write barriers: a sync does not reach the disk",
            "barriers, which are the default", f"mount -o remount,barrier=1 {mount.point}",
        )  # fmt: skip
    if "sync" in options:
        yield (
            Level.WARNING, "mounted with sync: each write waits for the disk",
            "async, which is the default; the broker syncs itself",
            f"mount -o remount,async {mount.point}",
        )  # fmt: skip


def room(folder: Path, settings: StoreSettings) -> Iterator[Finding]:
    """Check how full the disk is, by the limits of the settings, and its inodes."""
    usage = Files().usage(folder.absolute())
    percent = usage.ratio * 100
    met = f"{percent:.1f} % used, {usage.available_bytes // MIB} MiB free"
    least = FILES_AHEAD * kept_log_file_bytes(settings, Files())
    worst: tuple[Level, str, str] | None = None
    if percent >= settings.disk_warning_ratio:
        worst = (
            Level.PROBLEM,
            f"less than {settings.disk_warning_ratio} % (diskSpaceWarningLevelRatio): above it the"
            " broker refuses messages",
            f"free space, enlarge the disk or reduce fileReservedTime; {PAGE}",
        )
    elif usage.available_bytes < least:
        worst = (
            Level.PROBLEM,
            f"at least {least // MIB} MiB, two files of the log (mappedFileSizeCommitLog)",
            f"free space, enlarge the disk or reduce fileReservedTime; {PAGE}",
        )
    elif percent >= settings.disk_used_ratio_max:
        forced = percent >= settings.disk_clean_forcibly_ratio and settings.clean_forcibly_enabled
        limit, name = (
            (settings.disk_clean_forcibly_ratio, "diskSpaceCleanForciblyRatio")
            if forced
            else (settings.disk_used_ratio_max, "diskMaxUsedSpaceRatio")
        )
        which = "the oldest" if forced else "expired"
        worst = (
            Level.WARNING,
            f"less than {limit} % ({name}): above it the broker deletes {which} files at any hour",
            f"enlarge the disk, or reduce fileReservedTime; {PAGE}",
        )
    yield (
        fine("disk-space", str(folder), met)
        if worst is None
        else Finding("disk-space", worst[0], str(folder), met, *worst[1:])
    )
    yield from _inodes(folder)


def _inodes(folder: Path) -> Iterator[Finding]:
    found = SERVERS.statvfs(existing(folder))
    share = found.f_favail / found.f_files if found.f_files else 1.0  # some have no fixed number
    met = f"{found.f_favail} of {found.f_files} inodes free"
    if share >= INODES_WARNING:
        yield fine("inodes", str(folder), met)
        return
    yield Finding(
        "inodes",
        Level.PROBLEM if share < INODES_PROBLEM else Level.WARNING,
        str(folder),
        met,
        f"at least {INODES_WARNING:.0%}: each file of a queue needs one",
        f"delete small files on this disk, or topics that are not used; {PAGE}",
    )


def sync_speed(folder: Path, clock: Callable[[], float] = time.perf_counter) -> Iterator[Finding]:
    """Measure a few syncs in the directory, with a file that has no name afterwards."""
    where = existing(folder)
    times_ms: list[float] = []
    with tempfile.TemporaryFile(dir=where, prefix=".cometmq-doctor-") as file:
        began = clock()
        while len(times_ms) < SYNCS and clock() - began < SYNCS_S:
            start = clock()
            file.write(bytes(SYNC_BYTES))
            file.flush()
            SERVERS.sync_data(file.fileno())
            times_ms.append((clock() - start) * 1000)
    median = statistics.median(times_ms)
    met = (
        f"a sync of {SYNC_BYTES} bytes takes {median:.2f} ms, at most {max(times_ms):.2f} ms"
        f" ({len(times_ms)} syncs)"
    )
    if median <= SYNC_WARNING_MS:
        yield fine("sync-speed", str(folder), met)
        return
    yield Finding(
        "sync-speed",
        Level.PROBLEM if median > SYNC_PROBLEM_MS else Level.WARNING,
        str(folder),
        met,
        f"at most {SYNC_WARNING_MS:g} ms: a send waits for a sync (flushDiskType=SYNC_FLUSH)",
        "use an SSD, and look with iostat -x 1 what else writes to the disk",
    )
