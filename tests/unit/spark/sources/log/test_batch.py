"""Batches of log files: damage is an error or a row, and memory is bounded by the options."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.flags import SysFlag
from cometmq.protocol.compression import compress_body
from cometmq.protocol.record import encode_record
from cometmq.spark.errors import BadRecordError
from cometmq.spark.sources.log.batch import LogBatchReader
from support.spark.log_files import FilledStore, log_reader, read_all, rows_at, without_queues
from support.stores.small_stores import LOG_FILE_BYTES, PRODUCER, put
from support.stores.sparse_log import make_sparse_log

PERMISSIVE = {"badRecords": "permissive", "validate": True}


@pytest.fixture
def filled(tmp_path: Path) -> FilledStore:
    store = FilledStore(tmp_path / "store")
    store.fill(200)
    yield store
    store.close()


def outcome(reader: LogBatchReader) -> list[tuple[int, int, bool]]:
    table = read_all(reader)
    names = ("phy_offset", "store_size", "record_valid")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def good(store: FilledStore, *without: int) -> list[tuple[int, int, bool]]:
    return [
        (record.log_offset, record.size_bytes, True)
        for number, record in enumerate(store.records)
        if number not in without
    ]


def test_a_wrong_checksum_is_an_error_that_says_where(filled: FilledStore) -> None:
    bad = filled.records[90]
    filled.write(bad.log_offset + 95, b"\0\0\0")
    with pytest.raises(BadRecordError) as met:
        read_all(log_reader(filled.root))
    text = str(met.value)
    assert f"log offset {bad.log_offset}" in text
    assert f"byte {bad.log_offset % LOG_FILE_BYTES} of {filled.segment(1)}" in text
    assert "checksum" in text
    assert rows_at(log_reader(filled.root, checkCrc=False)) == filled.offsets


def test_a_wrong_checksum_is_a_row_if_permitted(filled: FilledStore) -> None:
    bad = filled.records[90]
    filled.write(bad.log_offset + 95, b"\0\0\0")
    expected = sorted([*good(filled, 90), (bad.log_offset, bad.size_bytes, False)])
    assert outcome(log_reader(filled.root, **PERMISSIVE)) == expected


@pytest.mark.parametrize(
    "damage",
    [b"\xff" * 8, b"\0" * 8, b"\0\0\0\x05\xda\xa3\x20\xa7", b"\x7f\xff\xff\xff\xda\xa3\x20\xa7"],
)
def test_a_wrong_length_is_passed_over_if_permitted(filled: FilledStore, damage: bytes) -> None:
    bad, after = filled.records[90:92]
    assert after.log_offset == bad.log_offset + bad.size_bytes, "no filler between"
    filled.write(bad.log_offset, damage)
    with pytest.raises(BadRecordError, match=f"log offset {bad.log_offset}"):
        read_all(log_reader(filled.root))
    expected = sorted([*good(filled, 90), (bad.log_offset, bad.size_bytes, False)])
    assert outcome(log_reader(filled.root, **PERMISSIVE)) == expected
    # Wherever the cuts are, somebody meets the damage, and one only.
    for most in (150, 201, 1000):
        assert outcome(log_reader(filled.root, maxPartitionBytes=most, **PERMISSIVE)) == expected
        with pytest.raises(BadRecordError):
            read_all(log_reader(filled.root, maxPartitionBytes=most))


def test_a_damaged_begin_of_a_file_is_passed_over_if_permitted(filled: FilledStore) -> None:
    filled.write(LOG_FILE_BYTES, b"\xff" * 40)
    number = filled.offsets.index(LOG_FILE_BYTES)
    bad = filled.records[number]
    with pytest.raises(BadRecordError, match=f"log offset {LOG_FILE_BYTES}"):
        read_all(log_reader(filled.root))
    expected = sorted([*good(filled, number), (bad.log_offset, bad.size_bytes, False)])
    assert outcome(log_reader(filled.root, **PERMISSIVE)) == expected


def test_rows_of_damage_have_nothing_but_their_place(filled: FilledStore) -> None:
    bad = filled.records[90]
    filled.write(bad.log_offset, b"\xff" * 8)
    reader = log_reader(filled.root, includeProperties=True, brokerName="b", **PERMISSIVE)
    row = next(row for row in read_all(reader).to_pylist() if not row["record_valid"])
    known = {"phy_offset", "store_size", "record_valid", "broker_name"}
    assert row["broker_name"] == "b"
    rest = {name: value for name, value in row.items() if name not in known and value is not None}
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rest == {"topic": "", "queue_id": -1, "queue_offset": -1, "store_timestamp": epoch}


def test_the_end_is_found_behind_neighbours_that_are_damaged(tmp_path: Path) -> None:
    """The queues lead to a damaged record, so the end is looked for in the log itself."""
    store = FilledStore(tmp_path / "store")
    store.fill(30)
    hurt, lengths_at, body_at = (19, 20, 29), 84, 92
    for number, at in zip(hurt, (lengths_at, body_at, lengths_at), strict=True):
        store.write(store.records[number].log_offset + at, b"\x7f\xff")
    rows = outcome(log_reader(store.root, **PERMISSIVE))
    assert set(good(store, *hurt)) <= set(rows)
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_costs_no_other_record(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = FilledStore(tmp_path / "store")
    store.fill(150, body_bytes=60)
    hurt = set(chance.sample(range(150), 12))
    for number in hurt:
        record = store.records[number]
        size = chance.randint(1, record.size_bytes)
        start = chance.randint(0, record.size_bytes - size)
        store.write(record.log_offset + start, chance.randbytes(size))
    for most in (1 << 30, chance.randint(60, 5000)):
        rows = outcome(log_reader(store.root, maxPartitionBytes=most, **PERMISSIVE))
        assert set(good(store, *hurt)) <= set(rows)
    store.close()


def test_a_body_that_looks_like_a_record_is_none_when_walked_over(tmp_path: Path) -> None:
    store = FilledStore(tmp_path / "store")
    store.fill(3)
    inner = store.segment(0).read_bytes()[: store.offsets[1]]
    store.records.append(put(store.store, b"before" + inner + b"after"))
    store.fill(3)
    copy = without_queues(store.root, tmp_path / "copy")
    for most in (1 << 30, 50, 111):
        for place in (store.root, copy):
            assert rows_at(log_reader(place, maxPartitionBytes=most)) == store.offsets
    store.close()


def test_a_body_made_to_look_like_the_next_record_is_never_a_row(tmp_path: Path) -> None:
    """It says the right place, so it can be told only by who comes from the record around it."""
    store = FilledStore(tmp_path / "store")
    store.fill(3, queues=1)
    inside = b"x" * 500
    head_bytes = 88
    fake = encode_record(
        b"orders",
        b"fake",
        b"",
        queue_id=0,
        queue_offset=9,
        born_time_ms=1,
        born_host=PRODUCER,
        store_time_ms=1,
        store_host=PRODUCER,
        log_offset=store.end + head_bytes + len(inside),
    )
    store.records.append(put(store.store, inside + fake + inside))
    store.fill(3, queues=1)
    copy = without_queues(store.root, tmp_path / "copy")
    sizes = range(50, 1200, 50)
    for most in sizes:
        assert rows_at(log_reader(store.root, maxPartitionBytes=most)) == store.offsets
    outcomes = [rows_or_error(log_reader(copy, maxPartitionBytes=most)) for most in sizes]
    assert "inside a body" in outcomes, "some cut is before the fake"
    assert all(each in (store.offsets, "inside a body") for each in outcomes)
    assert rows_at(log_reader(copy, maxPartitionBytes=LOG_FILE_BYTES)) == store.offsets
    store.close()


def rows_or_error(reader: LogBatchReader) -> Any:
    try:
        return rows_at(reader)
    except BadRecordError as error:
        return "inside a body" if "inside a body" in str(error) else error


TESTS = Path(__file__).resolve().parents[3]
MIB = 1 << 20
FILE_BYTES = 64 * MIB
LOG_BYTES = 4 * FILE_BYTES
PROGRAM = """
import json, sys
from pathlib import Path
from support.spark.log_files import log_reader

