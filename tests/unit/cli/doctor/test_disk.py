"""The checks of the disk below a store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from cometmq.cli.doctor import disk
from cometmq.cli.doctor.findings import Finding, Level
from cometmq.cli.doctor.host import Host
from cometmq.store import StoreSettings
from support.processes.root import mounted_in_memory

MIB = 1024 * 1024
LINE = "30 {} 254:0 / {} {} shared:1 - {} /dev/vda {}\n"

Mounted = Callable[[str], Path]


def levels(found: Iterator[Finding]) -> list[Level]:
    return [finding.level for finding in found]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    """Mount a file system in memory with these options."""
    path = tmp_path / "mounted"
    path.mkdir()
    with ExitStack() as mounts:
        yield lambda options: mounts.enter_context(mounted_in_memory(path, options))


def test_a_store_in_memory_is_found(mounted: Mounted) -> None:
    [finding] = disk.file_system(mounted("size=1m") / "store", Host())

    assert finding.level is Level.PROBLEM
    assert "tmpfs at" in finding.met


def test_a_read_only_disk_is_found(mounted: Mounted) -> None:
    found = list(disk.file_system(mounted("size=1m,ro"), Host()))

    assert [finding.level for finding in found] == [Level.PROBLEM, Level.PROBLEM]
    assert "read-only" in found[1].met


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("ext4", "rw,relatime", [Level.FINE]),
        ("xfs", "rw", [Level.FINE]),
        ("nfs4", "rw,vers=4.2", [Level.WARNING]),
        ("fuse.sshfs", "rw", [Level.WARNING]),
        ("overlay", "rw", [Level.WARNING]),
        ("vfat", "rw", [Level.WARNING]),
        ("ext4", "rw,nobarrier", [Level.PROBLEM]),
        ("ext4", "rw,sync", [Level.WARNING]),
        ("ext4", "ro", [Level.PROBLEM]),
    ],
)
def test_the_file_system_and_its_options_are_judged(
    tmp_path: Path, kind: str, options: str, expected: list[Level]
) -> None:
    info = tmp_path / "proc" / "self" / "mountinfo"
    info.parent.mkdir(parents=True)
    store = tmp_path / "a b"
    store.mkdir()
    point = str(store).replace(" ", r"\040")
    info.write_text(
        LINE.format(1, "/", "rw", "tmpfs", "rw") + LINE.format(30, point, "rw", kind, options)
    )

    assert levels(disk.file_system(store / "not" / "yet", Host(root=tmp_path))) == expected


def test_the_mount_that_is_above_others_counts(tmp_path: Path) -> None:
    info = tmp_path / "proc" / "self" / "mountinfo"
    info.parent.mkdir(parents=True)
    info.write_text(
        LINE.format(1, "/", "rw", "ext4", "rw") + LINE.format(1, "/", "rw", "xfs", "rw")
    )

    mount = disk.mount_of(Host(root=tmp_path), Path("/data"))

    assert mount is not None
    assert mount.kind == "xfs"


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (10, [Level.FINE, Level.FINE]),
        (80, [Level.WARNING, Level.FINE]),
        (87, [Level.WARNING, Level.FINE]),
        (93, [Level.PROBLEM, Level.FINE]),
    ],
)
def test_a_full_disk_is_found(mounted: Mounted, percent: int, expected: list[Level]) -> None:
    path = mounted("size=20m")
    (path / "ballast").write_bytes(bytes(20 * MIB * percent // 100))

    assert levels(disk.room(path / "store", StoreSettings(commit_log_file_bytes=4096))) == expected


def test_a_disk_without_room_for_the_next_files_is_found(mounted: Mounted) -> None:
    found = disk.room(mounted("size=1m"), StoreSettings(commit_log_file_bytes=MIB))

    finding = next(found)
    assert finding.level is Level.PROBLEM
    assert "mappedFileSizeCommitLog" in finding.expected


@pytest.mark.parametrize(
    ("files", "level"), [(10, Level.FINE), (95, Level.WARNING), (100, Level.PROBLEM)]
)
def test_a_disk_without_inodes_is_found(mounted: Mounted, files: int, level: Level) -> None:
    path = mounted("size=20m,nr_inodes=100")
    while os.statvfs(path).f_favail > 100 - files:
        (path / f"{os.statvfs(path).f_favail}").touch()

    [_, inodes] = disk.room(path, StoreSettings(commit_log_file_bytes=4096))

    assert (inodes.check, inodes.level) == ("inodes", level)


def test_a_directory_of_another_user_is_found() -> None:
    """Root may write everywhere, so another user examines the directory."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from cometmq.cli.doctor import disk\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print(*(each.level.value for each in disk.access(Path(sys.argv[1]))))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", program, f"{folder}/store"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "problem\n"


def test_a_directory_that_may_be_written_is_fine(tmp_path: Path) -> None:
    assert levels(disk.access(tmp_path / "a" / "b")) == [Level.FINE]


def test_a_file_in_place_of_the_store_is_found(tmp_path: Path) -> None:
    (tmp_path / "store").touch()

    assert levels(disk.access(tmp_path / "store")) == [Level.PROBLEM]


def test_one_disk_is_checked_once(tmp_path: Path, mounted: Mounted) -> None:
    root = tmp_path / "store"
    other = mounted("size=1m")

    assert disk.folders(StoreSettings(root=root)) == [root]
    assert disk.folders(StoreSettings(root=root, commit_log_dir=other)) == [root, other]


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.0001, Level.FINE), (0.05, Level.WARNING), (0.5, Level.PROBLEM)]
)
def test_a_slow_disk_is_found_and_the_measurement_ends(
    tmp_path: Path, seconds: float, level: Level
) -> None:
    ticks = count()
    [finding] = disk.sync_speed(tmp_path / "store", clock=lambda: next(ticks) * seconds)

    assert finding.level is level
    assert list(tmp_path.iterdir()) == []
    if level is Level.PROBLEM:
        assert "(1 syncs)" in finding.met


def test_the_disk_of_this_test_can_be_measured(tmp_path: Path) -> None:
    [finding] = disk.sync_speed(tmp_path)

    assert "syncs)" in finding.met
    assert list(tmp_path.iterdir()) == []
