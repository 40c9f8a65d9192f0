"""Logs for tests: stores that are filled, read as files, and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from cometmq.spark.options.logs import LogOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.schema import Column, arrow_schema, chosen, log_columns
from cometmq.spark.sources.log.batch import LogBatchReader
from cometmq.store import Appended, MessageStore
from support.stores.small_stores import LOG_FILE_BYTES, opened, put


class FilledStore:
    """A store of small files that stays open, as a broker's is."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.settings = settings
        self.store: MessageStore = opened(root, **settings)
        self.records: list[Appended] = []

    def fill(self, count: int, *, body_bytes: int = 100, queues: int = 2, **more: Any) -> None:
        """Append messages to queues in turn."""
        for number in range(len(self.records), len(self.records) + count):
            body = b"%d:" % number + b"x" * body_bytes
            self.records.append(put(self.store, body, queue_id=number % queues, **more))

    @property
    def offsets(self) -> list[int]:
        """Where the records are."""
        return [record.log_offset for record in self.records]

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self.records[-1].log_offset + self.records[-1].size_bytes

    def segment(self, number: int) -> Path:
        """The path of a log file."""
        return self.root / "commitlog" / f"{number * LOG_FILE_BYTES:020d}"

    def write(self, log_offset: int, data: bytes) -> None:
        """Change bytes of the log behind everybody's back."""
        number, position = divmod(log_offset, LOG_FILE_BYTES)
        with self.segment(number).open("r+b") as file:
            file.seek(position)
            file.write(data)

    def close(self) -> None:
        self.store.close()


def log_options(path: Path | str | None = None, **given: Any) -> LogOptions:
    """Options by their names, with ``_`` for ``.`` in them."""
    texts = {} if path is None else {"path": str(path)}
    for name, value in given.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        texts[name.replace("_", ".")] = text
    return parse_options(LogOptions, texts)


def log_reader(
    path: Path | str | None, *, columns: tuple[str, ...] = (), **given: Any
) -> LogBatchReader:
    """A reader of a batch, as Spark gets it."""
    options = log_options(path, **given)
    all_columns = log_columns(properties=options.include_properties, validate=options.validate)
    asked: tuple[Column, ...] = chosen(all_columns, columns) if columns else all_columns
    return LogBatchReader(options, asked)


def read_all(reader: LogBatchReader) -> pa.Table:
    """All rows of a batch, in the order of the log."""
    parts = reader.partitions()
    assert isinstance(parts, list), "Spark wants a list"
    parts.sort(key=lambda part: part.value.range)
    batches = [batch for part in parts for batch in reader.read(part)]
    return pa.Table.from_batches(batches, arrow_schema(reader.columns))


def rows_at(reader: LogBatchReader, column: str = "phy_offset") -> list[Any]:
    """One column of all rows."""
    found: list[Any] = read_all(reader).column(column).to_pylist()
    return found


def without_queues(root: Path, target: Path) -> Path:
    """Copy the log of a store alone, as an archive of segments has it."""
    target.mkdir()
    for path in sorted((root / "commitlog").iterdir()):
        (target / path.name).write_bytes(path.read_bytes())
    return target
