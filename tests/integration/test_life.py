"""Servers that start, stop, are killed and restart, seen through a client."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    ResponseError,
    SendFailedError,
    SendStatus,
    StartFrom,
)
from cometmq.client.settings import ClientSettings, PullSettings
from cometmq.remoting.ports import free_broker_port, free_port
from cometmq.testing import ServerProcess, ServerStartError
from support.processes import forks

QUICK_RETRY = PullSettings(retry_ms=50)
CLI = "cometmq"
START_S = STOP_S = 120.0
"""They end what hangs."""


class Standalone:
    """One server that can be started again in the same place, on the same ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.broker = f"127.0.0.1:{free_broker_port()}"

    async def start(self, *more: str) -> ServerProcess:
        return await ServerProcess.start(
            "standalone",
            "--namesrv-port", self.namesrv.partition(":")[2],
            "--broker-port", self.broker.partition(":")[2],
            "--store", str(self.folder / "store"),
            *more,
            log=self.folder / "log",
            timeout=START_S,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Standalone:
    return Standalone(tmp_path)


async def read_all(name_servers: str, topic: str) -> list[bytes]:
    """The bodies of all messages that a topic has now, in any order."""
    bodies: list[bytes] = []
    async with PullConsumer(name_servers, group="all", start_from=StartFrom.FIRST) as reading:
        queues = await reading.fetch_queues(topic)
        bounds = [await reading.bounds(queue) for queue in queues]
        stored = sum(bound.max_offset - bound.min_offset for bound in bounds)
        await reading.assign(queues)
        async with asyncio.timeout(120):
            while len(bodies) < stored:
                bodies += [message.body for message in await reading.poll(timeout=5)]
    return bodies


# --- starting -----------------------------------------------------------------------------------


async def test_ready_is_said_with_the_addresses_that_serve(place: Standalone) -> None:
    """A send right after the line is stored: the broker is registered by then."""
    async with await place.start() as server:
        assert server.addresses["namesrv"] == place.namesrv
        assert server.addresses["broker"] == place.broker
        async with Producer(place.namesrv, group="g") as sending:
            receipt = await sending.send(Message("t", b"x"))

    assert receipt.queue_offset == 0


async def test_the_faster_event_loop_is_used_where_it_is_installed(place: Standalone) -> None:
    pytest.importorskip("uvloop")
    async with await place.start() as server:
        assert "/uvloop/" in mapped_by(server.pid)


def mapped_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_server_loads_nothing_that_only_people_need(place: Standalone) -> None:
    """The library of the command line, and what it draws in, take time and memory."""
    async with await place.start() as server:
        assert "pydantic" not in mapped_by(server.pid)


async def test_a_port_that_is_taken_ends_the_start_with_the_reason(place: Standalone) -> None:
    async with await place.start():
        other = Standalone(place.folder / "other")
        other.folder.mkdir()
        other.broker = place.broker

        with pytest.raises(ServerStartError, match=place.broker.partition(":")[2]):
            await other.start()


async def test_a_store_in_use_is_not_opened_a_second_time(place: Standalone) -> None:
    async with await place.start():
        with pytest.raises(ServerStartError, match="store"):
            await Standalone(place.folder).start()


async def test_an_unknown_setting_ends_the_start_with_the_nearest_known_one(
    place: Standalone,
) -> None:
    config = place.folder / "broker.conf"
    config.write_text("brokerName=a\nflushDiskTipe=SYNC_FLUSH\n")

    with pytest.raises(ServerStartError, match=r"ended with 2.*broker\.conf:2.*flushDiskType"):
        await place.start("-c", str(config))


async def test_settings_are_printed_with_where_they_came_from(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=from-file\nlistenPort=1234\n")

    code, output = await run("broker", "-c", str(config), "--port", "20911", "--print-config")

    assert code == 0
    assert f"# {config}:1\nbrokerName=from-file\n" in output
    assert "# command line\nlistenPort=20911\n" in output
    assert "# default\nflushDiskType=" in output


async def run(*arguments: str, timeout: float = 120.0) -> tuple[int | None, str]:
    """Run a command to its end; its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *forks.python(), "-m", CLI, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(timeout):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


# --- stopping and starting again ----------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_server_in_order_while_clients_wait(
    place: Standalone, number: signal.Signals
) -> None:
    async with await place.start() as server, AdminClient(place.namesrv) as admin:
        (queue,) = await admin.create_topic("t", queues=1)
        async with PullConsumer(place.namesrv, group="g") as reading:
            held = asyncio.create_task(reading.pull(queue, 0, wait=60))
            await asyncio.wait([held], timeout=0.2)
            begun = time.monotonic()

            os.kill(server.pid, number)
            code = await server.stop(STOP_S)

            assert code == 0
            assert time.monotonic() - begun < 50  # the pull was to be held for 60 s
            await asyncio.gather(held, return_exceptions=True)


async def test_everything_is_there_after_a_stop_and_a_start(place: Standalone) -> None:
    async with await place.start() as server, Producer(place.namesrv, group="g") as sending:
        first = [await sending.send(Message("t", b"%d" % n)) for n in range(20)]
        assert await server.stop(STOP_S) == 0

        async with await place.start():
            queue = first[0].queue
            last_before = max(r.queue_offset for r in first if r.queue == queue)
            again = await sending.send(Message("t", b"20"), queue=queue)
            assert again.queue_offset == last_before + 1

            bodies = await read_all(place.namesrv, "t")
    assert sorted(map(int, bodies)) == list(range(21))


async def test_committed_places_and_topics_survive_a_stop(place: Standalone) -> None:
    async with await place.start() as server:
        async with AdminClient(place.namesrv) as admin:
            (queue,) = await admin.create_topic("t", queues=1)
        async with (
            Producer(place.namesrv, group="g") as sending,
            PullConsumer(place.namesrv, group="keeps", start_from=StartFrom.FIRST) as reading,
        ):
            for number in range(4):
                await sending.send(Message("t", b"%d" % number))
            await reading.assign([queue])
            for _ in range(3):
                await anext(reading)
            await reading.commit()
        assert await server.stop(STOP_S) == 0

    async with await place.start(), AdminClient(place.namesrv) as admin:
        assert await admin.committed("keeps", "t") == {queue: 3}


async def test_a_consumer_goes_on_by_itself_after_the_server_was_away(place: Standalone) -> None:
    async with await place.start() as server:
        async with AdminClient(place.namesrv) as admin:
            queues = await admin.create_topic("t", queues=2)
        async with (
            Producer(place.namesrv, group="g") as sending,
            PullConsumer(place.namesrv, group="c", settings=QUICK_RETRY) as reading,
        ):
            await reading.assign(queues)
            await sending.send(Message("t", b"before"))
            assert (await anext(reading)).body == b"before"
            await server.kill()

            async with await place.start():
                await sending.send(Message("t", b"after"))
                async with asyncio.timeout(120):
                    assert (await anext(reading)).body == b"after"


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(place: Standalone) -> None:
    """Sends run all the time; the kill comes while many of them wait for their answer."""
    acknowledged: set[int] = set()
    enough = asyncio.Event()

    async def send(sending: Producer, first: int) -> None:
        for number in range(first, 1_000_000, 16):
            receipt = await sending.send(Message("t", b"%d" % number))
            assert receipt.status is SendStatus.SEND_OK
            acknowledged.add(number)
            if len(acknowledged) == 500:
                enough.set()

    async with await place.start() as server, Producer(place.namesrv, group="g") as sending:
        tasks = [asyncio.create_task(send(sending, first)) for first in range(16)]
        async with asyncio.timeout(120):
            await enough.wait()
        await server.kill()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, SendFailedError | ResponseError) for outcome in outcomes)

    async with await place.start():
        bodies = await read_all(place.namesrv, "t")
    assert acknowledged <= set(map(int, bodies))


# --- name servers -------------------------------------------------------------------------------


async def test_clients_and_broker_go_on_with_one_of_two_name_servers(tmp_path: Path) -> None:
    async def name_server(number: int) -> ServerProcess:
        log = tmp_path / f"n{number}"
        return await ServerProcess.start("namesrv", "--port", "0", log=log, timeout=START_S)

    async with await name_server(0) as first, await name_server(1) as second:
        both = ";".join(server.addresses["namesrv"] for server in (first, second))
        broker = await ServerProcess.start(
            "broker", "--port", "0", "--store", str(tmp_path / "s"), "-n", both,
            log=tmp_path / "b",
            timeout=START_S,
        )  # fmt: skip
        settings = ClientSettings(route_refresh_ms=50)
        async with broker, Producer(both, group="g", client=settings) as sending:
            await sending.send(Message("before", b"x"))
            await first.kill()

            receipts = [await sending.send(Message(f"after-{n}", b"x")) for n in range(3)]
            assert [receipt.queue_offset for receipt in receipts] == [0, 0, 0]
            assert await broker.stop(STOP_S) == 0
