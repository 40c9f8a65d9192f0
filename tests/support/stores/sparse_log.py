"""Logs far larger than the disk they take: bodies are holes in the file, which read as zeros."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from zlib import crc32

from cometmq.protocol.record import CRC_MASK, MAGIC_BLANK, encode_host, encode_record

FILE_BYTES = 1 << 30
_START = Struct(">ii")
HOST = encode_host("10.0.0.1", 10911)


def make_sparse_log(
    folder: Path, size_bytes: int, *, body_bytes: int = 1 << 20, file_bytes: int = FILE_BYTES
) -> int:
    """Fill log files with messages whose bodies are zeros; return how many messages there are."""
    folder.mkdir(parents=True, exist_ok=True)
    empty = _record(0, 0, 0)
    crc = crc32(bytes(body_bytes)) & CRC_MASK
    total = len(empty) + body_bytes
    count = 0
    for base in range(0, size_bytes, file_bytes):
        with (folder / f"{base:020d}").open("wb") as file:
            for at in range(0, file_bytes - total - 8, total):
                record = _record(base + at, count, crc)
                file.seek(at)
                head = total.to_bytes(4, "big") + record[4:84]
                file.write(head + body_bytes.to_bytes(4, "big"))
                file.seek(at + total - len(record) + 88)
                file.write(record[88:])
                count += 1
            blank = file.tell()
            file.write(_START.pack(file_bytes - blank, MAGIC_BLANK))
            file.truncate(file_bytes)
    return count


def _record(log_offset: int, number: int, crc: int) -> bytes:
    return encode_record(
        b"large",
        b"",
        b"KEYS\x01k%012d\x02TAGS\x01large\x02" % number,
        queue_id=0,
        queue_offset=number,
        log_offset=log_offset,
        born_time_ms=1_700_000_000_000,
        born_host=HOST,
        store_time_ms=1_700_000_000_000,
        store_host=HOST,
        crc=crc,
    )
