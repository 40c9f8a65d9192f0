"""The recipes for releases, services and containers: linted, and run as far as the machine can."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
import yaml

from build_ext import ROOT
from cometmq.cli.commands import app
from cometmq.console.access.sign_in import SIGN_IN
from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.endpoint import MetricsEndpoint
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import RemotingServer, RemotingSettings, Response, TlsSettings
from cometmq.remoting.ports import free_port
from support.processes.server import Standalone, standalone
from support.runner import pythons

DEPLOY = ROOT / "deploy"
WORKFLOWS = ROOT / ".github" / "workflows"
RELEASE = WORKFLOWS / "release.yml"
EVERY_WORKFLOW = [pytest.param(path, id=path.stem) for path in sorted(WORKFLOWS.iterdir())]
UNIT = DEPLOY / "cometmq.service"
CONTAINERFILE = DEPLOY / "Containerfile"
IMAGES = ("server", "console")
"""The targets of the container recipe."""
EXPOSURE_MAX = 15
"""What ``systemd-analyze security`` may count, in tenths; a service without any limit has 96."""
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.9"
HEALTHY_TIMEOUT_S = 120.0


def tool(name: str) -> str:
    """A program of the extra ``check``, which stands beside this Python; else one on the path.

    A test whose program is missing is skipped, and on CI a skipped test is a failure.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def passes(*command: str | Path, timeout: float = 300) -> str:
    done = run(*command, timeout=timeout)
    assert done.returncode == 0, done.stdout
    return done.stdout


def understood(words: list[str]) -> None:
    """Check that the command line takes these words."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])


# ---- releases


def test_wheels_are_built_for_the_pythons_that_the_classifiers_name() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [f"cp{version.replace('.', '')}-*" for version in pythons.supported()]

    assert settings["tool"]["cibuildwheel"]["build"] == names
    assert settings["tool"]["cibuildwheel"]["archs"] == ["auto64"]
    assert settings["project"]["requires-python"] == f">={pythons.supported()[0]}"


def test_wheels_are_built_for_the_systems_that_the_classifiers_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    systems = {
        line.split(" :: ")[-1] for line in project["classifiers"] if line.startswith("Operating")
    }
    runners = yaml.safe_load(RELEASE.read_text())["jobs"]["wheels"]["strategy"]["matrix"]["runner"]

    assert systems == {"Linux", "MacOS", "Windows"}
    assert {runner.split("-")[0] for runner in runners} == {"ubuntu", "macos", "windows"}
    for system in ("ubuntu", "macos", "windows"):  # x86-64 and arm64
        assert len([runner for runner in runners if runner.startswith(system)]) == 2


def test_a_release_is_published_only_from_a_tag_and_after_every_check() -> None:
    workflow = yaml.safe_load(RELEASE.read_text())
    jobs = workflow["jobs"]

    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert "tag" in jobs["publish"]["if"]
    writers = [name for name, job in jobs.items() if "write" in job["permissions"].values()]
    assert (workflow["permissions"], writers) == ({}, ["publish"])


@pytest.mark.parametrize("workflow", EVERY_WORKFLOW)
def test_every_action_of_a_workflow_is_pinned_to_a_commit(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)", workflow.read_text())

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize("workflow", EVERY_WORKFLOW)
def test_a_linter_finds_nothing_in_a_workflow(workflow: Path) -> None:
    passes(tool("zizmor"), "--offline", "--no-progress", workflow)


@pytest.mark.long
@pytest.mark.parametrize("workflow", EVERY_WORKFLOW)
def test_a_second_linter_finds_nothing_in_a_workflow(workflow: Path) -> None:
    passes(tool("go"), "run", ACTIONLINT, workflow)


# ---- services


def test_the_service_starts_a_command_that_exists() -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)

    understood(shlex.split(line)[1:])


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_the_service(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/cometmq/bin/cometmq", sys.executable))

    assert passes(tool("systemd-analyze"), "verify", unit) == ""


def test_the_service_has_few_rights() -> None:
    limits = ("--offline=true", f"--threshold={EXPOSURE_MAX}")

    passes(tool("systemd-analyze"), "security", "--no-pager", *limits, UNIT)


# ---- containers


def test_a_linter_finds_nothing_in_the_container_recipe() -> None:
    passes(tool("hadolint"), CONTAINERFILE)


def test_the_containers_start_commands_that_exist_on_a_supported_python() -> None:
    text = CONTAINERFILE.read_text()
    commands = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    (version,) = re.findall(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)

    assert len(commands) == len(IMAGES)
    for command in commands:
        understood(json.loads(command))
    assert version in pythons.supported()


def test_all_that_the_container_recipe_copies_exists_and_is_not_ignored() -> None:
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    lines = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    copied = [name for line in lines for name in line.split()[:-1]]

    assert sorted(copied) == sorted(kept)
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.fixture(scope="module")
def health() -> ModuleType:
    """The program of the container's health check."""
    spec = importlib.util.spec_from_file_location("healthcheck", DEPLOY / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("health")) as running:
        yield running


