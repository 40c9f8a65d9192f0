"""Tables in object storage: an archive grows, and of two commits at the same time one is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.archive import ArchiveLogSettings, archive_log, archived_to, tables
from cometmq.spark.errors import ConflictError, PlaceError
from support.spark.log_files import FilledStore
from support.spark.object_storage import BUCKET, KEYS, ObjectStorage, object_storage


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "bucket").mkdir()
    with object_storage(tmp_path / "bucket") as server:
        yield server
    assert server.asked_by <= {KEYS["AWS_ACCESS_KEY_ID"]}


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    store = FilledStore(tmp_path / "store")
    store.fill(120)
    yield store
    store.close()


@pytest.fixture(params=["delta", "iceberg"])
def settings(
    request: pytest.FixtureRequest, storage: ObjectStorage, filled: FilledStore, tmp_path: Path
) -> ArchiveLogSettings:
    made = ArchiveLogSettings(store=str(filled.root), broker_name="b", range_bytes=8_000)
    if request.param == "delta":
        return replace(made, to=storage.url("archive"))
    pytest.importorskip("pyiceberg")
    host, port = storage.server_address[:2]
    properties = (
        f"uri=sqlite:///{tmp_path}/catalog.db",
        f"warehouse=s3://{BUCKET}/warehouse",
        f"s3.endpoint=http://{host}:{port}",
        "s3.region=us-east-1",
    )
    return replace(made, table="iceberg", catalog_options=properties)


def test_an_archive_is_continued_in_the_bucket(
    settings: ArchiveLogSettings, storage: ObjectStorage, filled: FilledStore
) -> None:
    assert archive_log(None, settings).rows == 120
    assert archive_log(None, settings).rows == 0
    filled.fill(50)
    result = archive_log(None, settings)
    assert (result.rows, result.end) == (50, archived_to(settings, "b"))
    table = tables.open_table(settings, create=False)
    names = {file.uri.removeprefix(f"s3://{BUCKET}/") for file in table.files()}
    assert names == {
        path.relative_to(storage.root).as_posix() for path in storage.root.rglob("*.parquet")
    }


def test_another_log_is_refused_by_the_rows_in_the_bucket(
    settings: ArchiveLogSettings, tmp_path: Path
) -> None:
    archive_log(None, settings)
    other = FilledStore(tmp_path / "other")
    other.fill(300, body_bytes=99)
    with pytest.raises(PlaceError, match="is not the one that"):
        archive_log(None, replace(settings, store=str(other.root)))
    other.close()


def test_of_two_commits_at_the_same_time_one_is_made(
    settings: ArchiveLogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket creates an object only if there is none: the commit file of a version."""
    one = tables.open_table(settings, create=True)
    two = tables.open_table(settings, create=True)
    check, done = tables.ArchiveTable.check, [False]

    def overtaken(*args: object) -> None:
        check(*args)  # type: ignore[arg-type]
        if not done[0]:
            done[0] = True
            one.commit([], "a", 10, None)

    monkeypatch.setattr(tables.ArchiveTable, "check", overtaken)
    with pytest.raises(ConflictError, match="met a at 10, expected None"):
        two.commit([], "a", 5, None)
    assert one.committed("a") == two.committed("a") == 10


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="met a password in the URL"):
        tables.DeltaTable("s3://me:secret@bucket/archive", create=True)
