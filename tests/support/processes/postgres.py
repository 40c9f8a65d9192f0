"""A PostgreSQL server of its own on loopback, for tests that need a real one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cometmq.remoting.ports import free_port

ACCOUNT = "postgres"
PACKAGED = Path("/usr/lib/postgresql")
START_S = 60


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest one; None where they cannot be run."""
    if _is_root() and ACCOUNT not in {entry.pw_name for entry in pwd.getpwall()}:
        return None
    found = shutil.which("initdb")
    folders = [Path(found)] if found else sorted(PACKAGED.glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a server without passwords; gives its host, port and database, as in URLs.

    It refuses to run as root, and runs as the system's own account for it then.
    """
    account = {"user": ACCOUNT, "group": ACCOUNT} if _is_root() else {}
    root = Path(tempfile.mkdtemp(prefix="cometmq-postgres-"))
    try:
        if account:
            shutil.chown(root, ACCOUNT, ACCOUNT)
        data, port = root / "data", free_port()
        init = [folder / "initdb", "-D", data, "-U", ACCOUNT, "-A", "trust", "--no-sync"]
        subprocess.run(init, cwd=root, stdout=subprocess.DEVNULL, check=True, **account)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={root}"
        control = [folder / "pg_ctl", "-D", data, "-w", "-t", str(START_S), "-l", root / "log"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*control, "-o", options, "start"], cwd=root, check=True, **quiet, **account)
        try:
            yield f"{ACCOUNT}@127.0.0.1:{port}/{ACCOUNT}"
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, cwd=root, check=True, **quiet, **account)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _is_root() -> bool:
    return os.geteuid() == 0
