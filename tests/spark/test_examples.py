"""Every example of Spark runs, and finds what is there."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit import eventually
from servers import Cluster

from cometmq.client import Message
from cometmq.client.blocking import Producer, PullConsumer
from cometmq.spark.brokers import connect, disconnect_all
from cometmq.spark.options.connection import ConnectionOptions
from support.processes.process_marks import left_running, marked_environment

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "spark"
ORDERS = 60
INTERRUPTED = re.compile(r"^java\.lang\.InterruptedException.*\n(?:\s+at .*\n)*", re.M)
PATIENCE_S = 600.0
COUNTRIES = ("AT", "DE", "FR")
STATES = ("new", "paid", "shipped")
TESTED = {
    "00_orders", "01_read_a_topic", "02_live_totals", "03_write_a_topic", "04_copy_to_parquet",
    "05_read_a_log", "06_lag", "07_archive", "08_small_cluster", "09_lag_history", "10_payloads",
    "pipeline_demo", "pipeline_shop",
}  # fmt: skip

Run = Callable[..., str]


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in the session of the tests, and give what it printed."""

    def run_example(name: str, *arguments: object) -> str:
        capsys.readouterr()
        main = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
        main(*map(str, arguments))
        return capsys.readouterr().out

    return run_example


@pytest.fixture
def orders(topic: str, name_servers: str) -> str:
    """A topic with sixty orders: twenty of each country and of each state, 10 each."""
    with Producer(name_servers, group="shop") as producer:
        for number in range(ORDERS):
            order = {
                "order": f"order-{number}",
                "customer": "c",
                "country": COUNTRIES[number % 3],
                "amount": 10.0,
                "state": STATES[number // 20],
            }
            body = json.dumps(order).encode()
            producer.send(Message(topic=topic, body=body, tags=order["state"]))
    return topic


def test_every_example_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == TESTED


def test_orders_are_decoded_and_bad_ones_are_kept_apart(
    run: Run, name_servers: str, orders: str, tmp_path: Path
) -> None:
    with Producer(name_servers, group="shop") as producer:
        sent = producer.send(Message(topic=orders, body=b'{"order": "A", "amount": "12"}'))
    said = run("10_payloads", name_servers, orders, tmp_path / "bills")
    place = f"queue {sent.queue.queue_id}, offset {sent.queue_offset}"
    assert said == f"60 orders\n{place}: Expected `float`, got `str` - at `$.amount`\n"


def test_a_topic_is_read_as_a_table(run: Run, name_servers: str, orders: str) -> None:
    said = run("01_read_a_topic", name_servers, orders)

    assert re.fullmatch("".join(rf"{state}: 20 messages, \d+ bytes\n" for state in STATES), said)


@pytest.mark.local_only
@pytest.mark.only_on("comet")
def test_live_totals_follow_a_topic_that_grows(
    name_servers: str, topic: str, tmp_path: Path
) -> None:
    """The tutorial's programs, started as a reader starts them; Ctrl-C ends the totals.

    A terminal sends the signal to Java and to the workers, too.
    """
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    with (tmp_path / "log").open("w") as log:
        totals = subprocess.Popen(
            [sys.executable, str(FOLDER / "02_live_totals.py"), name_servers, topic],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    shop = subprocess.Popen(
        [sys.executable, str(FOLDER / "00_orders.py"), name_servers, topic, str(ORDERS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    give_up = threading.Timer(PATIENCE_S, totals.kill)
    give_up.start()
    try:
        assert totals.stdout is not None
        counts = [0]
        for line in totals.stdout:
            counts.append(sum(map(int, re.findall(r"[A-Z]{2} (\d+) for", line))))
            if counts[-1] == ORDERS:
                break
        assert counts[-1] == ORDERS
        assert counts == sorted(counts)
        assert shop.communicate(timeout=PATIENCE_S)[0] == f"{ORDERS} orders sent\n"
        os.killpg(totals.pid, signal.SIGINT)
        assert totals.stdout.read() == "stopped\n"
        assert totals.wait(PATIENCE_S) == 0
        # Stopping interrupts Spark's own thread; Hadoop may log where that was.
        logged = INTERRUPTED.sub("", (tmp_path / "log").read_text())
        assert not re.findall(r"^Traceback|^\s+at |^\S*(?:Error|Exception)\b.*", logged, re.M), (
            logged
        )
    finally:
        give_up.cancel()
        for program in (totals, shop):
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


def test_live_totals_are_those_of_the_orders(
    spark: SparkSession, name_servers: str, orders: str
) -> None:
    example = runpy.run_path(str(FOLDER / "02_live_totals.py"))
    messages = spark.read.format("rocketmq").option("nameServer", name_servers)

    totals = example["totals_of"](messages.option("subscribe", orders).load())

    assert {tuple(row) for row in totals.collect()} == {(name, 20, 200.0) for name in COUNTRIES}


def test_a_table_is_written_once_however_often(run: Run, name_servers: str, topic: str) -> None:
    assert run("03_write_a_topic", name_servers, topic) == f"100 messages in {topic}\n"
    assert run("03_write_a_topic", name_servers, topic) == f"100 messages in {topic}\n"


def test_a_copy_goes_on_where_it_stopped(
    run: Run, name_servers: str, orders: str, tmp_path: Path
) -> None:
    assert run("04_copy_to_parquet", name_servers, orders, tmp_path) == "60 messages copied\n"
    with Producer(name_servers, group="shop") as producer:
        producer.send(Message(topic=orders, body=b"one more"))
    assert run("04_copy_to_parquet", name_servers, orders, tmp_path) == "61 messages copied\n"


def test_a_log_is_read_without_its_broker(run: Run, cluster: Cluster, orders: str) -> None:
    said = run("05_read_a_log", cluster.store)

    assert re.search(rf"^{orders}: 60 messages, \d+ bytes$", said, re.MULTILINE)


def test_lag_is_what_a_group_has_not_committed(
    run: Run, name_servers: str, orders: str, group: str
) -> None:
    with PullConsumer(name_servers, group=group) as consumer:
        first, *_ = queues = consumer.fetch_queues(orders)
        consumer.assign(queues)
        done = {queue: consumer.bounds(queue).min_offset for queue in queues}
        consumer.commit(done | {first: consumer.bounds(first).max_offset})
        left = sum(consumer.bounds(queue).max_offset for queue in queues[1:])
    assert left > 0

    assert f"{group} has a lag of {left} messages in {orders}\n" in run(
        "06_lag", name_servers, orders
    )


def test_a_group_that_falls_behind_is_named(
    run: Run, name_servers: str, orders: str, group: str, tmp_path: Path
) -> None:
    session = connect(ConnectionOptions(name_servers=name_servers))
    session.commit(group, dict.fromkeys(session.queues([orders]), 0))
    disconnect_all()
    assert orders not in run("09_lag_history", name_servers, tmp_path / "lag")

    with Producer(name_servers, group="shop") as producer:
        producer.send(Message(topic=orders, body=b"one more"))

    said = run("09_lag_history", name_servers, tmp_path / "lag")
    assert f"lag of {group} in {orders}: {ORDERS}, now {ORDERS + 1}\n" in said


def test_an_archive_is_asked_instead_of_the_broker(
    run: Run, cluster: Cluster, orders: str, tmp_path: Path
) -> None:
    said = run("07_archive", cluster.store, tmp_path, orders)

    assert re.fullmatch(r"done: \d+ messages archived\n(\w+: 20 messages\n){3}", said)


@pytest.mark.long  # the tests on standalone Spark start the same cluster
@pytest.mark.local_only
@pytest.mark.only_on("comet")
def test_a_cluster_of_ones_own_counts_as_well_and_is_gone_with_the_program(
    name_servers: str, orders: str
) -> None:
    environment, mark = marked_environment()
    done = subprocess.run(
        [sys.executable, str(FOLDER / "08_small_cluster.py"), name_servers, orders],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    said = rf"{ORDERS} messages, counted by executors of spark://127\.0\.0\.1:\d+\n"
    assert re.fullmatch(said, done.stdout), done.stdout + done.stderr
    eventually(lambda: not left_running(mark), timeout=PATIENCE_S)
