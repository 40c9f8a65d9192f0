"""`cometmq doctor` as a user runs it, and its how-to page."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.processes import forks
from support.processes.howto_pages import following
from support.processes.root import need_open_files

LIMIT_S = 60.0


def doctor(*words: str, folder: Path, open_files: int = 0) -> tuple[dict[str, Any], int]:
    """Run the command with ``--json``; return what it found, and its exit code."""
    program = "from cometmq.cli.main import main; main()"
    if open_files:
        limits = f"resource.RLIMIT_NOFILE, ({open_files}, {open_files})"
        program = f"import resource; resource.setrlimit({limits}); {program}"
    done = subprocess.run(
        [*forks.python(), "-c", program, "doctor", "--json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == ""
    return json.loads(done.stdout), done.returncode


def level(found: dict[str, Any], check: str) -> str:
    """Return the worst level of a check."""
    levels = {each["level"] for each in found["findings"] if each["check"] == check}
    return next(name for name in ("problem", "warning", "fine") if name in levels)


@pytest.mark.parametrize(
    ("limit", "expected", "code"), [(1_000, "problem", 1), (10_000, "warning", None)]
)
def test_a_low_limit_of_open_files_is_found(
    tmp_path: Path, limit: int, expected: str, code: int | None
) -> None:
    need_open_files(limit)
    found, returned = doctor("--store", "store", folder=tmp_path, open_files=limit)

    assert level(found, "open-files") == expected
    assert code in (None, returned)
    assert returned == int(found["problems"] > 0)
    assert not (tmp_path / "store").exists()


def test_a_warning_counts_if_asked(tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text("useTLS=true\n")

    found, code = doctor("--server", "namesrv", "-c", "namesrv.conf", "--strict", folder=tmp_path)

    assert level(found, "settings") == "warning"
    assert code == 1


def test_an_unknown_server_is_wrong_usage() -> None:
    done = subprocess.run(
        [*forks.python(), "-m", "cometmq", "doctor", "--server", "proxy"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "expected one of broker, namesrv, controller" in done.stderr


async def test_the_page_holds(tmp_path: Path) -> None:
    with following("doctor", tmp_path) as guide:
        printed = await asyncio.to_thread(guide.run, "doctor -c broker.conf --store ./store ||")
        assert "flushDiskType=ASYNC_FLUSH" in printed
        await asyncio.to_thread(guide.run, "findings.json")
        found = json.loads((tmp_path / "findings.json").read_text())
        assert level(found, "settings") == "warning"
        assert level(found, "name-servers") == "problem"  # none runs at NAMESRV_ADDR
        words = ("-c", "broker.conf", "--store", "store")
        found, _ = await asyncio.to_thread(partial(doctor, *words, folder=tmp_path))
        assert level(found, "settings") == "warning"
        assert level(found, "clocks") == "problem"  # nor at namesrvAddr

        guide.start("namesrv")
        guide.start("broker.conf")
        printed = await asyncio.to_thread(guide.run, "--namesrv 127.0.0.1:9876 --all")
        assert "WARNING masters  broker-a: a master without slaves" in printed
        assert re.search(r"FINE +brokers  broker-a \(127\.0\.0\.1:\d+\): responds", printed)
        words += ("--namesrv", guide.name_servers)
        found, _ = await asyncio.to_thread(partial(doctor, *words, folder=tmp_path))
        assert level(found, "clocks") == "fine"
        assert level(found, "masters") == "warning"
        [broker] = [each for each in found["findings"] if each["check"] == "brokers"]
        assert broker["met"].startswith("responds")  # by its file, and by the name server
