"""Stores that RocketMQ 4.9.7 and 5.3.3 wrote, as the Spark format of logs reads them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.model.flags import SysFlag
from cometmq.spark.logs import Follower, open_log
from golden.recordings import VECTORS
from support.spark.log_files import log_reader, read_all, rows_at
from support.wire.recorded import unpack_store

NAMES = sorted(path.stem for path in (VECTORS / "stores").glob("*.json"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def facts(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / "stores" / f"{name}.json").read_text())


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    return unpack_store(name, tmp_path)


def described(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the words of the recordings."""
    body = row["body"]
    return {
        "physical_offset": row["phy_offset"],
        "size": row["store_size"],
        "topic": row["topic"],
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "flag": row["flag"],
        "sys_flag": row["sys_flag"],
        "born_ts": row["born_timestamp"],
        "store_ts": row["store_timestamp"],
        "born_host": row["born_host"],
        "store_host": row["store_host"],
        "reconsume": row["reconsume_times"],
        "prepared_tx_offset": row["prepared_offset"],
        "body_crc": row["body_crc"],
        "body_len": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "properties": dict(row["properties"]),
    }


def in_ms(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times as numbers of milliseconds."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            times = table.column(at).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            table = table.set_column(at, field.name, times)
    return table.to_pylist()


def test_every_row_is_the_message_that_was_recorded(root: Path, facts: dict[str, Any]) -> None:
    options = {"includeProperties": True, "validate": True, "decompress": False}
    rows = in_ms(read_all(log_reader(root, maxPartitionBytes=100_000, **options)))

    expected = [{k: v for k, v in each.items() if k != "magic"} for each in facts["messages"]]
    assert [described(row) for row in rows] == expected
    assert all(row["record_valid"] for row in rows)
    assert [row["tags"] for row in rows] == [m["properties"].get("TAGS") for m in expected]


def test_bodies_are_decompressed(root: Path, facts: dict[str, Any]) -> None:
    rows = read_all(log_reader(root, columns=("sys_flag", "body", "body_crc"))).to_pylist()

    assert not any(row["sys_flag"] & SysFlag.COMPRESSED for row in rows)
    lengths = [message["body_len"] for message in facts["messages"]]
    longer = [len(row["body"]) != length for row, length in zip(rows, lengths, strict=True)]
    compressed = [bool(m["sys_flag"] & SysFlag.COMPRESSED) for m in facts["messages"]]
    assert longer == compressed


def test_any_cut_gives_the_same_rows(root: Path) -> None:
    whole = read_all(log_reader(root))
    for most in (997, 65_536, 300_001):
        assert read_all(log_reader(root, maxPartitionBytes=most)) == whole


def test_queues_and_a_walk_agree_on_the_end(root: Path, facts: dict[str, Any]) -> None:
    end = facts["commitlog"]["max_offset"]
    log = open_log(str(root))
    assert Follower().now(log) == end
    assert Follower(walk=True).now(log) == end
    assert Follower().now(open_log(str(root / "commitlog"))) == end


def test_a_topic_is_chosen_from_the_log(root: Path, facts: dict[str, Any]) -> None:
    for topic in {queue["topic"] for queue in facts["consume_queues"]}:
        walked = rows_at(log_reader(root, subscribe=topic))
        assert walked == [m["physical_offset"] for m in facts["messages"] if m["topic"] == topic]
