"""The rows of one part of a log: a task of the format ``rocketmq-log``.

    part := bytes of the log [, units that lead to the records in them]

A part carries all it needs, the files included, for Spark reads it with another object than the
one that planned it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model.errors import CometError
from cometmq.protocol.subscription import TagExpression, parse_tag_expression
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.errors import BadRecordError, DataLossError, OptionError
from cometmq.spark.logs import ByteRange, Damage, LogPlace, Reading, read_range
from cometmq.spark.logs.lookup import UnitRange, gathered
from cometmq.spark.logs.resync import start_of
from cometmq.spark.options.logs import PERMISSIVE, LogOptions
from cometmq.spark.payloads.plan import PayloadPlan, PayloadRows
from cometmq.spark.schema import CORE, RECORD_VALID, Column, arrow_schema
from cometmq.spark.sources.losses import Losses

_BY_NAME = {column.name: column for column in CORE}
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class LogPart:
    """What one task reads of one log."""

    place: LogPlace
    """With the files of this part alone."""
    range: ByteRange
    units: tuple[UnitRange, ...] | None = None
    """Where to look records up, None to walk over the bytes."""


@dataclass(frozen=True)
class Conditions:
    """Which records are rows; all conditions hold together."""

    topics: frozenset[str] = frozenset()
    """Any of these; none for all."""
    tags: TagExpression = field(default_factory=lambda: parse_tag_expression(None))
    keys_pattern: str | None = None
    """What the column ``keys`` matches."""

    @classmethod
    def of(cls, options: LogOptions) -> Conditions:
        """Read the options that choose.

        Raises:
            OptionError: an expression of tags or keys is none.
        """
        try:
            tags = parse_tag_expression(options.filter_tags)
        except CometError as error:
            raise OptionError(f"option filter.tags: {error}") from None
        return cls(options.topics(), tags, _keys_pattern(options.filter_keys))

    def columns(self) -> list[Column]:
        """Return the columns that the conditions are about, topics left out."""
        needed = {"tags": not self.tags.selects_all, "keys": self.keys_pattern is not None}
        return [_BY_NAME[name] for name, used in needed.items() if used]

    def topic_bytes(self) -> frozenset[bytes] | None:
        """Return the topics as records have them, None for all."""
        return frozenset(topic.encode() for topic in self.topics) if self.topics else None

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that fulfil the conditions on tags and keys."""
        if not self.tags.selects_all:
            tags = pa.array(sorted(self.tags.tags), pa.string())
            batch = batch.filter(pc.is_in(batch.column("tags"), value_set=tags))
        if self.keys_pattern is not None:
            keys = batch.column("keys")
            batch = batch.filter(pc.match_substring_regex(keys, self.keys_pattern))
        return batch


def _keys_pattern(text: str | None) -> str | None:
    if text is None:
        return None
    keys = [part.strip() for part in text.split(",") if part.strip()]
    if not keys:
        raise OptionError(f"option filter.keys={text}: expected keys with commas between")
    return rf"(^| )({'|'.join(re.escape(key) for key in keys)})( |$)"


class PartReader:
    """Reads parts of logs into batches of the asked columns.

    Args:
        options: of the query.
        columns: of the batches, in their order.
        conditions: which records are rows.
        payload: decodes bodies, if the query does.
    """

    def __init__(
        self,
        options: LogOptions,
        columns: Sequence[Column],
        conditions: Conditions,
        payload: PayloadPlan | None = None,
    ) -> None:
        self._options = options
        self._payload = PayloadRows(columns, payload)
        self._columns = self._payload.needed
        self._conditions = conditions
        self._permissive = options.bad_records == PERMISSIVE
        names = {column.name for column in columns}
        if self._permissive and RECORD_VALID.name not in names:
            raise OptionError(f"badRecords=permissive needs the column {RECORD_VALID.name}")
        added = [column for column in conditions.columns() if column.name not in names]
        self._decoded = (*self._columns, *added)

    def read(self, part: LogPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; the same rows in the same order at every call.

        Raises:
            BadRecordError: what should be a record is none, and that is an error.
            DataLossError: a file is gone, or the log was written anew, and that is an error.
        """
        decoder = RecordDecoder(
            self._decoded,
            broker_name=part.place.broker,
            decompress=self._options.decompress,
            crc=self._options.check_crc,
            permissive=self._permissive,
            max_rows=self._options.batch_rows,
            max_bytes=self._options.batch_bytes,
        )
        rows = self._walked if part.units is None else self._looked_up
        try:
            for batch in rows(part, decoder):
                if batch.num_rows:
                    yield batch
        except DataLossError as error:
            Losses(fail=self._options.fail_on_data_loss).report(str(error))

    def _walked(self, part: LogPart, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
        reading = Reading(
            decoder,
            topics=self._conditions.topic_bytes(),
            permissive=self._permissive,
        )
        for batch in read_range(part.place, part.range, reading):
            yield from self._damage(part, reading.damage)
            yield self._asked(batch)
        yield from self._damage(part, reading.damage)

    def _looked_up(self, part: LogPart, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
        tags = self._conditions.tags
        codes = None if tags.selects_all else tags.codes
        damage: list[Damage] | None = [] if self._permissive else None
        for units in part.units or ():
            for data in gathered(part.place, units, codes, damage):
                for batch in _decoded(decoder, data, units):
                    yield self._asked(batch)
        yield from self._damage(part, damage)

    def _asked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._payload.complete(self._conditions.kept(batch))

    def _damage(self, part: LogPart, damage: list[Damage] | None) -> Iterator[pa.RecordBatch]:
        """Yield rows for what was passed over since the last call."""
        if damage:
            yield self._payload.complete(damage_rows(self._columns, damage, part.place.broker))
            damage.clear()


def _decoded(decoder: RecordDecoder, data: bytearray, units: UnitRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches of records that stand back to back, and were in a log elsewhere."""
    position, ending = 0, Ending.FULL
    while ending is Ending.FULL:
        batch, position, ending, problem = decoder.batch(data, position, len(data))
        yield batch
    if ending is not Ending.END:
        log_offset, _ = start_of(memoryview(data)[position:])
        raise BadRecordError(f"{units}: met {problem} at log offset {log_offset}")


def damage_rows(
    columns: Sequence[Column], damage: Sequence[Damage], broker: str | None
) -> pa.RecordBatch:
    """Return one row for each piece of a log that is no record.

    ``phy_offset`` and ``store_size`` say where it is, ``record_valid`` is false; other columns are
    null, or empty, -1 and the year 1970 where they cannot be.
    """
    known = {
        "broker_name": [broker] * len(damage),
        "phy_offset": [each.range.start for each in damage],
        "store_size": [min(each.range.size, _INT_MAX) for each in damage],
        RECORD_VALID.name: [False] * len(damage),
    }
    arrays = []
    for column in columns:
        values = known.get(column.name) or [_nothing(column)] * len(damage)
        arrays.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _nothing(column: Column) -> object:
    if column.nullable:
        return None
    if pa.types.is_timestamp(column.type):
        return 0
    if pa.types.is_integer(column.type):
        return -1
    return [] if pa.types.is_map(column.type) else False if column.type == pa.bool_() else ""
