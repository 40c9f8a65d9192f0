"""Topics in SQL alone: tables, views that see new rows, and INSERT."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from support.spark.spark_topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "query-topics-with-sql.md"
Sql = Callable[[str], list[Any]]


@pytest.fixture
def sql(spark: SparkSession, name_servers: str, topic: str) -> Iterator[Sql]:
    """Run statements; ``{options}`` stands for the options that read the topic of the test."""
    schema = f"s{uuid.uuid4().hex[:8]}"
    options = f"nameServer '{name_servers}', subscribe '{topic}'"
    target = f"nameServer '{name_servers}', topic '{topic}'"

    def run(statement: str) -> list[Any]:
        filled = statement.format(options=options, target=target)
        return [tuple(row) for row in spark.sql(filled).collect()]

    before = spark.catalog.currentDatabase()
    spark.sql(f"CREATE SCHEMA {schema}")
    spark.catalog.setCurrentDatabase(schema)
    yield run
    spark.catalog.setCurrentDatabase(before)
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_a_view_over_a_table_sees_new_messages(sql: Sql, name_servers: str, topic: str) -> None:
    sql("CREATE TABLE messages USING rocketmq OPTIONS ({options})")
    sql("CREATE VIEW orders AS SELECT queue_id, body FROM messages WITH ({options})")
    fill(name_servers, topic, {0: 3})
    assert sql("SELECT count(*), count(DISTINCT queue_id) FROM orders") == [(3, 1)]
    fill(name_servers, topic, {1: 2})
    assert sql("SELECT count(*), count(DISTINCT queue_id) FROM orders") == [(5, 2)]


def test_rows_are_inserted(sql: Sql, name_servers: str) -> None:
    sql("CREATE TABLE messages USING rocketmq OPTIONS ({options})")
    sql("CREATE TABLE outgoing (body STRING, tags STRING) USING rocketmq")
    sql("INSERT INTO outgoing WITH ({target}) VALUES ('one', 'a'), ('two', NULL)")
    assert sql("SELECT cast(body AS STRING), tags FROM messages WITH ({options}) ORDER BY 1") == [
        ("one", "a"),
        ("two", None),
    ]


def test_the_statements_of_the_page_run(sql: Sql) -> None:
    text = "".join(re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S))
    for words, options in (("subscribe 'orders'", "{options}"), ("topic 'orders'", "{target}")):
        assert words in text
        text = text.replace(f"nameServer '127.0.0.1:9876', {words}", options)
    for statement in filter(str.strip, text.split(";")):
        sql(statement)

    assert sql("SELECT body, tags FROM orders") == [("order 7", "paid")]


def test_a_temporary_view_needs_no_table(sql: Sql, name_servers: str, topic: str) -> None:
    fill(name_servers, topic, {0: 2})
    sql("CREATE OR REPLACE TEMPORARY VIEW now USING rocketmq OPTIONS ({options})")
    assert sql("SELECT count(*) FROM now") == [(2,)]


def test_a_table_that_is_read_without_options_says_how(sql: Sql) -> None:
    sql("CREATE TABLE messages USING rocketmq OPTIONS ({options})")
    with pytest.raises(AnalysisException, match=r"SELECT … FROM table WITH \(nameServer"):
        sql("SELECT count(*) FROM messages")
