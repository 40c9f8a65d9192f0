"""Rows are sorted and divided into files; properties move with their rows."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.archive.data_files import (
    _HAS_FILTERS,
    COLUMNS,
    Form,
    _ends,
    _taken,
    parts_of,
    write_files,
)
from cometmq.spark.archive.tables import _create_file
from cometmq.spark.errors import SourceError
from cometmq.spark.schema import arrow_schema

PROPERTIES = st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=4)
SCHEMA = arrow_schema(COLUMNS)


def rows(count: int, **facts: Any) -> list[dict[str, Any]]:
    common = {"topic": "t", "store_timestamp": 0, "body_crc": 0, "properties": [], **facts}
    return [
        {**common, "queue_id": 0, "queue_offset": number, "msg_id": f"{number:032X}"}
        for number in range(count)
    ]


def test_a_table_of_no_rows_has_no_parts() -> None:
    assert parts_of(pa.Table.from_batches([], schema=SCHEMA)) == []


@given(st.lists(PROPERTIES, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_properties_move_with_their_rows(properties: list[Any], chance: Random) -> None:
    made = rows(len(properties))
    for row, pairs in zip(made, properties, strict=True):
        row |= {"queue_id": chance.randrange(4), "properties": pairs}
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(each, schema=SCHEMA) for each in (made[:7], made[7:])]
    )
    (part,) = parts_of(table)
    part.rows.validate(full=True)
    expected = sorted(made, key=lambda row: (row["queue_id"], row["queue_offset"]))
    assert part.rows["properties"].to_pylist() == [row["properties"] for row in expected]


def test_properties_in_several_chunks_all_move() -> None:
    made = [{"properties": [(name, "v")]} for name in "abc"]
    schema = pa.schema([SCHEMA.field("properties")])
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist([row], schema=schema) for row in made]
    )
    moved = _taken(table, np.array([2, 0, 1]))
    moved.validate(full=True)
    assert moved.to_pylist() == [made[2], made[0], made[1]]


def test_offsets_of_a_topic_that_was_created_again_are_sorted() -> None:
    made = [*rows(5), *rows(5)]
    (part,) = parts_of(pa.Table.from_pylist(made, schema=SCHEMA))
    assert part.rows["queue_offset"].to_pylist() == sorted([*range(5), *range(5)])


def test_more_text_than_a_column_holds_is_an_error() -> None:
    """Its ends are 32-bit numbers, which would become negative."""
    assert _ends(np.array([1 << 30, (1 << 30) - 1])).tolist() == [0, 1 << 30, (1 << 31) - 1]
    with pytest.raises(
        SourceError, match=r"met 2147483648, expected at most 2147483647.*range_bytes"
    ):
        _ends(np.array([1 << 30, 1 << 30], np.int32))


def written(folder: Path, form: Form) -> Path:
    table = pa.Table.from_pylist(rows(2_000), schema=SCHEMA)
    (file,) = write_files(table, lambda name: _create_file(str(folder), name), form)
    assert file.bytes == (folder / file.name).stat().st_size
    return folder / file.name


@pytest.mark.skipif(not _HAS_FILTERS, reason="this PyArrow writes no filters")
def test_files_have_a_filter_for_ids(tmp_path: Path) -> None:
    """Larger by it, for a reader to skip row groups that cannot have an id."""
    plain, filtered = (written(tmp_path, Form(bloom=bloom)) for bloom in (False, True))
    assert filtered.stat().st_size > plain.stat().st_size
    assert pq.ParquetFile(plain).read() == pq.ParquetFile(filtered).read()


def test_files_have_the_codec_and_the_row_groups_that_are_set(tmp_path: Path) -> None:
    facts = pq.ParquetFile(written(tmp_path, Form("snappy", 1_000))).metadata
    assert facts.num_row_groups == 2
    assert facts.row_group(0).column(0).compression == "SNAPPY"
    sorting = facts.row_group(0).sorting_columns
    assert [facts.schema.column(each.column_index).name for each in sorting] == [
        "queue_id",
        "queue_offset",
    ]
