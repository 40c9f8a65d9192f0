"""The messages between master and slave, cut anywhere, and what is refused."""

from __future__ import annotations

import pytest

from cometmq.broker.replication.wire import CHUNK_BYTES_MAX, HEADER, REPORT, Reports, read_header
from cometmq.model.errors import ProtocolError


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 16, 24])
def test_the_newest_complete_report_counts(size: int) -> None:
    data = b"".join(REPORT.pack(offset) for offset in (0, 5, 2**40))
    reports = Reports()
    found = [reports.newest(data[at : at + size]) for at in range(0, len(data), size)]
    complete = [(at + size) // 8 for at in range(0, len(data), size)]
    expected = []
    before = 0
    for count in (min(3, number) for number in complete):
        expected.append((0, 5, 2**40)[count - 1] if count > before else None)
        before = count
    assert found == expected


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(ProtocolError, match="reported log offset -1, expected 0 or more"):
        Reports().newest(REPORT.pack(-1))


def test_a_header_is_read_where_it_is() -> None:
    data = bytearray(b"xx" + HEADER.pack(2**40, CHUNK_BYTES_MAX))
    assert read_header(data, 2) == (2**40, CHUNK_BYTES_MAX)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 5), (0, -1), (0, CHUNK_BYTES_MAX + 1), (5, -(2**31)), (0, 2**31 - 1)]
)
def test_a_header_out_of_range_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a chunk of {size} bytes at log offset {offset}"):
        read_header(bytearray(HEADER.pack(offset, size)), 0)
