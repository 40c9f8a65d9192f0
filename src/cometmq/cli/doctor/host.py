"""Checks of the machine: limits, memory, kernel settings, Python and the build.

Source: Documentation/admin-guide/sysctl/vm.rst and mm/transhuge.rst of Linux; os.sh, RocketMQ 5.3.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cometmq.cli.build import build as running_build
from cometmq.cli.doctor.findings import Finding, Level, fine
from cometmq.system.platforms import SERVERS

OPEN_FILES_MIN, OPEN_FILES_EXPECTED = 4_096, 65_536
MAPPINGS_EXPECTED = 65_530
MIB = 1024 * 1024
AVAILABLE_MIN, AVAILABLE_EXPECTED = 128 * MIB, 512 * MIB
"""Bytes; a broker needs some 100 MiB beside the page cache."""
SWAPPINESS_MAX = 10
PYTHON_TESTED = ((3, 11), (3, 14))
"""The first and the last version that the tests run on."""


class Host(NamedTuple):
    """The machine as this process sees it."""

    root: Path = Path("/")
    """The directory with ``proc`` and ``sys``."""
    python: tuple[int, int] = sys.version_info[:2]
    build: str = running_build()
    name: str = platform.node() or "this host"

    def text(self, path: str) -> str | None:
        """Return a file of the kernel; None if this kernel or this container does not have it."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return a file of the kernel that is one number."""
        text = self.text(path)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None

    def memory(self) -> dict[str, int]:
        """Return ``/proc/meminfo``: bytes by name."""
        lines = (line.split() for line in (self.text("proc/meminfo") or "").splitlines())
        return {
            words[0].rstrip(":"): int(words[1]) * 1024
            for words in lines
            if len(words) == 3 and words[1].isdigit()
        }


def open_files(host: Host) -> Iterator[Finding]:
    """Check the limit of open files; a server raises its soft limit to the hard one."""
    _, limit = SERVERS.open_files_limits()
    if limit is None or limit >= OPEN_FILES_EXPECTED:
        count = "any number of" if limit is None else f"at most {limit}"
        yield fine("open-files", host.name, f"{count} open files")
        return
    yield Finding(
        "open-files",
        Level.PROBLEM if limit < OPEN_FILES_MIN else Level.WARNING,
        host.name,
        f"at most {limit} open files (hard limit)",
        f"at least {OPEN_FILES_EXPECTED}: each connection and each mapped file is one",
        "set LimitNOFILE=1048576 in the systemd unit, or --ulimit nofile of a container; see"
        " docs/explanation/limits.md",
    )


def mappings(host: Host) -> Iterator[Finding]:
    """Check how many mappings a process may have: each file of the store is one."""
    found = host.number("proc/sys/vm/max_map_count")
    if found is None or found >= MAPPINGS_EXPECTED:
        yield fine("mappings", host.name, f"vm.max_map_count={found}")
        return
    yield Finding(
        "mappings",
        Level.WARNING,
        host.name,
        f"vm.max_map_count={found}",
        f"at least {MAPPINGS_EXPECTED}: each file of the store is a mapping",
        "sysctl -w vm.max_map_count=655360",
    )


def memory(host: Host) -> Iterator[Finding]:
    """Check the memory that is available, to the machine or to the control group."""
    found = host.memory()
    available = found.get("MemAvailable")
    if available is not None:
        where, rest = "memory of the machine", available
        limit = host.number("sys/fs/cgroup/memory.max")
        used = host.number("sys/fs/cgroup/memory.current")
        if limit is not None and used is not None:
            of_group = limit - used + _reclaimable(host)
            if of_group < rest:
                where, rest = "memory of the control group", of_group
        met = f"{rest // MIB} MiB available, {where}"
        if rest >= AVAILABLE_EXPECTED:
            yield fine("memory", host.name, met)
        else:
            yield Finding(
                "memory",
                Level.PROBLEM if rest < AVAILABLE_MIN else Level.WARNING,
                host.name,
                met,
                f"at least {AVAILABLE_EXPECTED // MIB} MiB: what is not used holds the newest"
                " messages (page cache)",
                "give the broker more memory, or stop other programs; see"
                " docs/howto/size-a-broker.md",
            )
    yield from _overcommit(host, found)


