"""Run records: what each run of a pipeline has read, done and written.

    folder of runs := <id>.jsonl per run
    file           := {"event":"begin","pipeline","id","started_ms","inputs":{}}
                      {"event":"step","step":key, ...}*
                      {"event":"end","ended_ms","status","outputs":[],"counts":{},"checksum"}?

A line is synced before the step counts as done; a last line that a crash tore off is as if it had
never been written. A run without an end, or one that failed, can be gone on with.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.model.errors import CometError, ConfigError
from cometmq.spark.pipelines.running.failures import failure_of
from cometmq.spark.pipelines.running.folders import Folder, open_folder
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

RUNNING, DONE, FAILED = "running", "done", "failed"
LATEST = "latest"


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run."""

    id: str
    """Its name, in order of time."""
    pipeline: str
    """The pipeline's name."""
    started_ms: int
    """When it began, in ms since 1970."""
    ended_ms: int | None = None
    """When it ended; None while it runs, or if it was killed."""
    status: str = RUNNING
    """``running``, ``done`` or ``failed``."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What it was told to do: the settings that say what is read and where it goes."""
    outputs: Sequence[str] = ()
    """The files, tables or topics it wrote."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What it counted: rows, bytes, files, findings."""
    checksum: str = ""
    """Of what it read or wrote; equal for runs that did the same."""
    reason: str = ""
    """Why it failed."""

    def as_row(self) -> dict[str, Any]:
        """Return it as a row of a table of runs; mappings as JSON text."""
        row = dict(self.__dict__)
        for name in ("inputs", "counts", "outputs"):
            row[name] = json.dumps(row[name], sort_keys=True)
        return row


class Run:
    """A run that is going on.

    Args:
        folder: of the run records.
        record: as it stands.
        steps: what is done already, by key.
        clock: for the time of the end.
    """

    def __init__(
        self, folder: Folder, record: RunRecord, steps: dict[str, dict[str, Any]], clock: Clock
    ) -> None:
        self._folder = folder
        self._clock = clock
        self.record = record
        self.steps = steps
        self.resumed = bool(steps)

    def step(self, key: str, **facts: Any) -> None:
        """Note that a step is done; it is on the disk when this returns."""
        self.steps[key] = facts
        self._add({"event": "step", "step": key, **facts})

    def end(
        self,
        *,
        outputs: Sequence[str] = (),
        counts: Mapping[str, int] | None = None,
        checksum: str = "",
    ) -> RunRecord:
        """Note that the run is done and return its record."""
        return self._end(DONE, list(outputs), dict(counts or {}), checksum, "")

    def fail(self, reason: str) -> RunRecord:
        """Note that the run failed and why; it can be gone on with."""
        return self._end(FAILED, [], {}, "", reason)

    def _end(
        self, status: str, outputs: list[str], counts: dict[str, int], checksum: str, reason: str
    ) -> RunRecord:
        facts = {
            "ended_ms": self._clock.now_ms(),
            "status": status,
            "outputs": outputs,
            "counts": counts,
            "checksum": checksum,
            "reason": reason,
        }
        self._add({"event": "end", **facts})
        self.record = _replaced(self.record, facts)
        return self.record

    def _add(self, line: dict[str, Any]) -> None:
        self._folder.append(_file(self.record.id), _line(line))


