"""Tables of archives in tests: their rows through their own readers, and their maintenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cometmq.spark.archive import TableSettings


def rows_of(table: TableSettings) -> list[dict[str, Any]]:
    """Return the rows as the format's own reader returns them."""
    if table.table == "delta":
        return list(delta(table).to_pyarrow_table().to_pylist())
    return list(iceberg(table).scan().to_arrow().to_pylist())


def bodies_of(table: TableSettings) -> list[bytes]:
    return sorted(row["body"] for row in rows_of(table))


def delta(table: TableSettings) -> Any:
    import deltalake

    return deltalake.DeltaTable(table.to)


def iceberg(table: TableSettings) -> Any:
    """Return the table of the catalog in the archive's folder, as pyiceberg has it."""
    from pyiceberg.catalog import load_catalog

    folder = f"{table.to}/_iceberg"
    catalog = load_catalog("cometmq", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder)
    return catalog.load_table(table.identifier)


def files_of(table: TableSettings) -> list[Path]:
    """Return the files that the table names."""
    if table.table == "delta":
        return sorted(Path(uri) for uri in delta(table).file_uris())
    tasks = iceberg(table).scan().plan_files()
    return sorted(Path(task.file.file_path.removeprefix("file://")) for task in tasks)


def all_files(table: TableSettings) -> list[Path]:
    """Return the Parquet files that are there, whether the table names them or not."""
    return sorted(
        path for path in Path(table.to).rglob("*.parquet") if "_delta_log" not in path.parts
    )


def maintain(table: TableSettings) -> None:
    """Rewrite the files of a table into others and delete what it does not name any more."""
    if table.table == "delta":
        delta(table).optimize.compact()
        delta(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return
    rewrite_iceberg(iceberg(table))
    named = files_of(table)
    for path in all_files(table):
        if path not in named:
            path.unlink()


def rewrite_iceberg(table: Any) -> None:
    """Replace each file of an Iceberg table by one of another codec, and expire snapshots."""
    from pyiceberg.table import _parquet_files_to_data_files

    files = [task.file for task in table.scan().plan_files()]
    new = []
    for number, file in enumerate(files):
        path = Path(file.file_path.removeprefix("file://"))
        to = path.with_name(f"rewritten-{number}-{path.name}")
        pq.write_table(pq.ParquetFile(path).read(), to, compression="snappy", store_schema=False)
        new.append(str(to))
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for file in files:
            update.delete_data_file(file)
        for file in _parquet_files_to_data_files(
            table_metadata=table.metadata, file_paths=new, io=table.io
        ):
            update.append_data_file(file)
    table.refresh()
    if hasattr(table, "maintenance"):  # pyiceberg 0.9 has none
        old = [each.snapshot_id for each in table.snapshots()[:-1]]
        table.maintenance.expire_snapshots().by_ids(old).commit()
