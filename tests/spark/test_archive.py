"""The example that archives a log: each record once, also maintained, overtaken and killed."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, Transaction

from cometmq.spark.checks import compare
from cometmq.spark.errors import DataLossError, PlaceError, SourceError
from golden.test_stores import facts_of
from support.runner.tiers import rounds
from support.spark.recipes import FOLDER, recipe
from support.stores.small_stores import opened, put
from support.wire.recorded import unpack_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 900
TOPICS = ("orders", "%RETRY%g", "a.b|c")
RANGE_BYTES = 16_000
KILLS = rounds(test=4, long=30)
COMMIT_S = 300.0
ARCHIVE = recipe("archive_log")
PROGRAM = """
import runpy, sys
program = runpy.run_path(sys.argv[1])
program["archive"](None, sys.argv[2], sys.argv[3], range_bytes=4096)
"""


def fill(folder: Path, first: int = 0, count: int = COUNT) -> str:
    """Put numbered messages into the log of a store; return its folder."""
    store = opened(folder, commit_log_file_bytes=64 * 1024)
    for number in range(first, first + count):
        properties = {"UNIQ_KEY": f"{number:032X}", "own": "é"}
        topic = TOPICS[number % 3]
        put(store, b"%d" % number, topic=topic, queue_id=number % 2, properties=properties)
    store.close()
    return str(folder)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return fill(tmp_path / "store")


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def numbers(table: str) -> list[int]:
    return sorted(map(int, DeltaTable(table).to_pyarrow_table()["body"].to_pylist()))


def test_the_log_that_spark_reads_is_what_spark_archived(
    spark: SparkSession, store: str, table: str
) -> None:
    """Before and after the table's files were rewritten."""
    assert ARCHIVE.archive(spark, store, table, range_bytes=RANGE_BYTES) == COUNT
    log = spark.read.format("rocketmq-log").option("includeProperties", "true")
    read = log.option("brokerName", "broker-a").load(store)
    expected = sorted(read.collect(), key=itemgetter("phy_offset"))
    for removed in (11, 0):
        archived = ARCHIVE.read(spark, table)
        assert sorted(archived.collect(), key=itemgetter("phy_offset")) == expected
        assert compare(read, archived, match_brokers=True).isEmpty()
        maintained = DeltaTable(table)
        assert maintained.optimize.compact()["numFilesRemoved"] == removed
        maintained.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def test_each_run_continues_also_behind_the_tables_maintenance(store: str, table: str) -> None:
    """The oldest file of the log may be gone by then, and another log may share the table."""
    ARCHIVE.archive(None, store, table, range_bytes=RANGE_BYTES)
    assert ARCHIVE.archive(None, store, table) == 0
    DeltaTable(table).optimize.z_order(["topic", "queue_offset"])
    min((Path(store) / "commitlog").iterdir()).unlink()
    fill(Path(store), COUNT, 30)
    assert ARCHIVE.archive(None, store, table) == 30
    other = fill(Path(store).with_name("other"), COUNT + 30, 10)
    assert ARCHIVE.archive(None, other, table, "broker-b") == 10
    assert numbers(table) == list(range(COUNT + 40))


def test_another_log_than_the_archived_one_is_refused(store: str, table: str) -> None:
    """A store that was created again, with more messages and with fewer, and one with a gap."""
    ARCHIVE.archive(None, store, table)
    for count in (COUNT + 30, 10):
        shutil.rmtree(store)
        fill(Path(store), 7, count)
        with pytest.raises(PlaceError, match="the log of broker-a is not the archived one"):
            ARCHIVE.archive(None, store, table)
    assert numbers(table) == list(range(COUNT))

    _, second, *_ = sorted((Path(fill(Path(store), 17, COUNT)) / "commitlog").iterdir())
    second.unlink()
    with pytest.raises(DataLossError, match="was never archived"):
        ARCHIVE.archive(None, store, f"{table}-2")


def test_a_run_that_another_one_has_overtaken_adds_nothing(store: str, table: str) -> None:
    ARCHIVE.archive(None, store, table)
    opened_before = DeltaTable(table)
    transaction = Transaction("cometmq.archived.broker-a", 1 << 40)
    with pytest.raises(SourceError, match=r"has archived to \d+, expected 77"):
        ARCHIVE.commit(opened_before, [], transaction, 77)
    assert numbers(table) == list(range(COUNT))


@pytest.mark.parametrize("name", ["4.9.7-main", "5.3.3-main"])
def test_stores_of_rocketmq_are_archived(table: str, tmp_path: Path, name: str) -> None:
    place = str(unpack_store(name, tmp_path))
    ARCHIVE.archive(None, place, table, range_bytes=300_000)
    known = {message["physical_offset"] for message in facts_of(name)["messages"]}
    assert known <= set(DeltaTable(table).to_pyarrow_table()["phy_offset"].to_pylist())


def commits(table: str) -> int:
    return len(list(Path(table).glob("_delta_log/*.json")))


def kill_after_a_commit(store: str, table: str, delay_s: float) -> bool:
    """Let a process archive until its first commit and a little longer; return if it was killed."""
    before = commits(table)
    command = [sys.executable, "-c", PROGRAM, str(FOLDER / "archive_log.py"), store, table]
    with subprocess.Popen(command) as program:
        deadline = time.monotonic() + COMMIT_S
        while program.poll() is None and commits(table) == before:
            assert time.monotonic() < deadline, "no commit"
            time.sleep(0.005)
        try:
            return program.wait(delay_s) != 0
        except subprocess.TimeoutExpired:
            program.kill()
            return True


@pytest.mark.local_only
def test_an_archive_that_is_killed_has_every_record_once(store: str, table: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    kills = 0
    for number in range(KILLS):
        if not kill_after_a_commit(store, table, chance.uniform(0.0, 0.25 if number else 0.01)):
            break
        kills += 1
    assert kills > 0

    ARCHIVE.archive(None, store, table)

    assert numbers(table) == list(range(COUNT))
