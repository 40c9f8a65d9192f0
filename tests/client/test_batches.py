"""Batches: given as one, cut out of a long list, and gathered from single sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client import (
    BackPressureError,
    ClientClosedError,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
)
from cometmq.client.hooks import SendContext, SendHook
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.properties import decode_properties
from support.brokers.scripted import ScriptedCluster, SentBroker
from support.clients.stored_messages import read_all

# --- given as one -------------------------------------------------------------------------------


async def test_a_batch_is_stored_in_one_queue_without_a_gap(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    messages = [
        Message(
            topic=topic, body=str(number).encode(), tags=f"tag{number % 2}", keys=[f"k{number}"]
        )
        for number in range(10)
    ]
    async with Producer(name_servers, group=group) as producer:
        receipt = await producer.send_batch(messages)
    got = await read_all(name_servers, queues, 10)

    assert [message.body for message in got] == [message.body for message in messages]
    assert [message.tags for message in got] == [message.tags for message in messages]
    assert {message.queue_id for message in got} == {receipt.queue.queue_id}
    assert [message.queue_offset for message in got] == list(
        range(receipt.queue_offset, receipt.queue_offset + 10)
    )
    assert [message.message_id for message in got] == list(receipt.message_ids)


async def test_a_topic_and_bodies_are_sent_in_one_request_or_in_few(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    bodies = [b"%d" % number for number in range(5)]
    async with Producer(name_servers, group=group) as producer:
        receipt = await producer.send_batch(topic, bodies, tags="paid")
        receipts = await producer.send_all(topic, iter(bodies), queue=receipt.queue)
        with pytest.raises(
            TypeError, match=r"send_batch.. got an unexpected .*'tag': did you mean"
        ):
            await producer.send_batch(topic, bodies, tag="paid")  # type: ignore[call-overload]
    got = await read_all(name_servers, queues, 10)

    assert [message.body for message in got] == bodies * 2
    assert [message.tags for message in got] == ["paid"] * 5 + [None] * 5
    assert (len(receipt.message_ids), len(receipts)) == (5, 1)


async def test_a_batch_goes_to_the_queue_that_is_said(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    batch = [Message(topic=topic, body=b"x")] * 3
    async with Producer(name_servers, group=group) as producer:
        said = await producer.send_batch(batch, queue=queues[2])
        first = await producer.send_batch(batch, order_key="k")
        second = await producer.send_batch(batch, order_key="k")

    assert said.queue == queues[2]
    assert first.queue == second.queue


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "without messages"),
        ([Message("t", b"1"), Message("u", b"1")], "both t and u"),
        ([Message("t", b"1"), Message("t", b"1", wait_store=False)], "wait_store"),
        ([Message("t", b"1", delay_level=1)], "delayed"),
        ([Message("t", b"1", properties={"TIMER_DELIVER_MS": "1"})], "delayed"),
        ([Message("%RETRY%g", b"1")], "retries"),
        ([Message("t", b"1"), Message("t", b"")], "empty body"),
        ([Message("t", b"x" * 600)] * 2, "at most 1000"),
    ],
)
async def test_a_batch_that_breaks_a_rule_is_not_sent(messages: list[Message], reason: str) -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", body_bytes_max=1_000) as producer,
    ):
        with pytest.raises(InvalidMessageError, match=reason):
            await producer.send_batch(messages)

    assert broker.sends == []


async def test_a_batch_is_not_compressed() -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", compress_from_bytes=10) as producer,
    ):
        await producer.send_batch([Message("t", b"x" * 100)] * 2)

    assert broker.sends[0].sys_flag == 0
    assert [item.body for item in decode_batch(broker.commands[0].body)] == [b"x" * 100] * 2


# --- cut out of a long list ---------------------------------------------------------------------


async def test_a_long_list_is_sent_in_batches_that_fit_and_stays_in_order(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    messages = [Message(topic=topic, body=b"%4d" % number) for number in range(100)]
    async with Producer(name_servers, group=group, split_bytes=2_000) as producer:
        receipts = await producer.send_all(messages, queue=queues[0])
    got = await read_all(name_servers, queues[:1], 100)

    assert len(receipts) > 2
    assert [message.body for message in got] == [message.body for message in messages]
    ids = [message_id for receipt in receipts for message_id in receipt.message_ids]
    assert [message.message_id for message in got] == ids


async def test_the_requests_of_one_long_list_take_the_queues_in_turn() -> None:
    brokers = [SentBroker("a"), SentBroker("b")]
    async with (
        ScriptedCluster(brokers) as cluster,
        Producer(cluster.address, group="g", split_bytes=100) as producer,
    ):
        receipts = await producer.send_all(Message("t", b"x" * 20) for _ in range(16))
        again = await producer.send_all(Message("t", b"x" * 20) for _ in range(16))

    assert len(receipts) == len(again) == 8
    took = [receipt.queue for receipt in receipts + again]
    assert len(set(took[:4])) == 4
    assert took == took[:4] * 4


async def test_the_rest_of_a_long_list_is_not_sent_when_a_part_fails() -> None:
    broker = SentBroker("a", ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL)
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", split_bytes=100) as producer,
    ):
        with pytest.raises(ResponseError):
            await producer.send_all(Message("t", b"x" * 20) for _ in range(10))

    assert len(broker.sends) == 2


# --- gathered from single sends -----------------------------------------------------------------


def gathering(cluster: ScriptedCluster, **options: Any) -> Producer:
    given = {"auto_batch": True, "auto_batch_delay_ms": 20, **options}
    return Producer(cluster.address, group="g", **given)


async def test_single_sends_travel_together_and_each_gets_its_own_receipt(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    messages = [Message(topic=topic, body=b"%d" % number) for number in range(20)]
    async with Producer(name_servers, group=group, auto_batch=True) as producer:
        receipts = await asyncio.gather(*map(producer.send, messages))
        receipts += await asyncio.gather(*map(producer.send_nowait, messages))
    got = {message.message_id: message for message in await read_all(name_servers, queues, 40)}

    assert len({receipt.message_id for receipt in receipts}) == 40
    for receipt, message in zip(receipts, messages * 2, strict=True):
        stored = got[receipt.message_id]
        assert stored.body == message.body
        assert (stored.queue, stored.queue_offset) == (receipt.queue, receipt.queue_offset)
        assert stored.offset_message_id == receipt.offset_message_id


async def test_messages_wait_only_for_their_like() -> None:
    """The same topic, queue, tag and way of storing."""
    broker = SentBroker()
    queue = MessageQueue("t", "a", 1)
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        sends = [
            producer.send(Message("t", b"1")),
            producer.send(Message("t", b"2", tags="a")),
            producer.send(Message("t", b"3", wait_store=False)),
            producer.send(Message("t", b"4"), queue=queue),
            producer.send(Message("t", b"5")),
            producer.send(Message("t", b"6", tags="a")),
            producer.send(Message("t", b"7"), queue=queue),
        ]
        receipts = await asyncio.gather(*sends)

    together = sorted(
        [item.body for item in decode_batch(command.body)]
        if command.code == RequestCode.SEND_BATCH_MESSAGE
        else [command.body]
        for command in broker.commands
    )
    assert together == [[b"1", b"5"], [b"2", b"6"], [b"3"], [b"4", b"7"]]
    assert [receipts[3].queue, receipts[6].queue] == [queue, queue]


@pytest.mark.parametrize(
    ("message", "how"),
    [
        (Message("t", b"x", delay_level=1), {}),
        (Message("t", b"x", properties={"TIMER_DELAY_MS": "1"}), {}),
        (Message("t", b"x" * 1_000), {}),
        (Message("t", b"x"), {"timeout": 3.0}),
        (Message("t", b"x"), {"order_key": "k"}),
    ],
    ids=["delay", "timer", "large", "own timeout", "selector"],
)
async def test_some_messages_do_not_wait_for_others(message: Message, how: dict[str, Any]) -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, auto_batch_delay_ms=30_000, auto_batch_bytes=1_000) as producer,
    ):
        await producer.send(message, **how)
        await producer.send_nowait(message, **how)

    assert [command.code for command in broker.commands] == [RequestCode.SEND_MESSAGE_V2] * 2


async def test_a_batch_leaves_as_soon_as_it_is_large_enough() -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, auto_batch_delay_ms=30_000, auto_batch_bytes=100) as producer,
    ):
        sends = [producer.send(Message("t", b"x" * 40)) for _ in range(3)]
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)

    assert len(broker.sends) == 1
    assert len(decode_batch(broker.commands[0].body)) == 3


@pytest.mark.usefixtures("virtual_time")
async def test_messages_are_sent_alone_while_too_many_bytes_wait() -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, auto_batch_delay_ms=500, auto_batch_total_bytes=10) as producer,
    ):
        waiting = producer.send_nowait(Message("t", b"0123456789"))
        await producer.send_nowait(Message("t", b"alone"))
        assert [command.body for command in broker.commands] == [b"alone"]
        await waiting


async def test_small_bodies_with_large_properties_do_not_exceed_a_request() -> None:
    """150 messages of a byte with 30 KiB of properties each are more than 4 MiB."""
    broker = SentBroker()
    properties = {"trace": "x" * 30 * 1024}
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        messages = [Message("t", b"x", properties=properties) for _ in range(150)]
        receipts = await asyncio.gather(*map(producer.send, messages))

    assert len({receipt.message_id for receipt in receipts}) == 150
    sizes = [len(decode_batch(command.body)) for command in broker.commands]
    assert sorted(sizes) == [14, 136]  # gathered sends keep no order


async def test_gathered_messages_hold_their_room_until_their_batch_has_ended() -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, auto_batch_delay_ms=30_000, back_pressure_messages=10) as producer,
    ):
        sends = [producer.send_nowait(Message("t", b"x")) for _ in range(10)]
        sends[0].cancel()
        with pytest.raises(BackPressureError, match="10 messages"):
            producer.send_nowait(Message("t", b"x"))
        await producer.flush()
        assert [send.done() for send in sends] == [True] * 10
        later = producer.send_nowait(Message("t", b"x"))
        await producer.flush()
        assert later.done()

    assert [len(decode_batch(command.body)) for command in broker.commands[:1]] == [9]


async def test_keys_of_a_generator_are_sent_in_a_batch() -> None:
    broker = SentBroker()
    messages = [Message("t", b"x", keys=(key for key in ("k1", "k2"))) for _ in range(2)]
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        await producer.send_all(messages)

    items = decode_batch(broker.commands[0].body)
    assert [decode_properties(item.properties)["KEYS"] for item in items] == ["k1 k2"] * 2


async def test_one_bad_message_does_not_spoil_the_others() -> None:
    broker = SentBroker()
    bad = Message("t", b"x", properties={"UNIQ_KEY": "mine"})
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        good = [producer.send_nowait(Message("t", b"x")) for _ in range(2)]
        with pytest.raises(InvalidMessageError, match="UNIQ_KEY"):
            await producer.send(bad)
        with pytest.raises(InvalidMessageError, match="UNIQ_KEY"):
            await producer.send_nowait(bad)
        await asyncio.gather(*good)

    assert len(broker.sends) == 1


class Miscounting(SendHook):
    """Gives a send another number of messages than it has."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ended: list[BaseException | None] = []

    def before_send(self, context: SendContext) -> None:
        context.messages = [context.messages[0]] * self.count

    def after_send(self, context: SendContext) -> None:
        self.ended.append(context.error)


