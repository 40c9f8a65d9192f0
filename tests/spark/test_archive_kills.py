"""An archive of a log that is killed again and again, at any moment, has each record once.

It runs in processes of its own, without a session: what is killed is the driver and its work.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from cometmq.spark.archive import ArchiveLogSettings, archive_log
from support.runner.tiers import rounds
from support.spark.archives import bodies_of
from support.stores.small_stores import opened, put

COUNT = 1500
KILLS = rounds(test=4, long=30)
COMMIT_S = 300.0
PROGRAM = """
import json, sys
from cometmq.spark.archive import ArchiveLogSettings, archive_log
archive_log(None, ArchiveLogSettings(**json.loads(sys.argv[1])))
"""

pytestmark = pytest.mark.local_only


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveLogSettings:
    made = opened(tmp_path / "store")
    for number in range(COUNT):
        put(made, b"%d" % number, queue_id=number % 5, properties={"KEYS": f"k{number}"})
    made.close()
    return ArchiveLogSettings(
        store=str(tmp_path / "store"), to=str(tmp_path / "archive"), range_bytes=4096
    )


def commits(settings: ArchiveLogSettings) -> int:
    return len(list(Path(settings.to).glob("_delta_log/*.json")))


def kill_after_a_commit(settings: ArchiveLogSettings, delay_s: float) -> bool:
    """Let a process archive until its first commit and a little longer; return if it was killed."""
    given = {name: value for name, value in asdict(settings).items() if value != ()}
    before = commits(settings)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(given)]) as program:
        deadline = time.monotonic() + COMMIT_S
        while program.poll() is None and commits(settings) == before:
            assert time.monotonic() < deadline, "no commit"
            time.sleep(0.005)
        try:
            return program.wait(delay_s) != 0
        except subprocess.TimeoutExpired:
            program.kill()
            return True


def test_an_archive_has_every_record_once(settings: ArchiveLogSettings) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    kills = 0
    for number in range(KILLS):
        if not kill_after_a_commit(settings, chance.uniform(0.0, 0.25 if number else 0.01)):
            break
        kills += 1
    assert kills > 0

    archive_log(None, settings)

    assert sorted(map(int, bodies_of(settings))) == list(range(COUNT))
