"""Truncation of the log of an open store: what is left is a store that never had the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.model.errors import StoreError
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.store import MessageStore
from cometmq.store.errors import StoreUnavailableError
from cometmq.store.lifecycle import loader
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import PowerCutError, PowerFiles
from support.stores.small_stores import (
    bodies,
    files_of,
    new_record,
    opened,
    put,
    small_settings,
)

QUEUES = [("orders", 0), ("orders", 1), ("bills", 0), ("delayed", 3)]
ROOT = Path("/store")
KEYS = [f"key{number}" for number in range(6)]
Step = Callable[[MessageStore], object]


def steps(chance: SeededRandomness, count: int, first: int = 0) -> list[Step]:
    """A random load: messages of many sizes, batches, flushes."""
    made: list[Step] = []
    for number in range(first, first + count):
        topic, queue_id = QUEUES[chance.below(len(QUEUES))]
        body = b"%d " % number + b"x" * chance.below((40, 400, 3000)[chance.below(3)])
        properties = {"KEYS": KEYS[chance.below(len(KEYS))], "UNIQ_KEY": f"id{number}"}
        kind = chance.below(12)
        if kind == 0:
            made.append(lambda store: store.flush())
        elif kind == 1:
            made.append(lambda store: store.write_out())
        elif kind == 2:
            data = encode_batch([BatchItem(0, b"b" + body[:40], b"") for _ in range(4)])
            record = new_record(data, topic, queue_id)
            made.append(lambda store, record=record: store.append_batch(record))  # type: ignore[misc]
        else:
            made.append(
                lambda store, topic=topic, queue_id=queue_id, body=body, properties=properties: put(  # type: ignore[misc]
                    store, body, topic=topic, queue_id=queue_id, properties=properties
                )
            )
    return made


def expire(store: MessageStore) -> None:
    """Delete all log files but the newest, with their units."""
    while store.clean(2**52, expired_at_any_hour=True):
        pass


def content(store: MessageStore) -> dict[object, object]:
    """All that consumers and queries find."""
    found: dict[object, object] = {
        queue: (store.bounds(*queue), bodies(store, *queue)) for queue in QUEUES
    }
    for topic, key in {(topic, key) for topic, _ in QUEUES for key in KEYS}:
        result = store.query(topic, key, 1000, 0, 2**62)
        found[topic, key] = [bytes(record) for record in result.records]
    found["end"] = store.written_to
    return found


@dataclass
class Settings:
    """How the stores of a case are opened."""

    mapped_queue_files_max: int

    def open(self, root: Path, files: Files | None = None) -> MessageStore:
        clock = ManualClock()
        return opened(
            root,
            clock=clock,
            files=files,
            mapped_queue_files_max=self.mapped_queue_files_max,
            file_reserved_hours=0,
        )


def log_files(root: Path) -> dict[str, bytes]:
    return {
        name: data
        for name, data in files_of(root).items()
        if name.startswith(("commitlog/", "consumequeue/"))
    }


@pytest.fixture(autouse=True)
def _few_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queues give their buffers up to others; and the file of the buffers be small."""
    monkeypatch.setattr(loader, "BUFFERS_MAX", 3)


@pytest.mark.parametrize("seed", range(rounds(test=15, long=500)))
def test_a_truncated_store_is_one_that_never_had_the_rest(tmp_path: Path, seed: int) -> None:
    chance = SeededRandomness(seed)
    settings = Settings(mapped_queue_files_max=(0, 1, 100)[chance.below(3)])
    first = [*steps(chance, 50), MessageStore.write_out, expire]
    load = first + steps(chance, 20 + chance.below(80), first=100)
    kept = len(first) + chance.below(len(load) - len(first) + 1)
    twin = settings.open(tmp_path / "twin")
    for step in load[:kept]:
        step(twin)
    store = settings.open(tmp_path / "store")
    for step in load:
        step(store)
    store.truncate_log(twin.written_to)
    assert content(store) == content(twin), f"seed {seed}"
    assert store.flushed_to == store.replica.received_to == store.written_to
    for step in steps(chance, chance.below(60), first=1000):
        step(store)
        step(twin)
    assert content(store) == content(twin), f"seed {seed}"
    end = (SeededRandomness(seed).below(3), content(twin))
    if end[0] == 0:
        store.close()
    else:
        store.abandon()
    twin.close()
    again = settings.open(tmp_path / "store")
    assert content(again) == end[1], f"seed {seed}"
    again.close()
    written = log_files(tmp_path / "store")
    expected = log_files(tmp_path / "twin")
    assert {name: data for name, data in written.items() if any(data)} == {
        name: data for name, data in expected.items() if any(data)
    }, f"seed {seed}"


