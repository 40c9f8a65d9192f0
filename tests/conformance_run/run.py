"""Runs the wire conformance suites against fresh ``cometmq standalone`` processes.

``python tests/run.py conformance`` calls it. The suites know nothing of the server. For each of
them a process of its own starts a server with the settings that the suite asks for and small files,
checks which build the server runs, and calls pytest with the address. ``--suite`` chooses one, and
so does the path of a test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from expectations import Expectations
from expected_failures import EXPECTED, SLOW_TO_FAIL, Expected

from support.processes.server import Standalone, standalone
from support.runner import build
from support.runner.tiers import is_long_run

TESTS = Path(__file__).resolve().parent.parent
CONFORMANCE = TESTS / "conformance"
ACL = CONFORMANCE / "acl"

SMALL_FILES = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}

PROTOCOL_SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 3000,
    "recallMessageEnable": "true",
    "waitTimeMillsInSendQueue": 5000,
}
"""What the README of the suite asks for."""


def _settings_of(file: str) -> dict[str, object]:
    lines = (ACL / file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line)


@dataclass(frozen=True)
class Suite:
    """A folder of tests and the server that it needs."""

    folder: Path
    settings: dict[str, object]
    options: tuple[str, ...] = ()
    accounts: bool = False
    """Whether the tests change the broker's ``plain_acl.yml``."""
    expected: Expected = field(default_factory=Expected)


SUITES = {
    "protocol": Suite(
        CONFORMANCE, {**PROTOCOL_SETTINGS}, ("--flavour=comet",), expected=EXPECTED["protocol"]
    ),
    "acl-plain": Suite(
        ACL,
        _settings_of("broker-plain.conf"),
        ("--acl=plain",),
        accounts=True,
    ),
    "acl-auth": Suite(ACL, _settings_of("broker-auth.conf"), ("--acl=auth",)),
}


def main() -> int:
    """Run the chosen suites, one after the other; the exit status is the first that is not 0."""
    parser = argparse.ArgumentParser(description="Run the wire conformance suites.")
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("--junitxml", type=Path, help="one report of all suites")
    asked, others = parser.parse_known_args()
    others = [argument for argument in others if argument != "tests/conformance"]
    if tests := [argument for argument in others if argument.startswith("tests/conformance/")]:
        asked.suite = sorted(set(map(_suite_of, tests)))
    if asked.suite is not None and len(asked.suite) == 1:
        report = [f"--junitxml={asked.junitxml}"] if asked.junitxml else []
        return run_suite(SUITES[asked.suite[0]], [*others, *report])
    statuses, reports = [], []
    for name in asked.suite or SUITES:
        command = [sys.executable, __file__, f"--suite={name}", *others]
        if asked.junitxml:
            reports.append(asked.junitxml.with_suffix(f".{name}.xml"))
            command.append(f"--junitxml={reports[-1]}")
        print(f"--- {name}", flush=True)
        statuses.append(subprocess.run(command).returncode)
    if asked.junitxml:
        _join(reports, asked.junitxml)
    return next(filter(None, statuses), 0)  # a suite that a signal ended has one below 0


def _suite_of(test: str) -> str:
    if not test.startswith("tests/conformance/acl/"):
        return "protocol"
    return "acl-auth" if Path(test).name.startswith("test_auth") else "acl-plain"


def _join(parts: list[Path], whole: Path) -> None:
    """Make one report of several; a suite without a report has said why it broke off."""
    root = ET.Element("testsuites")
    for part in parts:
        if part.exists():
            root.extend(ET.parse(part).getroot().iter("testsuite"))
            part.unlink()
    ET.ElementTree(root).write(whole, encoding="utf-8", xml_declaration=True)


def run_suite(suite: Suite, arguments: list[str]) -> int:
    """Start the server, run the suite, stop the server; returns pytest's exit status."""
    folder = Path(tempfile.mkdtemp(prefix="cometmq-conformance-"))
    try:
        settings = {**SMALL_FILES, **suite.settings}
        if suite.accounts:
            settings["rocketmqHome"] = folder
            (folder / "conf").mkdir()
            shutil.copyfile(ACL / "plain_acl.yml", folder / "conf" / "plain_acl.yml")
        with standalone(folder, **settings) as server:
            reason = _wrong_build(server)
            if reason:
                print(reason, file=sys.stderr)
                return 1
            status = _run_tests(suite, server, arguments)
            if not server.running:
                print(f"the server died\n{server.log_end()}", file=sys.stderr)
                return 1
        if status and server.log.stat().st_size:
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


def _run_tests(suite: Suite, server: Standalone, arguments: list[str]) -> int:
    host, port = server.namesrv
    options = list(suite.options)
    if suite.accounts:
        options.append(f"--acl-file={server.folder / 'conf' / 'plain_acl.yml'}")
    os.chdir(TESTS.parent)
    only = tuple(each for each in arguments if each.startswith("tests/conformance/"))
    return pytest.main(
        [
            str(suite.folder),
            "--import-mode=prepend",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:cometmq",
            "-W",
            "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
            "-rfE",  # the expected failures are a list of hundreds
            "--tb=short",
            f"--namesrv={host}:{port}",
            *options,
            *([] if is_long_run() else ["-m", "not slow"] if suite.accounts else []),
            *(argument for argument in arguments if argument not in only),
        ],
        plugins=[Expectations(suite.expected, () if is_long_run() else SLOW_TO_FAIL, only)],
    )


if __name__ == "__main__":
    sys.exit(main())
