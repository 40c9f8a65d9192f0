"""Consumption of popped messages: ack, nack, dead letters, and skipped messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from cometmq.client._connection.identity import Namespace
from cometmq.client._consuming.handler_calls import CallLimits, HandlerCalls
from cometmq.client._consuming.retries import DeadLetterRule, DeadLetters
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._pop.calls import ReceiptHandle
from cometmq.client._pop.service import Popped, PopQueue, PopService
from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed
from cometmq.model.message import StoredMessage
from support.clients.consumer_inputs import QUEUE, stored

WAIT_S = 60.0


class Broker:
    """What a broker receives about messages."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.nacked: list[tuple[int, float]] = []
        self.failure: BaseException | None = None
        """What the next acknowledgement raises."""

    async def ack(self, topic: str, handle: ReceiptHandle) -> bool:
        await asyncio.sleep(0)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.acked.append(handle.offset)
        return True

    async def nack(self, topic: str, handle: ReceiptHandle, seconds: float) -> bool:
        await asyncio.sleep(0)
        self.nacked.append((handle.offset, seconds))
        return True


class Rig:
    def __init__(
        self,
        *,
        handler: Callable[..., Any] | None = None,
        batch_handler: Callable[..., Any] | None = None,
        retries_max: int = 16,
        takes_dead: bool = True,
        concurrency: int = 4,
        namespace: str = "",
    ) -> None:
        self.broker = Broker()
        self.source = PopQueue(QUEUE)
        self.statistics = Statistics()
        self.dead: list[tuple[int, BaseException | None]] = []
        self._takes_dead = takes_dead
        self.service = PopService(
            HandlerCalls(
                handler, batch_handler, group="g", client_id="c", limits=CallLimits(concurrency, 8)
            ),
            acks=self.broker,  # type: ignore[arg-type]
            dead_letters=DeadLetters(DeadLetterRule(retries_max), self._give_up),
            show=Namespace(namespace).unwrap_topics,
            statistics=self.statistics,
        )

    async def _give_up(self, message: StoredMessage, error: BaseException | None) -> bool:
        self.dead.append((message.queue_offset, error))
        return self._takes_dead

    def pop(
        self, *messages: StoredMessage, invisible_ms: int = 60_000, waited_s: float = 0.0
    ) -> None:
        got_at = time.monotonic() - waited_s
        handles = [
            ReceiptHandle.parse(f"0 1 {invisible_ms} 1 0 a {each.queue_id} {each.queue_offset}")
            for each in messages
        ]
        self.service.submit(
            Popped(self.source, list(messages), handles, messages[0].topic, got_at=got_at)
        )

    async def settled(self) -> None:
        settled = asyncio.Event()
        self.source.on_removed = settled.set
        async with asyncio.timeout(WAIT_S):
            while self.source.waiting:
                settled.clear()
                await settled.wait()

    async def close(self) -> None:
        await self.service.stop(grace_s=0)


Rigs = Callable[..., Rig]


def tried(offset: int, times: int) -> StoredMessage:
    message = stored(offset)
    message.reconsume_times = times
    return message


