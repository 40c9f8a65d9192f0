"""Runs a pipeline as a command: options, a session, progress, a result, an exit code.

    0 done and good · 1 done, and what was examined is not as it should be · 2 misused · 3 failed

The same command is reached as ``cometmq pipeline NAME``, as
``python -m cometmq.spark.pipelines.NAME`` and by ``spark-submit``, which brings its own session.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cometmq.model.errors import CometError, ConfigError
from cometmq.spark.pipelines.running.failures import failure_of, is_from_spark
from cometmq.spark.pipelines.running.progress import Progress, Silent, shown
from cometmq.spark.pipelines.running.registry import MODULES, PIPELINES, Pipeline, Result
from cometmq.spark.sources.losses import CONTINUES
from cometmq.system.settings import Setting, describe, field_texts
from cometmq.system.standard_streams import open_closed_streams

GOOD, BAD, MISUSED, FAILED = 0, 1, 2, 3
REPORTED = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
)
"""Spark's loggers of errors that a driver raises too, with a stack of a hundred lines."""
EXTRA_MODULES = ("pyspark", "pyarrow", "py4j", "numpy")
ROWS_SHOWN = 20
_LIST = tuple[str, ...]


def main(name: str | None = None, arguments: Sequence[str] | None = None) -> int:
    """Run a pipeline as its command line says; return the exit code.

    Args:
        name: of the pipeline; the first argument if None.
        arguments: those behind it; of this process if None.
    """
    open_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(name, words)
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.partition(".")[0] not in EXTRA_MODULES:
            raise
        return _complain(
            f"pipelines need {problem.name}: install CometMQ with the extra 'spark'", MISUSED
        )
    except Exception as problem:
        if not isinstance(problem, CometError) and not is_from_spark(problem):
            raise
        failure = failure_of(problem)
        text = failure.text if failure.wrong_usage else str(failure)
        text = _in_options_of(name or words[0], text)
        return _complain(text, MISUSED if failure.wrong_usage else FAILED)


def _run(name: str | None, words: list[str]) -> int:
    if name is None:
        if not words or words[0] in ("-h", "--help", "--list"):
            print("\n".join(listing()))
            return GOOD
        name, words = words[0], words[1:]
    pipeline = PIPELINES[name]
    given = parser_of(pipeline).parse_args(words)
    settings = settings_of(pipeline, given)
    spark = session(given)
    progress: Progress = Silent() if given.quiet else shown()
    result = pipeline.function(spark, settings, progress=progress, dry_run=given.dry_run)
    show(result, as_json=given.json)
    return GOOD if getattr(result, "good", True) else BAD


def listing() -> Iterator[str]:
    """Yield a line about each pipeline."""
    yield "Pipelines (each has --help):"
    for name in MODULES:
        yield f"  {name:<14} {PIPELINES[name].summary}"


def parser_of(pipeline: Pipeline) -> argparse.ArgumentParser:
    """Return what reads the options of a pipeline."""
    parser = argparse.ArgumentParser(
        prog=f"cometmq pipeline {pipeline.name}",
        description=pipeline.summary,
        allow_abbrev=False,
    )
    texts = texts_of(pipeline.settings)
    kind: type = pipeline.settings
    for setting in describe(kind):
        _add(parser, setting, texts[setting.name])
    common = parser.add_argument_group("every pipeline")
    common.add_argument(
        "--dry-run", action="store_true", help="Print what the run would do, and do nothing."
    )
    common.add_argument("--json", action="store_true", help="Print the run record as JSON.")
    common.add_argument("--quiet", action="store_true", help="Show no progress.")
    common.add_argument("--cores", type=int, default=2, help="CPU cores for Spark (default: 2).")
    common.add_argument("--memory", default="2g", help="Memory of Spark's JVM (default: 2g).")
    common.add_argument(
        "--master", help="Address of a Spark master; without it Spark runs in this process."
    )
    return parser


