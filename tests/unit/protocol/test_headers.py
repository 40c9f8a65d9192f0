"""Typed headers: read forgivingly, written as text."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.base import (
    I32_MAX,
    I32_MIN,
    I64_MAX,
    I64_MIN,
    Header,
    decode_fields,
    encode_fields,
)
from cometmq.protocol.headers.consumer import GetConsumerRunningInfoRequest, UnregisterClientRequest
from cometmq.protocol.headers.namesrv import RegisterBrokerRequest
from cometmq.protocol.headers.offset import QueryConsumerOffsetRequest
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.headers.table_page import (
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
)
from support.checks.cases import case
from support.wire.wire_classes import HEADERS, header_class

CHARACTERS = (*range(0xD800), *range(0xE000, 0x11000), 0x1F680, 0x10FFFF)
"""None is half of a surrogate pair."""
OFFSET_QUERY = {"consumerGroup": "g", "topic": "T", "queueId": "3"}


def value_of(info: msgspec.structs.FieldInfo, chance: Random) -> Any:
    """Any value that a field may have, the outermost ones often."""
    text = str(info.type)
    if not info.required and chance.random() < 0.3:
        return None
    if "bool" in text:
        return chance.random() < 0.5
    if "int" in text:
        low, high = (I32_MIN, I32_MAX) if str(I32_MAX) in text else (I64_MIN, I64_MAX)
        return chance.choice([low, -1, 0, 1, high, chance.randint(low, high)])
    return "".join(map(chr, (chance.choice(CHARACTERS) for _ in range(chance.randrange(9)))))


@pytest.mark.parametrize("seed", range(10))
def test_each_header_comes_back_from_its_fields(seed: int) -> None:
    chance = Random(seed)
    for kind in HEADERS.values():
        fields = msgspec.structs.fields(kind)
        made = kind(**{info.name: value_of(info, chance) for info in fields})
        with case(made):
            comes_back(made, fields)


def comes_back(made: Header, fields: tuple[msgspec.structs.FieldInfo, ...]) -> None:
    optional_false = {
        info.name: info.default
        for info in fields
        if not info.required and info.default not in (None, msgspec.NODEFAULT)
    }
    wire = encode_fields(made)

    kind = type(made)
    found = decode_fields(kind, wire)
    at_once = msgspec.json.decode(msgspec.json.encode(wire), type=kind, strict=False)

    for info in fields:
        expected = getattr(made, info.name)
        if expected is None and info.name in optional_false:
            expected = optional_false[info.name]  # left out, so the default stands
        assert getattr(found, info.name) == expected
        assert getattr(at_once, info.name) == expected


def test_values_may_be_numbers_booleans_or_null() -> None:
    fields = {"consumerGroup": 7, "topic": True, "queueId": 3, "setZeroIfNotFound": "TRUE"}
    fields["bname"] = None  # type: ignore[assignment]

    found = decode_fields(QueryConsumerOffsetRequest, fields)

    assert found == QueryConsumerOffsetRequest(
        consumer_group="7", topic="true", queue_id=3, set_zero_if_not_found=True
    )


@pytest.mark.parametrize("text", ["false", "yes", "1", "", "truee"])
def test_a_boolean_is_false_unless_it_says_true(text: str) -> None:
    found = decode_fields(QueryConsumerOffsetRequest, OFFSET_QUERY | {"setZeroIfNotFound": text})
    assert found.set_zero_if_not_found is False


@pytest.mark.parametrize("text", ["+3", "03", "3"])
def test_numbers_are_read_as_java_reads_them(text: str) -> None:
    found = decode_fields(QueryConsumerOffsetRequest, OFFSET_QUERY | {"queueId": text})
    assert found.queue_id == 3


@pytest.mark.parametrize(
    "text", ["", "x", " 3", "3 ", "1_000", "--3", "+", "3.5", "0x3", "2147483648", "9" * 5000, True]
)
def test_an_unreadable_number_is_code_1_and_names_the_field(text: Any) -> None:
    with pytest.raises(ResponseError) as refusal:
        decode_fields(QueryConsumerOffsetRequest, OFFSET_QUERY | {"queueId": text})

    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    assert "queueId" in refusal.value.remark
    assert len(refusal.value.remark) < 200


def test_a_missing_field_is_code_1_and_named() -> None:
    with pytest.raises(ResponseError) as refusal:
        decode_fields(QueryConsumerOffsetRequest, {"topic": "T", "consumerGroup": "g"})

    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    assert refusal.value.remark == ("QueryConsumerOffsetRequest: required field queueId is missing")


def test_unknown_fields_do_not_matter() -> None:
    found = decode_fields(QueryConsumerOffsetRequest, OFFSET_QUERY | {"new": "thing"})
    assert found.topic == "T"


def test_names_with_an_odd_spelling_travel_as_rocketmq_spells_them() -> None:
    assert encode_fields(UnregisterClientRequest(client_id="c")) == {"clientID": "c"}
    assert encode_fields(
        RegisterBrokerRequest(
            broker_name="b", broker_addr="a", cluster_name="c", ha_server_addr="h", broker_id=0
        )
    ) == {
        "brokerName": "b",
        "brokerAddr": "a",
        "clusterName": "c",
        "haServerAddr": "h",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": "0",
    }
    pull = PullMessageRequest(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=1,
        max_msg_nums=2,
        sys_flag=3,
        commit_offset=4,
        suspend_timeout_millis=5,
        sub_version=6,
        proxy_froward_client_id="c",
    )
    assert encode_fields(pull)["proxyFrowardClientId"] == "c"


def test_both_forms_of_a_send_have_the_same_fields() -> None:
    long_names = {info.name for info in msgspec.structs.fields(SendMessageRequest)}
    short_names = {info.name for info in msgspec.structs.fields(SendMessageV2Request)}
    wire_names = {info.encode_name for info in msgspec.structs.fields(SendMessageV2Request)}

    assert short_names <= long_names
    of_sessions = {"producerSession", "producerEpoch", "producerOwner"}
    assert wire_names - of_sessions == set("abcdefghijklmn")


def test_a_flag_without_a_mark_of_absence_has_a_default() -> None:
    found = decode_fields(GetConsumerRunningInfoRequest, {"consumerGroup": "g", "clientId": "c"})
    assert found.jstack_enable is False


def test_every_header_is_named_after_a_request_or_its_response() -> None:
    ends = (False, True)
    found = {header_class(code, is_response=end) for code in RequestCode for end in ends}

    # RocketMQ has given two classes other names than their request.
    others = {GetAllSubscriptionGroupRequest, GetAllSubscriptionGroupResponse}
    assert {*HEADERS.values()} - found == others
