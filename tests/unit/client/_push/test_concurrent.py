"""Consuming in any order: what is committed, sent back, tried again; how many run at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from cometmq.client._callbacks import KINDS_MAX, TraceTimes
from cometmq.client._consuming.handler_calls import CallLimits, HandlerCalls
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._push.concurrent import ConcurrentService, Redelivery
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from support.checks.waiting import until
from support.clients.consumer_inputs import QUEUE, MemoryOffsets, stored
from support.clients.recording_handlers import Seen, Waits

WAIT_S = 60.0


class Rig:
    """A service over one queue, a clock that tests turn, and a broker's side that takes back."""

    def __init__(
        self,
        *,
        handler: Callable[..., Any] | None = None,
        batch_handler: Callable[..., Any] | None = None,
        batch_max: int = 1,
        concurrency: int = 4,
        broadcast: bool = False,
        takes_back: bool = True,
        timeout_s: float = 900.0,
        hooks: Sequence[ConsumeHook] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.now = 100.0
        self.queue = ProcessQueue(QUEUE, now=lambda: self.now)
        self.offsets = MemoryOffsets()
        self.statistics = Statistics(lambda: self.now)
        self.sent_back: list[tuple[int, int, BaseException | None]] = []
        self.takes_back = takes_back
        self.failure: BaseException | None = None
        """What the next request to send a message back raises."""
        self.service = ConcurrentService(
            HandlerCalls(
                handler,
                batch_handler,
                group="g",
                client_id="c",
                hooks=hooks,
                limits=CallLimits(concurrency, batch_max, timeout_s),
            ),
            store=self.offsets,
            redelivery=None if broadcast else Redelivery(self._take_back, lambda *_: "none"),
            restore_topics=lambda queue, messages: None,
            statistics=self.statistics,
            now=clock or (lambda: self.now),
            local_retry_s=0.01,
        )

    async def _take_back(
        self, message: StoredMessage, delay_level: int, error: BaseException | None
    ) -> bool:
        await asyncio.sleep(0)
        self.sent_back.append((message.queue_offset, delay_level, error))
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return self.takes_back

    def fetch(self, *offsets: int) -> list[StoredMessage]:
        messages = [stored(offset) for offset in offsets]
        batch = self.queue.put(messages)
        assert batch is not None
        self.service.submit(self.queue, batch)
        return messages

    async def empty(self) -> None:
        await until(lambda: self.queue.count == 0)

    @property
    def committed(self) -> int | None:
        return self.offsets.position(QUEUE)

    async def close(self) -> None:
        await self.service.stop(grace_s=0)


Rigs = Callable[..., Rig]


async def test_each_message_is_handled_once_and_its_offset_noted(rigs: Rigs) -> None:
    seen = Seen()
    rig = rigs(handler=seen)
    rig.fetch(*range(7, 50))
    await rig.empty()

    assert seen.offsets == list(range(7, 50))
    assert rig.committed == 50


async def test_nothing_behind_an_unfinished_message_is_committed(rigs: Rigs) -> None:
    may_end = {offset: asyncio.Event() for offset in range(3)}
    ended: list[int] = []

    async def handle(message: StoredMessage) -> None:
        await may_end[message.queue_offset].wait()
        ended.append(message.queue_offset)

    rig = rigs(handler=handle)
    rig.fetch(0, 1, 2)
    may_end[2].set()
    await until(lambda: rig.queue.count == 2)
    assert rig.committed == 0
    may_end[0].set()
    await until(lambda: rig.queue.count == 1)
    assert rig.committed == 1
    may_end[1].set()
    await rig.empty()

    assert (ended, rig.committed) == ([2, 0, 1], 3)


async def test_a_batch_handler_gets_batches_of_at_most_the_size_that_is_set(rigs: Rigs) -> None:
    sizes: list[int] = []

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        sizes.append(len(messages))

    rig = rigs(batch_handler=handle, batch_max=4)
    rig.fetch(*range(10))
    await rig.empty()

    assert sizes == [4, 4, 2]


async def test_only_the_rest_is_sent_back_when_a_batch_handler_says_how_many_are_done(
    rigs: Rigs,
) -> None:
    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
        context.done, context.delay_level = 2, 5
        return Consumed.SUCCESS

    rig = rigs(batch_handler=handle, batch_max=4)
    rig.fetch(0, 1, 2, 3)
    await rig.empty()

    assert rig.sent_back == [(2, 5, None), (3, 5, None)]
    assert rig.committed == 4


@pytest.mark.parametrize(
    ("raised", "level", "has_error"),
    [(ValueError("no such order"), 0, True), (ConsumeLater(delay_level=7), 7, False)],
    ids=["error", "level of the handler"],
)
async def test_a_failed_message_is_sent_back_with_its_error_or_the_level_its_handler_orders(
    rigs: Rigs, raised: Exception, level: int, has_error: bool
) -> None:
    async def handle(message: StoredMessage) -> None:
        raise raised

    rig = rigs(handler=handle)
    rig.fetch(0)
    await rig.empty()

    assert rig.sent_back == [(0, level, raised if has_error else None)]
    assert rig.committed == 1


async def test_a_message_is_tried_again_here_when_no_broker_takes_it_back(rigs: Rigs) -> None:
    deliveries: list[int] = []

    async def handle(message: StoredMessage) -> Consumed:
        deliveries.append(message.reconsume_times)
        return Consumed.SUCCESS if len(deliveries) == 3 else Consumed.LATER

    rig = rigs(handler=handle, takes_back=False)
    rig.fetch(0)
    await until(lambda: len(rig.sent_back) == 1)
    assert (rig.queue.count, rig.committed) == (1, 0)
    await rig.empty()

    assert deliveries == [0, 1, 2]
    assert rig.committed == 1


@pytest.mark.parametrize("failure", [ValueError(), asyncio.CancelledError()], ids=repr)
async def test_a_message_is_tried_again_here_when_sending_it_back_raises(
    rigs: Rigs, failure: BaseException
) -> None:
    deliveries: list[int] = []

    async def handle(message: StoredMessage) -> Consumed:
        deliveries.append(message.queue_offset)
        return Consumed.SUCCESS if len(deliveries) > 1 else Consumed.LATER

    rig = rigs(handler=handle, concurrency=1)
    rig.failure = failure
    rig.fetch(0, 1)
    await rig.empty()

    assert deliveries == [0, 1, 0]
    assert rig.committed == 2


async def test_what_could_not_be_sent_back_holds_up_no_other_message_but_their_commit(
    rigs: Rigs,
) -> None:
    async def handle(message: StoredMessage) -> Consumed:
        return Consumed.LATER if message.queue_offset == 0 else Consumed.SUCCESS

    rig = rigs(handler=handle, takes_back=False)
    rig.fetch(0, 1, 2)
    await until(lambda: rig.queue.count == 1)

    assert rig.committed == 0


async def test_a_failed_broadcast_is_dropped(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> Consumed:
        return Consumed.LATER

    rig = rigs(handler=handle, broadcast=True)
    rig.fetch(0)
    await rig.empty()

    assert rig.committed == 1
    assert rig.sent_back == []


async def test_a_message_is_sent_back_while_its_handler_takes_too_long(rigs: Rigs) -> None:
    handler = Waits(Consumed.LATER)
    rig = rigs(handler=handler, timeout_s=60.0, concurrency=1)
    rig.fetch(0, 1)
    await handler.count(1)
    rig.now += 59
    await rig.service.send_back_timed_out()
    assert rig.sent_back == []
    rig.now += 2
    await rig.service.send_back_timed_out()
    assert rig.sent_back == [(0, 3, None)]
    assert rig.committed == 1, "it counts as consumed and does not hold up the commit"

    handler.may_end.set()
    await handler.count(2)
    await rig.empty()
    assert [offset for offset, _, _ in rig.sent_back] == [0, 1], "sent back once, not twice"


async def test_a_failed_message_that_is_being_sent_back_is_not_sent_back_as_late(
    rigs: Rigs,
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        raise ValueError("no")

    rig = rigs(handler=handle, timeout_s=60.0, concurrency=1)
    take_back = rig._take_back

    async def slowly(*arguments: Any) -> bool:
        begun.set()
        await may_end.wait()
        return await take_back(*arguments)

    rig.service._redelivery = Redelivery(slowly, lambda *_: "none")
    rig.fetch(0)
    await until(begun.is_set)
    rig.now += 61
    may_end.set()
    await rig.service.send_back_timed_out()
    await rig.empty()

    assert [(offset, level) for offset, level, _ in rig.sent_back] == [(0, 0)]


async def test_a_handler_that_raises_after_its_message_was_sent_back_is_logged_and_no_more(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Waits(ValueError("too late"))
    rig = rigs(handler=handler, timeout_s=60.0, concurrency=1)
    rig.fetch(0)
    await handler.count(1)
    rig.now += 61
    await rig.service.send_back_timed_out()
    handler.may_end.set()
    assert await rig.queue.wait_idle(WAIT_S)

    assert rig.sent_back == [(0, 3, None)]
    assert rig.committed == 1
    assert "handler failed topic=t id=ID0 keys= group=g retries=0" in caplog.text
    assert "consuming failed" not in caplog.text


async def test_a_store_that_fails_to_update_is_updated_again(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: StoredMessage) -> None:
        """Nothing is wrong with the message."""

    rig = rigs(handler=handle)
    update = rig.offsets.update

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the database is gone")

    rig.offsets.update = fail
    rig.fetch(0, 1)
    await rig.empty()
    assert rig.committed is None
    assert caplog.text.count("cannot update the offset store queue=t@a:0") == 1

    rig.offsets.update = update
    rig.fetch(2)
    await until(lambda: rig.committed == 3)
    assert rig.sent_back == []


async def test_a_store_that_fails_for_one_queue_delays_the_offsets_of_no_other(rigs: Rigs) -> None:
    may_end = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        if message.queue_offset == 9:
            await may_end.wait()

    rig = rigs(handler=handle, concurrency=1)
    other = ProcessQueue(MessageQueue("t", "a", 1), now=lambda: rig.now)
    update = rig.offsets.update

    def fail_for_one(queue: MessageQueue, *arguments: Any, **more: Any) -> None:
        if queue == QUEUE:
            raise OSError("this row is locked")
        update(queue, *arguments, **more)

    rig.offsets.update = fail_for_one
    rig.fetch(0)
    await rig.empty()
    batch = other.put([stored(offset) for offset in (7, 8, 9)])
    assert batch is not None
    rig.service.submit(other, batch)
    await until(lambda: rig.offsets.position(other.queue) == 9)
    may_end.set()


@pytest.mark.parametrize("hooks", [[], [ConsumeHook()]], ids=["fast", "general"])
def test_a_loop_that_ends_takes_running_handlers_with_it(hooks: Sequence[ConsumeHook]) -> None:
    """As after Ctrl-C, or when the application fails and did not close its consumer."""

    async def application() -> None:
        handler = Waits()
        Rig(handler=handler, hooks=hooks).fetch(0, 1, 2)
        await handler.count(1)
        raise KeyError("application")

    def run() -> None:
        with pytest.raises(KeyError, match="application"):
            asyncio.run(application())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


async def test_no_more_calls_run_at_a_time_than_are_allowed(rigs: Rigs) -> None:
    running = most = 0
    may_end = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await may_end.wait()
        running -= 1

    rig = rigs(handler=handle, concurrency=3)
    rig.fetch(*range(20))
    await until(lambda: running == 3)
    rig.service.set_concurrency(5)
    await until(lambda: running == 5)
    rig.service.set_concurrency(2)
    may_end.set()
    await rig.empty()

    assert most == 5


async def test_fewer_calls_run_at_a_time_once_the_concurrency_was_lowered(rigs: Rigs) -> None:
    running: list[int] = []
    gates = {offset: asyncio.Event() for offset in range(20)}

    async def handle(message: StoredMessage) -> None:
        running.append(message.queue_offset)
        await gates[message.queue_offset].wait()
        running.remove(message.queue_offset)

    rig = rigs(handler=handle, concurrency=4)
    rig.fetch(*range(20))
    await until(lambda: len(running) == 4)
    rig.service.set_concurrency(1)
    for offset in range(4):
        gates[offset].set()
    await until(lambda: running == [4])
    for _ in range(20):
        await asyncio.sleep(0)

    assert running == [4]
    for gate in gates.values():
        gate.set()
    await rig.empty()


async def test_plain_handlers_run_in_threads_as_many_as_are_allowed(rigs: Rigs) -> None:
    together = threading.Barrier(3)

    def handle(message: StoredMessage) -> None:
        together.wait(WAIT_S)

    rig = rigs(handler=handle, concurrency=3)
    rig.fetch(*range(6))
    await rig.empty()

    assert rig.committed == 6
    assert rig.sent_back == []


async def test_the_loop_gets_its_turns_while_handlers_never_wait(rigs: Rigs) -> None:
    loop = asyncio.get_running_loop()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def handle(message: StoredMessage) -> None:
        end = loop.time() + 0.003
        while loop.time() < end:
            pass

    rig = rigs(handler=handle, concurrency=1, clock=loop.time)
    rig.fetch(*range(30))
    loop.call_soon(turn)
    await rig.empty()

    assert turns >= 10


@pytest.mark.parametrize(
    ("result", "forgotten", "committed"),
    [(None, False, 1), (Consumed.LATER, False, 0), (None, True, None)],
)
async def test_only_a_running_handler_still_counts_once_the_queue_was_dropped(
    rigs: Rigs, *, result: object, forgotten: bool, committed: int | None
) -> None:
    handler = Waits(result)
    rig = rigs(handler=handler, concurrency=1)
    rig.fetch(0, 1, 2)
    await handler.count(1)
    rig.queue.drop()
    assert not await rig.queue.wait_idle(0.01)
    if forgotten:
        rig.queue.clear()
    handler.may_end.set()
    assert await rig.queue.wait_idle(WAIT_S)
    await rig.service.stop(grace_s=WAIT_S)

    assert (handler.offsets, rig.committed) == ([0], committed)
    assert rig.sent_back == [], "the next owner gets it"


async def test_what_waits_of_a_dropped_queue_holds_up_no_other(rigs: Rigs) -> None:
    handler = Waits()
    rig = rigs(handler=handler, concurrency=1)
    rig.fetch(0, 1, 2)
    await handler.count(1)
    rig.queue.drop()
    rig.queue = ProcessQueue(MessageQueue("t", "a", 1), now=lambda: rig.now)
    rig.fetch(7)
    handler.may_end.set()
    await rig.empty()

    assert handler.offsets == [0, 7]


@pytest.mark.parametrize("result", [None, Consumed.SUCCESS])
async def test_several_workers_share_a_batch_and_their_calls_are_counted(
    rigs: Rigs, result: object
) -> None:
    seen: list[int] = []

    async def handle(message: StoredMessage) -> object:
        await asyncio.sleep(0)
        seen.append(message.queue_offset)
        return result

    rig = rigs(handler=handle, concurrency=3)
    rig.fetch(*range(12))
    await rig.empty()
    await until(lambda: rig.committed == 12)

    assert sorted(seen) == list(range(12))
    assert rig.statistics.status("t").consume_ok_tps == 12 / 60


async def test_a_stop_waits_for_running_handlers_and_begins_no_further_ones(rigs: Rigs) -> None:
    handler = Waits()
    rig = rigs(handler=handler, concurrency=1)
    rig.fetch(0, 1, 2)
    await handler.count(1)
    stopping = asyncio.create_task(rig.service.stop(grace_s=WAIT_S))
    await asyncio.sleep(0)
    handler.may_end.set()
    await stopping

    assert (handler.offsets, rig.committed) == ([0], 1)


async def test_a_stop_cancels_handlers_that_outlast_its_grace(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Waits()
    rig = rigs(handler=handler)
    rig.fetch(0)
    await handler.count(1)
    await rig.service.stop(grace_s=0.01)

    assert handler.cancelled
    assert rig.committed is None
    assert "handlers still run and are cancelled group=g calls=1" in caplog.text


async def test_a_cancellation_that_the_handler_raises_itself_is_its_failure(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        raise asyncio.CancelledError

    rig = rigs(handler=handle)
    rig.fetch(0, 1)
    await rig.empty()

    assert [offset for offset, _, _ in rig.sent_back] == [0, 1]


class CancellingHook(ConsumeHook):
    """Raises in each of its methods what is no `Exception`."""

    def before(self, context: DeliveryContext) -> None:
        raise asyncio.CancelledError

    def after(self, context: DeliveryContext) -> None:
        raise asyncio.CancelledError


async def test_a_cancellation_that_a_hook_raises_changes_nothing(rigs: Rigs) -> None:
    seen = Seen()
    rig = rigs(handler=seen, hooks=[CancellingHook()])
    rig.fetch(0, 1)
    await rig.empty()

    assert seen.offsets == [0, 1]
    assert not rig.sent_back


@pytest.mark.parametrize("hooks", [(), (ConsumeHook(),)], ids=["fast", "with hooks"])
async def test_a_handler_that_cancels_its_own_task_has_failed(
    rigs: Rigs, hooks: Sequence[ConsumeHook]
) -> None:
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.queue_offset)
        if seen.count(0) == 1 and message.queue_offset == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    rig = rigs(handler=handle, concurrency=1, hooks=hooks)
    rig.fetch(0, 1)
    await rig.empty()

    assert seen[:2] == [0, 1]
    assert rig.committed == 2


async def test_hooks_see_each_call_and_their_errors_change_nothing(rigs: Rigs) -> None:
    seen: list[tuple[str, object]] = []

    class Watch(ConsumeHook):
        def before(self, context: DeliveryContext) -> None:
            seen.append(("before", context.end))
            raise RuntimeError("a hook's own trouble")

        def after(self, context: DeliveryContext) -> None:
            seen.append(("after", context.end))

    async def handle(message: StoredMessage) -> None:
        if message.queue_offset:
            raise ValueError

    rig = rigs(handler=handle, hooks=[Watch()], concurrency=1)
    rig.fetch(0, 1)
    await rig.empty()

    assert seen == [
        ("before", None),
        ("after", ConsumeEnd.SUCCESS),
        ("before", None),
        ("after", ConsumeEnd.EXCEPTION),
    ]


async def test_hooks_see_the_end_of_a_call_that_a_stop_cancels(rigs: Rigs) -> None:
    handler = Waits()
    seen: list[tuple[ConsumeEnd | None, BaseException | None]] = []

    class Watch(ConsumeHook):
        def after(self, context: DeliveryContext) -> None:
            seen.append((context.end, context.error))

    rig = rigs(handler=handler, hooks=[Watch()])
    rig.fetch(0)
    await handler.count(1)
    await rig.service.stop(grace_s=0)

    [(end, error)] = seen
    assert end is ConsumeEnd.EXCEPTION
    assert isinstance(error, asyncio.CancelledError)


async def test_each_failed_delivery_is_one_line_and_each_kind_of_error_one_traceback(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: StoredMessage) -> None:
        if message.queue_offset == 2:
            raise LookupError("no such\norder")
        raise ValueError(message.queue_offset)

    rig = rigs(handler=handle, concurrency=1)
    rig.fetch(0, 1, 2)
    await rig.empty()

    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "handler failed topic=t id=ID0 keys= group=g retries=0 messages=1"
        " redelivery=none error=builtins.ValueError: 0",
        "handler failed topic=t id=ID1 keys= group=g retries=0 messages=1"
        " redelivery=none error=builtins.ValueError: 1",
        "handler failed topic=t id=ID2 keys= group=g retries=0 messages=1"
        " redelivery=none error=builtins.LookupError: no such order",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, True]


def test_a_traceback_is_logged_once_a_minute_and_the_kinds_are_bounded() -> None:
    now = 0.0
    times = TraceTimes(lambda: now)

    assert [times.is_due(ValueError()), times.is_due(ValueError())] == [True, False]
    now = 59.9
    assert not times.is_due(ValueError())
    now = 60.0
    assert times.is_due(ValueError())
    for number in range(KINDS_MAX):
        assert times.is_due(type(f"Error{number}", (Exception,), {})())
    assert times.is_due(ValueError()), "it was forgotten for newer ones"


async def test_a_result_without_a_meaning_is_success_and_warned_of_once_for_each_type(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: StoredMessage) -> object:
        return [False, True, "done", None, Consumed.SUCCESS][message.queue_offset]

    rig = rigs(handler=handle, concurrency=1)
    rig.fetch(*range(5))
    await rig.empty()

    assert rig.committed == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"handler returned {result}, which counts as success; expected None, Consumed or"
        " ConsumedInOrder group=g"
        for result in ("False (bool)", "'done' (str)")
    ]


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_result_that_was_not_awaited_or_iterated_is_a_failure(
    rigs: Rigs, caplog: pytest.LogCaptureFixture, *, hooked: bool
) -> None:
    async def store() -> None:
        raise AssertionError("nothing awaits it")

    async def lines() -> AsyncIterator[int]:
        yield 1

    never: Iterator[int] = (n for n in range(0))
    forgotten: list[Any] = [store(), asyncio.get_running_loop().create_future(), never, lines()]

    async def handle(message: StoredMessage) -> object:
        return forgotten[message.queue_offset]

    rig = rigs(handler=handle, concurrency=1, hooks=[ConsumeHook()] if hooked else [])
    rig.fetch(*range(4))
    await rig.empty()
    forgotten[0].close()

    assert [offset for offset, _, _ in rig.sent_back] == [0, 1, 2, 3]
    assert all(isinstance(error, TypeError) for _, _, error in rig.sent_back)
    texts = [record.getMessage() for record in caplog.records]
    assert ["not awaited: make the handler an async def" in text for text in texts] == [
        *(True, True, False, False)
    ]
    assert ["whose body has not run: iterate it" in text for text in texts] == [
        *(False, False, True, True)
    ]


async def test_statistics_count_what_is_done_and_what_failed(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        if message.queue_offset % 2:
            raise ValueError

    rig = rigs(handler=handle)
    rig.fetch(*range(6))
    await rig.empty()
    status = rig.statistics.status("t")

    assert (status.consume_ok_tps, status.consume_failed_tps) == (3 / 60, 3 / 60)
    assert status.consume_failed_msgs == 3
    rig.now += 120
    assert rig.statistics.status("t").consume_ok_tps == 0
    assert rig.statistics.status("t").consume_failed_msgs == 3


@pytest.mark.parametrize("hooks", [[], [ConsumeHook()]], ids=["fast path", "general path"])
async def test_messages_that_a_handler_takes_out_of_its_list_are_sent_back(
    rigs: Rigs, hooks: list[ConsumeHook]
) -> None:
    async def handle(messages: list[StoredMessage], context: ConsumeContext) -> None:
        messages.clear()
        raise LookupError

    rig = rigs(batch_handler=handle, batch_max=4, hooks=hooks)
    rig.fetch(0, 1, 2)
    await rig.empty()

    assert [offset for offset, _, _ in rig.sent_back] == [0, 1, 2]
    assert rig.statistics.status("t").consume_failed_msgs == 3
