"""The registry of pipelines: name, settings and function of each.

Each pipeline's module or package has a ``PIPELINE``. They are imported when they are asked for, so
that a list of names costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.running.runs import RunRecord
from cometmq.system.settings import setting


@dataclass(frozen=True)
class PipelineSettings:
    """What every pipeline can be told."""

    runs: str = setting("")
    """Folder of the run records. Default: ``_runs`` in the output folder of the pipeline."""
    resume: str = setting("")
    """Id of the run to resume, or ``latest``. Default: start a new run."""


@dataclass(frozen=True)
class Result:
    """What a pipeline hands back."""

    run: RunRecord
    """The record of the run."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What it found, by name: Spark data frames or Arrow tables."""
    notes: tuple[str, ...] = ()
    """Sentences for whoever started it."""
    good: bool = True
    """Whether what was examined is as it should be; the command's exit code follows from it."""


@dataclass(frozen=True)
class Pipeline:
    """One pipeline.

    ``function(spark, settings, *, progress, dry_run)`` does the work and returns a `Result`.
    """

    name: str
    """Of the command, with ``-`` between words."""
    summary: str
    """What it does, in one line."""
    settings: type[PipelineSettings]
    """A frozen dataclass of `setting` fields: the command's options."""
    function: Callable[..., Any]
    """Does the work."""


MODULES: dict[str, str] = {
    "archive": "archive",
    "archive-topics": "archive_topics",
    "verify": "verify",
}
"""Name of each pipeline and the module or package that has it."""


_PROGRAM = "run the program examples/spark/%s.py, see docs/howto/%s.md"
REMOVED: dict[str, str] = {
    "audit": "use the functions of cometmq.spark.checks, see docs/howto/compare-two-clusters.md",
    "dead-letters": _PROGRAM % ("13_dead_letters", "analyze-dead-letters"),
    "replay": _PROGRAM % ("12_replay", "replay-an-archive"),
    "trace": _PROGRAM % ("14_latency_from_traces", "measure-latency-from-traces"),
    "usage": _PROGRAM % ("11_usage", "report-usage"),
    "rebuild": "a broker that starts rebuilds the queues and the index of its store if they are"
    " deleted, see docs/howto/verify-a-store.md",
}
"""Name of each pipeline of earlier versions, and what to use instead."""


class Pipelines(Mapping[str, Pipeline]):
    """All pipelines by name; a module is imported when its pipeline is asked for."""

    def __getitem__(self, name: str) -> Pipeline:
        if name in REMOVED:
            raise ConfigError(f"the pipeline {name!r} is removed: {REMOVED[name]}")
        if name not in MODULES:
            raise ConfigError(f"no pipeline {name!r}: expected one of {', '.join(MODULES)}")
        module = import_module(f"cometmq.spark.pipelines.{MODULES[name]}")
        found: Pipeline = module.PIPELINE
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)

    def __contains__(self, name: object) -> bool:
        return name in MODULES


PIPELINES = Pipelines()
