# cython: annotation_typing=False
"""Cuts a stream of bytes into frames: the outermost layer of the protocol, without any I/O.

    frame := length:u32 | word:u32 | header:bytes[word & 0xFFFFFF] | body:bytes[the rest]

Big-endian. ``length`` counts all bytes after itself; the top byte of ``word`` names the encoding of
the header. Both lengths are checked before anything is allocated for them.

Source: RemotingCommand.decode and NettyDecoder, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from cometmq.model.errors import ProtocolError
from cometmq.protocol.octets import copy_of, two_u32

TWO_U32 = Struct(">II")
PREFIX_BYTES = 8
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ's own limit, its four length bytes included."""
HEADER_BYTES_MAX = 0xFFFFFF
"""What the length field of a header has room for."""

JSON_HEADER = 0
BINARY_HEADER = 1


class FrameError(ProtocolError):
    """The peer sent lengths or a header encoding that no frame can have."""


class Frame(NamedTuple):
    """One frame, cut but not yet decoded."""

    encoding: int
    header: bytes
    body: bytes


def frame_size(data: bytes | bytearray, start: int, frame_bytes_max: int) -> int:
    """The bytes of the frame that begins at ``start``, its length field included.

    At least eight bytes must lie there; the rest of the frame may still be on its way.

    Raises:
        FrameError: no frame begins like this; the connection cannot go on.
    """
    length, word = two_u32(data, start)
    return checked_size(length, word, frame_bytes_max)


def checked_size(length: int, word: int, frame_bytes_max: int) -> int:
    """The bytes of a frame that begins with these two numbers.

    Raises:
        FrameError: no frame begins like this; the connection cannot go on.
    """
    size = 4 + length
    if size > frame_bytes_max:
        raise FrameError(f"a frame of {size} bytes: at most {frame_bytes_max} are allowed")
    if PREFIX_BYTES + (word & 0xFFFFFF) > size:
        raise FrameError(
            f"a frame of {size} bytes whose header would end at byte {8 + (word & 0xFFFFFF)}"
        )
    if word >> 24 > BINARY_HEADER:
        raise FrameError(f"header encoding {word >> 24}: expected 0 (JSON) or 1 (binary)")
    return size


def cut_frame(data: bytes | bytearray, start: int, size: int) -> Frame:
    """Copy the frame of ``size`` bytes at ``start`` out of a buffer that will be used again."""
    _, word = two_u32(data, start)
    header_end = start + PREFIX_BYTES + (word & 0xFFFFFF)
    return Frame(
        word >> 24,
        copy_of(data, start + PREFIX_BYTES, header_end),
        copy_of(data, header_end, start + size),
    )


def frame_prefix(encoding: int, header_bytes: int, body_bytes: int) -> bytes:
    """The eight bytes that go before a header and a body of these sizes.

    Raises:
        FrameError: the header is longer than its length field can say.
    """
    if header_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {header_bytes} bytes, at most {HEADER_BYTES_MAX}")
    return TWO_U32.pack(4 + header_bytes + body_bytes, encoding << 24 | header_bytes)


class FrameDecoder:
    """Turns received bytes into frames, in whatever pieces the bytes arrive."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._received = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def receive(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        self._received += data

    def next_frame(self) -> Frame | None:
        """Take the next whole frame, or return None until more bytes have arrived.

        Raises:
            FrameError: the peer sent lengths no frame can have; close the connection.
        """
        if len(self._received) < PREFIX_BYTES:
            return None
        size = frame_size(self._received, 0, self._frame_bytes_max)
        if len(self._received) < size:
            return None
        frame = cut_frame(self._received, 0, size)
        del self._received[:size]
        return frame
