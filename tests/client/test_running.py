"""Consumers as services: run until a signal, ready before the first message, healthy or failed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientInstance,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
    blocking,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request, Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster, route
from support.checks.waiting import WAIT_S, until
from support.clients.consumer_inputs import from_the_first
from support.clients.recording_handlers import Seen
from support.processes import running_consumer

ENDS_S = 60.0
NEVER_S = "3600"


class Service:
    """The process of `running_consumer`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self, *words: str) -> None:
        """Read lines until one has these words."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while line := (await self.process.stdout.readline()).decode():
                if line.split()[: len(words)] == list(words):
                    return
        raise AssertionError(f"no line {words}")

    async def end(self) -> tuple[int | None, list[str]]:
        """Wait for the end; the exit status and the rest of the lines."""
        async with asyncio.timeout(ENDS_S):
            rest, _ = await self.process.communicate()
        return self.process.returncode, rest.decode().splitlines()


Start = Callable[..., Any]


@pytest.fixture
async def start(name_servers: str, topic: str) -> AsyncIterator[Start]:
    processes: list[asyncio.subprocess.Process] = []

    async def start(timeout: float, seconds: str, *groups: str) -> Service:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, running_consumer.__file__, name_servers, str(timeout), seconds),
            *(topic, *groups),
            stdout=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        return Service(process)

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def send(producer: Producer, topic: str, body: bytes = b"x") -> None:
    await producer.send(Message(topic=topic, body=body))


async def committed(name_servers: str, group: str, topic: str) -> int:
    async with AdminClient(name_servers) as admin:
        return sum(offset or 0 for offset in (await admin.committed(group, topic)).values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_running_handler_finish_and_commits_its_message(
    name_servers: str,
    producer: Producer,
    topic: str,
    group: str,
    start: Start,
    number: signal.Signals,
) -> None:
    await send(producer, topic)
    service = await start(25.0, "1", group)
    await service.line("begun", group, "x")
    service.process.send_signal(number)

    assert await service.end() == (0, [f"done {group} x", f"ended {group}"])
    assert await committed(name_servers, group, topic) == 1


async def test_a_handler_that_never_ends_is_cancelled_in_time_and_its_message_redelivered(
    name_servers: str, producer: Producer, topic: str, group: str, start: Start
) -> None:
    await send(producer, topic)
    service = await start(2.0, NEVER_S, group)
    await service.line("begun", group, "x")
    service.process.terminate()
    begun = time.monotonic()

    assert await service.end() == (0, [f"ended {group}"])
    assert 1.6 <= time.monotonic() - begun < 10
    seen = Seen()
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic)):
        await seen.count(1)


async def test_a_second_signal_ends_all_consumers_of_the_process_at_once(
    producer: Producer, topic: str, group: str, start: Start
) -> None:
    groups = [group, f"{group}-2"]
    await send(producer, topic)
    service = await start(600.0, NEVER_S, *groups)
    for _ in groups:
        await service.line("begun")
    service.process.terminate()
    await asyncio.sleep(0.5)
    assert service.process.returncode is None
    service.process.terminate()

    status, lines = await service.end()
    assert (status, sorted(lines)) == (0, sorted(f"ended {each}" for each in groups))


async def test_one_signal_stops_all_consumers_of_the_process(
    name_servers: str, producer: Producer, topic: str, group: str, start: Start
) -> None:
    groups = [group, f"{group}-2"]
    await send(producer, topic)
    service = await start(25.0, "1", *groups)
    for _ in groups:
        await service.line("begun")
    service.process.terminate()

    status, lines = await service.end()
    assert status == 0
    assert set(lines) == {f"{word} {each}" for each in groups for word in ("ended",)} | {
        f"done {each} x" for each in groups
    }
    assert [await committed(name_servers, each, topic) for each in groups] == [1, 1]


def push(name_servers: str, group: str, **options: Any) -> PushConsumer:
    options.setdefault("handler", Seen())
    return PushConsumer(name_servers, group=group, **options)


async def test_signal_handlers_are_those_from_before_once_no_consumer_runs(
    name_servers: str, topic: str, group: str
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    first, second = push(name_servers, group), push(name_servers, f"{group}-2")
    runs = [asyncio.create_task(each.run()) for each in (first, second)]
    await until(lambda: first.running and second.running)
    during = signal.getsignal(signal.SIGTERM)
    await first.close()
    await runs[0]
    assert signal.getsignal(signal.SIGTERM) is during
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(runs[1], ENDS_S)

    assert not second.running
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_cancelling_a_run_closes_in_good_order(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        begun.set()
        await may_end.wait()

    await send(producer, topic)
    consumer = PushConsumer(name_servers, handler=handle, **from_the_first(group, topic))
    running = asyncio.create_task(consumer.run())
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0.1)
    assert not running.done()
    may_end.set()
    await asyncio.wait([running])

    assert running.cancelled()
    assert await committed(name_servers, group, topic) == 1


async def test_a_run_that_is_cancelled_twice_ends_at_once(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    begun = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    await send(producer, topic)
    consumer = PushConsumer(name_servers, handler=handle, **from_the_first(group, topic))
    running = asyncio.create_task(consumer.run(timeout=600))
    await begun.wait()
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.1)
    await asyncio.wait_for(asyncio.wait([running]), ENDS_S)

    assert running.cancelled()
    assert not consumer.running


async def test_a_run_raises_what_ended_the_consumer(
    name_servers: str, topic: str, group: str
) -> None:
    consumer = push(name_servers, group, subscriptions={topic: "*"})
    running = asyncio.create_task(consumer.run())
    await until(lambda: consumer.running)
    assert (consumer.healthy, consumer.failure) == (True, None)

    consumer._tasks.end(LookupError("no more"))
    with pytest.raises(LookupError, match="no more"):
        await asyncio.wait_for(running, ENDS_S)
    assert not consumer.running
    assert not consumer.healthy
    assert isinstance(consumer.failure, LookupError)


async def test_a_run_outside_the_main_thread_ends_when_the_consumer_is_closed(
    name_servers: str, topic: str, group: str
) -> None:
    async def run() -> None:
        consumer = push(name_servers, group, subscriptions={topic: "*"})
        running = asyncio.create_task(consumer.run())
        await until(lambda: consumer.running)
        await consumer.close()
        await running

    await asyncio.to_thread(asyncio.run, run())


async def test_a_close_at_the_very_end_of_the_start_ends_the_run(
    name_servers: str, topic: str, group: str
) -> None:
    consumer = push(name_servers, group, subscriptions={topic: "*"})
    running = asyncio.create_task(consumer.run())
    while not consumer.running:
        await asyncio.sleep(0)
    await consumer.close()
    await running

    with pytest.raises(ClientClosedError):
        await consumer.run()


async def test_a_run_of_a_closed_consumer_is_refused(name_servers: str, group: str) -> None:
    consumer = push(name_servers, group)
    await consumer.close()
    with pytest.raises(ClientClosedError):
        await consumer.run()


def test_a_blocking_run_ends_on_a_signal(name_servers: str, topic: str, group: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    consumer = blocking.PushConsumer(
        name_servers, group=group, handler=lambda message: None, subscriptions={topic: "*"}
    )
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    consumer.run(timeout=5.0)

    assert not consumer.running
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_a_blocking_run_starts_ends_it(group: str) -> None:
    missed: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: missed.append(number))
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            consumer = blocking.PushConsumer(
                f"127.0.0.1:{port}",
                group=group,
                handler=lambda message: None,
                subscriptions={"t": "*"},
            )

            def stop() -> None:
                connection, _ = silent.accept()
                with connection:
                    os.kill(os.getpid(), signal.SIGTERM)
                    while connection.recv(65536):
                        pass

            stopping = threading.Thread(target=stop)
            stopping.start()
            consumer.run(timeout=5.0)
            stopping.join()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert missed == []
    assert not consumer.running


# --- ready --------------------------------------------------------------------------------------


async def test_a_push_consumer_that_is_ready_misses_no_message(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """It starts at the end of the queues, as is the default."""
    seen = Seen()
    async with push(name_servers, group, handler=seen, subscriptions={topic: "*"}) as consumer:
        await consumer.ready()
        assert len(consumer.queues()) == 4
        for number in range(8):
            await send(producer, topic, b"%d" % number)
        await seen.count(8)
    assert sorted(seen.bodies) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("assigns", [False, True])
async def test_a_pull_consumer_that_is_ready_misses_no_message(
    name_servers: str, producer: Producer, topic: str, group: str, assigns: bool
) -> None:
    bodies: list[bytes] = []
    async with PullConsumer(name_servers, group=group) as consumer, asyncio.timeout(WAIT_S):
        if assigns:
            await consumer.assign(await consumer.fetch_queues(topic))
        else:
            await consumer.subscribe(topic)
        await consumer.ready()
        for number in range(8):
            await send(producer, topic, b"%d" % number)
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 8:
                break
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


@pytest.mark.only_on("comet", "5.3.3")
async def test_a_pop_consumer_that_is_ready_misses_no_message(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    async with PopConsumer(
        name_servers, group=group, handler=seen, subscriptions={topic: "*"}
    ) as consumer:
        await consumer.ready()
        for number in range(16):
            await send(producer, topic, b"%d" % number)
        await seen.until(lambda: len(set(seen.bodies)) == 16)


@pytest.mark.parametrize("pulls", [False, True], ids=["push", "pull"])
async def test_a_consumer_is_ready_once_the_broker_has_said_where_its_queue_ends(
    pulls: bool,
) -> None:
    broker, may_answer = GroupBroker(), asyncio.Event()
    answer = broker.handlers[RequestCode.GET_MAX_OFFSET]

    async def answer_later(request: Request) -> Response | None:
        await may_answer.wait()
        found = answer(request)
        assert isinstance(found, Response)
        return found

    broker.handlers[RequestCode.GET_MAX_OFFSET] = answer_later
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        asyncio.timeout(ENDS_S),
    ):
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=1)
        broker.members = [instance.client_id]
        options: dict[str, Any] = {
            "instance": instance, "group": "g", "subscriptions": {"t": "*"}
        }  # fmt: skip
        kind = PullConsumer(**options) if pulls else PushConsumer(handler=Seen(), **options)
        async with kind as consumer:
            with pytest.raises(TimeoutError, match="no response of a broker"):
                await consumer.ready(timeout=0.3)
            may_answer.set()
            await consumer.ready()


async def test_waiting_for_a_topic_that_does_not_exist_times_out(
    name_servers: str, group: str
) -> None:
    async with push(name_servers, group, subscriptions={f"no-{group}": "*"}) as consumer:
        with pytest.raises(TimeoutError, match=f"no route of no-{group}"):
            await consumer.ready(timeout=0.2)


async def test_waiting_to_be_ready_ends_when_the_consumer_is_closed(
    name_servers: str, group: str
) -> None:
    consumer = push(name_servers, group, subscriptions={f"no-{group}": "*"})
    with pytest.raises(ClientClosedError, match="start it first"):
        await consumer.ready()
    await consumer.start()
    waiting = asyncio.create_task(consumer.ready())
    await asyncio.sleep(0.05)
    await consumer.close()
    with pytest.raises(ClientClosedError, match="is closed"):
        await waiting
