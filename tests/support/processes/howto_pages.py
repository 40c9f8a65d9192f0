"""Follows a how-to page with the files, commands and programs that are on it.

    `name.conf`: or `name.py`:     before a block: a file in the directory of the test
    command &                      a server: `start` runs it until it is ready
    other blocks of bash           `run` runs them
    blocks of Python               `program` runs them

Ports, and the address of the name server, are those of the test; commands that do not name it find
it in `NAMESRV_ADDR`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from cometmq.client import AdminClient, Message, Producer, PullConsumer, SendStatus, StartFrom
from cometmq.model.errors import CometError
from cometmq.remoting.ports import free_broker_port, free_port
from support.checks.waiting import until
from support.processes import forks
from tools.generate import pages

LIMIT_S = 90.0
PAUSE_S = 0.002
"""Between two messages of a `Sender`: servers and tests share the processors."""
_BLOCK = re.compile(
    r"(?:`([\w-]+\.\w+)`[^\n]*:\n\n)?^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE
)
_PORT = re.compile(r"(?:^listenPort=|PromExporterPort=|--port )(\d+)\b", re.MULTILINE)


class Guide:
    """One page, followed in a directory.

    Args:
        name: of the page, such as ``move-a-broker``.
        folder: where its commands run.
        name_servers: an address to use; None for a free one.
        ports: those of the page that are not to be free ones, with the ports to use.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        name_servers: str | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        self.folder = folder
        self.page = (pages.ROOT / f"docs/howto/{name}.md").read_text()
        self.name_servers = name_servers or f"127.0.0.1:{free_port()}"
        self.environment: dict[str, str] = {}
        """More variables of servers that are started from now on."""
        self.ids: dict[str, str] = {}
        """Ids of messages on the page, with those of this test."""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        found = _BLOCK.findall(self.page)
        blocks = [(file, kind, textwrap.dedent(text)) for file, _, kind, text in found]
        known = ports or {}
        on_page = {port for _, _, text in blocks for port in _PORT.findall(text)}
        self.ports = {port: known.get(port) or free_broker_port() for port in sorted(on_page)}
        self._scripts = [text for _, kind, text in blocks if kind == "bash"]
        self._programs = [text for _, kind, text in blocks if kind == "python"]
        for file, _, text in blocks:
            if file:
                (folder / file).write_text(self.placed(text))

    def placed(self, text: str) -> str:
        """Return a text with the ports and ids of this test."""
        for on_page, mine in self.ids.items():
            text = text.replace(on_page, mine)
        text = text.replace("127.0.0.1:9876", self.name_servers)
        for port, mine in self.ports.items():
            text = re.sub(rf"(?<![\d]){port}(?![\d])", str(mine), text)
        return text

    def set(self, file: str, **settings: str) -> None:
        """Add settings to a file of the page, such as those of a quicker broker."""
        with (self.folder / file).open("a") as stream:
            stream.writelines(f"{key}={value}\n" for key, value in settings.items())

    def address(self, port: str) -> str:
        """Return the address of a broker that has this port on the page."""
        return f"127.0.0.1:{self.ports[port]}"

    def start(self, *words: str) -> None:
        """Start the server whose command has all words; return when it is ready."""
        lines = [line for text in self._scripts for line in text.splitlines()]
        [command] = {line for line in lines if _has(line, words) and line.endswith(" &")}
        arguments = shlex.split(self.placed(command.removesuffix("&")))[1:]
        if arguments == ["namesrv"]:
            arguments += ["--port", self.name_servers.rpartition(":")[2]]
        if arguments[0] == "standalone":
            arguments += ["--namesrv-port", self.name_servers.rpartition(":")[2]]
            arguments += ["--broker-port", str(free_broker_port())]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cometmq", *arguments],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._running[words[0]] = process
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready "), self.log()

    def stop(self, word: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to the server that was started with this first word; await its end."""
        process = self._running.pop(word)
        process.send_signal(number)
        self._reap(process)

    def run(self, *words: str) -> str:
        """Run the block whose commands have all words; return what it printed."""
        [script] = [
            text
            for text in self._scripts
            if _has(text, words) and not re.search(r" &$", text, re.M)
        ]
        return self.shell(self.placed(script))

    def run_all(self) -> str:
        """Run all blocks but those of servers, in the order of the page; return what they print."""
        blocks = [text for text in self._scripts if not re.search(r" &$", text, re.MULTILINE)]
        return "".join(self.shell(self.placed(text)) for text in blocks)

    def shell(self, script: str) -> str:
        """Run commands in the directory of the test; return what they printed."""
        folders = (forks.commands(), Path(sys.executable).parent, os.environ["PATH"])
        path = os.pathsep.join(map(str, folders))
        found = {"PATH": path, "NAMESRV_ADDR": self.name_servers}
        return self._done(["bash", "-euc", script], found)

    def program(self, *words: str, **constants: int) -> str:
        """Run the program that has all words, with other constants; return what it printed."""
        [program] = [text for text in self._programs if _has(text, words)]
        for name, value in constants.items():
            program, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", program, flags=re.M)
            assert count == 1, f"{name} is not in the program"
        return self._done([*forks.python(), "-c", self.placed(program)], {})

    def _done(self, command: list[str], environment: dict[str, str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.log()}"
        return done.stdout

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def log(self) -> str:
        """What the servers have logged."""
        return self._log.read_text() if self._log.exists() else ""

    def close(self) -> None:
        """Kill the servers that still run."""
        for process in self._running.values():
            process.kill()
            self._reap(process)
        self._running.clear()

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> None:
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def following(
    name: str,
    folder: Path,
    *,
    name_servers: str | None = None,
    ports: Mapping[str, int] | None = None,
) -> Iterator[Guide]:
    """Follow a page, and kill its servers at the end; see `Guide`."""
    with closing(Guide(name, folder, name_servers=name_servers, ports=ports)) as guide:
        yield guide


def _has(text: str, words: tuple[str, ...]) -> bool:
    return all(word in text for word in words)


async def send(guide: Guide, *bodies: str, topic: str = "orders") -> None:
    """Send messages; each is acknowledged as the broker's settings require."""
    async with Producer(guide.name_servers, group="p") as producer:
        for body in bodies:
            receipt = await producer.send(Message(topic, body.encode()), timeout=LIMIT_S)
            assert receipt.status is SendStatus.SEND_OK


async def consumed(guide: Guide, group: str, count: int, *, topic: str = "orders") -> list[str]:
    """Consume so many messages and commit them; a new group begins with the first one."""
    bodies: list[str] = []
    async with (
        asyncio.timeout(LIMIT_S),
        PullConsumer(
            guide.name_servers,
            group=group,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ) as consumer,
    ):
        async for message in consumer:
            bodies.append(message.body.decode())
            if len(bodies) == count:
                await consumer.commit()
                break
    return sorted(bodies)


class Sender:
    """Sends numbered messages until it is stopped, and knows which were acknowledged."""

    def __init__(self, guide: Guide) -> None:
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        """Why sends were not acknowledged."""
        self._guide = guide
        self._is_stopping = False

    async def run(self) -> None:
        producer = Producer(self._guide.name_servers, group="load", route_refresh_ms=500)
        async with producer:
            number = 0
            while not self._is_stopping:
                body = f"load-{number:06}"
                number += 1
                try:
                    receipt = await producer.send(Message("orders", body.encode()), timeout=LIMIT_S)
                    if receipt.status is not SendStatus.SEND_OK:
                        self.failures.append(f"{body}: {receipt.status.name}")
                        continue
                except CometError as error:
                    self.failures.append(f"{body}: {error}")
                    continue
                self.acknowledged.append(body)
                await asyncio.sleep(PAUSE_S)

    async def acknowledge(self, count: int) -> None:
        """Return when so many further messages are acknowledged."""
        stop = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= stop, timeout=LIMIT_S)

    def stop(self) -> None:
        self._is_stopping = True


@asynccontextmanager
async def load(guide: Guide) -> AsyncIterator[Sender]:
    """Send messages while the block runs."""
    sender = Sender(guide)
    async with asyncio.TaskGroup() as group:
        group.create_task(sender.run())
        try:
            yield sender
        finally:
            sender.stop()


async def stored(guide: Guide, topic: str = "orders") -> int:
    """Return how many messages the masters of a topic have."""
    async with AdminClient(guide.name_servers) as admin:
        return sum(
            each.max_offset - each.min_offset for each in (await admin.queue_bounds(topic)).values()
        )
