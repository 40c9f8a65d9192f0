"""Commands: both header encodings, odd headers, and the fast path beside the slow one."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.model.errors import ProtocolError, ResponseError
from cometmq.protocol.codes import LanguageCode
from cometmq.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    HeaderError,
    command_at,
    encode_command,
    encode_head,
    read_at_once,
    request,
)
from cometmq.protocol.frame import (
    BINARY_HEADER,
    FRAME_BYTES_MAX,
    JSON_HEADER,
    FrameError,
)
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.pop import PopMessageRequest
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from support.runner.tiers import rounds
from support.wire.frames import command_of, one_command

SEND = {
    "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
    "h": "0", "i": "KEYS\x01k\x02", "j": "0", "k": "false", "l": "16", "m": "false", "n": "b-a",
}  # fmt: skip
PULL = {
    "consumerGroup": "group", "topic": "topic", "queueId": "1", "queueOffset": "7",
    "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000",
    "subscription": "*", "subVersion": "1700000000000", "expressionType": "TAG",
    "maxMsgBytes": "1024", "requestSource": "1", "nsd": "false", "lo": "false",
}  # fmt: skip
POP = {
    "consumerGroup": "group", "topic": "topic", "queueId": "-1", "maxMsgNums": "32",
    "invisibleTime": "60000", "pollTime": "15000", "bornTime": "1", "initMode": "0", "exp": "*",
    "expType": "TAG", "order": "false", "attemptId": "a", "lo": "false",
}  # fmt: skip
AT_ONCE = [(310, SEND, SendMessageV2Request), (320, SEND, SendMessageV2Request),
           (11, PULL, PullMessageRequest), (200050, POP, PopMessageRequest)]  # fmt: skip
read_at_once(PopMessageRequest, 200050)


def at_once(code: int, fields: str) -> str:
    """A header that is read in one pass."""
    return f'{{"code":{code},"extFields":{fields},"flag":0,"opaque":5,"version":409}}'


def decoded(header: str | bytes, body: bytes = b"") -> Command:
    data = header if isinstance(header, bytes) else header.encode()
    return command_of(JSON_HEADER, data, body)


def through_the_wire(command: Command) -> Command:
    return one_command(encode_command(command))


def seen(command: Command) -> dict[str, Any]:
    names = ("code", "flag", "opaque", "version", "language", "remark", "body", "has_fields")
    return {name: getattr(command, name) for name in names} | {"fields": command.fields}


# --- JSON ---------------------------------------------------------------------------------------


def test_a_header_of_nothing_has_the_documented_defaults() -> None:
    command = decoded("{}")

    assert seen(command) == {
        "code": 0, "flag": 0, "opaque": 0, "version": 0, "language": "JAVA", "remark": None,
        "body": b"", "has_fields": False, "fields": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        '{"code":105,"flag":2,"opaque":7,"version":409,"language":"CPP","remark":"r",'
        '"extFields":{"topic":"T","n":"5","b":"true"},"serializeTypeCurrentRPC":"JSON"}',
        '{"extFields":{"topic":"T","n":"5","b":"true"},"opaque":7,"version":409,"remark":"r",'
        '"code":105,"flag":2,"language":"CPP"}',
        '{ "code" : 105 , "flag":2,"opaque":7,"version":409,"language":"CPP","remark":"r",\n'
        '"extFields": {"topic": "T", "n": "5", "b": "true"} } \r\n',
        '{code:105,flag:2,opaque:7,version:409,language:"CPP",remark:"r",'
        'extFields:{topic:"T",n:"5",b:"true"}}',
        "{'code':105,'flag':2,'opaque':7,'version':409,'language':'CPP','remark':'r',"
        "'extFields':{'topic':'T','n':'5','b':'true'}}",
        '{"Code":105,"FLAG":2,"Opaque":7,"vErsion":409,"LANGUAGE":"CPP","Remark":"r",'
        '"extfields":{"topic":"T","n":"5","b":"true"}}',
        '{"code":"105","flag":"2","opaque":"7","version":"409","language":"CPP","remark":"r",'
        '"extFields":{"topic":"T","n":"5","b":"true"}}',
        '{"code":105,"flag":2,"opaque":7,"version":409,"language":"CPP","remark":"r",'
        '"extFields":{"topic":"T","n":5,"b":true,"gone":null}}',
        '{"code":105,"flag":2,"opaque":7,"version":409,"language":1,"remark":"r",'
        '"extFields":{"topic":"T","n":"5","b":"true"}}',
        '{"code":105,"flag":2,"opaque":7,"version":409,"language":"cpp","remark":"r",'
        '"extFields":{"topic":"T","n":"5","b":"true"}}',
        '{"code":105,"flag":2,"opaque":7,"version":409,"language":"CPP","remark":"r",'
        '"what":[{"is":{"this":null}}],"extFields":{"topic":"T","n":"5","b":"true"}}',
    ],
    ids=[
        "as Java writes it", "another order", "blanks and a newline behind", "bare names",
        "single quotes", "other letters", "numbers as texts", "fields of other kinds",
        "the language's number", "the language in small letters", "an unknown member",
    ],
)  # fmt: skip
def test_every_odd_header_says_the_same(header: str) -> None:
    command = decoded(header, b"body")

    assert seen(command) == {
        "code": 105, "flag": 2, "opaque": 7, "version": 409, "language": "CPP", "remark": "r",
        "body": b"body", "has_fields": True, "fields": {"topic": "T", "n": "5", "b": "true"},
    }  # fmt: skip
    assert command.is_oneway
    assert not command.is_response
    assert command.header(GetRouteinfoByTopicRequest).topic == "T"


def test_a_field_that_is_an_object_becomes_its_json_text() -> None:
    command = decoded('{"code":1,"extFields":{"o":{"a":[1,"x"]},"l":[1,2],"f":1.5}}')

    assert command.fields == {"o": '{"a":[1,"x"]}', "l": "[1,2]", "f": "1.5"}


@pytest.mark.parametrize("code", [105, 310])
@pytest.mark.parametrize(
    ("language", "known_as"),
    [
        ('"RUST"', "RUST"), ('"node_js"', "NODE_JS"), ("0", "JAVA"), ("13", "NODE_JS"),
        ('"ZIG"', None), ('""', None), ("null", None),
    ],
)  # fmt: skip
def test_a_language_is_known_by_name_and_number_and_an_unknown_name_is_no_harm(
    code: int, language: str, known_as: str | None
) -> None:
    assert decoded(f'{{"code":{code},"language":{language}}}').language == known_as


@pytest.mark.parametrize(
    ("fields", "has_fields"),
    [("", False), (',"extFields":null', False), (',"extFields":{}', True)],
)
@pytest.mark.parametrize("code", [105, 310, 11])
def test_no_fields_and_an_empty_map_of_fields_are_told_apart(
    code: int, fields: str, has_fields: bool
) -> None:
    command = decoded(f'{{"code":{code}{fields}}}')

    assert command.has_fields is has_fields
    assert command.fields == {}


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (310, '{"code":310,"x":' + "[" * 99_999 + "]" * 99_999 + "}"),
        (11, '{"code":11,"x":' + '{"a":' * 99_999 + "1" + "}" * 99_999 + "}"),
        (105, '{"code":105,"extFields":{"f":' + "[" * 99_999 + "]" * 99_999 + "}}"),
    ],
    ids=["list", "map", "field"],
)
def test_a_header_nested_to_any_depth_is_read_or_refused(code: int, header: str) -> None:
    """Python limits the depth up to 3.13, the size of the stack from 3.14 on."""
    with suppress(HeaderError):
        assert decoded(header).code == code


@pytest.mark.parametrize(
    "header",
    [
        "", " ", "{", "}", "[]", "[1]", "7", '"text"', "null", "\0", "{]", '{"code":}',
        '{"code":105', '{"code":"x"}', '{"code":[1]}', '{"code":{"a":1}}', '{"code":1e999}',
        '{"code":4294967296}', '{"code":-2147483649}', '{"opaque":2147483648}',
        '{"opaque":"9999999999"}', '{"flag":"x"}', '{"version":[2]}', '{"language":14}',
        '{"language":-1}', '{"language":{}}', '{language:{}}', '{language:[1]}', '{"language":1.5}',
        '{{"a":1}:2}', '{"code":310,"language":99}', '{"code":310,"opaque":2147483648}',
        '{"code":' + "9" * 5000 + "}", '{"code":310,"opaque":' + "9" * 5000 + "}",
        '{"code":310,"x":' + "[" * 100_000,
        b'{"code":105,"remark":"\xff"}', b'{"code":310,"remark":"\xe0\x80"}', b"\xff\xfe",
    ],
    ids=lambda header: repr(header[:28]),
)  # fmt: skip
def test_what_is_no_header_is_refused(header: str | bytes) -> None:
    with pytest.raises(HeaderError):
        decoded(header)


def test_fields_that_are_not_utf8_are_refused_where_they_are_read() -> None:
    """The frame is whole and its opaque is known, so the request can be answered."""
    command = decoded(b'{"code":105,"opaque":7,"extFields":{"topic":"\xff"}}')

    assert command.opaque == 7
    with pytest.raises((ProtocolError, ResponseError)):
        command.header(GetRouteinfoByTopicRequest)


# --- the fast path and the slow one -------------------------------------------------------------

ODD_VALUES = [
    '"1"', "1", "0", '"0"', "true", "false", "null", '"null"', '"NULL"', '"true"', '"TRUE"',
    '"True"', '"yes"', '"t"', '"on"', '""', '" 5"', '"5 "', '"+5"', '"-5"', "-5", '"007"', '"5.0"',
    "5.0", "5.5", '"5.5"', '"1e3"', "1e3", '"2e9"', '"3e9"', "1e30", '"1e30"', '"0x10"', '"1_0"',
    '"-0"', "-0", '"--5"', "99999999999", '"99999999999"', '"2147483647"', '"2147483648"',
    '"-2147483649"', '"9223372036854775808"', "{}", "[]", '{"x":1}', '"\\u0035"', '"\\u0665"',
    '"\\n"', '"x\\"y"', "1.0", '"1.0"', '"nan"', '"Infinity"',
]  # fmt: skip


def texts(fields: dict[str, str], **changed: str) -> str:
    """A map of fields as JSON text; what is changed is JSON text already."""
    written = {name: json.dumps(value) for name, value in fields.items()} | changed
    return "{" + ",".join(f'"{name}":{value}' for name, value in written.items()) + "}"


def outcome(kind: type[Header], header: str) -> Header | str:
    command = decoded(header)
    try:
        return command.header(kind)
    except ResponseError as refused:
        return f"{refused.code}"


def of_all_paths(code: int, kind: type[Header], fields: str) -> list[Header | str]:
    """One header read at once, read when asked for, read by hand; and from the binary form."""
    on_demand = f'{{"opaque":5,"flag":0,"code":{code},"extFields":{fields}}}'
    by_hand = f"{{'opaque':5,flag:0,code:{code},extFields:{fields}}}"
    return [outcome(kind, header) for header in (at_once(code, fields), on_demand, by_hand)]


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize(("code", "fields", "kind"), AT_ONCE, ids=["310", "320", "11", "200050"])
def test_an_odd_value_is_read_the_same_on_every_path(
    code: int, fields: dict[str, str], kind: type[Header], value: str
) -> None:
    for name in fields:
        found = of_all_paths(code, kind, texts(fields, **{name: value}))
        assert found.count(found[0]) == len(found), f"{name}={value}: {found}"


@pytest.mark.parametrize(("code", "fields", "kind"), AT_ONCE, ids=["310", "320", "11", "200050"])
def test_a_missing_field_is_noticed_the_same_on_every_path(
    code: int, fields: dict[str, str], kind: type[Header]
) -> None:
    for name in fields:
        left = {key: value for key, value in fields.items() if key != name}
        found = of_all_paths(code, kind, texts(left))
        assert found.count(found[0]) == len(found), f"without {name}: {found}"


@pytest.mark.parametrize(("code", "fields", "kind"), AT_ONCE, ids=["310", "320", "11", "200050"])
def test_unknown_fields_change_nothing_but_are_all_there(
    code: int, fields: dict[str, str], kind: type[Header]
) -> None:
    plain = decoded(at_once(code, texts(fields)))
    more = '"AccessKey":"k","Signature":"s","x":{"y":[null,1.5]},"__ZONE_NAME":null'
    extended = decoded(at_once(code, f"{texts(fields)[:-1]},{more}}}"))

    assert extended.header(kind) == plain.header(kind)
    extra = {"AccessKey": "k", "Signature": "s", "x": '{"y":[null,1.5]}'}
    assert extended.fields == fields | extra
    assert plain.fields == fields
    assert plain.has_fields


@pytest.mark.parametrize("value", ['"1"', "1", '"yes"'])
def test_a_boolean_is_true_only_when_it_says_so(value: str) -> None:
    """Even where the word stands elsewhere in the header."""
    fields = texts(SEND, m=value, i='"WAIT\\u0001true\\u0002"')

    for found in of_all_paths(320, SendMessageV2Request, fields):
        assert isinstance(found, SendMessageV2Request)
        assert found.batch is False


def test_the_binary_form_of_a_header_is_read_as_its_json_form() -> None:
    for code, fields, kind in AT_ONCE:
        command = Command(code, fields=fields, serialization=BINARY_HEADER)
        typed = through_the_wire(command).header(kind)
        assert typed == decoded(at_once(code, texts(fields))).header(kind)


def test_one_command_can_be_read_as_several_headers() -> None:
    """Typed at once as one kind, asked for as another."""
    command = decoded(at_once(310, texts(SEND)[:-1] + ',"topic":"other"}'))

    assert command.header(SendMessageV2Request).topic == "topic"
    assert command.header(GetRouteinfoByTopicRequest).topic == "other"
    with pytest.raises(ResponseError, match="required field"):
        command.header(SendMessageRequest)


def test_members_in_other_letters_count_in_every_header() -> None:
    header = at_once(310, texts(SEND))

    assert decoded(header.replace("opaque", "Opaque")).opaque == 5
    assert decoded(header.replace("extFields", "extfields")).fields == SEND


# --- both encodings -----------------------------------------------------------------------------

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
COMMANDS = st.builds(
    Command,
    st.integers(0, 2**15 - 1),
    opaque=INT32,
    flag=st.integers(0, 3),
    version=st.integers(0, 2**15 - 1),
    language=st.sampled_from([language.name for language in LanguageCode]),
    remark=st.none() | TEXT.filter(bool),
    fields=st.none() | st.dictionaries(TEXT, TEXT.filter(bool), min_size=1, max_size=4),
    body=st.binary(max_size=40),
    serialization=st.sampled_from([JSON_HEADER, BINARY_HEADER]),
)


@given(COMMANDS)
def test_a_command_comes_back_as_it_was(command: Command) -> None:
    back = through_the_wire(command)

    assert seen(back) == seen(command)
    assert back.serialization == command.serialization
    assert encode_command(back) == encode_command(command)


@given(st.lists(COMMANDS, min_size=1, max_size=3), st.binary(max_size=6), st.data())
def test_a_command_is_read_out_of_a_buffer_once_all_of_it_is_there(
    commands: list[Command], before: bytes, data: st.DataObject
) -> None:
    stream = bytearray(before + b"".join(map(encode_command, commands)))
    start = len(before)
    for command in commands:
        size = len(encode_command(command))
        end = data.draw(st.integers(start, start + size - 1))
        assert command_at(stream, start, end, FRAME_BYTES_MAX) is None
        found = command_at(stream, start, len(stream), FRAME_BYTES_MAX)
        assert found is not None
        assert seen(found) == seen(command)
        assert found.frame_bytes == size
        start += size
    assert command_at(stream, start, len(stream), FRAME_BYTES_MAX) is None


SAMPLES = [
    encode_command(Command(code, opaque=7, fields=fields, body=b"body", serialization=encoding))
    for encoding in (JSON_HEADER, BINARY_HEADER)
    for code, fields, _ in AT_ONCE
] + [encode_command(Command(17, flag=RESPONSE_FLAG, remark="no topic", opaque=9))]


@settings(max_examples=rounds(test=200, long=5000))
@given(st.sampled_from(SAMPLES), st.data())
def test_damage_to_a_frame_raises_nothing_but_what_is_said(
    sample: bytes, data: st.DataObject
) -> None:
    """Whatever comes: a connection is closed, or a request is answered, and never an accident."""
    damaged = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        cut = data.draw(st.integers(0, 3))
        damaged[at : at + cut] = data.draw(st.binary(max_size=4))
    try:
        command = command_at(damaged, 0, len(damaged), FRAME_BYTES_MAX)
        if command is not None:
            assert isinstance(command.fields, dict)
            for _, _, kind in AT_ONCE:
                command.header(kind)
    except (ProtocolError, ResponseError):
        pass


@given(st.binary(max_size=60), st.sampled_from([JSON_HEADER, BINARY_HEADER]))
def test_a_header_of_any_bytes_raises_nothing_but_what_is_said(data: bytes, encoding: int) -> None:
    try:
        command = command_of(encoding, data)
        assert isinstance(command.fields, dict)
    except ProtocolError:
        pass


def test_flag_bits_are_read_by_the_lowest_first() -> None:
    kinds = [
        (Command(1, flag=flag).is_response, Command(1, flag=flag).is_oneway) for flag in range(4)
    ]

    assert kinds == [(False, False), (True, False), (False, True), (True, True)]


# --- binary -------------------------------------------------------------------------------------


def binary(*, remark: bytes = b"", fields: bytes = b"", language: int = 0) -> bytes:
    fixed = struct.pack(">hBhii", 105, language, 409, 7, 0)
    sized = [struct.pack(">i", len(part)) + part for part in (remark, fields)]
    return fixed + b"".join(sized)


def entry(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def test_empty_texts_of_the_binary_form_are_not_there() -> None:
    command = command_of(BINARY_HEADER, binary(fields=entry(b"a", b"")))

    assert command.remark is None
    assert command.fields == {}
    assert command.has_fields


def test_a_language_the_binary_form_does_not_know_is_none() -> None:
    assert command_of(BINARY_HEADER, binary(language=200)).language is None


def test_a_negative_code_of_the_binary_form_stays_negative() -> None:
    back = through_the_wire(Command(-5, serialization=BINARY_HEADER))

    assert (back.code, back.serialization) == (-5, BINARY_HEADER)


@pytest.mark.parametrize("code", [2**15, 200_050, -(2**15)])
def test_a_code_too_large_for_the_binary_form_travels_as_json(code: int) -> None:
    back = through_the_wire(Command(code, serialization=BINARY_HEADER))

    assert (back.code, back.serialization) == (code, JSON_HEADER)


@pytest.mark.parametrize(
    "header",
    [
        binary()[:-1],
        binary()[:20],
        b"",
        binary(remark=b"\xff"),
        binary(fields=b"\x00"),
        binary(fields=entry(b"a", b"b") + b"\x00\x09"),
        binary(fields=entry(b"a", b"b")[:-1]),
        binary(fields=entry(b"\xff", b"b")),
        binary(fields=entry(b"a", b"\xff")),
        binary(fields=struct.pack(">h", -1)),
        binary(fields=struct.pack(">h", 1) + b"a" + struct.pack(">i", -1)),
        binary(fields=struct.pack(">h", 1) + b"a" + struct.pack(">i", 2**31 - 1)),
        binary()[:-8] + struct.pack(">i", -1) + binary()[-4:],
        binary()[:-8] + struct.pack(">i", 2**30) + binary()[-4:],
        binary()[:-4] + struct.pack(">i", -1),
        binary()[:-4] + struct.pack(">i", 5) + b"abcd",
    ],
)
def test_a_binary_header_whose_lengths_lie_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError):
        command_of(BINARY_HEADER, header)


# --- writing ------------------------------------------------------------------------------------


def test_what_is_written_is_strict_json_with_texts_alone() -> None:
    header = PullMessageRequest(**msgspec.structs.asdict(decoded(
        f'{{"code":11,"extFields":{texts(PULL)}}}').header(PullMessageRequest)))  # fmt: skip
    frame = encode_command(request(11, header, b"", opaque=3, fields={"more": "yes"}))
    written = json.loads(frame[8:])

    assert list(written) == [
        "code", "extFields", "flag", "language", "opaque", "serializeTypeCurrentRPC", "version"
    ]  # fmt: skip
    assert written["extFields"] == PULL | {"more": "yes"}
    assert all(isinstance(value, str) for value in written["extFields"].values())


def test_a_oneway_request_says_so() -> None:
    assert request(1, oneway=True).flag == ONEWAY_FLAG
    assert request(1).flag == 0


def test_a_header_longer_than_its_length_field_is_not_written() -> None:
    with pytest.raises(FrameError, match="a header of"):
        encode_head(1, opaque=1, remark="x" * 2**24)
