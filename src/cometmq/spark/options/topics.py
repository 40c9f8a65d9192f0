"""The options of the format ``rocketmq`` when it reads.

Which topics, from where to where, how much at once, and what to do when messages are not there any
more. Offsets and times are JSON documents; `cometmq.spark.starts` reads them.

Source: ours; names and meanings are those of Spark's Kafka source where it has the same option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import option

LOAD, ACTION = "load", "action"
ERROR, LATEST = "error", "latest"
SYMBOLIC = ("earliest", "latest", "group")
_DURATION = re.compile(r"\s*(\d{1,12})\s*(ms|s|m|h|d)\s*")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class TopicReadOptions(ConnectionOptions):
    """What a batch or a stream reads of which topics."""

    subscribe: str | None = option(None, "subscribe")
    """Topics to read, with commas between; every readable queue of them, and those to come.
    Exactly one of `subscribe`, `subscribePattern` and `assign` is given."""

    subscribe_pattern: str | None = option(None, "subscribePattern")
    """A regular expression; topics whose whole name it matches are read, also those to come.
    System topics are never among them; those of retries and dead letters are where the expression
    itself begins with %, as in ``%DLQ%.*``."""

    assign: str | None = option(None, "assign")
    """The queues to read, and no others: ``{"orders": {"broker-a": [0, 1]}}``."""

    starting_offsets: str | None = option(None, "startingOffsets")
    """Where a new query begins: ``earliest``, ``latest``, ``group`` (where the group of
    ``rocketmq.group`` stands), or next offsets by topic, broker and queue, of which -2 means the
    earliest and -1 the latest. A stream begins at the latest, a batch at the earliest."""

    starting_offsets_default: str | None = option(
        None, "startingOffsetsDefault", choices=("earliest", "latest")
    )
    """Where queues begin that `startingOffsets` does not name, or of which the group has committed
    nothing: by default as without `startingOffsets`."""

    starting_timestamp: int | None = option(None, "startingTimestamp", unit="ms since 1970", low=0)
    """Begin every queue at its first message stored at or after this time. Goes before
    `startingOffsetsByTimestamp`, which goes before `startingOffsets`."""

    starting_offsets_by_timestamp: str | None = option(None, "startingOffsetsByTimestamp")
    """The same by topic, broker and queue: ``{"orders": {"broker-a": {"0": 1735689600000}}}``."""

    starting_offsets_by_timestamp_strategy: str = option(
        ERROR, "startingOffsetsByTimestampStrategy", choices=(ERROR, LATEST)
    )
    """What to do with a queue that has no message so young: fail, or begin at its end."""

    ending_offsets: str | None = option(None, "endingOffsets")
    """Where a batch ends: ``latest``, or next offsets by topic, broker and queue, of which -1 means
    the latest. Queues it does not name end at the latest."""

    ending_timestamp: int | None = option(None, "endingTimestamp", unit="ms since 1970", low=0)
    """End a batch before the first message of each queue stored at or after this time. Goes before
    `endingOffsetsByTimestamp`, which goes before `endingOffsets`."""

    ending_offsets_by_timestamp: str | None = option(None, "endingOffsetsByTimestamp")
    """The same by topic, broker and queue."""

    max_offsets_per_trigger: int | None = option(
        None, "maxOffsetsPerTrigger", unit="offsets", low=1
    )
    """How many offsets a micro-batch takes at most, shared among queues in proportion to what they
    have; each queue with news gets one at least."""

    min_offsets_per_trigger: int | None = option(
        None, "minOffsetsPerTrigger", unit="offsets", low=1
    )
    """Wait for so many new offsets before a micro-batch, but no longer than `maxTriggerDelay`."""

    max_trigger_delay: str = option("15m", "maxTriggerDelay")
    """How long `minOffsetsPerTrigger` may hold messages back: a number and ms, s, m, h or d."""

    min_partitions: int | None = option(None, "minPartitions", unit="partitions", low=1)
    """How many tasks share a batch at least; large ranges of queues are cut. One per queue if not
    given."""

    max_records_per_partition: int | None = option(
        None, "maxRecordsPerPartition", unit="offsets", low=1
    )
    """How many offsets one task reads at most."""

    fail_on_data_loss: bool = option(True, "failOnDataLoss")
    """Fail when messages that should be read have expired, or a topic was deleted or made anew.
    If false, go on with what there is and say so in the log."""

    include_properties: bool = option(False, "includeProperties")
    """Also give the column ``properties``, with all properties of a message."""

    filter_tags: str | None = option(None, "filter.tags")
    """Read messages with one of these tags only: ``paid || sent``. The broker leaves out others."""

    filter_sql: str | None = option(None, "filter.sql")
    """Read messages only whose properties satisfy this SQL92 condition; the broker decides, and has
    to have ``enablePropertyFilter=true``."""

    filter_keys: str | None = option(None, "filter.keys")
    """Read messages only that have one of these keys, with commas between; Spark's worker decides,
    so that all messages travel to it."""

    push_down_filters: bool = option(False, "pushDownFilters")
    """Let a batch read only what the query's conditions on topic, broker, queue, offset, store time
    and tags let through. Needs ``spark.sql.python.filterPushdown.enabled=true``. Load anew for each
    query: Spark keeps with a DataFrame what was pushed last."""

    snapshot: str = option(LOAD, "snapshot", choices=(LOAD, ACTION))
    """When the end of a batch is found out: once, at ``load`` (with a schema of the user's own, at
    the first query over it), so that every action sees the same rows; or anew whenever Spark plans,
    which it does per ``action`` if filters are pushed down."""

    group_id_prefix: str = option("", "groupIdPrefix")
    """Pull as the group ``PREFIX-reader`` unless `rocketmq.group` is given. Without either, pulls
    are on behalf of a group that every broker knows, so that none is created."""

    group: str | None = option(None, "rocketmq.group")
    """The group of the start ``group`` and of `commitToGroup`; pulls are on its behalf."""

    commit_to_group: bool = option(False, "commitToGroup")
    """Commit to `rocketmq.group` what a stream has finished, for people to watch. A stream itself
    goes by its checkpoint alone; the last batch is committed with the one after it."""

    pull_timeout_ms: int = option(120_000, "pull.timeoutMs", unit="ms", low=1)
    """How long a task waits for messages that the plan says are there, before it fails."""

    pull_batch_size: int = option(1_024, "pull.batchSize", unit="messages", low=1, high=100_000)
    """Messages asked for at once. A broker gives what its own limits allow, 32 by default."""

    batch_rows: int = option(10_000, "batch.rows", unit="rows", low=1, high=1_000_000)
    """Rows that a worker hands to Spark at once."""

    batch_bytes: int = option(16 << 20, "batch.bytes", unit="bytes", low=1024, high=1 << 30)
    """Bytes of messages that a worker hands to Spark at once; one message may be larger."""

    decompress: bool = option(True, "decompress")
    """Give bodies as they were before their producer compressed them."""

    @property
    def max_trigger_delay_s(self) -> float:
        """`maxTriggerDelay` in seconds."""
        return _seconds("maxTriggerDelay", self.max_trigger_delay)

    @property
    def reading_group(self) -> str | None:
        """The group that pulls are on behalf of; None for one that every broker knows."""
        if self.group is not None:
            return self.group
        return f"{self.group_id_prefix}-reader" if self.group_id_prefix else None

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            OptionError: they do; says which.
        """
        check_references(self)
        self._check_choice()
        self._check_places()
        _seconds("maxTriggerDelay", self.max_trigger_delay)
        if self.filter_tags is not None and self.filter_sql is not None:
            raise OptionError("filter.tags and filter.sql: a broker takes one of the two")

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
    return int(match[1]) * _UNITS_S[match[2]]
