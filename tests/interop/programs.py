"""Programs around foreign clients, driven line by line.

Each program (java/client, go, node, cpp, and python for our own client) gets the name server as
its argument, reads one JSON command per line on standard input, and writes one JSON object per line
on standard output: the answer ``{"reply": id, "result": …}`` or ``{"reply": id, "error": text}``,
and between them one ``{"event": "message", "consumer": name, …}`` per message received, and one
``{"event": "check", "body": …}`` per check of a transaction. Java and ours write
``{"event": "queues", "consumer": name, "queues": […], …}`` too, just before a push consumer changes
its assignment. The commands:

- ``send`` group topic style messages [shard]: sync, async, oneway, batch, ordered; a result each.
  With ``defaults`` the producer of the group, except Node's, has the settings of its library; for
  Java ``poll_ms`` is then how often it looks for routes
- ``consume`` name group topic expression mode: concurrent, orderly, broadcast, reply; the first
  delivery of a body that starts with "retry" fails. Java and ours take ``pace_ms``, how long each
  message takes, and the mode pop; ours also simple. Java 5 in the modes assigned and pop consumes
  as the broker says. Java and Go take ``sql`` instead of an expression; each delivery of a body
  that starts with "dead" fails, ``retries_max`` limits its retries
- ``stop`` name: leave the group
- ``pull`` group topic expression count: all messages of the topic through the pull consumer; Go
  goes on until it has as many
- ``transaction`` group topic messages: Java, Go and ours. The words of a body say what becomes of
  it: "commit" and "rollback" are decided at once, "ask commit" and "ask rollback" by a check,
  "twice commit" by the second check, "other commit" by a check of another program
- ``quit``

With ``CLIENT_ACCESS_KEY`` and ``CLIENT_SECRET_KEY`` in its environment a client signs its requests.
Java, Go and ours trace the messages of ``send`` and ``consume`` with ``trace``.
Java also has ``request``, ``query`` and ``lite_pull``, and Java 5 ``recall``. Ours has ``queues``
and ``abort``.
A message is ``{"body", "tag"?, "keys"?, "delay"?, "properties"?}``; for ours also ``"shard"``.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import toolchain
from processes import Process, ProcessError

HERE = Path(__file__).resolve().parent
ANSWER_SECONDS_MAX = 180.0
READ_SECONDS_MAX = 60.0
"""What a program left in its pipe when it ended is read within this time."""

Received = dict[str, Any]


class CommandError(AssertionError):
    """The client refused a command or ran into an error; the text is its own."""


class Program:
    """One running program."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        home = log.with_suffix(".home")  # some clients keep offsets and logs in their home folder
        home.mkdir(parents=True, exist_ok=True)
        own = {"HOME": str(home), "JDK_JAVA_OPTIONS": f"-Duser.home={home}", **(env or {})}
        self.process = Process(arguments, log, cwd=cwd, env=os.environ | own, talks=True)
        self.received: list[Received] = []
        self.assigned: list[Received] = []
        """Its events about queues."""
        self.checked: list[str] = []
        """The bodies that it was asked about."""
        self._replies: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"read {log.name}", daemon=True)
        self._reader.start()

    def ask(self, do: str, *, timeout: float = ANSWER_SECONDS_MAX, **fields: Any) -> Any:
        """Give a command and wait for its result."""
        number = next(self._ids)
        line = json.dumps({"id": number, "do": do, **fields}, ensure_ascii=False)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self.process.error(f"took no command ({error})") from None
        self._wait(lambda: number in self._replies, timeout, f"no answer to {do}")
        reply = self._replies.pop(number)
        if "error" in reply:
            raise CommandError(f"{do}: {reply['error']}; log {self.process.log}")
        return reply.get("result")

    def _wait(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._ended, timeout):
                raise self.process.error(f"gave {what} within {timeout:.0f} s")
        if not done():
            raise self.process.error(f"ended; {what}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout as lines:
                for raw in lines:
                    # A killed program may leave half a line at the end.
                    if raw.startswith(b"{") and raw.endswith(b"\n"):
                        self._take(json.loads(raw))
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self, line: dict[str, Any]) -> None:
        with self._changed:
            if "reply" in line:
                self._replies[line["reply"]] = line
            elif line["event"] == "queues":
                self.assigned.append(line)
            elif line["event"] == "check":
                self.checked.append(line["body"])
            else:
                self.received.append(line)
            self._changed.notify_all()

    def pause(self) -> None:
        """Stop all its threads, as a long garbage collection does, until `resume`."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the program with SIGKILL; what it had written by then is in `received`."""
        self.process.kill()
        self._read_to_the_end()

    def _read_to_the_end(self) -> None:
        self._reader.join(READ_SECONDS_MAX)
        if self._reader.is_alive():
            raise self.process.error(f"ended; its output did not within {READ_SECONDS_MAX:.0f} s")

    def close(self) -> None:
        """Let the program end; a program that hangs is killed."""
        if self.process.is_running:
            try:
                self.process.stdin.write(b'{"id":0,"do":"quit"}\n')  # type: ignore[union-attr]
                self.process.stdin.flush()  # type: ignore[union-attr]
                self.process.wait(60.0)
            except (OSError, ProcessError):
                self.process.kill()
        self._read_to_the_end()


