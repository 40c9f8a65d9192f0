"""Record batches: what stands in them, their schema, and how large they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import (
    CRC_MASK,
    MAGIC_BLANK,
    RecordError,
    encode_record,
    record_size,
)
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.errors import BadRecordError
from cometmq.spark.schema import (
    CORE,
    PROPERTIES,
    Column,
    arrow_schema,
    chosen,
    log_columns,
    topic_columns,
)
from golden.recordings import VECTORS
from support.spark.generated_records import logs, messages_of, plain_log, row_of
from support.wire.recorded import unpack_store

EVERYTHING = log_columns(properties=True, validate=True)
STORES = sorted(path.stem for path in (VECTORS / "stores").glob("*.json"))


def rows_of(batches: Any) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def expected_rows(data: bytes, **how: Any) -> list[dict[str, Any]]:
    return [row_of(message, "broker-a") for message in messages_of(data, **how)]


# --- what stands in them -------------------------------------------------------------------------


@given(logs(), st.booleans(), st.integers(1, 5))
def test_rows_are_what_the_decoder_of_messages_says(
    data: bytes, decompress: bool, max_rows: int
) -> None:
    decoder = RecordDecoder(
        topic_columns(properties=True) + EVERYTHING[-3:-1],
        broker_name="broker-a",
        decompress=decompress,
        max_rows=max_rows,
    )
    sound = sound_part(data, decompress)
    rows = rows_of(decoder.batches(sound, 0, len(sound)))
    assert rows == expected_rows(sound, decompress=decompress)


def sound_part(data: bytes, decompress: bool) -> bytes:
    """The records up to the first one that cannot be decompressed."""
    at = 0
    while at < len(data):
        end = at + record_size(data, at)
        try:
            messages_of(data[at:end], decompress=decompress)
        except RecordError:
            break
        at = end
    return data[:at]


@pytest.mark.parametrize("name", STORES)
def test_logs_of_real_brokers_read_as_recorded(name: str, tmp_path: Path) -> None:
    decoder = RecordDecoder(EVERYTHING, broker_name="broker-a", crc=True, max_rows=100)
    met = {}
    for path in sorted((unpack_store(name, tmp_path) / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        batches = list(decoder.batches(data, 0, len(data), log_base=base))
        assert all(batch.num_rows <= 100 for batch in batches)
        for row in rows_of(batches):
            assert row.pop("record_valid") is True
            at = row["phy_offset"] - base
            assert row == row_of(messages_of(data[at : at + row["store_size"]])[0], "broker-a")
            met[row["phy_offset"]] = row
    recorded = json.loads((VECTORS / "stores" / f"{name}.json").read_text())["messages"]
    assert len(recorded) > 50
    assert {row["physical_offset"]: row["topic"] for row in recorded} == {
        place: row["topic"] for place, row in met.items()
    }


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (b"TAGS\x01a\x02KEYS\x01k1 k2\x02", [("TAGS", "a"), ("KEYS", "k1 k2")]),
        (b"TAGS\x01a\x02KEYS\x01k1 k2", [("TAGS", "a"), ("KEYS", "k1 k2")]),
        (b"KEYS\x01k\x02TAGS\x01a\x02KEYS\x01k1 k2", [("KEYS", "k1 k2"), ("TAGS", "a")]),
        (
            b"TAGS\x01a\x02TAGS\x01\x02KEYS\x01k1 k2\x02\x01x\x02y",
            [("TAGS", "a"), ("KEYS", "k1 k2")],
        ),
    ],
)
def test_properties_count_as_they_do_for_consumers(
    properties: bytes, found: list[tuple[str, str]]
) -> None:
    (row,) = rows_of(
        RecordDecoder(topic_columns(properties=True), broker_name=None).batches(
            record(properties=properties), 0, 1
        )
    )
    assert (row["properties"], row["tags"], row["keys"]) == (found, "a", "k1 k2")


def test_what_is_missing_is_null_and_an_id_is_there_always() -> None:
    (row,) = rows_of(RecordDecoder(CORE, broker_name=None).batches(record(), 0, 1))
    assert (row["tags"], row["keys"], row["broker_name"]) == (None, None, None)
    assert row["msg_id"] == row["offset_msg_id"] == "0A00000100002A9F000000000000002A"


def test_broken_text_becomes_replacement_characters() -> None:
    data = record(topic=b"t\xff", properties=b"TAGS\x01\xe4\xb8\x02a\xc3\x01b\x02")
    (row,) = rows_of(RecordDecoder(EVERYTHING, broker_name="b").batches(data, 0, 1))
    assert (row["topic"], row["tags"]) == ("t\ufffd", "\ufffd")
    assert row["properties"] == [("TAGS", "\ufffd"), ("a\ufffd", "b")]


def test_times_too_far_away_for_arrow_are_the_last_ones() -> None:
    data = record(born_time_ms=2**63 - 1, store_time_ms=-(2**63))
    ((batch,),) = [list(RecordDecoder(CORE, broker_name=None).batches(data, 0, 1))]
    far = (2**63 - 1) // 1000 * 1000
    times = ("born_timestamp", "store_timestamp")
    assert [batch.column(name).cast(pa.int64())[0].as_py() for name in times] == [far, -far]


def record(topic: bytes = b"orders", properties: bytes = b"", **more: Any) -> bytes:
    values: dict[str, Any] = {
        "queue_id": 1,
        "queue_offset": 2,
        "log_offset": 42,
        "born_time_ms": 3,
        "born_host": bytes(8),
        "store_time_ms": 4,
        "store_host": bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big"),
    }
    return encode_record(topic, b"", properties, **(values | more))


# --- schema --------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", EVERYTHING, ids=lambda column: column.name)
def test_each_column_alone_is_as_among_all(column: Column) -> None:
    data = plain_log(20) + record(properties=b"a\x01b\x02")
    every = next(RecordDecoder(EVERYTHING, broker_name="broker-a").batches(data, 0, len(data)))
    alone = next(RecordDecoder([column], broker_name="broker-a").batches(data, 0, len(data)))
    assert alone.schema == arrow_schema([column])
    assert alone.column(0) == every.column(column.name)


@pytest.mark.parametrize("name", ["broker-a", "ü", "", None])
def test_each_row_has_the_broker_s_name(name: str | None) -> None:
    decoder = RecordDecoder(CORE[:2], broker_name=name)
    for count in (3, 1, 0, 9):
        decoded = decoder.batch(plain_log(count), 0, 1 << 20)
        decoded.batch.validate(full=True)
        assert decoded.batch.column("broker_name").to_pylist() == [name] * count


def test_decoding_loads_no_pandas() -> None:
    """It would take a quarter of a second of every worker that starts."""
    program = (
        "import sys; from cometmq.spark.batches import RecordDecoder\n"
        "from cometmq.spark.schema import log_columns\n"
        "columns = log_columns(properties=True, validate=True)\n"
        "rows = RecordDecoder(columns, broker_name='b').batch(sys.stdin.buffer.read(), 0, 1)\n"
        "print(rows.batch.num_rows, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=plain_log(1), capture_output=True, timeout=60
    )
    assert done.stdout.decode().split() == ["1", "False"], done.stderr.decode()


def test_columns_come_in_the_order_they_are_asked_for() -> None:
    asked = chosen(EVERYTHING, ["properties", "body", "topic"])
    decoder = RecordDecoder(asked, broker_name=None)
    decoded = decoder.batch(plain_log(1), 0, 1)
    assert decoded.batch.schema == decoder.schema == arrow_schema(asked)
    assert decoded.batch.to_pylist()[0]["topic"] == "orders"


def test_batches_without_rows_have_the_schema_too() -> None:
    for columns in (EVERYTHING, CORE, (PROPERTIES,)):
        decoded = RecordDecoder(columns, broker_name="b").batch(b"", 0, 0)
        assert (decoded.batch.num_rows, decoded.batch.schema) == (0, arrow_schema(columns))
        decoded.batch.validate(full=True)
        assert decoded[1:] == (0, Ending.END, None)


# --- sizes ---------------------------------------------------------------------------------------


def test_batches_are_bounded_by_rows() -> None:
    data = plain_log(1001)
    batches = list(RecordDecoder(CORE, broker_name="b", max_rows=250).batches(data, 0, len(data)))
    assert [batch.num_rows for batch in batches] == [250, 250, 250, 250, 1]


def test_batches_are_bounded_by_bytes() -> None:
    data = plain_log(100, body=bytes(10_000))
    decoder = RecordDecoder(CORE, broker_name="b", max_bytes=55_000)
    batches = list(decoder.batches(data, 0, len(data)))
    assert [batch.num_rows for batch in batches] == [5] * 20
    assert all(batch.nbytes < 60_000 for batch in batches)


def test_buffers_of_a_batch_are_as_large_as_its_rows_need() -> None:
    data = plain_log(8, body=bytes(100_000))
    batch = next(RecordDecoder(EVERYTHING, broker_name="b", max_rows=2).batches(data, 0, len(data)))
    assert batch.get_total_buffer_size() < 205_000


def test_batches_outlive_the_data_and_the_decoder() -> None:
    data = bytearray(plain_log(50))
    decoder = RecordDecoder(CORE, broker_name="b")
    batch = next(decoder.batches(data, 0, len(data)))
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    decoder.batch(plain_log(9, body=b"other"), 0, 1 << 20)
    del decoder
    assert batch.to_pylist() == before == expected_rows_of_plain(50)


def expected_rows_of_plain(count: int) -> list[dict[str, Any]]:
    names = [column.name for column in CORE]
    rows = [row_of(message, "b") for message in messages_of(plain_log(count))]
    return [{name: row[name] for name in names} for row in rows]


# --- endings -------------------------------------------------------------------------------------


def test_all_rows_before_damage_are_yielded() -> None:
    data = plain_log(25) + b"\xff" * 200
    batches = RecordDecoder(CORE, broker_name="b", max_rows=10).batches(data, 0, len(data))
    assert rows_of(next(batches) for _ in range(3)) == expected_rows_of_plain(25)
    with pytest.raises(BadRecordError, match=rf"at byte {len(data) - 200}: magic ffffffff"):
        next(batches)


@pytest.mark.parametrize(
    "tail",
    [bytes(300), plain_log(1)[:-1], b"\0\0\0\x08" + MAGIC_BLANK.to_bytes(4, "big", signed=True)],
    ids=["zeros", "torn", "blank"],
)
def test_an_ordinary_end_of_a_log_is_no_error(tail: bytes) -> None:
    data = plain_log(25) + tail
    decoder = RecordDecoder(CORE, broker_name="b", max_rows=10)
    assert rows_of(decoder.batches(data, 0, len(data))) == expected_rows_of_plain(25)


def test_a_batch_that_ends_for_a_problem_says_which() -> None:
    data = plain_log(2) + b"\xff" * 200
    decoded = RecordDecoder(CORE, broker_name="b").batch(data, 0, len(data))
    assert (decoded.batch.num_rows, decoded.position) == (2, len(data) - 200)
    assert (decoded.ending, decoded.problem) == (
        Ending.BAD,
        f"magic ffffffff at {len(data) - 200}, expected a record",
    )


# --- batches that are one record ------------------------------------------------------------------


def wrapped_log() -> tuple[bytes, int, int]:
    """A record, a batch of three messages as one record, and a record; where the batch is."""
    hosts = {"born_host": b"\x7f\0\0\1\0\0\0\1", "store_host": b"\x7f\0\0\1\0\0\0\2"}
    times = {"born_time_ms": 1, "store_time_ms": 2}
    items = [
        BatchItem(7 + number, b"inner-%d" % number, encode_properties({"TAGS": f"t{number}"}))
        for number in range(3)
    ]
    first = encode_record(
        b"T", b"first", b"", queue_id=0, queue_offset=4, log_offset=0, **times, **hosts
    )
    batch = encode_record(
        *(b"T", encode_batch(items), encode_properties({"UNIQ_KEY": "B", "INNER_NUM": "3"})),
        **{"queue_id": 0, "queue_offset": 5, "log_offset": len(first), "sys_flag": 0xC0},
        **times,
        **hosts,
    )
    at = len(first) + len(batch)
    last = encode_record(
        b"T", b"last", b"", queue_id=0, queue_offset=8, log_offset=at, **times, **hosts
    )
    return first + batch + last, len(first), len(batch)


def test_a_batch_that_is_one_record_has_a_row_for_each_message() -> None:
    data, at, size = wrapped_log()
    decoder = RecordDecoder(EVERYTHING, broker_name="broker-a", crc=True, max_rows=2)
    rows = rows_of(decoder.batches(data, 0, len(data), log_base=0))
    names = ("queue_offset", "body", "tags", "flag", "sys_flag", "phy_offset", "store_size")
    last = len(data) - at - size
    assert [tuple(row[name] for name in names) for row in rows] == [
        (4, b"first", None, 0, 0, 0, at),
        (5, b"inner-0", "t0", 7, 0, at, size),
        (6, b"inner-1", "t1", 8, 0, at, size),
        (7, b"inner-2", "t2", 9, 0, at, size),
        (8, b"last", None, 0, 0, at + size, last),
    ]
    assert all(row["record_valid"] for row in rows)
    assert [row["body_crc"] for row in rows[1:4]] == [
        crc32(row["body"]) & CRC_MASK for row in rows[1:4]
    ]


@pytest.mark.parametrize(
    ("first", "end", "expected"), [(6, 8, [6, 7]), (0, 6, [4, 5]), (-1, -1, [4, 5, 6, 7, 8])]
)
def test_the_range_of_queue_offsets_may_end_inside_a_batch(
    first: int, end: int, expected: list[int]
) -> None:
    data, _, _ = wrapped_log()
    decoder = RecordDecoder(chosen(CORE, ["queue_offset"]), broker_name=None)
    found = rows_of(decoder.batches(data, 0, len(data), first_offset=first, end_offset=end))
    assert [row["queue_offset"] for row in found] == expected
    other = decoder.batches(data, 0, len(data), topics=frozenset({b"other"}))
    assert rows_of(other) == []


@pytest.mark.parametrize("changed", [4, 60])
def test_a_batch_whose_body_is_damaged_is_a_bad_record(changed: int) -> None:
    data, at, _ = wrapped_log()
    damaged = bytearray(data)
    damaged[at + 88 + changed] ^= 0x7F  # in the body: a number that is not read, a size of an item
    decoder = RecordDecoder(chosen(CORE, ["body"]), broker_name=None, crc=True)
    with pytest.raises(BadRecordError, match=f"at byte {at}: a body with checksum"):
        list(decoder.batches(damaged, 0, len(damaged)))
