"""Several brokers below one supervisor, as processes: ready, served, killed, restarted, stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.cli.supervisor import RestartPolicy, supervise
from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom
from cometmq.remoting.ports import LOOPBACK, free_port, free_ports
from cometmq.testing import ServerProcess

LIMIT_S = 120.0
"""It ends what hangs."""


class Family:
    """A running ``cometmq broker --processes N``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""
        self.addresses: list[str] = []

    async def until_ready(self) -> None:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        match = re.fullmatch(r"ready broker=(\S+) build=\w+\n", line)
        assert match, f"{line!r}, log: {await self.rest_of_log()}"
        self.addresses = match[1].split(";")

    async def until_logged(self, pattern: str) -> re.Match[str]:
        """Read the log up to a line; what is read stays in ``log``."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()
            if match := re.search(pattern, line.decode()):
                return match
        raise AssertionError(f"not logged: {pattern}\n{self.log}")

    async def rest_of_log(self) -> str:
        """Read the log until each process that writes it has ended."""
        assert self.process.stderr is not None
        self.log += (await self.process.stderr.read()).decode()
        return self.log

    async def ended(self) -> tuple[int, str]:
        """Wait for the end: exit code and log."""
        log = await self.rest_of_log()
        return await self.process.wait(), log

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return (await self.ended())[0]

    def children(self) -> list[int]:
        """The brokers' process ids, in the order of their numbers."""
        pid = self.process.pid
        ids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        named = [(Path(f"/proc/{child}/cmdline").read_text(), int(child)) for child in ids]
        return [child for _, child in sorted(named)]


