"""Every example of Spark runs, and finds what is there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit import eventually
from servers import Cluster, new_group, new_topic
from servers import connect as connect_raw

from cometmq.client import Message, PushConsumer, StartFrom, StoredMessage
from cometmq.client import Producer as AsyncProducer
from cometmq.client.blocking import AdminClient, Producer, PullConsumer
from cometmq.spark import checks
from cometmq.spark.brokers import connect, disconnect_all
from cometmq.spark.errors import GoneError
from cometmq.spark.options.connection import ConnectionOptions
from support.checks.manual_clock import ManualClock
from support.checks.waiting import until
from support.processes.process_marks import left_running, marked_environment
from support.spark.recipes import recipe
from support.spark.topic_audit import stored, unique_key_of
from support.stores.small_stores import opened, put

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "spark"
ORDERS = 60
INTERRUPTED = re.compile(r"^java\.lang\.InterruptedException.*\n(?:\s+at .*\n)*", re.M)
PATIENCE_S = 600.0
COUNTRIES = ("AT", "DE", "FR")
STATES = ("new", "paid", "shipped")
TESTED = {
    "00_orders", "01_read_a_topic", "02_live_totals", "03_write_a_topic", "04_copy_to_parquet",
    "05_read_a_log", "06_lag", "08_small_cluster", "09_lag_history", "10_payloads", "11_usage",
    "12_replay", "13_dead_letters", "14_latency_from_traces", "15_audit_a_replica",
    "16_topic_to_delta", "17_topic_to_iceberg", "18_changes_to_delta",
    "19_topic_to_delta_without_a_jar", "20_delta_with_quarantine", "21_windows", "22_join_streams",
    "23_sessions", "25_spark_connect", "26_airflow_dag", "27_dagster_assets", "28_group_offsets",
    "29_compare_clusters", "archive_log", "pipeline_demo", "pipeline_shop",
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


def send_at(name_servers: str, topic: str, *rows: tuple[str, int]) -> None:
    """Send orders or payments: the id, and when, in seconds after noon."""
    with Producer(name_servers, group="shop") as producer:
        for order, second in rows:
            at = f"2026-11-29T12:{second // 60:02}:{second % 60:02}Z"
            body = {
                "order": order,
                "customer": order[0],
                "country": order[0],
                "amount": 10,
                "at": at,
            }
            producer.send(topic, json.dumps(body).encode())


def test_a_window_is_written_once_and_a_late_order_is_left_out(
    run: Run, name_servers: str, topic: str, tmp_path: Path
) -> None:
    send_at(name_servers, topic, ("A1", 0), ("B1", 20), ("A2", 29), ("A3", 30), ("A4", 120))
    first = "12:00:00 A: 2 for 20.00\n12:00:00 B: 1 for 10.00\n12:00:30 A: 1 for 10.00\n"
    assert run("21_windows", name_servers, topic, tmp_path) == first

    send_at(name_servers, topic, ("A5", 10), ("A6", 240))
    later = f"{first}12:02:00 A: 1 for 10.00\n"
    assert run("21_windows", name_servers, topic, tmp_path) == later


def test_an_order_is_joined_with_its_payment_or_written_without_one(
    run: Run, name_servers: str, topic: str, tmp_path: Path
) -> None:
    with AdminClient(name_servers) as admin:
        admin.create_topic(f"{topic}-payments", queues=2)
    send_at(name_servers, topic, ("A1", 0), ("A2", 5), ("B1", 5), ("A3", 200))
    send_at(name_servers, f"{topic}-payments", ("A1", 10), ("A2", 16), ("x", 200))

    said = run("22_join_streams", name_servers, topic, tmp_path)

    assert said == "A: 1 paid, 1 not paid in time\nB: 0 paid, 1 not paid in time\n"


def test_a_session_ends_when_its_customer_pauses(
    run: Run, name_servers: str, topic: str, tmp_path: Path
) -> None:
    send_at(name_servers, topic, ("A1", 0), ("A2", 9), ("B1", 12), ("A3", 18), ("A4", 29))
    send_at(name_servers, topic, ("C1", 120))

    assert run("23_sessions", name_servers, topic, tmp_path) == (
        "A: 3 orders in 18 s from 12:00:00\nB: 1 orders in 0 s from 12:00:12\n"
        "A: 1 orders in 0 s from 12:00:29\n"
    )


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


def test_a_batch_that_is_repeated_is_added_to_a_delta_table_once(
    run: Run, name_servers: str, orders: str, tmp_path: Path
) -> None:
    """The driver was killed between the table's commit and Spark's."""
    name = "19_topic_to_delta_without_a_jar"
    assert run(name, name_servers, orders, tmp_path) == "60 messages in the table\n"
    for commit in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / commit).unlink(missing_ok=True)
    with Producer(name_servers, group="shop") as producer:
        producer.send(Message(topic=orders, body=b"one more"))
    assert run(name, name_servers, orders, tmp_path) == "61 messages in the table\n"


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


def test_a_group_with_too_much_lag_is_named(
    run: Run, name_servers: str, orders: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session = connect(ConnectionOptions(name_servers=name_servers))
    queue, *_ = session.queues([orders])
    end = session.bounds([queue], gone=set())[queue].max
    session.commit(group, {queue: 0})
    disconnect_all()
    with pytest.raises(SystemExit):
        run("28_group_offsets", name_servers, end - 1)
    place = f"{orders}, queue {queue.queue_id} of {queue.broker}"
    assert f"{group} in {place}: lag, {end} messages\n" in capsys.readouterr().out


def test_a_copy_of_a_topic_has_the_same_messages_until_it_gets_one_more(
    run: Run,
    spark: SparkSession,
    name_servers: str,
    orders: str,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = make_topic(queues=1)
    rows = spark.read.format("rocketmq").option("nameServer", name_servers)
    rows = rows.option("subscribe", orders).load().select("body", "tags", "msg_id")
    writer = rows.write.format("rocketmq").option("nameServer", name_servers)
    writer.option("topic", copy).mode("append").save()
    arguments = ("29_compare_clusters", name_servers, orders, name_servers, copy)
    assert run(*arguments) == "the same messages\n"

    with Producer(name_servers, group="shop") as producer:
        producer.send(Message(topic=copy, body=b"one more"))
    with pytest.raises(SystemExit):
        run(*arguments)
    assert capsys.readouterr().out.startswith("missing-here: 1\n")


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
    said = run("archive_log", cluster.store, tmp_path, "broker-a", orders)

    assert re.fullmatch(r"\d+ messages archived\n(\w+: 20 messages\n){3}", said)


# --- analyses of what a group has consumed --------------------------------------------------------


COUNT, POISON = 20, 4
DEATHS_SECONDS_MAX = 240.0


@dataclass(frozen=True)
class Shop:
    """A topic of orders that a group has consumed, and what was traced of it."""

    name_servers: str
    topic: str
    trace_topic: str
    group: str


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Shop:
    """Twenty orders, of which the group's handler refuses each fifth, twice, until it is dead."""
    with closing(connect_raw(cluster.broker)) as broker:
        found = Shop(
            cluster.namesrv,
            new_topic(cluster, broker, queues=2),
            new_topic(cluster, broker, queues=1),
            new_group(cluster, broker),
        )
    asyncio.run(asyncio.wait_for(run_shop(found), DEATHS_SECONDS_MAX))
    return found


