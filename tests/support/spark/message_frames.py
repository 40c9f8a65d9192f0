"""Messages as rows of a data frame, with every column the formats have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.spark import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
COLUMNS = (*schema.CORE, schema.PROPERTIES, *schema.HOSTS, schema.RECORD_VALID)


def message(number: int = 0, body: bytes = b"body", **more: Any) -> dict[str, Any]:
    """One message, stored that many seconds after the start; ``more`` are other columns."""
    row: dict[str, Any] = {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 0,
        "queue_offset": number,
        "msg_id": f"7F00000100010000{number:016X}",
        "offset_msg_id": f"7F00000100002A9F{number:016X}",
        "body": body,
        "born_timestamp": START + timedelta(seconds=number),
        "store_timestamp": START + timedelta(seconds=number),
        "reconsume_times": 0,
        "sys_flag": 0,
        "flag": 0,
        "body_crc": crc32(body) & 0x7FFFFFFF,
        "phy_offset": number * 200,
        "store_size": 200,
        "prepared_offset": 0,
        "properties": {},
        "born_host": "10.0.0.1:5000",
        "store_host": "127.0.0.1:10911",
        "record_valid": True,
    }
    return row | more


def frame(spark: SparkSession, path: Path, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """The messages as a data frame, from a Parquet file in a folder."""
    path.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema=schema.arrow_schema(COLUMNS))
    pq.write_table(table, path / "part-0.parquet")
    return spark.read.parquet(str(path))
