"""The conditions on tags and keys that decide which messages are rows.

Brokers and consume queues compare hashes of tags only, so tags are compared again with the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.spark.errors import OptionError
from cometmq.spark.schema import CORE, Column


class RowFilter(NamedTuple):
    """The tags and keys of which a row has one."""

    tags: frozenset[str]
    """Empty for all rows."""
    keys: str | None
    """A regular expression for the column ``keys``, None for all rows."""

    @classmethod
    def of(cls, tags: Iterable[str], filter_keys: str | None) -> RowFilter:
        """Return the filter of some tags and of the option ``filter.keys``.

        Raises:
            OptionError: the option has no key.
        """
        if filter_keys is None:
            return cls(frozenset(tags), None)
        keys = [re.escape(part.strip()) for part in filter_keys.split(",") if part.strip()]
        if not keys:
            raise OptionError(
                f"option filter.keys={filter_keys}: expected keys with commas between"
            )
        return cls(frozenset(tags), rf"(^| )({'|'.join(keys)})( |$)")

    def with_needed(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return columns, and behind them the ones that the filter needs as well."""
        asked = tuple(columns)
        needed = {"tags": bool(self.tags), "keys": self.keys is not None}
        for column in asked:
            needed.pop(column.name, None)
        return asked + tuple(column for column in CORE if needed.get(column.name))

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have one of the tags, and one of the keys."""
        if self.tags:
            tags = pa.array(sorted(self.tags), pa.string())
            batch = batch.filter(pc.is_in(batch.column("tags"), value_set=tags))
        if self.keys is not None:
            batch = batch.filter(pc.match_substring_regex(batch.column("keys"), self.keys))
        return batch
