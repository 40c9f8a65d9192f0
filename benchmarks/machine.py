"""What a reader must know of the machine to judge a figure: its parts, the commit, and noise."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import cometmq
from cometmq.cli.build import version_line

ROOT = Path(__file__).resolve().parent.parent
RESULT_FILES = "benchmarks/results"
KERNEL_THREADS = 2
"""The process that every thread of the kernel descends from."""


@dataclass(frozen=True)
class Noise:
    """Processor time that was not the benchmark's, in cores."""

    steal: float
    """Taken by the host of a virtual machine."""
    others: float
    """Used by other processes; threads of the kernel do not count, as they work for the servers."""

    @property
    def total(self) -> float:
        """Both."""
        return self.steal + self.others


class NoiseWatch:
    """Measures the noise within ``with``: what ran beside this process and those it started."""

    def __init__(self) -> None:
        self.noise = Noise(0.0, 0.0)

    def __enter__(self) -> NoiseWatch:
        self._began = time.monotonic()
        self._before = ticks()
        return self

    def __exit__(self, *_: object) -> None:
        hz = os.sysconf("SC_CLK_TCK") * max(time.monotonic() - self._began, 0.001)
        self.noise = noise_between(self._before, ticks(), hz)


@dataclass(frozen=True)
class Ticks:
    """Processor time since the start of the machine, in the kernel's ticks."""

    busy: int
    """Of everything."""
    steal: int
    """Taken by the host."""
    ours: dict[int, tuple[int, int]]
    """Of each process of the benchmark and each thread of the kernel: its own, that of children
    that have ended."""


def noise_between(before: Ticks, after: Ticks, hz: float) -> Noise:
    """What was not ours between two readings that are ``hz`` ticks apart."""
    others = after.busy - before.busy - _used(before.ours, after.ours)
    return Noise((after.steal - before.steal) / hz, max(0, others) / hz)


def _used(before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]) -> int:
    """The ticks that processes have used between two readings.

    What a child used goes to its parent when it ends, so the sum over all counts it. The sum loses
    a process that nobody of ours has waited for, such as Spark's idle workers; then what those that
    live have used is the larger.
    """
    everything = sum(map(sum, after.values())) - sum(map(sum, before.values()))
    living = sum(own - before.get(pid, (0, 0))[0] for pid, (own, _) in after.items())
    return max(everything, living)


