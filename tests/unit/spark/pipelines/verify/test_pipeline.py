"""Whatever differs between a store's log and the files that follow from it is found."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.logs.storage import LocalStorage
from cometmq.spark.pipelines import Runs
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import Manifest, marked_to
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.registry import Result
from cometmq.spark.pipelines.stores import files as store_files
from cometmq.spark.pipelines.stores.files import StoreFiles
from cometmq.spark.pipelines.verify import VerifySettings, verify
from cometmq.spark.pipelines.verify import pipeline as verify_module
from golden.test_stores import NAMES, facts_of
from support.stores.small_stores import opened, put
from support.wire.recorded import unpack_store

COUNT = 300
UNIT = struct.Struct(">qiq")


def store_settings(store: Path, **more: Any) -> VerifySettings:
    return VerifySettings(store=str(store), range_bytes=6000, index_slots=16, **more)


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


@pytest.mark.parametrize("name", NAMES)
def test_stores_that_rocketmq_wrote_are_whole(name: str, tmp_path: Path) -> None:
    """Those of a broker that was killed included."""
    slots = facts_of(name)["sizes"]["maxHashSlotNum"]
    asked = VerifySettings(
        store=str(unpack_store(name, tmp_path)), range_bytes=300_000, index_slots=slots
    )
    result = verify(None, asked)
    assert result.tables["findings"].to_pylist() == []
    assert result.good
    counts = result.run.counts
    assert counts["rows"] >= len(facts_of(name)["messages"])
    assert counts["units"] == sum(len(queue["units"]) for queue in facts_of(name)["consume_queues"])
    assert counts["keys"] > counts["rows"] // 2
    assert counts["index_files"] >= 1


def test_a_store_of_ours_is_whole(store: Path) -> None:
    result = verify(None, store_settings(store))
    assert kinds(result) == {}
    assert result.good
    assert result.run.counts["units"] == COUNT
    assert result.run.counts["keys"] == 2 * COUNT


def test_a_store_that_is_written_to_is_whole(tmp_path: Path) -> None:
    """Half messages behind the last unit included, of which only the log knows."""
    made = opened(tmp_path / "store")
    for number in range(50):
        put(made, properties={"KEYS": f"k{number}"})
    put(made, topic="RMQ_SYS_TRANS_HALF_TOPIC", sys_flag=4, properties={"KEYS": "half"})
    made.flush()
    result = verify(None, store_settings(tmp_path / "store"))
    assert kinds(result) == {}
    assert result.run.counts["rows"] == 50
    made.close()


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def queue_file(store: Path, topic: str = "a", queue_id: int = 0) -> Path:
    return sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())[0]


def index_file(store: Path) -> Path:
    return sorted((store / "index").iterdir())[0]


def unit_at(path: Path, number: int) -> tuple[int, int, int]:
    return UNIT.unpack_from(path.read_bytes(), number * 20)


def set_unit(store: Path, number: int, **changes: int) -> None:
    path = queue_file(store)
    names = ("phy", "size", "code")
    unit = dict(zip(names, unit_at(path, number), strict=True)) | changes
    change(path, number * 20, UNIT.pack(*(unit[name] for name in names)))


def double_unit(store: Path) -> None:
    """A unit of another record behind the last one."""
    path = queue_file(store)
    units = COUNT // 6
    change(path, units * 20, UNIT.pack(*unit_at(path, 3)))


def drop_queue(store: Path) -> None:
    queue_file(store, "b", 1).unlink()


def change_entry(store: Path) -> None:
    """Another key's hash in the third entry: two slots and the next entry of one lead elsewhere."""
    change(index_file(store), 40 + 16 * 4 + 3 * 20, struct.pack(">i", 12345))


def change_slot(store: Path) -> None:
    path = index_file(store)
    number = next(n for n in range(16) if path.read_bytes()[40 + n * 4 : 44 + n * 4] != bytes(4))
    change(path, 40 + number * 4, bytes(4))


