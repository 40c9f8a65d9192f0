"""The records of the revive topic, from and to their bytes."""

from __future__ import annotations

import json

import pytest

from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.pop.records import (
    ACK,
    ACKS,
    CHECK_POINT,
    AckOf,
    StoredCheckPoint,
    acks_body,
    check_point_body,
    properties_of,
    read_record,
)
from cometmq.model.errors import ProtocolError
from cometmq.protocol.record import RecordParts, encode_host, encode_record, split_record

NOW_MS = 1_700_000_000_000
HOST = encode_host("10.0.0.1", 10911)


def record(tag: bytes, body: bytes, more: bytes = b"") -> RecordParts:
    return split_record(
        encode_record(
            b"rmq_sys_REVIVE_LOG_c",
            body,
            properties_of(tag, NOW_MS) + more,
            queue_id=3,
            queue_offset=17,
            log_offset=0,
            born_time_ms=NOW_MS,
            born_host=HOST,
            store_time_ms=NOW_MS,
            store_host=HOST,
        )
    )


@pytest.mark.parametrize("offsets", [range(5, 37), range(6, 8), (5, 7, 900)])
def test_a_check_point_comes_back(offsets: range | tuple[int, ...]) -> None:
    point = CheckPoint("g", "%RETRY%g_T", 2, 5, offsets, NOW_MS, 60_000, 3)
    point.acked = 0b10
    found = read_record(record(CHECK_POINT, check_point_body(point, '"broker-a"')))
    assert isinstance(found, StoredCheckPoint)
    assert (found.broker_name, found.is_foreign) == ("broker-a", False)
    read = found.point
    assert (read.group, read.topic, read.queue_id, read.start) == ("g", "%RETRY%g_T", 2, 5)
    assert list(read.offsets) == list(offsets)
    assert (read.pop_ms, read.invisible_ms, read.acked) == (NOW_MS, 60_000, 0b10)
    assert (read.revive_queue, read.record_offset) == (3, 17)


def test_the_bit_of_the_last_of_32_messages_is_the_sign_of_a_java_number() -> None:
    point = CheckPoint("g", "T", 0, 0, range(32), NOW_MS, 0, 0)
    point.acked = 1 << 31
    body = check_point_body(point, '"b"')
    assert json.loads(body)["bm"] == -(2**31)
    found = read_record(record(CHECK_POINT, body))
    assert isinstance(found, StoredCheckPoint)
    assert found.point.acked == 1 << 31


def test_acknowledgements_come_back() -> None:
    ack = AckOf("g", "T", 1, 5, NOW_MS, "b", (5, 9), invisible_ms=7, next_offset=10)
    assert read_record(record(ACKS, acks_body(ack))) == ack


def test_records_of_rocketmq_are_read() -> None:
    """As RocketMQ 5.3.3 writes them, with a unique key."""
    key = b"UNIQ_KEY\x01T@0@5@g@1700@broker-a@ck\x02"
    body = (
        b'{"bm":0,"bn":"broker-a","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700,"q":0,"ro":0,'
        b'"so":5,"t":"T","rp":null}'
    )
    found = read_record(record(CHECK_POINT, body, key))
    assert isinstance(found, StoredCheckPoint)
    assert found.is_foreign
    assert found.point.offsets == (5, 7)
    body = b'{"ao":7,"bn":"broker-a","c":"g","pt":1700,"q":0,"so":5,"t":"T"}'
    assert read_record(record(ACK, body)) == AckOf("g", "T", 0, 5, 1700, "broker-a", (7,))
    assert read_record(record(b"other", body)) is None


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        (CHECK_POINT, b"{"),
        (CHECK_POINT, b'{"so":0,"pt":0,"it":0,"t":"T","c":"g","q":0,"n":0}'),
        (CHECK_POINT, b'{"so":0,"pt":0,"it":0,"t":"T","c":"g","q":0,"n":9999999}'),
        (CHECK_POINT, b'{"so":-1,"pt":0,"it":0,"t":"T","c":"g","q":0,"n":1}'),
        (CHECK_POINT, b'{"so":0,"pt":0,"it":0,"t":"T","c":"","q":0,"n":1}'),
        (CHECK_POINT, b'{"so":0,"pt":0,"it":0,"t":"T","c":"g","q":0,"d":[-1]}'),
        (ACKS, b'{"so":0,"pt":0,"t":"T","c":"g","q":0,"aol":[]}'),
        (ACKS, b'{"so":0,"pt":0,"t":"T","c":"g","q":"x","aol":[1]}'),
    ],
)
def test_records_that_no_broker_writes_are_refused(tag: bytes, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_record(record(tag, body))


def test_a_damaged_body_is_refused() -> None:
    body = acks_body(AckOf("g", "T", 1, 5, NOW_MS, "b", (5,)))
    with pytest.raises(ProtocolError, match="another checksum"):
        read_record(record(ACKS, body)._replace(body=body.replace(b"5", b"6")))