def test_servers_that_answer_are_healthy(health: ModuleType, server: Standalone) -> None:
    ports = (f"namesrv={server.ports.namesrv}", f"broker={server.ports.broker}")
    done = run(sys.executable, DEPLOY / "healthcheck.py", *ports)

    assert (done.returncode, done.stdout) == (0, "")


async def test_a_server_that_demands_tls_is_healthy_for_a_check_with_tls(
    health: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {RequestCode.GET_BROKER_RUNTIME_INFO: lambda request: Response()}
    server = RemotingServer(
        answer, settings=RemotingSettings(), tls=TlsSettings(mode="enforcing"), name="demanding"
    )
    await server.start("127.0.0.1", 0)
    try:
        port = f"broker={server.port}"
        assert await asyncio.to_thread(health.main, [port]) == 1
        assert await asyncio.to_thread(health.main, ["--tls", port]) == 0, capsys.readouterr().err
    finally:
        await server.stop(0.0)


async def test_a_broker_that_demands_an_account_is_healthy(
    health: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = Response(ResponseCode.SYSTEM_ERROR, "No accessKey is configured")
    answer = {RequestCode.GET_BROKER_RUNTIME_INFO: lambda request: refusal}
    server = RemotingServer(answer, settings=RemotingSettings(), name="guarded")
    await server.start("127.0.0.1", 0)
    try:
        found = await asyncio.to_thread(health.main, [f"broker={server.port}"])
        assert found == 0, capsys.readouterr().err
    finally:
        await server.stop(0.0)


async def test_a_server_is_as_healthy_as_it_says_that_it_is_ready(
    health: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = ["", "no name server knows this broker"]
    endpoint = MetricsEndpoint(
        MetricsSettings(exporter="PROM", port=0), {}, lambda page: asyncio.sleep(0), reasons.pop
    )
    await endpoint.start()
    try:
        found = [await asyncio.to_thread(health.main, [f"ready={endpoint.port}"]) for _ in range(2)]
    finally:
        await endpoint.stop()

    assert found == [1, 0]
    assert "status 503: no name server knows this broker" in capsys.readouterr().err
    assert health.PAGES["console"] == SIGN_IN


def test_a_server_that_refuses_the_request_is_not_healthy(
    health: ModuleType, server: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([f"broker={server.ports.namesrv}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"broker on port {server.ports.namesrv} does not serve: it responded with"
    )


def test_every_server_that_is_gone_is_named(
    health: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = free_port(), free_port()

    assert health.main([f"namesrv={first}", f"broker={second}"]) == 1
    said = capsys.readouterr().err
    assert f"namesrv on port {first} does not serve" in said
    assert f"broker on port {second} does not serve" in said


def test_a_server_that_listens_and_answers_nothing_is_not_healthy(health: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        health.check("broker", silent.getsockname()[1], 0.1)


@pytest.mark.parametrize("word", ["broker", "client=1", "broker=", "broker=x"])
def test_a_health_check_of_an_unknown_server_is_a_misuse(
    health: ModuleType, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.main([word]) == 2
    assert (
        "expected namesrv=PORT or broker=PORT or ready=PORT or console=PORT"
        in capsys.readouterr().err
    )


def builder() -> str | None:
    """A program that builds and runs containers here, if there is one."""
    for name in ("podman", "docker"):
        if shutil.which(name) and run(name, "info").returncode == 0:
            return name
    return None


@pytest.mark.long
def test_a_container_is_built_and_gets_healthy() -> None:
    container = builder()
    if container is None:
        pytest.skip("no program that builds containers works here")
    for target in IMAGES:
        words = ("--target", target, "-t", f"cometmq-{target}:test")
        passes(container, "build", "-f", CONTAINERFILE, *words, ".", timeout=1800)
    assert "(compiled: " in passes(container, "run", "--rm", "cometmq-server:test", "version")
    passes(container, "run", "--rm", "cometmq-console:test", "console", "--help")
    started = passes(container, "run", "--detach", "--rm", "--cap-drop=all", "cometmq-server:test")
    name = started.split()[-1]
    command = (container, "exec", name, "/opt/cometmq/bin/python", "/opt/cometmq/healthcheck.py")
    try:
        deadline = time.monotonic() + HEALTHY_TIMEOUT_S
        while run(*command, "namesrv=9876", "broker=10911").returncode != 0:
            assert time.monotonic() < deadline, run(container, "logs", name).stdout
            time.sleep(0.5)
    finally:
        run(container, "stop", "--time", "30", name)
