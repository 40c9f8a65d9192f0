"""The progress of streams as figures: lag, losses, and brokers that are away.

Spark's progress of a query has the offsets of every source as documents; sources in Python have no
metrics of their own. So the newest offset has members beside the offsets of queues, and the end of
a batch names the queues whose broker is away (see `cometmq.spark.offsets`):

    "$away"    since when the brokers of queues do not respond (in the end of the batch)
    "$lost"    messages that were lost since the query started
    "$next"    the store times of the next messages to read

The lag is the end of the queues at Spark's last look, less what is processed:

    topics   messages by queue (offsets, so those that a filter leaves out count too)
    logs     bytes by broker
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyspark
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from cometmq.spark.compat import passes_limits
from cometmq.spark.errors import SourceError
from cometmq.spark.offsets import (
    AWAY,
    LOST,
    NEXT,
    QueueKey,
    from_json,
    log_from_json,
    positions_in,
    without_start,
)


@dataclass(frozen=True)
class Lag:
    """How far a query was behind when it ended a batch."""

    query: str
    """The query's name, else its id."""
    batch: int
    queues: Mapping[QueueKey, int] = field(default_factory=dict)
    """Messages still to be read of each queue."""
    logs: Mapping[str, int] = field(default_factory=dict)
    """Bytes still to be read of each broker's log."""
    next_ms: Mapping[QueueKey, int] = field(default_factory=dict)
    """The store times of the next messages to read, in ms since 1970, as far as known."""
    away: Mapping[QueueKey, int] = field(default_factory=dict)
    """Since when the brokers of queues do not respond, in ms since 1970. The lag of such a queue
    is the last known one."""
    lost: Mapping[QueueKey, int] = field(default_factory=dict)
    """Messages of each queue that were lost since the query started, with
    ``failOnDataLoss=false``. Messages that expire while a task reads them are only in its log."""
    rows: int = 0
    """The rows of the batch."""

    @property
    def messages(self) -> int:
        """Messages of all queues."""
        return sum(self.queues.values())

    @property
    def bytes(self) -> int:
        """Bytes of all logs."""
        return sum(self.logs.values())

    def seconds(self, now_ms: int) -> float:
        """Return the lag in time: the age of the oldest message that is not read.

        Args:
            now_ms: the time in ms since 1970.
        """
        return max([0, *(now_ms - at for at in self.next_ms.values())]) / 1000


class LagListener(StreamingQueryListener):
    """Tells how far queries over our formats are behind, at each progress.

    Args:
        tell: called with it in the driver, in Spark's own thread: be quick, and raise nothing.

    Raises:
        SourceError: this PySpark does not ask sources for their newest offset: 4.2 is needed.

    Example: ``spark.streams.addListener(LagListener(lambda lag: gauge.set(lag.messages)))``
    """

    def __init__(self, tell: Callable[[Lag], None]) -> None:
        if not passes_limits():
            raise SourceError(
                f"PySpark {pyspark.__version__} knows no newest offset of a source, so every lag"
                " would be 0: use PySpark 4.2 or newer, or the format rocketmq-meta with"
                " commitToGroup"
            )
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Tell how far the query is behind, if it reads one of our formats."""
        lag = lag_of_progress(event.progress)
        if lag is not None:
            self._tell(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the progress before has told."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


def lag_of_progress(progress: StreamingQueryProgress) -> Lag | None:
    """Return the figures of a query's progress; None if no source is one of ours."""
    sources = [(each.latestOffset, each.endOffset) for each in progress.sources]
    name = progress.name or str(progress.id)
    found = lag_of(name, progress.batchId, sources)
    return None if found is None else replace(found, rows=progress.numInputRows)


def lag_of(query: str, batch: int, sources: list[tuple[Any, Any]]) -> Lag | None:
    """Return how far a query is behind; None if no source is one of ours.

    Args:
        query: its name.
        batch: the batch it ended last.
        sources: of each source the newest and the last offset, as texts of Spark's progress.
    """
    queues: dict[QueueKey, int] = {}
    logs: dict[str, int] = {}
    more: dict[str, dict[QueueKey, int]] = {AWAY: {}, LOST: {}, NEXT: {}}
    ours = 0
    for newest, done in sources:
        with contextlib.suppress(SourceError):
            queues.update(_between(from_json, newest, done))
            for name, figures in more.items():
                figures.update(_figures(done if name == AWAY else newest, name))
            ours += 1
        with contextlib.suppress(SourceError):
            logs.update(_between(log_from_json, newest, done))
            ours += 1
    if not ours:
        return None
    return Lag(query, batch, queues, logs, more[NEXT], more[AWAY], more[LOST])


def _figures(text: Any, name: str) -> dict[QueueKey, int]:
    document = _parsed(text)
    return positions_in(document, name) if isinstance(document, dict) else {}


def _between(read: Callable[[Any], dict[Any, int]], newest: Any, done: Any) -> dict[Any, int]:
    """Return what lies between two documents; all from 0 on of what the last batch did not know."""
    ends, places = read(_document(newest)), read(_document(done))
    return {key: max(end - places.get(key, 0), 0) for key, end in ends.items()}


def _document(text: Any) -> Any:
    return without_start(_parsed(text))


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        raise SourceError(f"an offset that is not JSON: {text}") from None
