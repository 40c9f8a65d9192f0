"""Pipelines that are killed again and again, at any moment, end as if nothing had happened.

They run in processes of their own, without a session: what is killed is the driver and its work.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.pipelines import Runs
from cometmq.spark.pipelines.archive import ArchiveSettings
from cometmq.spark.pipelines.archive.reading import archived_files
from support.runner.tiers import rounds
from support.stores.small_stores import opened, put

COUNT = 1500
KILLS = rounds(test=4, long=30)
PROGRAM = """
import json, sys
from importlib import import_module
module = import_module("cometmq.spark.pipelines." + sys.argv[1])
given = json.loads(sys.argv[2])
given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
module.PIPELINE.function(None, module.PIPELINE.settings(**given))
"""

pytestmark = pytest.mark.local_only


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = opened(tmp_path / "store")
    for number in range(COUNT):
        put(made, b"%d" % number, queue_id=number % 5, properties={"KEYS": f"k{number}"})
    made.close()
    return tmp_path / "store"


def started(pipeline: str, settings: Any) -> subprocess.Popen[bytes]:
    given = json.dumps(asdict(settings))
    return subprocess.Popen([sys.executable, "-c", PROGRAM, pipeline, given])


def wait_for(place: Path, program: subprocess.Popen[bytes], before: int) -> None:
    """Wait until the process notes something, or ends."""
    deadline = time.monotonic() + 300
    while program.poll() is None and size_of(place) == before:
        assert time.monotonic() < deadline, f"nothing in {place}"
        time.sleep(0.005)


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.glob("*.jsonl"))


def kill_again_and_again(pipeline: str, settings: Any, runs: Path, *, resume: bool) -> int:
    """Kill the pipeline at random moments, then let it end; return how often it was killed."""
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    kills = 0
    for number in range(KILLS):
        before = size_of(runs)
        program = started(pipeline, resumed(settings, runs) if resume else settings)
        wait_for(runs, program, before)
        try:
            program.wait(chance.uniform(0.0, 0.25 if number else 0.01))
        except subprocess.TimeoutExpired:
            program.kill()
            kills += 1
        if program.wait(300) == 0 or (resume and is_done(runs)):
            return kills
    last = started(pipeline, resumed(settings, runs) if resume else settings)
    assert last.wait(300) == 0
    return kills


def is_done(runs: Path) -> bool:
    """Whether the newest run says that it is done; it may have been killed after that."""
    known = Runs(runs).all() if runs.exists() else []
    return bool(known) and known[-1].status == "done"


def resumed(settings: Any, runs: Path) -> Any:
    """The settings of whoever goes on, if there is something to go on with."""
    begun = runs.exists() and bool(Runs(runs).all())
    return replace(settings, resume="latest" if begun and not is_done(runs) else "")


def test_an_archive_has_every_record_once(store: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    to, runs = tmp_path / "archive", tmp_path / "runs"
    settings = ArchiveSettings(store=str(store), to=str(to), range_bytes=4096, runs=str(runs))
    assert kill_again_and_again("archive", settings, runs, resume=False) > 0
    files = [file.name for file in archived_files(to)]
    bodies = [
        int(body)
        for name in files
        for body in pq.ParquetFile(to / name).read(columns=["body"])["body"].to_pylist()
    ]
    assert sorted(bodies) == list(range(COUNT))
    assert sorted(path.relative_to(to).as_posix() for path in to.rglob("*.parquet")) == sorted(
        files
    )
