"""Pipelines as commands: their options, their help, their exit codes, and what they print."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.cli import pipeline as command_line
from cometmq.model.errors import ConfigError, StoreError
from cometmq.spark.errors import DataLossError, OptionError
from cometmq.spark.pipelines import PIPELINES, Pipeline, PipelineSettings, Result, RunRecord
from cometmq.spark.pipelines.running import command as command_module
from cometmq.spark.pipelines.running.command import (
    listing,
    main,
    parser_of,
    settings_of,
    show,
    texts_of,
)
from cometmq.spark.pipelines.running.progress import Bar, Lines
from cometmq.spark.pipelines.running.registry import MODULES, REMOVED
from cometmq.spark.sources.losses import Losses
from cometmq.system.settings import describe
from tools.generate.root import ROOT
from unit.docs.test_pages import PAGES, blocks

NAMES = sorted(MODULES)
RECORD = RunRecord(
    "audit-1", "audit", 5, 6, "done", {"a": 1}, ["/out"], {"rows": 1234}, checksum="ab"
)


@pytest.mark.parametrize("name", NAMES)
def test_every_pipeline_and_every_setting_has_a_text(name: str) -> None:
    pipeline = PIPELINES[name]
    assert pipeline.name == name
    assert pipeline.summary.endswith(".")
    kind: type = pipeline.settings
    texts = texts_of(kind)
    assert all(texts.get(setting.name) for setting in describe(kind))
    assert f"cometmq pipeline {name}" in parser_of(pipeline).format_help()


@pytest.mark.parametrize("name", NAMES)
def test_no_option_at_all_means_the_defaults(name: str) -> None:
    pipeline = PIPELINES[name]
    assert settings_of(pipeline, parser_of(pipeline).parse_args([])) == pipeline.settings()


@pytest.mark.parametrize("name", NAMES)
def test_every_pipeline_can_be_run_as_a_module(name: str) -> None:
    """Under the name that its function is documented with, be it a module or a package."""
    words = [sys.executable, "-m", f"cometmq.spark.pipelines.{MODULES[name]}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"cometmq pipeline {name}" in done.stdout


def documented() -> list[list[str]]:
    """The pipeline commands of all pages."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["cometmq", "pipeline"] and words[2:3] and words[2] in MODULES:
                    found.append(words[2:])
    return found


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_commands_in_documents_are_understood(words: list[str]) -> None:
    pipeline = PIPELINES[words[0]]
    settings_of(pipeline, parser_of(pipeline).parse_args(words[1:]))


def test_there_are_commands_in_documents() -> None:
    assert {words[0] for words in documented()} >= {"archive", "verify"}


def test_what_replaces_a_removed_pipeline_is_there() -> None:
    named = [path for text in REMOVED.values() for path in re.findall(r"[a-z]+/[\w/-]+\.\w+", text)]
    assert len(named) > len(REMOVED)
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_values_have_their_kind() -> None:
    pipeline = PIPELINES["archive"]
    words = "--topics a --topics b;c --range-bytes 5000 --closed --no-decompress --codec snappy"
    settings = settings_of(pipeline, parser_of(pipeline).parse_args(words.split()))
    assert settings.topics == ("a", "b", "c")
    assert (settings.range_bytes, settings.closed, settings.decompress) == (5000, True, False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["archive", "--range-bytes", "1"], "--range-bytes=1: expected a whole number from 4096"),
        (["archive", "--range-bytes", "1073741825"], "a whole number from 4096 to 1073741824"),
        (["archive", "--codec", "zip"], "--codec=zip: expected one of zstd"),
        (["nope"], "no pipeline 'nope': expected one of archive"),
        (["rebuild"], "the pipeline 'rebuild' is removed: a broker that starts rebuilds"),
        (["audit", "--source", "x"], "is removed: use the functions of cometmq.spark.checks"),
        (["usage"], "is removed: run the program examples/spark/11_usage.py"),
    ],
)
def test_a_mistake_is_named_and_ends_with_code_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(None, words) == 2
    assert text in capsys.readouterr().err


def test_an_unknown_option_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("archive", ["--rnage-bytes", "5000"])
    assert ended.value.code == 2
    assert "--rnage-bytes" in capsys.readouterr().err


