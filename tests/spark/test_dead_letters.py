"""The analysis of dead letters: groups, times, errors, and properties that they share."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.hooks import ConsumeEnd
from cometmq.client.trace import encode_trace_record
from cometmq.spark.pipelines.archive.reading import read_archive
from cometmq.spark.pipelines.dead_letters.letters import pattern
from cometmq.spark.pipelines.dead_letters.pipeline import TABLES, DeadLetterSettings, dead_letters
from support.spark.message_frames import START, frame, message, write
from support.spark.traces import handled, trace_messages
from support.wire.recorded import STORES, unpack_store

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENDER = "0A00000112340000"


def unique(number: int) -> str:
    return f"{SENDER}{number:016X}"


def order(number: int, amount: int, seconds: float = 0, **more: Any) -> dict[str, Any]:
    body = json.dumps({"id": number, "amount": amount, "country": "DE" if number % 2 else "FR"})
    stored = START + timedelta(seconds=seconds)
    row = message(
        number,
        body.encode(),
        topic="orders",
        tags="big" if amount > 50 else "small",
        msg_id=unique(number),
        store_timestamp=stored,
        born_timestamp=stored,
    )
    return row | more


def copy_of(original: dict[str, Any], topic: str, seconds: float, tries: int) -> dict[str, Any]:
    """What a broker stores when a consumer sends a message back."""
    properties = {
        **original["properties"],
        "RETRY_TOPIC": original["topic"],
        "ORIGIN_MESSAGE_ID": original["offset_msg_id"],
    }
    return original | {
        "topic": topic,
        "properties": properties,
        "reconsume_times": tries,
        "offset_msg_id": f"{topic[:5].encode().hex().upper()}{original['queue_offset']:022X}",
        "store_timestamp": original["store_timestamp"] + timedelta(seconds=seconds),
    }


def sent_to_group(original: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The copy of a dead letter that was sent again to its group."""
    copy = copy_of(original, "%RETRY%shipping", seconds, 0)
    properties = {**copy["properties"], "ORIGIN_MSG_ID": original["msg_id"]}
    return copy | {"msg_id": unique(900), "properties": properties}


def planted() -> list[dict[str, Any]]:
    """Of 40 orders the 8 with a negative amount die; a ninth dies elsewhere; 4 others are retried.

    The handlers of ``shipping`` threw at each try; letter 0 was handled in the end, by hand.
    """
    orders = [order(n, -5 if n < 8 else 10 + n, n) for n in range(40)]
    rows = [*orders]
    for number in (*range(8), 10, 11, 12, 13):
        rows += [copy_of(orders[number], "%RETRY%shipping", 10 * t, t) for t in (1, 2)]
    for number in range(8):
        dead = copy_of(orders[number], "%DLQ%shipping", 60, 3)
        dead["properties"] |= {"CONSUME_ERROR": f"shop.NoStockError: order {number} of -5 pieces"}
        rows.append(dead)
    rows.append(copy_of(orders[20], "%DLQ%billing", 30, 16))
    rows.append(sent_to_group(orders[2], 90))
    failures = [
        record
        for number in range(8)
        for turn in range(3)
        for record in handled(
            number, number + 2 + 20 * turn, turn=turn, group="shipping", end=ConsumeEnd.EXCEPTION
        )
    ]
    later = handled(0, 500, turn=9, group="shipping")
    return [*rows, *trace_messages(*map(encode_trace_record, [*failures, *later]))]