async def run_shop(shop: Shop) -> None:
    """Send the orders, consume them, and wait until the last of the refused ones has died."""
    done: set[str] = set()
    refused: list[str] = []
    ended = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        order = json.loads(message.body)
        bad = order["amount"] < 0
        refused.extend([message.message_id] * bad)
        done.update({message.message_id} - set(refused))
        if len(done) == COUNT - POISON and len(refused) == 2 * POISON:
            ended.set()
        if bad:
            raise ValueError(f"order {order['id']} has a negative amount")

    traced = {"trace": True, "trace_topic": shop.trace_topic}
    async with AsyncProducer(shop.name_servers, group="sellers", **traced) as producer:
        for number in range(COUNT):
            amount = -1 if number % 5 == 0 else number
            body = json.dumps({"id": number, "amount": amount}).encode()
            await producer.send(Message(topic=shop.topic, body=body, keys=[f"order-{number}"]))
        async with PushConsumer(
            shop.name_servers,
            group=shop.group,
            handler=handle,
            subscriptions={shop.topic: "*"},
            start_from=StartFrom.FIRST,
            retries_max=1,
            route_refresh_ms=500,
            **traced,
        ):
            await ended.wait()
    await until(lambda: dead_count(shop) == POISON, timeout=DEATHS_SECONDS_MAX)


def dead_count(shop: Shop) -> int:
    """How many letters there are; none while the topic is not there."""
    try:
        found = stored(shop.name_servers, f"%DLQ%{shop.group}")
    except GoneError:
        return 0
    return sum(map(len, found.values()))


