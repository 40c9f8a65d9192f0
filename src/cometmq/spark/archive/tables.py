"""The table that is an archive: in the format of Delta or of Iceberg, without a jar.

A commit adds files, and stores with them how far an application has come: a log's physical offset,
or the batch of a streaming query. Both are seen together or not at all. A commit expects the value
that its run has read. If another run has committed since, it adds nothing and raises ConflictError.
A commit that only meets the table's own maintenance is repeated.

    Delta    application transaction ``cometmq.archived.<broker or query>``
    Iceberg  table property of the same name
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from cometmq.model.errors import ConfigError
from cometmq.spark.archive.data_files import COLUMNS, NEW_FILE, NO_STATISTICS, Create, DataFile
from cometmq.spark.errors import ConflictError, OptionError, PlaceError
from cometmq.spark.logs.files import filesystem_of, is_remote
from cometmq.spark.schema import arrow_schema
from cometmq.system.platforms import SYSTEM
from cometmq.system.settings import setting

DELTA, ICEBERG = "delta", "iceberg"
COMMITS_MAX = 5
"""Attempts to commit while the table's maintenance commits too."""
_PARTITIONS = ["topic", "date"]
_OUR_FILE = re.compile(rf"(.*/)?({NEW_FILE}-[0-9a-f]{{32}}|.*-[0-9]{{20}}-[0-9]{{20}})\.parquet")
"""Files of this version and of the versions before, which have the column ``topic``."""


@dataclass(frozen=True)
class TableSettings:
    """The table of an archive."""

    to: str = setting("")
    """Folder of the archive: a directory that all executors see, or an address such as
    ``s3://bucket/archive``. Not needed for an Iceberg table of a catalog.
    """
    table: str = setting(DELTA, choices=(DELTA, ICEBERG))
    """Table format: ``delta`` or ``iceberg``."""
    catalog: str = setting("")
    """Iceberg's catalog: its name in pyiceberg's configuration, or its address. Default: an SQLite
    file in the archive's folder.
    """
    catalog_options: tuple[str, ...] = setting(())
    """Properties of Iceberg's catalog, each ``name=value``, for example ``warehouse=s3://bucket``."""
    identifier: str = setting("archive.messages")
    """Namespace and name of the Iceberg table in its catalog."""


class StoredFile(NamedTuple):
    """One file of a table."""

    uri: str
    topic: str | None
    """The topic of all its rows, where the table says so."""
    has_topic: bool
    """Whether the column ``topic`` is in the file. Delta's tools leave out partition columns."""
    newest_ms: int | None
    """About the newest store time; None where the table does not say."""
    phy_max: int | None
    """The highest physical offset, at least; None where the table does not say."""
    has_deletes: bool
    """Whether the table marks some of its rows as deleted."""


