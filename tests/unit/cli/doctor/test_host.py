"""The checks of a host, with the files that the kernel of such a host shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.cli.doctor import host
from cometmq.cli.doctor.findings import Finding, Level
from cometmq.cli.doctor.host import Host

MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: {} kB\nSwapTotal: {} kB\nHugePages_Total: 0\n"
GROUP = "sys/fs/cgroup/memory."
HUGE = "sys/kernel/mm/transparent_hugepage/"

FilesOfKernel = Callable[[dict[str, str]], Host]


@pytest.fixture
def kernel(tmp_path: Path) -> FilesOfKernel:
    def write(files: dict[str, str]) -> Host:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Host(root=tmp_path, python=(3, 12), build="compiled", name="h")

    return write


def levels(found: Iterator[Finding]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in found}


@pytest.mark.parametrize(
    ("text", "level"), [("65530\n", Level.FINE), ("1024\n", Level.WARNING), ("x", Level.FINE)]
)
def test_too_few_mappings_are_found(kernel: FilesOfKernel, text: str, level: Level) -> None:
    machine = kernel({"proc/sys/vm/max_map_count": text})

    assert levels(host.mappings(machine)) == {"mappings": level}


@pytest.mark.parametrize(
    ("available_kib", "level"),
    [(4_000_000, Level.FINE), (400_000, Level.WARNING), (100_000, Level.PROBLEM)],
)
def test_a_machine_without_memory_is_found(
    kernel: FilesOfKernel, available_kib: int, level: Level
) -> None:
    machine = kernel({"proc/meminfo": MEMINFO.format(available_kib, 0)})

    assert levels(host.memory(machine))["memory"] is level


@pytest.mark.parametrize(
    ("limit", "cache", "level"),
    [
        ("max", 0, Level.FINE),
        ("2000000000", 0, Level.FINE),
        ("1000000000", 500_000_000, Level.FINE),
        ("1000000000", 100_000, Level.PROBLEM),
    ],
)
def test_the_limit_of_a_container_counts_without_its_page_cache(
    kernel: FilesOfKernel, limit: str, cache: int, level: Level
) -> None:
    machine = kernel(
        {
            "proc/meminfo": MEMINFO.format(4_000_000, 0),
            f"{GROUP}max": limit,
            f"{GROUP}current": "950000000",
            f"{GROUP}stat": f"anon 7\ninactive_file {cache}\nactive_file 100\n",
        }
    )

    assert levels(host.memory(machine))["memory"] is level


@pytest.mark.parametrize(
    ("mode", "committed_kib", "level"),
    [("0", 8_000_000, Level.FINE), ("2", 1_000, Level.FINE), ("2", 7_900_000, Level.WARNING)],
)
def test_a_machine_that_has_promised_its_memory_is_found(
    kernel: FilesOfKernel, mode: str, committed_kib: int, level: Level
) -> None:
    info = f"CommitLimit: 8000000 kB\nCommitted_AS: {committed_kib} kB\n"
    machine = kernel({"proc/meminfo": info, "proc/sys/vm/overcommit_memory": mode})

    assert levels(host.memory(machine)) == {"overcommit": level}


@pytest.mark.parametrize(
    ("swap_kib", "swappiness", "level"),
    [(0, "60", Level.FINE), (1000, "10", Level.FINE), (1000, "60", Level.WARNING)],
)
def test_swap_that_is_used_early_is_found(
    kernel: FilesOfKernel, swap_kib: int, swappiness: str, level: Level
) -> None:
    machine = kernel(
        {"proc/meminfo": MEMINFO.format(1, swap_kib), "proc/sys/vm/swappiness": swappiness}
    )

    assert levels(host.swap(machine)) == {"swap": level}


@pytest.mark.parametrize(
    ("enabled", "defrag", "level"),
    [
        ("[always] madvise never", "always defer [madvise] never", Level.FINE),
        ("always [madvise] never", "[always] defer madvise never", Level.FINE),
        ("[always] madvise never", "[always] defer madvise never", Level.WARNING),
    ],
)
def test_huge_pages_that_make_allocations_wait_are_found(
    kernel: FilesOfKernel, enabled: str, defrag: str, level: Level
) -> None:
    machine = kernel({f"{HUGE}enabled": enabled, f"{HUGE}defrag": defrag})

    assert levels(host.huge_pages(machine)) == {"huge-pages": level}


def test_a_kernel_that_shows_nothing_has_no_problem(kernel: FilesOfKernel) -> None:
    machine = kernel({})

    for check in (host.mappings, host.memory, host.swap, host.huge_pages):
        assert set(levels(check(machine)).values()) == {Level.FINE}


@pytest.mark.parametrize(
    ("version", "build", "python_level", "build_level"),
    [
        ((3, 11), "compiled", Level.FINE, Level.FINE),
        ((3, 99), "compiled", Level.WARNING, Level.FINE),
        ((3, 12), "interpreted", Level.FINE, Level.WARNING),
    ],
)
def test_an_untested_python_and_a_slow_build_are_found(
    version: tuple[int, int], build: str, python_level: Level, build_level: Level
) -> None:
    machine = Host(python=version, build=build)

    assert levels(host.python(machine)) == {"python": python_level, "build": build_level}


def test_this_host_can_be_checked() -> None:
    for check in host.CHECKS.values():
        assert list(check(Host()))
