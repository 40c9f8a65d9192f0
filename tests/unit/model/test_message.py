"""Messages as applications make them and as consumers get them."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue


def stored(**changes: Any) -> StoredMessage:
    known: dict[str, Any] = {
        "topic": "T",
        "body": b"",
        "properties": {},
        "queue_id": 2,
        "queue_offset": QueueOffset(5),
        "log_offset": LogOffset(100),
        "flag": 0,
        "sys_flag": 0,
        "born_time_ms": 1,
        "born_host": "10.0.0.1:1",
        "store_time_ms": 2,
        "store_host": "10.0.0.2:2",
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body_crc": 0,
        "size_bytes": 91,
        "offset_message_id": "AA",
    }
    return StoredMessage(**known | changes)


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

    assert message.all_properties() == {
        "a": "b",
        names.TAGS: "paid",
        names.KEYS: "k1 k2",
        names.DELAY: "3",
        names.WAIT: "false",
    }


def test_a_plain_message_only_says_that_it_waits() -> None:
    assert Message("T", b"x").all_properties() == {names.WAIT: "true"}


def test_one_key_may_be_given_as_a_text() -> None:
    assert Message("T", b"x", keys="k1").all_properties()[names.KEYS] == "k1"


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
        message.all_properties()


def test_a_stored_message_answers_from_its_properties() -> None:
    message = stored(
        properties={
            names.TAGS: "t",
            names.KEYS: "a b",
            names.UNIQ_KEY: "U",
            names.DELAY: "4",
            names.RETRY_TOPIC: "orders",
        },
        topic="%RETRY%g",
        broker_name="b",
    )

    assert (message.tags, message.keys, message.unique_id) == ("t", ["a", "b"], "U")
    assert (message.message_id, message.delay_level) == ("U", 4)
    assert message.queue == MessageQueue("%RETRY%g", "b", 2)
    assert message.real_topic("g") == "orders"
    assert message.real_topic("other") == "%RETRY%g"


def test_a_stored_message_without_properties_has_the_id_of_its_place() -> None:
    message = stored(properties={names.DELAY: "soon"})

    assert (message.tags, message.keys, message.message_id) == (None, [], "AA")
    assert message.delay_level == 0


def test_queues_are_ordered_and_can_be_keys() -> None:
    queues = [MessageQueue("T", "b", 1), MessageQueue("T", "a", 9), MessageQueue("S", "z", 0)]

    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert {MessageQueue("T", "a", 9): 1}[queues[1]] == 1
    assert str(queues[0]) == "T@b:1"
