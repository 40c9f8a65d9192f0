"""Tables over the files of an archive: the manifest only, Delta, or Iceberg.

The files are the same for all; a table learns of those of several ranges in one commit of its own,
together with the log offset up to which it now goes. A commit that is tried again, because the
driver was killed before the manifest said so, finds that offset and does nothing. A commit fails if
another run has committed since the table was read, or up to an offset within a range. So each
record is in the table once. ``delta`` needs ``cometmq[delta]``, ``iceberg`` needs
``cometmq[iceberg]``; no jar and no Spark take part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Entry
from cometmq.spark.pipelines.running.folders import Folder
from cometmq.spark.pipelines.running.runs import RunError
from cometmq.spark.schema import arrow_schema, log_columns

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
TABLES = (PARQUET, DELTA, ICEBERG)
_RETRIES = "commit.retry.num-retries"
"""A property of Iceberg tables. pyiceberg would repeat a commit on top of another run's."""


class ArchiveTable(Protocol):
    """What learns of the files of archived ranges."""

    def committed(self, broker: str) -> int:
        """Return the log offset up to which the table has a broker's files; -1 for nothing."""

    def commit(self, broker: str, entries: Sequence[Entry]) -> None:
        """Take the files of ranges, in the order of the log; those it has are passed over.

        Raises:
            RunError: another run commits to the table at the same time.
        """


def table_of(kind: str, folder: Folder, catalog: str) -> ArchiveTable:
    """Return the table of an archive.

    Raises:
        ConfigError: what it needs is not installed.
    """
    if kind == DELTA:
        return DeltaArchive(folder.place)
    if kind == ICEBERG:
        return IcebergArchive(folder.place, catalog)
    return PlainArchive()


class PlainArchive:
    """No table: whoever reads goes by the manifest."""

    def committed(self, broker: str) -> int:
        """Return -1: nothing is kept here."""
        return -1

    def commit(self, broker: str, entries: Sequence[Entry]) -> None:
        """Do nothing."""


class DeltaArchive:
    """A Delta table in the archive's folder, by topic and day.

    Args:
        place: the folder.
    """

    def __init__(self, place: str) -> None:
        try:
            import deltalake
            import deltalake.exceptions
        except ImportError as problem:
            raise ConfigError(
                "Delta tables need more packages: install CometMQ with the extra 'delta'"
            ) from problem
        self._delta = deltalake
        self._place = place

    def committed(self, broker: str) -> int:
        """Return what the newest commit of a broker's files says."""
        if not self._delta.DeltaTable.is_deltatable(self._place):
            return -1
        version = self._delta.DeltaTable(self._place).transaction_version(_application(broker))
        return -1 if version is None else int(version)

    def commit(self, broker: str, entries: Sequence[Entry]) -> None:
        """Add the files in one commit that also carries the log offset."""
        table = self._opened()
        known = table.transaction_version(_application(broker))
        new = _new(entries, -1 if known is None else int(known), self._place)
        if not new:
            return
        transaction = self._delta.Transaction(_application(broker), new[-1].end)
        try:
            table.create_write_transaction(
                [self._action(file) for entry in new for file in entry.files],
                mode="append",
                schema=self._schema(),
                partition_by=["topic", "date"],
                commit_properties=self._delta.CommitProperties(app_transactions=[transaction]),
            )
        except self._delta.exceptions.CommitFailedError as problem:
            raise _overtaken(self._place, problem) from problem

    def _opened(self) -> Any:
        return self._delta.DeltaTable.create(
            self._place,
            schema=self._schema(),
            mode="ignore",
            partition_by=["topic", "date"],
        )

    @staticmethod
    def _schema() -> Any:
        import deltalake
        import pyarrow as pa

        fields = arrow_schema(log_columns(properties=True, validate=False))
        return deltalake.Schema.from_arrow(fields.append(pa.field("date", pa.date32())))

    def _action(self, file: ArchiveFile) -> Any:
        from deltalake.transaction import AddAction

        stats = json.dumps({"numRecords": file.rows})
        values = {"topic": file.topic, "date": file.date}
        return AddAction(file.name, file.bytes, values, file.max_store_ms, True, stats)


class IcebergArchive:
    """An Iceberg table ``archive.messages`` over the archive's files.

    Args:
        place: the archive's folder.
        catalog: address of an SQL catalog; an SQLite file in the folder if empty.
    """

    def __init__(self, place: str, catalog: str) -> None:
        try:
            from pyiceberg.catalog.sql import SqlCatalog
            from pyiceberg.exceptions import CommitFailedException
        except ImportError as problem:
            raise ConfigError(
                "Iceberg tables need more packages: install CometMQ with the extra 'iceberg'"
            ) from problem
        self._place = place
        self._failed = CommitFailedException
        if "://" in place and not catalog:
            raise ConfigError(
                f"an Iceberg table at {place} needs catalog, an SQL catalog's address"
            )
        address = catalog or f"sqlite:///{place}/_iceberg/catalog.db"
        if not catalog:
            (Path(place) / "_iceberg").mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog("cometmq", **{"uri": address, "warehouse": f"{place}/_iceberg"})

    def committed(self, broker: str) -> int:
        """Return what the table's property of the broker says."""
        return int(self.table().properties.get(_application(broker), -1))

    def commit(self, broker: str, entries: Sequence[Entry]) -> None:
        """Add the files and set the property in one commit."""
        table = self.table()
        new = _new(entries, int(table.properties.get(_application(broker), -1)), self._place)
        if not new:
            return
        paths = [f"{self._place}/{file.name}" for entry in new for file in entry.files]
        try:
            with table.transaction() as transaction:
                if paths:
                    transaction.add_files(paths)
                transaction.set_properties({_application(broker): str(new[-1].end)})
        except self._failed as problem:
            raise _overtaken(self._place, problem) from problem

    def table(self) -> Any:
        """Return the table as pyiceberg has it, made if it is not there."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._catalog.load_table("archive.messages")
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists("archive")
            schema = arrow_schema(log_columns(properties=True, validate=False))
            table = self._catalog.create_table("archive.messages", schema)
        if table.properties.get(_RETRIES) != "0":
            with table.transaction() as transaction:
                transaction.set_properties({_RETRIES: "0"})
        if table.spec().is_unpartitioned():
            self._divide(table)
        return table

    @staticmethod
    def _divide(table: Any) -> None:
        """Divide an empty table by topic and day."""
        from pyiceberg.transforms import DayTransform

        with table.update_spec() as update:
            update.add_identity("topic")
            update.add_field("store_timestamp", DayTransform(), "day")


def _application(broker: str) -> str:
    return f"cometmq.archived.{broker}"


def _new(entries: Sequence[Entry], known_to: int, place: str) -> list[Entry]:
    new = [entry for entry in entries if entry.end > known_to]
    if new and new[0].start < known_to:
        raise RunError(
            f"table at {place} goes up to byte {known_to}, within {new[0].range}: another run"
            " archives other ranges; start this run again when the other one has ended"
        )
    return new


def _overtaken(place: str, problem: Exception) -> RunError:
    return RunError(
        f"table at {place}: another run committed at the same time ({problem}); start this run"
        " again when the other one has ended"
    )