class Chosen(NamedTuple):
    """The messages whose files are wanted; all by default."""

    topics: Collection[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    broker: str | None = None


ALL = Chosen()


class ArchiveTable(ABC):
    """A table of messages."""

    place: str
    """Its path, address or identifier, for messages."""
    create: Create
    """Opens a new file; it can be pickled."""

    @abstractmethod
    def committed(self, application: str) -> int | None:
        """Return how far an application has come; None if it has never committed."""

    @abstractmethod
    def commit(
        self, files: Sequence[DataFile], application: str, value: int, expected: int | None
    ) -> None:
        """Add files and store how far the application has come, in one commit.

        Args:
            files: the new files; a commit without files only stores the value.
            application: its name.
            value: how far it has come.
            expected: what the table must say before.

        Raises:
            ConflictError: another run has committed since, so nothing was added.
        """

    @abstractmethod
    def files(self, chosen: Chosen = ALL) -> list[StoredFile]:
        """Return the files that can have rows of some messages."""

    @abstractmethod
    def open(self, file: StoredFile) -> Any:
        """Open one of its files for reading by pyarrow."""

    def check(self, application: str, expected: int | None) -> None:
        """Raise ConflictError if another run has committed."""
        if (met := self.committed(application)) != expected:
            raise ConflictError(
                f"{self.place}: another run has committed: met {application} at {met}, expected"
                f" {expected}; this run added nothing since; start it again when the other one has"
                " ended"
            )

    def conflict(self, problem: Exception) -> ConflictError:
        """Return the error of a commit that other programs' commits have prevented."""
        return ConflictError(
            f"{self.place}: other programs committed at the same time ({problem}); this run added"
            " nothing since; start it again"
        )


def open_table(
    settings: TableSettings, *, create: bool, version: int | None = None
) -> ArchiveTable:
    """Return the table of an archive.

    Args:
        settings: where it is.
        create: whether to create it if it does not exist.
        version: an older version of a Delta table, or a snapshot of an Iceberg table.

    Raises:
        ConfigError: a setting is missing, packages are, or the folder is another kind of archive.
        PlaceError: there is no table.
    """
    try:
        if settings.table == ICEBERG:
            return IcebergTable(settings, create=create, snapshot=version)
        return DeltaTable(settings.to, create=create, version=version)
    except ModuleNotFoundError as problem:
        raise ConfigError(
            f"table={settings.table} needs {problem.name}: install CometMQ with the extra"
            f" '{'iceberg' if settings.table == ICEBERG else 'spark'}'"
        ) from problem


class DeltaTable(ArchiveTable):
    """A Delta table in a folder; the arguments are those of `open_table`."""

    def __init__(self, place: str, *, create: bool, version: int | None = None) -> None:
        import deltalake
        import deltalake.exceptions

        if not place:
            raise ConfigError("expected to, the folder of the archive")
        self._delta = deltalake
        self.place, self._filesystem, self._root = _folder(place)
        self._options = _storage_options(place)
        try:
            self._table = self._opened(version)
        except deltalake.exceptions.TableNotFoundError as problem:
            if not create:
                raise PlaceError(
                    f"{self.place}: met no Delta table, expected an archive"
                ) from problem
            self._table = self._created()
        self.create: Create = partial(_create_file, place)

    def committed(self, application: str) -> int | None:
        """Return what the newest commit of the application says."""
        self._table.update_incremental()
        met = self._table.transaction_version(application)
        return None if met is None else int(met)

    def commit(
        self, files: Sequence[DataFile], application: str, value: int, expected: int | None
    ) -> None:
        """Add files and store the value; deltalake repeats it behind the table's maintenance."""
        self.check(application, expected)
        transaction = self._delta.Transaction(application, value)
        partitions = self._table.metadata().partition_columns
        try:
            self._table.create_write_transaction(
                [_add_action(file, partitions) for file in files],
                mode="append",
                schema=self._table.schema(),
                partition_by=partitions,
                commit_properties=self._delta.CommitProperties(app_transactions=[transaction]),
            )
        except self._delta.exceptions.CommitFailedError as problem:
            self.check(application, expected)
            raise self.conflict(problem) from problem
        if not is_remote(self._filesystem):  # deltalake leaves that to the operating system
            _sync(max(Path(self._root, "_delta_log").glob("*.json")))

    def files(self, chosen: Chosen = ALL) -> list[StoredFile]:
        """Return the files of this version."""
        deleted = set()
        if "deletionVectors" in (self._table.protocol().reader_features or ()):
            uris = pa.table(self._table.deletion_vectors())["filepath"].to_pylist()
            deleted = {uri.rpartition("/")[2] for uri in uris}
        found = []
        for row in pa.table(self._table.get_add_actions(flatten=True)).to_pylist():
            if not _can_have(row, chosen):
                continue
            topic, newest = row.get("partition.topic"), row.get("max.store_timestamp")
            name = unquote(row["path"])
            found.append(
                StoredFile(
                    uri=f"{self.place}/{name}",
                    topic=topic,
                    has_topic=topic is None or bool(_OUR_FILE.fullmatch(name)),
                    newest_ms=row["modification_time"] if newest is None else _ms(newest) + 1,
                    phy_max=row.get("max.phy_offset"),
                    has_deletes=name.rpartition("/")[2] in deleted,
                )
            )
        return found

    def open(self, file: StoredFile) -> Any:
        """Open a file through pyarrow."""
        name = file.uri.removeprefix(self.place)
        return self._filesystem.open_input_file(f"{self._root}{name}")

    def _opened(self, version: int | None = None) -> Any:
        return self._delta.DeltaTable(self.place, version, self._options)

    def _created(self) -> Any:
        if not is_remote(self._filesystem) and Path(self._root, "_manifest").is_dir():
            raise ConfigError(
                f"{self.place} is an archive of Parquet files with a manifest, which an older"
                " version wrote, expected a Delta table: use another folder"
            )
        schema = arrow_schema(COLUMNS).append(pa.field("date", pa.date32()))
        try:
            return self._delta.DeltaTable.create(
                self.place,
                schema=self._delta.Schema.from_arrow(schema),
                mode="ignore",
                partition_by=_PARTITIONS,
                storage_options=self._options,
            )
        except self._delta.exceptions.DeltaError:
            return self._opened()  # another run has created it


class IcebergTable(ArchiveTable):
    """An Iceberg table of a catalog; the arguments are those of `open_table`."""

    def __init__(
        self, settings: TableSettings, *, create: bool, snapshot: int | None = None
    ) -> None:
        from pyiceberg.catalog import load_catalog

        self._identifier = settings.identifier
        self._snapshot = snapshot
        name, properties = _catalog_of(settings)
        self._catalog = load_catalog(name, **properties)
        self.place = f"{settings.identifier} of {settings.catalog or settings.to}"
        self._table = self._loaded(create)
        self.create: Create = partial(_create_output, self._table.io, self._table.location())

    def committed(self, application: str) -> int | None:
        """Return what the table's property says."""
        self._table.refresh()
        met = self._table.properties.get(application)
        return None if met is None else int(met)

    def commit(
        self, files: Sequence[DataFile], application: str, value: int, expected: int | None
    ) -> None:
        """Add files and set the property, in one snapshot that follows the one that was read."""
        from pyiceberg.exceptions import CommitFailedException

        paths = [f"{self._table.location()}/{file.name}" for file in files]
        for _ in range(COMMITS_MAX):
            self.check(application, expected)
            try:
                with self._without_retries().transaction() as transaction:
                    if paths:
                        transaction.add_files(paths, check_duplicate_files=False)
                    else:  # a property alone would be set whatever another run has set
                        with transaction.update_snapshot().fast_append():
                            pass
                    transaction.set_properties({application: str(value)})
                return
            except CommitFailedException as problem:
                failed = problem
        raise self.conflict(failed) from failed

    def files(self, chosen: Chosen = ALL) -> list[StoredFile]:
        """Return the files of the snapshot."""
        if self._snapshot is None:
            self._table.refresh()
        found = []
        scan = self._table.scan(_row_filter(chosen), snapshot_id=self._snapshot)
        schema = scan.projection()
        for task in scan.plan_files():
            newest = _upper_bound(task.file, schema, "store_timestamp")
            found.append(
                StoredFile(
                    uri=task.file.file_path,
                    topic=None,
                    has_topic=True,
                    newest_ms=None if newest is None else newest // 1000 + 1,
                    phy_max=_upper_bound(task.file, schema, "phy_offset"),
                    has_deletes=bool(task.delete_files),
                )
            )
        return found

    def open(self, file: StoredFile) -> Any:
        """Open a file through the catalog's access."""
        return self._table.io.new_input(file.uri).open()

    def _loaded(self, create: bool) -> Any:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform

        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            if not create:
                raise PlaceError(f"{self.place}: met no table, expected an archive") from None
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        unseen = {f"write.metadata.metrics.column.{name}": "none" for name in NO_STATISTICS}
        try:
            with (
                self._catalog.create_table_transaction(
                    self._identifier, arrow_schema(COLUMNS), properties=unseen
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                spec.add_identity("topic")
                spec.add_field("store_timestamp", DayTransform(), "day")
        except TableAlreadyExistsError:  # another run has created it
            pass
        return self._catalog.load_table(self._identifier)

    def _without_retries(self) -> Any:
        """Return the table without pyiceberg's own retries, which overwrite the property.

        They repeat a commit on top of another run's, and so would add its rows a second time.
        """
        metadata = self._table.metadata
        once = {**metadata.properties, "commit.retry.num-retries": "0"}
        self._table.metadata = metadata.model_copy(update={"properties": once})
        return self._table


def _add_action(file: DataFile, partitions: Sequence[str]) -> Any:
    from deltalake.transaction import AddAction

    values = {name: {"topic": file.topic, "date": file.date}[name] for name in partitions}
    return AddAction(file.name, file.bytes, values, file.newest_ms, True, file.statistics)


def _can_have(row: dict[str, Any], chosen: Chosen) -> bool:
    """Return whether a file of a Delta table can have chosen rows, by its bounds."""
    topics, since_ms, until_ms, broker = chosen
    topic = row.get("partition.topic")
    first, last = row.get("min.store_timestamp"), row.get("max.store_timestamp")
    low, high = row.get("min.broker_name"), row.get("max.broker_name")
    return not (
        (topics and topic is not None and topic not in topics)
        or (since_ms is not None and last is not None and _ms(last) < since_ms)
        or (until_ms is not None and first is not None and _ms(first) >= until_ms)
        or (broker and low is not None and high is not None and not low <= broker <= high)
    )


def _folder(place: str) -> tuple[str, Any, str]:
    """Return a folder's address without its query, its file system and its path there."""
    if "://" not in place or place.startswith("file://"):
        place = str(Path(place.removeprefix("file://")).expanduser().absolute())
    try:
        filesystem, root = filesystem_of(place)
    except OptionError as problem:
        raise ConfigError(str(problem)) from None
    return place.partition("?")[0].rstrip("/"), filesystem, root.rstrip("/")


def _storage_options(place: str) -> dict[str, str] | None:
    """Return an address's query, which pyarrow reads, in the words of deltalake."""
    given = dict(parse_qsl(place.partition("?")[2])) if "://" in place else {}
    options = {}
    if "region" in given:
        options["aws_region"] = given["region"]
    if "endpoint_override" in given:
        scheme = given.get("scheme", "https")
        options["aws_endpoint"] = f"{scheme}://{given['endpoint_override']}"
        options["aws_allow_http"] = str(scheme == "http").lower()
    return options or None


@contextmanager
def _create_file(place: str, name: str) -> Iterator[Any]:
    """Give a new file below a folder; on a disk it is synced when the context ends."""
    _, filesystem, root = _folder(place)
    path = Path(root, name)
    if not is_remote(filesystem):
        path.parent.mkdir(parents=True, exist_ok=True)
    with filesystem.open_output_stream(str(path)) as file:
        yield file
    if not is_remote(filesystem):
        _sync(path)


@contextmanager
def _create_output(io: Any, location: str, name: str) -> Iterator[Any]:
    """Give a new file of an Iceberg table."""
    uri = f"{location}/{name}"
    with io.new_output(uri).create(overwrite=True) as file:
        yield file
    path = Path(uri.removeprefix("file://"))
    if path.is_absolute():
        _sync(path)


def _sync(path: Path) -> None:
    """Sync a file of this machine, and its entry in its directory."""
    number = os.open(path, os.O_RDONLY)
    try:
        SYSTEM.sync_file(number)
    finally:
        os.close(number)
    SYSTEM.sync_directory(path.parent)


def _catalog_of(settings: TableSettings) -> tuple[str, dict[str, str]]:
    """Return the name and the properties for pyiceberg's `load_catalog`."""
    given = dict(pair.partition("=")[::2] for pair in settings.catalog_options)
    if settings.catalog and "://" not in settings.catalog:
        return settings.catalog, given
    folder = settings.to
    if settings.catalog:
        warehouse = {"warehouse": f"{folder}/_iceberg"} if folder else {}
        return "cometmq", {"uri": settings.catalog, **warehouse, **given}
    if given:
        return "cometmq", given
    folder = folder.removeprefix("file://")
    if not folder or "://" in folder:
        raise ConfigError(
            f"an Iceberg table at {folder or 'no folder'} needs catalog, the name or address of"
            " its catalog, or catalog_options, the catalog's properties"
        )
    warehouse_folder = Path(folder).expanduser().absolute() / "_iceberg"
    warehouse_folder.mkdir(parents=True, exist_ok=True)
    address = f"sqlite:///{warehouse_folder}/catalog.db"
    return "cometmq", {"uri": address, "warehouse": str(warehouse_folder)}


def _row_filter(chosen: Chosen) -> Any:
    """Return the condition of pyiceberg."""
    from pyiceberg import expressions

    e: Any = expressions
    topics, since_ms, until_ms, broker = chosen
    found = e.In("topic", topics) if topics else e.AlwaysTrue()
    if broker:
        found = e.And(found, e.EqualTo("broker_name", broker))
    if since_ms is not None:
        found = e.And(found, e.GreaterThanOrEqual("store_timestamp", _iso(since_ms)))
    if until_ms is not None:
        found = e.And(found, e.LessThan("store_timestamp", _iso(until_ms)))
    return found


def _upper_bound(file: Any, schema: Any, name: str) -> int | None:
    from pyiceberg.conversions import from_bytes

    field = schema.find_field(name)
    bound = (file.upper_bounds or {}).get(field.field_id)
    return None if bound is None else int(from_bytes(field.field_type, bound))


def _iso(ms: int) -> str:
    return str(pa.scalar(ms, pa.timestamp("ms", "UTC")).as_py().isoformat())


def _ms(when: Any) -> int:
    return int(when.timestamp() * 1000)
