"""Memory that a virtual machine's host has already given, for as long as a benchmark runs.

A host gives a page when it is first used, and whoever uses it pays, up to ten times what writing
to a file costs otherwise. Guests also give free memory back, in blocks of 2 MiB, seconds after it
became free: the files of each new broker would lie in cold memory again. So a process of its own
uses the free memory once and then releases all but one page in 256, without which no block of
2 MiB is ever free.

Source: the kernel's free page reporting, ``mm/page_reporting.c`` of Linux.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HELD_MIB_MAX = 14 * 1024
"""More than any server uses: the kernel gives out what lies in broken blocks first."""
SPARED_MIB = 512
"""What stays free while the rest is filled."""
HELD_EVERY = 256 * mmap.PAGESIZE
"""In bytes: half of the smallest block that is given back."""
POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, of Linux 5.14; Python does not name it."""
RELEASED = b"released\n"


@contextmanager
def warm_memory() -> Iterator[str]:
    """Have the memory that servers will use from the host already; give how much that is.

    On a machine that was never cold this takes seconds, else up to a minute.
    """
    size = min(_free_mib() - SPARED_MIB, HELD_MIB_MAX)
    with subprocess.Popen(
        [sys.executable, __file__, str(max(size, 1))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        held = holder.stdout.readline() == RELEASED
        try:
            yield f"{size / 1024:.0f} GiB" if held else "none, there was not enough"
        finally:
            holder.stdin.close()


def _free_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) // 1024
    return 0


def _hold(size: int) -> None:
    """Use so many bytes, let go of nearly all, and keep the others until input ends."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory.madvise(POPULATE_WRITE)
    for held in range(0, size, HELD_EVERY):
        memory.madvise(mmap.MADV_DONTNEED, held + mmap.PAGESIZE, HELD_EVERY - mmap.PAGESIZE)
    sys.stdout.buffer.write(RELEASED)
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _hold(int(sys.argv[1]) << 20)
