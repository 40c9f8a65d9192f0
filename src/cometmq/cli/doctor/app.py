"""The command ``cometmq doctor``: chooses the checks, runs them and prints the findings."""

from __future__ import annotations

import sys
from pathlib import Path

from cometmq.cli.doctor import cluster_checks, report, server_checks
from cometmq.cli.doctor.findings import Finding, run_checks
from cometmq.cli.doctor.host import Host
from cometmq.cli.event_loop import run
from cometmq.client import AdminClient
from cometmq.model.errors import ConfigError
from cometmq.system.platforms import require_servers


def doctor(
    *,
    server: str,
    config: Path | None,
    store: Path | None,
    namesrv: str | None,
    as_json: bool,
    everything: bool,
    strict: bool,
    timeout_s: float,
) -> int:
    """Run the checks and print what they found; return the exit code.

    Raises:
        ConfigError: the server is unknown, servers do not run on this system, or an address of a
            name server is invalid.
    """
    if server not in server_checks.SERVERS:
        raise ConfigError(f"--server {server}: expected one of {', '.join(server_checks.SERVERS)}")
    findings: list[Finding] = []
    if namesrv is None or config is not None or store is not None:
        require_servers()
        checks = server_checks.checks(
            server, config, store, Host(), compares_clocks=namesrv is None
        )
        findings += run(run_checks(checks, timeout_s))
    if namesrv is not None:
        findings += run(_cluster(namesrv, timeout_s))
    findings = list(dict.fromkeys(findings))  # a registered broker is examined twice
    text = report.as_json(findings) if as_json else report.as_text(findings, everything=everything)
    sys.stdout.write(text)
    return report.exit_code(findings, strict=strict)


async def _cluster(namesrv: str, timeout_s: float) -> list[Finding]:
    async with AdminClient(namesrv) as admin:
        return await cluster_checks.examine(admin, timeout_s)
