"""Checks committed offsets against the bounds of queues, and the growth of lag.

Rows are those of the format ``rocketmq-meta``. Each audit adds its rows to a folder of history, so
that the next one can tell a group that falls behind from one that is only busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.spark.pipelines.findings.rows import Finding, Severity, evidence
from cometmq.spark.pipelines.running.folders import Folder

GROWING_AUDITS = 3
"""How many audits in a row must see more lag before it counts as growing."""
HISTORY_MAX = 1_000
"""Audits whose rows are kept."""
_COLUMNS = (
    "topic", "broker_name", "queue_id", "consumer_group", "min_offset", "max_offset",
    "committed_offset", "lag", "last_store_timestamp", "observed_timestamp",
)  # fmt: skip

LAGS = pa.schema(
    [
        pa.field("observed", pa.timestamp("us", "UTC")),
        pa.field("topic", pa.string()),
        pa.field("consumer_group", pa.string()),
        pa.field("lag", pa.int64()),
    ]
)
"""Columns of the history of lag."""


def offset_findings(rows: pa.Table, *, lag_max: int) -> list[Finding]:
    """Say which groups stand outside of what queues hold, or too far behind.

    Args:
        rows: of ``rocketmq-meta``.
        lag_max: messages a group may be behind in a queue; 0 for any number.
    """
    found = []
    for row in rows.to_pylist():
        committed = row["committed_offset"]
        if row["consumer_group"] is None or committed is None:
            continue
        low, high = row["min_offset"], row["max_offset"]
        if committed < low:
            what = "expired before the group read them"
            found.append(_finding("expired-unread", Severity.ERROR, row, committed, low - 1, what))
        elif committed > high:
            what = "are committed and do not exist"
            found.append(
                _finding("committed-beyond", Severity.ERROR, row, high, committed - 1, what)
            )
        elif 0 < lag_max < (row["lag"] or 0):
            what = "wait for the group"
            found.append(_finding("lag", Severity.WARNING, row, committed, high - 1, what))
    return found


def keep(folder: Folder, name: str, rows: pa.Table) -> pa.Table:
    """Add rows to the history, and give the lag of each group and topic over the audits so far.

    Args:
        folder: of the history.
        name: of this audit; names sort by time. Keeping under a name again replaces its rows.
        rows: of ``rocketmq-meta``.
    """
    with folder.writing(f"{name}.parquet") as file:
        pq.write_table(rows.select(list(_COLUMNS)), file)
    names = [each for each in folder.names() if each.endswith(".parquet")]
    for old in names[:-HISTORY_MAX]:
        folder.remove(old)
    lags = [_lags(folder, each) for each in names[-HISTORY_MAX:]]
    return pa.Table.from_pylist([row for table in lags for row in table], schema=LAGS)


def growing(history: pa.Table) -> list[Finding]:
    """Say which groups fell further behind at each of the last audits."""
    series: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in history.to_pylist():
        series[row["topic"], row["consumer_group"]].append(row["lag"])
    found = []
    for (topic, group), lags in sorted(series.items()):
        last = lags[-GROWING_AUDITS - 1 :]
        rising = all(after > before for before, after in pairwise(last))
        if len(last) > GROWING_AUDITS and rising:
            text = f"the lag of group {group} grew at each of the last {GROWING_AUDITS} audits"
            facts = evidence({"consumer_group": group, "lags": last})
            found.append(
                Finding("lag-grows", Severity.WARNING, text, topic, count=last[-1], evidence=facts)
            )
    return found


def _lags(folder: Folder, name: str) -> list[dict[str, Any]]:
    """The lag of each group and topic at one audit."""
    with folder.reading(name) as file:
        rows = pq.read_table(file).to_pylist()
    sums: dict[tuple[str, str], int] = defaultdict(int)
    observed = max((row["observed_timestamp"] for row in rows), default=None)
    for row in rows:
        if row["consumer_group"] is not None:
            sums[row["topic"], row["consumer_group"]] += row["lag"] or 0
    return [
        {"observed": observed, "topic": topic, "consumer_group": group, "lag": lag}
        for (topic, group), lag in sorted(sums.items())
    ]


def _finding(
    kind: str, severity: Severity, row: Mapping[str, Any], first: int, last: int, what: str
) -> Finding:
    number = last - first + 1
    text = f"{number:,} messages {what}: group {row['consumer_group']} committed"
    text += f" {row['committed_offset']}, the queue has {row['min_offset']} to {row['max_offset']}"
    return Finding.shown_by(row, kind, severity, text, first=first, last=last, count=number)