class Place:
    """Ports, a store and a name server for families of brokers, one after the other."""

    def __init__(self, folder: Path, name_servers: str) -> None:
        self.store = folder / "store"
        self.config = folder / "broker.conf"
        self.config.write_text(
            "brokerName=broker-a\nmappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\n"
            "maxIndexNum=200000\n"
        )
        self.name_servers = name_servers
        self.port = free_ports(40) + 2

    @asynccontextmanager
    async def run(self, processes: int, *more: str) -> AsyncIterator[Family]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cometmq", "broker", "--processes", str(processes),
            "--port", str(self.port), "--store", str(self.store), "-n", self.name_servers,
            "-c", str(self.config), *more,
            stdout=PIPE, stderr=PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(LIMIT_S):
                yield Family(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    port = free_port()
    arguments = ("namesrv", "--port", str(port))
    async with await ServerProcess.start(*arguments, log=tmp_path / "n", timeout=LIMIT_S):
        yield Place(tmp_path, f"{LOOPBACK}:{port}")


async def send(name_servers: str, topic: str, bodies: range) -> Counter[str]:
    """Send messages; how many each broker acknowledged."""
    async with Producer(name_servers, group="g") as producer:
        receipts = [await producer.send(Message(topic, b"%d" % body)) for body in bodies]
    return Counter(receipt.queue.broker_name for receipt in receipts)


async def received(name_servers: str, topic: str, count: int) -> list[int]:
    """Read a topic from its beginning until so many different messages arrived."""
    bodies: list[int] = []
    async with PullConsumer(name_servers, group="c", start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(await consumer.fetch_queues(topic))
        while len(set(bodies)) < count:
            bodies += [int(message.body) for message in await consumer.poll()]
    return sorted(bodies)


async def test_the_messages_of_a_topic_are_in_all_brokers_and_each_arrives(place: Place) -> None:
    async with place.run(3) as family:
        await family.until_ready()
        assert family.addresses == [f"{LOOPBACK}:{place.port + 10 * i}" for i in range(3)]
        async with AdminClient(place.name_servers) as admin:
            await admin.create_topic("t", queues=2)

        sent = await send(place.name_servers, "t", range(60))

        assert sorted(sent) == ["broker-a-0", "broker-a-1", "broker-a-2"]
        assert await received(place.name_servers, "t", 60) == list(range(60))
        assert await family.stop() == 0
        assert not list(place.store.glob("broker-*/abort"))
        assert re.search(r"^\[broker-a-1\] .* INFO .*stopped", family.log, re.MULTILINE)


async def test_a_broker_that_is_killed_is_restarted_on_its_store(place: Place) -> None:
    async with place.run(2) as family:
        await family.until_ready()
        async with AdminClient(place.name_servers) as admin:
            await admin.create_topic("t", queues=1)
        await send(place.name_servers, "t", range(20))
        survivor, victim = family.children()

        os.kill(victim, signal.SIGKILL)

        await family.until_logged("broker-a-1 was killed by SIGKILL: restart 1 of at most 5 in 1 s")
        await family.until_logged("broker-a-1 is ready again")
        assert family.children()[0] == survivor
        assert len(family.children()) == 2
        assert len(await send(place.name_servers, "t", range(20, 40))) == 2
        assert await received(place.name_servers, "t", 40) == list(range(40))
        assert await family.stop() == 0


async def test_the_brokers_stop_in_order_when_their_supervisor_is_killed(place: Place) -> None:
    async with place.run(2) as family:
        await family.until_ready()

        family.process.kill()
        log = await family.rest_of_log()

    assert log.count("stopped broker=broker-a-") == 2
    assert not list(place.store.glob("broker-*/abort"))


async def test_ctrl_c_at_a_terminal_stops_all_in_order(place: Place) -> None:
    """A terminal sends SIGINT to each process of the group."""
    async with place.run(2) as family:
        await family.until_ready()

        os.killpg(family.process.pid, signal.SIGINT)
        code, log = await family.ended()

    assert (code, "Traceback" in log, "restart" in log) == (0, False, False)


async def test_the_same_stores_are_opened_again_and_those_left_are_named(place: Place) -> None:
    async with place.run(3) as family:
        await family.until_ready()
        async with AdminClient(place.name_servers) as admin:
            await admin.create_topic("t", queues=1)
        await send(place.name_servers, "t", range(30))
        assert await family.stop() == 0

    async with place.run(3) as family:
        await family.until_ready()
        assert await received(place.name_servers, "t", 30) == list(range(30))
        assert await family.stop() == 0
        assert "no broker opens" not in family.log

    async with place.run(1) as family:
        await family.until_ready()
        assert await family.stop() == 0
        assert f"broker-1, broker-2 in {place.store}; --processes 3 opens them" in family.log


async def test_a_setting_changed_at_run_time_is_kept_for_that_broker(place: Place) -> None:
    before = place.config.read_text()
    async with place.run(2) as family, AdminClient(place.name_servers) as admin:
        await family.until_ready()
        await admin.set_broker_config(family.addresses[1], {"fileReservedTime": "9"})
        assert await family.stop() == 0

    async with place.run(2) as family, AdminClient(place.name_servers) as admin:
        await family.until_ready()
        hours = [(await admin.broker_config(a))["fileReservedTime"] for a in family.addresses]
        assert await family.stop() == 0

    assert hours == ["72", "9"]
    assert place.config.read_text() == before


async def test_a_broker_that_cannot_start_ends_all_with_its_message_and_code(place: Place) -> None:
    lock = place.store / "broker-1" / "lock"
    lock.mkdir(parents=True)
    async with place.run(2) as family:
        code, log = await family.ended()

    assert code == 1
    assert "cometmq: broker-a-1: StoreError" in log
    assert "broker-a-1 ended with exit code 1 before it was ready: stopping all" in log


async def test_ports_of_the_systems_choice_differ(place: Place) -> None:
    place.port = 0
    async with place.run(2) as family:
        await family.until_ready()
        assert len(set(family.addresses)) == 2
        assert await family.stop() == 0


# --- the supervisor alone, with small programs ---------------------------------------------------

FAST = RestartPolicy(pause_s=0.01, pause_s_max=0.02, restarts_max=2)
READY_AND_END = "print('ready x', flush=True)"
READY_AND_WAIT = f"{READY_AND_END}; import sys; sys.stdin.read()"


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def joined(lines: list[str]) -> str:
    return "+".join(lines)


async def test_restarts_in_a_row_are_bounded_and_then_all_end(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    programs = [("steady", program(READY_AND_WAIT)), ("ending", program(READY_AND_END))]

    async with asyncio.timeout(LIMIT_S):
        code = await supervise(programs, joined, FAST)

    assert code == 1
    assert capfd.readouterr().out in ("ready x+x\n", "")
    said = [message for message in caplog.messages if message.startswith("ending ended")]
    assert said == [
        "ending ended with exit code 0: restart 1 of at most 2 in 0.01 s",
        "ending ended with exit code 0: restart 2 of at most 2 in 0.02 s",
        "ending ended with exit code 0 after 2 restarts in a row: stopping all",
    ]


async def test_restarts_are_counted_anew_once_a_program_has_run_long_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four ends, none of them after a failure in a row; the fifth run has no ready line."""
    count = f"open({str(tmp_path / 'runs')!r}, 'a+')"
    text = (
        f"import os, signal; f = {count}; f.write('x'); f.flush(); f.seek(0); n = len(f.read())\n"
        f"{READY_AND_END}\n"
        "if n == 5: os.kill(os.getppid(), signal.SIGTERM); import sys; sys.stdin.read()"
    )
    policy = RestartPolicy(pause_s=0.01, restarts_max=1, steady_s=0.0)

    async with asyncio.timeout(LIMIT_S):
        code = await supervise([("p", program(text))], joined, policy)

    assert code == 0
    said = [message for message in caplog.messages if "restart" in message]
    assert said == ["p ended with exit code 0: restart 1 of at most 1 in 0.01 s"] * 4


@pytest.mark.parametrize(("restart", "pause"), [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0)])
def test_pauses_double_up_to_a_limit(restart: int, pause: float) -> None:
    assert RestartPolicy().pause(restart) == pause


async def test_a_program_that_fails_at_once_gives_its_code_and_stops_the_others() -> None:
    programs = [("a", program(READY_AND_WAIT)), ("b", program("raise SystemExit(2)"))]

    async with asyncio.timeout(LIMIT_S):
        assert await supervise(programs, joined, FAST) == 2
