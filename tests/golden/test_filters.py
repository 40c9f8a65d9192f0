"""Filter data, bits and extension units as RocketMQ writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerSettings
from cometmq.broker.filters.bloom import BloomFilter, bits_of, has_all, set_all
from cometmq.broker.filters.matchers import SqlMatcher
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterTable
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.sql92 import compile_expression
from cometmq.store import GetStatus, MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from golden.recordings import VECTORS, VERSIONS, values
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import put
from support.wire.recorded import unpack_store

for_each_version = pytest.mark.parametrize("version", VERSIONS)
GROUPS = {"CG_sqlstore": "a between 3 and 6 or TAGS = 'TagC'",
          "CG_sqlstore2": "color = 'red' and a is not null"}  # fmt: skip


def facts_of(version: str) -> dict[str, Any]:
    return json.loads((VECTORS / "stores" / f"{version}-filter.json").read_text())


def filters_of(root: Path) -> FilterTable:
    settings = BrokerSettings(enable_calc_filter_bit_map=True, enable_property_filter=True)
    file = JsonFile(root / "config" / "consumerFilter.json", Files())
    filters = FilterTable(lambda: settings, file, clock=ManualClock(2_000_000_000_000))
    filters.load()
    return filters


def opened(root: Path, filters: FilterTable) -> MessageStore:
    settings = StoreSettings(
        root=root,
        commit_log_file_bytes=1 << 20,
        consume_queue_file_bytes=6000,
        consume_queue_ext_file_bytes=2048,
        consume_queue_ext_enabled=True,
        index_slots=1000,
        index_entries=4000,
        flush_disk_type="ASYNC_FLUSH",
    )
    store = MessageStore(settings)
    store.compute_bitmaps(filters.bitmap_of)
    store.open()
    return store


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@for_each_version
def test_bits_are_those_of_rocketmq(version: str) -> None:
    recorded = values(version, "bloom")
    for case in recorded["cases"]:
        bloom = BloomFilter(case["f"], case["n"])
        assert (bloom.count, bloom.size_bits) == (case["k"], case["m"])
        assert case["bit_map_length"] == bloom.size_bits
        assert list(bloom.positions(case["s"])) == case["positions"]
        bitmap = bytearray(bloom.size_bytes)
        set_all(bitmap, bits_of(bloom.positions(case["s"])))
        assert bitmap.hex() == case["bitmap_hex"]


@for_each_version
def test_the_bits_of_several_keys_are_those_of_rocketmq(version: str) -> None:
    recorded = values(version, "bloom")
    bloom = BloomFilter(20, 32)
    bitmap = bytearray(bloom.size_bytes)
    for key in recorded["union"]["members"]:
        set_all(bitmap, bits_of(bloom.positions(key)))
    assert bitmap.hex() == recorded["union"]["bitmap_hex"]
    for case in recorded["union_hits"]:
        assert has_all(bitmap, bits_of(bloom.positions(case["s"]))) == case["hit"]


@for_each_version
def test_the_file_of_rocketmq_is_read_and_written(version: str, tmp_path: Path) -> None:
    path = unpack_store(f"{version}-filter", tmp_path) / "config" / "consumerFilter.json"
    expected = json.loads(path.read_text())
    filters = filters_of(path.parents[1])
    path.unlink()
    data = SubscriptionData(
        topic="TopicNew", sub_string="a > 1", expression_type="SQL92", sub_version=5
    )
    filters.register("g", [Subscription(data)])
    filters.persist_now()

    written = json.loads(path.read_text())
    assert written["filterDataByTopic"].pop("TopicNew")["groupFilterData"].keys() == {"g"}
    assert written == expected


@for_each_version
def test_extension_files_are_equal_byte_for_byte(version: str, tmp_path: Path) -> None:
    """All of them are deleted, and the messages are dispatched again."""
    root = unpack_store(f"{version}-filter", tmp_path)
    files = Files()
    expected = files_below(root / "consumequeue_ext")
    queues = files_below(root / "consumequeue")
    for folder in ("consumequeue", "consumequeue_ext", "index"):
        files.remove_tree(root / folder)
    files.remove(root / "checkpoint")

    opened(root, filters_of(root)).close()

    assert files_below(root / "consumequeue_ext") == expected
    assert files_below(root / "consumequeue") == queues


@for_each_version
def test_further_messages_get_extension_units_like_the_recorded_ones(
    version: str, tmp_path: Path
) -> None:
    root = unpack_store(f"{version}-filter", tmp_path)
    store = opened(root, filters_of(root))
    queue = next(
        queue
        for queue in facts_of(version)["consume_queues"]
        if (queue["topic"], queue["queue_id"]) == ("TopicSql", 0)
    )
    messages = {each["physical_offset"]: each for each in facts_of(version)["messages"]}
    end = queue["max_offset"]
    for unit in queue["units"]:
        properties = messages[unit[0]]["properties"]
        put(store, b"again", "TopicSql", properties=properties)

    met = store.ext_units("TopicSql", 0, 0, 2 * end)
    assert [(unit.tags_code, unit.bitmap.hex()) for unit in met[:end] if unit is not None] == [
        (unit[3], unit[5]) for unit in queue["units"]
    ]
    assert [(unit.tags_code, unit.bitmap) for unit in met[:end] if unit is not None] == [
        (unit.tags_code, unit.bitmap) for unit in met[end:] if unit is not None
    ]
    store.close()


@for_each_version
@pytest.mark.parametrize("group", GROUPS)
def test_consumers_of_a_recorded_store_get_what_matches(
    version: str, group: str, tmp_path: Path
) -> None:
    root = unpack_store(f"{version}-filter", tmp_path)
    filters = filters_of(root)
    store = opened(root, filters)
    known = filters.find("TopicSql", group)
    assert known is not None
    data = SubscriptionData(
        topic="TopicSql",
        sub_string=GROUPS[group],
        expression_type="SQL92",
        sub_version=known.version,
    )
    with_bitmaps = filters.matcher(group, Subscription(data), enabled=True)
    without = SqlMatcher(compile_expression(GROUPS[group]))
    wanted = [
        each["physical_offset"]
        for each in facts_of(version)["messages"]
        if (each["topic"], each["queue_id"]) == ("TopicSql", 0)
        and matches(group, each["properties"])
    ]

    for matcher in (with_bitmaps, without):
        found = store.get("TopicSql", 0, 0, 32, matcher)
        assert found.status is GetStatus.FOUND
        assert [int.from_bytes(part[28:36], "big") for part in records(found.slices)] == wanted
    store.close()


def matches(group: str, properties: dict[str, str]) -> bool:
    """What the expressions of `GROUPS` say."""
    number = properties.get("a")
    if group == "CG_sqlstore":
        return (number is not None and 3 <= int(number) <= 6) or properties.get("TAGS") == "TagC"
    return properties.get("color") == "red" and number is not None


def records(slices: list[memoryview]) -> list[bytes]:
    found = []
    for data in map(bytes, slices):
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            found.append(data[at : at + size])
            at += size
    return found
