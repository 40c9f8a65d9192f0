"""Other versions of Spark than the installed one, and the jars that the page about them names.

Each version has a folder of its own with PySpark, which ``PYTHONPATH`` puts before the installed
one; all other packages are those of this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
import toolchain
from processes import Process

from cometmq.client import Message
from cometmq.client.blocking import Producer
from support.spark.spark_kills import kill_whole
from support.spark.spark_versions import spark_versions
from support.spark.topic_audit import stored

pytestmark = [pytest.mark.long, pytest.mark.local_only, pytest.mark.only_on("comet")]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {each.minor: each for each in spark_versions()}
OTHERS = [minor for minor in VERSIONS if not pyspark.__version__.startswith(f"{minor}.")]
COORDINATES = sorted({each for row in VERSIONS.values() for each in row.artifacts.values()})
FILES = (
    "tests/unit/spark/compat",
    "tests/spark/test_stream_outages.py",
    "tests/spark/test_topic_batch.py",
    "tests/spark/test_topic_stream.py",
    "tests/spark/test_topic_write.py",
)
SECONDS_MAX = 3_600
MESSAGES, BATCH, KILLS = 800, 200, 1
PROGRESS_S, END_S = 600.0, 900.0


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_maven_central_has_each_artifact_of_the_page(coordinates: str) -> None:
    _, artifact, version = coordinates.split(":")

    assert f"{artifact}-{version}.jar" in [path.name for path in toolchain.spark_jars(coordinates)]


@pytest.mark.parametrize("minor", OTHERS)
def test_the_formats_work_with_each_version(minor: str, tmp_path: Path) -> None:
    """PySpark 4.1 leaves the closing of sockets to the garbage collector."""
    ignored = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    command = [sys.executable, "-m", "pytest", "-q", "--basetemp", str(tmp_path / "base")]
    command += [word for each in ignored for word in ("-W", f"ignore::{each}")]
    variables = {name: text for name, text in os.environ.items() if name != "COMETMQ_TIER"}
    done = subprocess.run(
        [*command, *FILES],
        cwd=ROOT,
        env=variables | {"PYTHONPATH": str(toolchain.pyspark(minor))},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5_000:]


class Table:
    """An example that streams a topic into a table of Spark.

    Args:
        example: its name.
        minor: the version of Spark that it runs on.
        coordinates: of the jar of the table format.
        folder: of the table and of its checkpoint.
        checkpoint: within the folder.
    """

    def __init__(
        self, example: str, minor: str, coordinates: str, folder: Path, checkpoint: str
    ) -> None:
        self._example = ROOT / "examples" / "spark" / f"{example}.py"
        self.folder = folder
        self.checkpoint = folder / checkpoint
        jars = ",".join(map(str, toolchain.spark_jars(coordinates)))
        settings = {
            "spark.log.level": "ERROR",
            "spark.python.authenticate.socketTimeout": "300s",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
        conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        self._variables = os.environ | {
            "JAVA_HOME": str(toolchain.java_home()),
            "PYTHONPATH": str(toolchain.pyspark(minor)),
            "PYSPARK_SUBMIT_ARGS": f"--jars {jars} {conf} pyspark-shell",
        }

    def start(self, name_servers: str, topic: str, how: str) -> Process:
        words = (name_servers, topic, self.folder, how, BATCH)
        log = self.folder.with_suffix(".log")
        command = [sys.executable, str(self._example), *map(str, words)]
        return Process(command, log, env=self._variables)

    def run_once(self, name_servers: str, topic: str) -> None:
        """Run until all that is there was read."""
        process = self.start(name_servers, topic, "once")
        if status := process.wait(END_S):
            raise process.error(f"ended with {status}")

    def newest(self, kind: str) -> int:
        found = [int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*")]
        return max(found, default=-1)

    def forget_commit(self) -> None:
        """Leave the checkpoint as a driver does that dies behind the commit of the table."""
        newest = self.checkpoint / "commits" / str(self.newest("commits"))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def kill_in_a_batch(process: Process, table: Table, batches: int) -> None:
    """End the driver with SIGKILL once so many batches are done and another one has begun."""

    def is_time() -> bool:
        done = table.newest("commits")
        return done >= batches and table.newest("offsets") > done

    try:
        process.wait_until(is_time, f"batch {batches}", PROGRESS_S)
    finally:
        kill_whole(process)


def send(name_servers: str, topic: str, numbers: range) -> None:
    with Producer(name_servers, group="tables") as producer:
        for start in range(numbers.start, numbers.stop, 100):
            part = range(start, min(start + 100, numbers.stop))
            producer.send_batch([Message(topic=topic, body=b"%d" % each) for each in part])


def delta_rows(folder: Path) -> Iterator[dict[str, object]]:
    from deltalake import DeltaTable

    yield from DeltaTable(str(folder)).to_pyarrow_table().to_pylist()


def iceberg_rows(folder: Path) -> Iterator[dict[str, object]]:
    from pyiceberg.table import StaticTable

    metadata = folder / "shop" / "orders" / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    table = StaticTable.from_metadata(f"file://{metadata}/v{version}.metadata.json")
    yield from table.scan().to_arrow().to_pylist()


@pytest.mark.parametrize(
    ("example", "minor", "format_name", "checkpoint", "rows_in"),
    [
        ("16_topic_to_delta", "4.2", "Delta", "_checkpoint", delta_rows),
        ("17_topic_to_iceberg", "4.1", "Iceberg", "checkpoints/orders", iceberg_rows),
    ],
)
def test_each_message_is_in_a_table_of_spark_exactly_once_over_kills_of_the_driver(
    example: str,
    minor: str,
    format_name: str,
    checkpoint: str,
    rows_in: Callable[[Path], Iterator[dict[str, object]]],
    name_servers: str,
    topic: str,
    tmp_path: Path,
) -> None:
    coordinates = VERSIONS[minor].artifacts[format_name]
    table = Table(example, minor, coordinates, tmp_path / "table", checkpoint)
    send(name_servers, topic, range(MESSAGES))
    for number in range(KILLS):
        process = table.start(name_servers, topic, "always")
        kill_in_a_batch(process, table, number + 1)
    table.run_once(name_servers, topic)
    table.forget_commit()
    send(name_servers, topic, range(MESSAGES, MESSAGES + 100))
    table.run_once(name_servers, topic)

    found = Counter(
        (row["queue_id"], row["queue_offset"], row["body"]) for row in rows_in(table.folder)
    )
    sent = Counter(
        (queue, message.queue_offset, message.body.decode())
        for (_, queue), messages in stored(name_servers, topic, count=MESSAGES + 100).items()
        for message in messages
    )
    assert sum(sent.values()) == MESSAGES + 100
    assert found == sent