def _reclaimable(host: Host) -> int:
    """Return the page cache of the control group, which the kernel frees when it must."""
    lines = (line.split() for line in (host.text("sys/fs/cgroup/memory.stat") or "").splitlines())
    figures = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return figures.get("inactive_file", 0) + figures.get("active_file", 0)


def _overcommit(host: Host, found: dict[str, int]) -> Iterator[Finding]:
    mode = host.number("proc/sys/vm/overcommit_memory")
    room = found.get("CommitLimit", 0) - found.get("Committed_AS", 0)
    if mode != 2 or room >= AVAILABLE_EXPECTED:
        yield fine("overcommit", host.name, f"vm.overcommit_memory={mode}")
        return
    yield Finding(
        "overcommit",
        Level.WARNING,
        host.name,
        f"vm.overcommit_memory=2 with {max(0, room) // MIB} MiB left to commit",
        f"at least {AVAILABLE_EXPECTED // MIB} MiB, or another mode: allocations fail although"
        " memory is free",
        "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio",
    )


def swap(host: Host) -> Iterator[Finding]:
    """Check that the kernel does not swap out a server whose memory it needs for files."""
    total = host.memory().get("SwapTotal", 0)
    swappiness = host.number("proc/sys/vm/swappiness")
    if not total or swappiness is None or swappiness <= SWAPPINESS_MAX:
        yield fine("swap", host.name, f"{total // MIB} MiB of swap, vm.swappiness={swappiness}")
        return
    yield Finding(
        "swap",
        Level.WARNING,
        host.name,
        f"{total // MIB} MiB of swap with vm.swappiness={swappiness}",
        f"no swap, or vm.swappiness of at most {SWAPPINESS_MAX}: a server that was swapped out"
        " responds late",
        "sysctl -w vm.swappiness=1, or swapoff -a",
    )


def huge_pages(host: Host) -> Iterator[Finding]:
    """Check that a page fault does not wait until the kernel has made a huge page."""
    folder = "sys/kernel/mm/transparent_hugepage"
    enabled = _chosen(host.text(f"{folder}/enabled"))
    defrag = _chosen(host.text(f"{folder}/defrag"))
    met = f"transparent huge pages: enabled={enabled}, defrag={defrag}"
    if enabled != "always" or defrag != "always":
        yield fine("huge-pages", host.name, met)
        return
    yield Finding(
        "huge-pages",
        Level.WARNING,
        host.name,
        met,
        "defrag=madvise: with always, an allocation waits while the kernel moves memory",
        f"echo madvise > /{folder}/defrag",
    )


def _chosen(text: str | None) -> str:
    """Return the choice in brackets of ``always [madvise] never``."""
    return (text or "").partition("[")[2].partition("]")[0] or "unknown"


def python(host: Host) -> Iterator[Finding]:
    """Check the version of Python and the build."""
    version = f"Python {host.python[0]}.{host.python[1]}"
    first, last = PYTHON_TESTED
    if first <= host.python <= last:
        yield fine("python", host.name, version)
    else:
        yield Finding(
            "python",
            Level.WARNING,
            host.name,
            version,
            "a version that is tested: {}.{} to {}.{}".format(*first, *last),
            "install CometMQ with such a version; see docs/howto/install.md",
        )
    if host.build == "compiled":
        yield fine("build", host.name, "compiled")
    else:
        yield Finding(
            "build",
            Level.WARNING,
            host.name,
            f"the {host.build} build",
            "the compiled build, which needs a fraction of the processor time",
            "install a wheel, or unset COMETMQ_BUILD; see docs/howto/install.md",
        )


CHECKS = {
    "open-files": open_files,
    "mappings": mappings,
    "memory": memory,
    "swap": swap,
    "huge-pages": huge_pages,
    "python": python,
}
"""The checks of a host by name."""
