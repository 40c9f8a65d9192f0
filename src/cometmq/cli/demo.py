"""Runs the demo: sends and receives, kills the server, starts it again, and counts what was lost.

The server is a separate process on a temporary store. Producer and consumer run in this process and
connect to it. Halfway the server is killed with SIGKILL and started again on the same store.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import tempfile
import time
from pathlib import Path

from rich.console import Console

from cometmq.cli.build import version_line
from cometmq.cli.demo_figures import Figures
from cometmq.cli.demo_view import View, summary
from cometmq.cli.event_loop import run
from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    ResponseError,
    SendFailedError,
    StartFrom,
    StoredMessage,
)
from cometmq.client.settings import PullSettings
from cometmq.model.errors import CometError
from cometmq.remoting.ports import free_broker_port, free_port
from cometmq.system.platforms import SYSTEM, require_servers
from cometmq.testing.process import ServerProcess

TOPIC = "demo"
TAGS = ("new", "paid", "shipped")
TICK_S = 0.02
IN_FLIGHT_MAX = 512
RETRY_S = 0.05
CATCH_UP_S = 8.0
PATIENCE_S = 15.0
"""The demo fails if it takes this much longer than ``--seconds``."""
END_S = 4.0
"""Part of the duration that is reserved for receiving the last messages and stopping."""


def run_demo(*, seconds: float, rate: int) -> int:
    """Run the demo and give the exit code: 0 if nothing acknowledged was lost.

    Args:
        seconds: how long the whole takes, about.
        rate: messages sent per second.
    """
    require_servers()
    console = Console()
    console.print(version_line(), highlight=False, soft_wrap=True)
    logging.getLogger("cometmq").addHandler(logging.NullHandler())
    try:
        figures = run(_demo(seconds, rate, console))
    except (CometError, TimeoutError) as error:
        reason = failure_text(error, seconds)
        console.print(f"the demo failed: {reason}", style="red", highlight=False, soft_wrap=True)
        return 1
    except asyncio.CancelledError:
        return 143
    for line in summary(figures):
        console.print(line, highlight=False, soft_wrap=True)
    if figures.lost:
        verdict = "MESSAGES WERE LOST"
    else:
        verdict = "no message was lost" if figures.acknowledged else "no message was acknowledged"
    console.print(verdict, highlight=False)
    return 0 if figures.acknowledged and not figures.lost else 1


def failure_text(error: Exception, seconds: float) -> str:
    """Return why the demo failed; a timeout has no text of its own."""
    return str(error) or (
        f"it was not done after {seconds + PATIENCE_S:g} s, expected {seconds:g} s: a busy machine"
        f" needs more, such as --seconds {3 * seconds:g}"
    )


async def _demo(seconds: float, rate: int, console: Console) -> Figures:
    figures = Figures()
    _end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="cometmq-demo-") as folder:
        server = _Server(Path(folder))
        try:
            async with asyncio.timeout(seconds + PATIENCE_S), View(figures, console):
                await server.start()
                await _work(figures, server, seconds, rate)
        finally:
            await server.kill()
    return figures


def _end_on_sigterm() -> None:
    """Make SIGTERM end the demo as Ctrl-C does, without leaving processes behind."""
    task = asyncio.current_task()
    assert task is not None
    SYSTEM.on_signals(asyncio.get_running_loop(), task.cancel, (signal.SIGTERM,))


class _Server:
    """The server process; it can be killed and started again on the same store and ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namesrv_port = free_port()
        self._broker_port = free_broker_port()
        self._process: ServerProcess | None = None
        self.name_servers = f"127.0.0.1:{self._namesrv_port}"

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        self._process = await ServerProcess.start(
            "standalone",
            "--namesrv-port", str(self._namesrv_port),
            "--broker-port", str(self._broker_port),
            "--store", str(self._folder / "store"),
            log=self._folder / "server.log",
        )  # fmt: skip

    async def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            await self._process.kill()

    async def stop(self) -> int:
        """Stop it in order and give its exit code."""
        return await self._process.stop() if self._process is not None else 0


