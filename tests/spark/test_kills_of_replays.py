"""A killed replay continues where it stopped, and the topic shows it.

It runs as the command line that anybody would start, at a rate that keeps a portion under way.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import Process

from cometmq.client.blocking import AdminClient
from cometmq.spark.pipelines import Runs
from cometmq.spark.pipelines.archive import ArchiveSettings, Manifest, archive
from cometmq.spark.pipelines.audit import AuditSettings, audit
from cometmq.spark.pipelines.running import open_folder
from support.runner.tiers import new_seed, rounds
from support.spark.spark_kills import kill_whole
from support.spark.topic_audit import Audit, first_ones, order_by_key, stored
from support.stores.small_stores import opened, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = rounds(test=1, long=20)
ORIGINS = 5
PORTION_ROWS, AHEAD = 100, 2
COUNT = PORTION_ROWS * (2 * AHEAD * KILLS + 2)
"""So many that the last kill still finds work to do."""
RATE = 400.0
BATCH_BYTES = 1024
"""Small, so that messages of a portion go out as it proceeds."""
DELAY_MAX_S = PORTION_ROWS / RATE / 2
PROGRESS_S, END_S = 90.0, 180.0
LOOK_S = 0.01

pytestmark = [pytest.mark.long, pytest.mark.long_elsewhere, pytest.mark.local_only]


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """An archive of one topic; bodies say in which queue they were, and where."""
    store = opened(tmp_path / "store", commit_log_file_bytes=1 << 20)
    for number in range(COUNT):
        properties = {"UNIQ_KEY": f"{number:032X}", "own": "é"}
        put(store, body(number).encode(), queue_id=number % ORIGINS, properties=properties)
    store.close()
    to = str(tmp_path / "archive")
    archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=to, range_bytes=4096))
    return tmp_path / "archive"


def body(number: int) -> str:
    return f"{number % ORIGINS}:{number // ORIGINS}"


class Replay:
    """A replay by command, its run record, and how it is killed."""

    def __init__(self, archived: Path, name_servers: str, topic: str) -> None:
        self._archived = archived
        self._name_servers, self._topic = name_servers, topic
        self._command = [
            sys.executable, "-m", "cometmq", "pipeline", "replay", "--archive", str(archived),
            "--name-servers", name_servers, "--topic-map", f"orders={topic}",
            "--portion-rows", str(PORTION_ROWS), "--rate", str(RATE), "--options",
            f"send.batchBytes={BATCH_BYTES}", "--memory", "1g", "--quiet",
        ]  # fmt: skip
        self._starts = 0
        self._process: Process | None = None

    @property
    def portions(self) -> list[str]:
        """The portions that are noted as done, in the order of the notes."""
        notes = (self._archived / "_runs").glob("replay-*.jsonl")
        lines = [line for path in notes for line in path.read_bytes().split(b"\n")[:-1]]
        steps = [json.loads(line).get("step", "") for line in lines]
        return [step for step in steps if step.startswith("portion:")]

    def start(self) -> None:
        """Start it, to go on from the second time on."""
        more = ["--resume", "latest"] if self._starts else []
        self._starts += 1
        log = self._archived.with_name(f"replay-{self._starts}.log")
        self._process = Process([*self._command, *more], log, cwd=log.parent)

    def kill_under_way(self, delay_s: float) -> None:
        """Kill all of it when it has done some portions, and messages of the next are there."""
        goal = len(self.portions) + AHEAD
        self._await(lambda: len(self.portions) >= goal, f"portion {goal}")
        with AdminClient(self._name_servers) as admin:
            before = self._stored(admin)
            self._await(lambda: self._stored(admin) > before, "messages of the next portion")
        time.sleep(delay_s)  # the moment is what is random
        assert self._running.is_running, self._running.error("ended before it was killed")
        kill_whole(self._running)

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while not is_so():
            assert self._running.is_running, self._running.error(f"ended before {what}")
            assert time.monotonic() < deadline, self._running.error(f"no {what} in time")
            time.sleep(LOOK_S)

    def _stored(self, admin: AdminClient) -> int:
        """How many messages the topic has."""
        return sum(bounds.max_offset for bounds in admin.queue_bounds(self._topic).values())

    def finish(self) -> None:
        """Wait until it ends well."""
        running = self._running
        assert running.wait(END_S) == 0, running.error("failed")

    def close(self) -> None:
        """End what is still running."""
        if self._process is not None and self._process.is_running:
            kill_whole(self._process)

    @property
    def _running(self) -> Process:
        assert self._process is not None, "it was not started"
        return self._process


def killed_and_gone_on_with(replay: Replay) -> None:
    """Kill a replay as often as the setting in force says, then let it end."""
    seed = new_seed()
    chance = random.Random(seed)
    print(f"seed={seed} kills={KILLS}")
    try:
        for _ in range(KILLS):
            replay.start()
            replay.kill_under_way(chance.uniform(0, DELAY_MAX_S))
        replay.start()
        replay.finish()
    finally:
        replay.close()


def portion_rows_max(archived: Path) -> int:
    """How many rows a portion can have: it takes whole entries of the manifest."""
    entries = Manifest(open_folder(archived)).entries()
    return PORTION_ROWS + max(entry.rows for entry in entries) - 1


def test_nothing_is_lost_twins_have_one_key_and_only_portions_under_way_are_sent_again(
    spark: SparkSession, archived: Path, name_servers: str, topic: str, tmp_path: Path
) -> None:
    replay = Replay(archived, name_servers, topic)
    killed_and_gone_on_with(replay)

    [run] = [run for run in Runs(archived / "_runs").all() if run.pipeline == "replay"]
    assert (run.status, run.counts["sent"]) == ("done", COUNT)
    assert replay.portions == [f"portion:{number}" for number in range(len(replay.portions))]

    wanted = [body(number) for number in range(COUNT)]
    queues = stored(name_servers, topic, rows=wanted, count=COUNT)
    found = Audit.of(wanted, [message for messages in queues.values() for message in messages])
    print(f"{found.repeated} of {COUNT} were sent again")
    found.check()
    assert found.repeated <= KILLS * portion_rows_max(archived), "what was done was sent again"
    assert found.repeated or KILLS < 10, "no kill hit anything that was under way"
    without_twins = {queue: first_ones(messages) for queue, messages in queues.items()}
    order = order_by_key(without_twins, lambda message: message.body.decode().partition(":")[0])
    for origin, met in order.items():
        numbers = [int(body.partition(":")[2]) for body in met]
        assert numbers == sorted(numbers), f"what was in queue {origin} is out of order"
    assert audited(spark, archived, name_servers, topic, tmp_path / "audit") == {
        kind: found.repeated for kind in ("duplicate", "more-often-here") if found.repeated
    }


def audited(
    spark: SparkSession, archived: Path, name_servers: str, topic: str, output: Path
) -> dict[str, int]:
    """How many messages too many there are of each kind that our own audit finds."""
    settings = AuditSettings(
        source=f"brokers:{name_servers}",
        topics=(topic,),
        checks=("duplicates",),
        other=f"archive:{archived}",
        compare="key",
        map_topics=(f"{topic}=orders",),
        output=str(output),
    )
    result = audit(spark, settings)
    found: dict[str, int] = {}
    for row in result.tables["findings"].to_pylist():
        more = row["count"] - 1 if row["finding"] == "duplicate" else row["count"]
        found[row["finding"]] = found.get(row["finding"], 0) + more
    return found
