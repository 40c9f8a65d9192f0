"""Messages go to brokers and come back as they were; message groups keep their queues."""

from __future__ import annotations

import gzip
import hashlib
from typing import Any

import pytest

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.proxy.conversion import (
    GZIP,
    MD5,
    MessageType,
    message_of,
    milliseconds,
    properties_of,
    set_milliseconds,
    sys_flag_of,
    type_of,
)
from cometmq.proxy.messages import TYPES
from cometmq.proxy.sending import _unpacked, consistent
from cometmq.proxy.status import StatusError


def sent() -> Any:
    made = TYPES["Message"](body=b"42")
    made.topic.name = "orders"
    made.user_properties.add(key="shop", value="Bern")
    system = made.system_properties
    system.message_id, system.tag, system.message_group = "01AB", "new", "order-7"
    system.keys.extend(["a", "b"])
    system.trace_context = "00-1"
    set_milliseconds(system.born_timestamp, 1_700_000_000_123)
    set_milliseconds(system.delivery_timestamp, 1_700_000_009_000)
    return made


def stored(properties: dict[str, str]) -> StoredMessage:
    return StoredMessage(
        topic="orders", body=b"42", properties=properties, queue_id=3, queue_offset=9,
        log_offset=1000, flag=0, sys_flag=0, born_time_ms=1_700_000_000_123, born_host="1.2.3.4:5",
        store_time_ms=1_700_000_000_200, store_host="5.6.7.8:9", reconsume_times=1,
        prepared_offset=0, body_crc=0, size_bytes=100, offset_message_id="0" * 32,
    )  # fmt: skip


def test_a_message_goes_and_comes_back() -> None:
    properties = properties_of(sent(), "orders", "9.9.9.9:1")
    assert properties[names.UNIQ_KEY] == "01AB"
    assert properties[names.KEYS] == "a b"
    assert properties[names.PGROUP] == "orders"
    assert properties[names.TIMER_DELIVER_MS] == "1700000009000"
    assert properties[names.BORN_HOST] == "9.9.9.9:1"
    back = message_of(stored(properties), "handle")
    assert [(each.key, each.value) for each in back.user_properties] == [("shop", "Bern")]
    system, first = back.system_properties, sent().system_properties
    for name in ("message_id", "tag", "keys", "message_group", "trace_context", "born_timestamp",
                 "delivery_timestamp"):  # fmt: skip
        assert getattr(system, name) == getattr(first, name), name
    assert (system.receipt_handle, system.delivery_attempt) == ("handle", 2)
    assert (system.queue_id, system.queue_offset) == (3, 9)
    assert system.body_digest.type == MD5
    assert system.body_digest.checksum == hashlib.md5(b"42").hexdigest().upper()
    assert system.message_type == MessageType.DELAY
    assert not back.system_properties.HasField("dead_letter_queue")


def test_without_tag_group_and_handle_they_are_absent() -> None:
    system = message_of(stored({})).system_properties
    absent = ("tag", "message_group", "receipt_handle", "trace_context", "delivery_timestamp")
    assert not any(map(system.HasField, absent))
    assert system.message_id == "0" * 32
    assert system.message_type == MessageType.NORMAL


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({names.SHARDING_KEY: "g"}, MessageType.FIFO),
        ({names.TIMER_DELAY_SEC: "1", names.SHARDING_KEY: "g"}, MessageType.DELAY),
        ({names.DELAY: "1"}, MessageType.DELAY),
        ({names.TRAN_MSG: "true", names.DELAY: "1"}, MessageType.TRANSACTION),
    ],
)
def test_properties_decide_the_type(properties: dict[str, str], kind: MessageType) -> None:
    assert type_of(properties) is kind


def test_a_transaction_is_prepared() -> None:
    made = sent()
    made.system_properties.message_type = MessageType.TRANSACTION
    made.system_properties.orphaned_transaction_recovery_duration.seconds = 30
    assert sys_flag_of(made) == SysFlag.TRANSACTION_PREPARED
    properties = properties_of(made, "orders", "")
    assert properties[names.TRAN_MSG] == "true"
    assert properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] == "30"
    made.system_properties.body_encoding = GZIP
    assert sys_flag_of(made) & SysFlag.COMPRESSED


def test_a_packed_body_is_unpacked_within_bounds() -> None:
    assert _unpacked(gzip.compress(b"42")) == b"42"
    with pytest.raises(StatusError, match="body_encoding is GZIP"):
        _unpacked(b"42")
    with pytest.raises(StatusError, match="bytes unpacked"):
        _unpacked(gzip.compress(bytes(5 * 1024 * 1024)))


def test_times_are_exact_to_the_millisecond() -> None:
    for value_ms in (0, 1, 999, 1_700_000_000_123):
        time = TYPES["Message"]().system_properties.born_timestamp
        set_milliseconds(time, value_ms)
        assert milliseconds(time) == value_ms


def test_few_message_groups_move_when_a_queue_is_added() -> None:
    seeds = range(-5_000, 5_000)
    before = [consistent(seed, 8) for seed in seeds]
    after = [consistent(seed, 9) for seed in seeds]
    assert set(before) == set(range(8))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {8}
    assert 0.08 < len(moved) / len(before) < 0.14
