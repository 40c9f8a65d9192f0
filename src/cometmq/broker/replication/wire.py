"""The messages between a master and its slaves; no input or output.

    slave to master     report := log_offset_end:i64
    master to slave     chunk := log_offset:i64 size:i32 bytes of the log; size 0 for a heartbeat

There is no handshake: the first report says where the master is to begin.
Source: DefaultHAConnection and DefaultHAClient, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cometmq.model.errors import ProtocolError

REPORT: Final = Struct(">q")
HEADER: Final = Struct(">qi")
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
"""The receive buffer of RocketMQ's slaves, and so the limit of a chunk."""


class Reports:
    """Takes the reports of a slave out of the bytes received."""

    def __init__(self) -> None:
        self._rest = b""

    def newest(self, data: bytes) -> int | None:
        """Return the newest report; None if none is complete yet.

        Raises:
            ProtocolError: a report is negative.
        """
        data = self._rest + data
        end = len(data) - len(data) % REPORT.size
        self._rest = data[end:]
        if end == 0:
            return None
        (offset,) = REPORT.unpack_from(data, end - REPORT.size)
        if offset < 0:
            raise ProtocolError(f"a slave reported log offset {offset}, expected 0 or more")
        return int(offset)


def read_header(data: bytearray, at: int) -> tuple[int, int]:
    """Return log offset and size of the chunk whose header is at a position.

    Raises:
        ProtocolError: the offset is negative, or the size is out of range.
    """
    offset, size = HEADER.unpack_from(data, at)
    if offset < 0 or not 0 <= size <= CHUNK_BYTES_MAX:
        raise ProtocolError(
            f"a chunk of {size} bytes at log offset {offset}, expected at most {CHUNK_BYTES_MAX}"
            " at 0 or more"
        )
    return offset, size
