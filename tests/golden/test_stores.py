"""Stores that RocketMQ 4.9.7 and 5.3.3 wrote open here and read as recorded; see the vectors."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.record import decode_record
from cometmq.store import GetStatus, MessageStore, StoreSettings
from cometmq.store.inspect import StoreReader
from cometmq.store.lifecycle.checkpoint import Checkpoint
from cometmq.system.files import Files
from golden.recordings import VECTORS, VERSIONS, values
from support.stores.small_stores import put
from support.wire.recorded import unpack_store

NAMES = sorted(path.stem for path in (VECTORS / "stores").glob("*.json"))
TAG_NEW_HASH = -1797390394
"""Java hash code of ``TagNew``."""


@functools.cache
def facts_of(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / "stores" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of all stores, as they were recorded."""
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for name, folder in folders.items():
        unpack_store(name, folder)
    return folders


@pytest.fixture
def settings(name: str, unpacked: dict[str, Path], tmp_path: Path) -> StoreSettings:
    """The settings of a copy, which the test may change."""
    return settings_of(name, shutil.copytree(unpacked[name], tmp_path, dirs_exist_ok=True))


def settings_of(name: str, folder: Path) -> StoreSettings:
    sizes = facts_of(name)["sizes"]
    return StoreSettings(
        root=folder / "store",
        commit_log_file_bytes=sizes["mappedFileSizeCommitLog"],
        consume_queue_file_bytes=sizes["mappedFileSizeConsumeQueue"],
        consume_queue_ext_file_bytes=sizes.get("mappedFileSizeConsumeQueueExt", 2048),
        consume_queue_ext_enabled=name.endswith("filter"),
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
        flush_disk_type="ASYNC_FLUSH",
    )


@pytest.fixture(params=NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def store(
    name: str, unpacked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MessageStore]:
    """A store that is read alone; what opening it put right is put right for all tests."""
    folder = tmp_path_factory.mktemp(f"read-{name}")
    shutil.copytree(unpacked[name], folder, dirs_exist_ok=True)
    opened = MessageStore(settings_of(name, folder))
    opened.open()
    yield opened
    opened.close()


def described(record: bytes) -> dict[str, Any]:
    """What the vectors say of a message, as our reader sees it."""
    message = decode_record(record, decompress=False)
    return {
        "physical_offset": message.log_offset,
        "size": len(record),
        "magic": int.from_bytes(record[4:8], "big", signed=True),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_ts": message.born_time_ms,
        "store_ts": message.store_time_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume": message.reconsume_times,
        "prepared_tx_offset": message.prepared_offset,
        "body_crc": message.body_crc,
        "body_len": len(message.body),
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
        "properties": message.properties,
    }


def test_every_message_reads_as_recorded(name: str, store: MessageStore) -> None:
    for expected in facts_of(name)["messages"]:
        record = store.record_at(expected["physical_offset"], expected["size"])
        assert record is not None
        assert described(record) == expected


def test_the_log_has_its_bounds(name: str, settings: StoreSettings) -> None:
    log = facts_of(name)["commitlog"]
    store = MessageStore(settings)
    store.open()
    assert store.min_log_offset == log["min_offset"]
    assert store.written_to == log["max_offset"]
    # What a crashed process did not sync counts as on disk only after a sync of our own.
    assert store.flushed_to == (0 if "crash" in name else log["max_offset"])
    assert store.flush() == log["max_offset"]
    store.close()


def test_every_queue_has_its_units(name: str, store: MessageStore) -> None:
    queues = facts_of(name)["consume_queues"]
    assert sorted(store.queue_keys()) == sorted((q["topic"], q["queue_id"]) for q in queues)
    for queue in queues:
        topic, queue_id = queue["topic"], queue["queue_id"]
        assert store.bounds(topic, queue_id) == (queue["min_offset"], queue["max_offset"])
        # With extension units: place, size, address, tags code, store time, bit map.
        expected = [(u[0], u[1], u[3] if len(u) > 3 else u[2]) for u in queue["units"]]
        assert store.consume_queue_units(topic, queue_id, 0, 10_000) == expected


def test_every_queue_hands_out_its_messages(name: str, store: MessageStore) -> None:
    for queue in facts_of(name)["consume_queues"]:
        offset, met = queue["min_offset"], b""
        while offset < queue["max_offset"]:
            result = store.get(queue["topic"], queue["queue_id"], offset, 32)
            assert result.status is GetStatus.FOUND
            met += b"".join(result.slices)
            offset = result.next_begin_offset
        records = [store.record_at(unit[0], unit[1]) for unit in queue["units"]]
        assert met == b"".join(records)


def test_every_key_leads_to_its_message(name: str, store: MessageStore) -> None:
    for message in facts_of(name)["messages"]:
        properties = message["properties"]
        keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        for key in filter(None, keys):
            when = message["store_ts"]
            found = store.query(message["topic"], key, 64, when, when).records
            places = [int.from_bytes(record[28:36], "big") for record in found]
            assert message["physical_offset"] in places
            assert len(set(places)) == len(places)


def test_index_headers_are_as_recorded(name: str, settings: StoreSettings) -> None:
    """After a crash they are as RocketMQ's own recovery makes them."""
    facts = facts_of(name)
    store = MessageStore(settings)
    store.open()
    store.close()
    expected = facts.get("after_recovery", facts)["index_files"]
    with StoreReader(store.settings) as reader:
        met = [
            {
                "begin_timestamp": file.begin_ms,
                "end_timestamp": file.end_ms,
                "begin_phy_offset": file.begin_log,
                "end_phy_offset": file.end_log,
                "hash_slot_count": file.slots_used,
                "index_count": file.next_entry,
            }
            for file in reader.index_files()
        ]
    known = met[0].keys()
    assert met == [{key: file[key] for key in known} for file in expected]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("crash")], scope="module")
