"""Taskiq on our broker: delivery, acknowledgement, delays, schedules, crashes and reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from taskiq import (
    AckableMessage,
    AsyncTaskiqDecoratedTask,
    ScheduledTask,
    SendTaskError,
    SimpleRetryMiddleware,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.receiver import Receiver

from cometmq.client.settings import SimpleSettings
from cometmq.model.errors import ConfigError, InvalidMessageError, ResponseError
from cometmq.taskiq import CometBroker, TimerScheduleSource
from support.checks.waiting import WAIT_S, until, wait_until
from support.processes.server import Standalone, standalone

SETTINGS = {"recallMessageEnable": True}
SHORT = SimpleSettings(invisible_ms=1_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("taskiq"), **SETTINGS) as running:
        yield running


@pytest.fixture
def new(server: Standalone) -> Callable[..., CometBroker]:
    """Make brokers of one new topic: each stands for one process."""
    topic = f"tasks-{uuid.uuid4().hex}"
    host, port = server.namesrv

    def make(**options: object) -> CometBroker:
        return CometBroker(f"{host}:{port}", topic=topic, group=f"of-{topic}", **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def broker(new: Callable[..., CometBroker]) -> AsyncIterator[CometBroker]:
    async with started(new()) as running:
        yield running


def register(broker: CometBroker, name: str) -> AsyncTaskiqDecoratedTask[[str], None]:
    """Register a task that is sent here, and received without running it."""

    def task(text: str) -> None: ...

    return broker.register_task(task, task_name=name)


@contextlib.asynccontextmanager
async def started(broker: CometBroker) -> AsyncIterator[CometBroker]:
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@contextlib.asynccontextmanager
async def working(broker: CometBroker, tasks: int = 10) -> AsyncIterator[None]:
    """Run a worker of Taskiq in this loop; it ends as one does on SIGTERM."""
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=tasks, run_startup=False)
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield
    finally:
        finish.set()
        await asyncio.wait_for(listening, WAIT_S)


async def next_of(listening: AsyncIterator[AckableMessage]) -> AckableMessage:
    return await asyncio.wait_for(anext(listening), WAIT_S)


async def got(done: asyncio.Queue[object]) -> object:
    return await asyncio.wait_for(done.get(), WAIT_S)


async def test_a_task_runs_with_its_arguments(broker: CometBroker) -> None:
    done: asyncio.Queue[object] = asyncio.Queue()

    @broker.task(task_name="add")
    async def add(one: int, two: int) -> None:
        done.put_nowait(one + two)

    await add.kiq(1, two=2)
    async with working(broker):
        assert await got(done) == 3


async def test_tools_find_a_task_by_its_id_and_name(broker: CometBroker) -> None:
    @broker.task(task_name="named")
    async def named() -> None: ...

    await named.kicker().with_task_id("task 7").kiq()
    listening = broker.listen()
    received = await next_of(listening)
    [[delivery]] = broker._consumer._deliveries.of_brokers().values()
    message = delivery.message

    assert list(message.keys) == ["task", "7"]
    assert message.properties["taskiq_task"] == "named"
    assert b'"task 7"' in received.data
    await received.ack()
    await listening.aclose()


async def test_an_acknowledged_task_is_not_received_again(new: Callable[..., CometBroker]) -> None:
    async with started(new(consumer=SHORT)) as broker:
        task = register(broker, "once")
        await task.kiq("1")
        listening = broker.listen()
        received = await next_of(listening)
        await received.ack()
        await task.kiq("2")
        after = await next_of(listening)
        await after.ack()
        await listening.aclose()
        assert b'"1"' in received.data
        assert b'"2"' in after.data
    async with started(new()) as other:  # a new member finds nothing
        listening = other.listen()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(listening), 3.0)
        await listening.aclose()


async def test_a_second_acknowledgement_is_refused(broker: CometBroker) -> None:
    task = register(broker, "twice")
    await task.kiq("1")
    listening = broker.listen()
    received = await next_of(listening)
    await received.ack()

    with pytest.raises(Exception, match="settled"):
        await received.ack()
    await listening.aclose()


async def test_a_task_that_fails_is_acknowledged(broker: CometBroker) -> None:
    done: asyncio.Queue[object] = asyncio.Queue()

    @broker.task(task_name="fail")
    async def fail() -> None:
        done.put_nowait("failed")
        raise ValueError("no such customer")

    await fail.kiq()
    async with working(broker):
        await got(done)
        await asyncio.wait_for(until_settled(broker), WAIT_S)
    assert done.empty()


@pytest.mark.parametrize("how", ["a middleware fails", "acknowledged by hand"])
async def test_a_task_that_taskiq_drops_is_redelivered(broker: CometBroker, how: str) -> None:
    """Else its invisible time would be extended until the worker ends."""

    class Failing(TaskiqMiddleware):
        async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            is_first = not dropped.is_set()
            dropped.set()
            if is_first and how == "a middleware fails":
                raise ConnectionError("the database does not respond")
            return message

    # pytest keeps logged errors, and so the frames that refer to the task
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    dropped = asyncio.Event()
    broker.add_middlewares(Failing())
    task = register(broker, "dropped")
    async with working(broker):
        await task.kicker().with_labels(ack_type="manual").kiq("1")
        await asyncio.wait_for(dropped.wait(), WAIT_S)
        assert broker._consumer.in_flight
        await task.kiq("2")  # Taskiq keeps each task until the next one
        await until(lambda: gc.collect() >= 0 and not broker._consumer.in_flight)


async def until_settled(broker: CometBroker) -> None:
    await until(lambda: not broker._consumer.in_flight)


async def test_a_retry_middleware_sends_a_task_again(broker: CometBroker) -> None:
    done: asyncio.Queue[object] = asyncio.Queue()
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    tries = []

    @broker.task(task_name="flaky", retry_on_error=True)
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("not yet")
        done.put_nowait("done")

    await flaky.kiq()
    async with working(broker):
        assert await got(done) == "done"


async def test_a_delayed_task_is_delivered_after_its_delay(broker: CometBroker) -> None:
    task = register(broker, "later")
    began = time.time()
    await task.kicker().with_labels(delay=1.5).kiq("1")
    await task.kicker().with_labels(delay=0).kiq("2")
    listening = broker.listen()
    first = await next_of(listening)
    second = await next_of(listening)

    assert (b'"2"' in first.data, b'"1"' in second.data) == (True, True)
    assert time.time() - began >= 1.4
    await first.ack()
    await second.ack()
    await listening.aclose()


@pytest.mark.parametrize("delay", ["soon", -1, float("nan"), float("inf")])
async def test_an_invalid_delay_is_refused(broker: CometBroker, delay: object) -> None:
    task = register(broker, "badly-delayed")
    with pytest.raises(SendTaskError) as refused:
        await task.kicker().with_labels(delay=delay).kiq("1")

    assert "expected seconds" in str(refused.value.__cause__)


async def test_a_priority_is_refused(broker: CometBroker) -> None:
    task = register(broker, "urgent")
    with pytest.raises(SendTaskError) as refused:
        await task.kicker().with_labels(priority=9).kiq("1")

    assert "without priorities" in str(refused.value.__cause__)


async def test_a_broker_that_is_not_started_says_so(new: Callable[..., CometBroker]) -> None:
    task = register(new(), "early")
    with pytest.raises(SendTaskError) as refused:
        await task.kiq("1")

    assert "startup" in str(refused.value.__cause__)


async def test_a_running_task_is_not_redelivered(new: Callable[..., CometBroker]) -> None:
    """It runs for several invisible times, while another worker waits for tasks."""
    async with started(new(consumer=SHORT)) as broker, started(new()) as other:
        task = register(broker, "long")
        await task.kiq("1")
        listening, idle = broker.listen(), other.listen()
        received = await next_of(listening)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(idle), 5.0)
        await received.ack()
        await listening.aclose()
        await idle.aclose()


async def test_a_worker_receives_no_more_tasks_than_it_has_slots(broker: CometBroker) -> None:
    running, most, release = 0, 0, asyncio.Event()
    done: asyncio.Queue[object] = asyncio.Queue()

    @broker.task(task_name="slot")
    async def slot() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        done.put_nowait(broker._consumer.in_flight)
        await release.wait()
        running -= 1

    for _ in range(6):
        await slot.kiq()
    async with working(broker, tasks=2):
        await got(done)
        await got(done)
        assert broker._consumer.in_flight <= 2
        release.set()
        for _ in range(4):
            assert await got(done) <= 2
    assert most == 2


async def test_a_stopping_worker_ends_its_task_and_acknowledges_it(
    new: Callable[..., CometBroker],
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    async with started(new(consumer=SHORT)) as broker:

        @broker.task(task_name="ending")
        async def ending() -> None:
            begun.set()
            await release.wait()

        await ending.kiq()
        async with asyncio.TaskGroup() as group, working(broker):
            await asyncio.wait_for(begun.wait(), WAIT_S)
            consumer = broker._consumer
            group.create_task(released_when_closed(release))
        assert not consumer.in_flight
    async with started(new()) as other:
        listening = other.listen()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(listening), 3.0)
        await listening.aclose()


async def released_when_closed(release: asyncio.Event) -> None:
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.5, release.set)


async def test_tasks_that_did_not_end_are_released_at_shutdown(
    new: Callable[..., CometBroker],
) -> None:
    async with started(new(consumer=SimpleSettings(invisible_ms=600_000))) as broker:
        task = register(broker, "released")
        await task.kiq("1")
        listening = broker.listen()
        _not_dropped = await next_of(listening)
        await listening.aclose()
    async with started(new()) as other:
        listening = other.listen()
        received = await next_of(listening)
        await received.ack()
        await listening.aclose()


async def test_a_schedule_is_delivered_at_its_time_without_a_scheduler(broker: CometBroker) -> None:
    source = TimerScheduleSource(broker)
    task = register(broker, "scheduled")
    at = datetime.now(UTC) + timedelta(seconds=2)
    await task.kicker().with_task_id("s1").schedule_by_time(source, at, "1")
    listening = broker.listen()
    received = await next_of(listening)

    assert datetime.now(UTC) >= at - timedelta(seconds=0.1)
    assert b'"s1"' in received.data
    assert await source.get_schedules() == []
    await received.ack()
    await listening.aclose()


async def test_a_task_that_is_sent_while_a_schedule_is_added_is_not_delayed(
    broker: CometBroker,
) -> None:
    audit = register(broker, "audit")

    class Auditing(TaskiqMiddleware):
        async def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            if message.task_name != "audit":
                await audit.kiq(message.task_name)
            return message

    broker.add_middlewares(Auditing())
    source = TimerScheduleSource(broker)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    schedule = await register(broker, "remind").schedule_by_time(source, tomorrow, "1")
    await source.delete_schedule(schedule.schedule_id)
    listening = broker.listen()
    received = await next_of(listening)
    assert b'"remind"' in received.data
    await received.ack()
    await listening.aclose()


async def test_another_process_deletes_a_schedule(new: Callable[..., CometBroker]) -> None:
    async with started(new()) as broker, started(new()) as other:
        task = register(broker, "recalled")
        at = datetime.now(UTC) + timedelta(seconds=3)
        kept = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=4)  # UTC, as in Taskiq
        recalled = await task.schedule_by_time(TimerScheduleSource(broker), at, "1")
        await task.schedule_by_time(TimerScheduleSource(broker), kept, "2")
        await TimerScheduleSource(other).delete_schedule(recalled.schedule_id)
        listening = broker.listen()
        received = await next_of(listening)

        assert b'"2"' in received.data
        with pytest.raises(ResponseError):
            await recalled.unschedule()
        await received.ack()
        await listening.aclose()


async def test_schedules_that_no_timer_can_keep_are_refused(broker: CometBroker) -> None:
    source = TimerScheduleSource(broker)
    task = register(broker, "refused")
    with pytest.raises(ConfigError, match="taskiq scheduler"):
        await task.schedule_by_cron(source, "* * * * *", "1")
    with pytest.raises(ConfigError, match="taskiq scheduler"):
        await source.add_schedule(
            ScheduledTask(task_name="refused", labels={}, args=[], kwargs={}, interval=5)
        )
    with pytest.raises(SendTaskError):  # beyond timerMaxDelaySec
        await task.schedule_by_time(source, datetime.now(UTC) + timedelta(days=4), "1")
    with pytest.raises(InvalidMessageError, match="recall handle"):
        await source.delete_schedule("my-own-id")


async def test_a_worker_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    done: asyncio.Queue[object] = asyncio.Queue()
    with standalone(tmp_path) as running:
        host, port = running.namesrv
        async with started(CometBroker(f"{host}:{port}", topic="again")) as broker:

            @broker.task(task_name="again")
            async def again(number: int) -> None:
                done.put_nowait(number)

            await again.kiq(1)
            async with working(broker):
                assert await got(done) == 1
                await asyncio.wait_for(until_settled(broker), WAIT_S)
                await asyncio.to_thread(running.kill)
                await asyncio.to_thread(running.start)
                await again.kiq(2)
                assert await got(done) == 2


WORKER = """
import asyncio, os
from cometmq.client.settings import SimpleSettings
from cometmq.taskiq import CometBroker

