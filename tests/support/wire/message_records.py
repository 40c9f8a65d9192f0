"""Records of messages as they stand in the log, and Hypothesis strategies for their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import encode_host, encode_record

V4, V6 = encode_host("10.0.0.1", 10911), encode_host("fe80::1", 40000)
names = st.text("abcXYZ%_-", min_size=1, max_size=200)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = dict.fromkeys(("queue_id", "flag", "reconsume_times"), i32) | dict.fromkeys(
    ("queue_offset", "log_offset", "born_time_ms", "store_time_ms", "prepared_offset"), i64
)
HOSTS = dict.fromkeys(("born_host", "store_host"), st.sampled_from([V4, V6]))


def record(
    body: bytes = b"hello",
    topic: bytes = b"T",
    properties: Mapping[str, str] | bytes = b"",
    **changes: Any,
) -> bytes:
    """Encode a record whose other fields differ from one another."""
    known: dict[str, Any] = {
        "queue_id": 1,
        "queue_offset": 2,
        "log_offset": 3,
        "born_time_ms": 4,
        "born_host": V4,
        "store_time_ms": 5,
        "store_host": V4,
    }
    text = properties if isinstance(properties, bytes) else encode_properties(properties)
    return encode_record(topic, body, text, **known | changes)