def test_recovery_finds_what_rocketmq_found(name: str, store: MessageStore) -> None:
    expected = facts_of(name)["after_recovery"]
    assert store.written_to == expected["max_offset"]
    for queue, max_offset in expected["consume_queue_max_offsets"].items():
        topic, _, queue_id = queue.rpartition("-")
        assert store.bounds(topic, int(queue_id))[1] == max_offset


def test_inspection_finds_nothing_wrong_and_changes_nothing(
    name: str, settings: StoreSettings
) -> None:
    before = snapshot(settings.root)
    with StoreReader(settings) as reader:
        assert list(reader.verify()) == []
        places = [place.log_offset for place in reader.records()]
    assert places == [message["physical_offset"] for message in facts_of(name)["messages"]]
    assert snapshot(settings.root) == before


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {
        path: hashlib.sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_checkpoint_reads_as_recorded(name: str, settings: StoreSettings) -> None:
    met = Checkpoint.decode((settings.root / "checkpoint").read_bytes())
    expected = facts_of(name)["checkpoint"]
    assert met == Checkpoint(
        expected["physic"],
        expected["logics"],
        expected["index"],
        expected["master_flushed"],
        expected["confirm"],
    )


def test_further_messages_go_behind_the_recorded_ones(name: str, settings: StoreSettings) -> None:
    facts = facts_of(name)
    queue = facts["consume_queues"][0]
    topic, queue_id, end = queue["topic"], queue["queue_id"], queue["max_offset"]
    with_store = MessageStore(settings)
    with_store.open()
    for number in range(1500):
        properties = {"KEYS": f"fresh{number}", "TAGS": "TagNew"}
        stored = put(with_store, b"new %d" % number, topic, queue_id, properties)
        assert stored.queue_offset == end + number
    with_store.close()

    again = MessageStore(settings)
    again.open()

    assert again.bounds(topic, queue_id) == (queue["min_offset"], end + 1500)
    assert len(again.query(topic, "fresh1499", 10, 0, 2**62).records) == 1
    units = again.consume_queue_units(topic, queue_id, end, 2000)
    bodies = [decode_record(again.record_at(place, size)).body for place, size, _ in units]
    assert bodies == [b"new %d" % number for number in range(1500)]
    assert {code for _, _, code in units} == {TAG_NEW_HASH}
    again.close()


def test_deleted_queues_index_and_checkpoint_are_made_again(
    name: str, settings: StoreSettings
) -> None:
    files = Files()
    for folder in ("consumequeue", "consumequeue_ext", "index"):
        files.remove_tree(settings.root / folder)
    files.remove(settings.root / "checkpoint")
    files.remove(settings.root / "abort")
    store = MessageStore(settings)
    store.open()
    facts = facts_of(name)
    for queue in facts["consume_queues"]:
        expected = [(u[0], u[1], u[3] if len(u) > 3 else u[2]) for u in queue["units"]]
        met = store.consume_queue_units(queue["topic"], queue["queue_id"], 0, 10_000)
        assert met == expected
    last = facts["messages"][-1]
    key = last["properties"]["UNIQ_KEY"]
    assert store.query(last["topic"], key, 64, 0, 2**62).records
    store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoints_have_rocketmqs_bytes(version: str) -> None:
    for case in values(version, "checkpoint")["cases"]:
        checkpoint = Checkpoint(
            *(case["physic"], case["logics"], case["index"]),
            *(case.get("master_flushed", 0), case.get("confirm", 0)),
        )
        data = checkpoint.encode()
        assert data[:40].hex() == case["first_40_hex"]
        assert len(data) == case["file_size"]
        assert not any(data[40:])
        assert Checkpoint.decode(data) == checkpoint
        assert checkpoint.min_ms == case["min_timestamp"]
        assert checkpoint.min_index_ms == case["min_timestamp_index"]
