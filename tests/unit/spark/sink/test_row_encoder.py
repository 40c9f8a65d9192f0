"""Rows as items of batches: the bytes our client would send for the same messages."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.client._sending.outgoing import prepare_item
from cometmq.client.settings import ProducerSettings
from cometmq.model.message import Message
from cometmq.protocol.batch import BatchItem, decode_batch
from cometmq.protocol.message_id import UniqueIds
from cometmq.protocol.properties import decode_properties
from cometmq.spark.errors import OptionError, RowError
from cometmq.spark.sink import Origin, check_columns
from cometmq.spark.sink.row_encoder import RowEncoder
from cometmq.spark.sink.rows import Rows

ORIGIN = Origin("job", 2, 1)
KINDS = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "properties": pa.map_(pa.string(), pa.string()),
    "sharding_key": pa.string(),
    "queue_id": pa.int32(),
    "broker_name": pa.string(),
    "delay_level": pa.int32(),
    "deliver_timestamp": pa.timestamp("us", tz="UTC"),
    "flag": pa.int32(),
    "msg_id": pa.string(),
}


def batch_of(*rows: dict[str, Any], **kinds: pa.DataType) -> pa.RecordBatch:
    """A record batch with the columns that any of the rows has."""
    columns = [name for name in KINDS if any(name in row for row in rows)]
    arrays = [
        pa.array([row.get(name) for row in rows], kinds.get(name, KINDS[name])) for name in columns
    ]
    return pa.record_batch(arrays, columns)


def items_of(batch: pa.RecordBatch, first: int = 0, **options: Any) -> list[BatchItem]:
    encoder = RowEncoder(ORIGIN, **{"body_bytes_max": 1 << 22, **options})
    encoded = encoder.encode(Rows(batch, ORIGIN, first))
    return [decode_batch(item.as_py())[0] for item in encoded.items]


def properties_of(*rows: dict[str, Any], **options: Any) -> list[dict[str, str]]:
    return [decode_properties(item.properties) for item in items_of(batch_of(*rows), **options)]


def error_of(*rows: dict[str, Any], **options: Any) -> str:
    with pytest.raises(RowError) as error:
        items_of(batch_of(*rows), **options)
    return str(error.value)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=12)
ROWS = st.fixed_dictionaries(
    {"body": st.binary(min_size=1, max_size=40)},
    optional={
        "tags": st.none() | WORDS.filter(lambda tag: tag != "*" and "||" not in tag),
        "keys": st.none() | st.lists(WORDS, max_size=3),
        "properties": st.none()
        | st.dictionaries(WORDS.filter(lambda name: name.islower()), WORDS, max_size=3),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "msg_id": st.none() | WORDS,
    },
)


@settings(max_examples=200)
@given(rows=st.lists(ROWS, min_size=1, max_size=6), first=st.integers(0, 1 << 18))
def test_an_item_is_what_our_client_sends(rows: list[dict[str, Any]], first: int) -> None:
    for number, item in enumerate(items_of(batch_of(*rows), first)):
        row = {name: value for name, value in rows[number].items() if value is not None}
        made_id = decode_properties(item.properties)["UNIQ_KEY"]
        own_id = row.pop("msg_id", made_id)
        sent = prepare_item(Message(topic="t", **row), ProducerSettings(), UniqueIds()).encoded
        expected = decode_properties(sent.properties) | {"UNIQ_KEY": own_id}
        assert decode_properties(item.properties) == expected
        assert (item.flag, item.body) == (sent.flag, sent.body)


@settings(max_examples=50)
@given(rows=st.lists(ROWS, min_size=2, max_size=6), data=st.data())
def test_a_slice_of_a_batch_is_encoded_as_its_rows_alone(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Arrow shares buffers between slices: what lies before must not leak in."""
    at = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(at + 1, len(rows)))
    whole = batch_of(*rows)
    copied = pa.RecordBatch.from_pylist(whole.slice(at, stop - at).to_pylist(), whole.schema)
    assert items_of(whole.slice(at, stop - at)) == items_of(copied)


