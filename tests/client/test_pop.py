"""Pop consumption; our brokers and those before 5.0 refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from cometmq.client import (
    ClientClosedError,
    ClientInstance,
    ConfigError,
    ConsumeContext,
    Consumed,
    Message,
    MessageQueue,
    Producer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.client.pop_consumer import PopConsumer
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall
from support.checks.waiting import WAIT_S, until
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters
from support.clients.in_flight import InFlight
from support.clients.recording_handlers import FailsAtFirst, Seen
from support.runner.versions import POP_SERVERS

pops = pytest.mark.only_on(*POP_SERVERS)


async def send(producer: Producer, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic=topic, body=body)) for body in bodies))
    return bodies


class Answers:
    """Remembers the requests of some codes, and how they were answered."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes
        self.seen: list[tuple[int, dict[str, str], int]] = []

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Nothing to do."""

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        if call.code in self.codes:
            self.seen.append((call.code, dict(call.fields), response.code))

    def of(self, code: int) -> list[dict[str, str]]:
        """The fields of the requests of a code with a successful response."""
        return [fields for found, fields, result in self.seen if (found, result) == (code, 0)]


def waiting(consumer: PopConsumer) -> int:
    """The number of messages that were popped and not settled."""
    table = consumer.running_info().mq_pop_table or {}
    return sum(each.wait_ack_count for each in table.values())


@pytest.mark.only_on("4.9.7")
async def test_it_does_not_start_where_brokers_do_not_hand_out_messages(
    name_servers: str, topic: str, group: str
) -> None:
    consumer = PopConsumer(name_servers, group=group, handler=Seen(), subscriptions={topic: "*"})
    text = (
        rf"refused to assign queues of {topic} \(.*\): PopConsumer needs brokers of RocketMQ 5\.0"
    )
    with pytest.raises(ResponseError, match=text) as refused:
        await consumer.start()

    assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    with pytest.raises(ClientClosedError):
        await consumer.start()


@pops
async def test_every_message_is_handled_and_acknowledged(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, answers = Seen(), Answers(RequestCode.ACK_MESSAGE)
    bodies = await send(producer, topic, 40)
    async with (
        ClientInstance(name_servers, hooks=[answers]) as instance,
        PopConsumer(instance=instance, handler=seen, **from_the_first(group, topic)) as consumer,
    ):
        await seen.count(40)
        await until(lambda: len(answers.of(RequestCode.ACK_MESSAGE)) == 40)
        assert set(consumer.running_info().mq_pop_table or {}) == set(consumer.queues())
        await until(lambda: waiting(consumer) == 0)
        bodies += await send(producer, topic, 5)
        await seen.count(45)

    assert sorted(seen.bodies) == sorted(bodies)


@pops
async def test_messages_of_other_tags_are_acknowledged_unseen(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """Two tags with one hash: the broker lets both through, and the client takes one out."""
    seen, answers = Seen(), Answers(RequestCode.ACK_MESSAGE)
    for tag in ("Aa", "BB", "Aa"):
        await producer.send(Message(topic=topic, body=tag.encode(), tags=tag))
    async with (
        ClientInstance(name_servers, hooks=[answers]) as instance,
        PopConsumer(instance=instance, handler=seen, **from_the_first(group, topic, "Aa")),
    ):
        await seen.count(2)
        await until(lambda: len(answers.of(RequestCode.ACK_MESSAGE)) == 3)

    assert seen.bodies == [b"Aa", b"Aa"]


@pops
async def test_a_failed_message_is_put_off_and_comes_again(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """After 10 s, the first of the delays."""
    seen = FailsAtFirst(ValueError("no such order"))
    answers = Answers(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    await producer.send(Message(topic=topic, body=b"x", keys=["k1"]))
    async with (
        ClientInstance(name_servers, hooks=[answers]) as instance,
        PopConsumer(instance=instance, handler=seen, **from_the_first(group, topic)),
    ):
        await seen.count(2)
    first, again = seen.messages

    [put_off] = answers.of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert put_off["invisibleTime"] == "10000"
    assert seen.times[1] - seen.times[0] > 8
    assert (again.topic, again.body, again.keys) == (topic, b"x", ["k1"])
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)


@pops
async def test_only_the_rest_of_a_batch_is_put_off_by_the_level_that_was_ordered(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    seen = Seen()
    answers = Answers(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.ACK_MESSAGE)

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        seen.add(*messages)
        context.done, context.delay_level = 1, 2
        return Consumed.SUCCESS

    batch = [Message(topic=queues[0].topic, body=body) for body in (b"1", b"2", b"3")]
    await producer.send_batch(batch, queue=queues[0])
    async with (
        ClientInstance(name_servers, hooks=[answers]) as instance,
        PopConsumer(
            instance=instance,
            batch_handler=handle,
            batch_max=8,
            **from_the_first(group, queues[0].topic),
        ),
    ):
        await seen.count(3)
        await until(lambda: len(answers.seen) == 3)

    assert [each["offset"] for each in answers.of(RequestCode.ACK_MESSAGE)] == ["0"]
    put_off = answers.of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert sorted(each["offset"] for each in put_off) == ["1", "2"]
    assert {each["invisibleTime"] for each in put_off} == {"60000"}


@pops
async def test_a_message_comes_again_when_its_time_is_over_before_the_handler_ends(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, gate = Seen(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        if len(seen.messages) == 1:
            await gate.wait()

    await producer.send(Message(topic=topic, body=b"x"))
    async with PopConsumer(
        name_servers, handler=handle, invisible_ms=10_000, **from_the_first(group, topic)
    ):
        await seen.count(2)
        gate.set()

    assert seen.times[1] - seen.times[0] > 4


@pops
async def test_a_message_is_a_dead_letter_with_its_error_once_it_failed_too_often(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, answers = Seen(), Answers(RequestCode.ACK_MESSAGE)

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        raise ValueError("hopeless")

    await producer.send(Message(topic=topic, body=b"x"))
    async with (
        ClientInstance(name_servers, hooks=[answers]) as instance,
        PopConsumer(
            instance=instance, handler=handle, retries_max=0, **from_the_first(group, topic)
        ),
    ):
        await seen.count(1)
        await until(lambda: len(answers.of(RequestCode.ACK_MESSAGE)) == 1)
    [dead] = await dead_letters(name_servers, group)

    assert dead.body == b"x"
    assert dead.properties["CONSUME_ERROR"] == "builtins.ValueError: hopeless"


@pops
async def test_members_of_a_group_that_pops_share_the_messages_of_every_queue(
    name_servers: str, instance: ClientInstance, producer: Producer, topic: str, group: str
) -> None:
    one, two = Seen(), Seen()
    both = from_the_first(group, topic)
    async with PopConsumer(name_servers, handler=one, **both) as first:
        route = await core_of(instance).routes.find(topic)
        body = SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=MessageRequestMode.POP,
            pop_share_queue_num=-1,
        )
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await core_of(instance).brokers.call(route.masters()[0], code, body=body.encode())
        async with PopConsumer(name_servers, handler=two, **both) as second:
            everything = [MessageQueue(topic, "broker-a", -1)]
            await until(lambda: first.queues() == second.queues() == everything)
            bodies = await send(producer, topic, 60)
            async with asyncio.timeout(WAIT_S):
                while len(one.messages) + len(two.messages) < 60:
                    await asyncio.sleep(0.05)

    assert sorted(one.bodies + two.bodies) == sorted(bodies)


@pops
async def test_nothing_is_popped_while_suspended(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen, pops = Seen(), InFlight(RequestCode.POP_MESSAGE, topic)
    async with (
        ClientInstance(name_servers, hooks=[pops]) as instance,
        PopConsumer(
            instance=instance, handler=seen, hold_ms=500, **from_the_first(group, topic)
        ) as consumer,
    ):
        await send(producer, topic, 4)
        await seen.count(4)
        consumer.suspend()
        await until(pops.is_empty)
        await send(producer, topic, 8)
        await asyncio.sleep(0.3)
        assert len(seen.messages) == 4
        consumer.resume()
        await seen.count(12)


def test_a_pop_consumer_cannot_begin_at_a_time(group: str) -> None:
    with pytest.raises(ConfigError, match=r"StartFrom\.FIRST or StartFrom\.LAST"):
        PopConsumer(
            "127.0.0.1:1",
            group=group,
            handler=Seen(),
            start_from=datetime.now(UTC),  # type: ignore[arg-type]
        )
