"""Folders on disks and behind pyarrow keep one promise: a file is whole, or it is not there."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.running.folders import (
    CLAIM_S,
    DiskFolder,
    Folder,
    RemoteFolder,
    divided,
    extended,
    open_folder,
)
from support.stores.small_stores import opened, put


@pytest.fixture(params=["disk", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "disk":
        return DiskFolder(tmp_path / "root")
    return RemoteFolder(fs.LocalFileSystem(), str(tmp_path / "root"), f"file://{tmp_path}/root")


def test_what_is_written_is_read(folder: Folder) -> None:
    folder.write("a/b=%25/x.json", b"one")
    folder.write("a/b=%25/x.json", b"two")
    assert folder.read("a/b=%25/x.json") == b"two"
    with folder.reading("a/b=%25/x.json") as file:
        assert file.read() == b"two"
    assert folder.read("a/none") is None


def test_a_file_is_created_once(folder: Folder) -> None:
    assert folder.create("a/x", b"one")
    assert not folder.create("a/x", b"two")
    assert folder.read("a/x") == b"one"
    assert folder.names() == ["a/x"]


def test_of_several_that_create_a_file_one_at_most_does(folder: Folder) -> None:
    """On a disk one; in object storage those that see each other may all give up."""
    together = Barrier(8)

    def create(number: int) -> bool:
        together.wait(60)
        return folder.create("x", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(8)))
    assert sum(created) <= 1
    if isinstance(folder, DiskFolder):
        assert sum(created) == 1
    met = folder.read("x")
    assert met == (b"%d" % created.index(True) if any(created) else None)


def test_a_claim_keeps_others_away_until_it_is_old(tmp_path: Path) -> None:
    """A process may be killed between its claim and the object."""
    folder = RemoteFolder(fs.LocalFileSystem(), str(tmp_path), f"file://{tmp_path}")
    claim = tmp_path / "a" / ".claims" / ".x.of-another"
    claim.parent.mkdir(parents=True)
    claim.touch()
    assert not folder.create("a/x", b"one")
    assert folder.create("a/y", b"of another name")
    old_s = claim.stat().st_mtime - 2 * CLAIM_S
    os.utime(claim, (old_s, old_s))
    assert folder.create("a/x", b"one")


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_is_created_once_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    folder = DiskFolder(tmp_path)
    assert folder.create("a/x", b"one")
    assert not folder.create("a/x", b"two")
    assert folder.read("a/x") == b"one"


def test_what_is_appended_comes_behind(folder: Folder) -> None:
    folder.append("runs/x", b"1\n")
    folder.append("runs/x", b"2\n")
    assert folder.read("runs/x") == b"1\n2\n"


def test_files_are_listed_in_order(folder: Folder) -> None:
    for name in ("b/2", "a/1", "c"):
        folder.write(name, b"x")
    assert folder.names() == ["a/1", "b/2", "c"]
    assert folder.names("b") == ["b/2"]
    assert folder.names("none") == []
    folder.remove("c")
    folder.remove("c")
    assert folder.names() == ["a/1", "b/2"]


def half_written(folder: Folder, name: str) -> None:
    with folder.writing(name) as file:
        file.write(b"half")
        assert folder.read(name) != b"half"
        assert all("half" not in each for each in folder.names())
        raise RuntimeError("killed")


def test_a_file_that_was_not_finished_is_not_there(folder: Folder) -> None:
    folder.write("x", b"whole")
    for name in ("x", "new"):
        with pytest.raises(RuntimeError, match="killed"):
            half_written(folder, name)
    assert folder.read("x") == b"whole"
    assert folder.names() == ["x"]


def test_places_are_paths_and_addresses(tmp_path: Path) -> None:
    assert open_folder(tmp_path).place == str(tmp_path)
    assert open_folder(f"file://{tmp_path}").path("a") == f"{tmp_path}/a"
    with pytest.raises(ConfigError, match="met nosuch://x, expected a path or a URL"):
        open_folder("nosuch://x")
    with pytest.raises(ConfigError, match=r"met a password in the URL of s3://bucket/archive:"):
        open_folder("s3://key:s3cr3t@bucket/archive")


def test_the_query_of_an_address_stays_behind_its_path() -> None:
    address = "s3://bucket/archive/?region=eu-central-1&endpoint_override=host:9000/"
    folder = open_folder(address)
    assert folder.path("_runs") == address.replace("/?", "/_runs?")
    assert open_folder(folder.path("_runs")).path("x") == address.replace("/?", "/_runs/x?")
    assert divided(folder.path("a/report.html")) == (address.replace("/?", "/a?"), "report.html")
    assert extended("/data/what?/", ".runs") == "/data/what?.runs"
    assert [divided(path) for path in ("/a/b", "/b", "b")] == [("/a", "b"), ("/", "b"), (".", "b")]


def test_an_archive_is_written_to_what_is_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything goes through the file system of the address, files and manifest alike."""
    store = opened(tmp_path / "store")
    for number in range(50):
        put(store, b"%d" % number)
    store.close()
    system = fs.SubTreeFileSystem(str(tmp_path / "bucket"), fs.LocalFileSystem())
    (tmp_path / "bucket").mkdir()
    known = SimpleNamespace(from_uri=lambda text: (system, text.split("//")[1]))
    monkeypatch.setattr(fs, "FileSystem", known)
    place = "s3://archive/deep"
    archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=place))
    assert archive(None, ArchiveSettings(store=str(tmp_path / "store"), to=place)).run.counts == {
        "ranges": 0,
        "rows": 0,
        "log_bytes": 0,
        "files": 0,
        "file_bytes": 0,
    }
    (entry,) = Manifest(open_folder(place)).entries()
    with open_folder(place).reading(entry.files[0].name) as file:
        assert pq.ParquetFile(file).metadata.num_rows == 50
    assert (tmp_path / "bucket" / "archive" / "deep" / entry.files[0].name).is_file()