async def test_what_a_handler_is_done_with_is_acknowledged(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        await asyncio.sleep(0)

    rig = rigs(handler=handle)
    rig.pop(stored(0), stored(1))
    assert rig.source.waiting == 2
    await rig.settled()

    assert sorted(rig.broker.acked) == [0, 1]
    assert rig.broker.nacked == []


@pytest.mark.parametrize("failure", [ValueError(), asyncio.CancelledError()], ids=repr)
async def test_further_messages_are_handled_after_an_acknowledgement_raised(
    rigs: Rigs, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: StoredMessage) -> None:
        await asyncio.sleep(0)

    rig = rigs(handler=handle, concurrency=1)
    rig.broker.failure = failure
    rig.pop(stored(0), stored(1), stored(2))
    await rig.settled()

    assert rig.broker.acked == [1, 2]
    assert "worker failed, item dropped" in caplog.text


async def test_rates_are_counted_by_the_topic_as_brokers_know_it(rigs: Rigs) -> None:
    """Running info lists topics by these names."""

    async def fail(message: StoredMessage) -> None:
        raise LookupError

    rig, message = rigs(handler=fail, namespace="shop"), stored(0)
    message.topic = "shop%orders"
    rig.pop(message)
    await rig.settled()

    assert message.topic == "orders"
    assert rig.statistics.status("shop%orders").consume_failed_msgs == 1


async def test_what_failed_is_put_off_for_longer_each_time(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ValueError

    rig = rigs(handler=handle)
    rig.pop(tried(0, 0), tried(1, 1), tried(2, 15))
    await rig.settled()

    assert sorted(rig.broker.nacked) == [(0, 10), (1, 30), (2, 7200)]
    assert rig.broker.acked == []


async def test_the_rest_of_a_batch_is_put_off_by_the_level_that_was_ordered(rigs: Rigs) -> None:
    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        context.done, context.delay_level = 1, 2
        return Consumed.SUCCESS

    rig = rigs(batch_handler=handle)
    rig.pop(stored(0), stored(1), stored(2))
    await rig.settled()

    assert rig.broker.acked == [0]
    assert sorted(rig.broker.nacked) == [(1, 60), (2, 60)]


async def test_a_message_is_put_off_for_exactly_the_delay_that_was_asked_for(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ConsumeLater(delay=timedelta(seconds=7.5))

    rig = rigs(handler=handle)
    rig.pop(tried(0, 3))
    await rig.settled()

    assert rig.broker.nacked == [(0, 7.5)]


async def test_what_failed_too_often_is_given_up_and_then_acknowledged(rigs: Rigs) -> None:
    error = ValueError("never")

    async def handle(message: StoredMessage) -> None:
        raise error

    rig = rigs(handler=handle, retries_max=2)
    rig.pop(tried(0, 1), tried(1, 2))
    await rig.settled()

    assert rig.dead == [(1, error)]
    assert rig.broker.acked == [1]
    assert rig.broker.nacked == [(0, 30)]


async def test_what_nobody_takes_as_a_dead_letter_is_put_off(rigs: Rigs) -> None:
    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        context.delay_level = -1
        return Consumed.LATER

    rig = rigs(batch_handler=handle, takes_dead=False)
    rig.pop(stored(0))
    await rig.settled()

    assert rig.dead == [(0, None)]
    assert rig.broker.nacked == [(0, 10)]
    assert rig.broker.acked == []


async def test_what_waited_longer_than_its_time_is_left_alone(rigs: Rigs) -> None:
    seen: list[int] = []
    gate = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    rig = rigs(handler=handle, concurrency=1)
    rig.pop(stored(0))
    rig.pop(stored(1), invisible_ms=20_000, waited_s=21.0)
    rig.pop(stored(2))
    gate.set()
    await rig.settled()

    assert seen == [0, 2]
    assert rig.broker.acked == [0, 2]


async def test_all_messages_of_one_call_are_of_one_queue(rigs: Rigs) -> None:
    calls: list[tuple[int, list[int]]] = []

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        calls.append((context.queue.queue_id, [each.queue_id for each in messages]))

    rig = rigs(batch_handler=handle)
    messages = [stored(offset) for offset in range(5)]
    for number, message in enumerate(messages):
        message.queue_id = number % 2
    rig.pop(*messages)
    await rig.settled()

    assert sorted(calls) == [(0, [0, 0, 0]), (1, [1, 1])]


async def test_a_stop_leaves_what_no_handler_has_begun_alone(rigs: Rigs) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        begun.set()
        await gate.wait()

    rig = rigs(handler=handle, concurrency=1)
    rig.pop(stored(0), stored(1))
    await begun.wait()
    stopping = asyncio.create_task(rig.service.stop(grace_s=WAIT_S))
    await asyncio.sleep(0)
    gate.set()
    await stopping

    assert rig.broker.acked == [0]
    assert rig.broker.nacked == []


async def test_messages_that_a_handler_takes_out_of_its_list_are_settled(rigs: Rigs) -> None:
    async def handle(messages: list[StoredMessage], context: ConsumeContext) -> None:
        while messages:
            if messages.pop().queue_offset == 4:
                raise LookupError

    rig = rigs(batch_handler=handle)
    rig.pop(stored(0), stored(1), stored(2))
    await rig.settled()
    rig.pop(stored(3), stored(4), stored(5))
    await rig.settled()

    assert rig.broker.acked == [0, 1, 2]
    assert sorted(rig.broker.nacked) == [(3, 10), (4, 10), (5, 10)]
