"""Every example of Spark runs, and finds what is there."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from servers import Cluster

from cometmq.client import Message
from cometmq.client.blocking import Producer, PullConsumer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "spark"
ORDERS = 60
COUNTRIES = ("AT", "DE", "FR")
STATES = ("new", "paid", "shipped")
TESTED = {
    "01_read_a_topic", "02_live_totals", "03_write_a_topic", "04_copy_to_parquet",
    "05_read_a_log", "06_lag", "07_archive",
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


def test_a_topic_is_read_as_a_table(run: Run, name_servers: str, orders: str) -> None:
    said = run("01_read_a_topic", name_servers, orders)

    assert re.fullmatch("".join(rf"{state}: 20 messages, \d+ bytes\n" for state in STATES), said)


@pytest.mark.local_only
@pytest.mark.only_on("comet")
def test_live_totals_follow_the_topic_as_a_program(name_servers: str, orders: str) -> None:
    """The tutorial's program, started as a reader starts it, ends with Ctrl-C."""
    program = subprocess.Popen(
        [sys.executable, str(FOLDER / "02_live_totals.py"), name_servers, orders],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"},
    )
    try:
        assert program.stdout is not None
        wanted = "  ".join(f"{country} 20 for 200.00" for country in COUNTRIES)
        seen = []
        for line in program.stdout:
            seen.append(line)
            if line.endswith(f": {wanted}\n"):
                break
        assert seen, "nothing was added up"
        assert seen[-1].endswith(f": {wanted}\n"), seen
        program.send_signal(signal.SIGINT)
        program.wait(30)
    finally:
        program.kill()
        program.wait()
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
        consumer.commit({first: consumer.bounds(first).max_offset})
        left = sum(consumer.bounds(queue).max_offset for queue in queues[1:])

    assert f"{group} is {left} messages of {orders} behind\n" in run("06_lag", name_servers, orders)
