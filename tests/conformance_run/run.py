"""Runs the wire conformance suite against a fresh ``cometmq standalone`` process.

``python tests/run.py conformance`` calls it. The suite knows nothing of the server; this file
starts one with the settings the suite asks for and small files, checks which build the process
really runs, and hands pytest the address.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from exceptions import FILES
from exceptions import TESTS as EXPECTED_FAILURES

from support import build
from support.server import Standalone, standalone

TESTS = Path(__file__).resolve().parent.parent

SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 3000,
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "flushDiskType": "ASYNC_FLUSH",
}


class Exceptions:
    """Marks the listed tests as expected failures; a name that matches no test is an error."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seen = {f"{item.path.name}::{item.name}": item for item in items}
        for name, reason in EXPECTED_FAILURES.items():
            if name in seen:
                seen[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))


def main() -> int:
    """Start the server, run the suite, stop the server; returns pytest's exit status."""
    folder = Path(tempfile.mkdtemp(prefix="cometmq-conformance-"))
    try:
        with standalone(folder, **SETTINGS) as server:
            reason = _wrong_build(server)
            if reason:
                print(reason, file=sys.stderr)
                return 1
            status = _run_suite(server)
            if not server.running:
                print(f"the server died\n{server.log_end()}", file=sys.stderr)
                return 1
        if server.log.stat().st_size:
            print(f"--- the server's log ends\n{server.log_end(15)}")
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wrong_build(server: Standalone) -> str | None:
    libraries = build.libraries_of_process(server.pid)
    print(f"server build: {len(libraries)} compiled modules loaded", flush=True)
    if build.EXPECTED == "compiled" and build.hot_modules() and not libraries:
        return "the server was to run compiled, but has loaded no compiled module"
    if build.EXPECTED == "interpreted" and libraries:
        return f"the server was to run interpreted, but has loaded {libraries}"
    return None


def _run_suite(server: Standalone) -> int:
    suite = TESTS / "conformance"
    host, port = server.namesrv
    chosen = [argument for argument in sys.argv[1:] if argument != "tests/conformance"]
    os.chdir(TESTS.parent)
    return pytest.main(
        [
            str(suite),
            "--import-mode=prepend",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:cometmq",
            "-W",
            "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
            f"--namesrv={host}:{port}",
            "--flavour=comet",
            *[f"--ignore={suite / name}" for name in FILES],
            *chosen,
        ],
        plugins=[Exceptions()],
    )


if __name__ == "__main__":
    sys.exit(main())
