"""Messages that are encoded for the wire, or refused before the send."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import pytest

from cometmq.client._sending.outgoing import (
    prepare,
    prepare_batch,
    prepare_item,
    properties_of,
    size_of,
)
from cometmq.client.settings import ProducerSettings
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError, InvalidNameError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.message_id import UniqueIds
from cometmq.protocol.properties import decode_properties

SETTINGS = ProducerSettings()
IDS = UniqueIds()
QUEUE = MessageQueue("t", "a", 3)


def test_a_message_carries_its_properties_and_an_id_of_its_own() -> None:
    message = Message("t", b"42", tags="paid", keys=["k1", "k2"], properties={"a": "1"}, flag=7)

    outgoing = prepare(message, SETTINGS, IDS)

    properties = decode_properties(outgoing.properties)
    assert properties.pop("UNIQ_KEY") == outgoing.message_id
    assert properties == {"TAGS": "paid", "KEYS": "k1 k2", "a": "1", "WAIT": "true"}
    assert (outgoing.body, outgoing.sys_flag, outgoing.flag) == (b"42", 0, 7)
    assert len(outgoing.message_id) == 32


def test_a_message_of_a_class_with_more_fields_is_sent_like_others() -> None:
    class Order(Message, kw_only=True):
        tags: str | None = "paid"
        order: int = 0

    outgoing = prepare(Order("t", b"42", flag=7, order=9), SETTINGS, IDS)

    properties = decode_properties(outgoing.properties)
    assert (properties["TAGS"], outgoing.topic, outgoing.body, outgoing.flag) == (
        "paid",
        "t",
        b"42",
        7,
    )


def test_preparing_leaves_the_message_as_it_is() -> None:
    """The same message can be sent again, and is then another one."""
    message = Message("t", b"42", properties={"a": "1"})

    first, second = prepare(message, SETTINGS, IDS), prepare(message, SETTINGS, IDS)

    assert message.properties == {"a": "1"}
    assert first.message_id != second.message_id


@pytest.mark.parametrize(("size", "packed"), [(4_095, False), (4_096, True)])
def test_bodies_from_4096_bytes_on_are_compressed_with_zlib(size: int, packed: bool) -> None:
    outgoing = prepare(Message("t", b"x" * size), SETTINGS, IDS)

    assert outgoing.sys_flag == (0x301 if packed else 0)
    assert (zlib.decompress(outgoing.body) if packed else outgoing.body) == b"x" * size


def test_the_header_says_where_from_and_where_to() -> None:
    outgoing = prepare(Message("t", b"42"), SETTINGS, IDS)

    header = outgoing.header("g", QUEUE, born_time_ms=5, new_topic_queues=4)

    assert (header.producer_group, header.topic, header.queue_id) == ("g", "t", 3)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.born_timestamp, header.bname, header.batch) == (5, "a", False)
    assert outgoing.code == RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("t", b""), "empty body"),
        (Message("t", b"x" * (4 * 1024 * 1024 + 1)), "4194305 bytes: at most 4194304"),
        (Message("t", "text"), "type str: bytes are expected"),
        (Message("t", b"x", flag=2**31), "flag 2147483648"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "is a system topic"),
        (Message("t", b"x", properties={"UNIQ_KEY": "1"}), "reserved names: UNIQ_KEY"),
        (Message("t", b"x", properties={"a": " "}), "'a'"),
        (Message("t", b"x", properties={"a": "b\x02c"}), "0x01 and 0x02"),
        (Message("t", b"x", properties={"a": "b" * 40_000}), "at most 32767"),
        (Message("t", b"x", properties={"a": "\ud800"}), "cannot be encoded as UTF-8"),
    ],
)  # fmt: skip
def test_a_message_that_breaks_a_limit_is_refused(message: Message, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        prepare(message, SETTINGS, IDS)


def test_a_topic_without_a_valid_name_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        prepare(Message("no blanks", b"x"), SETTINGS, IDS)


def test_an_application_may_say_when_a_timer_message_is_due() -> None:
    outgoing = prepare(Message("t", b"x", properties={"TIMER_DELAY_MS": "500"}), SETTINGS, IDS)

    assert decode_properties(outgoing.properties)["TIMER_DELAY_MS"] == "500"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message("t", b"x", delay_level=3), {"DELAY": "3"}),
        (Message("t", b"x", delay=0.5), {"TIMER_DELAY_MS": "500"}),
        (Message("t", b"x", delay=timedelta(minutes=1)), {"TIMER_DELAY_MS": "60000"}),
        (
            Message("t", b"x", deliver_at=1_800_000_000_000),
            {"TIMER_DELIVER_MS": "1800000000000"},
        ),
        (
            Message("t", b"x", deliver_at=datetime(2027, 1, 15, 8, tzinfo=UTC)),
            {"TIMER_DELIVER_MS": "1800000000000"},
        ),
    ],
)
def test_a_delayed_message_says_when_it_is_due(message: Message, said: dict[str, str]) -> None:
    properties = decode_properties(prepare(message, SETTINGS, IDS).properties)

    assert properties.items() >= said.items()
    assert message.is_delayed
    assert message.is_timed is ("DELAY" not in said)
    with pytest.raises(InvalidMessageError, match="delayed"):
        prepare_batch([message], SETTINGS, IDS)


@pytest.mark.parametrize(
    "when",
    [
        {"delay_level": 1, "delay": 0.5},
        {"delay": 0.5, "deliver_at": 1_800_000_000_000},
        {"delay": 0.5, "properties": {"TIMER_DELAY_SEC": "1"}},
        {"properties": {"TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "1"}},
        {"delay": -1},
    ],
)
def test_a_message_is_due_once_and_not_before_now(when: dict[str, object]) -> None:
    with pytest.raises(InvalidMessageError, match="only one delay or delivery time"):
        prepare(Message("t", b"x", **when), SETTINGS, IDS)


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({"delay": "3 s"}, "delay='3 s': expected a number of seconds or a timedelta"),
        ({"deliver_at": 1_800_000_000}, "or ms since 1970; if these are seconds, multiply them by"),
        (
            {"delay_level": timedelta(minutes=1)},
            "delay_level=.*60.*: expected the number of a delay",
        ),
        ({"delay_level": 1.5}, "delay_level=1.5: expected the number of a delay level"),
        ({"delay_level": -1}, "delay_level=-1: expected the number"),
        ({"delay_level": "3"}, "delay_level='3': expected the number"),
        ({"delay_level": True}, "delay_level=True: expected the number"),
        ({"deliver_at": -1}, "deliver_at=-1: expected a datetime with a time zone"),
        ({"deliver_at": datetime(2027, 1, 15)}, "deliver_at=.*: expected a datetime with a time"),
    ],
)
def test_a_time_that_is_none_is_refused(when: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        prepare(Message("t", b"x", **when), SETTINGS, IDS)


def test_a_batch_is_one_body_with_an_id_for_each_message() -> None:
    outgoing = prepare_batch([Message("t", b"1"), Message("t", b"22")], SETTINGS, IDS)

    assert outgoing.code == RequestCode.SEND_BATCH_MESSAGE
    assert outgoing.header("g", QUEUE, born_time_ms=1, new_topic_queues=4).batch is True
    assert len(set(outgoing.message_id.split(","))) == 2
    assert decode_properties(outgoing.properties) == {"WAIT": "true"}
    assert int.from_bytes(outgoing.body[:4], "big") < len(outgoing.body)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "without messages"),
        ([Message("t", b"1"), Message("u", b"1")], "both t and u"),
        ([Message("t", b"1"), Message("t", b"1", wait_store=False)], "differ in wait_store"),
        ([Message("t", b"1", delay_level=1)], "delayed"),
        ([Message("t", b"1", properties={"TIMER_DELAY_SEC": "1"})], "delayed"),
        ([Message("%RETRY%g", b"1")], "retries are not sent in batches"),
        ([Message("t", b"x" * 3_000_000)] * 2, "once encoded"),
    ],
)
def test_messages_that_do_not_go_together_are_refused_as_a_batch(
    messages: list[Message], reason: str
) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        prepare_batch(messages, SETTINGS, IDS)


def test_tags_keys_delay_and_waiting_travel_as_properties() -> None:
    message = Message(
        "T",
        b"x",
        tags="paid",
        keys=["k1", "k2"],
        properties={"a": "b"},
        delay_level=3,
        wait_store=False,
    )

    assert properties_of(message) == {
        "a": "b",
        names.TAGS: "paid",
        names.KEYS: "k1 k2",
        names.DELAY: "3",
        names.WAIT: "false",
    }


def test_a_plain_message_only_says_that_it_waits() -> None:
    assert properties_of(Message("T", b"x")) == {names.WAIT: "true"}


def test_one_key_may_be_given_as_a_text() -> None:
    assert properties_of(Message("T", b"x", keys="k1"))[names.KEYS] == "k1"


def test_a_text_may_have_several_keys_as_in_rocketmq() -> None:
    assert properties_of(Message("T", b"x", keys="k1 k2"))[names.KEYS] == "k1 k2"


@pytest.mark.parametrize("key", ["a hat", " a", "a ", "a\thead", "\u3000a", "a\nb"])
@pytest.mark.parametrize("kind", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_a_key_with_a_blank_is_refused_because_it_would_be_stored_as_several(
    key: str, kind: Callable[[list[str]], Iterable[str]]
) -> None:
    with pytest.raises(InvalidMessageError, match="without blanks") as refusal:
        properties_of(Message("T", b"x", keys=kind(["order-1", key])))

    assert repr(key) in str(refusal.value)


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"", properties={"a": ""}),
        Message("T", b"", properties={" ": "b"}),
        Message("T", b"", properties={"a": "b\x02c"}),
        Message("T", b"", properties={"a\x01": "b"}),
        Message("T", b"", tags="t\x01"),
        Message("T", b"", keys=["k", " "]),
    ],
)
def test_a_property_that_cannot_be_carried_is_refused(message: Message) -> None:
    with pytest.raises(InvalidMessageError):
        properties_of(message)


def test_the_size_of_a_view_is_that_of_its_bytes() -> None:
    """Its length counts items, which may be longer than a byte."""
    numbers = memoryview(array("q", range(10)))
    settings = ProducerSettings(body_bytes_max=79, compress_level=0)

    with pytest.raises(InvalidMessageError, match="a body of 80 bytes: at most 79 are allowed"):
        prepare(Message("t", numbers), settings, IDS)
    assert prepare(Message("t", numbers[:9]), settings, IDS).body == bytes(numbers[:9])
    assert size_of(Message("t", numbers)) == 80


@pytest.mark.parametrize("tag", [" a", "a ", "a || b", "a||b", "*"])
def test_a_tag_that_no_consumer_can_subscribe_to_is_refused(tag: str) -> None:
    message = Message("t", b"x", tags=tag)
    for send in (prepare, prepare_item):
        with pytest.raises(InvalidMessageError, match="expected one tag, without blanks"):
            send(message, SETTINGS, IDS)
    assert prepare(message, SETTINGS, IDS, trusted=True), "what was stored before is sent again"
    assert prepare(Message("t", b"x", tags="a b*"), SETTINGS, IDS)
