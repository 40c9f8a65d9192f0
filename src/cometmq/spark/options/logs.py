"""The options of the format that reads a store's log.

``maxBytesPerTrigger``, ``startingOffsets`` and their kin mean what they mean in
Spark's Kafka source, with places in a log instead of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cometmq.spark.errors import OptionError
from cometmq.spark.options.parsing import NO_PUSH_DOWN, NO_SNAPSHOT, names_of, option
from cometmq.spark.options.payloads import PayloadOptions

_MIB = 1024 * 1024
PERMISSIVE = "permissive"


@dataclass(frozen=True)
class LogOptions(PayloadOptions):
    """Options of the format ``rocketmq-log``."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "pushDownFilters": f"{NO_PUSH_DOWN} subscribe, brokers, filter.tags, filter.keys,"
        " startingOffsets, endingOffsets, startingTimestamp or endingTimestamp",
        "readThrough": "was removed: the whole log is read; archive it into a table for queries of"
        " rare topics",
        "snapshot": NO_SNAPSHOT,
    }

    path: str | None = option(None, "path")
    """A store's directory, its ``commitlog`` or one of its files. The last part may have wildcards.
    It may be a URL (``file://``, ``s3://``, ``gs://``, …)."""
    paths: str | None = option(None, "paths")
    """Several paths of one broker, as a JSON array; ``load([…])`` sets it."""
    brokers: str | None = option(None, "brokers")
    """A JSON object from broker names to their paths, instead of `path`."""
    broker_name: str | None = option(None, "brokerName")
    """The name of the broker whose files these are. Without it the column is null."""
    batch_rows: int = option(10_000, "batch.rows", unit="rows", low=1, high=10_000_000)
    """Limit on rows of one Arrow batch."""
    batch_bytes: int = option(16 * _MIB, "batch.bytes", unit="bytes", low=1024, high=1 << 30)
    """Limit on bytes of log for one Arrow batch; one record may be larger."""

    subscribe: str | None = option(None, "subscribe")
    """Topics to read, separated by commas; all by default."""
    filter_tags: str | None = option(None, "filter.tags")
    """Tags to read, such as ``paid || sent``; all by default."""
    filter_keys: str | None = option(None, "filter.keys")
    """Keys to read, separated by commas: messages with at least one of them."""
    starting_offsets: str | None = option(None, "startingOffsets")
    """Where to start: ``earliest`` (the default of a batch), ``latest`` (the default of a stream)
    or physical offsets by broker, ``{"broker-a": 1073741824}``; -2 is earliest and -1 latest."""
    starting_timestamp: int | None = option(None, "startingTimestamp", unit="ms", low=0)
    """Start at the first record stored at or after this time. It takes precedence over
    `startingOffsets`."""
    ending_offsets: str | None = option(None, "endingOffsets")
    """Where a batch ends: ``latest``, or physical offsets as above, exclusive."""
    ending_timestamp: int | None = option(None, "endingTimestamp", unit="ms", low=0)
    """End a batch before the first record stored at or after this time."""
    max_bytes_per_trigger: int | None = option(None, "maxBytesPerTrigger", unit="bytes", low=1)
    """Limit on bytes of log of a micro-batch, over all brokers."""
    max_partition_bytes: int = option(
        128 * _MIB, "maxPartitionBytes", unit="bytes", low=1, high=1 << 40
    )
    """Limit on bytes of log that one task reads."""
    min_partitions: int | None = option(None, "minPartitions", low=1, high=1_000_000)
    """Minimum number of tasks, if there are enough bytes."""
    log_end: str = option("auto", "logEnd", choices=("auto", "log"))
    """How the end of the log is found. ``auto``: where the consume queues end, if the store has
    them, because a running broker writes queue entries after records. ``log``: by a scan of the
    records only."""
    fail_on_data_loss: bool = option(True, "failOnDataLoss")
    """Whether to fail if records to read were deleted, or to continue with the remaining ones."""
    bad_records: str = option("fail", "badRecords", choices=("fail", PERMISSIVE))
    """For bytes that are no valid record: fail, or return a row whose `record_valid` is false and
    continue with the next record."""
    validate: bool = option(False, "validate")
    """Whether there is a column ``record_valid``."""
    check_crc: bool = option(True, "checkCrc")
    """Whether the checksum of each body is checked."""
    decompress: bool = option(True, "decompress")
    """Whether compressed bodies are decompressed."""
    include_properties: bool = option(False, "includeProperties")
    """Whether there is a column ``properties``; it takes a third of the time."""

    def check(self) -> None:
        """Raise OptionError where options contradict each other."""
        given = [each for each in (self.path, self.paths, self.brokers) if each]
        if len(given) != 1:
            raise OptionError(f"expected exactly one of path, paths and brokers, met {len(given)}")
        if self.brokers and self.broker_name:
            raise OptionError("brokerName is for one broker, and brokers names each: leave it out")
        self.places()
        self.check_payload()
        if self.bad_records == PERMISSIVE and not self.validate:
            raise OptionError("badRecords=permissive needs validate=true, which shows bad rows")
        if self.validate and not self.check_crc:
            raise OptionError("validate=true compares checksums: leave checkCrc out")
        position_document(self.starting_offsets, "startingOffsets")
        if position_document(self.ending_offsets, "endingOffsets") == "earliest":
            raise OptionError("endingOffsets: met earliest, expected latest or physical offsets")

    @property
    def walks(self) -> bool:
        """Whether the log's end is found by its records alone."""
        return self.log_end == "log"

    def topics(self) -> frozenset[str]:
        """Return the topics to read, none for all."""
        return frozenset(names_of(self.subscribe))

    def places(self) -> dict[str | None, tuple[str, ...]]:
        """Return the paths by the names of their brokers; None for a broker without a name."""
        if self.brokers:
            return _broker_paths(self.brokers)
        paths = _json(self.paths, "paths") if self.paths else self.path or ""
        return {self.broker_name: _paths_of(paths, "paths")}


def _broker_paths(text: str) -> dict[str | None, tuple[str, ...]]:
    document = _json(text, "brokers")
    if not isinstance(document, dict) or not document:
        raise OptionError(f"brokers: expected an object of paths by broker, met {text}")
    return {name: _paths_of(value, f"brokers, {name}") for name, value in sorted(document.items())}


def _paths_of(value: Any, what: str) -> tuple[str, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) and p for p in paths):
        raise OptionError(f"{what}: expected a path or an array of paths, met {value!r}")
    return tuple(paths)


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}: expected JSON, met {text!r}: {error}") from None


def position_document(text: str | None, name: str) -> str | dict[str, int] | None:
    """Return what a text says of places in logs: ``earliest``, ``latest``, or one per broker.

    Raises:
        OptionError: it says neither.
    """
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    document = _json(text, name)
    if not isinstance(document, dict):
        raise OptionError(f"{name}: expected earliest, latest or an object, met {text}")
    return {broker: _place(value, f"{name}, {broker}") for broker, value in document.items()}


def _place(value: Any, what: str) -> int:
    if isinstance(value, Mapping) and set(value) == {"phy"}:
        value = value["phy"]
    if isinstance(value, bool) or not isinstance(value, int) or value < -2:
        raise OptionError(f"{what}: expected a physical offset, -1 or -2, met {value!r}")
    return value
