"""Counts what writes to topics have sent, in files that programs and `StreamMetrics` read.

Spark gives writers in Python no metrics of their own: a query's progress has only the rows that its
plan has passed. So the driver adds up the counts of the tasks at each commit, and keeps the totals
of each query or job in a file of JSON, in the folder that the option names. A task that fails
reports nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

log = logging.getLogger(__name__)

_SUFFIX = ".json"


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
    sent: Sent = Sent()
    commits: int = 0
    """Committed writes: micro-batches of a stream, calls of ``save``."""
    last_commit: float = 0.0
    """The time of the last commit, in seconds since 1970."""


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
        document = {**new._asdict(), "sent": new.sent._asdict()}
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)
    except (OSError, ValueError) as error:
        log.warning("counts of a write are lost: cannot update %s: %s", path, error)


def sink_counts(folder: str | Path) -> list[SinkCounts]:
    """Return the totals of all queries and jobs that have a file in a folder of the driver.

    Args:
        folder: the option ``countsFolder`` of the writes.

    Raises:
        OSError: the folder or a file cannot be read.
        ValueError: a file is not one of these.
    """
    return [_read(path) for path in sorted(Path(folder).glob(f"*{_SUFFIX}"))]


def _read(path: Path) -> SinkCounts:
    name = unquote(path.name.removesuffix(_SUFFIX))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return SinkCounts(**{**document, "sent": Sent(**document["sent"])})
    except FileNotFoundError:
        return SinkCounts("" if name == "batch" else name)
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{path} has no counts of a write: {problem}") from None
