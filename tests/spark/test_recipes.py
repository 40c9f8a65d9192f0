"""Recipes that are more than a program in one session: a jar, Spark Connect, pipelines, schedulers.

Airflow and Dagster have environments of their own, whose packages ``tests/interop`` pins. All tests
share a server of ours: what they show depends on no broker.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
import toolchain
from processes import Process, accepts
from servers import Cluster

from cometmq.client import Message
from cometmq.client.blocking import Producer
from cometmq.remoting.ports import free_port
from support.brokers.clusters import COMET
from support.spark.spark_versions import spark_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "spark"
SPARK_HOME = Path(pyspark.__file__).parent
SECONDS_MAX = 600.0
ORDERS = 30
COUNTRIES = ("AT", "DE", "FR")
BAD = b'{"order": "bad", "amount": "12"}'


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server for the tests of this file."""
    server = Cluster(COMET, tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server.namesrv
    finally:
        server.remove()


@pytest.fixture
def topic() -> str:
    """The name of a topic that the first send creates."""
    return f"topic-{uuid.uuid4().hex}"


def variables(**others: object) -> dict[str, str]:
    """The environment of a program that starts Spark."""
    settings = {"JAVA_HOME": toolchain.java_home(), "SPARK_HOME": SPARK_HOME} | others
    return os.environ | {"PYSPARK_PYTHON": sys.executable} | {
        name: str(value) for name, value in settings.items()
    }  # fmt: skip


def connect_variables() -> dict[str, str]:
    """The environment of a program that uses Spark Connect."""
    path = filter(None, (str(toolchain.spark_connect()), os.environ.get("PYTHONPATH")))
    return variables(PYTHONPATH=os.pathsep.join(path))


def output_of(
    command: Sequence[object], env: Mapping[str, str], cwd: Path | None = None
) -> tuple[int, str, str]:
    """The status of a program and what it printed, all of it if pytest shows a failure."""
    done = subprocess.run(
        list(map(str, command)), env=env, cwd=cwd, capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout, done.stderr


def send(name_servers: str, topic: str, numbers: range, *others: bytes) -> None:
    """Send good orders, a third from each country, and other bodies."""
    with Producer(name_servers, group="shop") as producer:
        for number in numbers:
            order = {"order": f"order-{number}", "country": COUNTRIES[number % 3], "amount": 10.0}
            producer.send(Message(topic=topic, body=json.dumps(order).encode(), tags="new"))
        for body in others:
            producer.send(Message(topic=topic, body=body, tags="bad"))


def test_a_program_without_a_jvm_reads_a_topic_through_spark_connect(
    name_servers: str, topic: str, tmp_path: Path
) -> None:
    send(name_servers, topic, range(ORDERS))
    port = free_port()
    server = Process(
        [
            str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--conf", f"spark.connect.grpc.binding.port={port}",
            "--conf", "spark.ui.enabled=false", "spark-internal",
        ],
        tmp_path / "server.log",
        env=variables(),
    )  # fmt: skip
    server.wait_until(lambda: accepts(port), "its port", SECONDS_MAX)
    command = [sys.executable, FOLDER / "25_spark_connect.py", f"sc://127.0.0.1:{port}"]
    without_java = connect_variables() | {"JAVA_HOME": str(tmp_path)}

    status, said, _ = output_of([*command, name_servers, topic], without_java)

    server.stop()
    assert status == 0
    assert re.fullmatch(rf"new: {ORDERS} messages, \d+ bytes\n", said)


def test_a_declarative_pipeline_takes_what_is_new_and_keeps_bad_bodies_apart(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(FOLDER / "24_pipeline", project)
    spec = project / "spark-pipeline.yml"
    words = {
        "127.0.0.1:9876": name_servers,
        "topic: orders": f"topic: {topic}",
        "/tmp/orders-pipeline": str(tmp_path / "storage"),
    }
    for word, instead in words.items():
        assert word in spec.read_text()
        spec.write_text(spec.read_text().replace(word, instead))
    command = [SPARK_HOME / "bin" / "spark-pipelines", "run"]
    command += ["--conf", "spark.sql.catalogImplementation=hive"]

    for numbers, others in ((range(ORDERS), (BAD,)), (range(ORDERS, ORDERS + 3), ())):
        send(name_servers, topic, numbers, *others)
        status, _, _ = output_of(command, connect_variables(), project)
        assert status == 0

    tables = project / "spark-warehouse"
    rows = spark.read.parquet(str(tables / "orders")).collect()
    assert sorted(row.order for row in rows) == sorted(f"order-{n}" for n in range(ORDERS + 3))
    [bad] = spark.read.parquet(str(tables / "quarantine")).collect()
    assert (bytes(bad.body), "Expected `float`" in bad.value_error) == (BAD, True)
    totals = spark.read.parquet(str(tables / "totals")).collect()
    assert {row.country: row.orders for row in totals} == dict.fromkeys(COUNTRIES, ORDERS // 3 + 1)


@pytest.fixture(scope="module")
def with_delta() -> dict[str, str]:
    """The environment of a program whose session has Delta's jar."""
    [coordinates] = [
        each.artifacts["Delta"]
        for each in spark_versions()
        if pyspark.__version__.startswith(f"{each.minor}.")
    ]
    jars = ",".join(map(str, toolchain.spark_jars(coordinates)))
    arguments = f"--jars {jars} --conf spark.databricks.delta.snapshotPartitions=2 pyspark-shell"
    return variables(PYSPARK_SUBMIT_ARGS=arguments, MPLBACKEND="Agg")


@pytest.mark.long  # the tutorial runs the same program, and repeats no batch
def test_each_message_is_in_a_delta_table_or_in_quarantine_once(
    with_delta: dict[str, str], name_servers: str, topic: str, tmp_path: Path
) -> None:
    """A run that ends before Spark notes its batch as done is repeated, and adds no row."""
    from deltalake import DeltaTable

    command = [sys.executable, FOLDER / "20_delta_with_quarantine.py", name_servers, topic]
    send(name_servers, topic, range(ORDERS), BAD)
    folder = tmp_path / "shop"
    tables = f"{ORDERS} rows in orders\n1 rows in quarantine\n"

    assert output_of([*command, folder], with_delta)[:2] == (
        0,
        f"batch 0: {ORDERS + 1} messages, 1 bad\n{tables}",
    )
    for name in ("0", ".0.crc"):
        (folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert output_of([*command, folder], with_delta)[:2] == (
        0,
        f"batch 0: 0 messages, 0 bad\n{tables}",  # a batch that the tables have is not read
    )

    rows = DeltaTable(str(folder / "orders")).to_pyarrow_table().to_pylist()
    assert sorted(row["order"] for row in rows) == sorted(f"order-{n}" for n in range(ORDERS))
    [bad] = DeltaTable(str(folder / "quarantine")).to_pyarrow_table().to_pylist()
    assert (bad["body"], bad["value_error"]) == (BAD, "Expected `float`, got `str` - at `$.amount`")


def test_the_tutorial_prints_what_it_says(
    with_delta: dict[str, str], name_servers: str, tmp_path: Path
) -> None:
    """Its commands run first, then all its programs in one process, as in one notebook."""
    text = (ROOT / "docs" / "tutorial" / "topic-to-delta.md").read_text()
    for word, instead in (
        ("127.0.0.1:9876", name_servers),
        ("examples/", f"{ROOT}/examples/"),
        ("cometmq send", f"cometmq send -n {name_servers}"),
        ("cometmq tail", f"cometmq tail -n {name_servers}"),
    ):
        text = text.replace(word, instead)
    blocks = re.findall(r"<!-- run by tests/spark -->\n```(\w+)\n(.*?)^```", text, re.M | re.S)
    programs = {"python": [sys.executable], "cometmq": [sys.executable, "-m", "cometmq"]}
    said = ""
    for line in "".join(block for language, block in blocks if language == "sh").splitlines():
        name, *words = shlex.split(line)
        status, printed, _ = output_of([*programs[name], *words], with_delta, tmp_path)
        assert status == 0
        said += printed
    code = "\n".join(block for language, block in blocks if language == "python")
    status, printed, _ = output_of([sys.executable, "-c", code], with_delta, tmp_path)

    assert status == 0
    said += printed
    shown = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    assert len(shown) == 6
    assert [each for each in shown if each not in said] == []
    assert (tmp_path / "shop" / "orders.png").stat().st_size > 1000


def scheduled(name_servers: str, topic: str, table: Path) -> dict[str, str]:
    """The environment of the examples of schedulers."""
    return variables(
        COMETMQ_PYTHON=sys.executable,
        COMETMQ_NAME_SERVERS=name_servers,
        COMETMQ_TOPIC=topic,
        COMETMQ_ARCHIVE=table,
    )


def rows_in(table: Path) -> int:
    from deltalake import DeltaTable

    return DeltaTable(str(table)).to_pyarrow_table().num_rows


def without_a_row(table: Path) -> None:
    """Delete one message from an archive."""
    from deltalake import DeltaTable

    DeltaTable(str(table)).delete("queue_offset = 1 AND queue_id = 1")


def test_airflow_archives_a_topic_and_its_check_fails_if_a_message_is_gone(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    send(name_servers, topic, range(ORDERS))
    table = tmp_path / "archive"
    dags = tmp_path / "airflow" / "dags"
    dags.mkdir(parents=True)
    shutil.copy(FOLDER / "26_airflow_dag.py", dags)
    environment = scheduled(name_servers, topic, table) | {
        "AIRFLOW_HOME": str(dags.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    airflow = [toolchain.airflow_python(), "-m", "airflow"]
    assert output_of([*airflow, "db", "migrate"], environment)[0] == 0
    run = [*airflow, "dags", "test", "archive_orders"]

    status, said, logged = output_of(run, environment)
    assert "state=success, run_type=manual" in said + logged
    assert status == 0
    assert rows_in(table) == ORDERS

    without_a_row(table)
    _, said, logged = output_of(run, environment)
    assert "faults in" in said + logged
    assert "state=failed, run_type=manual" in said + logged


def test_dagster_archives_a_topic_and_its_check_fails_if_a_message_is_gone(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    send(name_servers, topic, range(ORDERS))
    table = tmp_path / "archive"
    environment = scheduled(name_servers, topic, table) | {
        "DAGSTER_HOME": str(tmp_path),
        "PACKAGES_BEHIND": sysconfig.get_path("purelib"),
        "PYSPARK_PYTHON": str(toolchain.dagster_python()),
    }
    command = [toolchain.dagster_python(), "-m", "dagster", "job", "execute"]
    command += ["-f", FOLDER / "27_dagster_assets.py", "-j", "archive_orders"]

    status, _, logged = output_of(command, environment)
    assert status == 0
    assert "RUN_SUCCESS" in logged
    assert rows_in(table) == ORDERS

    without_a_row(table)
    status, _, logged = output_of(command, environment)
    assert status != 0
    assert "RUN_FAILURE" in logged
