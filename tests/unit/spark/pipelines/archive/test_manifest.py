"""The manifest of an archive outlives killed runs, their claims, and older versions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from cometmq.spark.errors import PlaceError
from cometmq.spark.logs import ByteRange
from cometmq.spark.pipelines.archive.manifest import (
    CREATE_PAUSES_S,
    Entry,
    Manifest,
    Plan,
    QueueRows,
)
from cometmq.spark.pipelines.running.folders import DiskFolder, RemoteFolder
from cometmq.spark.pipelines.running.runs import RunError

BROKER = "broker-a"
KIND = {"table": "parquet"}
QUEUE = QueueRows("t", 0, 5, 0, 4, 1, 2)


def entry(start: int = 0, end: int = 100, **more: object) -> Entry:
    return replace(Entry(BROKER, start, end, 5, (), (QUEUE,)), **more)  # type: ignore[arg-type]


def entry_path(root: Path, start: int = 0, end: int = 100) -> Path:
    return root / "_manifest" / BROKER / f"{start:020d}-{end:020d}.json"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(DiskFolder(tmp_path))


class Bucket:
    """An archive in object storage, where a run was killed between its claim and the object."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = RemoteFolder(fs.LocalFileSystem(), str(root), "s3://archive")
        self.claims: list[Path] = []
        self.slept_s: list[float] = []

    def manifest(self, awake: Callable[[], None] = lambda: None) -> Manifest:
        def sleep(seconds: float) -> None:
            self.slept_s.append(seconds)
            awake()

        return Manifest(self.folder, sleep)

    def claim(self, name: str) -> None:
        folder, _, base = name.rpartition("/")
        claim = self.root / folder / ".claims" / f".{base}.of-another"
        claim.parent.mkdir(parents=True, exist_ok=True)
        claim.touch()
        self.claims.append(claim)

    def drop_claims(self) -> None:
        for claim in self.claims:
            claim.unlink(missing_ok=True)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