@pytest.mark.parametrize("seed", range(rounds(test=30, long=2000)))
def test_a_cut_at_any_operation_leaves_the_first_records(seed: int) -> None:
    """After it, the store truncates there again and is one that never had the rest."""
    chance = SeededRandomness(seed)
    settings = Settings(mapped_queue_files_max=(0, 1, 100)[chance.below(3)])
    load = steps(chance, 20 + chance.below(60))
    kept = chance.below(len(load) + 1)
    twin = settings.open(ROOT, PowerFiles(SeededRandomness(seed + 1)))
    for step in load[:kept]:
        step(twin)
    files = PowerFiles(SeededRandomness(seed + 2))
    store = settings.open(ROOT, files)
    for step in load:
        step(store)
    whole = content(store)
    store.write_out()
    begins_at = files.operations
    files.cut_at = begins_at + chance.below(22)
    try:
        store.truncate_log(twin.written_to)
    except PowerCutError:
        pass
    finally:
        if chance.below(2):
            files.power_on()
        else:
            files.kill()
    again = settings.open(ROOT, files)
    assert again.written_to >= twin.written_to, f"seed {seed}"
    for queue in QUEUES:
        found, all_of_it = bodies(again, *queue), whole[queue][1]  # type: ignore[index]
        assert found == all_of_it[: len(found)], f"seed {seed}"
        assert len(found) >= len(bodies(twin, *queue)), f"seed {seed}"
    again.truncate_log(twin.written_to)
    assert content(again) == content(twin), f"seed {seed}"


def test_only_a_border_of_records_is_taken(tmp_path: Path) -> None:
    store = opened(tmp_path)
    starts = [put(store, b"body %d" % number).log_offset for number in range(3)]
    before = content(store)
    for offset in (-1, starts[1] + 1, starts[2] - 1, store.written_to + 1):
        with pytest.raises(StoreError, match="expected the beginning of a whole record"):
            store.truncate_log(offset)
    assert content(store) == before
    store.truncate_log(store.written_to)
    assert content(store) == before
    store.truncate_log(starts[1])
    assert bodies(store) == [b"body 0"]
    store.close()
    with pytest.raises(StoreUnavailableError, match="not open"):
        store.truncate_log(0)


def test_what_was_received_of_a_record_is_removed(tmp_path: Path) -> None:
    master = opened(tmp_path / "master")
    first = put(master, b"first")
    put(master, b"second")
    data = master.log_bytes(0, 10_000)
    assert data is not None
    slave = opened(tmp_path / "slave")
    slave.replica.begin()
    slave.replica.append(data[: first.size_bytes + 50])
    slave.truncate_log(first.size_bytes)
    assert bodies(slave) == [b"first"]
    slave.replica.append(data[first.size_bytes :])
    assert bodies(slave) == [b"first", b"second"]
    slave.close()
    master.close()


def test_a_file_that_was_allocated_ahead_goes(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path), clock=ManualClock(), threaded=True)
    store.open()
    store.allocate_first_segment()
    store.wait_for_segment()
    put(store, b"kept")
    end = store.written_to
    put(store, b"x" * 3000)  # beyond an eighth of the file: the next one is requested
    store.wait_for_segment()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    store.truncate_log(end)
    assert len(list((tmp_path / "commitlog").iterdir())) == 1
    put(store, b"y" * 3000)
    store.wait_for_segment()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    assert bodies(store) == [b"kept", b"y" * 3000]
    store.close()


class BrokenFiles(Files):
    """A disk that refuses to write one file."""

    refused = ""

    def overwrite(self, path: Path, data: bytes) -> None:
        if path.name == self.refused:
            raise OSError(5, "the disk is gone")
        super().overwrite(path, data)


def test_a_disk_that_refuses_shuts_the_store(tmp_path: Path) -> None:
    files = BrokenFiles()
    store = opened(tmp_path, files=files)
    put(store, b"first")
    end = store.written_to
    put(store, b"second")
    files.refused = "abort"
    with pytest.raises(StoreUnavailableError, match="the log cannot be truncated"):
        store.truncate_log(end)
    files.refused = ""
    with pytest.raises(StoreUnavailableError, match="the log cannot be truncated"):
        put(store, b"third")
    store.abandon()
    again = opened(tmp_path)
    assert bodies(again) == [b"first", b"second"]
    again.close()
