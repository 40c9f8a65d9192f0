"""`MemoryProducer`: what a test without a server sees."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from cometmq.client import CometError, LocalState, Message, ReplyTimeoutError, StoredMessage
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.memory_producer import MemoryProducer
from cometmq.model.errors import InvalidMessageError, InvalidNameError


class Consumer:
    def __init__(self) -> None:
        self.got: list[list[bytes]] = []

    async def deliver(self, messages: list[StoredMessage]) -> int:
        self.got.append([message.body for message in messages])
        return 1


async def test_messages_are_kept_in_each_form_of_a_send() -> None:
    producer = MemoryProducer()
    first = await producer.send("orders", b"1", tags="paid", order_key="a", timeout=1)
    second = await producer.send(Message("orders", b"2"), queue=None)
    await producer.send_batch("orders", [b"3", b"4"])
    await producer.send_batch([Message("orders", b"5")])
    assert [message.body for message in producer.sent] == [b"1", b"2", b"3", b"4", b"5"]
    assert producer.sent[0].tags == "paid"
    assert first.message_id != second.message_id
    assert first.queue.topic == "orders"


async def test_what_a_server_could_not_take_is_refused() -> None:
    producer = MemoryProducer()
    for send in (producer.send, producer.request):
        with pytest.raises(InvalidNameError, match="illegal characters"):
            await send("orders.new", b"x")
    with pytest.raises(InvalidMessageError, match="empty body"):
        await producer.send_in_transaction(Message("orders", b""))
    with pytest.raises(InvalidMessageError, match="a batch with a delayed message"):
        await producer.send_batch([Message("orders", b"x", delay=1), Message("orders", b"y")])
    assert producer.sent == []


async def test_what_has_a_delay_waits_until_time_passes_or_it_is_recalled() -> None:
    consumer = Consumer()
    producer = MemoryProducer(consumer.deliver)
    at = datetime.now().astimezone() + timedelta(minutes=5)
    await producer.send("orders", b"later", deliver_at=at)
    await producer.send("orders", b"soon", delay=60)
    receipt = await producer.send("orders", b"never", delay=timedelta(seconds=1))
    await producer.send("orders", b"level", delay_level=3)
    await producer.send_batch("orders", [b"now", b"too"])
    assert [message.body for message in producer.delayed] == [b"level", b"never", b"soon", b"later"]
    assert await producer.recall("orders", receipt.recall_handle or "") == receipt.message_id
    with pytest.raises(CometError, match="does not wait"):
        await producer.recall("orders", receipt.recall_handle or "")
    assert await producer.advance(60) == 2
    assert consumer.got == [[b"now", b"too"], [b"level"], [b"soon"]]
    assert await producer.advance(timedelta(minutes=4)) == 1
    assert producer.delayed == []


async def test_a_request_gets_the_first_reply() -> None:
    async def deliver(messages: list[StoredMessage]) -> int:
        for message in messages:
            if message.body == b"ask":
                await producer.reply(message, b"42", properties={"a": "b"})
                await producer.reply(message, b"late")
        return len([message for message in messages if message.topic == "quotes"])

    producer = MemoryProducer(deliver)
    reply = await producer.request("quotes", b"ask")
    assert (reply.body, reply.properties["a"]) == (b"42", "b")
    with pytest.raises(ReplyTimeoutError, match="no handler of quotes"):
        await producer.request("quotes", b"other", timeout=0.01)
    with pytest.raises(TopicNotFoundError):
        await producer.request("nowhere", b"other")


async def test_a_transaction_is_delivered_if_it_commits() -> None:
    states = [LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN]

    async def execute(message: Message, argument: int) -> LocalState:
        return states[argument]

    consumer = Consumer()
    producer = MemoryProducer(consumer.deliver, execute=execute)
    message = Message("orders", b"42")
    results = [await producer.send_in_transaction(message, number) for number in range(3)]
    assert [result.state for result in results] == states
    assert (consumer.got, producer.sent) == ([[b"42"]], [message])