def test_dead_letters_are_reported_and_can_be_sent_again(
    spark: SparkSession, run: Run, shop: Shop, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    said = run("13_dead_letters", shop.name_servers, tmp_path / "letters")

    [line] = [line for line in said.splitlines() if shop.group in line]
    assert line.startswith(f"{POISON} of {shop.group} from {shop.topic}: ")
    assert "order <n> has a negative amount" in line
    repaired = make_topic(queues=1)
    letters = spark.read.parquet(str(tmp_path / "letters")).where(f"topic = '{shop.topic}'")
    writer = letters.write.format("rocketmq").option("nameServer", shop.name_servers)
    options = {"topic": repaired, "reservedProperties": "drop"}
    writer.options(**options).mode("append").save()
    sent = [m for each in stored(shop.name_servers, repaired).values() for m in each]
    assert sorted(json.loads(message.body)["id"] for message in sent) == [0, 5, 10, 15]
    origins = {row.properties["ORIGIN_MSG_ID"] for row in letters.collect()}
    assert {message.properties["ORIGIN_MSG_ID"] for message in sent} == origins
    assert not {"RETRY_TOPIC", "CONSUME_ERROR"} & set(sent[0].properties)


def test_traces_tell_latencies_and_losses(run: Run, shop: Shop) -> None:
    said = run("14_latency_from_traces", shop.name_servers, shop.trace_topic)

    of = re.escape(f"{shop.topic} by ")
    numbers = r"\d+ in -?\d+ ms \(p50\), -?\d+ ms \(p99\)"
    assert re.search(rf"^send {of}sellers: {COUNT} in .*, 0 failed$", said, re.M), said
    assert re.search(rf"^handle {of}{shop.group}: {numbers}, {2 * POISON} failed$", said, re.M), (
        said
    )
    assert re.search(rf"^wait {of}{shop.group}: {COUNT} in ", said, re.M), said
    assert "0 messages consumed twice" in said


def test_a_topic_of_a_broker_is_whole_and_equal_to_a_copy_until_the_copy_loses_a_message(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    reader = spark.read.format("rocketmq").option("nameServer", shop.name_servers)
    topic = reader.option("subscribe", shop.topic).option("includeProperties", "true").load()
    topic.where("NOT (queue_id = 0 AND queue_offset = 3)").selectExpr(
        "* EXCEPT (tags)", "IF(queue_id = 1 AND queue_offset = 2, 'x', tags) AS tags"
    ).write.parquet(str(tmp_path / "copy"))
    queues = spark.read.format("rocketmq-meta").option("nameServer", shop.name_servers)
    queues = queues.option("subscribe", shop.topic).load()

    assert checks.gaps(topic).collect() == []
    assert recipe("28_group_offsets").outside(queues, lag_max=0).collect() == []
    found = checks.compare(topic, spark.read.parquet(str(tmp_path / "copy"))).collect()
    assert {(row.finding, row.queue_id, row.queue_offset) for row in found} == {
        ("missing-there", 0, 3),
        ("differs", 1, 2),
    }


def run_programs(page: str, words: dict[str, str]) -> None:
    """Run the programs in the text of a page, with some words replaced."""
    text = (HOWTO / f"{page}.md").read_text()
    programs = re.findall(r"<!-- run by tests/spark -->\n```python\n(.*?)^```", text, re.M | re.S)
    assert programs
    names: dict[str, object] = {}
    for program in programs:
        for word, instead in words.items():
            program = program.replace(word, instead)
        exec(compile(program, page, "exec"), names)


@pytest.mark.long  # other tests run the same functions
@pytest.mark.parametrize(
    "page",
    [
        "analyze-dead-letters",
        "compare-two-clusters",
        "measure-latency-from-traces",
        "replay-an-archive",
    ],
)
def test_the_programs_in_the_text_of_a_page_run(
    page: str, run: Run, shop: Shop, tmp_path: Path
) -> None:
    run("13_dead_letters", shop.name_servers, tmp_path / "letters")
    words = {
        "127.0.0.1:9876": shop.name_servers,
        "/data/": f"{tmp_path}/",
        "RMQ_SYS_TRACE_TOPIC": shop.trace_topic,
        'subscribe", "orders"': f'subscribe", "{shop.topic}"',
        "orders-copy": shop.topic,
        "orders-again": shop.topic,
    }
    run_programs(page, words)


# --- archives and logs ---------------------------------------------------------------------------


def bodies_by_queue(
    found: dict[tuple[str, int], list[StoredMessage]],
) -> dict[str, list[list[int]]]:
    """The numbers in the bodies of each original queue, in the queues where they came to."""
    homes: dict[str, list[list[int]]] = {}
    for messages in found.values():
        here: dict[str, list[int]] = {}
        for message in messages:
            origin, _, number = message.body.decode().partition(":")
            here.setdefault(origin, []).append(int(number))
        for origin, numbers in here.items():
            homes.setdefault(origin, []).append(numbers)
    return homes


def test_an_archive_is_replayed_in_order_and_a_repetition_is_recognized(
    run: Run, target: str, name_servers: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Topics of retries, of dead letters and of the system only if they are named."""
    topic, other = make_topic(), make_topic()
    store = opened(tmp_path / "store")
    for number in range(90):
        properties = {"TAGS": f"t{number % 2}", "KEYS": f"k{number} all", "own": "é", "DELAY": "3"}
        properties["UNIQ_KEY"] = f"{number:032X}"
        body = f"{number % 3}:{number // 3}".encode()
        put(store, body, topic=topic, queue_id=number % 3, flag=7, properties=properties)
    for name in ("%RETRY%g", "%DLQ%g", "SELF_TEST_TOPIC"):
        put(store, b"0:0", topic=name, properties={"UNIQ_KEY": "again"})
    put(store, b"0:99", topic=topic, sys_flag=4)
    store.close()
    to = str(tmp_path / "archive")
    recipe("archive_log").archive(None, str(tmp_path / "store"), to, "b")

    for _ in range(2):
        assert run("12_replay", to, name_servers, "job") == f"replayed {topic}\n"
    assert run("12_replay", to, name_servers, "j", f"%RETRY%g={other}") == "replayed %RETRY%g\n"

    copies = 1 if target == "comet" else 2
    found = stored(name_servers, topic, count=90 * copies)
    homes = bodies_by_queue(found)
    assert set(homes) == {"0", "1", "2"}
    assert all(queues == [[*range(30)] * copies] for queues in homes.values())
    sent = [message for messages in found.values() for message in messages]
    assert Counter(Counter(unique_key_of(message) for message in sent).values()) == {copies: 90}
    one, *_ = [message for message in sent if message.body == b"1:0"]
    assert (one.tags, one.keys, one.flag) == ("t1", ["k1", "all"], 7)
    expected = {"own": "é", "ORIGIN_MSG_ID": f"{1:032X}", "REPLAY_JOB": "job"}
    assert expected.items() <= one.properties.items()
    assert "DELAY" not in one.properties
    [retry] = [m for messages in stored(name_servers, other, count=1).values() for m in messages]
    assert retry.properties["ORIGIN_MSG_ID"] == "again"


def test_the_programs_in_the_page_about_archives_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = opened(tmp_path / "store")
    for number in range(30):
        put(store, b"%d" % number, queue_id=number % 2, properties={"TAGS": "new"})
    end = store.written_to
    store.close()
    recipe("archive_log").archive(None, str(tmp_path / "store"), str(tmp_path / "archive"))
    capsys.readouterr()

    run_programs("archive-a-log", {"/data/": f"{tmp_path}/"})

    shown = capsys.readouterr().out
    assert re.search(r"\| *new\| *30\|", shown)
    assert shown.endswith(f"\n{end}\n")


def test_usage_is_counted_by_topic_and_day(run: Run, tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path / "store", clock=clock)
    for number in range(5):
        put(store, topic=("a", "b")[number % 2])
        clock.advance(86_400_000 * (number == 2))
    store.close()

    lines = run("11_usage", tmp_path / "store").splitlines()

    counted = [re.fullmatch(r"(\S+) (\w): (\d) messages, \d+ bytes", line) for line in lines]
    assert sorted((each[2], int(each[3])) for each in counted if each) == [
        ("a", 1), ("a", 2), ("b", 1), ("b", 1),
    ]  # fmt: skip
    assert len({each[1] for each in counted if each}) == 2


def test_a_replica_is_audited_and_totals_do_not_depend_on_what_is_shown(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master, replica = tmp_path / "master", tmp_path / "replica"
    store = opened(master)
    for number in range(40):
        put(store, b"%d" % number, properties={"UNIQ_KEY": f"u{number}"})
    store.close()
    shutil.copytree(master, replica)
    nothing = ["gaps: 0", "duplicates: 0", "transactions: 0", "differences: 0"]
    assert run("15_audit_a_replica", master, replica).splitlines() == nothing

    store = opened(master)
    for number in range(40, 70):
        put(store, b"%d" % number, properties={"UNIQ_KEY": f"u{number}"})
    store.close()
    with pytest.raises(SystemExit):
        run("15_audit_a_replica", master, replica, 3)

    said = capsys.readouterr().out
    assert "differences: 30" in said
    assert said.count("behind-there") == 3


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