@pytest.mark.parametrize("count", [0, 2, 4])
async def test_a_hook_that_changes_the_number_of_messages_is_refused(count: int) -> None:
    broker = SentBroker()
    hook = Miscounting(count)
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, hooks=[hook]) as producer,
    ):
        gathered = [producer.send_nowait(Message("t", b"x")) for _ in range(3)]
        alone = producer.send_nowait(Message("t", b"x"), timeout=3.0)
        batch = asyncio.ensure_future(producer.send_batch([Message("t", b"x")] * 3))
        failures = await asyncio.gather(*gathered, alone, batch, return_exceptions=True)
        with pytest.raises(InvalidMessageError):
            await producer.send_oneway(Message("t", b"x"))

    assert broker.sends == []
    assert {type(failure) for failure in failures} == {InvalidMessageError}
    assert f"from 3 to {count}" in str(failures[0])
    assert [type(error) for error in hook.ended] == [InvalidMessageError] * 4


async def test_a_hook_may_replace_the_messages_of_a_gathered_batch() -> None:
    class Numbered(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.messages = [
                Message(message.topic, b"%d" % number)
                for number, message in enumerate(context.messages)
            ]

    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, hooks=[Numbered()]) as producer,
    ):
        await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(3)))

    assert [item.body for item in decode_batch(broker.commands[0].body)] == [b"0", b"1", b"2"]