@dataclass(frozen=True)
class Kind:
    """A client implementation, and which of the ways to send and receive it has."""

    name: str
    styles: tuple[str, ...]
    command: Callable[[], tuple[list[str], Path | None]] = field(repr=False)
    one_process: bool = False
    """Two members of a group live in one process, as two instances (saves a JVM)."""
    modes: tuple[str, ...] = ("concurrent", "broadcast")
    can_pull: bool = False
    orderly_members: int = 2
    """Members of an orderly group that may start together."""

    def __str__(self) -> str:
        return self.name


def _java(
    version: str, heap: str = "256m", profile: str = "client"
) -> Callable[[], tuple[list[str], Path | None]]:
    def command() -> tuple[list[str], Path | None]:
        classes = toolchain.java_classes("client", toolchain.rocketmq_jars(profile, version))
        options = [
            "-Xms32m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            toolchain.PATIENT_CONNECT,
            "-Drocketmq.client.rebalance.waitInterval=1000", "-Drocketmq.client.logLevel=WARN",
        ]  # fmt: skip
        java = [toolchain.command("java"), *options, "-cp", classes, "Client"]
        return java, None

    return command


def _go() -> tuple[list[str], Path | None]:
    return [str(toolchain.go_client())], None


def _node() -> tuple[list[str], Path | None]:
    folder = toolchain.node_client()
    return [toolchain.command("node"), str(folder / "client.js")], folder


def _cpp() -> tuple[list[str], Path | None]:
    return [str(toolchain.cpp_python()), str(HERE / "cpp" / "client.py")], None


def _ours() -> tuple[list[str], Path | None]:
    return [sys.executable, str(HERE / "python" / "client.py")], None


_ALL_STYLES = ("sync", "async", "oneway", "batch", "ordered")

JAVA_49 = Kind(
    "java-4.9.8", _ALL_STYLES, _java("4.9.8"), one_process=True,
    modes=("concurrent", "orderly", "broadcast"), can_pull=True,
)  # fmt: skip
JAVA_53 = Kind(
    "java-5.3.3", _ALL_STYLES, _java("5.3.3"), one_process=True,
    modes=("concurrent", "orderly", "broadcast"), can_pull=True,
)  # fmt: skip
SMALL_JAVA = tuple(
    replace(kind, command=_java(version, "64m"))
    for kind, version in ((JAVA_49, "4.9.8"), (JAVA_53, "5.3.3"))
)
"""Both for groups of many members, each a process of its own."""
# An orderly member of this client keeps the lock of a queue it has to pass on until it runs out.
GO = Kind(
    "go-2.1.2", _ALL_STYLES, _go,
    modes=("concurrent", "orderly", "broadcast"), can_pull=True, orderly_members=1,
)  # fmt: skip
NODE = Kind("ali-ons-3.12.0", ("sync", "ordered"), _node)
# send_batch of this client puts one empty message on the wire, so it is not among the styles.
CPP = Kind(
    "cpp-0.4.4", ("sync", "async", "oneway", "ordered"), _cpp,
    modes=("concurrent", "orderly", "broadcast"), can_pull=True,
)  # fmt: skip
OURS = Kind("cometmq", _ALL_STYLES, _ours, modes=("concurrent", "orderly", "broadcast"))
KINDS = (JAVA_49, JAVA_53, GO, NODE, CPP)
# Until 5.3 the class that signs is in a library of its own, which the tools need.
SIGNING_KINDS = (replace(JAVA_49, command=_java("4.9.8", profile="tools")), JAVA_53, GO, NODE, CPP)

