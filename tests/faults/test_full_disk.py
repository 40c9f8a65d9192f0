"""A disk that fills up: messages are refused whole, and taken again when there is room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cometmq.model.errors import CometError
from cometmq.store import StoreUnavailableError
from cometmq.system.files import DiskUsage
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, bodies, opened, put


@pytest.mark.parametrize("room_bytes", [0, 1000, 5000, 17_000, 17_500, 20_000, 34_000, 60_000])
def test_a_message_is_stored_whole_or_refused(tmp_path: Path, room_bytes: int) -> None:
    files = FaultyFiles()
    files.room_bytes = room_bytes
    store = opened(tmp_path, files=files)
    made: list[bytes] = []
    refused = 0
    for number in range(200):
        body = b"%d" % number + b"x" * 500
        try:
            put(store, body, queue_id=0, properties={"KEYS": f"k{number}"})
            made.append(body)
        except StoreUnavailableError:
            refused += 1
    assert refused > 0
    assert bodies(store) == made

    files.room_bytes = None
    put(store, b"room again")

    assert bodies(store) == [*made, b"room again"]
    store.close()
    again = opened(tmp_path)
    assert bodies(again) == [*made, b"room again"]
    again.close()


def test_a_store_that_cannot_write_its_mark_does_not_open(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    put(store)
    store.close()
    files.fail_sync = True
    with pytest.raises(CometError, match="cannot open the store"):
        opened(tmp_path, files=files)
    files.fail_sync = False
    again = opened(tmp_path, files=files)
    assert bodies(again) == [b"body"]
    assert again.bounds(TOPIC, 0) == (0, 1)
    again.close()


def test_a_sparse_file_of_the_log_gets_its_room_when_the_store_is_opened(tmp_path: Path) -> None:
    """Else the disk may fill up in the middle of it, where no message can be refused any more."""
    store = opened(tmp_path)
    put(store)
    store.close()
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = log.read_bytes().rstrip(b"\0")
    log.write_bytes(data)
    os.truncate(log, LOG_FILE_BYTES)
    assert log.stat().st_blocks * 512 < LOG_FILE_BYTES

    opened(tmp_path).close()

    assert log.stat().st_blocks * 512 >= LOG_FILE_BYTES
    assert log.read_bytes() == data.ljust(LOG_FILE_BYTES, b"\0")


def test_a_store_whose_log_has_no_room_can_be_read(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    put(store)
    store.close()
    files.room_bytes = 0
    again = opened(tmp_path, files=files)
    assert bodies(again) == [b"body"]
    again.close()


def test_a_store_that_is_held_takes_no_message_until_it_is_released_and_has_room(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    files.disk = DiskUsage(used_bytes=100, available_bytes=0)
    store.clean()
    store.hold("a decision is missing")
    with pytest.raises(StoreUnavailableError, match="a decision is missing"):
        put(store)
    store.release()
    with pytest.raises(StoreUnavailableError, match="the disk is full"):
        put(store)
    store.hold("a decision is missing")
    files.disk = DiskUsage(used_bytes=50, available_bytes=50)
    store.clean()
    with pytest.raises(StoreUnavailableError, match="a decision is missing"):
        put(store)
    store.release()
    put(store)
    store.hold("a decision is missing")
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.flush()
    store.release()
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        put(store)
    store.abandon()