def _processes() -> dict[int, tuple[int, int, int]]:
    """The parent of each process, its processor time, and that of its children that have ended."""
    processes: dict[int, tuple[int, int, int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has just ended
            own, of_ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            processes[int(folder.name)] = int(fields[1]), own, of_ended
    return processes


class FamilyCpu:
    """The CPU time that this process and all below it use, from the creation of this object on."""

    def __init__(self) -> None:
        self._before = self._read()

    def seconds(self) -> float:
        """Return what they have used, those that have ended included."""
        return _used(self._before, self._read()) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _read() -> dict[int, tuple[int, int]]:
        return _family_ticks(os.getpid())


def family_cpu_seconds(pid: int) -> float:
    """CPU time that a process and all below it have used, those that have ended included."""
    return sum(map(sum, _family_ticks(pid).values())) / os.sysconf("SC_CLK_TCK")


def family_pids(pid: int) -> set[int]:
    """A process and all below it."""
    return set(_family_ticks(pid))


def _family_ticks(root: int) -> dict[int, tuple[int, int]]:
    processes = _processes()
    family = _family({pid: parent for pid, (parent, _, _) in processes.items()}, root)
    return {pid: processes[pid][1:] for pid in family & processes.keys()}


def ticks() -> Ticks:
    """Read the processor times of now."""
    processes = _processes()
    root = os.getpid()
    family = _family({pid: parent for pid, (parent, _, _) in processes.items()}, root)
    ours = {
        pid: (own, of_ended if pid in family else 0)
        for pid, (parent, own, of_ended) in processes.items()
        if pid in family or KERNEL_THREADS in (pid, parent)
    }
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return Ticks(user + nice + system + irq + softirq, steal, ours)


def _family(parents: dict[int, int], root: int) -> set[int]:
    """A process and all below it."""
    family: set[int] = set()
    more = {root}
    while more:
        family |= more
        more = {pid for pid, parent in parents.items() if parent in more} - family
    return family


def page_head(
    title: str,
    loads: Mapping[str, str],
    *,
    rounds: int,
    noise: Noise,
    noise_max: float | None = None,
) -> list[str]:
    """The head of a page of figures without Java: the machine, the build, what was measured."""
    about = {
        **facts(),
        "build": version_line(),
        **loads,
        "rounds": f"{rounds}; each cell is the median, in brackets least and most",
        "noise": f"{noise.steal:.2f} cores of steal, {noise.others:.2f} of other processes",
    }
    about.pop("Java")
    if noise_max is not None:
        about["noise"] += f"; above {noise_max} in all there is no verdict"
    return [f"# {title}", "", *(f"- {name}: {value}" for name, value in about.items()), ""]


def report(name: str, lines: Sequence[str], rows: object, *, whole: bool) -> None:
    """Print a page of figures; with those of a whole run, it becomes the files of the results."""
    print(*lines, sep="\n")
    if whole:
        folder = ROOT / RESULT_FILES
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def cell(values: Sequence[float], form: str) -> str:
    """Median, least and most."""
    return f"{median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


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
        "commit": commit(),
    }


def commit(tree: Path = Path()) -> str:
    """The commit of a tree, with ``-dirty`` if anything but result files differs from it."""
    name = _said("git", "-C", str(tree), "rev-parse", "--short=12", "HEAD") or "unknown"
    return f"{name}-dirty" if changes(tree) else name


def changes(tree: Path = Path()) -> str:
    """What differs from the commit, result files left out; empty in a clean tree."""
    status = ("status", "--porcelain", "--", ".", f":(exclude){RESULT_FILES}")
    return _said("git", "-C", str(tree), *status)


def refuse_other_sources() -> None:
    """End the program if what would be measured is not the tree whose commit the report names."""
    found = Path(cometmq.__file__).resolve()
    if not found.is_relative_to(ROOT):
        sys.exit(f"the package is imported from {found.parent}, not from {ROOT}: make setup here")


def python_of(checkout: Path) -> str:
    """The interpreter of another checkout, which must run compiled modules of its own."""
    python = checkout / ".venv" / "bin" / "python"
    if not python.is_file():
        sys.exit(f"--before {checkout}: there is no {python}; give a checkout after make setup")
    code = (
        "import cometmq, cometmq.cli.build as b; print(cometmq.__file__); print(b.version_line())"
    )
    said = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, env=compiled_environment()
    )
    source, version = said.stdout.splitlines()
    if not Path(source).resolve().is_relative_to(checkout) or "(compiled" not in version:
        sys.exit(
            f"--before {checkout} runs {source}, {version}, and not compiled modules of its own"
        )
    return str(python)


def compiled_environment() -> dict[str, str]:
    """The variables of a process that runs the compiled build, whatever was asked of this one."""
    return {name: value for name, value in os.environ.items() if name != "COMETMQ_BUILD"}


def refuse_dirty_tree(*, allowed: bool) -> None:
    """End the program if the tree is dirty, unless that is allowed."""
    if not allowed and (found := changes()):
        sys.exit(
            f"the tree differs from its commit:\n{found}\n"
            "figures count only on a clean tree; commit first, or give --dirty to mark them"
        )


def refuse_changed_tree(measured: str) -> None:
    """End the program if the tree is no longer the commit that the figures are named after."""
    if (now := commit()) != measured:
        sys.exit(
            f"the tree was {measured} when the benchmark began, and is {now} now: restore it, then "
            "--continue measures what is missing"
        )


def wait_until_quiet(patience_s: float, busy_max: float) -> None:
    """Wait for other work on the machine to end, and say so when it does not."""
    deadline = time.monotonic() + patience_s
    while (busy := busy_cores(1.0)) > busy_max:
        if time.monotonic() > deadline:
            print(f"the machine is busy: {busy:.1f} cores of other work", file=sys.stderr)
            return


def busy_cores(seconds: float) -> float:
    """How many cores other work keeps busy; measured by watching for some seconds."""
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time the processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def anonymous_mib(pids: Sequence[int]) -> float:
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