def damage_body(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[0]
    position = path.read_bytes().index(b"\x00\x00\x00\x0210\x01") + 4
    change(path, position, b"11")


DAMAGES: list[tuple[str, Callable[[Path], None], dict[str, int]]] = [
    ("code", lambda store: set_unit(store, 5, code=7), {"unit-wrong": 1}),
    ("place", lambda store: set_unit(store, 5, phy=0), {"unit-wrong": 1, "unit-dangling": 1}),
    ("size", lambda store: set_unit(store, 6, size=99), {"unit-wrong": 1, "unit-dangling": 1}),
    ("filler", lambda store: set_unit(store, 7, size=0x7FFFFFFF), {"unit-missing": 1}),
    ("surplus", double_unit, {"unit-dangling": 1}),
    ("queue", drop_queue, {"unit-missing": COUNT // 6}),
    ("entry", change_entry, {"key-missing": 1, "entry-wrong": 1, "index-chain": 3}),
    ("slot", change_slot, {"index-chain": 1}),
    ("body", damage_body, {"bad-record": 1}),
]


@pytest.mark.parametrize(("damage", "expected"), [case[1:] for case in DAMAGES], ids=lambda v: "")
def test_damage_is_found(
    store: Path, damage: Callable[[Path], None], expected: dict[str, int]
) -> None:
    damage(store)
    result = verify(None, store_settings(store))
    assert not result.good
    assert kinds(result) == expected


def test_a_finding_says_where_and_what(store: Path) -> None:
    for number in (5, 6, 7, 20):
        set_unit(store, number, code=7)
    rows = verify(None, store_settings(store)).tables["findings"].to_pylist()
    wrong = [row for row in rows if row["finding"] == "unit-wrong"]
    places = sorted((row["first"], row["last"], row["count"]) for row in wrong)
    assert sum(count for *_, count in places) == 4
    assert (places[0][0], places[-1][1]) == (5, 20)
    assert all((row["topic"], row["queue_id"]) == ("a", 0) for row in wrong)
    assert "code 7, expected" in wrong[0]["text"]


def test_only_chosen_topics_are_compared(store: Path) -> None:
    drop_queue(store)
    assert verify(None, store_settings(store, topics=("a",))).good
    assert not verify(None, store_settings(store, topics=("b",))).good


def test_chains_are_followed_from_one_part_of_a_file_to_the_next(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "_CHUNK_ENTRIES", 7)
    assert verify(None, store_settings(store)).good
    change_slot(store)
    assert kinds(verify(None, store_settings(store))) == {"index-chain": 1}


class KilledError(BaseException):
    """Ends a run where it stands."""


def test_a_killed_run_is_gone_on_with(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared is not compared again, and what it found is not forgotten."""
    set_unit(store, 0, code=7)
    compared: list[str] = []
    original = verify_module.check_range

    def once(job: Any, part: Any) -> Any:
        if len(compared) == 4:  # one wave
            raise KilledError
        compared.append(f"{part.start}")
        return original(job, part)

    settings = store_settings(store, runs=str(tmp_path / "runs"))
    with monkeypatch.context() as patched:
        patched.setattr(verify_module, "check_range", once)
        with pytest.raises(KilledError):
            verify(None, settings)

    def again(job: Any, part: Any) -> Any:
        compared.append(f"{part.start}")
        return original(job, part)

    monkeypatch.setattr(verify_module, "check_range", again)
    result = verify(None, replace(settings, resume="latest"))
    assert len(compared) == len(set(compared))
    assert result.run.counts["rows"] == COUNT
    assert kinds(result)["unit-wrong"] == 1
    assert [run.status for run in Runs(tmp_path / "runs").all()] == ["done"]


def test_a_dry_run_compares_nothing(store: Path) -> None:
    set_unit(store, 0, code=7)
    result = verify(None, store_settings(store), dry_run=True)
    assert result.good
    assert result.run.counts["queues"] == 6
    assert not Path(f"{store}.runs").exists()


def test_verify_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="expected store"):
        verify(None, VerifySettings())


def test_delay_levels_that_cannot_be_read_are_refused_first(tmp_path: Path) -> None:
    asked = VerifySettings(store=str(tmp_path / "none"), delay_levels="1s x")
    with pytest.raises(ConfigError, match="messageDelayLevel: met 'x' as level 2"):
        verify(None, asked)


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


def test_a_page_says_what_was_compared_and_found(store: Path, tmp_path: Path) -> None:
    set_unit(store, 5, code=7)
    page = tmp_path / "report.html"
    result = verify(None, store_settings(store, report=str(page)))
    text = page.read_text()
    assert f"<b>{COUNT}</b>rows" in text
    assert "unit-wrong" in text
    assert result.run.outputs == [str(page)]


def test_a_log_alone_is_not_called_whole(store: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in (store / "commitlog").iterdir():
        (alone / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="nothing to compare"):
        verify(None, store_settings(alone))


def test_a_topic_that_names_another_directory_has_no_units(store: Path) -> None:
    files = StoreFiles(LocalStorage(), str(store))
    assert files.queue("a", 0).files
    assert not files.queue("../consumequeue/a", 0).files


def test_an_archive_of_topics_is_not_compared_with_a_log(store: Path, tmp_path: Path) -> None:
    Manifest(open_folder(tmp_path / "archive")).settle({"table": "topics"})
    asked = store_settings(store, archive=str(tmp_path / "archive"))
    with pytest.raises(ConfigError, match="not archived from a log"):
        verify(None, asked)
