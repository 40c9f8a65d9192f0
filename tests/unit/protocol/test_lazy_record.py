"""Messages that are decoded on access equal messages that are decoded at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.protocol.compression import CompressionError, MissingPackageError, compress_body
from cometmq.protocol.lazy_record import (
    LazyMessage,
    as_received,
    body_or_stored,
    check_packages,
    decode_lazily,
    restore,
    stored_body,
)
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import RecordError, decode_messages
from support.wire.message_records import HOSTS, NUMBERS, names, record

FIELDS = [field.name for field in dataclasses.fields(StoredMessage)]
VIEWS = ("tags", "keys", "unique_id", "message_id", "delay_level", "queue")
PROPERTIES = {"KEYS": "a b", "UNIQ_KEY": "0A", "TAGS": "paid", "own": "grün", "DELAY": "3"}


records = st.builds(
    record,
    body=st.binary(max_size=100),
    topic=names.map(str.encode),
    properties=st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "own"]), names, max_size=5
    ).map(encode_properties),
    **NUMBERS,
    **HOSTS,
)


@given(st.lists(records, max_size=4).map(b"".join), st.randoms())
def test_every_field_is_what_decoding_at_once_gives_in_whatever_order_it_is_read(
    data: bytes, order: Any
) -> None:
    wanted = decode_messages(data)
    found = decode_lazily(data)

    assert len(found) == len(wanted)
    for lazy, whole in zip(found, wanted, strict=True):
        asked = [*FIELDS, *VIEWS]
        order.shuffle(asked)
        assert {name: getattr(lazy, name) for name in asked} == {
            name: getattr(whole, name) for name in asked
        }
        assert lazy == whole
        assert whole == lazy


@given(records, st.data())
def test_any_cut_is_refused_when_the_messages_arrive(data: bytes, drawn: st.DataObject) -> None:
    kept = drawn.draw(st.integers(0, len(data) - 1))

    with pytest.raises(RecordError):
        decode_lazily(data + data[:kept] if kept else data[:-1])


@given(records, st.data())
def test_a_record_with_changed_bytes_is_refused_or_decoded_alike(
    data: bytes, drawn: st.DataObject
) -> None:
    changed = bytearray(data)
    for _ in range(drawn.draw(st.integers(1, 4))):
        changed[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))

    try:
        wanted = decode_messages(bytes(changed), decompress=False)
    except RecordError:
        with pytest.raises(RecordError):
            decode_lazily(changed)
        return
    for lazy, whole in zip(decode_lazily(memoryview(changed)), wanted, strict=True):
        if not whole.sys_flag & SysFlag.COMPRESSED:
            assert lazy == whole


def test_a_lazy_message_is_a_stored_message_that_names_its_broker() -> None:
    (message,) = decode_lazily(record(), broker_name="broker-a")

    assert isinstance(message, StoredMessage)
    assert str(message.queue) == "T@broker-a:1"


def test_views_are_right_before_and_after_the_properties_were_read() -> None:
    (message,) = decode_lazily(record(properties=encode_properties(PROPERTIES)))

    before = [getattr(message, name) for name in VIEWS]
    assert message.properties == PROPERTIES
    assert [getattr(message, name) for name in VIEWS] == before
    assert before[:4] == ["paid", ["a", "b"], "0A", "0A"]


def test_what_is_assigned_wins_over_the_record() -> None:
    (message,) = decode_lazily(record(properties=encode_properties(PROPERTIES)))

    message.topic = "unwrapped"
    message.body = b"other"
    message.properties = {"TAGS": "new"}

    assert (message.topic, message.body, message.tags) == ("unwrapped", b"other", "new")
    assert message.unique_id is None


def test_properties_can_be_changed_in_place() -> None:
    (message,) = decode_lazily(record(properties=encode_properties(PROPERTIES)))

    message.properties["TAGS"] = "new"

    assert message.tags == "new"


def test_the_receiver_can_add_properties() -> None:
    text = encode_properties(PROPERTIES)
    (message,) = decode_lazily(record(properties=text), added={"MIN_OFFSET": "0"})

    assert message.tags == "paid"
    assert message.properties == {**PROPERTIES, "MIN_OFFSET": "0"}


def test_added_properties_are_each_messages_own() -> None:
    one, other = decode_lazily(record() + record(), added={"MIN_OFFSET": "0"})

    one.properties["MIN_OFFSET"] = "7"

    assert other.properties == {"MIN_OFFSET": "0"}


@pytest.mark.parametrize("first", ["body", "sys_flag"])
def test_a_compressed_body_is_inflated_and_its_bit_cleared(first: str) -> None:
    flag = SysFlag.COMPRESSED | SysFlag.ZLIB
    data = record(body=compress_body(b"plain " * 50), sys_flag=flag)
    (message,) = decode_lazily(data)
    (whole,) = decode_messages(data)

    getattr(message, first)

    assert message.body == b"plain " * 50
    assert message.sys_flag == SysFlag.ZLIB
    assert message == whole


def test_a_damaged_body_cannot_be_read_but_shown() -> None:
    data = record(body=b"not zlib", sys_flag=SysFlag.COMPRESSED)
    (message,) = decode_lazily(data, broker_name="b")

    for _ in range(2):
        with pytest.raises(CompressionError, match="damaged"):
            _ = message.body
        assert message.sys_flag == SysFlag.COMPRESSED
    for copied in (pickle.dumps, copy.copy, dataclasses.replace):
        with pytest.raises(CompressionError):
            copied(message)
    assert "not zlib" in repr(message)
    assert message == decode_lazily(data, broker_name="b")[0]
    assert (body_or_stored(message), stored_body(message)) == (b"not zlib", b"not zlib")
    assert dataclasses.replace(message, body=b"mended").body == b"mended"


@pytest.mark.parametrize(
    ("kind", "package"), [(SysFlag.LZ4, "lz4.frame"), (SysFlag.ZSTD, "zstandard")]
)
def test_a_package_that_is_missing_is_noticed_before_a_body_is_read(
    monkeypatch: pytest.MonkeyPatch, kind: int, package: str
) -> None:
    messages = decode_lazily(record() + record(b"x", sys_flag=SysFlag.COMPRESSED | kind))
    check_packages(messages)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingPackageError, match=r"\[compression\]"):
        check_packages(messages)


def test_copies_and_replacements_are_whole() -> None:
    (message,) = decode_lazily(record(properties=encode_properties(PROPERTIES)), broker_name="b")

    for same in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert type(same) is StoredMessage
        assert same == message
    assert type(dataclasses.replace(message)) is StoredMessage
    assert dataclasses.asdict(message) == dataclasses.asdict(copy.copy(message))
    assert repr(message) == repr(copy.copy(message))
    assert dataclasses.replace(message, body=b"new").body == b"new"
    assert dataclasses.replace(message, body=b"new").tags == "paid"


def test_a_message_outlives_the_answer_it_came_in() -> None:
    data = bytearray(record(body=b"first") + record(body=b"second"))
    first, second = decode_lazily(data)
    data[:] = bytes(len(data))

    assert (first.body, second.body) == (b"first", b"second")


def test_an_unknown_attribute_is_refused_by_name() -> None:
    (message,) = decode_lazily(record())

    with pytest.raises(AttributeError, match=r"LazyMessage' object has no attribute 'colour'"):
        _ = message.colour


def test_a_lazy_message_differs_from_what_is_no_message() -> None:
    (message,) = decode_lazily(record())

    assert message != "T"
    with pytest.raises(TypeError):
        hash(message)


def test_the_class_adds_no_dictionary_to_each_message() -> None:
    (message,) = decode_lazily(record())

    assert isinstance(message, LazyMessage)
    assert not hasattr(message, "__dict__")


def test_what_a_handler_changes_can_be_undone() -> None:
    packed = compress_body(b"hello", SysFlag.ZLIB, 5)
    data = record(packed, properties=b"own\x011", sys_flag=SysFlag.COMPRESSED | SysFlag.ZLIB)
    [message] = decode_lazily(data, broker_name="a", added={"more": "2"})
    as_decoded = copy.copy(message)
    message.topic = "real"
    changed: Any = message
    changed.body, changed.properties = {"json": 1}, {"own": 5}

    assert as_received(message) == as_decoded
    assert (message.topic, message.body) == ("real", {"json": 1})
    restore(message)
    message.properties["own"] = "changed again"
    restore(message)
    assert message == dataclasses.replace(as_decoded, topic="real")


def test_a_message_without_a_record_stays_as_it_is() -> None:
    [message] = decode_messages(record())
    message.body = b"changed"

    assert as_received(message) is message
    restore(message)
    assert message.body == b"changed"
