"""Requirements of tests on the machine: commands as root, mounts, open files."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def as_root() -> list[str]:
    """Return what a command begins with to run as root; skips the test if that is not possible."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True).returncode:
        pytest.skip("needs root, or sudo without a password")
    return [sudo, "-n", "-E"]


@contextmanager
def mounted_in_memory(path: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory; skips the test where the system refuses."""
    command = [*as_root(), "mount", "-t", "tmpfs", "-o", f"mode=777,{options}", "tmpfs", path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run([*as_root(), "umount", "--lazy", path], check=True)


def need_open_files(count: int) -> None:
    """Skip the test where this process may not open that many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, the hard limit is {hard}")
