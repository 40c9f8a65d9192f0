"""Records of every form there is, made up, and what each column has to say of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.protocol.compression import compress_body
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import body_crc, decode_record, encode_record

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-60_000_000_000_000, 250_000_000_000_000)
"""Milliseconds that Python's own dates can hold as well."""
HOSTS = st.sampled_from(
    [
        bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big"),
        bytes((10, 255, 0, 9)) + (-2).to_bytes(4, "big", signed=True),
        bytes(15) + b"\x01" + (10911).to_bytes(4, "big"),
        bytes.fromhex("20010db8000000000000000000000042") + (65535).to_bytes(4, "big"),
    ]
)
TOPICS = st.one_of(
    st.sampled_from([b"orders", b"%RETRY%group", "Bestellungen-für-später".encode()]),
    st.text(min_size=1, max_size=60).filter(str.isprintable).map(str.encode),
    st.integers(128, 400).map(lambda length: b"t" * length),
    st.binary(min_size=1, max_size=12),
)
NAMES = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "TAG", "KEYSX", "a", "ü"]),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=5),
)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), max_size=20)
ENTRIES = st.lists(st.tuples(NAMES, VALUES), max_size=9)
CODECS = (0, SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD)


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    """Property strings: proper ones, some without the last separator, and any bytes at all."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.binary(max_size=40))
    if kind == 1:
        return draw(st.text("\x01\x02TAGSKEY", max_size=30)).encode()
    entries = draw(ENTRIES)
    text = "".join(f"{name}\x01{value}\x02" for name, value in entries).encode()
    return text[:-1] if kind == 2 else text


@st.composite
def records(
    draw: st.DrawFn, log_offset: int | None = None, times: st.SearchStrategy[int] = TIMES
) -> bytes:
    """One record; one in some has a wrong checksum, or a body that is no compressed one."""
    body = draw(st.binary(max_size=60))
    flag = draw(st.sampled_from([0, 0, 0, SysFlag.TRANSACTION_COMMIT, SysFlag.MULTI_TAGS]))
    if draw(st.integers(0, 3)) == 0:
        codec = draw(st.sampled_from(CODECS))
        flag |= SysFlag.COMPRESSED | codec
        body = compress_body(body, codec or SysFlag.ZLIB)
        if draw(st.integers(0, 5)) == 0:
            body = body[:-3]
    crc = body_crc(body) if draw(st.integers(0, 7)) else draw(I32)
    return encode_record(
        draw(TOPICS),
        body,
        draw(property_strings()),
        queue_id=draw(I32),
        queue_offset=draw(st.one_of(st.integers(0, 20), I64)),
        log_offset=draw(I64) if log_offset is None else log_offset,
        born_time_ms=draw(times),
        born_host=draw(HOSTS),
        store_time_ms=draw(times),
        store_host=draw(HOSTS),
        flag=draw(I32),
        sys_flag=flag,
        reconsume_times=draw(I32),
        prepared_offset=draw(I64),
        crc=crc,
    )


@st.composite
def logs(draw: st.DrawFn, *, max_size: int = 8, times: st.SearchStrategy[int] = TIMES) -> bytes:
    """Records back to back, each of which says where it is."""
    data = b""
    for _ in range(draw(st.integers(0, max_size))):
        data += draw(records(log_offset=len(data), times=times))
    return data


def plain_log(
    count: int, *, body: bytes = b"x" * 128, topics: tuple[str, ...] = ("orders",)
) -> bytes:
    """A log of ordinary messages, one like the other but for their numbers."""
    pieces = []
    position = 0
    for number in range(count):
        properties = encode_properties(
            {"KEYS": f"k{number}", "TAGS": "paid", "UNIQ_KEY": f"{number:032X}", "WAIT": "true"}
        )
        record = encode_record(
            topics[number % len(topics)].encode(),
            body,
            properties,
            queue_id=number % 4,
            queue_offset=number // 4,
            log_offset=position,
            born_time_ms=1_700_000_000_000 + number,
            born_host=bytes((10, 0, 0, 7)) + (40000).to_bytes(4, "big"),
            store_time_ms=1_700_000_000_001 + number,
            store_host=bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big"),
        )
        pieces.append(record)
        position += len(record)
    return b"".join(pieces)


def messages_of(data: bytes, *, decompress: bool = True) -> list[StoredMessage]:
    """What the decoder of messages makes of records back to back."""
    found = []
    position = 0
    while position < len(data):
        message = decode_record(data, position, decompress=decompress)
        found.append(message)
        position += message.size_bytes
    return found


def row_of(message: StoredMessage, broker_name: str | None) -> dict[str, Any]:
    """What every column has to say of a message."""
    return {
        "topic": message.topic,
        "broker_name": broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.message_id,
        "offset_msg_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "body": message.body,
        "born_timestamp": _moment(message.born_time_ms),
        "store_timestamp": _moment(message.store_time_ms),
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "body_crc": message.body_crc,
        "phy_offset": message.log_offset,
        "store_size": message.size_bytes,
        "prepared_offset": message.prepared_offset,
        "properties": list(message.properties.items()),
        "born_host": message.born_host,
        "store_host": message.store_host,
    }


def _moment(time_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
