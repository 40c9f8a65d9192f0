"""Archives as commands: their options, their help, their exit codes, and what they print."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest

from cometmq.cli import pipeline as command_line
from cometmq.model.errors import ConfigError, StoreError
from cometmq.spark.archive import ArchiveLogSettings, ArchiveResult, command
from cometmq.spark.archive.command import (
    PIPELINES,
    Pipeline,
    main,
    parser_of,
    settings_of,
    show,
    texts_of,
)
from cometmq.spark.errors import DataLossError, OptionError
from cometmq.spark.logs import ByteRange
from cometmq.spark.sources.losses import Losses
from cometmq.system.settings import describe
from unit.docs.test_pages import PAGES, blocks

RESULT = ArchiveResult(1234, 5, 6789, 0, 99, (ByteRange("b", 10, 20),))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_setting_has_a_text_and_a_default(name: str) -> None:
    kind = PIPELINES[name].settings
    texts = texts_of(kind)
    assert all(texts.get(setting.name) for setting in describe(kind))
    assert f"cometmq pipeline {name}" in parser_of(name).format_help()
    assert settings_of(name, parser_of(name).parse_args([])) == kind()


def test_a_command_is_run_as_a_module_and_as_a_script() -> None:
    for start in (["-m", "cometmq.spark.archive"], [str(command_line.script())]):
        words = [sys.executable, *start, "archive-topics", "--help"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "cometmq pipeline archive-topics" in done.stdout


def documented() -> list[list[str]]:
    """The commands of all pages."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["cometmq", "pipeline"] and words[2:3] and words[2] in PIPELINES:
                    found.append(words[2:])
    return found


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_commands_in_documents_are_understood(words: list[str]) -> None:
    settings_of(words[0], parser_of(words[0]).parse_args(words[1:]))


def test_there_are_commands_in_documents() -> None:
    assert {words[0] for words in documented()} == set(PIPELINES)


def test_values_have_their_kind() -> None:
    words = "--topics a --topics b;c --range-bytes 5000 --closed --no-decompress --codec snappy"
    settings = settings_of("archive", parser_of("archive").parse_args(words.split()))
    assert settings.topics == ("a", "b", "c")
    assert (settings.range_bytes, settings.closed, settings.decompress) == (5000, True, False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("archive --range-bytes 1", "--range-bytes=1: expected a whole number from 4096"),
        ("archive --range-bytes 1073741825", "a whole number from 4096 to 1073741824"),
        ("archive --codec zip", "--codec=zip: expected one of zstd"),
        ("archive --table parquet", "--table parquet was removed: use delta (the default)"),
        ("archive --table=parquet", "--table parquet was removed: use delta (the default)"),
        ("archive --resume latest", "--resume was removed: leave it out, every run continues"),
        ("archive-topics --runs=/r", "--runs=/r was removed: leave it out, the table says"),
        ("nope", "no pipeline 'nope': expected archive or archive-topics"),
    ],
)
def test_a_mistake_is_named_and_ends_with_code_2(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert text in capsys.readouterr().err


def test_no_pipeline_is_called_removed() -> None:
    assert not set(command_line.REMOVED) & set(PIPELINES)


def test_an_unknown_option_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["archive", "--rnage-bytes", "5000"])
    assert ended.value.code == 2
    assert "--rnage-bytes" in capsys.readouterr().err


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    """Replace the function of a command by one that answers or raises; return its calls."""
    calls: list[Any] = []

    def work(spark: Any, settings: Any, *, dry_run: bool) -> Any:
        calls.append((settings, dry_run))
        if isinstance(answer, Exception):
            raise answer
        return answer

    pipeline = Pipeline("Answers.", ArchiveLogSettings, work)
    monkeypatch.setattr(command, "PIPELINES", {"archive": pipeline})
    monkeypatch.setattr(command, "session", lambda given: None)
    return calls


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (RESULT, 0),
        (ConfigError("no store"), 2),
        (OptionError("option x is unknown"), 2),
        (StoreError("broken"), 3),
    ],
)
def test_the_exit_code_says_how_it_ended(
    answer: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answering(monkeypatch, answer)
    assert main(["archive", "--dry-run", "--quiet", "--store", "s"]) == code
    assert calls == [(ArchiveLogSettings(store="s"), True)]
    assert bool(capsys.readouterr().err) == (code > 0)


class StreamingQueryException(Exception):
    """An exception as Spark raises it, but without a JVM."""

    __module__ = "pyspark.errors.exceptions.captured"


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
        (
            "\n[JOB_CANCELLED] Job 0 cancelled\n\tat org",
            3,
            "StreamingQueryException: [JOB_CANCELLED] Job 0 cancelled",
        ),
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
    assert main(["archive", "--quiet"]) == code
    assert capsys.readouterr().err.splitlines() == [f"cometmq: {complaint}"]


def test_advice_names_the_option_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataLossError) as lost:
        Losses(fail=True).report("topic t, queue 0 of vm: no longer readable")
    text = STACK.format(kind="DataLossError", text=lost.value)
    answering(monkeypatch, StreamingQueryException(text))
    assert main(["archive", "--quiet"]) == 3
    shown = capsys.readouterr().err
    assert "; --no-fail-on-data-loss continues with the remaining messages" in shown


def test_other_errors_are_not_explained_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ZeroDivisionError("x"))
    with pytest.raises(ZeroDivisionError):
        main(["archive", "--quiet"])


def test_a_result_is_shown_to_people_and_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, as_json=False)
    lines = ["rows 1,234, files 5, bytes 6,789", "from 0 to 99", "lost: log of b, bytes 10 to 20"]
    assert capsys.readouterr().out.splitlines() == lines
    show(RESULT, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "rows": 1234,
        "files": 5,
        "bytes": 6789,
        "start": 0,
        "end": 99,
        "lost": ["log of b, bytes 10 to 20"],
    }


def test_the_list_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(PIPELINES)


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "NEEDED", ("pyspark", "no_such_module_at_all"))
    with pytest.raises(
        ConfigError, match=r"no_such_module_at_all: install CometMQ with the extra 'spark'"
    ):
        command_line.run(["archive"])
