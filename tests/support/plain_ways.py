"""Requests as Java's clients write them, plain and odd, for the short ways and the long ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import strategies as st

VALUES = [
    '""', '"0"', '"1"', '"3"', '"4"', '"-1"', '"-0"', '"007"', '"+1"', '" 1"', '"1 "', '"1.0"',
    '"1e1"', '"x"', '"true"', '"null"', "null", "true", "1", "-5", "1.5", '"2"', '"2147483647"',
    '"2147483648"', '"-2147483648"', '"-2147483647"', '"4294967296"', '"9223372036854775807"',
    '"9223372036854775808"', '"99999999999999999999"', '"T"', '"unknown"', '"T\\u0041"', '"a\\"b"',
    '"a\\\\b"', '"\\u0054"', '"caf\u00e9"', '"T "', "{}", "[1]", '"\\/"', '"\x7f"',
]  # fmt: skip
"""JSON that may stand where the value of a field does."""
OPAQUES = ["7", "0", "-7", "-0", "2147483647", "-2147483648", "2147483648", "1.0", "null", '"7"']
VERSIONS = ["479", "0", "-1", "99999", "null", "4.5"]
LANGUAGES = ['"JAVA"', '"CPP"', '"cpp"', '"ZIG"', "3", "null", '"J\\u0041VA"']


def java_header(
    fields: Mapping[str, str],
    *,
    code: str,
    opaque: str = "7",
    version: str = "479",
    flag: str = "0",
    language: str = '"JAVA"',
    raw: Mapping[str, str] | None = None,
) -> bytes:
    """A header as Java's clients write it, without blanks and with its names in order.

    All but ``fields`` is JSON; fields that are given ``raw`` take the place of others.
    """
    written = {name: json.dumps(value) for name, value in fields.items()} | dict(raw or {})
    pairs = ",".join(f'"{name}":{value}' for name, value in written.items())
    return (
        f'{{"code":{code},"extFields":{{{pairs}}},"flag":{flag},"language":{language},'
        f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{version}}}'
    ).encode()


def frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def headers(
    fields: Mapping[str, str],
    odd: st.SearchStrategy[tuple[str, str]],
    *,
    odd_max: int,
    left_out: Iterable[str],
    codes: Sequence[str],
) -> st.SearchStrategy[bytes]:
    """Headers whose members are of any kind.

    Of the ``fields`` up to ``odd_max`` are odd, and one of ``left_out`` may be missing.
    """
    return st.builds(
        lambda odd, left_out, **members: java_header(
            {name: value for name, value in fields.items() if name not in left_out},
            raw=dict(odd),
            **members,
        ),
        st.lists(odd, max_size=odd_max),
        st.sets(st.sampled_from(list(left_out)), max_size=1),
        opaque=st.sampled_from(OPAQUES),
        version=st.sampled_from(VERSIONS),
        flag=st.sampled_from(["0", "0", "0", "1", "2", "3"]),
        language=st.sampled_from(LANGUAGES),
        code=st.sampled_from(codes),
    )
