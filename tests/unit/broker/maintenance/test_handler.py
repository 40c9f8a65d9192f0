"""Cleaning up on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.broker.maintenance.handler import StorageHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import check
from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import opened, put
from support.wire.memory_link import link


def filled(folder: Path, clock: ManualClock) -> MessageStore:
    """A store of several log files, at an hour when none is deleted by itself.

    However full the disk is that the tests run on: nearly all of it may be used.
    """
    store = opened(
        folder, clock=clock, file_reserved_hours=1, delete_when=(), disk_used_ratio_max=95
    )
    for _ in range(60):
        put(store, bytes(1000))
    return store


def written_ms(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in folder.rglob("*")) // 1_000_000


@pytest.mark.parametrize("hours", [0, 2])
async def test_the_log_is_cleaned_of_what_has_expired_whatever_the_hour(
    tmp_path: Path, hours: int
) -> None:
    clock = ManualClock()
    store = filled(tmp_path, clock)
    clock.set_wall(written_ms(tmp_path) + hours * 3_600_000)
    clean = StorageHandler(store)
    _, client = link({RequestCode.DELETE_EXPIRED_COMMITLOG: clean.clean_log})
    check(await client.call(RequestCode.DELETE_EXPIRED_COMMITLOG, timeout=60))

    assert (store.min_log_offset > 0) == (hours == 2)
    assert (store.bounds("orders", 0)[0] > 0) == (hours == 2)
    store.abandon()


async def test_cleaning_the_queues_keeps_what_the_log_has(tmp_path: Path) -> None:
    clock = ManualClock()
    store = filled(tmp_path, clock)
    clock.set_wall(2**41)
    clean = StorageHandler(store)
    _, client = link({RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean.clean_queues})
    check(await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout=60))

    assert store.min_log_offset == 0
    assert store.bounds("orders", 0) == (0, 60)
    store.abandon()


async def test_requests_about_rocksdb_are_responded_to(tmp_path: Path) -> None:
    """As RocketMQ does without RocksDB; what its tools print depends on the code alone."""
    store = filled(tmp_path, ManualClock())
    storage = StorageHandler(store)
    compare, export = (
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    )
    _, client = link({compare: storage.compare_queues, export: storage.export_tables})

    compared = check(await client.call(compare, timeout=60))
    exported = check(await client.call(export, timeout=60))

    assert json.loads(compared.body) == {
        "checkResult": "this broker has no queues in RocksDB",
        "checkStatus": 1,
    }
    assert exported.remark == "export done."
    store.abandon()