ACTS: dict[str, tuple[str, Callable[[Manifest], object]]] = {
    "kind": ("_manifest/archive.json", lambda manifest: manifest.settle(KIND)),
    "stream": (
        "_manifest/topics/stream.json",
        lambda manifest: manifest.settle_stream("topics", {"topics": ["t"]}),
    ),
    "batch": (
        f"_manifest/{BROKER}/{0:020d}-{1:020d}.json",
        lambda manifest: manifest.add_batch(entry(0, 1, query="q")),
    ),
    "range": (
        f"_manifest/{BROKER}/{0:020d}-{100:020d}.json",
        lambda manifest: manifest.add(entry()),
    ),
    "plan": (
        f"_manifest/{BROKER}/plan-00000001.json",
        lambda manifest: manifest.write_plan(BROKER, Plan(1, [])),
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_claim_that_a_killed_run_left_is_named_and_not_taken_for_a_file(
    bucket: Bucket, act: str
) -> None:
    name, do = ACTS[act]
    bucket.claim(name)
    with pytest.raises(RunError, match=r"one killed in the last 10 minutes, is creating .*start"):
        do(bucket.manifest())
    assert bucket.folder.read(name) is None
    longest_s = 1.5 * sum(CREATE_PAUSES_S)
    assert len(bucket.slept_s) > 1
    assert sum(bucket.slept_s) <= longest_s < 15


@pytest.mark.parametrize("act", ACTS)
def test_a_run_waits_for_a_claim_that_ends(bucket: Bucket, act: str) -> None:
    name, do = ACTS[act]
    bucket.claim(name)
    do(bucket.manifest(bucket.drop_claims))
    assert bucket.folder.read(name) is not None


def test_a_run_that_waited_for_another_one_heeds_what_it_wrote(bucket: Bucket) -> None:
    name, do = ACTS["batch"]
    bucket.claim(name)
    other = entry(0, 1, query="other").to_json().encode()
    with pytest.raises(RunError, match=r"query q met .* query other has written"):
        do(bucket.manifest(lambda: bucket.folder.write(name, other)))


@pytest.mark.parametrize("kept", [0, 9])
def test_a_plan_of_which_a_part_is_left_counts_as_the_one_before(
    manifest: Manifest, tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan(1, [ByteRange(BROKER, 0, 100)])
    manifest.write_plan(BROKER, plan)
    manifest.write_plan(BROKER, Plan(2, [ByteRange(BROKER, 100, 200)]))
    second = tmp_path / "_manifest" / BROKER / "plan-00000002.json"
    second.write_bytes(second.read_bytes()[:kept])
    with caplog.at_level(logging.WARNING):
        assert manifest.plan(BROKER) == Plan(2, plan.ranges)
    assert f"plan-00000002.json bytes={kept}" in caplog.text
    manifest.write_plan(BROKER, Plan(3, plan.ranges))
    assert manifest.plan(BROKER).number == 3


@pytest.mark.parametrize("kept", [0, 9])
def test_an_entry_of_which_a_part_is_left_counts_as_missing(
    manifest: Manifest, tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    manifest.add(entry())
    manifest.add(entry(100, 200))
    path = entry_path(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with caplog.at_level(logging.WARNING):
        assert manifest.entries(BROKER) == [entry(100, 200)]
    assert f"{path.name} bytes={kept}" in caplog.text
    manifest.check_free(BROKER, [entry().range])
    manifest.add(entry())
    assert manifest.entries(BROKER) == [entry(), entry(100, 200)]
    with pytest.raises(RunError, match="another run archives it"):
        manifest.check_free(BROKER, [entry().range])


def test_a_batch_whose_entry_is_a_part_is_added(manifest: Manifest, tmp_path: Path) -> None:
    made = entry(0, 1, query="q")
    manifest.add_batch(made)
    entry_path(tmp_path, 0, 1).write_bytes(b"")
    manifest.add_batch(made)
    assert manifest.entries() == [made]


@pytest.mark.parametrize("left", [b"", b'{"form'])
def test_a_kind_of_which_a_part_is_left_is_noted_again(
    manifest: Manifest, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "_manifest").mkdir()
    (tmp_path / "_manifest" / "archive.json").write_bytes(left)
    with pytest.raises(PlaceError, match=r"archive\.json"):
        manifest.kind()
    manifest.settle(KIND)
    assert manifest.kind()["table"] == "parquet"


def test_the_only_plan_of_an_older_version_is_the_one_before_the_first(
    manifest: Manifest, tmp_path: Path
) -> None:
    """Its ranges may have files in a table already: other ranges would hold them twice."""
    path = tmp_path / "_manifest" / BROKER / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"ranges": [[0, 100], [100, 200]]}))
    ranges = [ByteRange(BROKER, 0, 100), ByteRange(BROKER, 100, 200)]
    assert manifest.plan(BROKER) == Plan(0, ranges)
    manifest.write_plan(BROKER, Plan(1, ranges[1:]))
    assert manifest.plan(BROKER) == Plan(1, ranges[1:])


def test_a_batch_that_an_older_version_wrote_may_be_done_again(manifest: Manifest) -> None:
    """Its entry names no query: the same rows show that it is the same batch."""
    manifest.add(entry(0, 1))
    manifest.add_batch(entry(0, 1, query="q"))
    assert [each.query for each in manifest.entries()] == ["q"]
    manifest.add(entry(1, 2))
    other = entry(1, 2, query="q", queues=(replace(QUEUE, max_offset=7),))
    with pytest.raises(RunError, match=r"which another query has written.*archived again"):
        manifest.add_batch(other)


def test_a_stream_that_noted_addresses_of_name_servers_goes_on(manifest: Manifest) -> None:
    manifest.settle_stream("topics", {"topics": ["t"], "name_servers": ["n:1"]})
    manifest.settle_stream("topics", {"topics": ["t"]})
