"""Whatever differs between a log and its archive is found."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import Manifest, marked_to
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.registry import Result
from cometmq.spark.pipelines.verify import VerifySettings, verify
from support.stores.small_stores import opened, put

COUNT = 300
UNIT = struct.Struct(">qiq")


def store_settings(store: Path, **more: Any) -> VerifySettings:
    return VerifySettings(store=str(store), **more)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store of three queues with two keys each message."""
    made = opened(tmp_path / "store")
    for number in range(COUNT):
        put(
            made,
            b"%d" % number,
            topic=("a", "b")[number % 2],
            queue_id=number % 3,
            properties={"TAGS": f"t{number % 5}", "KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"},
        )
    made.close()
    return tmp_path / "store"


def kinds(result: Result) -> dict[str, int]:
    """How many findings of each kind."""
    found: dict[str, int] = {}
    for row in result.tables["findings"].to_pylist():
        found[row["finding"]] = found.get(row["finding"], 0) + row["count"]
    return found


@pytest.fixture
def archived(store: Path, tmp_path: Path) -> VerifySettings:
    settings = ArchiveSettings(
        store=str(store), broker_name="b", to=str(tmp_path / "archive"), range_bytes=8192
    )
    archive(None, settings)
    return store_settings(store, archive=str(tmp_path / "archive"), broker_name="b")


def entries_of(settings: VerifySettings) -> Any:
    return Manifest(open_folder(settings.archive)).entries()


def test_an_archive_that_equals_its_log_is_marked(archived: VerifySettings) -> None:
    assert marked_to(entries_of(archived), 0) == 0
    result = verify(None, archived)
    assert result.good
    entries = entries_of(archived)
    assert marked_to(entries, 0) == entries[-1].end
    assert result.run.counts["archive_rows"] == COUNT
    assert verify(None, archived).run.counts["archive_ranges"] == 0


def test_an_archive_that_differs_is_not_marked(archived: VerifySettings) -> None:
    file = entries_of(archived)[1].files[0]
    path = Path(archived.archive) / file.name
    rows = pq.ParquetFile(path).read()
    bodies = [b"other", *rows["body"].to_pylist()[1:]]
    pq.write_table(rows.set_column(rows.schema.get_field_index("body"), "body", [bodies]), path)
    result = verify(None, archived)
    assert kinds(result)["archive-differs"] == entries_of(archived)[1].rows
    marks = [entry.verified_ms is not None for entry in entries_of(archived)]
    assert marks == [number != 1 for number in range(len(marks))]
    assert marked_to(entries_of(archived), 0) == entries_of(archived)[0].end


def test_a_file_that_was_cut_is_found(archived: VerifySettings) -> None:
    path = Path(archived.archive) / entries_of(archived)[0].files[0].name
    path.write_bytes(path.read_bytes()[:-100])
    assert "archive-differs" in kinds(verify(None, archived))


def test_ranges_whose_log_is_gone_are_not_marked(archived: VerifySettings) -> None:
    first = sorted((Path(archived.store) / "commitlog").iterdir())[0]
    first.unlink()
    result = verify(None, archived)
    assert kinds(result)["archive-alone"] > 0
    assert entries_of(archived)[0].verified_ms is None
    assert entries_of(archived)[-1].verified_ms is not None


def test_a_store_made_anew_is_not_called_equal_to_its_archive(archived: VerifySettings) -> None:
    """Also if all ranges were marked before: nothing is left to compare then."""
    assert verify(None, archived).good
    shutil.rmtree(archived.store)
    made = opened(Path(archived.store))
    put(made, b"new")
    made.close()
    result = verify(None, archived)
    assert kinds(result)["archive-of-another-log"] == 1
    assert not result.good


def test_nothing_is_compared_with_another_log_nor_marked(store: Path, tmp_path: Path) -> None:
    """Ranges without rows are equal to those of any log."""
    to = str(tmp_path / "archive")
    given = ArchiveSettings(
        store=str(store), broker_name="broker-a", to=to, range_bytes=4096, topics=("none",)
    )
    archive(None, given)
    asked = store_settings(store, archive=to, broker_name="broker-a")
    shutil.rmtree(store)
    made = opened(store)
    for number in range(COUNT // 2):
        put(made, b"new %d" % number)
    made.close()
    result = verify(None, asked)
    assert [kind for kind in kinds(result) if kind.startswith("archive")] == [
        "archive-of-another-log"
    ]
    assert not [entry for entry in entries_of(asked) if entry.verified_ms is not None]


def test_verify_needs_a_store_and_an_archive(store: Path) -> None:
    with pytest.raises(ConfigError, match="`cometmq store verify DIR`"):
        verify(None, VerifySettings(store=str(store)))


def test_a_dry_run_compares_nothing(archived: VerifySettings) -> None:
    result = verify(None, archived, dry_run=True)
    assert result.run.status == "dry run"
    assert not [entry for entry in entries_of(archived) if entry.verified_ms is not None]


def test_an_archive_of_topics_is_not_compared_with_a_log(store: Path, tmp_path: Path) -> None:
    Manifest(open_folder(tmp_path / "archive")).settle({"table": "topics"})
    asked = store_settings(store, archive=str(tmp_path / "archive"))
    with pytest.raises(ConfigError, match="not archived from a log"):
        verify(None, asked)