def texts_of(settings: type) -> dict[str, str]:
    """Return what each field of a settings class means, those it inherits included."""
    found: dict[str, str] = {}
    for kind in reversed(settings.__mro__[:-1]):
        found |= field_texts(kind)
    return found


def settings_of(pipeline: Pipeline, given: argparse.Namespace) -> Any:
    """Return the settings that parsed options stand for.

    Raises:
        ConfigError: a value is of the wrong kind, or settings contradict each other.
    """
    values: dict[str, Any] = {}
    kind: type = pipeline.settings
    for setting in describe(kind):
        met = getattr(given, setting.name)
        if met is not None:
            values[setting.name] = _value(setting, met)
    return pipeline.settings(**values)


def option_name(setting: Setting) -> str:
    """Return the option of a setting: ``--max-range-bytes``."""
    return "--" + setting.name.replace("_", "-")


def session(given: argparse.Namespace) -> Any:
    """Return the session of ``spark-submit`` if it started us, else one of our own."""
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
        for name in REPORTED:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    return spark


def show(result: Result, *, as_json: bool) -> None:
    """Print what a pipeline hands back."""
    if as_json:
        document = {**asdict(result.run), "notes": list(result.notes), "good": result.good}
        print(json.dumps(document, sort_keys=True, default=str))
        return
    for note in result.notes:
        print(note)
    for name, table in result.tables.items():
        print(f"\n{name}:")
        print("\n".join(_rows(table)))
    print(f"\nrun {result.run.id}: {result.run.status}", end="")
    counts = ", ".join(f"{name} {count:,}" for name, count in result.run.counts.items())
    print(f", {counts}" if counts else "")
    for output in result.run.outputs:
        print(f"wrote {output}")


def _add(parser: argparse.ArgumentParser, setting: Setting, text: str) -> None:
    name = option_name(setting)
    text = text.replace("`", "").replace("%", "%%")
    if setting.kind is bool:
        parser.add_argument(
            name, dest=setting.name, action=argparse.BooleanOptionalAction, default=None, help=text
        )
        return
    default = "" if setting.depends_on_machine else setting.render(setting.default())
    words = f"{text} Expected: {setting.expectation}." + (f" Default: {default}." * bool(default))
    several = setting.kind == _LIST
    parser.add_argument(
        name,
        dest=setting.name,
        action="append" if several else "store",
        metavar=setting.name.rpartition("_")[2].upper(),
        help=words + " The option may be repeated." * several,
    )


def _value(setting: Setting, met: Any) -> Any:
    if isinstance(met, bool):
        return met
    text = ";".join(met) if isinstance(met, list) else met
    try:
        return setting.parse(text)
    except ConfigError as problem:
        detail = str(problem).partition("=")[2]
        raise ConfigError(f"{option_name(setting)}={detail}") from None


def _rows(table: Any) -> Iterator[str]:
    """Yield the first rows of a table as text."""
    arrow = table.limit(ROWS_SHOWN).toArrow() if hasattr(table, "toArrow") else table
    rows = arrow.slice(0, ROWS_SHOWN).to_pylist()
    names = arrow.column_names
    cells = [[_cell(row[name]) for name in names] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(names)]
    for row in [names, *cells]:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    left = arrow.num_rows - len(rows)
    if left > 0:
        yield f"... and {left:,} more"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _in_options_of(name: str, text: str) -> str:
    """Replace the reader's option in advice about missing messages by the pipeline's option."""
    if name not in PIPELINES:
        return text
    kind: type = PIPELINES[name].settings
    names = {setting.name for setting in describe(kind)}
    if "fail_on_data_loss" in names:
        return text.replace(CONTINUES, "--no-fail-on-data-loss")
    return text.replace(CONTINUES, f"--options {CONTINUES}") if "options" in names else text


def _complain(reason: object, code: int) -> int:
    print(f"cometmq: {reason}", file=sys.stderr)
    return code
