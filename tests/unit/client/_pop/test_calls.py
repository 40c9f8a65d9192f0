"""Receipts of popped messages, against what RocketMQ's own client sent."""

from __future__ import annotations

import pytest

from cometmq.client._consuming.retries import pop_delay_s
from cometmq.client._pop.calls import HandleError, ReceiptHandle, handles_of, offsets_by_queue
from cometmq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    PopMessageResponse,
)
from cometmq.protocol.record import decode_messages
from support.clients.consumer_inputs import stored
from support.wire.recorded import frames


def recorded_handles() -> set[str]:
    """The receipts that we make of all answers in the recording."""
    made = set()
    for name, command in frames("5.3.3", "pop"):
        if name == "POP_MESSAGE_RESPONSE" and command.code == 0:
            messages = decode_messages(command.body, decompress=False)
            header = command.header(PopMessageResponse)
            made |= {handle.text for handle in handles_of(header, messages, "broker-a")}
    return made


def test_every_receipt_is_the_one_that_rocketmq_s_client_made() -> None:
    sent = {
        command.header(AckMessageRequest).extra_info
        for name, command in frames("5.3.3", "pop")
        if name == "ACK_MESSAGE"
    }
    put_off = {
        command.header(ChangeMessageInvisibletimeRequest).extra_info
        for name, command in frames("5.3.3", "pop")
        if name == "CHANGE_MESSAGE_INVISIBLETIME"
    }

    assert sent
    assert put_off
    assert sent | put_off <= recorded_handles()


def test_a_receipt_tells_where_its_message_lies_and_until_when_it_is_hidden() -> None:
    handle = ReceiptHandle.parse("10 1700000000000 60000 3 0 broker-a 2 12")

    assert (handle.broker_name, handle.queue_id, handle.offset) == ("broker-a", 2, 12)
    assert handle.expires_ms() == 1_700_000_060_000
    assert handle.topic("orders", "g") == "orders"


@pytest.mark.parametrize(
    ("kind", "topic"), [("1", "%RETRY%g_orders"), ("2", "%RETRY%g+orders"), ("0", "orders")]
)
def test_a_receipt_names_the_topic_that_the_message_was_taken_from(kind: str, topic: str) -> None:
    handle = ReceiptHandle.parse(f"10 1700000000000 60000 3 {kind} broker-a 2 12")

    assert handle.topic("orders", "g") == topic


def test_a_receipt_that_the_broker_gave_is_kept() -> None:
    given = "7 1700000000000 60000 1 1 broker-a 0 9"
    answer = PopMessageResponse(pop_time=1, invisible_time=2, revive_qid=3, rest_num=0)

    [handle] = handles_of(answer, [stored(4, POP_CK=given)], "broker-a")

    assert (handle.text, handle.offset) == (given, 9)


def test_the_lowest_offset_of_a_queue_stands_in_when_the_broker_gives_no_start() -> None:
    answer = PopMessageResponse(pop_time=1, invisible_time=2, revive_qid=3, rest_num=0)

    made = handles_of(answer, [stored(5), stored(4)], "b")

    assert [handle.text for handle in made] == ["4 1 2 3 0 b 0 5", "4 1 2 3 0 b 0 4"]


@pytest.mark.parametrize(
    "text", ["", "1 2 3", "1 2 3 4 0 b 5", "1 x 3 4 0 b 5 6", "1 2 3 4 0 b x 6"]
)
def test_a_receipt_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(HandleError):
        ReceiptHandle.parse(text)


def test_a_receipt_that_names_an_unknown_place_is_refused_when_it_is_used() -> None:
    with pytest.raises(HandleError, match="unknown topic kind"):
        ReceiptHandle.parse("1 2 3 4 9 b 5 6").topic("orders", "g")


def test_lists_of_offsets_are_read_by_kind_and_queue() -> None:
    assert offsets_by_queue("0 1 4,5;1 0 7") == {("0", 1): [4, 5], ("1", 0): [7]}
    assert offsets_by_queue(None) == {}
    with pytest.raises(HandleError):
        offsets_by_queue("0 1")


@pytest.mark.parametrize(
    ("times", "level", "seconds"),
    [
        (0, 0, 10),
        (1, 0, 30),
        (15, 0, 7200),
        (40, 0, 7200),
        (5, 1, 30),
        (0, 12, 1200),
        (0, 99, 7200),
    ],
)
def test_a_message_comes_again_later_each_time_unless_the_handler_orders_otherwise(
    times: int, level: int, seconds: int
) -> None:
    assert pop_delay_s(times, level) == seconds
