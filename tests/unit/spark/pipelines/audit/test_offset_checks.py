"""Committed offsets against what queues hold, and lag that grows from audit to audit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cometmq.spark.pipelines.audit.offset_checks import growing, keep, offset_findings
from cometmq.spark.pipelines.findings.rows import Severity
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.schema import arrow_schema
from cometmq.spark.sources.meta_rows import META

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def row(group: str | None, committed: int | None, **more: Any) -> dict[str, Any]:
    """A queue with offsets 10 to 100, and where a group stands in it."""
    known = {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 0,
        "consumer_group": group,
        "min_offset": 10,
        "max_offset": 100,
        "committed_offset": committed,
        "lag": None if committed is None else 100 - committed,
        "last_store_timestamp": NOW,
        "observed_timestamp": NOW,
    }
    return known | more


def rows(*found: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(found), schema=arrow_schema(META))


def test_a_group_outside_of_what_its_queue_holds_is_found() -> None:
    table = rows(
        row("lost", 4), row("beyond", 103), row("first", 10), row("last", 100), row(None, None),
        row("new", None),
    )  # fmt: skip

    found = offset_findings(table, lag_max=0)

    assert [(f.finding, f.severity, f.first, f.last, f.count) for f in found] == [
        ("expired-unread", Severity.ERROR, 4, 9, 6),
        ("committed-beyond", Severity.ERROR, 100, 102, 3),
    ]
    assert "group lost committed 4, the queue has 10 to 100" in found[0].text


def test_a_group_too_far_behind_is_found_if_a_limit_is_given() -> None:
    table = rows(row("slow", 20), row("quick", 95))

    found = offset_findings(table, lag_max=50)

    assert [(f.finding, f.first, f.last) for f in found] == [("lag", 20, 99)]


def test_a_group_whose_lag_grew_at_each_of_the_last_audits_is_found(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    lags = [("slow", [50, 10, 20, 30, 40]), ("busy", [10, 20, 30, 40, 40])]
    for audit in range(5):
        when = NOW + timedelta(hours=audit)
        table = rows(
            *(row(group, 100 - seen[audit], observed_timestamp=when) for group, seen in lags)
        )
        history = keep(folder, f"{audit:03d}", table)

    found = growing(history)

    assert history.num_rows == 10
    assert [(f.finding, f.topic, f.count) for f in found] == [("lag-grows", "orders", 40)]
    assert "group slow" in found[0].text


def test_three_audits_are_too_few_to_speak_of_growth(tmp_path: Path) -> None:
    for audit in range(3):
        history = keep(open_folder(tmp_path), str(audit), rows(row("g", 50 - audit)))

    assert growing(history) == []


def test_an_audit_that_is_gone_on_with_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        history = keep(open_folder(tmp_path), "1", rows(row("g", 50), row("g", 90, queue_id=1)))

    assert history.column("lag").to_pylist() == [60], "the sum over the topic's queues"
