"""Runs the wire conformance suites against fresh ``cometmq standalone`` processes.

``python tests/run.py conformance`` calls it. The suites know nothing of the server. For each of
them a process of its own starts a server with the settings that the suite asks for and small files,
checks which build the server runs, and calls pytest with the address. The suite of static topics
gets a name server and three brokers. ``--suite`` chooses one, and so does the path of a test.
"""

from __future__ import annotations

import argparse
import json
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

from cometmq.remoting.ports import free_port
from support.processes.server import standalone
from support.runner import build
from support.runner.tiers import is_long_run

TESTS = Path(__file__).resolve().parent.parent
CONFORMANCE = TESTS / "conformance"
ACL = CONFORMANCE / "acl"
STATIC_TOPICS = CONFORMANCE / "static_topics"

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
    brokers: int = 0
    """The brokers of its own cluster, which tests stop and start; 0 for one standalone server."""
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
    "static-topics": Suite(
        STATIC_TOPICS,
        {},
        ("--static", "--flavour=comet"),
        brokers=3,
    ),
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
    if test.startswith("tests/conformance/static_topics/"):
        return "static-topics"
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
        if suite.brokers:
            return _run_on_cluster(suite, folder, arguments)
        settings = {**SMALL_FILES, **suite.settings}
        if suite.accounts:
            settings["rocketmqHome"] = folder
            (folder / "conf").mkdir()
            shutil.copyfile(ACL / "plain_acl.yml", folder / "conf" / "plain_acl.yml")
        with standalone(folder, **settings) as server:
            reason = _wrong_build(server.pid)
            if reason:
                print(reason, file=sys.stderr)
                return 1
            options = list(suite.options)
            if suite.accounts:
                options.append(f"--acl-file={folder / 'conf' / 'plain_acl.yml'}")
            status = _run_tests(suite, server.namesrv, options, arguments)
            if not server.running:
                print(f"the server died\n{server.log_end()}", file=sys.stderr)
                return 1
        if status and server.log.stat().st_size:
            print(f"--- the server's log ends\n{server.log_end(15)}")
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_on_cluster(suite: Suite, folder: Path, arguments: list[str]) -> int:
    """Run a suite on a cluster of its own, started by the suite's own script."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sys.path.insert(0, str(suite.folder))
    from cluster import TEMPLATES, Cluster

    cluster = Cluster(folder)
    lines = [f"{name}={value}" for name, value in suite.settings.items()]
    try:
        template = json.loads(TEMPLATES.read_text())["cometmq"]
        cluster.create(template, suite.brokers, free_port() // 10 * 10, lines)
        for name in cluster.nodes:
            cluster.launch(name)
        for name in cluster.nodes:
            cluster.wait_ready(name)
        cluster.wait_registered()
        if reason := _wrong_build(cluster.pid(cluster.brokers[0]) or 0):
            print(reason, file=sys.stderr)
            return 1
        script = f"{sys.executable} {suite.folder / 'cluster.py'}"
        options = [
            *suite.options,
            f"--start={script} start {folder} {{broker}}",
            f"--stop={script} stop {folder} {{broker}}",
            f"--kill={script} stop {folder} {{broker}} --kill",
            f"--mqadmin=env TMPDIR={{tmp}} {sys.executable} -m cometmq mqadmin",
        ]
        host, port = cluster.namesrv.split(":")
        status = _run_tests(suite, (host, int(port)), options, arguments)
        if status:
            for name in cluster.nodes:
                end = (folder / name / "output.log").read_text(errors="replace").splitlines()[-15:]
                print(f"--- the log of {name} ends", *end, sep="\n")
        return status
    finally:
        cluster.close()


def _wrong_build(pid: int) -> str | None:
    libraries = build.libraries_of_process(pid)
    print(f"server build: {len(libraries)} compiled modules loaded", flush=True)
    if build.EXPECTED == "compiled" and build.hot_modules() and not libraries:
        return "the server was to run compiled, but has loaded no compiled module"
    if build.EXPECTED == "interpreted" and libraries:
        return f"the server was to run interpreted, but has loaded {libraries}"
    return None


def _run_tests(
    suite: Suite, namesrv: tuple[str, int], options: list[str], arguments: list[str]
) -> int:
    host, port = namesrv
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
