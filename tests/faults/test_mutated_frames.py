"""Damaged input closes its connection to a live server, and does nothing else.

Frames that official clients sent are changed at random and sent to the broker and the name
server. Frames: 20,000, on long runs 200,000.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from wire import Connection, decode, encode

from cometmq.model.errors import ProtocolError
from cometmq.protocol.command import command_at
from cometmq.protocol.frame import FRAME_BYTES_MAX
from support.server import Address, Standalone, standalone
from support.tiers import rounds

FRAMES = rounds(test=20_000, long=200_000)
RECORDED = Path(__file__).resolve().parent.parent / "vectors" / "frames"
FRAMES_PER_CONNECTION = 10
TRIES = 50
PROBE_EVERY = 50
GROWTH_BYTES_MAX = 32 * 1024 * 1024
TOPIC = "sound"
CHANGES_THE_SERVER = (
    Request.UPDATE_BROKER_CONFIG,
    Request.WIPE_WRITE_PERM_OF_BROKER,
    318,
)
"""Requests left out: a sound one of them would be obeyed, and the probe would meet its effect."""

SETTINGS = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}

INTERESTING_NUMBERS = (
    0,
    1,
    3,
    4,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x7FFFFFFF,
    0x80000000,
    2**32 - 1,
)
INTERESTING_TEXT = (
    b"-1", b"0", b"99999999999999999999", b"1e308", b"NaN", b"null", b"true", b'"', b"{}", b"[",
    b"[[[[[[[[", b"{{", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\x00", b"../../etc", b"%RETRY%", b"",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path, **SETTINGS) as running:
        yield running


def test_a_live_server_survives_mutated_frames(server: Standalone) -> None:
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    recorded = {"broker": frames_to("broker"), "namesrv": frames_to("namesrv")}
    addresses = {"broker": server.broker, "namesrv": server.namesrv}
    prepare(server)
    answered = 0
    memory: list[int] = []

    for number in range(FRAMES // FRAMES_PER_CONNECTION):
        role = "namesrv" if chance.random() < 0.25 else "broker"
        frames = [mutated(chance, recorded[role]) for _ in range(FRAMES_PER_CONNECTION - 1)]
        frames.append(broken(chance, recorded[role]))
        answered += count_frames(send_and_leave(addresses[role], b"".join(frames)))
        if number % PROBE_EVERY == 0:
            probe(server)
            memory.append(server.rss_bytes())

    probe(server)
    print(f"frames={FRAMES} answered={answered} memory={memory[:: max(1, len(memory) // 8)]}")
    check_log(server)
    settled, end = memory[len(memory) // 4], server.rss_bytes()
    assert end - settled <= GROWTH_BYTES_MAX, f"grew from {settled} to {end} bytes"
    assert answered > FRAMES // 2, f"only {answered} of {FRAMES} frames got as far as an answer"
    assert server.stop() == 0


def frames_to(role: str) -> list[bytes]:
    """Every recorded request to this kind of server."""
    found = []
    for path in sorted(RECORDED.glob("*/*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            is_request = not entry["flag"] & 1
            if entry["to"] == role and is_request and entry["code"] not in CHANGES_THE_SERVER:
                found.append(bytes.fromhex(entry["hex"]))
    assert len(found) > 100, f"only {len(found)} recorded frames to a {role}"
    return found


def mutated(chance: random.Random, frames: list[bytes]) -> bytes:
    """A changed frame whose lengths and header can be read: what it says is for handlers."""
    for _ in range(TRIES):
        content = bytearray(chance.choice(frames)[4:])
        for _ in range(chance.randrange(1, 4)):
            mutate(chance, content, frames)
        if is_readable(content):
            return struct.pack(">I", len(content)) + content
    return chance.choice(frames)


def is_readable(content: bytearray) -> bool:
    if len(content) < 4 or content[0] > 1 or 4 + int.from_bytes(content[1:4]) > len(content):
        return False
    frame = struct.pack(">I", len(content)) + content
    try:
        command_at(frame, 0, len(frame), FRAME_BYTES_MAX)  # the kit may not end at lengths below 0
        header = decode(bytes(content))
    except (
        ProtocolError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        struct.error,
    ):
        return False
    numbers = (header.code, header.opaque, header.flag, header.version)
    return all(isinstance(number, int) and -(2**31) <= number < 2**31 for number in numbers)


def broken(chance: random.Random, frames: list[bytes]) -> bytes:
    """A changed frame that may be cut short, or claim any length."""
    content = bytearray(chance.choice(frames))
    for _ in range(chance.randrange(1, 4)):
        mutate(chance, content, frames)
    if chance.random() < 0.5:
        content[:4] = struct.pack(">I", chance.choice(INTERESTING_NUMBERS))
    return bytes(
        content[: chance.randrange(len(content) + 1)] if chance.random() < 0.3 else content
    )


def mutate(chance: random.Random, content: bytearray, frames: list[bytes]) -> None:
    """Make one change in place."""
    at = chance.randrange(len(content) + 1)
    upto = min(len(content), at + chance.randrange(1, 9))
    kind = chance.randrange(8)
    if kind == 0 and content:
        content[at % len(content)] ^= 1 << chance.randrange(8)
    elif kind == 1:
        content[at:upto] = chance.randbytes(upto - at)
    elif kind == 2:
        del content[at : at + chance.randrange(1, 40)]
    elif kind == 3:
        content[at:at] = chance.randbytes(chance.randrange(1, 40))
    elif kind == 4:
        content[at : at + 4] = struct.pack(">I", chance.choice(INTERESTING_NUMBERS))
    elif kind == 5:
        content[at:upto] = chance.choice(INTERESTING_TEXT)
    elif kind == 6:
        other = chance.choice(frames)
        start = chance.randrange(len(other))
        content[at:] = other[start:]
    else:
        replace_value(chance, content)


def replace_value(chance: random.Random, content: bytearray) -> None:
    """Put something odd in the place of a value of the header."""
    colons = [at for at, byte in enumerate(content[:600]) if byte == ord(":")]
    if colons:
        at = chance.choice(colons) + 1
        end = next((n for n in range(at, len(content)) if content[n] in b",}"), at)
        value = chance.choice(INTERESTING_TEXT)
        if chance.random() < 0.7:
            value = b'"' + value.replace(b'"', b"'") + b'"'
        length_change = len(value) - (end - at)
        content[at:end] = value
        content[1:4] = ((int.from_bytes(content[1:4]) + length_change) & 0xFFFFFF).to_bytes(3)


def send_and_leave(address: Address, data: bytes) -> bytes:
    """Send, say that no more comes, and read until the server has closed its side too."""
    received = bytearray()
    with (
        socket.create_connection(address, 10.0) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(1 << 16):
            received += chunk
    return bytes(received)


def count_frames(data: bytes) -> int:
    count = at = 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4])
        count += 1
    return count


def prepare(server: Standalone) -> None:
    broker = Connection(server.broker)
    kit.ok(kit.create_topic(broker, TOPIC))
    kit.ok(kit.create_group(broker, TOPIC))
    broker.close()


def probe(server: Standalone) -> None:
    """A sound client is served as ever."""
    assert server.running, f"the server ended\n{server.log_end()}"
    broker, namesrv = Connection(server.broker, timeout=10.0), Connection(server.namesrv)
    stored = kit.store(broker, TOPIC, b"sound")
    assert kit.read_one(broker, TOPIC, TOPIC, offset=stored.queue_offset).body == b"sound"
    kit.ok(namesrv.request(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}))
    broker.close()
    namesrv.close()


def check_log(server: Standalone) -> None:
    """Bad input may be logged as a warning; an error or a traceback is a missing check."""
    lines = server.log.read_text(errors="replace").splitlines()
    bad = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
    assert not bad, f"{len(bad)} errors in the log, the first:\n" + context(lines, bad[0])


def context(lines: list[str], line: str) -> str:
    at = lines.index(line)
    return "\n".join(lines[at : at + 25])


def test_a_header_field_that_is_not_utf8_is_answered_and_no_error(server: Standalone) -> None:
    connection = Connection(server.broker)
    command = connection.command(Request.QUERY_MESSAGE, {"topic": "?" * 4, "key": "k"})
    connection.send_raw(encode(command).replace(b"????", b"\xe0\xff\xe0\xff"))

    assert connection.response(command.opaque).code == Answer.SYSTEM_ERROR
    connection.close()
    check_log(server)