def test_text_bodies_and_ready_made_keys_are_written_as_they_stand() -> None:
    batch = batch_of(
        {"body": "grün", "keys": "a b"}, {"body": "x"}, body=pa.string(), keys=pa.string()
    )
    first, second = items_of(batch)
    assert first.body == "grün".encode()
    assert decode_properties(first.properties)["KEYS"] == "a b"
    assert "KEYS" not in decode_properties(second.properties)


def test_large_types_are_written_too() -> None:
    batch = batch_of({"body": b"x", "tags": "t"}, body=pa.large_binary(), tags=pa.large_string())
    check_columns(batch.schema, "orders")
    (item,) = items_of(batch)
    assert (item.body, decode_properties(item.properties)["TAGS"]) == (b"x", "t")


def test_a_sharding_key_is_the_property_that_newer_clients_use() -> None:
    assert properties_of({"body": b"x", "sharding_key": "k"})[0]["__SHARDINGKEY"] == "k"


def test_delays_are_properties_of_the_rows_that_have_one() -> None:
    due = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    level, timed, neither = properties_of(
        {"body": b"x", "delay_level": 3},
        {"body": b"x", "delay_level": 0, "deliver_timestamp": due},
        {"body": b"x", "delay_level": None},
    )
    assert level["DELAY"] == "3"
    assert timed["TIMER_DELIVER_MS"] == str(int(due.timestamp() * 1000))
    assert not {"DELAY", "TIMER_DELIVER_MS"} & neither.keys()
    assert "DELAY" not in timed


def test_a_time_means_the_same_moment_in_any_time_zone_of_the_session() -> None:
    due = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    zone = pa.timestamp("us", tz="Asia/Tokyo")
    batch = batch_of({"body": b"x", "deliver_timestamp": due}, deliver_timestamp=zone)
    check_columns(batch.schema, "orders")
    (item,) = items_of(batch)
    found = decode_properties(item.properties)["TIMER_DELIVER_MS"]
    assert found == str(int(due.timestamp() * 1000))


def test_a_time_without_a_zone_is_refused() -> None:
    schema = pa.schema([("body", pa.binary()), ("deliver_timestamp", pa.timestamp("us"))])
    with pytest.raises(OptionError, match=r"deliver_timestamp is .*: TIMESTAMP is expected"):
        check_columns(schema, "orders")


def test_reserved_properties_can_be_left_out() -> None:
    row = {"body": b"x", "properties": {"TAGS": "old", "UNIQ_KEY": "old", "colour": "red"}}
    (properties,) = properties_of(row, {"body": b"y"}, drop_reserved=True)[:1]
    assert properties.pop("UNIQ_KEY") != "old"
    assert properties == {"colour": "red", "WAIT": "true"}


def ids_of(*rows: dict[str, Any]) -> list[str]:
    """The unique ids that the rows of a task get."""
    return [each["UNIQ_KEY"] for each in properties_of(*rows)]


def test_rows_of_a_task_that_is_tried_again_in_another_order_keep_their_keys() -> None:
    """As behind a shuffle that is not sorted: A was sent, then B, A and C come again."""
    a, b, c = ({"body": body} for body in (b"A", b"B", b"C"))
    (sent,) = ids_of(a)
    again = dict(zip("BAC", ids_of(b, a, c), strict=True))
    assert again["A"] == sent
    assert len(set(again.values())) == 3


def test_equal_rows_have_ids_of_their_own() -> None:
    row = {"body": b"A", "tags": "t"}
    keys = ids_of(row, {"body": b"B"}, row, row)
    assert len(set(keys)) == 4
    assert set(ids_of(row, row)) < set(keys)


@pytest.mark.parametrize(
    "column",
    [
        {"tags": "t"},
        {"keys": ["k"]},
        {"properties": {"a": "b"}},
        {"sharding_key": "s"},
        {"queue_id": 0},
        {"queue_id": 1, "broker_name": "b"},
        {"topic": "u"},
        {"delay_level": 1},
        {"flag": 1},
    ],
    ids=str,
)
def test_all_that_a_row_says_tells_it_from_others(column: dict[str, Any]) -> None:
    """So a row that is sent alone and one that follows another have the same key."""
    plain, other = {"body": b"A"}, {"body": b"A"} | column
    assert set(ids_of(plain, other)) == {*ids_of(plain), *ids_of(other)}
    assert ids_of(plain) != ids_of(other)


