"""Runs an archive as a command: options, a session, a result, an exit code.

    0 success · 2 wrong usage · 3 failure

The same command is ``cometmq pipeline NAME``, ``python -m cometmq.spark.archive NAME`` and a script
for ``spark-submit``, which brings its own session.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from cometmq.model.errors import CometError, ConfigError
from cometmq.spark.archive.log import ArchiveLogSettings, ArchiveResult, archive_log
from cometmq.spark.archive.tables import TableSettings
from cometmq.spark.archive.topics import ArchiveTopicsSettings, archive_topics
from cometmq.spark.errors import OptionError
from cometmq.spark.sources.losses import CONTINUES
from cometmq.system.settings import Setting, describe, field_texts
from cometmq.system.standard_streams import open_closed_streams

GOOD, MISUSED, FAILED = 0, 2, 3


class Pipeline(NamedTuple):
    """One command."""

    summary: str
    settings: type[TableSettings]
    function: Callable[..., ArchiveResult]


PIPELINES = {
    "archive": Pipeline(
        "Archive the new records of a broker's log into a table, each record once.",
        ArchiveLogSettings,
        archive_log,
    ),
    "archive-topics": Pipeline(
        "Archive the new messages of topics into a table, through the brokers.",
        ArchiveTopicsSettings,
        archive_topics,
    ),
}
REMOVED = {
    "--resume": "leave it out, every run continues at the end of the archive",
    "--runs": "leave it out, the table says how far the archive goes; a scheduler has the runs",
}
_LOGGED_BY_SPARK = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
)
"""Spark's loggers of errors that the driver raises too, with a stack of a hundred lines."""
_OURS = re.compile(r"^cometmq\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_ANY = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_MISUSES = {ConfigError.__name__, OptionError.__name__}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what a command line says; return the exit code.

    Args:
        arguments: the name and its options; this process's arguments if None.
    """
    open_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except Exception as problem:
        if not isinstance(problem, CometError) and not _is_from_spark(problem):
            raise
        kind, text = failure_of(problem)
        text = text.replace(CONTINUES, "--no-fail-on-data-loss")
        misused = kind in _MISUSES
        print(f"cometmq: {text if misused else f'{kind}: {text}'}", file=sys.stderr)
        return MISUSED if misused else FAILED


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "--list"):
        print("Pipelines (each has --help):")
        for name, pipeline in PIPELINES.items():
            print(f"  {name:<14} {pipeline.summary}")
        return GOOD
    name = words[0]
    if name not in PIPELINES:
        raise ConfigError(f"no pipeline {name!r}: expected {' or '.join(PIPELINES)}")
    _check_removed(words)
    given = parser_of(name).parse_args(words[1:])
    settings = settings_of(name, given)
    if not given.quiet:
        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("cometmq.spark.archive").setLevel(logging.INFO)
    spark = session(given)
    show(PIPELINES[name].function(spark, settings, dry_run=given.dry_run), as_json=given.json)
    return GOOD


def _check_removed(words: Sequence[str]) -> None:
    """Refuse options that earlier versions had, with what to use instead.

    Raises:
        ConfigError: there is one.
    """
    for word in words:
        if (use := REMOVED.get(word.partition("=")[0])) is not None:
            raise ConfigError(f"{word} was removed: {use}")
    if re.search(r"--table[ =]parquet\b", " ".join(words)):
        raise ConfigError(
            "--table parquet was removed: use delta (the default) or iceberg; every tool that reads"
            " Parquet has a reader for one of them"
        )


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return what reads the options of a pipeline."""
    pipeline = PIPELINES[name]
    parser = argparse.ArgumentParser(
        prog=f"cometmq pipeline {name}", description=pipeline.summary, allow_abbrev=False
    )
    kind: type = pipeline.settings
    texts = texts_of(kind)
    for setting in describe(kind):
        _add(parser, setting, texts[setting.name])
    common = parser.add_argument_group("every pipeline")
    common.add_argument(
        "--dry-run", action="store_true", help="Print what the run would do, and do nothing."
    )
    common.add_argument("--json", action="store_true", help="Print the result as JSON.")
    common.add_argument("--quiet", action="store_true", help="Print no progress.")
    common.add_argument("--cores", type=int, default=2, help="CPU cores for Spark (default: 2).")
    common.add_argument("--memory", default="2g", help="Memory of Spark's JVM (default: 2g).")
    common.add_argument(
        "--master", help="Address of a Spark master; without it Spark runs in this process."
    )
    return parser


def texts_of(settings: type) -> dict[str, str]:
    """Return the text of each field of a settings class, inherited fields included."""
    found: dict[str, str] = {}
    for kind in reversed(settings.__mro__[:-1]):
        found |= field_texts(kind)
    return found


def option_name(setting: Setting) -> str:
    """Return the option of a setting: ``--max-range-bytes``."""
    return "--" + setting.name.replace("_", "-")


def _add(parser: argparse.ArgumentParser, setting: Setting, text: str) -> None:
    text = text.replace("`", "").replace("%", "%%")
    if setting.kind is bool:
        parser.add_argument(
            option_name(setting), action=argparse.BooleanOptionalAction, default=None, help=text
        )
        return
    default = setting.render(setting.default())
    several = setting.kind == tuple[str, ...]
    parser.add_argument(
        option_name(setting),
        action="append" if several else "store",
        metavar=setting.name.rpartition("_")[2].upper(),
        help=f"{text} Expected: {setting.expectation}."
        + (f" Default: {default}." if default else "")
        + (" The option may be repeated." if several else ""),
    )


def settings_of(name: str, given: argparse.Namespace) -> Any:
    """Return the settings of parsed options.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    kind: type = PIPELINES[name].settings
    values = {}
    for each in describe(kind):
        if (met := getattr(given, each.name)) is not None:
            values[each.name] = _value(each, met)
    return kind(**values)


def _value(setting: Setting, met: Any) -> Any:
    if isinstance(met, bool):
        return met
    try:
        return setting.parse(";".join(met) if isinstance(met, list) else met)
    except ConfigError as problem:
        detail = str(problem).partition("=")[2]
        raise ConfigError(f"{option_name(setting)}={detail}") from None


def session(given: argparse.Namespace) -> Any:
    """Return the session of ``spark-submit`` if it started this process, else a new one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        from cometmq.spark import register

        spark = SparkSession.builder.appName("cometmq pipeline").getOrCreate()
        register(spark)
        return spark
    from cometmq.spark.sessions import local_session

    spark = local_session(cores=given.cores, memory=given.memory, master=given.master)
    if not given.master:  # a cluster also logs failures of tasks that it repeats
        jvm: Any = spark.sparkContext._jvm
        log4j = jvm.org.apache.logging.log4j
        for name in _LOGGED_BY_SPARK:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    return spark


def show(result: ArchiveResult, *, as_json: bool) -> None:
    """Print a result."""
    lost = [str(each) for each in result.lost]
    if as_json:
        print(json.dumps({**asdict(result), "lost": lost}, sort_keys=True))
        return
    print(f"rows {result.rows:,}, files {result.files:,}, bytes {result.bytes:,}")
    if result.end is not None:
        print(f"from {json.dumps(result.start)} to {json.dumps(result.end)}")
    for each in lost:
        print(f"lost: {each}")


def _is_from_spark(problem: BaseException) -> bool:
    return type(problem).__module__.partition(".")[0] in ("pyspark", "py4j")


def failure_of(problem: BaseException) -> tuple[str, str]:
    """Return the kind and the text of an exception without Spark's stacks.

    Spark's exceptions contain the stacks of Python and Java, and the plan of the query. The error
    that the driver or an executor raised is one line among them.
    """
    kind, text = type(problem).__name__, str(problem)
    if not _is_from_spark(problem):
        return kind, text
    causes = _OURS.findall(text) or _ANY.findall(text)
    if causes:
        return str(causes[-1][0]), str(causes[-1][1])
    return kind, next((line.strip() for line in text.splitlines() if line.strip()), "")
