"""Power cuts on a recorded block device under a real ext4; ``tests/power/README.md`` says how."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.root import as_root
from support.runner.tiers import new_seed, rounds

TESTS = Path(__file__).parent.parent
RIG = TESTS / "power" / "rig.py"
TIMER_RIG = TESTS / "support" / "stores" / "power_rig_with_timers.py"
CASES = rounds(test=10, long=200)
TIMER_CASES = rounds(test=5, long=200)
SECONDS = rounds(test=5, long=18)
"""How long the disk is recorded under load."""
START = "-m cometmq standalone --namesrv-port {ns} --broker-port {port} --store {store} -c {conf}"


def cut(*arguments: str, rig: Path = RIG) -> subprocess.CompletedProcess[str]:
    """Run the rig; returns what it printed, and in how many cases a promise was broken."""
    for needed in ("/dev/fuse", "/dev/loop-control"):
        if not Path(needed).exists():
            pytest.skip(f"needs {needed}")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    seed = str(new_seed() % 100_000)
    command = [*as_root(), sys.executable, str(rig), "--start", f"{sys.executable} {START}"]
    return subprocess.run(
        [*command, "--seed", seed, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "flush", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=pytest.mark.long)]
)
def test_no_power_cut_breaks_a_promise(flush: str, tmp_path: Path) -> None:
    length = "--cases", str(CASES), "--seconds", str(SECONDS)
    ran = cut("--flush", flush, *length, "--keep", str(tmp_path / "broken"))
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{CASES} cases in" in ran.stdout
    assert ": 0 broken" in ran.stdout


def test_timer_messages_are_delivered_once_after_each_power_cut(tmp_path: Path) -> None:
    length = "--cases", str(TIMER_CASES), "--seconds", str(SECONDS)
    ran = cut(*length, "--keep", str(tmp_path / "broken"), rig=TIMER_RIG)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{TIMER_CASES} cases in" in ran.stdout
    assert ": 0 broken" in ran.stdout
    assert re.search(r"^[1-9][0-9]* timer messages were read", ran.stdout, re.MULTILINE)


@pytest.mark.long
def test_the_rig_sees_the_losses_of_asynchronous_flush() -> None:
    ran = cut("--flush", "ASYNC_FLUSH", "--judge", "SYNC_FLUSH", "--cases", "40")
    assert ran.returncode > 0, ran.stdout + ran.stderr
    assert " lost: " in ran.stdout
