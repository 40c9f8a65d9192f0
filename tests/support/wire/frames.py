"""Frames of the protocol: cut from a stream in any pieces, and made of headers of any bytes."""

from __future__ import annotations

from cometmq.protocol.command import Command, command_at
from cometmq.protocol.frame import FRAME_BYTES_MAX, frame_prefix


class CommandDecoder:
    """Reads the commands of a stream, in whatever pieces its bytes arrive."""

    def __init__(self) -> None:
        self._received = bytearray()

    def receive(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._received += data

    def next_command(self) -> Command | None:
        """Return the next whole command, or None until more bytes have arrived."""
        received = self._received
        command = command_at(received, 0, len(received), FRAME_BYTES_MAX)
        if command is not None:
            del received[: command.frame_bytes]
        return command


def one_command(data: bytes) -> Command:
    """Return the command of a stream that consists of exactly one frame."""
    decoder = CommandDecoder()
    decoder.receive(data)
    command = decoder.next_command()
    assert command is not None
    assert decoder.next_command() is None
    return command


def command_of(encoding: int, header: bytes, body: bytes = b"") -> Command:
    """Return the command of a frame with this header."""
    return one_command(frame_prefix(encoding, len(header), len(body)) + header + body)
