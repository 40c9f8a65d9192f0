"""Frames captured between real clients and servers, decoded and encoded again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, decode_body
from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.protocol.headers.base import Header, decode_fields, encode_fields
from cometmq.protocol.record import decode_messages
from golden.recordings import SCENARIOS, Recorded, recorded
from support.wire.frames import CommandDecoder
from support.wire.wire_classes import recorded_classes

ANSWERED = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
"""Codes whose header is complete."""
ADDED_BY_HOOKS = {"AccessKey", "Signature", "SecurityToken", "ReqT"}
ADDED_TO_ANSWERS = {"MSG_REGION", "TRACE_ON"}
OTHER_THAN_JSON = {"GET_COLD_DATA_FLOW_CTR_INFO_RESPONSE", "GET_BROKER_EPOCH_CACHE_RESPONSE"}
"""Texts that look like JSON but are handed on as they are."""
RECORDS = {
    "PULL_MESSAGE_RESPONSE",
    "LITE_PULL_MESSAGE_RESPONSE",
    "POP_MESSAGE_RESPONSE",
    "QUERY_MESSAGE_RESPONSE",
    "VIEW_MESSAGE_BY_ID_RESPONSE",
    "CHECK_TRANSACTION_STATE",
}


def header_class(row: dict[str, Any]) -> type[Header] | None:
    is_complete = not row["name"].endswith("_RESPONSE") or row["code"] in ANSWERED
    return recorded_classes(row["name"])[0] if is_complete else None


def wire_fields(row: dict[str, Any]) -> dict[str, str]:
    """The recorded fields as they reach a handler: an empty binary value is none."""
    fields = row["header"].get("extFields") or {}
    if row["serialize"] == "ROCKETMQ":
        return {name: value for name, value in fields.items() if value}
    return fields


def check_against_row(command: Command, row: dict[str, Any]) -> None:
    header = row["header"]
    assert (command.code, command.flag, command.opaque) == (row["code"], row["flag"], row["opaque"])
    assert command.language == header["language"]
    assert command.version == header["version"]
    assert (command.remark or None) == (header.get("remark") or None)
    assert command.fields == wire_fields(row)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_frame_decodes_to_what_a_real_decoder_saw(scenario: str) -> None:
    for frame in recorded(scenario):
        command = frame.command()

        check_against_row(command, frame.row)
        assert len(command.body) == frame.row["body_len"]
        assert (command.serialization == BINARY_HEADER) == (frame.row["serialize"] == "ROCKETMQ")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_frame_keeps_its_meaning_when_encoded_again(scenario: str) -> None:
    for frame in recorded(scenario):
        command = frame.command()

        head = encode_head(
            command.code,
            opaque=command.opaque,
            flag=command.flag,
            fields=command.fields if command.has_fields else None,
            remark=command.remark,
            serialization=command.serialization,
            version=command.version,
            language=LanguageCode[command.language or "OTHER"],
            body_bytes=len(command.body),
        )

        again = Recorded(frame.row, head + command.body).command()
        check_against_row(again, frame.row)
        assert again.body == command.body
        assert again.has_fields == command.has_fields


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_frame_comes_out_whole_when_it_arrives_in_pieces(scenario: str) -> None:
    stream = b"".join(frame.data for frame in recorded(scenario))
    expected = [frame.command().opaque for frame in recorded(scenario)]

    decoder, opaques = CommandDecoder(), []
    for start in range(0, len(stream), 997):
        decoder.receive(stream[start : start + 997])
        while (found := decoder.next_command()) is not None:
            opaques.append(found.opaque)

    assert opaques == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_header_has_a_type_that_loses_nothing(scenario: str) -> None:
    for frame in recorded(scenario):
        fields, kind = wire_fields(frame.row), header_class(frame.row)
        if kind is None:
            is_request = not frame.row["name"].endswith("_RESPONSE")
            assert not (is_request and fields.keys() - ADDED_BY_HOOKS), frame.row["name"]
            continue

        typed = frame.command().header(kind)

        assert decode_fields(kind, fields) == typed
        check_fields(kind, encode_fields(typed), fields, frame.row["name"])


def check_fields(kind: type[Header], ours: dict[str, str], wire: dict[str, str], name: str) -> None:
    """All that was on the wire is there, and nothing else but defaults."""
    known = {info.encode_name for info in msgspec.structs.fields(kind)}
    strange = wire.keys() - known - ADDED_BY_HOOKS
    assert strange <= (ADDED_TO_ANSWERS if name.endswith("_RESPONSE") else set()), name
    assert {key: ours.get(key) for key in wire.keys() & known} == {
        key: wire[key] for key in wire.keys() & known
    }
    assert all(ours[key] in ("false", "0") for key in ours.keys() - wire.keys()), name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_json_body_has_a_type_that_loses_nothing(scenario: str) -> None:
    for frame in recorded(scenario):
        body = frame.command().body
        if body[:1] != b"{" or frame.row["name"] in OTHER_THAN_JSON:
            continue
        _, kind = recorded_classes(frame.row["name"])
        assert kind is not None, frame.row["name"]

        typed = decode_body(kind, body)

        again = typed.encode() if isinstance(typed, Body) else fastjson.dumps(typed)
        assert decode_body(kind, again) == typed
        check_contains(fastjson.loads(again), fastjson.loads(body), frame.row["name"])


def check_contains(ours: Any, wire: Any, where: str) -> None:
    """Every member on the wire is in ours with the same value; ours may have more members."""
    if isinstance(wire, fastjson.Pairs):
        assert [key for key, _ in ours] == [key for key, _ in wire], where
        for (key, mine), (_, theirs) in zip(ours, wire, strict=True):
            check_contains(mine, theirs, f"{where}.{key}")
    elif isinstance(wire, dict):
        assert wire.keys() <= (dict(ours)).keys(), where
        for name, value in wire.items():
            check_contains(ours[name], value, f"{where}.{name}")
    elif isinstance(wire, list):
        assert len(ours) == len(wire), where
        for mine, theirs in zip(ours, wire, strict=True):
            check_contains(mine, theirs, where)
    else:
        assert ours == wire, where


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_body_of_records_decodes_whole(scenario: str) -> None:
    for frame in recorded(scenario):
        body = frame.command().body
        if frame.row["name"] not in RECORDS or not body:
            continue

        messages = decode_messages(body)

        assert sum(message.size_bytes for message in messages) == len(body)
        assert all(message.topic and message.store_host for message in messages)