broker = CometBroker({servers!r}, topic="killed", consumer=SimpleSettings(invisible_ms=2_000))

@broker.task(task_name="write")
async def write(number: int) -> None:
    with open({path!r}, "a") as file:
        file.write(f"{{number}}\\n")
    if number == 2 and not os.path.exists({path!r} + ".again"):
        open({path!r} + ".again", "w").close()
        await asyncio.sleep(600)
"""


@contextlib.contextmanager
def worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "taskiq", "worker", "tasks:broker", "--workers", "1"]
    with (folder / "worker.log").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_a_killed_worker_loses_no_task_and_repeats_no_acknowledged_one(
    server: Standalone, tmp_path: Path
) -> None:
    host, port = server.namesrv
    written = tmp_path / "written"
    written.touch()
    code = WORKER.format(servers=f"{host}:{port}", path=str(written))
    (tmp_path / "tasks.py").write_text(code)
    async with started(CometBroker(f"{host}:{port}", topic="killed")) as broker:
        task = register(broker, "write")
        await task.kiq("1")
        with worker(tmp_path):
            await asyncio.to_thread(wait_until, lambda: written.read_text() == "1\n")
            await task.kiq("2")
            await asyncio.to_thread(wait_until, lambda: "2\n" in written.read_text())
        # The worker was killed with SIGKILL while task 2 ran.
        with worker(tmp_path) as second:
            await asyncio.to_thread(wait_until, lambda: written.read_text().count("2\n") == 2)
            await task.kiq("3")
            await asyncio.to_thread(wait_until, lambda: "3\n" in written.read_text())
            second.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.wait, WAIT_S) == 0
    assert written.read_text() == "1\n2\n2\n3\n"
