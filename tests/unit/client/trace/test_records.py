"""The text form of traces, as clients of both lines of RocketMQ write it."""

from __future__ import annotations

import pytest

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import ConsumeEnd, SendKind
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
    Record,
    TraceError,
    decode_records,
    encode_trace_record,
)
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.headers.send import SendMessageV2Request
from support.wire.recorded import VERSIONS, frames

PUBLISH = Publish(5, "r", "g", "t", "ID", "tag", "k1 k2", "h:1", 6, 7, SendKind.DELAYED, "OFF")
RECORDS: list[Record] = [
    PUBLISH,
    ConsumeBefore(5, None, "g", "REQ", "ID", 2, "k"),
    ConsumeAfter("REQ", "ID", 3, False, None, ConsumeEnd.EXCEPTION, 9, "g"),
    EndTransaction(
        5, "r", "g", "t", "ID", None, "k", "h:1", SendKind.TRANSACTION_COMMIT, "TX",
        LocalState.ROLLBACK, True,
    ),
    Recall(5, "r", "g", "t", "ID", True),
]  # fmt: skip


def recorded_bodies(version: str) -> list[str]:
    """The trace messages that a Java producer and a Java consumer sent."""
    return [
        command.body.decode()
        for name, command in frames(version, "trace")
        if name == "SEND_MESSAGE_V2" and command.header(SendMessageV2Request).topic == TRACE_TOPIC
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_java_wrote_is_read_and_written_again_byte_for_byte(version: str) -> None:
    bodies = recorded_bodies(version)

    kinds = {type(record) for body in bodies for record in decode_records(body)}

    assert {Publish, ConsumeBefore, ConsumeAfter} <= kinds
    assert [_written(body) for body in bodies] == bodies


def _written(body: str) -> str:
    return "".join(map(encode_trace_record, decode_records(body)))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_records(encode_trace_record(record)) == [record]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PUBLISH, "Pub|5|r|g|t|ID|tag|k1 k2|h:1|6|7|3|OFF|true"),
        (RECORDS[1], "SubBefore|5|null|g|REQ|ID|2|k"),
        (RECORDS[2], "SubAfter|REQ|ID|3|false|null|2|9|g"),
        (RECORDS[3], "EndTransaction|5|r|g|t|ID|null|k|h:1|2|TX|ROLLBACK_MESSAGE|true"),
        (RECORDS[4], "Recall|5|r|g|t|ID|true"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_record_has_its_fields_in_order(record: Record, text: str) -> None:
    assert encode_trace_record(record) == text.replace("|", "\x01") + "\x02"


@pytest.mark.parametrize(
    ("fields", "offset_id", "client_host"),
    [(12, "", ""), (13, "", ""), (14, "OFF", ""), (15, "OFF", "c:9")],
)
def test_published_records_of_12_to_15_fields_are_read(
    fields: int, offset_id: str, client_host: str
) -> None:
    row = ["Pub", "5", "r", "g", "t", "ID", "tag", "k", "h:1", "6", "7", "0", "OFF", "true", "c:9"]
    if fields == 13:
        del row[12]
    text = "\x01".join(row[:fields]) + "\x02"

    (record,) = decode_records(text)

    assert isinstance(record, Publish)
    assert (record.success, record.offset_message_id) == (True, offset_id)
    assert record.client_host == client_host


def test_the_cloud_form_of_a_call_s_end_has_neither_time_nor_group() -> None:
    text = encode_trace_record(RECORDS[2], cloud=True)

    assert text == "SubAfter|REQ|ID|3|false|null|2".replace("|", "\x01") + "\x02"
    assert decode_records(text) == [ConsumeAfter("REQ", "ID", 3, False, None, ConsumeEnd.EXCEPTION)]


def test_records_of_an_unknown_kind_are_passed_over() -> None:
    assert decode_records("New\x011\x02" + encode_trace_record(PUBLISH)) == [PUBLISH]


@pytest.mark.parametrize(
    "text", ["Pub\x011\x02", encode_trace_record(PUBLISH).replace("\x016\x01", "\x01x\x01")]
)
def test_a_record_that_is_cut_short_or_has_a_wrong_field_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="Pub"):
        decode_records(text)
