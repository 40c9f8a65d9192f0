"""Numbers taken out of buffers and put into them, the same on both builds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.octets import put_decimal, put_hex, put_u32, two_u32

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
places = st.integers(0, 9)


@given(u32, u32, places)
def test_two_numbers_are_read_wherever_they_lie(first: int, second: int, place: int) -> None:
    data = bytes(place) + first.to_bytes(4, "big") + second.to_bytes(4, "big")
    assert two_u32(data, place) == two_u32(bytearray(data), place) == (first, second)


@given(u32, places)
def test_a_number_is_written_big_endian_and_nothing_beside_it(value: int, place: int) -> None:
    space = bytearray(b"x" * 16)
    put_u32(space, place, value)
    assert space == b"x" * place + value.to_bytes(4, "big") + b"x" * (12 - place)


@given(u64, places)
def test_a_number_has_sixteen_hexadecimal_digits(value: int, place: int) -> None:
    space = bytearray(b"x" * 28)
    assert put_hex(space, place, value) == place + 16
    assert space == b"x" * place + b"%016X" % value + b"x" * (12 - place)


@given(st.integers(-(2**63), 2**63 - 1), places)
def test_a_number_has_as_many_decimal_digits_as_it_needs(value: int, place: int) -> None:
    space = bytearray(b"x" * 40)
    text = b"%d" % value
    assert put_decimal(space, place, value) == place + len(text)
    assert space == b"x" * place + text + b"x" * (40 - place - len(text))
