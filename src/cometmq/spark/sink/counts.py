"""Counts what writes to topics have sent, in files that programs and Prometheus read.

Spark gives writers in Python no metrics of their own: a query's progress has only the rows that its
plan has passed. So the driver adds up the counts of the tasks at each commit, and keeps the totals
of each query or job in a file of the folder that the option names. The file has Prometheus's text
format, as node_exporter's textfile collector reads it. A task that fails reports nothing.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

log = logging.getLogger(__name__)

_SUFFIX = ".prom"
PREFIX = "cometmq_spark_sink_"
"""The names of the metrics begin with it."""
_LINE = re.compile(rf"{PREFIX}(\w+?)(?:_total|_seconds)?\{{.*\}} (\S+)")


class Sent(NamedTuple):
    """The counts of what a task has written, or several tasks."""

    rows: int = 0
    bytes: int = 0
    """Bytes of bodies and properties."""
    requests: int = 0
    """Acknowledged requests."""
    retries: int = 0
    """Requests that failed and were sent again."""


class SinkCounts(NamedTuple):
    """The totals of one query or job, over all its runs."""

    job: str
    """The query's id, or the option ``jobId``; empty for batch writes without it."""
    sent: Sent
    commits: int
    """Committed writes: micro-batches of a stream, calls of ``save``."""
    last_commit: float
    """The time of the last commit, in seconds since 1970."""


HELP = {
    "rows": "Rows that brokers have acknowledged",
    "bytes": "Bytes of bodies and properties that brokers have acknowledged",
    "requests": "Requests that brokers have acknowledged",
    "retries": "Requests that failed and were sent again",
    "commits": "Committed writes",
}
"""The counters, and what they count."""


def total(counts: Iterable[Sent]) -> Sent:
    """Return the sum of counts."""
    return Sent(*map(sum, zip(Sent(), *counts, strict=True)))


def add_counts(folder: str, job: str, sent: Sent) -> None:
    """Add the counts of a committed write to the file of its job.

    A file that cannot be written is logged, and does not fail the write: the rows are sent. One
    write of a job at a time is expected; of two commits at the same moment one may not be counted.
    """
    path = Path(folder, f"{quote(job or 'batch', safe='')}{_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = _read(path)
        new = SinkCounts(job, total([before.sent, sent]), before.commits + 1, time.time())
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(_text(new), encoding="utf-8")
        temporary.replace(path)
    except (OSError, ValueError) as error:
        log.warning("counts of a write are lost: cannot update %s: %s", path, error)


def sink_counts(folder: str | Path) -> list[SinkCounts]:
    """Return the totals of all queries and jobs that have a file in a folder.

    Call it where the driver runs, for example in ``onQueryProgress`` of a
    ``StreamingQueryListener``.

    Args:
        folder: the option ``countsFolder`` of the writes.

    Raises:
        OSError: the folder or a file cannot be read.
        ValueError: a file is not one of these.
    """
    return [_read(path) for path in sorted(Path(folder).glob(f"*{_SUFFIX}"))]


def _read(path: Path) -> SinkCounts:
    name = unquote(path.name.removesuffix(_SUFFIX))
    job = "" if name == "batch" else name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return SinkCounts(job, Sent(), 0, 0.0)
    values = {match[1]: float(match[2]) for match in _LINE.finditer(text)}
    if values.keys() != {*HELP, "last_commit"}:
        raise ValueError(f"{path} has no counts of a write: met {sorted(values)}")
    sent = Sent(*(int(values[field]) for field in Sent._fields))
    return SinkCounts(job, sent, int(values["commits"]), values["last_commit"])


def _text(counts: SinkCounts) -> str:
    values = counts.sent._asdict() | {"commits": counts.commits}
    escaped = counts.job.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    label = f'{{job="{escaped}"}}'
    lines = []
    for field, help_text in HELP.items():
        name = f"{PREFIX}{field}_total"
        lines += [
            f"# HELP {name} {help_text}",
            f"# TYPE {name} counter",
            f"{name}{label} {values[field]}",
        ]
    name = f"{PREFIX}last_commit_seconds"
    lines += [
        f"# HELP {name} Time of the last commit, in seconds since 1970",
        f"# TYPE {name} gauge",
        f"{name}{label} {counts.last_commit:.3f}",
    ]
    return "\n".join(lines) + "\n"