@pytest.fixture(scope="module")
def analysed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The planted messages, analysed once; tables as rows."""
    folder = tmp_path_factory.mktemp("letters")
    source = write(folder / "m", planted())
    settings = DeadLetterSettings(
        source=source, output=str(folder / "out"), export=str(folder / "export")
    )
    result = dead_letters(spark, settings)
    rows = {name: table.to_pylist() for name, table in result.tables.items()}
    return {**rows, "result": result, "folder": folder}


def test_each_group_s_letters_are_counted_with_the_time_they_took_to_die(
    analysed: dict[str, Any],
) -> None:
    shipping, billing = analysed["groups"]

    assert (shipping["group"], shipping["origin_topic"], shipping["letters"]) == (
        "shipping", "orders", 8,
    )  # fmt: skip
    assert (shipping["waited_p50"], shipping["waited_max"]) == (58_000, 58_000), "from the trace"
    assert shipping["handled_later"] == 1
    assert (billing["group"], billing["letters"], billing["tries_max"]) == ("billing", 1, 16)
    assert billing["waited_p50"] == 30_000, "from the store: nobody traced it"


def test_a_letter_says_how_its_last_call_ended_and_whether_it_was_handled_later(
    analysed: dict[str, Any],
) -> None:
    by_id = {row["msg_id"]: row for row in analysed["letters"]}

    assert len(by_id) == 9
    assert by_id[unique(1)]["last_end"] == "EXCEPTION"
    assert by_id[unique(1)]["deliveries"] == 3
    assert by_id[unique(1)]["first_seen_by"] == "trace"
    assert by_id[unique(0)]["handled_later"] is not None
    assert by_id[unique(1)]["handled_later"] is None
    assert by_id[unique(2)]["sent_again"] == START + timedelta(seconds=92)
    assert by_id[unique(1)]["sent_again"] is None
    assert by_id[unique(20)]["first_seen_by"] == "store"
    assert by_id[unique(20)]["last_end"] is None
    [reason] = [row for row in analysed["reasons"] if row["group"] == "shipping"]
    assert (reason["last_end"], reason["tags"], reason["letters"]) == ("EXCEPTION", "small", 8)
    assert reason["error_pattern"] == "shop.NoStockError: order <n> of <negative> pieces"


def test_what_sets_the_dead_apart_comes_first(analysed: dict[str, Any]) -> None:
    told = [row for row in analysed["facts"] if row["group"] == "shipping"]

    assert {told[0]["fact"], told[1]["fact"]} == {"amount < 0", "amount = -5"}
    assert told[0]["share"] == 1.0
    assert told[0]["lift"] == pytest.approx(5.0), "8 of 40 messages have a negative amount"
    assert not [row for row in told if row["fact"].startswith("country")], "half of all, half of 8"


def test_bodies_of_one_kind_share_a_pattern(analysed: dict[str, Any]) -> None:
    [shipping, billing] = analysed["patterns"]

    assert shipping["pattern"] == '{"id": <n>, "amount": <negative>, "country": "<text>"}'
    assert (shipping["letters"], shipping["share"]) == (8, 1.0)
    assert shipping["example_id"] == unique(0)
    assert '"amount": -5' in shipping["example"]
    assert billing["pattern"] == '{"id": <n>, "amount": <n>, "country": "<text>"}'


def test_messages_that_were_retried_and_lived_are_told_from_those_that_died(
    analysed: dict[str, Any],
) -> None:
    [row] = analysed["retried"]

    assert (row["group"], row["messages"], row["tries"]) == ("shipping", 12, 24)
    assert (row["died"], row["not_died"]) == (8, 4)


def test_the_report_says_whose_why_and_when(analysed: dict[str, Any]) -> None:
    page = (analysed["folder"] / "out" / "report.html").read_text()

    assert set(analysed["result"].tables) == {"findings", *TABLES}
    assert analysed["result"].run.counts["letters"] == 9
    assert not analysed["result"].good
    for text in ("amount &lt; 0", "shipping", "EXCEPTION", "NoStockError", "Dead letters per hour"):
        assert text in page


def test_the_export_is_an_archive_under_the_topics_the_letters_came_from(
    spark: SparkSession, analysed: dict[str, Any]
) -> None:
    rows = read_archive(spark, analysed["folder"] / "export").orderBy("queue_offset").collect()

    assert [row["msg_id"] for row in rows] == [unique(n) for n in (*range(8), 20)]
    assert {row["topic"] for row in rows} == {"orders"}
    assert json.loads(rows[0]["body"])["amount"] == -5
    assert rows[0]["properties"] == {}, "nothing that tells of retries or of death"
    assert analysed["result"].run.counts["exported"] == 9


def test_a_selection_is_exported_once_however_often_it_is_exported(
    spark: SparkSession, tmp_path: Path
) -> None:
    homeless = message(99, topic="%DLQ%shipping", properties={})
    settings = DeadLetterSettings(
        source=write(tmp_path / "m", [*planted(), homeless]),
        output=str(tmp_path / "out"),
        groups=("shipping",),
        export=str(tmp_path / "export"),
        export_tags=("small",),
        export_matching='"id": [0-3],',
    )

    results = [dead_letters(spark, settings) for _ in range(2)]

    rows = read_archive(spark, tmp_path / "export").collect()
    assert sorted(row["msg_id"] for row in rows) == [unique(n) for n in range(4)]
    assert [result.run.counts["exported"] for result in results] == [4, 4]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"order 17 failed at 2026-11-21T12:00:01Z", "order <n> failed at <time>"),
        (b"id 123e4567-e89b-12d3-a456-426614174000", "id <uuid>"),
        (b"hash deadbeef01 of file7", "hash <hex> of file<n>"),
        (b'{"a":"x","b":-1.5}', '{"a":"<text>","b":<negative>}'),
        (b"", "(empty)"),
        (b"\xff\xfe\x00\x01\x02", "(binary) up to 8 bytes"),
        (b"a   b\n\tc", "a b c"),
    ],
)
def test_a_pattern_keeps_what_messages_have_in_common(
    spark: SparkSession, tmp_path: Path, body: bytes, expected: str
) -> None:
    found = frame(spark, tmp_path / "m", [message(1, body)])

    [row] = found.select(pattern(found["body"]).alias("pattern")).collect()

    assert row["pattern"] == expected


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_dead_letters_in_the_log_of_a_real_broker_are_found(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    expected = json.loads((STORES / f"{version}-main.json").read_text())["messages"]
    dead = [row for row in expected if row["topic"] == "%DLQ%CG_retry"]
    settings = DeadLetterSettings(
        source=f"log:{unpack_store(f'{version}-main', tmp_path)}", output=str(tmp_path / "out")
    )

    result = dead_letters(spark, settings)

    [group] = result.tables["groups"].to_pylist()
    assert (group["group"], group["letters"]) == ("CG_retry", len(dead))
    assert group["origin_topic"] == dead[0]["properties"]["RETRY_TOPIC"]
    letters = result.tables["letters"].to_pylist()
    assert [row["origin_id"] for row in letters] == [
        row["properties"]["ORIGIN_MESSAGE_ID"] for row in dead
    ]
    assert {row["first_seen_by"] for row in letters} == {"store"}, "the first copies are there"
    [retried] = result.tables["retried"].to_pylist()
    assert retried["died"] == len(dead)
