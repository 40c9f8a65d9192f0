"""The official mqadmin of RocketMQ 5.3.3 as a shell that keeps its JVM."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import toolchain
from programs import Program


class Printed(NamedTuple):
    """What one command wrote."""

    out: str
    err: str


class MqAdmin:
    """One JVM that runs command after command."""

    def __init__(self, folder: Path, version: str = "5.3.3") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        silent = folder / "silent.logback.xml"
        silent.write_text('<configuration><root level="OFF"/></configuration>\n')
        classes = toolchain.java_classes("admin", toolchain.rocketmq_jars("servers", version))
        options = [
            "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Djava.io.tmpdir={folder}", f"-Drmq.logback.configurationFile={silent}",
        ]  # fmt: skip
        java = [toolchain.command("java"), *options, "-cp", classes, "Admin"]
        self._program = Program(java, folder / "mqadmin.log")

    def run(self, namesrv: str, command: str, *arguments: str) -> Printed:
        """Run ``mqadmin command arguments… -n namesrv``."""
        args = [command, *arguments, "-n", namesrv]
        return Printed(**self._program.ask("admin", args=args, timeout=60.0))

    def close(self) -> None:
        self._program.close()
