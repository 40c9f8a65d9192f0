"""Runs `tests/ha/pairs.py`, which checks replication from outside, on pairs of brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toolchain

from cometmq.remoting.ports import free_ports

PAIRS = Path(__file__).resolve().parents[1] / "ha" / "pairs.py"
COMET, JAVA_49, JAVA_53 = "cometmq", "java-4.9.7", "java-5.3.3"
ALL = ""
QUICK = (
    "sync_without_slave,no_wait_property,sync_with_slave,load_with_rolls,queues_equal,"
    "slave_refuses_sends,slave_serves_pulls,slave_holds_pulls,slave_killed_in_load,two_slaves,"
    "truncated_tail,metadata_follows,master_gone,master_restarted,suggestion,master_killed_in_load"
)
"""Checks that wait for no timer of twenty seconds or more."""
MIXED = (
    "sync_with_slave,load_with_rolls,queues_equal,slave_refuses_sends,slave_serves_pulls,"
    "stopped_slave_times_out,slave_killed_in_load,late_slave,two_slaves,truncated_tail,"
    "metadata_follows,master_gone,master_restarted,suggestion,master_killed_in_load"
)
"""Checks that depend on the broker on the other side."""
PORTS = 60
LIMIT_S = 1200.0

_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/rocketmq.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


def release(name: str, folder: Path) -> dict[str, str]:
    """The variable that names the folder of a real release; none for ours."""
    if name == COMET:
        return {}
    version = name.removeprefix("java-")
    home = folder / name
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for server in ("namesrv", "broker"):
        (home / "conf" / f"logback_{server}.xml").write_text(_LOGBACK)
    jars = Path(toolchain.rocketmq_jars("servers", version)).parent
    if not (home / "lib").exists():
        (home / "lib").symlink_to(jars)
    return {f"ROCKETMQ_{version.replace('.', '_')}": str(home)}


@pytest.mark.parametrize(
    ("master", "slave", "checks"),
    [
        (COMET, COMET, QUICK),
        pytest.param(COMET, COMET, ALL, marks=pytest.mark.long),
        pytest.param(JAVA_49, COMET, MIXED, marks=pytest.mark.long),
        pytest.param(JAVA_53, COMET, MIXED, marks=pytest.mark.long),
        pytest.param(COMET, JAVA_49, MIXED, marks=pytest.mark.long),
        pytest.param(COMET, JAVA_53, MIXED, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(LIMIT_S)
def test_a_pair_replicates(master: str, slave: str, checks: str, tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | release(master, tmp_path) | release(slave, tmp_path)
    environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
    environment["TMPDIR"] = str(tmp_path)
    outcome = subprocess.run(
        [
            *(sys.executable, str(PAIRS), "--master", master, "--slave", slave),
            *("--first-port", str(free_ports(PORTS)), "--only", checks),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    shown = f"{outcome.stdout}\n{outcome.stderr}"
    assert outcome.returncode == 0, shown
    passed = shown.count("PASS ")
    assert passed == (checks.count(",") + 1 if checks else 21), shown
