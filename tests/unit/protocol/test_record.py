"""Message records and the bodies in them."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.protocol.compression import (
    CompressionError,
    InflatedTooLargeError,
    compress_body,
    decompress_body,
)
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import (
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    BORN_TIME_AT,
    FLAG_AT,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED_BEFORE_BODY,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    RETRIES_BEFORE_BODY,
    SYS_FLAG_AT,
    RecordError,
    body_at,
    decode_messages,
    decode_record,
    encode_record,
    host_text,
    iter_records,
    record_size,
    store_time_at,
)
from support.wire.message_records import HOSTS, NUMBERS, V4, V6, names, record


@given(
    topic=names,
    body=st.binary(max_size=100),
    properties=st.dictionaries(names, names, max_size=3),
    numbers=st.fixed_dictionaries(NUMBERS),
    hosts=st.fixed_dictionaries(HOSTS),
)
def test_a_record_comes_back(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    numbers: dict[str, int],
    hosts: dict[str, bytes],
) -> None:
    text = encode_properties(properties)
    data = encode_record(topic.encode(), body, text, **numbers, **hosts)  # type: ignore[arg-type]

    found = decode_record(b"before" + data + b"behind", 6)

    assert found.size_bytes == len(data)
    assert (found.topic, found.body, found.properties) == (topic, body, properties)
    assert {name: getattr(found, name) for name in numbers} == numbers
    assert found.born_host == host_text(hosts["born_host"])
    assert found.store_host == host_text(hosts["store_host"])
    assert int.from_bytes(data[4:8], "big", signed=True) == (
        MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    )


@pytest.mark.parametrize("topic", [b"T", b"T" * 200])
@pytest.mark.parametrize("host", [V4, V6])
def test_a_record_cut_anywhere_is_refused(topic: bytes, host: bytes) -> None:
    data = record(topic=topic, properties=b"a\x01b\x02", born_host=host, store_host=host)

    for size in range(len(data)):
        with pytest.raises(RecordError):
            decode_record(data[:size])
        shortened = size.to_bytes(4, "big") + data[4:size]  # its size field agrees with the cut
        with pytest.raises(RecordError):
            decode_record(shortened)


@given(st.data())
def test_a_damaged_record_is_refused_or_read_but_never_more(data: st.DataObject) -> None:
    good = record(properties=b"a\x01b\x02")
    at = data.draw(st.integers(0, len(good) - 4))
    bad = good[:at] + data.draw(st.binary(min_size=4, max_size=4)) + good[at + 4 :]

    try:
        found = decode_record(bad)
    except RecordError:
        return
    assert found.size_bytes <= len(bad)


def test_records_back_to_back_are_read_in_order() -> None:
    data = b"".join(record(queue_offset=offset) for offset in range(5))

    assert [message.queue_offset for message in decode_messages(data)] == [0, 1, 2, 3, 4]
    assert [message.queue_offset for message in iter_records(memoryview(data))] == [0, 1, 2, 3, 4]
    assert decode_messages(b"") == []


def test_what_was_whole_is_given_before_what_is_not() -> None:
    found = iter_records(record() + record()[:-1])

    assert next(found).queue_offset == 2
    with pytest.raises(RecordError, match="with 96 there"):
        next(found)


def test_a_filler_is_no_record() -> None:
    filler = (100).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(92)
    with pytest.raises(RecordError, match="magic cbd43194"):
        record_size(filler)


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_each_field_is_at_its_position(born: bytes, store: bytes) -> None:
    data = encode_record(
        b"T",
        b"body",
        b"",
        queue_id=1,
        flag=2,
        queue_offset=3,
        log_offset=4,
        born_time_ms=5,
        born_host=born,
        store_time_ms=6,
        store_host=store,
        reconsume_times=7,
        prepared_offset=8,
        crc=9,
    )
    flags = SysFlag.BORN_HOST_V6 * (born == V6) | SysFlag.STORE_HOST_V6 * (store == V6)
    stored, body = store_time_at(flags), body_at(flags)
    fields = {
        0: (4, len(data)),
        BODY_CRC_AT: (4, 9),
        QUEUE_ID_AT: (4, 1),
        FLAG_AT: (4, 2),
        QUEUE_OFFSET_AT: (8, 3),
        LOG_OFFSET_AT: (8, 4),
        SYS_FLAG_AT: (4, flags),
        BORN_TIME_AT: (8, 5),
        stored: (8, 6),
        body - RETRIES_BEFORE_BODY: (4, 7),
        body - PREPARED_BEFORE_BODY: (8, 8),
        body - BODY_LENGTH_BEFORE_BODY: (4, 4),
    }

    for at, (size, value) in fields.items():
        assert data[at : at + size] == value.to_bytes(size, "big"), at
    assert data[MAGIC_AT:BODY_CRC_AT] == MAGIC_V1.to_bytes(4, "big", signed=True)
    assert data[BORN_HOST_AT:stored] == born
    assert data[stored + 8 : body - RETRIES_BEFORE_BODY] == store
    assert data[body:] == b"body\x01T\0\0"
    extra = len(born) + len(store) - 2 * len(V4)
    assert len(data) == RECORD_BYTES_MIN + extra + len(b"bodyT")


def test_a_compressed_body_is_whole_again_and_its_flag_gone() -> None:
    flag = SysFlag.COMPRESSED | SysFlag.ZLIB | SysFlag.TRANSACTION_COMMIT
    data = record(compress_body(b"x" * 5000), sys_flag=flag)

    assert decode_record(data).body == b"x" * 5000
    assert decode_record(data).sys_flag == flag & ~SysFlag.COMPRESSED
    assert decode_record(data, decompress=False).body == compress_body(b"x" * 5000)
    assert decode_record(data, decompress=False).sys_flag == flag


def test_a_body_that_does_not_inflate_is_refused() -> None:
    with pytest.raises(RecordError, match="damaged"):
        decode_record(record(b"not zlib", sys_flag=SysFlag.COMPRESSED))


@pytest.mark.parametrize(
    ("topic", "properties"), [(b"t" * 32768, b""), (b"T", b"p" * 32768)], ids=["topic", "props"]
)
def test_what_a_record_has_no_room_for_is_refused(topic: bytes, properties: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="at most 32767"):
        record(topic=topic, properties=properties)


def test_a_known_checksum_is_not_computed_again() -> None:
    assert decode_record(record(crc=77)).body_crc == 77
    assert decode_record(record(b"hello")).body_crc == 907060870


def test_hosts_are_shown_with_their_ports() -> None:
    assert host_text(V4) == "10.0.0.1:10911"
    assert host_text(V6) == "[fe80::1]:40000"


def test_bodies_that_are_cut_or_too_large_are_refused() -> None:
    packed = zlib.compress(b"x" * 1000)

    assert decompress_body(packed, SysFlag.COMPRESSED, inflated_bytes_max=1000) == b"x" * 1000
    for limit in (2000, 1000):
        with pytest.raises(CompressionError, match="cut short"):
            decompress_body(packed[:-1], SysFlag.COMPRESSED, inflated_bytes_max=limit)
    for limit in (999, 1):
        with pytest.raises(InflatedTooLargeError, match=f"exceeds {limit} bytes"):
            decompress_body(packed, SysFlag.COMPRESSED, inflated_bytes_max=limit)


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(CompressionError, match="type 5"):
        decompress_body(b"", SysFlag.COMPRESSED | 0x500)
    with pytest.raises(CompressionError, match="type 5"):
        compress_body(b"", 0x500)


@pytest.mark.parametrize(("kind", "package"), [(SysFlag.LZ4, "lz4"), (SysFlag.ZSTD, "zstandard")])
def test_optional_compression_works_or_names_its_package(kind: int, package: str) -> None:
    try:
        packed = compress_body(b"x" * 1000, kind)
    except CompressionError as refusal:
        assert f"the package {package} is needed" in str(refusal)  # noqa: PT017
        return
    assert decompress_body(packed, SysFlag.COMPRESSED | kind) == b"x" * 1000
    assert decompress_body(packed, SysFlag.COMPRESSED | kind, inflated_bytes_max=1000)
    with pytest.raises(InflatedTooLargeError):
        decompress_body(packed, SysFlag.COMPRESSED | kind, inflated_bytes_max=100)
    with pytest.raises(CompressionError):
        decompress_body(b"neither", SysFlag.COMPRESSED | kind)