def test_a_row_with_a_key_of_its_own_does_not_change_the_ids_of_others() -> None:
    plain, keyed = {"body": b"A"}, {"body": b"A", "msg_id": "own"}
    assert ids_of(keyed, plain) == ["own", *ids_of(plain)]
    assert ids_of(keyed, keyed) == ["own", "own"]


def test_properties_that_are_null_are_left_out() -> None:
    assert "gone" not in properties_of({"body": b"x", "properties": {"gone": None}})[0]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"body": None}, "body is null"),
        ({"body": b""}, "body is empty"),
        ({"body": b"12345"}, "body is too large: at most 4 bytes"),
        ({"body": b"x", "tags": "a\x01b"}, "tags holds one of the characters"),
        ({"body": b"x", "sharding_key": "a\x02b"}, "sharding_key holds one of the characters"),
        ({"body": b"x", "keys": ["a\x02"]}, "keys holds one of the characters"),
        ({"body": b"x", "keys": ["a", " "]}, "a key is null or blank"),
        ({"body": b"x", "keys": [None]}, "a key is null or blank"),
        ({"body": b"x", "msg_id": " "}, "msg_id is blank"),
        ({"body": b"x", "delay_level": -1}, "delay_level is below 0"),
        ({"body": b"x", "properties": {"TAGS": "t"}}, "property TAGS has a name of RocketMQ's own"),
        ({"body": b"x", "properties": {" ": "t"}}, "name of a property is blank"),
        ({"body": b"x", "properties": {"a": ""}}, "a property is blank"),
        ({"body": b"x", "properties": {"a": "\x02"}}, "a property holds the character"),
        ({"body": b"x", "properties": {"a": "b" * 40_000}}, "more than 32767 bytes"),
        (
            {"body": b"x", "delay_level": 1, "deliver_timestamp": dt.datetime(2030, 1, 1)},
            "only one of delay_level and deliver_timestamp",
        ),
        (
            {"body": b"x", "deliver_timestamp": dt.datetime(1969, 1, 1)},
            "deliver_timestamp must be after 1970",
        ),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(row: dict[str, Any], why: str) -> None:
    fine = {"body": b"ok", "properties": {"a": "b"}, "keys": ["k"]}
    text = error_of(fine, fine, row, fine, body_bytes_max=4)
    assert why in text
    assert text.startswith("row 2 of partition 1, batch 2 of job job: ")


@pytest.mark.parametrize(
    ("names", "topic", "why"),
    [
        (["body", "tag"], "t", "column tag cannot be written: some of body, topic, tags"),
        (["tags"], "t", "no column body"),
        (["body"], "", "expected the option topic or a column topic"),
        (["body", "broker_name"], "t", "broker_name without a column queue_id"),
        (["body", "body"], "t", "used twice"),
        (["body"], "a b", "option topic is 'a b': .*illegal"),
        (["body"], "SCHEDULE_TOPIC_XXXX", "option topic .* clients cannot write to it"),
    ],
)
def test_columns_are_checked_ahead_of_rows(names: list[str], topic: str, why: str) -> None:
    schema = pa.schema([(name, KINDS.get(name, pa.string())) for name in names])
    with pytest.raises(OptionError, match=why):
        check_columns(schema, topic)


def test_a_column_of_another_type_is_refused_with_the_expected_one() -> None:
    schema = pa.schema([("body", pa.binary()), ("queue_id", pa.int64())])
    with pytest.raises(OptionError, match="column queue_id is int64: INT is expected"):
        check_columns(schema, "t")


def test_an_empty_batch_has_no_items() -> None:
    assert items_of(batch_of({"body": b"x", "properties": {"a": "b"}}).slice(0, 0)) == []
