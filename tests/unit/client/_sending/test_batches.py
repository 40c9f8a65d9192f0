"""A long list of messages is divided into batches, with a receipt for each message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client._sending.batches import estimated_bytes, split, split_receipt
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

messages = st.builds(
    Message,
    topic=st.sampled_from(["t", "u"]),
    body=st.binary(min_size=1, max_size=300),
    tags=st.sampled_from([None, "a", "bb"]),
    keys=st.lists(st.sampled_from(["k", "kk"]), max_size=2),
    delay_level=st.sampled_from([0, 0, 0, 1]),
    wait_store=st.booleans(),
)


@given(st.lists(messages, max_size=30), st.integers(min_value=50, max_value=900))
def test_the_parts_are_all_messages_in_order_and_each_fits(
    given_messages: list[Message], bytes_max: int
) -> None:
    parts = list(split(given_messages, bytes_max))

    assert [message for part in parts for message in part] == given_messages
    for part in parts:
        assert len(part) == 1 or sum(map(estimated_bytes, part)) <= bytes_max
        assert len({(message.topic, message.wait_store) for message in part}) == 1
        assert len(part) == 1 or not any(message.delay_level for message in part)


def test_a_part_is_as_long_as_it_can_be() -> None:
    message = Message("t", b"x" * 79)  # 100 bytes by the estimate

    assert [len(part) for part in split([message] * 25, 1_000)] == [10, 10, 5]


def test_a_message_that_is_too_large_for_any_part_comes_alone() -> None:
    small, large = Message("t", b"x"), Message("t", b"x" * 5_000)

    assert [len(part) for part in split([small, small, large, small], 1_000)] == [2, 1, 1]


def test_the_estimate_counts_topic_body_and_properties_and_20_bytes() -> None:
    message = Message("topic", b"12345678", tags="abc", keys=["k1", "k2"], properties={"n": "val"})

    assert estimated_bytes(message) == 5 + 8 + 3 + 4 + 4 + 20


def test_retries_and_timer_messages_come_alone() -> None:
    plain = Message("t", b"x")
    timer = Message("t", b"x", properties={"TIMER_DELAY_MS": "5"})
    retry = Message("%RETRY%g", b"x")

    assert [len(part) for part in split([plain, timer, plain, plain], 1_000)] == [1, 1, 2]
    assert [len(part) for part in split([retry, retry], 1_000)] == [1, 1]


def batch_receipt(offset_ids: str) -> SendReceipt:
    return SendReceipt(
        status=SendStatus.FLUSH_DISK_TIMEOUT,
        message_id="A,B,C",
        offset_message_id=offset_ids,
        queue=MessageQueue("t", "a", 2),
        queue_offset=QueueOffset(7),
        region_id="r",
        traced=False,
    )


def test_each_message_has_its_own_ids_and_offset() -> None:
    receipts = split_receipt(batch_receipt("X,Y,Z"), 3)

    assert [one.message_id for one in receipts] == ["A", "B", "C"]
    assert [one.offset_message_id for one in receipts] == ["X", "Y", "Z"]
    assert [one.queue_offset for one in receipts] == [7, 8, 9]
    assert {(one.status, one.queue, one.region_id, one.traced) for one in receipts} == {
        (SendStatus.FLUSH_DISK_TIMEOUT, MessageQueue("t", "a", 2), "r", False)
    }


def test_an_id_for_the_whole_batch_is_that_of_each_message() -> None:
    receipts = split_receipt(batch_receipt("X"), 3)

    assert [one.offset_message_id for one in receipts] == ["X", "X", "X"]
    assert [one.message_id for one in receipts] == ["A", "B", "C"]
