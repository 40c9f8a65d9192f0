"""Measures what is left of the speed if the servers are far away.

A broker runs beside a proxy that delays all connections by 0, 1 and 50 ms in each direction, and a
client of this process reaches name server and broker only through it. Broker, proxy and client
share the processors, also at 0 ms; bandwidth is not limited.

- push, ordered, pull, pop: a backlog of 200-byte messages in 4 queues, consumed by one consumer at
  its default settings; messages per second from the first message on;
- Spark: one task of the format ``rocketmq`` that reads one queue;
- slave: an empty slave that copies a log; MB/s from its first byte on;
- groups: ``cometmq admin group list`` with 42 groups, in seconds; likewise topics, 200 of them.

Examples::

    .venv/bin/python benchmarks/distance.py                        writes the results
    .venv/bin/python benchmarks/distance.py --rounds 1 --only push    a look: only prints
    .venv/bin/python benchmarks/distance.py --rocketmq --rounds 1     RocketMQ 5.3.3 as the broker
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

import kit  # noqa: E402
import servers  # noqa: E402
from codes import Request  # noqa: E402
from processes import Process  # noqa: E402
from wire import Connection, ConnectionClosedError, NoAnswerError  # noqa: E402

from cometmq.client import (  # noqa: E402
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.remoting.ports import free_broker_port  # noqa: E402

FAR = "127.0.0.2"
"""Where the proxy listens. The broker names this address to clients and slaves."""
DELAYS_MS = (0.0, 1.0, 50.0)
ROUNDS_MIN, NOISE_MAX = 3, 0.3
MESSAGES, QUEUES, BODY_BYTES = 400_000, 4, 200
GROUPS, TOPICS = 42, 200
TOPIC = "far"
LIMIT_S = 6.0
"""A figure is taken from what came in this time, if that is less than the backlog."""
POPPERS = 16
PATIENT = {
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
    "mappedFileSizeCommitLog": 256 << 20,
    "diskSpaceWarningLevelRatio": 99,
}


class _Far(servers.RocketServer):
    """A server whose broker is only known by the address of the proxy."""

    def settings(self) -> dict[str, str | int]:
        """Name the address of the proxy."""
        return super().settings() | PATIENT | {"brokerIP1": FAR, "brokerIP2": FAR}


class Comet(_Far, servers.Comet):
    """Ours."""


class Java53(_Far, servers.Java53):
    """RocketMQ."""

    def settings(self) -> dict[str, str | int]:
        """Leave the port at the other address to the proxy."""
        return super().settings() | {"bindAddress": "127.0.0.1"}


class Far:
    """A broker and the proxy in front of it."""

    def __init__(self, kind: type[servers.RocketServer], folder: Path) -> None:
        self.server = kind(folder, flush="ASYNC_FLUSH")
        self.name_server = f"{FAR}:{self.server.namesrv_port}"

    def __enter__(self) -> Far:
        ports = self.server.namesrv_port, self.server.port, self.server.port + 1
        pairs = [f"{FAR}:{port}=127.0.0.1:{port}" for port in ports]
        program = Path(__file__).with_name("distance_proxy.py")
        self._proxy = subprocess.Popen(
            [sys.executable, str(program), *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._await_proxy()
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._proxy.kill()
        self._proxy.communicate()

    def delay(self, milliseconds: float) -> None:
        """Set the delay of each direction."""
        assert self._proxy.stdin is not None
        self._proxy.stdin.write(f"{milliseconds}\n")
        self._proxy.stdin.flush()
        self._await_proxy()

    def _await_proxy(self) -> None:
        assert self._proxy.stdout is not None
        if self._proxy.stdout.readline() != "ready\n":
            raise SystemExit("the proxy has ended")

    async def fill(self) -> None:
        """Store the backlog, and create the topics and groups that are listed."""
        async with (
            AdminClient(self.name_server) as admin,
            Producer(self.name_server, timeout_ms=60_000, try_timeout_ms=60_000) as producer,
        ):
            await admin.create_topic(TOPIC, queues=QUEUES)
            body = b"x" * BODY_BYTES
            for _ in range(MESSAGES // 10_000):
                await asyncio.gather(*(producer.send(Message(TOPIC, body)) for _ in range(10_000)))
            for number in range(TOPICS):
                await admin.create_topic(f"listed-{number}", queues=QUEUES)
            for number in range(GROUPS):
                await admin.create_group(f"listed-{number}")
                await admin.skip_backlog(f"listed-{number}", TOPIC)


class Rate:
    """Counts messages; the rate is of those behind the first ones."""

    def __init__(self, count: int = MESSAGES) -> None:
        self._left, self._began_s, self._counted, self._ended_s = count, 0.0, 0, 0.0
        self._done = asyncio.Event()

    def add(self, count: int) -> None:
        """Count messages that have come."""
        now_s = time.perf_counter()
        if not self._began_s:
            self._began_s = now_s
        else:
            self._counted += count
            self._ended_s = now_s
        self._left -= count
        if self._left <= 0 or now_s - self._began_s > LIMIT_S:
            self._done.set()

    async def measured(self) -> float:
        """Return the rate when all messages have come, or the time is over."""
        await self._done.wait()
        return self._counted / (self._ended_s - self._began_s)


def _group() -> str:
    return f"far-{uuid.uuid4().hex}"


async def _push(far: Far, **settings: Any) -> float:
    rate = Rate()

    async def handle(message: StoredMessage) -> None:
        rate.add(1)

    async with PushConsumer(
        far.name_server,
        group=_group(),
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        handler=handle,
        **settings,
    ):
        return await rate.measured()


async def _ordered(far: Far) -> float:
    return await _push(far, ordered=True)


async def _pull(far: Far) -> float:
    rate = Rate()

    async def read(consumer: PullConsumer) -> None:
        while True:
            rate.add(len(await consumer.poll()))

    async with PullConsumer(
        far.name_server,
        group=_group(),
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    ) as consumer:
        reading = asyncio.create_task(read(consumer))
        try:
            return await rate.measured()
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def _pop(far: Far) -> float:
    rate = Rate()

    async def receive(consumer: SimpleConsumer) -> None:
        while True:
            messages = await consumer.receive(32, wait=5.0)
            await consumer.ack(*messages)
            if messages:
                rate.add(len(messages))

    async with SimpleConsumer(
        far.name_server, group=_group(), subscriptions={TOPIC: "*"}, start_from=StartFrom.FIRST
    ) as consumer:
        receiving = [asyncio.create_task(receive(consumer)) for _ in range(POPPERS)]
        try:
            return await rate.measured()
        finally:
            for task in receiving:
                task.cancel()
            await asyncio.wait(receiving)


async def _spark(far: Far) -> float:
    from cometmq.spark.brokers import BrokerSession
    from cometmq.spark.offsets import QueueKey, QueueRange
    from cometmq.spark.options.parsing import parse_options
    from cometmq.spark.options.topics import TopicReadOptions
    from cometmq.spark.schema import topic_columns
    from cometmq.spark.sources.ranges import RangeReader

    options = parse_options(
        TopicReadOptions, {"rocketmq.namesrv.addr": far.name_server, "subscribe": TOPIC}
    )
    queue = QueueRange(QueueKey(TOPIC, "broker-a", 0), 0, MESSAGES // QUEUES)

    def read() -> float:
        reader = RangeReader(options, topic_columns(properties=False), BrokerSession)
        began_s, rows = 0.0, 0
        for batch in reader.read(queue):
            now_s = time.perf_counter()
            if began_s:
                rows += batch.num_rows
            began_s = began_s or now_s
            if now_s - began_s > LIMIT_S:
                break
        return rows / (now_s - began_s)

    return await asyncio.to_thread(read)


def _command(*arguments: str) -> Callable[[Far], Awaitable[float]]:
    async def measure(far: Far) -> float:
        command = [sys.executable, "-m", "cometmq", "admin", *arguments, "-n", far.name_server]
        began_s = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await process.communicate()
        if process.returncode or not output:
            raise SystemExit(errors.decode())
        return time.perf_counter() - began_s

    return measure


async def _slave(far: Far) -> float:
    folder = far.server.folder / f"slave-{uuid.uuid4().hex}"
    folder.mkdir()
    settings = far.server.settings() | {
        "brokerRole": "SLAVE",
        "brokerId": 1,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
    }
    port = free_broker_port()
    conf = far.server._write_settings(f"{folder.name}.conf", settings)
    command = [sys.executable, "-m", "cometmq", "broker", "--port", str(port), "-c", str(conf)]
    command += ["--store", str(folder / "store"), "-n", far.name_server]
    end, began_s, began_at = _log_end(far.server.port), 0.0, 0
    slave = Process(command, folder / "slave.log", env=machine.compiled_environment())
    try:
        while (copied := _log_end(port)) < end:
            if copied and not began_s:
                began_s, began_at = time.perf_counter(), copied
            if began_s and time.perf_counter() - began_s > LIMIT_S:
                break
            await asyncio.sleep(0.005)
        return (copied - began_at) / 1e6 / (time.perf_counter() - began_s)
    finally:
        slave.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _log_end(port: int) -> int:
    """Return where the log of a broker ends; 0 if the broker does not respond yet."""
    try:
        connection = Connection(("127.0.0.1", port), timeout=3.0)
    except OSError:
        return 0
    try:
        table = kit.ok(connection.request(Request.GET_BROKER_RUNTIME_INFO)).json()["table"]
        return int(table["commitLogMaxOffset"])
    except (OSError, NoAnswerError, ConnectionClosedError):
        return 0
    finally:
        connection.close()


class Figure(NamedTuple):
    """A figure of the table."""

    title: str
    unit: str
    form: str
    measure: Callable[[Far], Awaitable[float]]


FIGURES = (
    Figure("push", "messages/s", ",.0f", _push),
    Figure("push, ordered", "messages/s", ",.0f", _ordered),
    Figure("pull", "messages/s", ",.0f", _pull),
    Figure("pop and acknowledge", "messages/s", ",.0f", _pop),
    Figure("Spark, one queue", "messages/s", ",.0f", _spark),
    Figure("slave that catches up", "MB/s", ",.0f", _slave),
    Figure(f"cometmq admin group list, {GROUPS} groups", "s", ".2f", _command("group", "list")),
    Figure(f"cometmq admin topic list, {TOPICS} topics", "s", ".2f", _command("topic", "list")),
)


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Measure clients and slaves far from brokers.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--only", default="", help="a part of the title of one figure")
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS_MS)
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ 5.3.3 as the broker")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench" / "far")
    asked = parser.parse_args()
    machine.refuse_other_sources()
    kind = Java53 if asked.rocketmq else Comet
    kind.prepare()
    chosen = [figure for figure in FIGURES if asked.only in figure.title]
    taken: dict[str, dict[str, list[float]]] = {figure.title: {} for figure in chosen}
    with machine.NoiseWatch() as watch, Far(kind, asked.folder) as far:
        _run(far.fill())
        for _ in range(asked.rounds):
            for milliseconds in asked.delays:
                far.delay(milliseconds)
                for figure in chosen:
                    value = _run(figure.measure(far))
                    taken[figure.title].setdefault(f"{milliseconds:g}", []).append(value)
                    print(f"{milliseconds:g} ms, {figure.title}: {value:{figure.form}}", flush=True)
    lines = machine.page_head(
        f"Distance: {kind.name}",
        {
            "backlog": f"{MESSAGES:,} messages of {BODY_BYTES} bytes in {QUEUES} queues",
            "delay": "of each direction, by a proxy that shares the processors",
        },
        rounds=asked.rounds,
        noise=watch.noise,
        noise_max=NOISE_MAX,
    )
    heads = [f"{milliseconds:g} ms each way" for milliseconds in asked.delays]
    lines += ["", f"| | Unit | {' | '.join(heads)} |", f"|---|---|{'--:|' * len(heads)}"]
    for figure in chosen:
        cells = [machine.cell(each, figure.form) for each in taken[figure.title].values()]
        lines.append(f"| {figure.title} | {figure.unit} | {' | '.join(cells)} |")
    name = "distance-rocketmq" if asked.rocketmq else "distance"
    whole = asked.rounds >= ROUNDS_MIN and not asked.only and tuple(asked.delays) == DELAYS_MS
    machine.report(name, lines, taken, whole=whole)


def _run(work: Awaitable[Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
