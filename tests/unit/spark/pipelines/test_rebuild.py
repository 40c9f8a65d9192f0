"""Queues and index, written anew from the log, are the files that the broker wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import ConfigError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.spark.pipelines import Run
from cometmq.spark.pipelines import rebuild as rebuild_module
from cometmq.spark.pipelines.rebuild import RebuildSettings, rebuild
from cometmq.store import MessageStore
from cometmq.store.inspect import StoreReader
from golden.test_stores import facts_of
from support.stores.small_stores import bodies, files_of, opened, put, small_settings
from support.wire.recorded import unpack_store


def files_below(root: Path) -> dict[str, bytes]:
    """The files that hold anything: a broker makes some before there is a unit for them."""
    return {name: data for name, data in files_of(root).items() if any(data)}


def contents(root: Path) -> list[bytes]:
    """What index files hold, oldest first; their names are the time they were made at."""
    return [data for _, data in sorted(files_below(root).items())]


@pytest.mark.parametrize("name", ["4.9.7-main", "5.3.3-main", "5.3.3-crc", "5.3.3-timer"])
def test_files_are_those_that_rocketmq_wrote(name: str, tmp_path: Path) -> None:
    sizes = facts_of(name)["sizes"]
    store, to = unpack_store(name, tmp_path), tmp_path / "new"
    asked = RebuildSettings(
        store=str(store),
        to=str(to),
        range_bytes=100_000,
        consume_queue_file_bytes=sizes["mappedFileSizeConsumeQueue"],
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
    )
    counts = rebuild(None, asked).run.counts
    assert files_below(to / "consumequeue") == files_below(store / "consumequeue")
    assert contents(to / "index") == contents(store / "index")
    assert counts["units"] == sum(len(queue["units"]) for queue in facts_of(name)["consume_queues"])


def asked_of(tmp_path: Path, **more: Any) -> RebuildSettings:
    small = small_settings(tmp_path)
    return RebuildSettings(
        **{
            "store": str(tmp_path / "store"),
            "to": str(tmp_path / "new"),
            "range_bytes": 5000,
            "consume_queue_file_bytes": small.consume_queue_file_bytes,
            "consume_queue_ext_file_bytes": small.consume_queue_ext_file_bytes,
            "index_slots": small.index_slots,
            "index_entries": small.index_entries,
            **more,
        }
    )


def filled(tmp_path: Path, **changes: Any) -> Path:
    """A closed store with two topics, delays, transactions and many keys."""
    store = opened(tmp_path / "store", **changes)
    for number in range(200):
        properties = {"TAGS": f"t{number % 5}", "KEYS": f"k{number} l{number}"}
        put(store, b"%d" % number, queue_id=number % 3, properties=properties)
        if number % 10 == 0:
            put(store, topic=DELAY_TOPIC, queue_id=2, properties={"DELAY": "3"})
            put(store, topic="half", sys_flag=4, properties={"UNIQ_KEY": f"h{number}"})
    store.close()
    return tmp_path / "store"


@pytest.mark.parametrize("ext", [False, True])
def test_files_are_those_that_we_wrote(tmp_path: Path, ext: bool) -> None:
    store = filled(tmp_path, consume_queue_ext_enabled=ext)
    to = tmp_path / "new"
    counts = rebuild(None, asked_of(tmp_path, consume_queue_ext_enabled=ext)).run.counts
    for name in ("consumequeue", "consumequeue_ext"):
        assert files_below(to / name) == files_below(store / name)
    assert contents(to / "index") == contents(store / "index")
    assert counts["index_files"] > 3
    assert not (to / "_rebuild").exists()


def test_a_batch_in_one_record_gets_no_unit_and_no_key(tmp_path: Path) -> None:
    """RocketMQ 5 has queues of batches for it; a start of ours makes no unit of it either."""
    store = opened(tmp_path / "store")
    put(store, properties={"UNIQ_KEY": "m"})
    put(store, topic="in-batches", sys_flag=0xC0, properties={"UNIQ_KEY": "b"})
    store.close()
    counts = rebuild(None, asked_of(tmp_path)).run.counts
    assert (counts["units"], counts["keys"]) == (1, 1)
    assert not (tmp_path / "new" / "consumequeue" / "in-batches").exists()


def test_a_broker_starts_with_the_new_files(tmp_path: Path) -> None:
    store = filled(tmp_path)
    rebuild(None, asked_of(tmp_path))
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)
        shutil.copytree(tmp_path / "new" / name, store / name)
    before = files_of(store / "consumequeue")
    opened_again = MessageStore(small_settings(store))
    opened_again.open()
    assert bodies(opened_again, queue_id=1) == [b"%d" % n for n in range(1, 200, 3)]
    assert len(opened_again.query("orders", "k7", 10, 0, 1 << 62).records) == 1
    opened_again.close()
    assert files_of(store / "consumequeue") == before
    with StoreReader(small_settings(store)) as reader:
        assert list(reader.verify()) == []


def test_a_queue_whose_beginning_is_gone_begins_where_its_records_do(tmp_path: Path) -> None:
    store = filled(tmp_path)
    sorted((store / "commitlog").iterdir())[0].unlink()
    rebuild(None, asked_of(tmp_path))
    shutil.rmtree(store / "consumequeue")
    shutil.copytree(tmp_path / "new" / "consumequeue", store / "consumequeue")
    with StoreReader(small_settings(store)) as reader:
        queues = {(queue.topic, queue.queue_id): queue for queue in reader.queues()}
        assert queues["orders", 0].min_offset > 0
        assert queues["orders", 0].max_offset == 67
        findings = [f for f in reader.verify() if "consumequeue" in str(f.path)]
        assert findings == []


class KilledError(BaseException):
    """Ends a run where it stands."""


@pytest.mark.parametrize("target", ["scan_range", "write_queue", "write_index_file"])
@pytest.mark.parametrize("calls", [0, 2])
def test_a_killed_run_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, calls: int
) -> None:
    store = filled(tmp_path)
    original = getattr(rebuild_module, target)
    counted = [0]

    def killing(*arguments: Any) -> Any:
        counted[0] += 1
        if counted[0] > calls:
            raise KilledError
        return original(*arguments)

    asked = asked_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(rebuild_module, target, killing)
        with pytest.raises(KilledError):
            rebuild(None, asked)
    result = rebuild(None, replace(asked, resume="latest"))
    assert result.run.status == "done"
    assert files_below(tmp_path / "new" / "consumequeue") == files_below(store / "consumequeue")
    assert contents(tmp_path / "new" / "index") == contents(store / "index")


def test_only_chosen_topics_are_rebuilt(tmp_path: Path) -> None:
    filled(tmp_path)
    rebuild(None, asked_of(tmp_path, topics=("orders",), index=False))
    assert [path.name for path in (tmp_path / "new" / "consumequeue").iterdir()] == ["orders"]
    assert not (tmp_path / "new" / "index").exists()


def test_files_that_are_there_are_not_touched(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = files_of(store)
    with pytest.raises(ConfigError, match="exists already"):
        rebuild(None, asked_of(tmp_path, to=str(store), runs=str(tmp_path / "runs")))
    assert files_of(store) == before


def test_what_was_refused_is_not_gone_on_with(tmp_path: Path) -> None:
    """Else whoever resumed it would write over the files that it was refused for."""
    store = filled(tmp_path)
    before = files_of(store)
    asked = asked_of(tmp_path, to=str(store), runs=str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match="exists already"):
        rebuild(None, asked)
    with pytest.raises(ConfigError, match="no unfinished run"):
        rebuild(None, replace(asked, resume="latest"))
    assert files_of(store) == before


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    result = rebuild(None, asked_of(tmp_path), dry_run=True)
    assert result.run.counts["log_bytes"] > 10_000
    assert not (tmp_path / "new").exists()


def test_rebuild_needs_a_store_and_a_place() -> None:
    with pytest.raises(ConfigError, match="expected store and to"):
        rebuild(None, RebuildSettings())


def test_delay_levels_that_cannot_be_read_are_refused_first(tmp_path: Path) -> None:
    asked = RebuildSettings(store=str(tmp_path / "none"), to=str(tmp_path), delay_levels="1s x")
    with pytest.raises(ConfigError, match="messageDelayLevel: met 'x' as level 2"):
        rebuild(None, asked)


def after_clearing(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Run, "end", _kill)


def before_naming(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(rebuild_module, "_name_index_files", _kill)


def _kill(*_: object, **__: object) -> None:
    raise KilledError


@pytest.mark.parametrize("moment", [before_naming, after_clearing])
def test_a_run_that_is_killed_at_the_end_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: Callable[[pytest.MonkeyPatch], None]
) -> None:
    store = filled(tmp_path)
    asked = asked_of(tmp_path)
    with monkeypatch.context() as patched:
        moment(patched)
        with pytest.raises(KilledError):
            rebuild(None, asked)
    assert rebuild(None, replace(asked, resume="latest")).run.status == "done"
    assert files_below(tmp_path / "new" / "consumequeue") == files_below(store / "consumequeue")
    assert contents(tmp_path / "new" / "index") == contents(store / "index")
    assert not (tmp_path / "new" / "_rebuild").exists()
