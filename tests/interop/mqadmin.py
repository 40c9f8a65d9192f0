"""The official mqadmin of RocketMQ as a shell that keeps its JVM."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import toolchain
from programs import Program

LOST_CONNECTION = re.compile(
    r"RemotingSendRequestException|Invoke Broker\[.*\] exception"
    r"|sendDefaultImpl call timeout|RemotingTimeoutException|RemotingTooMuchRequestException"
    r"|query message by key finished, but no message"
    r"|broker busy"
)
"""The parts of a command name their connections by the millisecond: two that begin in the same one
share theirs, and the first to end closes it under the other. About one send in a hundred meets
this, on RocketMQ's own servers as on ours, and it may have been carried out. A request that times
out, as on a slow machine, may have been carried out as well. There a broker also refuses sends that
it cannot handle in time. A query by key keeps such a failure to itself and says that it has found
no message."""
SENDS = ("sendMessage", "sendMsgStatus", "checkMsgSendRT")
"""Commands that do more when they are repeated."""
TRIES_MAX = 3
BODIES = Path("/tmp/rocketmq/msgbodys")
"""The folder for the bodies that the tool shows; every user of the machine can write to it."""


class AnswerLost(Exception):
    """A command lost the connection under a message that may have been stored."""


class Printed(NamedTuple):
    """What one command wrote."""

    out: str
    err: str


class MqAdmin:
    """One JVM that runs command after command, of the version that is named."""

    def __init__(self, folder: Path, version: str = "5.3.3") -> None:
        with suppress(PermissionError):  # another user has made it
            BODIES.mkdir(parents=True, exist_ok=True)
            BODIES.chmod(0o1777)
        silent = folder / "conf" / "logback_tools.xml"  # where 4.9 looks for it
        silent.parent.mkdir(parents=True, exist_ok=True)
        silent.write_text('<configuration><root level="OFF"/></configuration>\n')
        classes = toolchain.java_classes("admin", toolchain.rocketmq_jars("tools", version))
        options = [
            "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            toolchain.PATIENT_CONNECT,
            f"-Djava.io.tmpdir={folder}", f"-Drmq.logback.configurationFile={silent}",
            f"-Drocketmq.home.dir={folder}",
        ]  # fmt: skip
        java = [toolchain.command("java"), *options, "-cp", classes, "Admin"]
        # Some commands write files where they run.
        self._program = Program(java, folder / "mqadmin.log", cwd=folder)

    def run(self, namesrv: str, command: str, *arguments: str) -> Printed:
        """Run ``mqadmin command arguments… -n namesrv``.

        Args:
            namesrv: the name server; empty to leave out ``-n``.
            command, arguments: the command line.

        Raises:
            AnswerLost: nobody knows whether the message was stored.
        """
        args = [command, *arguments, *(["-n", namesrv] if namesrv else [])]
        for _ in range(TRIES_MAX):
            printed = Printed(**self._program.ask("admin", args=args))
            if not LOST_CONNECTION.search(printed.err):
                break
            if command in SENDS:
                raise AnswerLost(f"mqadmin {' '.join(args)}: {printed.err}")
        return printed

    def close(self) -> None:
        self._program.close()


def newest_of(folder: Path, name: str) -> str | None:
    """The newest file of a name, in which a time may stand; None if there is none."""
    paths = folder.glob(name.replace("<MS>", "*"))
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else newest.read_text()