Account = tuple[str, str]
"""An access key and its secret key."""


class Client:
    """One kind of client at one name server: a program that sends, and members that receive.

    Args:
        kind: which one.
        namesrv: the name server.
        folder: for logs.
        account: signs all requests; None for none.
    """

    def __init__(
        self, kind: Kind, namesrv: str, folder: Path, account: Account | None = None
    ) -> None:
        self.kind = kind
        self._env = dict(
            zip(("CLIENT_ACCESS_KEY", "CLIENT_SECRET_KEY"), account or (), strict=False)
        )
        self._namesrv = namesrv
        self._folder = folder
        self._programs: list[Program] = []
        self.main = self._program()

    def _program(self) -> Program:
        arguments, cwd = self.kind.command()
        log = self._folder / f"{self.kind.name}-{len(self._programs)}.log"
        program = Program([*arguments, self._namesrv], log, cwd=cwd, env=self._env)
        self._programs.append(program)
        return program

    def send(self, topic: str, messages: list[dict[str, Any]], **options: Any) -> list[Any]:
        """Send in one style (default sync) and give the results."""
        fields = {"group": f"producers-{self.kind.name}".replace(".", "-"), "style": "sync"}
        results: list[Any] = self.main.ask(
            "send", topic=topic, messages=messages, **(fields | options)
        )
        return results

    def group(
        self, group: str, topic: str, *, expression: str = "*", mode: str = "concurrent",
        members: int = 2, **options: Any,
    ) -> Group:  # fmt: skip
        """Start a group of consumers."""
        started = []
        for number in range(members):
            program = self.main if self.kind.one_process or number == 0 else self._spare(number)
            name = f"{group}-{number}"
            program.ask(
                "consume", name=name, group=group, topic=topic,
                expression=expression, mode=mode, **options,
            )  # fmt: skip
            started.append((name, program))
        return Group(started)

    def more_programs(self, count: int) -> list[Program]:
        """Start further programs, whatever others there are."""
        return [self._program() for _ in range(count)]

    def _spare(self, number: int) -> Program:
        while len(self._programs) <= number:
            self._program()
        return self._programs[number]

    def close(self) -> None:
        for program in self._programs:
            program.close()


class Group:
    """The members of one consumer group."""

    def __init__(self, members: list[tuple[str, Program]]) -> None:
        self._members = members

    @property
    def received(self) -> list[Received]:
        """All messages so far, of all members."""
        return [event for name in self.names for event in self.received_by(name)]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._members]

    def received_by(self, name: str) -> list[Received]:
        program = dict(self._members)[name]
        return [event for event in list(program.received) if event["consumer"] == name]

    def bodies(self) -> list[str]:
        return [event["body"] for event in self.received]

    def wait_for(self, bodies: Iterable[str], timeout: float = 240.0) -> list[Received]:
        """Wait until every one of the bodies came at least once; give all that came."""
        wanted = set(bodies)
        deadline = time.monotonic() + timeout
        while missing := wanted.difference(self.bodies()):
            if time.monotonic() > deadline:
                shown = sorted(text[:40] for text in missing)[:10]
                raise AssertionError(
                    f"{len(missing)} of {len(wanted)} messages did not arrive: {shown}"
                )
            for _, program in self._members:
                if not program.process.is_running:
                    raise program.process.error("ended while messages were awaited")
            time.sleep(0.05)
        return self.received

    def stop(self) -> None:
        """All members leave the group."""
        for name, program in self._members:
            program.ask("stop", name=name)
        self._members = []