class Runs:
    """The runs kept in one folder.

    Args:
        place: a directory, or an address such as ``s3://bucket/runs``.
        clock: for times and names.
    """

    def __init__(self, place: str | Path, *, clock: Clock | None = None) -> None:
        self._folder = open_folder(place)
        self._clock = clock or Clock()

    def begin(self, pipeline: str, inputs: Mapping[str, Any]) -> Run:
        """Begin a run; its record is on the disk when this returns."""
        now_ms = self._clock.now_ms()
        name = f"{pipeline}-{now_ms:013d}-{secrets.token_hex(3)}"
        record = RunRecord(name, pipeline, now_ms, inputs=_plain(inputs))
        begun = {"event": "begin", "id": name, "pipeline": pipeline, "started_ms": now_ms}
        self._folder.append(_file(name), _line({**begun, "inputs": record.inputs}))
        return Run(self._folder, record, {}, self._clock)

    def resume(self, pipeline: str, inputs: Mapping[str, Any], which: str = LATEST) -> Run:
        """Go on with a run that was killed or failed.

        Args:
            pipeline: its pipeline.
            inputs: must be those it began with, lest its steps stand for other work.
            which: its id, or ``latest`` for the newest unfinished one with these inputs.

        Raises:
            ConfigError: there is none, it is done, or it began with other inputs.
        """
        wanted = _plain(inputs)
        if which == LATEST:
            return self._latest(pipeline, wanted)
        found = self._load(_file(which))
        if found is None or found.record.pipeline != pipeline:
            raise ConfigError(f"no run {which} of {pipeline} in {self._folder.place}")
        if found.record.status == DONE:
            raise ConfigError(f"run {which} is done already: there is nothing to resume")
        if dict(found.record.inputs) != wanted:
            raise ConfigError(f"run {which} began with {_different(found.record.inputs, wanted)}")
        return found

    def unfinished(self, pipeline: str, inputs: Mapping[str, Any]) -> Run | None:
        """Return the newest unfinished run with these inputs, if there is one."""
        wanted = _plain(inputs)
        for name in reversed(self._files(pipeline)):
            found = self._load(name)
            if found is not None and dict(found.record.inputs) == wanted:
                return None if found.record.status == DONE else found
        return None

    def begin_or_resume(
        self, pipeline: str, inputs: Mapping[str, Any], which: str | None = None
    ) -> Run:
        """Go on with the run that ``which`` says, or begin a new one if it says none."""
        return self.begin(pipeline, inputs) if not which else self.resume(pipeline, inputs, which)

    def all(self) -> list[RunRecord]:
        """Return the records of all runs, oldest first."""
        found = (self._load(name) for name in self._folder.names() if name.endswith(".jsonl"))
        records = [run.record for run in found if run is not None]
        return sorted(records, key=lambda record: (record.started_ms, record.id))

    def table(self) -> Any:
        """Return all runs as a ``pyarrow`` table, oldest first, for reports and for Spark."""
        import pyarrow as pa

        texts = {"id", "pipeline", "status", "inputs", "outputs", "counts", "checksum", "reason"}
        fields = [
            (each.name, pa.string() if each.name in texts else pa.int64())
            for each in dataclasses.fields(RunRecord)
        ]
        rows = [record.as_row() for record in self.all()]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields))

    def _latest(self, pipeline: str, inputs: dict[str, Any]) -> Run:
        found = self.unfinished(pipeline, inputs)
        if found is None:
            raise ConfigError(
                f"no unfinished run of {pipeline} with these settings in {self._folder.place}"
            )
        return found

    def _files(self, pipeline: str) -> list[str]:
        return [
            name
            for name in self._folder.names()
            if name.rsplit("-", 2)[0] == pipeline and name.endswith(".jsonl")
        ]

    def _load(self, name: str) -> Run | None:
        data = self._folder.read(name)
        lines = list(_lines(data or b"", name))
        if not lines or lines[0].get("event") != "begin":
            return None
        if data is not None and not data.endswith(b"\n"):
            self._folder.write(name, data[: data.rfind(b"\n") + 1])
        return self._run_of(lines)

    def _run_of(self, lines: list[dict[str, Any]]) -> Run:
        first = lines[0]
        record = RunRecord(
            first["id"], first["pipeline"], first["started_ms"], inputs=first["inputs"]
        )
        steps: dict[str, dict[str, Any]] = {}
        for line in lines[1:]:
            if line["event"] == "step":
                record = dataclasses.replace(record, status=RUNNING, ended_ms=None, reason="")
                steps[line["step"]] = {k: v for k, v in line.items() if k not in ("event", "step")}
            elif line["event"] == "end":
                facts = {key: value for key, value in line.items() if key != "event"}
                record = _replaced(record, facts)
        run = Run(self._folder, record, steps, self._clock)
        run.resumed = True
        return run


@contextmanager
def recorded(run: Run) -> Iterator[Run]:
    """Note in the run's record why the block failed, if it does."""
    try:
        yield run
    except BaseException as problem:
        try:
            run.fail(str(failure_of(problem))[:2000])
        except OSError as second:
            log.warning("run record not written id=%s error=%s", run.record.id, second)
        raise


class RunError(CometError):
    """A pipeline cannot go on; what it did so far is in its run record."""


def _replaced(record: RunRecord, facts: Mapping[str, Any]) -> RunRecord:
    return RunRecord(**{**record.__dict__, **facts})


def _file(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is not the id of a run")
    return f"{name}.jsonl"


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _lines(data: bytes, name: str) -> Iterator[dict[str, Any]]:
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as problem:
            raise RunError(f"{name} line {number}: met no JSON: {problem}") from problem


def _plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as they come back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(inputs), sort_keys=True, default=str))
    return plain


def _different(met: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*met, *wanted} if met.get(name) != wanted.get(name))
    return ", ".join(f"{name}={met.get(name)!r} instead of {wanted.get(name)!r}" for name in names)
