"""The service of `examples/orders`: its own tests, on both databases, and what deploys it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from build_ext import ROOT
from integration.test_deployment import tool
from support.checks import plugin_options
from support.processes.postgres import postgres, programs

FOLDER = ROOT / "examples" / "orders"
PROGRAMS = programs()
OWN_PROCESSES = "tests/test_command.py"


def run_tests(*options: str, database: str | None = None) -> None:
    """Run the tests of the service, as its script does."""
    environment = {**os.environ, "TEST_DATABASE_URL": database or ""}
    if database is None:
        del environment["TEST_DATABASE_URL"]
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *plugin_options.OPTIONS, *options],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), done.stdout


def test_the_service_passes_its_tests() -> None:
    run_tests()


@pytest.mark.needs("postgres")
@pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed")
def test_the_service_passes_its_tests_with_postgresql() -> None:
    assert PROGRAMS is not None
    with postgres(PROGRAMS) as place:
        run_tests("--ignore", OWN_PROCESSES, database=f"postgresql+asyncpg://{place}")


def test_the_compose_file_fits_its_schema_and_names_files_that_exist() -> None:
    path = FOLDER / "compose.yaml"
    checker = tool("check-jsonschema")
    subprocess.run([checker, "--builtin-schema", "vendor.compose-spec", path], check=True)
    services = yaml.safe_load(path.read_text())["services"]
    contexts = [each["build"] for each in services.values() if "build" in each]
    mounted = [line.split(":")[0] for line in services["telemetry"]["volumes"]]

    assert {"api", "worker", "database", "broker", "telemetry"} <= set(services)
    for build in contexts:
        assert (FOLDER / build["context"] / build.get("dockerfile", "Dockerfile")).is_file()
    assert all((FOLDER / name).is_file() for name in mounted)


def test_a_linter_finds_nothing_in_the_container_recipe_of_the_service() -> None:
    subprocess.run([tool("hadolint"), FOLDER / "Dockerfile"], check=True)


def test_the_dashboard_shows_metrics_that_the_service_sends() -> None:
    panels = json.loads((FOLDER / "grafana" / "orders.json").read_text())["panels"]
    shown = {
        name.removesuffix("_bucket").removesuffix("_count").removesuffix("_seconds")
        for panel in panels
        for target in panel["targets"]
        for expression in [re.sub(r"by \(.*?\)", "", target.get("expr", ""))]
        for name in re.findall(r"\b(?:shop|messaging)_\w+(?=[{\[)])", expression)
    }
    code = (FOLDER / "orders" / "telemetry.py").read_text()
    ours = set(re.findall(r'create_(?:counter|gauge)\("([\w.]+)"', code))
    of_faststream = {"messaging.process.duration", "messaging.publish.duration"}

    assert {name.removesuffix("_total") for name in shown} == {
        name.replace(".", "_") for name in ours | of_faststream
    }


def test_all_that_the_service_requires_is_in_the_environment_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ranges = {
        each.name: each.specifier
        for each in map(Requirement, (*extras["test"], *extras["examples"]))
    }
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines if line and not line.startswith("#")]

    assert {each.name for each in required} - ranges.keys() == {"cometmq"}
    for each in required[1:]:
        assert each.specifier == ranges[each.name], each