async def _work(figures: Figures, server: _Server, seconds: float, rate: int) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds - END_S
    async with AdminClient(server.name_servers) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with _producer(server) as producer, _consumer(server) as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC))
        receiving = asyncio.create_task(_receive(consumer, figures), name="demo receive")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_crash(figures, server, (end - loop.time()) / 2))
                group.create_task(_send_all(producer, figures, rate, end))
            await _catch_up(figures)
        finally:
            receiving.cancel()
    figures.phase = "stopping"
    await server.stop()
    figures.phase = "done"


def _producer(server: _Server) -> Producer:
    return Producer(server.name_servers, group="demo-producer")


def _consumer(server: _Server) -> PullConsumer:
    settings = PullSettings(retry_ms=100, auto_commit_ms=1_000)
    return PullConsumer(
        server.name_servers,
        group="demo-consumer",
        start_from=StartFrom.FIRST,
        settings=settings,
    )


async def _crash(figures: Figures, server: _Server, after_s: float) -> None:
    """Kill the server in the middle, and start it again on the same store."""
    figures.phase = "sending and receiving"
    await asyncio.sleep(after_s)
    figures.phase = "the server is down"
    figures.notes.append(
        f"SIGKILL sent to the server after {figures.acknowledged} acknowledged messages"
    )
    killed_at = time.monotonic()
    await server.kill()
    before = figures.acknowledged
    await server.start()
    figures.restart_s = time.monotonic() - killed_at
    await figures.wait_until(lambda: figures.acknowledged > before)
    figures.outage_s = time.monotonic() - killed_at
    figures.notes.append(f"the server is ready again after {figures.restart_s:.2f} s")
    figures.phase = "sending and receiving, after the crash"


async def _send_all(producer: Producer, figures: Figures, rate: int, end: float) -> None:
    """Send at an even rate until the end, each message until it is acknowledged."""
    loop = asyncio.get_running_loop()
    numbers, room, begun = itertools.count(), asyncio.Semaphore(IN_FLIGHT_MAX), loop.time()

    async with asyncio.TaskGroup() as group:
        while (now := loop.time()) < end:
            for _ in range(min(rate, int((now - begun) * rate) - figures.sent)):
                await room.acquire()
                figures.sent += 1
                group.create_task(_send_one(producer, figures, next(numbers), room))
            await asyncio.sleep(TICK_S)


async def _send_one(
    producer: Producer, figures: Figures, number: int, room: asyncio.Semaphore
) -> None:
    try:
        while True:
            begun = time.monotonic()
            try:
                await producer.send(_message(number, begun))
            except (SendFailedError, ResponseError):
                figures.retried += 1
                await asyncio.sleep(RETRY_S)
                continue
            figures.note_acknowledged(number, (time.monotonic() - begun) * 1000)
            return
    finally:
        room.release()


def _message(number: int, begun: float) -> Message:
    tag = TAGS[number % len(TAGS)]
    body = f"{number} {begun!r}".encode()
    return Message(topic=TOPIC, body=body, tags=tag, keys=[f"order-{number}"])


async def _receive(consumer: PullConsumer, figures: Figures) -> None:
    async for message in consumer:
        number, begun = message.body.decode().split()
        figures.note_received(int(number), (time.monotonic() - float(begun)) * 1000)
        if int(number) % 500 == 0:
            figures.samples.append(_sample(message))


def _sample(message: StoredMessage) -> str:
    key = ",".join(message.keys)
    return f"{message.queue}@{message.queue_offset} tag={message.tags} key={key}"


async def _catch_up(figures: Figures) -> None:
    figures.phase = "catching up"
    try:
        async with asyncio.timeout(CATCH_UP_S):
            await figures.wait_until(lambda: not figures.missing)
    except TimeoutError:
        pass
