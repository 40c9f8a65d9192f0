"""Reading takes as much memory as its options allow, however long the log is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.model.flags import SysFlag
from cometmq.protocol.compression import compress_body
from cometmq.protocol.record import encode_record
from support.sparse_log import make_sparse_log

TESTS = Path(__file__).resolve().parents[2]
MIB = 1 << 20
FILE_BYTES = 64 * MIB
LOG_BYTES = 4 * FILE_BYTES
PROGRAM = """
import json, sys
from pathlib import Path
from support.log_files import log_reader

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
