"""Many records at once give the units and entries that the store makes of them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.spark.logs import ByteRange, open_place, plan
from cometmq.spark.pipelines.stores.dispatched import dispatch
from cometmq.spark.pipelines.stores.hashes import index_hashes, java_hashes
from cometmq.store.config import StoreSettings
from cometmq.store.inspect import StoreReader
from support.stores.small_stores import opened, put
from support.wire.recorded import unpack_store

LEVELS = StoreSettings(root=Path()).delay_levels


@given(st.lists(st.text(max_size=300)), st.integers(-(2**31), 2**31 - 1))
def test_hashes_are_those_of_java(texts: list[str], seed: int) -> None:
    texts = [text.encode(errors="replace").decode() for text in texts]
    hashed = java_hashes(pa.array(texts, pa.string()), np.full(len(texts), seed))
    assert hashed.tolist() == [extend_hash(seed, text.encode()) for text in texts]
    assert java_hashes(pa.array(texts, pa.string())).tolist() == [java_hash(t) for t in texts]


def test_hashes_begin_where_a_slice_does() -> None:
    assert java_hashes(pa.array(["aa", "b", "cc"]).slice(1)).tolist() == [98, java_hash("cc")]


def test_the_least_number_is_zero_in_the_index() -> None:
    numbers = [-(2**31), -1, 0, 5, 2**31 - 1]
    assert index_hashes(np.array(numbers, np.int32)).tolist() == [index_hash(n) for n in numbers]


def expected_units(root: Path, settings: StoreSettings) -> dict[tuple[str, int], list[Any]]:
    with StoreReader(settings) as reader:
        return {
            (queue.topic, queue.queue_id): [
                (at, *unit)
                for at, unit in enumerate(
                    reader.units(queue.topic, queue.queue_id, 0, 100_000), queue.min_offset
                )
            ]
            for queue in reader.queues()
            if queue.max_offset > queue.min_offset
        }


def met_units(store: Path, max_bytes: int) -> dict[tuple[str, int], list[Any]]:
    place = open_place(str(store))
    met: dict[tuple[str, int], list[Any]] = {}
    for part in plan(place, place.min_offset, _end(store), max_bytes):
        for queue, run in dispatch(place, part, LEVELS).units.items():
            fields = run[["offset", "phy", "size", "code"]]
            met.setdefault(queue, []).extend(tuple(row) for row in fields.tolist())
    return met


def _end(store: Path) -> int:
    from cometmq.spark.logs import watermark

    return watermark(open_place(str(store)))


@pytest.mark.parametrize("name", ["4.9.7-main", "5.3.3-main", "5.3.3-crc", "5.3.3-filter"])
def test_units_are_those_that_rocketmq_wrote(name: str, tmp_path: Path) -> None:
    from golden.test_stores import settings_of

    store, settings = unpack_store(name, tmp_path), settings_of(name, tmp_path)
    assert met_units(store, 40_000) == expected_units(tmp_path, settings)


def test_delayed_messages_have_their_time(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for level in range(20):
        put(store, topic=DELAY_TOPIC, queue_id=level % 3, properties={"DELAY": str(level)})
    put(store, topic=DELAY_TOPIC, queue_id=1, properties={"TAGS": "x"})
    store.flush()
    met = met_units(tmp_path / "store", 1 << 20)
    for (topic, queue_id), units in met.items():
        own = store.consume_queue_units(topic, queue_id, 0, 100)
        assert [unit[1:] for unit in units] == own
    assert sum(map(len, met.values())) == 21
    store.close()


def test_records_of_open_transactions_have_keys_but_no_unit(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for kind in (0, 4, 8, 12):
        put(store, sys_flag=kind, properties={"UNIQ_KEY": f"id{kind}", "KEYS": "a  b"})
    store.flush()
    place = open_place(str(tmp_path / "store"))
    (part,) = plan(place, 0, store.written_to, 1 << 20)
    found = dispatch(place, part, LEVELS)
    assert {queue: len(run) for queue, run in found.units.items()} == {("orders", 0): 2}
    words = [w for kind in (0, 4, 8) for w in (f"id{kind}", "a", "b")]
    assert found.keys["hash"].tolist() == [index_hash(java_hash(f"orders#{w}")) for w in words]
    assert len(dispatch(place, part, LEVELS, with_keys=False).keys) == 0
    store.close()


def test_a_range_without_records_has_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store)
    place = open_place(str(tmp_path / "store"))
    part = ByteRange(place.name, store.written_to, store.written_to)
    found = dispatch(place, part, LEVELS)
    assert (found.rows, found.units, len(found.keys)) == (0, {}, 0)
    store.close()
