"""The Java program that the documentation shows, against our server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import toolchain
from servers import Cluster

PROGRAM = Path(__file__).resolve().parent.parent.parent / "examples" / "java" / "Orders.java"


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_the_program_of_the_documentation_sends_and_receives(
    cluster: Cluster, version: str, tmp_path: Path
) -> None:
    jars = toolchain.rocketmq_jars("client", version)
    done = subprocess.run(
        [
            toolchain.command("java"),
            f"-Duser.home={tmp_path}",
            "-cp",
            jars,
            str(PROGRAM),
            cluster.namesrv,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SEND_OK" in done.stdout
    assert "a green hat" in done.stdout
