"""Send frames exactly as clients write them, made ready for the load generator.

``frames/*.json`` holds one recorded frame for each client (``record_frames.py`` records them). The
generator repeats the frame and changes only what each request must have of its own: the opaque,
the queue id, the born time, the digits of the key and the end of the unique id. The opaque of a
JSON header gets seven digits, so that its length never changes.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "frames"
TOPIC = "bench-frames"
BROKER = "broker-a"
KEY = b"K00000000000"
BODY = b"x" * 128
OPAQUE = b"1000000"
UNIQUE_ID = re.compile(rb"UNIQ_KEY(?:\\u0001|\x01)([0-9A-Fa-f]{32})")
UNIQUE_END = 16
"""Digits of the unique id that change."""
BINARY = 1


class FrameError(Exception):
    """A recorded frame does not have a field that must change with each request."""


@dataclass(frozen=True)
class Frame:
    """A frame and the offsets of the fields that the generator changes."""

    data: bytes
    patches: str
    """In the form of the generator's option ``--patch``."""


def clients() -> list[str]:
    """Names of the recorded frames."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(client: str) -> dict[str, str]:
    """What was recorded of a client: the frame in base 64, and which client wrote it."""
    found: dict[str, str] = json.loads((FOLDER / f"{client}.json").read_text())
    return found


def prepare(frame: bytes) -> Frame:
    """Locate the fields that change.

    Raises:
        FrameError: a field is missing.
    """
    header_length = int.from_bytes(frame[5:8], "big")
    header, body = frame[8 : 8 + header_length], frame[8 + header_length :]
    if body != BODY:
        raise FrameError(f"the body has {len(body)} bytes, expected {len(BODY)} times 'x'")
    if frame[4] == BINARY:
        offsets = {"O": 5} | {
            letter: _binary_field(header, names)
            for letter, names in {"g": (b"g", b"bornTimestamp"), "e": (b"e", b"queueId")}.items()
        }
    else:
        header = re.sub(rb'("opaque"\s*:\s*)\d+', rb"\g<1>" + OPAQUE, header)
        offsets = {
            "o": _json_field(header, b"opaque"),
            "g": _json_field(header, b"g|bornTimestamp"),
            "e": _json_field(header, b"e|queueId"),
        }
    if (unique := UNIQUE_ID.search(header)) is not None:
        offsets["u"] = unique.end() - UNIQUE_END
    if (key := header.find(KEY)) >= 0:
        offsets["k"] = key + 1
    start = struct.pack(">II", 4 + len(header) + len(body), frame[4] << 24 | len(header))
    patches = ",".join(f"{letter}={8 + at}" for letter, at in offsets.items())
    return Frame(start + header + body, patches)


def _json_field(header: bytes, names: bytes) -> int:
    found = re.search(rb'"(?:' + names + rb')"\s*:\s*"?(\d)', header)
    if found is None:
        raise FrameError(f"no field {names.decode()} in {header!r}")
    return found.start(1)


def _binary_field(header: bytes, names: tuple[bytes, ...]) -> int:
    for name in names:
        at = header.find(struct.pack(">H", len(name)) + name)
        if at >= 0:
            return at + 2 + len(name) + 4
    raise FrameError(f"no field {b' or '.join(names).decode()} in {header!r}")


def write(client: str, folder: Path) -> tuple[Path, str]:
    """Write the frame of a client for the generator; returns its file and the patches."""
    frame = prepare(base64.b64decode(recorded(client)["frame"]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{client}.frame"
    path.write_bytes(frame.data)
    return path, frame.patches
