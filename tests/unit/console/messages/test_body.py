"""How bodies are shown."""

from __future__ import annotations

import pytest

from cometmq.console.messages.body import DEPTH_MAX, HEX_BYTES_MAX, SHOWN_BYTES_MAX, body_of

DEEP = b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)
"""Indents of 64 KiB that are 900 deep take seconds, in which the console serves nobody."""


@pytest.mark.parametrize(
    ("content", "format", "text", "formats"),
    [
        (b'{"a":"Zo\xc3\xab"}', "json", '{\n  "a": "Zoë"\n}', ["json", "text", "hex"]),
        (b"[1]", "json", "[\n  1\n]", ["json", "text", "hex"]),
        (b"{broken", "text", "{broken", ["text", "hex"]),
        (b"42", "text", "42", ["text", "hex"]),
        (b"", "text", "", ["text", "hex"]),
        (b"[" * 60_000, "text", "[" * 60_000, ["text", "hex"]),
        (DEEP, "text", DEEP.decode(), ["text", "hex"]),
        (
            b'["' + b"[" * 1_000 + b'"]',
            "json",
            '[\n  "' + "[" * 1_000 + '"\n]',
            ["json", "text", "hex"],
        ),
        (b"\x00A\xff", "hex", f"00000000  {'00 41 ff':<47}  .A.", ["hex"]),
        (b"\x1b[31mred", "hex", f"00000000  {'1b 5b 33 31 6d 72 65 64':<47}  .[31mred", ["hex"]),
    ],
    ids=[
        "json",
        "list",
        "broken",
        "number",
        "empty",
        "nested",
        "deep",
        "brackets in a text",
        "binary",
        "control",
    ],
)
def test_a_body_is_shown_in_its_best_format(
    content: bytes, format: str, text: str, formats: list[str]
) -> None:
    body = body_of(content)
    assert (body.format, body.text, body.formats) == (format, text, formats)
    assert body.bytes == body.shown_bytes == len(content)


def test_a_format_can_be_chosen_if_the_body_has_it() -> None:
    assert body_of(b"[1]", "hex").format == "hex"
    assert body_of(b"[1]", "text").text == "[1]"
    assert body_of(b"\xff", "json").format == "hex"


def test_what_is_shown_has_a_bound_and_cuts_no_character() -> None:
    long = b"x" + "ë".encode() * SHOWN_BYTES_MAX
    text = body_of(long)
    assert text.format == "text"
    assert text.text == "x" + "ë" * ((SHOWN_BYTES_MAX - 1) // 2)
    assert (text.bytes, text.shown_bytes) == (len(long), SHOWN_BYTES_MAX)
    assert body_of(long, "hex").shown_bytes == HEX_BYTES_MAX
    assert body_of(b"[" + b"1," * SHOWN_BYTES_MAX + b"1]").format == "text"
