"""Failed messages: their redelivery, their dead letters, and the reasons in them.

The clusters' delay levels are 1 s, 2 s and so on: a first retry takes the third.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from cometmq.client import (
    ClientInstance,
    ConsumeContext,
    Consumed,
    ConsumedInOrder,
    ConsumeLater,
    Message,
    OrderedContext,
    Producer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client.hooks import ConsumeHook, FailedMessage
from cometmq.client.settings import MIB
from cometmq.model import property_names as names
from cometmq.model.topic import retry_topic
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters
from support.clients.recording_handlers import FailsAtFirst, Seen


class Spoiling:
    """Spoils requests of some codes, so that a real broker refuses them; counts all it sees."""

    def __init__(self, *codes: int, topic_begins: str = "") -> None:
        self.codes = set(codes)
        self.seen: list[int] = []
        self._topic_begins = topic_begins

    def before_request(self, address: str, call: OutgoingCall) -> None:
        retried = call.fields.get("b", "").startswith("%RETRY%")
        if call.code == RequestCode.CONSUMER_SEND_MSG_BACK or retried:
            self.seen.append(call.code)
        if call.code not in self.codes:
            return
        if call.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            call.fields["offset"] = str(2**60)
        elif retried:
            call.fields["b"] = "no such/topic"

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing to do."""


async def test_a_failed_message_comes_again_with_its_topic_and_its_error(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = FailsAtFirst(ValueError("no such order\x01\x02"))
    receipt = await producer.send(
        Message(topic=topic, body=b"x", tags="paid", keys=["k1"], properties={"own": "1"})
    )
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic, "paid")):
        await seen.count(2)
    first, again = seen.messages

    assert seen.times[1] - seen.times[0] > 2.5, "the delay of level 3"
    assert (again.topic, again.body, again.tags, again.keys) == (topic, b"x", "paid", ["k1"])
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    assert again.properties["own"] == "1"
    assert again.message_id == receipt.message_id
    assert again.properties[names.ORIGIN_MESSAGE_ID] == receipt.message_id
    assert again.properties["CONSUME_ERROR"] == "builtins.ValueError: no such order"
    assert abs(int(again.properties["CONSUME_ERROR_TIME_MS"]) / 1000 - time.time()) < 60


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_a_handler_has_changed_is_not_redelivered(
    name_servers: str, producer: Producer, topic: str, group: str, ordered: bool
) -> None:
    seen: list[tuple[bytes, str | None]] = []

    async def handle(message: StoredMessage) -> None:
        seen.append((message.body, message.properties.get("own")))
        message.body = message.body.upper()
        message.properties["own"] = "changed"
        raise ValueError("no such order")

    await producer.send(Message(topic=topic, body=b"text", properties={"own": "1"}))
    async with PushConsumer(
        name_servers,
        handler=handle,
        ordered=ordered,
        retries_max=1,
        suspend_ms=10,
        **from_the_first(group, topic),
    ):
        [dead] = await dead_letters(name_servers, group)

    assert seen == [(b"text", "1")] * 2
    assert (dead.body, dead.properties["own"]) == (b"text", "1")
    assert dead.properties["CONSUME_ERROR"] == "builtins.ValueError: no such order"


async def test_what_a_handler_has_changed_is_not_redelivered_after_a_rollback(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, done = [], asyncio.Event()

    async def handle(messages: Sequence[StoredMessage], context: OrderedContext) -> ConsumedInOrder:
        context.auto_commit = False
        seen.append(messages[0].body)
        messages[0].body = b"changed"
        if len(seen) == 1:
            return ConsumedInOrder.ROLLBACK
        done.set()
        return ConsumedInOrder.COMMIT

    await producer.send(Message(topic=topic, body=b"text"))
    async with PushConsumer(
        name_servers,
        batch_handler=handle,
        ordered=True,
        suspend_ms=10,
        **from_the_first(group, topic),
    ):
        await asyncio.wait_for(done.wait(), 60)

    assert seen == [b"text", b"text"]


async def test_a_message_ordered_for_later_comes_again_without_an_error(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = FailsAtFirst(ConsumeLater(delay_level=1))
    await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic)):
        await seen.count(2)

    assert seen.times[1] - seen.times[0] > 0.5
    assert seen.messages[1].topic == topic
    assert "CONSUME_ERROR" not in seen.messages[1].properties


