"""The two ids of a message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import InvalidMessageIdError
from cometmq.protocol.message_id import (
    UniqueIds,
    decode_offset_id,
    encode_offset_id,
)
from cometmq.protocol.record import encode_host
from support.wire.unique_ids import decode_unique_id

addresses = st.ip_addresses(v=4) | st.ip_addresses(v=6)
NOON_MS = 1_700_000_000_000


@given(addresses.map(str), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_offset_id_comes_back(host: str, port: int, offset: int) -> None:
    text = encode_offset_id(encode_host(host, port), offset)
    found = decode_offset_id(text)

    assert (found.port, found.log_offset) == (port, offset)
    assert encode_offset_id(encode_host(found.host, found.port), offset) == text
    assert text == text.upper()
    assert found.address.endswith(f":{port}")


def test_the_address_of_an_offset_id_can_be_dialled() -> None:
    assert decode_offset_id("0A00000100002A9F0000000000001000").address == "10.0.0.1:10911"
    ipv6 = "FE80000000000000000000000000000100002A9F0000000000001000"
    assert decode_offset_id(ipv6).address == "[fe80::1]:10911"


@pytest.mark.parametrize(
    "text", ["", "0A", "0" * 31, "0" * 33, "0" * 55, "0" * 57, "G" * 32, " " * 32, "é" * 32]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageIdError):
        decode_offset_id(text)


def clock(*times_ms: int) -> Iterator[int]:
    yield from times_ms


def test_unique_ids_say_who_and_when() -> None:
    times = clock(NOON_MS, NOON_MS + 5)
    ids = UniqueIds(b"\x0a\x00\x00\x01", pid=0x12345, now_ms=times.__next__)

    first, second = decode_unique_id(ids.next()), decode_unique_id(ids.next())

    assert (first.host, first.pid) == ("10.0.0.1", 0x2345)
    assert (first.counter, second.counter) == (0, 1)
    assert second.month_ms - first.month_ms == 5
    assert 0 <= first.month_ms < 32 * 86_400_000


def test_unique_ids_do_not_repeat_within_a_millisecond() -> None:
    ids = UniqueIds(now_ms=lambda: NOON_MS)
    assert len({ids.next() for _ in range(65_536)}) == 65_536


def test_the_next_month_begins_anew() -> None:
    times = clock(NOON_MS, NOON_MS + 31 * 86_400_000)
    ids = UniqueIds(now_ms=times.__next__)
    first, second = decode_unique_id(ids.next()), decode_unique_id(ids.next())

    assert second.month_ms < first.month_ms + 31 * 86_400_000
    assert second.month_ms >= 0


def test_two_processes_make_different_ids() -> None:
    one, other = (UniqueIds(b"\x7f\0\0\1", pid=1, now_ms=lambda: NOON_MS) for _ in range(2))
    assert one.next() != other.next()


def test_an_ipv6_client_has_longer_ids() -> None:
    assert len(UniqueIds(bytes(16)).next()) == 56
    with pytest.raises(ValueError, match="expected 4 or 16"):
        UniqueIds(b"abc")
