"""What a reader must know of the machine to judge a figure."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def facts() -> dict[str, str]:
    """Processor, cores, memory, kernel, file system and versions."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "file system": _said("stat", "-f", "-c", "%T", "."),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Java": _said("java", "-version").splitlines()[0] if _said("java", "-version") else "none",
        "commit": _said("git", "describe", "--always", "--dirty"),
    }


def busy_cores(seconds: float) -> float:
    """How many cores other work keeps busy; measured by watching for some seconds."""
    before = _busy_ticks()
    subprocess.run(["sleep", str(seconds)], check=True)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def cpu_seconds(pids: list[int]) -> float:
    """CPU time the processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def anonymous_mib(pids: list[int]) -> float:
    """Memory of the processes that no file backs."""
    kib = [int(_lines_of(f"/proc/{pid}/status")["RssAnon"].split()[0]) for pid in pids]
    return sum(kib) / 1024


def _busy_ticks() -> int:
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields) - fields[3] - fields[4]


def _processor() -> str:
    return _lines_of("/proc/cpuinfo").get("model name", platform.machine())


def _lines_of(path: str) -> dict[str, str]:
    """The lines 'name: value' of one of the kernel's files; the last of a name counts."""
    pairs = (line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return ""
    return (done.stdout or done.stderr).strip()
