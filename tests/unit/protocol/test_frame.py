"""Frames: cut from any pieces, refused before anything is allocated for them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.command import Command, command_at, encode_command
from cometmq.protocol.frame import (
    BINARY_HEADER,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON_HEADER,
    FrameError,
    checked_size,
    frame_prefix,
)
from support.wire.frames import CommandDecoder

COMMANDS = st.builds(
    Command,
    st.integers(0, 1000),
    opaque=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=60),
    serialization=st.sampled_from((JSON_HEADER, BINARY_HEADER)),
)


@given(st.sampled_from((JSON_HEADER, BINARY_HEADER)), st.binary(max_size=60), st.integers(0, 60))
def test_the_prefix_says_what_the_layout_says(
    encoding: int, header: bytes, body_bytes: int
) -> None:
    length, word = 4 + len(header) + body_bytes, encoding << 24 | len(header)

    assert frame_prefix(encoding, len(header), body_bytes) == struct.pack(">II", length, word)


@given(st.lists(COMMANDS, max_size=5), st.data())
def test_commands_come_whole_however_the_bytes_arrive(
    commands: list[Command], data: st.DataObject
) -> None:
    stream = b"".join(map(encode_command, commands))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, found = CommandDecoder(), []

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.receive(stream[start:end])
        while (command := decoder.next_command()) is not None:
            found.append((command.code, command.opaque, command.body))

    assert found == [(command.code, command.opaque, command.body) for command in commands]


@given(COMMANDS, st.data())
def test_no_cut_of_a_frame_gives_a_command(command: Command, data: st.DataObject) -> None:
    stream = encode_command(command)
    decoder = CommandDecoder()
    decoder.receive(stream[: data.draw(st.integers(0, len(stream) - 1))])

    assert decoder.next_command() is None


@given(st.binary(max_size=20), COMMANDS, st.binary(max_size=20))
def test_a_command_is_read_out_of_the_middle_of_a_buffer(
    before: bytes, command: Command, after: bytes
) -> None:
    frame = encode_command(command)
    buffer = bytearray(before + frame + after)

    found = command_at(buffer, len(before), len(buffer), FRAME_BYTES_MAX)
    buffer[:] = bytes(len(buffer))  # the buffer is used again

    assert found is not None
    assert (found.frame_bytes, found.body) == (len(frame), command.body)


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

    with pytest.raises(FrameError, match=reason):
        command_at(b"xyz" + prefix, 3, 11, FRAME_BYTES_MAX)


@pytest.mark.parametrize("limit", [8, 100, FRAME_BYTES_MAX])
def test_the_limit_counts_the_length_field(limit: int) -> None:
    length, word = struct.unpack(">II", frame_prefix(JSON_HEADER, 0, limit - 8))

    assert checked_size(length, word, limit) == limit
    with pytest.raises(FrameError, match=f"at most {limit - 1}"):
        checked_size(length, word, limit - 1)


def test_a_header_that_its_length_field_cannot_hold_is_not_written() -> None:
    assert frame_prefix(BINARY_HEADER, HEADER_BYTES_MAX, 0)[4:] == b"\x01\xff\xff\xff"
    with pytest.raises(FrameError, match="a header of 16777216 bytes"):
        frame_prefix(BINARY_HEADER, HEADER_BYTES_MAX + 1, 0)
