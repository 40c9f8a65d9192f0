"""The rows of one part of a log: a task of the format ``rocketmq-log``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.compat import exempt_loaded_modules
from cometmq.spark.errors import DataLossError, OptionError
from cometmq.spark.logs import Damage, Reading, read_range
from cometmq.spark.options.logs import PERMISSIVE, LogOptions
from cometmq.spark.payloads.plan import PayloadPlan, PayloadRows
from cometmq.spark.schema import RECORD_VALID, Column, arrow_schema
from cometmq.spark.sources.log.parts import Conditions, LogPart
from cometmq.spark.sources.losses import Losses

_INT_MAX = 2**31 - 1


class PartReader:
    """Reads parts of logs into batches of the asked columns.

    Args:
        options, columns, payload: as `LogReader` has them.
        conditions: which records are rows.

    Raises:
        OptionError: damage has rows, and they would not show it.
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
        self._conditions = conditions
        self._permissive = options.bad_records == PERMISSIVE
        if self._permissive and RECORD_VALID.name not in {column.name for column in columns}:
            raise OptionError(f"badRecords=permissive needs the column {RECORD_VALID.name}")

    def read(self, part: LogPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; the same rows in the same order at every call.

        Raises:
            BadRecordError: what should be a record is none, and that is an error.
            DataLossError: a file is gone, or the log was rewritten, and that is an error.
        """
        exempt_loaded_modules()
        decoder = RecordDecoder(
            self._conditions.filter.with_needed(self._payload.needed),
            broker_name=part.log.broker,
            decompress=self._options.decompress,
            crc=self._options.check_crc,
            permissive=self._permissive,
            max_rows=self._options.batch_rows,
            max_bytes=self._options.batch_bytes,
        )
        damage: list[Damage] = []
        topics = self._conditions.topic_bytes()
        reading = Reading(decoder, topics, permissive=self._permissive, damage=damage)
        try:
            for batch in read_range(part.log, part.range, reading):
                yield from self._damage(part, damage)
                kept = self._conditions.filter.kept(batch)
                if kept.num_rows:
                    yield self._payload.complete(kept)
            yield from self._damage(part, damage)
        except DataLossError as error:
            Losses(fail=self._options.fail_on_data_loss).report(str(error))

    def _damage(self, part: LogPart, damage: list[Damage]) -> Iterator[pa.RecordBatch]:
        """Yield rows for what was passed over since the last call."""
        if damage:
            rows = damage_rows(self._payload.needed, damage, part.log.broker)
            yield self._payload.complete(rows)
            damage.clear()


def damage_rows(
    columns: Sequence[Column], damage: Sequence[Damage], broker: str | None
) -> pa.RecordBatch:
    """Return one row for each piece of a log that is no record.

    ``phy_offset`` and ``store_size`` say where it is, ``record_valid`` is false. Other columns are
    null, or empty, -1 and the year 1970 where they cannot be null.
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
