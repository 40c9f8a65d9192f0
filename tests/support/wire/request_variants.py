"""Requests in common and in odd forms, for tests of fast paths and the general path."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

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


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip
FORMS = ["java", "go", "cpp", "node", "mixed", "spaced", "binary", "binary 10"]


def header_of(
    form: str,
    fields: Mapping[str, str],
    *,
    code: str,
    opaque: str = "7",
    version: str = "479",
    flag: str = "0",
    language: str = '"JAVA"',
    raw: Mapping[str, str] | None = None,
) -> bytes:
    """The same send as each client writes it; `java_header` says what the parameters are."""
    written = {name: json.dumps(value) for name, value in fields.items()} | dict(raw or {})
    if form in ("go", "cpp", "binary 10"):
        code = "10"
        written = {LONG_NAMES.get(name, name): value for name, value in written.items()}
    if form.startswith("binary"):
        return binary_header(written, code=code, opaque=opaque, version=version, flag=flag)
    if form in ("cpp", "node"):
        written = {name: _bare(value) for name, value in written.items()}
    if form == "cpp":
        written = dict(sorted((written | {"Signature": '"EZ=="', "AccessKey": '""'}).items()))
    pairs = "{" + ",".join(f'"{name}":{value}' for name, value in written.items()) + "}"
    members = {"code": code, "language": language, "version": version, "opaque": opaque}
    members |= {"flag": flag, "remark": '""', "extFields": pairs}
    if form == "cpp":
        order = ["code", "extFields", "flag", "language", "opaque", "remark", "version"]
    elif form == "mixed":
        members["serializeTypeCurrentRPC"], members["more"] = '"JSON"', "12"
        order = [
            "extFields",
            "more",
            "flag",
            "opaque",
            "serializeTypeCurrentRPC",
            "version",
            "code",
        ]
    else:
        order = list(members)
    text = ",".join(f'"{name}":{members[name]}' for name in order)
    if form == "spaced":
        text = text.replace('":', '" : ').replace(',"', ' ,\t"')
    return f"{{{text}}}{chr(10) * (form == 'cpp')}".encode()


def _bare(value: str) -> str:
    """A number without its quotes, as some clients write it."""
    return value[1:-1] if value[1:-1].isdigit() and str(int(value[1:-1])) == value[1:-1] else value


def binary_header(
    fields: Mapping[str, str], *, code: str, opaque: str, version: str, flag: str
) -> bytes:
    """A binary header of fields whose values are JSON; what is no text is written as it stands."""
    pairs = b""
    for name, value in fields.items():
        said = json.loads(value) if value.startswith('"') else value
        text = str(said).encode("utf-8", "replace")
        pairs += struct.pack(">H", len(name)) + name.encode() + struct.pack(">i", len(text)) + text
    numbers = [_int_of(code, 16), 0, _int_of(version, 16), _int_of(opaque, 32), _int_of(flag, 32)]
    return struct.pack(">hBhii", *numbers) + struct.pack(">ii", 0, len(pairs)) + pairs


def _int_of(text: str, bits: int) -> int:
    number = int(text) if text.lstrip("-").isdigit() else 0
    return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else 0


def frame(header: bytes, body: bytes = b"") -> bytes:
    """A frame; a header that begins with a brace or a blank is JSON, any other one binary."""
    kind = 0 if header[:1] in b"{ " else 1 << 24
    size = kind | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), size) + header + body


def headers(
    fields: Mapping[str, str],
    odd: st.SearchStrategy[tuple[str, str]],
    *,
    odd_max: int,
    left_out: Iterable[str],
    codes: Sequence[str],
    forms: Sequence[str] = ("java",),
) -> st.SearchStrategy[bytes]:
    """Headers whose members are of any kind.

    Of the ``fields`` up to ``odd_max`` are odd, and one of ``left_out`` may be missing.
    """
    return st.builds(
        lambda form, odd, left_out, **members: (
            java_header if form == "java" else partial(header_of, form)
        )(
            {name: value for name, value in fields.items() if name not in left_out},
            raw=dict(odd),
            **members,
        ),
        st.sampled_from(list(forms)),
        st.lists(odd, max_size=odd_max),
        st.sets(st.sampled_from(list(left_out)), max_size=1),
        opaque=st.sampled_from(OPAQUES),
        version=st.sampled_from(VERSIONS),
        flag=st.sampled_from(["0", "0", "0", "1", "2", "3"]),
        language=st.sampled_from(LANGUAGES),
        code=st.sampled_from(codes),
    )


def damaged(
    data: st.DataObject, fields: Mapping[str, str], frame: Callable[[bytes, bytes], bytes]
) -> tuple[bytes, bytes]:
    """Sends of one form with some of their bytes changed, as two reads of a socket give them."""
    write = partial(header_of, data.draw(st.sampled_from(FORMS)), code="310")
    count = data.draw(st.sampled_from([2, 2, 7, 40]))
    stream = bytearray(
        b"".join(frame(write(fields, opaque=str(n)), b"%d" % n) for n in range(count))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream)))
        new = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b'"', b"\\u0001", b",", b"}"]))
        )
        stream[at : at + data.draw(st.integers(0, 2))] = new
    cut = data.draw(st.integers(0, len(stream)))
    return bytes(stream[:cut]), bytes(stream[cut:])
