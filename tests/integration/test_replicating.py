"""Follows the how-to page about replication with its own files and commands."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    SendStatus,
    StartFrom,
)
from cometmq.model.errors import CometError
from cometmq.remoting.ports import free_broker_port, free_port
from docs import pages

PAGE = (pages.ROOT / "docs/howto/replicate-a-broker.md").read_text()
FILE = re.compile(r"`(\w+\.conf)`:\n\n *```properties\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^ *(cometmq .*) &$", re.MULTILINE)
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
LIMIT_S = 90.0


class Guide:
    """The files and commands of the page, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name_servers = f"127.0.0.1:{free_port()}"
        self.ports = {"10911": free_broker_port(), "10921": free_broker_port()}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name, text in FILE.findall(PAGE):
            lines = (line.strip() for line in text.splitlines())
            (folder / name).write_text(self.placed("\n".join(lines)))

    def placed(self, text: str) -> str:
        """The text with the ports of this run."""
        text = text.replace("127.0.0.1:9876", self.name_servers)
        for port, mine in self.ports.items():
            text = text.replace(port, str(mine))
        return text

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.ports[port]}"

    def start(self, *words: str) -> None:
        """Run the command of the page that has these words, until it is ready."""
        [command] = [line for line in COMMAND.findall(PAGE) if all(word in line for word in words)]
        arguments = shlex.split(command)[1:]
        if arguments == ["namesrv"]:
            arguments += ["--port", self.name_servers.rpartition(":")[2]]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cometmq", *arguments],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.running[words[0]] = process
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready "), self.log()

    def end(self, name: str, number: int) -> None:
        """Send a signal to a server and wait for its end."""
        process = self.running.pop(name)
        process.send_signal(number)
        self._finish(process)

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()

    def log(self) -> str:
        """What the servers have logged."""
        return (self.folder / "log").read_text()

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            self._finish(process)


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    made = Guide(tmp_path)
    yield made
    made.close()


async def send(guide: Guide, *bodies: str) -> None:
    """Send messages; each is acknowledged by a slave."""
    async with Producer(guide.name_servers, group="p") as producer:
        for body in bodies:
            receipt = await producer.send(Message("orders", body.encode()))
            assert receipt.status is SendStatus.SEND_OK


async def until_acknowledged(guide: Guide) -> None:
    """Wait until a slave is connected, and has a topic."""
    deadline = time.monotonic() + LIMIT_S
    async with Producer(guide.name_servers, group="p") as producer:
        while True:
            try:
                receipt = await producer.send(Message("probe", b"x"))
                if receipt.status is SendStatus.SEND_OK:
                    return
            except CometError:  # the route is older than the broker
                pass
            assert time.monotonic() < deadline, guide.log()
            await asyncio.sleep(0.2)


async def until_copied(guide: Guide, topic: str, port: str) -> None:
    """Wait until a slave has copied a topic."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while topic not in await admin.broker_topics(guide.address(port)):
            await asyncio.sleep(0.2)


async def received(guide: Guide, group: str, count: int) -> list[str]:
    """Consume so many messages from the start."""
    bodies: list[str] = []
    async with (
        asyncio.timeout(LIMIT_S),
        PullConsumer(
            guide.name_servers,
            group=group,
            subscriptions={"orders": "*"},
            start_from=StartFrom.FIRST,
        ) as consumer,
    ):
        async for message in consumer:
            bodies.append(message.body.decode())
            if len(bodies) == count:
                break
    return sorted(bodies)


async def test_the_page_holds_from_the_first_start_to_a_replaced_master(guide: Guide) -> None:
    guide.start("namesrv")
    guide.start("master.conf")
    guide.start("slave.conf")
    await until_acknowledged(guide)
    await send(guide, "1", "2", "3")
    await until_copied(guide, "orders", "10921")
    [program] = PROGRAM.findall(PAGE)
    shown = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", guide.placed(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"127\.0\.0\.1:\d+ in sync\n", shown.stdout), shown.stdout

    await asyncio.to_thread(guide.end, "master.conf", signal.SIGKILL)
    assert await received(guide, "while-the-master-is-gone", 3) == ["1", "2", "3"]

    await asyncio.to_thread(guide.end, "slave.conf", signal.SIGTERM)
    guide.start("promoted.conf")
    guide.start("returned.conf")
    await until_acknowledged(guide)
    await send(guide, "4")
    assert await received(guide, "later", 4) == ["1", "2", "3", "4"]
