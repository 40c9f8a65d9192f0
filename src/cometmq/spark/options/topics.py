"""The options of the format ``rocketmq`` when it reads.

Which topics, from where to where, how much at once, and what to do when messages are not there any
more. Offsets and times are JSON documents; `cometmq.spark.sources.bounds` reads them.

Names and meanings are those of Spark's Kafka source where it has the same option.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cometmq.model.delay import UNITS_MS
from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import NO_PUSH_DOWN, NO_SNAPSHOT, names_of, option
from cometmq.spark.options.payloads import PayloadOptions

ERROR, LATEST = "error", "latest"
SYMBOLIC = ("earliest", "latest", "group")
_DURATION = re.compile(r"\s*(\d{1,12})\s*(ms|s|m|h|d)\s*")
_UNITS_MS = {"ms": 1, **UNITS_MS}


@dataclass(frozen=True)
class TopicReadOptions(ConnectionOptions, PayloadOptions):
    """The topics and the range that a batch or a stream reads."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "pushDownFilters": f"{NO_PUSH_DOWN} assign, filter.tags, filter.sql, filter.keys,"
        " startingOffsets, endingOffsets, startingTimestamp or endingTimestamp",
        "snapshot": NO_SNAPSHOT,
    }

    subscribe: str | None = option(None, "subscribe")
    """Topics to read, separated by commas: all their readable queues, also future ones. Set exactly
    one of `subscribe`, `subscribePattern` and `assign`."""
    subscribe_pattern: str | None = option(None, "subscribePattern")
    """A regular expression. Topics whose whole name matches are read, also future ones. It does not
    match system topics, and matches retry and dead-letter topics only if it starts with %, as in
    ``%DLQ%.*``."""
    assign: str | None = option(None, "assign")
    """The queues to read: ``{"orders": {"broker-a": [0, 1]}}``."""
    starting_offsets: str | None = option(None, "startingOffsets")
    """Where a new query starts: ``earliest``, ``latest``, ``group`` (the committed offsets of
    `rocketmq.group`), or offsets by topic, broker and queue, where -2 is earliest and -1 latest.
    The default is latest for a stream and earliest for a batch."""
    starting_offsets_default: str | None = option(
        None, "startingOffsetsDefault", choices=("earliest", "latest")
    )
    """Where queues start that `startingOffsets` does not name, or that have no committed offset.
    The default is the default of `startingOffsets`."""
    starting_timestamp: int | None = option(None, "startingTimestamp", unit="ms since 1970", low=0)
    """Start each queue at its first message stored at or after this time. It takes precedence over
    `startingOffsetsByTimestamp`, which takes precedence over `startingOffsets`."""
    starting_offsets_by_timestamp: str | None = option(None, "startingOffsetsByTimestamp")
    """The same by topic, broker and queue: ``{"orders": {"broker-a": {"0": 1735689600000}}}``."""
    starting_offsets_by_timestamp_strategy: str = option(
        ERROR, "startingOffsetsByTimestampStrategy", choices=(ERROR, LATEST)
    )
    """For a queue without a message at or after the time: fail, or start at its end."""
    ending_offsets: str | None = option(None, "endingOffsets")
    """Where a batch ends: ``latest``, or offsets by topic, broker and queue, where -1 is latest.
    Queues without an entry end at latest."""
    ending_timestamp: int | None = option(None, "endingTimestamp", unit="ms since 1970", low=0)
    """End a batch before the first message of each queue stored at or after this time. It takes
    precedence over `endingOffsetsByTimestamp`, which takes precedence over `endingOffsets`."""
    ending_offsets_by_timestamp: str | None = option(None, "endingOffsetsByTimestamp")
    """The same by topic, broker and queue."""
    max_offsets_per_trigger: int | None = option(
        None, "maxOffsetsPerTrigger", unit="offsets", low=1
    )
    """Limit on offsets of a micro-batch, divided among the queues in proportion to their new
    messages. Each queue with new messages gets at least one."""
    max_bytes_per_trigger: int | None = option(None, "maxBytesPerTrigger", unit="bytes", low=1)
    """Limit on the stored bytes of a micro-batch, divided in the same way. The size of a message is
    estimated from the first new messages of each queue."""
    max_time_per_trigger: str | None = option(None, "maxTimePerTrigger")
    """Limit on the store time that a micro-batch covers, from the oldest new message of all queues
    on: a number and ms, s, m, h or d. Queues with newer messages wait."""
    min_offsets_per_trigger: int | None = option(
        None, "minOffsetsPerTrigger", unit="offsets", low=1
    )
    """Number of new offsets that a micro-batch waits for, up to `maxTriggerDelay`."""
    max_trigger_delay: str = option("15m", "maxTriggerDelay")
    """Limit on the wait for `minOffsetsPerTrigger`: a number and ms, s, m, h or d."""
    min_partitions: int | None = option(None, "minPartitions", unit="partitions", low=1)
    """Minimum number of tasks of a batch; large ranges of queues are split. The default is one task
    per queue."""
    max_records_per_partition: int | None = option(
        None, "maxRecordsPerPartition", unit="offsets", low=1
    )
    """Limit on offsets that one task reads."""
    fail_on_data_loss: bool = option(True, "failOnDataLoss")
    """Whether to fail if messages to read have expired, if a broker lost messages that were read,
    or if a topic was deleted or created again. If false, the query continues and logs a warning."""
    include_properties: bool = option(False, "includeProperties")
    """Whether there is a column ``properties`` with all properties of a message."""
    filter_tags: str | None = option(None, "filter.tags")
    """Read only messages with one of these tags: ``paid || sent``. The broker filters."""
    filter_sql: str | None = option(None, "filter.sql")
    """Read only messages whose properties match this SQL92 expression. The broker filters, and
    needs ``enablePropertyFilter=true``."""
    filter_keys: str | None = option(None, "filter.keys")
    """Read only messages with one of these keys, separated by commas. Spark's worker filters, so it
    receives all messages."""
    group_id_prefix: str = option("", "groupIdPrefix")
    """Pull as the group ``PREFIX-reader``, if `rocketmq.group` is not set. Without both, pulls use
    a group that every broker has, so that no group is created."""
    group: str | None = option(None, "rocketmq.group")
    """The group for ``startingOffsets=group``, for `commitToGroup` and for pulls."""
    commit_to_group: bool = option(False, "commitToGroup")
    """Whether a stream commits finished offsets to `rocketmq.group`, for monitoring. The stream
    itself uses only its checkpoint. Each batch is committed with the next batch."""
    broker_away_after_ms: int = option(3_000, "brokerAway.afterMs", unit="ms", low=1, high=600_000)
    """How long a running stream waits for a broker when it plans a batch. Then the broker is away:
    its queues keep their offsets, and the batch is planned without them."""
    broker_away_fail_after_ms: int | None = option(None, "brokerAway.failAfterMs", unit="ms", low=0)
    """A stream fails when a broker has been away for this long. With 0 it retries and then fails,
    as a batch read does. Without it, a stream goes on with the other brokers."""
    pull_timeout_ms: int = option(120_000, "pull.timeoutMs", unit="ms", low=1)
    """How long a task waits for planned messages before it fails. A task of a stream waits longer
    for a broker that is away: up to `brokerAway.failAfterMs`, without a limit if that is not
    set."""
    pull_batch_size: int = option(1_024, "pull.batchSize", unit="messages", low=1, high=100_000)
    """Messages per pull. The broker's limits apply: 1,024 messages and 512 KiB, RocketMQ's 32."""
    batch_rows: int = option(10_000, "batch.rows", unit="rows", low=1, high=1_000_000)
    """Limit on rows of one Arrow batch."""
    batch_bytes: int = option(16 << 20, "batch.bytes", unit="bytes", low=1024, high=1 << 30)
    """Limit on message bytes of one Arrow batch; one message may be larger."""
    decompress: bool = option(True, "decompress")
    """Whether compressed bodies are decompressed."""

    @property
    def max_trigger_delay_s(self) -> float:
        """`maxTriggerDelay` in seconds."""
        return _seconds("maxTriggerDelay", self.max_trigger_delay)

    @property
    def max_time_per_trigger_s(self) -> float | None:
        """`maxTimePerTrigger` in seconds; None without it."""
        text = self.max_time_per_trigger
        return None if text is None else _seconds("maxTimePerTrigger", text)

    @property
    def broker_away_fail_after_s(self) -> float:
        """`brokerAway.failAfterMs` in seconds, infinite without it."""
        after_ms = self.broker_away_fail_after_ms
        return math.inf if after_ms is None else after_ms / 1000

    @property
    def reading_group(self) -> str | None:
        """The group that pulls are on behalf of; None for one that every broker knows."""
        if self.group is not None:
            return self.group
        return f"{self.group_id_prefix}-reader" if self.group_id_prefix else None

    def topics(self) -> tuple[str, ...]:
        """Return the topics of `subscribe`, none if others are read."""
        return names_of(self.subscribe)

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            OptionError: they do; says which.
        """
        check_references(self)
        self.check_payload()
        self._check_choice()
        self._check_places()
        _seconds("maxTriggerDelay", self.max_trigger_delay)
        if self.max_time_per_trigger_s == 0:
            raise OptionError(
                f"option maxTimePerTrigger={self.max_time_per_trigger}: expected more than 0"
            )
        if self.filter_tags is not None and self.filter_sql is not None:
            raise OptionError("filter.tags and filter.sql: only one of the two is allowed")

    def _check_choice(self) -> None:
        given = {
            "subscribe": self.subscribe,
            "subscribePattern": self.subscribe_pattern,
            "assign": self.assign,
        }
        met = [name for name, value in given.items() if value is not None]
        if len(met) != 1:
            names = ", ".join(given)
            raise OptionError(
                f"exactly one of {names} is required, met {' and '.join(met) or 'none'}"
            )

    def _check_places(self) -> None:
        if self.group is None and self.commit_to_group:
            raise OptionError("commitToGroup needs rocketmq.group")
        if self.group is None and self.starting_offsets == "group":
            raise OptionError("startingOffsets=group needs rocketmq.group")
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError(
                f"minOffsetsPerTrigger={low} is more than maxOffsetsPerTrigger={high}"
            )


def _seconds(name: str, text: str) -> float:
    match = _DURATION.fullmatch(text.lower())
    if match is None:
        raise OptionError(f"option {name}={text}: expected a number and ms, s, m, h or d")
    return int(match[1]) * _UNITS_MS[match[2]] / 1000
