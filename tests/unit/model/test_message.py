"""Messages as applications make them and as consumers get them."""

from __future__ import annotations

import copy
import pickle
from enum import StrEnum
from typing import Any

import pytest

from cometmq.model import property_names as names
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


class Colour(StrEnum):
    """A topic may be a member of an enumeration."""

    RED = "red"


class Dated(Message):
    """A message with a field of the application's own."""

    date: str = ""


@pytest.mark.parametrize(
    "message",
    [Message(Colour.RED, b"x", keys=["k"], properties={"a": "b"}), Dated("t", b"x", date="d")],
)
def test_messages_are_copied_pickled_and_compared_by_their_fields(message: Message) -> None:
    other = pickle.loads(pickle.dumps(message))

    assert other == message == copy.copy(message)
    assert type(other) is type(message)
    other.properties["c"] = "d"
    assert other != message
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)


def test_each_message_has_its_own_properties() -> None:
    first, second = Message("t", b"x"), Message(topic="t", body=b"x")
    first.properties["a"] = "b"
    second.tags = "paid"

    assert second == Message("t", b"x", "paid")
    assert repr(second).startswith("Message(topic='t', body=b'x', tags='paid'")


@pytest.mark.parametrize("keys", [["a", "b"], "a b"])
def test_a_handler_can_be_called_with_a_message_that_no_broker_stored(keys: Any) -> None:
    sent = Message("orders", b"42", "paid", keys, properties={"a": "b"})
    message = StoredMessage.of(sent)

    assert (message.topic, message.body, message.tags) == ("orders", b"42", "paid")
    assert (message.keys, message.properties["a"]) == (["a", "b"], "b")
    assert message.message_id != StoredMessage.of(sent).message_id
    assert sent.properties == {"a": "b"}
    assert StoredMessage.of(Message("orders", b"42")).properties == {}


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


@pytest.mark.parametrize("level", ["soon", "9" * 5_000])
def test_a_stored_message_without_properties_has_the_id_of_its_place(level: str) -> None:
    message = stored(properties={names.DELAY: level})

    assert (message.tags, message.keys, message.message_id) == (None, [], "AA")
    assert message.delay_level == 0


def test_queues_are_ordered_and_can_be_keys() -> None:
    queues = [MessageQueue("T", "b", 1), MessageQueue("T", "a", 9), MessageQueue("S", "z", 0)]

    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert {MessageQueue("T", "a", 9): 1}[queues[1]] == 1
    assert str(queues[0]) == "T@b:1"
