"""Formats, the modules by which Spark finds them, and what an installation brings."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.sources import FORMATS, source_class

ROOT = Path(__file__).resolve().parents[3]
FAST_START = ROOT / "tests" / "spark" / "fast_start"


def module_of(name: str) -> str:
    _, dash, rest = name.partition("-")
    return f"pyspark_cometmq{dash and '_'}{rest}"


@pytest.mark.parametrize("name", FORMATS)
def test_spark_finds_each_format_in_a_module_of_its_own(name: str) -> None:
    source = importlib.import_module(module_of(name)).DefaultSource

    assert source.name() == source_class(name).name() == name
    assert isinstance(source({}), source_class(name))


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_refuses_an_unknown_option_when_it_is_loaded(name: str) -> None:
    with pytest.raises(OptionError, match="option nosuchoption is unknown"):
        source_class(name)({"nosuchoption": "1"}).schema()


def test_every_module_that_spark_finds_is_installed_and_holds_a_format() -> None:
    written = {path.stem for path in (ROOT / "src").glob("pyspark_*.py")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    assert set(settings["py-modules"]) == written == {module_of(name) for name in FORMATS}


def test_a_format_that_cannot_be_loaded_says_why_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark imports all such modules to find one, and stops at the first that fails."""
    monkeypatch.setitem(sys.modules, FORMATS["rocketmq"][0], None)
    source = importlib.import_module("pyspark_cometmq").DefaultSource

    assert source.name() == "rocketmq"
    with pytest.raises(ImportError, match=FORMATS["rocketmq"][0]):
        source({})


def test_a_pyspark_without_python_sources_finds_modules_without_a_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cometmq.spark.sources", None)
    monkeypatch.delitem(sys.modules, "pyspark_cometmq", raising=False)

    assert not hasattr(importlib.import_module("pyspark_cometmq"), "DefaultSource")
    monkeypatch.delitem(sys.modules, "pyspark_cometmq")


def test_an_application_that_looks_for_another_format_loads_none_of_ours() -> None:
    names = [module_of(name) for name in FORMATS]
    program = (
        "import sys; from pyspark.sql.worker import lookup_data_sources;"
        f"before = set(sys.modules); import {', '.join(names)};"
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = {"cometmq", "cometmq.spark", "cometmq.spark.sources"}
    assert set(run.stdout.split()) == {*names, *loaded}


def test_workers_of_tests_load_at_their_start_what_exists() -> None:
    """Python goes on without the module if one that it imports is missing; each worker is slow."""
    program = "import sys; print('cometmq.spark.sink.spark_writers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, "pyspark.daemon"],
        env=os.environ | {"PYTHONPATH": str(FAST_START)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
