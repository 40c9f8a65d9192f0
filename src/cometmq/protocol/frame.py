# cython: annotation_typing=False
"""The lengths of a frame: the outermost layer of the protocol.

    frame := length:u32 | word:u32 | header:bytes[word & 0xFFFFFF] | body:bytes[the rest]

Big-endian. ``length`` counts all bytes after itself; the top byte of ``word`` is the encoding of
the header. Both lengths are checked before anything is allocated for them.

Source: RemotingCommand.decode and NettyDecoder, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from struct import Struct

from cometmq.model.errors import ProtocolError

TWO_U32 = Struct(">II")
PREFIX_BYTES = 8
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ's own limit, its four length bytes included."""
HEADER_BYTES_MAX = 0xFFFFFF
"""The largest header that the length field can state."""

JSON_HEADER = 0
BINARY_HEADER = 1


class FrameError(ProtocolError):
    """The peer sent lengths or a header encoding that no frame can have."""


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


def frame_prefix(encoding: int, header_bytes: int, body_bytes: int) -> bytes:
    """The eight bytes that go before a header and a body of these sizes.

    Raises:
        FrameError: the header is longer than its length field can say.
    """
    if header_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {header_bytes} bytes, at most {HEADER_BYTES_MAX}")
    return TWO_U32.pack(4 + header_bytes + body_bytes, encoding << 24 | header_bytes)
