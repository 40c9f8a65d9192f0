"""The analyses on real clusters: real dead letters, and traces that clients sent."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import Cluster, connect, new_group, new_topic
from wire import Connection

from cometmq.client import Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.spark.errors import GoneError
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.archive.reading import COLUMNS, read_archive
from cometmq.spark.pipelines.audit import AuditSettings, audit
from cometmq.spark.pipelines.dead_letters import DeadLetterSettings, dead_letters
from cometmq.spark.pipelines.findings.rows import Findings
from cometmq.spark.pipelines.replay import ReplaySettings, replay
from cometmq.spark.pipelines.running import command
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.trace import TraceSettings, trace
from cometmq.spark.pipelines.usage import UsageSettings, usage
from support.checks.waiting import until
from support.spark.topic_audit import stored

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, POISON = 20, 4
DEATHS_SECONDS_MAX = 240.0


@dataclass(frozen=True)
class Shop:
    """A topic of orders that a group has consumed, and what was traced of it."""

    name_servers: str
    topic: str
    trace_topic: str
    group: str

    @property
    def source(self) -> str:
        return f"brokers:{self.name_servers}"


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Shop:
    """Twenty orders, of which the group's handler refuses each fifth, twice, until it is dead."""
    with closing(connect(cluster.broker)) as broker:
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
    async with Producer(shop.name_servers, group="sellers", **traced) as producer:
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


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def rows(result: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.tables[name].to_pylist()
    return found


def test_messages_that_died_say_why_and_can_be_sent_again(
    spark: SparkSession, shop: Shop, tmp_path: Path, cluster: Cluster, broker: Connection
) -> None:
    settings = DeadLetterSettings(
        source=shop.source,
        output=str(tmp_path / "out"),
        groups=(shop.group,),
        trace_topic=(shop.trace_topic,),
        export=str(tmp_path / "letters"),
    )

    result = dead_letters(spark, settings)

    [group] = rows(result, "groups")
    assert (group["origin_topic"], group["letters"]) == (shop.topic, POISON)
    assert rows(result, "facts")[0]["fact"].startswith("amount")
    assert rows(result, "facts")[0]["lift"] == pytest.approx(COUNT / POISON)
    assert {row["last_end"] for row in rows(result, "letters")} == {"EXCEPTION"}
    assert {row["deliveries"] for row in rows(result, "letters")} == {2}
    [reason] = rows(result, "reasons")
    assert "order <n> has a negative amount" in reason["error_pattern"]
    repaired = new_topic(cluster, broker, queues=1)
    again = ReplaySettings(
        archive=str(tmp_path / "letters"),
        name_servers=shop.name_servers,
        topic_map=(f"{shop.topic}={repaired}",),
    )
    replay(spark, again)
    sent = [m for queue in stored(shop.name_servers, repaired).values() for m in queue]
    dead = {row["msg_id"] for row in read_archive(spark, tmp_path / "letters").collect()}
    assert {message.properties["ORIGIN_MSG_ID"] for message in sent} == dead
    assert sorted(json.loads(message.body)["id"] for message in sent) == [0, 5, 10, 15]


def test_traces_of_a_real_consumer_tell_latencies_and_losses(
    spark: SparkSession, shop: Shop, output: str
) -> None:
    settings = TraceSettings(
        source=shop.source, output=output, trace_topic=(shop.trace_topic,), settle_s=0
    )

    result = trace(spark, settings)

    [sent] = rows(result, "sends")
    assert (sent["topic"], sent["group"], sent["sent"]) == (shop.topic, "sellers", COUNT)
    [handled] = rows(result, "handlers")
    assert (handled["group"], handled["topic"]) == (shop.group, shop.topic)
    assert handled["deliveries"] == COUNT + POISON
    assert (handled["succeeded"], handled["exception"]) == (COUNT - POISON, 2 * POISON)
    lost = rows(result, "not_consumed")
    assert [row["reason"] for row in lost] == ["every delivery failed"] * POISON
    assert rows(result, "unreadable") == []
    [waited] = rows(result, "waits")
    assert waited["messages"] == COUNT


def test_an_audit_of_a_broker_finds_its_queues_whole(
    spark: SparkSession, shop: Shop, output: str
) -> None:
    settings = AuditSettings(
        source=shop.source,
        output=output,
        topics=(shop.topic,),
        other=shop.source,
        checks=("queues", "duplicates", "offsets"),
    )

    result = audit(spark, settings)

    assert list(Findings.from_table(result.tables["findings"])) == []
    assert result.run.counts["messages"] == COUNT
    assert result.run.counts["different"] == 0
    stands = [row for row in rows(result, "offsets") if row["consumer_group"] == shop.group]
    assert sum(row["committed_offset"] for row in stands) == COUNT
    assert {row["lag"] for row in stands} == {0}
    assert [row["lag"] for row in rows(result, "lag_history")] == [0]


def test_a_cluster_is_compared_with_a_copy_that_lost_a_message(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The copy is what Spark read, less one message and with another one changed."""
    reader = spark.read.format("rocketmq").option("nameServer", shop.name_servers)
    whole = reader.option("subscribe", shop.topic).option("includeProperties", "true").load()
    kept = whole.where("NOT (queue_id = 0 AND queue_offset = 3)")
    kept.selectExpr(
        "* EXCEPT (tags)", "IF(queue_id = 1 AND queue_offset = 2, 'x', tags) AS tags"
    ).write.parquet(str(tmp_path / "copy"))
    settings = AuditSettings(
        source=shop.source,
        output=str(tmp_path / "out"),
        topics=(shop.topic,),
        other=f"parquet:{tmp_path / 'copy'}",
        checks=(),
    )

    result = audit(spark, settings)

    found = Findings.from_table(result.tables["findings"])
    assert {(f.finding, f.queue_id, f.first, f.last) for f in found} == {
        ("missing-there", 0, 3, 3),
        ("differs", 1, 2, 2),
    }


def test_usage_of_a_broker_s_topics_counts_what_was_sent(
    spark: SparkSession, shop: Shop, output: str
) -> None:
    settings = UsageSettings(source=shop.source, output=output, topics=(shop.topic,))

    result = usage(spark, settings)

    [topic] = rows(result, "by_topic")
    assert (topic["topic"], topic["messages"]) == (shop.topic, COUNT)
    assert topic["bytes"] > COUNT * 91
    [producer] = {row["producer"] for row in rows(result, "by_producer")}
    assert producer != "(unknown)"


HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
PAGES = (
    "analyze-dead-letters",
    pytest.param("measure-latency-from-traces", marks=pytest.mark.long),
    pytest.param("compare-two-clusters", marks=pytest.mark.long),
    pytest.param("report-usage", marks=pytest.mark.long),
)
"""Pages with commands and programs; other tests run the pipelines of those left to long runs."""


@pytest.fixture
def here(spark: SparkSession, shop: Shop, tmp_path: Path) -> Callable[[str], str]:
    """Turn a text of the documentation into one about this cluster and this folder.

    What would read all topics reads that of the shop: the cluster has those of other tests too.
    """
    (tmp_path / "archive").mkdir()
    manifest = Manifest(open_folder(tmp_path / "archive"))
    manifest.settle({"columns": [column.name for column in COLUMNS]})
    words = {
        "127.0.0.1:9876": shop.name_servers,
        "/data/": f"{tmp_path}/",
        "RMQ_SYS_TRACE_TOPIC": shop.trace_topic,
        "orders=orders": f"{shop.topic}={shop.topic}",
        "--topics orders": f"--topics {shop.topic}",
        '("orders",)': f'("{shop.topic}",)',
        "--groups shipping": f"--groups {shop.group}",
        "pipeline usage ": f"pipeline usage --topics {shop.topic} ",
        "pipeline audit ": f"pipeline audit --topics {shop.topic} ",
        "UsageSettings(source": f'UsageSettings(topics=("{shop.topic}",), source',
    }

    def replaced(text: str) -> str:
        for word, instead in words.items():
            text = text.replace(word, instead)
        return text

    return replaced


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_program_of_a_page_runs(
    page: str, here: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = here((HOWTO / f"{page}.md").read_text())
    commands = re.findall(r"^ *cometmq pipeline (\S+) (.*)$", text, re.MULTILINE)
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert commands
    assert programs

    for name, options in commands:
        code = command.main(name, [*shlex.split(options), "--quiet"])
        said = capsys.readouterr()
        assert code in (command.GOOD, command.BAD), f"{name} {options}: {said.err}"
    for program in programs:
        exec(compile(program.replace("assert result.good", "assert result"), page, "exec"), {})