def peak():  # of this program alone; getrusage would begin with what its parent has
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def read(path, **options):
    reader = log_reader(path, logEnd="log", **options)
    return sum(b.num_rows for part in reader.partitions() for b in reader.read(part))

read(sys.argv[2])  # a short log, for what every reading needs
before = peak()
rows = read(sys.argv[1], **json.loads(sys.argv[3]))
print(json.dumps([rows, peak() - before]))
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    make_sparse_log(tmp_path / "short" / "commitlog", MIB, file_bytes=3 * MIB)
    return tmp_path / "short"


@pytest.mark.parametrize("batch_bytes", [MIB, 64 * MIB])
def test_memory_does_not_grow_with_the_log(tmp_path: Path, short: Path, batch_bytes: int) -> None:
    count = make_sparse_log(tmp_path / "long" / "commitlog", LOG_BYTES, file_bytes=FILE_BYTES)
    rows, grew = read_elsewhere(tmp_path / "long", short, batch_bytes)
    assert rows == count == 4 * 63
    assert grew < 24 * MIB


@pytest.mark.parametrize("batch_bytes", [MIB, 32 * MIB])
def test_memory_is_bounded_by_the_bytes_of_a_batch(
    tmp_path: Path, short: Path, batch_bytes: int
) -> None:
    """A few bytes of log may be many of a batch: half a GiB of bodies takes half a MiB of log."""
    count, body = 512, compress_body(bytes(MIB))
    pieces: list[bytes] = []
    for number in range(count):
        pieces.append(compressed_record(body, number, sum(map(len, pieces))))
    (tmp_path / "long" / "commitlog").mkdir(parents=True)
    path = tmp_path / "long" / "commitlog" / f"{0:020d}"
    path.write_bytes(b"".join(pieces) + bytes(100))
    assert path.stat().st_size < MIB
    rows, grew = read_elsewhere(tmp_path / "long", short, batch_bytes)
    assert rows == count
    assert batch_bytes // 2 - MIB < grew < 3 * batch_bytes + 16 * MIB


def compressed_record(body: bytes, number: int, log_offset: int) -> bytes:
    return encode_record(
        b"large", body, b"", queue_id=0, queue_offset=number, log_offset=log_offset,
        born_time_ms=1, born_host=bytes(8), store_time_ms=1, store_host=bytes(8),
        sys_flag=SysFlag.COMPRESSED,
    )  # fmt: skip


def read_elsewhere(path: Path, short: Path, batch_bytes: int) -> tuple[int, int]:
    """Read in a process of its own: how many rows there were, and by how much its memory grew."""
    options = json.dumps({"batch_bytes": batch_bytes})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(short), options],
        capture_output=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS)))},
    )
    assert done.returncode == 0, done.stderr.decode()
    rows, grew = json.loads(done.stdout)
    return rows, grew