def answering(
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    settings_class: type[PipelineSettings] = PipelineSettings,
) -> list[Any]:
    """A pipeline of its own that answers, or raises; gives what it is called with."""
    calls: list[Any] = []

    def work(spark: Any, settings: Any, *, progress: Any, dry_run: bool) -> Any:
        calls.append((settings, dry_run))
        if isinstance(answer, Exception):
            raise answer
        return answer

    pipeline = Pipeline("archive", "Answers.", settings_class, work)
    monkeypatch.setattr(command_module, "PIPELINES", {"archive": pipeline})
    monkeypatch.setattr(command_module, "session", lambda given: None)
    return calls


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Result(RECORD), 0),
        (Result(RECORD, good=False), 1),
        (ConfigError("no store"), 2),
        (OptionError("option x is unknown"), 2),
        (StoreError("broken"), 3),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"), 2),
    ],
)
def test_the_exit_code_says_how_it_ended(
    answer: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answering(monkeypatch, answer)
    assert main("archive", ["--dry-run", "--quiet", "--resume", "latest"]) == code
    assert calls == [(PipelineSettings(resume="latest"), True)]
    complaint = capsys.readouterr().err
    assert bool(complaint) == (code > 1)
    if isinstance(answer, ModuleNotFoundError):
        assert "install CometMQ with the extra 'spark'" in complaint


class StreamingQueryException(Exception):
    """As Spark raises it, but without a JVM."""

    __module__ = "pyspark.errors.exceptions.captured"


LOST = "topic t, queue 0 of vm: no longer readable, read up to offset 9"
STACK = """[STREAM_FAILED] Query [id = 3288, runId = df7d] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "/site/cometmq/spark/sources/losses.py", line 48, in report
    raise {kind}(text)
cometmq.spark.errors.{kind}: {text}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 3288, runId = df7d]
"""


@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        (STACK.format(kind="DataLossError", text="the text"), 3, "DataLossError: the text"),
        (STACK.format(kind="OptionError", text="option x is bad"), 2, "option x is bad"),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "/site/pyarrow/fs.py", line 1, in open\nPermissionError: /archive',
            3,
            "PermissionError: /archive",
        ),
        ("\n[JOB_CANCELLED] Job 0 cancelled\n\tat org", 3, "[JOB_CANCELLED] Job 0 cancelled"),
    ],
)
def test_a_failure_of_spark_is_one_line(
    text: str,
    code: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answering(monkeypatch, StreamingQueryException(text))
    assert main("archive", ["--quiet"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    kind = "StreamingQueryException: " if text.startswith("\n") else ""
    assert line == f"cometmq: {kind}{complaint}"


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("archive-topics", "--no-fail-on-data-loss"),
        ("verify", "failOnDataLoss=false"),
    ],
)
def test_advice_names_the_option_of_the_pipeline(
    name: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(DataLossError) as lost:
        Losses(fail=True).report(LOST)
    text = STACK.format(kind="DataLossError", text=lost.value)
    answering(monkeypatch, StreamingQueryException(text), PIPELINES[name].settings)
    assert main("archive", ["--quiet"]) == 3
    assert f"; {option} continues with the remaining messages" in capsys.readouterr().err


def test_other_missing_modules_are_not_explained_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ModuleNotFoundError("No module named 'x'", name="x"))
    with pytest.raises(ModuleNotFoundError):
        main("archive", [])


def test_results_are_shown_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"topic": ["a", None], "body": [b"\xff", b"x" * 100]})
    show(Result(RECORD, {"found": table}, ("a note",)), as_json=False)
    shown = capsys.readouterr().out
    assert shown.startswith("a note\n\nfound:\ntopic  body")
    assert "\\xff" in shown
    assert "x..." in shown
    assert "run audit-1: done, rows 1,234\nwrote /out\n" in shown


def test_a_long_table_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result(RECORD, {"found": pa.table({"n": list(range(25))})}), as_json=False)
    assert "... and 5 more" in capsys.readouterr().out


def test_results_are_shown_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result(replace(RECORD, status="done"), notes=("n",)), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["id"], document["counts"], document["notes"]) == (
        "audit-1",
        {"rows": 1234},
        ["n"],
    )


def test_the_list_names_every_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(None, ["--list"]) == 0
    assert capsys.readouterr().out == "\n".join(listing()) + "\n"
    assert len(list(listing())) == len(MODULES) + 1


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "NEEDED", ("pyspark", "no_such_module_at_all"))
    with pytest.raises(
        ConfigError, match=r"no_such_module_at_all: install CometMQ with the extra 'spark'"
    ):
        command_line.run(["archive"])


def test_the_script_for_spark_submit_is_there() -> None:
    assert command_line.script().is_file()


def test_progress_is_written_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    with path.open("w") as file:
        lines = Lines(file, interval_s=0.0)
        lines.start(2_000, "rows", "replay")
        lines.step(1_500)
        lines.end()
    assert path.read_text().splitlines() == [
        "replay: 0 of 2,000 rows",
        "replay: 1,500 of 2,000 rows",
        "replay: 1,500 of 2,000 rows",
    ]


def test_a_bar_is_drawn_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    for what in ("first", "second"):
        bar.start(10, "rows", what)
        bar.step(4)
        bar.end()
    shown = capsys.readouterr().err
    assert "first" in shown
    assert "second" in shown
    assert "4/10 rows" in shown