@pytest.mark.parametrize("large", ["properties", "body"])
async def test_a_message_of_any_size_becomes_a_dead_letter(
    name_servers: str, topic: str, group: str, large: str
) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ValueError("\u00e4" * 2_000)

    body = bytes(6 * MIB) if large == "body" else b"x"
    properties = {"own": "1" * 31_500} if large == "properties" else {}
    async with Producer(name_servers, group=group, body_bytes_max=8 * MIB) as producer:
        await producer.send(Message(topic=topic, body=body, properties=properties))
    async with PushConsumer(
        name_servers,
        handler=handle,
        ordered=True,
        retries_max=0,
        **from_the_first(group, topic),
    ):
        [dead] = await dead_letters(name_servers, group)

    assert dead.body == body
    assert dead.properties.get("own") == properties.get("own")
    assert dead.properties["CONSUME_ERROR"].startswith("builtins.ValueError: ")


async def test_only_the_rest_of_a_batch_comes_again_when_some_of_it_is_done(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        seen.add(*messages)
        context.done, context.delay_level = (1 if len(seen.messages) == 3 else None), 1
        return Consumed.SUCCESS

    await producer.send_batch([Message(topic=topic, body=body) for body in (b"1", b"2", b"3")])
    async with PushConsumer(
        name_servers, batch_handler=handle, batch_max=8, **from_the_first(group, topic)
    ):
        await seen.count(5)

    assert seen.bodies[:3] == [b"1", b"2", b"3"]
    assert sorted(seen.bodies[3:]) == [b"2", b"3"]


async def test_a_message_is_a_dead_letter_with_its_error_after_just_so_many_retries(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        seen.add(*messages)
        context.delay_level = 1
        raise LookupError(f"try {len(seen.messages)}")

    receipt = await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(
        name_servers, batch_handler=handle, retries_max=2, **from_the_first(group, topic)
    ):
        await seen.count(3)
        [dead] = await dead_letters(name_servers, group)

    assert [message.reconsume_times for message in seen.messages] == [0, 1, 2]
    assert dead.body == b"x"
    assert dead.properties["CONSUME_ERROR"] == "builtins.LookupError: try 3"
    assert dead.properties[names.DLQ_ORIGIN_TOPIC] == topic
    assert dead.properties[names.ORIGIN_MESSAGE_ID] == receipt.message_id


async def test_a_message_sent_back_by_request_dies_after_just_so_many_retries(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        raise ConsumeLater(delay_level=1)

    await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(
        name_servers, handler=handle, retries_max=1, **from_the_first(group, topic)
    ):
        await seen.count(2)
        [dead] = await dead_letters(name_servers, group)

    assert dead.body == b"x"
    assert len(seen.messages) == 2


@pytest.mark.parametrize("error", [None, RuntimeError("hopeless")])
async def test_a_message_is_a_dead_letter_at_once_when_the_handler_says_so(
    name_servers: str, producer: Producer, topic: str, group: str, error: RuntimeError | None
) -> None:
    seen = Seen()

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        seen.add(*messages)
        context.delay_level = -1
        if error is not None:
            raise error
        return Consumed.LATER

    await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(name_servers, batch_handler=handle, **from_the_first(group, topic)):
        [dead] = await dead_letters(name_servers, group)

    expected = None if error is None else "builtins.RuntimeError: hopeless"
    assert dead.properties.get("CONSUME_ERROR") == expected
    assert len(seen.messages) == 1


async def test_a_message_is_sent_anew_when_the_broker_does_not_take_it_back(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = FailsAtFirst(ConsumeLater(delay_level=1))
    spoiling = Spoiling(RequestCode.CONSUMER_SEND_MSG_BACK)
    await producer.send(Message(topic=topic, body=b"x"))
    async with (
        ClientInstance(name_servers, hooks=[spoiling]) as instance,
        PushConsumer(instance=instance, handler=seen, **from_the_first(group, topic)),
    ):
        await seen.count(2)

    assert spoiling.seen == [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2]
    assert seen.messages[1].reconsume_times == 1


async def test_a_message_is_taken_back_by_request_when_it_cannot_be_sent_anew(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = FailsAtFirst(ValueError())
    spoiling = Spoiling(RequestCode.SEND_MESSAGE_V2)
    await producer.send(Message(topic=topic, body=b"x"))
    async with (
        ClientInstance(name_servers, hooks=[spoiling]) as instance,
        PushConsumer(instance=instance, handler=seen, **from_the_first(group, topic)),
    ):
        await seen.count(2)

    assert spoiling.seen[-1] == RequestCode.CONSUMER_SEND_MSG_BACK
    assert seen.messages[1].topic == topic
    assert "CONSUME_ERROR" not in seen.messages[1].properties


async def test_a_message_is_tried_again_here_after_5_s_when_nobody_takes_it_back(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    spoiling = Spoiling(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)

    async def handle(message: StoredMessage) -> Consumed:
        seen.add(message)
        return Consumed.LATER if len(seen.messages) == 1 else Consumed.SUCCESS

    await producer.send(Message(topic=topic, body=b"x"))
    async with (
        ClientInstance(name_servers, hooks=[spoiling]) as instance,
        PushConsumer(instance=instance, handler=handle, **from_the_first(group, topic)),
    ):
        await seen.count(2)

    assert seen.times[1] - seen.times[0] > 4.9
    assert seen.messages[1].queue_offset == seen.messages[0].queue_offset
    assert retry_topic(group) not in {message.topic for message in seen.messages}


class Counted(ConsumeHook):
    """Notes each message that failed, and how it went on."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, int, str]] = []

    def retried(self, failed: FailedMessage) -> None:
        self.noted.append(("retried", failed.message.topic, failed.retries, repr(failed.error)))

    def dead_lettered(self, failed: FailedMessage) -> None:
        self.noted.append(("dead", failed.message.topic, failed.retries, repr(failed.error)))


@pytest.mark.parametrize("ordered", [False, True])
async def test_each_redelivery_and_each_dead_letter_is_logged_and_shown_to_hooks(
    name_servers: str,
    producer: Producer,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
    ordered: bool,
) -> None:
    receipt = await producer.send(Message(topic, b"x", keys=["k1", "k2"]))
    hook, seen = Counted(), Seen()

    async def handler(message: StoredMessage) -> None:
        seen.add(message)
        error = ValueError(str(len(seen.messages)))
        if len(seen.messages) > 1:
            raise error
        raise ConsumeLater(delay=0.05 if ordered else 1) from error

    async with PushConsumer(
        name_servers,
        handler=handler,
        ordered=ordered,
        retries_max=1,
        hooks=[hook],
        **from_the_first(group, topic),
    ):
        await dead_letters(name_servers, group)

    assert hook.noted == [
        ("retried", topic, 0, "ValueError('1')"),
        ("dead", topic, 1, "ValueError('2')"),
    ]
    named = f"topic={topic} id={receipt.message_id} keys=k1,k2 group={group}"
    lines = [record.getMessage() for record in caplog.records if named in record.getMessage()]
    assert lines == [
        f"handler requested a redelivery {named} retries=0 messages=1"
        f" redelivery={'0.05s' if ordered else '1s'} error=builtins.ValueError: 1",
        f"handler failed {named} retries=1 messages=1 redelivery=dead-letter"
        " error=builtins.ValueError: 2",
        f"dead letter {named} retries=1 error=builtins.ValueError: 2",
    ]
