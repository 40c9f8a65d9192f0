"""Requests and responses, and success formats beside the general encoder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import ResponseError
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from cometmq.protocol.headers.offset import QueryConsumerOffsetResponse
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageResponse
from cometmq.remoting import Request, Response, SuccessFormat
from cometmq.remoting.requests import DECIMAL, HEX, TEXT
from support.wire.fake_transport import Wired
from support.wire.frames import one_command

INT32 = st.integers(-(2**31), 2**31 - 1)
TRACE = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def decoded(head: bytes) -> Command:
    return one_command(head)


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER])
@pytest.mark.parametrize("remark", [None, "FOUND"])
@given(st.integers(0, 2**63 - 1), st.integers(0, 65535), st.integers(0, 2**63 - 1), INT32)
def test_a_format_writes_what_a_response_writes(
    serialization: int,
    remark: str | None,
    log_offset: int,
    queue_id: int,
    queue_offset: int,
    opaque: int,
) -> None:
    """Byte for byte, when the fields come in the same order."""
    success = SuccessFormat(
        {"msgId": "7F000001" + HEX, "queueId": DECIMAL, "queueOffset": DECIMAL, **TRACE},
        remark,
        serialization=serialization,
    )
    header = SendMessageResponse(
        msg_id=f"7F000001{log_offset:016X}", queue_id=queue_id, queue_offset=queue_offset
    )
    fields = Response(header=header, fields=TRACE).all_fields()

    assert success.head((log_offset, queue_id, queue_offset, opaque)) == encode_head(
        0, opaque=opaque, flag=1, fields=fields, remark=remark, serialization=serialization
    )


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER])
def test_a_format_may_have_two_texts(serialization: int) -> None:
    success = SuccessFormat(
        {"ids": TEXT, "offset": DECIMAL, "id": TEXT}, serialization=serialization
    )
    frame = success.head((7, 8), text=b"first", second=b"second")
    assert decoded(frame).fields == {"ids": "first", "offset": "7", "id": "second"}


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER])
@given(st.lists(st.binary(min_size=1, max_size=300).map(bytes.hex), min_size=1, max_size=40), INT32)
def test_a_text_in_a_format_may_have_any_length(
    serialization: int, ids: list[str], opaque: int
) -> None:
    success = SuccessFormat(
        {"before": DECIMAL, "ids": TEXT, "after": DECIMAL}, serialization=serialization
    )
    told = ",".join(ids)

    for _ in range(2):
        answer = decoded(success.head((7, 8, opaque), text=told.encode()))
        assert answer.opaque == opaque
        assert answer.fields == {"before": "7", "ids": told, "after": "8"}


@pytest.mark.parametrize("region", ["海" * 5000, "100%", 'a "quoted" one', '"opaque":0', "\\"])
@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER])
def test_what_is_always_the_same_may_be_any_text(region: str, serialization: int) -> None:
    success = SuccessFormat({"region": region, "offset": DECIMAL}, serialization=serialization)

    answer = decoded(success.head((5, 9)))
    assert (answer.opaque, answer.fields) == (9, {"region": region, "offset": "5"})


def test_a_format_with_more_numbers_than_it_has_room_for_is_refused() -> None:
    for serialization in (JSON_HEADER, BINARY_HEADER):
        SuccessFormat({str(n): DECIMAL for n in range(7)}, serialization=serialization)
        with pytest.raises(ValueError, match="9 numbers in a response, expected at most 8"):
            SuccessFormat({str(n): DECIMAL for n in range(8)}, serialization=serialization)


def test_an_answer_that_is_formatted_says_all_that_an_answer_says() -> None:
    head = SuccessFormat({"offset": DECIMAL}).head((5, 9))
    answer, written = decoded(head), json.loads(head[8:])

    assert (answer.code, answer.opaque, answer.flag, answer.remark) == (0, 9, 1, None)
    assert (answer.version, answer.language) == (479, "PYTHON")
    assert written["serializeTypeCurrentRPC"] == "JSON"


async def test_header_and_further_fields_of_a_response_travel_together() -> None:
    answer = Response(header=QueryConsumerOffsetResponse(offset=5), fields=TRACE)

    assert answer.all_fields() == {"offset": "5"} | TRACE
    assert Response(fields=TRACE).all_fields() == TRACE
    assert Response().all_fields() is None


async def request(**options: int) -> tuple[Wired, Request]:
    wired = Wired()
    return wired, Request(Command(310, opaque=7, body=b"body", **options), wired.connection)


async def test_a_second_answer_is_refused_whichever_way_it_is_given() -> None:
    for first in ("reply", "reply_head"):
        for second in ("reply", "reply_head"):
            for flag in (0, 2):
                _, incoming = await request(flag=flag)
                answers = {
                    "reply": lambda to=incoming: to.reply(Response()),
                    "reply_head": lambda to=incoming: to.reply_head(b"head"),
                }
                answers[first]()
                with pytest.raises(AssertionError, match="a second response"):
                    answers[second]()
                assert incoming.responded


async def test_an_answer_that_cannot_be_encoded_leaves_the_request_open() -> None:
    wired, incoming = await request(serialization=BINARY_HEADER)
    with pytest.raises(UnicodeEncodeError):
        incoming.reply(Response(remark="\ud800"))

    assert not incoming.responded
    incoming.reply(Response(remark="fine"))
    wired.connection.close()
    (answer,) = wired.answers
    assert (answer.opaque, answer.remark) == (7, "fine")


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER])
async def test_a_response_that_only_says_success_is_that_of_the_general_encoder(
    serialization: int,
) -> None:
    wired, incoming = await request(serialization=serialization)
    incoming.reply(Response())
    wired.connection.close()

    assert bytes(wired.transport.written) == encode_head(
        0, opaque=7, flag=1, serialization=serialization
    )


async def test_a_body_of_no_bytes_is_no_body() -> None:
    wired, incoming = await request()
    incoming.reply(Response(body=[b"", memoryview(b"")]))
    wired.connection.close()

    assert [answer.body for answer in wired.answers] == [b""]


async def test_a_header_that_lacks_a_field_refuses_the_request() -> None:
    _, incoming = await request()

    with pytest.raises(ResponseError) as refused:
        incoming.header(PullMessageRequest)
    assert refused.value.code == 1