async def test_a_refusal_is_that_of_every_message_of_the_batch() -> None:
    broker = SentBroker("a", *[ResponseCode.MESSAGE_ILLEGAL] * 2)
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        sends = [producer.send_nowait(Message("t", b"x")) for _ in range(3)]
        failures = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(failure) for failure in failures] == [ResponseError] * 3


async def test_a_cancelled_message_leaves_its_batch() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, gathering(cluster) as producer:
        sends = [producer.send_nowait(Message("t", b"%d" % number)) for number in range(3)]
        sends[1].cancel()
        await asyncio.gather(sends[0], sends[2])

    assert [item.body for item in decode_batch(broker.commands[0].body)] == [b"0", b"2"]


async def test_what_waits_is_sent_when_the_producer_closes() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with gathering(cluster, auto_batch_delay_ms=30_000) as producer:
            sends = [producer.send_nowait(Message("t", b"x")) for _ in range(3)]
        receipts = await asyncio.gather(*sends)
        with pytest.raises(ClientClosedError):
            await producer.send_nowait(Message("t", b"x"))

    assert len({receipt.message_id for receipt in receipts}) == 3


async def test_hooks_see_a_gathered_batch_and_may_add_to_each_message() -> None:
    class Marking(SendHook):
        def before_send(self, context: SendContext) -> None:
            for number, message in enumerate(context.messages):
                message.properties["place"] = str(number)

    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        gathering(cluster, hooks=[Marking()]) as producer,
    ):
        await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(2)))

    items = decode_batch(broker.commands[0].body)
    assert [decode_properties(item.properties)["place"] for item in items] == ["0", "1"]
