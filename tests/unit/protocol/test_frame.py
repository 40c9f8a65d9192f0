"""Frames: cut from any pieces, refused before anything is allocated for them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.frame import (
    BINARY_HEADER,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON_HEADER,
    Frame,
    FrameDecoder,
    FrameError,
    cut_frame,
    frame_prefix,
    frame_size,
)

FRAMES = st.builds(
    Frame,
    st.sampled_from((JSON_HEADER, BINARY_HEADER)),
    st.binary(max_size=60),
    st.binary(max_size=60),
)


def wire(frame: Frame) -> bytes:
    """The frame as its bytes, written out by hand."""
    length = 4 + len(frame.header) + len(frame.body)
    word = frame.encoding << 24 | len(frame.header)
    return struct.pack(">II", length, word) + frame.header + frame.body


def decoded(decoder: FrameDecoder) -> list[Frame]:
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append(frame)
    return found


@given(FRAMES)
def test_the_prefix_says_what_the_layout_says(frame: Frame) -> None:
    prefix = frame_prefix(frame.encoding, len(frame.header), len(frame.body))

    assert prefix == wire(frame)[:8]


@given(st.lists(FRAMES, max_size=5), st.data())
def test_frames_come_whole_however_the_bytes_arrive(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(map(wire, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, found = FrameDecoder(), []

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.receive(stream[start:end])
        found += decoded(decoder)

    assert found == frames


@given(FRAMES, st.data())
def test_no_cut_of_a_frame_gives_a_frame(frame: Frame, data: st.DataObject) -> None:
    stream = wire(frame)
    decoder = FrameDecoder()
    decoder.receive(stream[: data.draw(st.integers(0, len(stream) - 1))])

    assert decoder.next_frame() is None


@given(st.binary(max_size=20), FRAMES, st.binary(max_size=20))
def test_a_frame_is_cut_out_of_the_middle_of_a_buffer(
    before: bytes, frame: Frame, after: bytes
) -> None:
    buffer = bytearray(before + wire(frame) + after)

    size = frame_size(buffer, len(before), FRAME_BYTES_MAX)

    assert size == len(wire(frame))
    cut = cut_frame(buffer, len(before), size)
    buffer[:] = bytes(len(buffer))  # the buffer is used again
    assert cut == frame


@pytest.mark.parametrize(
    ("length", "word", "reason"),
    [
        (FRAME_BYTES_MAX - 3, 0, "at most 16777216"),
        (0x7FFFFFFF, 0, "a frame of"),
        (0x80000000, 0, "a frame of"),
        (0xFFFFFFFF, 0, "a frame of"),
        (0xFFFFFFFC, 0, "a frame of"),
        (0xFFFFFFFF, 0xFFFFFFFF, "a frame of"),
        (0, 0, "header would end at byte 8"),
        (3, 0, "header would end at byte 8"),
        (4, 1, "header would end at byte 9"),
        (10, 7, "header would end at byte 15"),
        (4, 2 << 24, "header encoding 2"),
        (4, 0xFF << 24, "header encoding 255"),
    ],
)
def test_lengths_that_no_frame_has_are_refused_at_the_eighth_byte(
    length: int, word: int, reason: str
) -> None:
    prefix = struct.pack(">II", length, word)
    decoder = FrameDecoder()
    decoder.receive(prefix)

    with pytest.raises(FrameError, match=reason):
        decoder.next_frame()
    with pytest.raises(FrameError):
        frame_size(b"xyz" + prefix, 3, FRAME_BYTES_MAX)


@pytest.mark.parametrize("limit", [8, 100, FRAME_BYTES_MAX])
def test_the_limit_counts_the_length_field(limit: int) -> None:
    whole = frame_prefix(JSON_HEADER, 0, limit - 8)

    assert frame_size(whole, 0, limit) == limit
    with pytest.raises(FrameError, match=f"at most {limit - 1}"):
        frame_size(whole, 0, limit - 1)


def test_a_header_that_its_length_field_cannot_hold_is_not_written() -> None:
    assert frame_prefix(BINARY_HEADER, HEADER_BYTES_MAX, 0)[4:] == b"\x01\xff\xff\xff"
    with pytest.raises(FrameError, match="a header of 16777216 bytes"):
        frame_prefix(BINARY_HEADER, HEADER_BYTES_MAX + 1, 0)
