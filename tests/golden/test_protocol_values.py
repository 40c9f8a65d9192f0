"""Values that RocketMQ's Java code computed, computed again by our code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.model.flags import SysFlag
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.codes import LanguageCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.compression import CompressionError, compress_body, decompress_body
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.message_id import decode_offset_id, encode_offset_id
from cometmq.protocol.properties import (
    decode_properties,
    encode_properties,
    index_keys_of,
    tags_code_of,
)
from cometmq.protocol.record import body_crc, decode_record, encode_host, encode_record
from cometmq.protocol.version import version_name
from golden.recordings import VERSIONS, values
from support.wire.frames import command_of
from support.wire.unique_ids import decode_unique_id

for_each_version = pytest.mark.parametrize("version", VERSIONS)


def written_by(version: str, properties: bytes) -> bytes:
    """Our property strings end with 0x02, as 5.3 writes them; 4.9 leaves the last one out."""
    return properties.removesuffix(b"\x02") if version == "4.9.7" else properties


@for_each_version
def test_hashes_of_texts(version: str) -> None:
    for case in values(version, "hashes")["strings"]:
        text = case["s"]
        assert java_hash(text) == case["hash"], text
        assert extend_hash(0, text.encode()) == case["hash"], text
        if text:
            assert tags_code_of(encode_properties({"A": "b", "TAGS": text})) == case["tags_code"]


@for_each_version
def test_hashes_of_index_keys_go_on_from_the_hash_of_the_topic(version: str) -> None:
    for case in values(version, "hashes")["index_keys"]:
        if "raw" in case:
            hashed = java_hash(case["raw"])
        else:
            hashed = extend_hash(java_hash(case["topic"] + "#"), case["key"].encode())
        assert (hashed, index_hash(hashed)) == (case["java_hash"], case["index_hash"]), case


@for_each_version
def test_offset_message_ids(version: str) -> None:
    for case in values(version, "message_ids")["offset_ids"]:
        host = encode_host(case["ip"], case["port"])
        found = decode_offset_id(case["id"])

        assert encode_offset_id(host, case["offset"]) == case["id"]
        assert (found.port, found.log_offset) == (case["port"], case["decoded_offset"])
        assert encode_host(found.host, found.port) == host


@for_each_version
def test_unique_message_ids(version: str) -> None:
    for case in values(version, "message_ids")["unique_ids"]:
        found = decode_unique_id(case["id"])

        assert encode_host(found.host, 0)[:-4].hex() == case["ip_hex"]
        assert (found.pid, found.process_number, found.month_ms, found.counter) == (
            case["pid"],
            case["class_loader_hash"],
            case["time_field_ms"],
            case["counter"],
        )


@for_each_version
def test_property_strings_written(version: str) -> None:
    for case in values(version, "properties")["encode"]:
        ours = written_by(version, encode_properties(case["properties"]))
        assert ours == bytes.fromhex(case["utf8_hex"]), case


@for_each_version
def test_property_strings_read(version: str) -> None:
    for case in values(version, "properties")["decode"]:
        assert decode_properties(case["text"]) == case["properties"], case
        assert decode_properties(case["text"].encode()) == case["properties"], case


def made_record(version: str, case: dict[str, Any], shared: dict[str, Any]) -> bytes:
    """Make our record of a recorded message; ``shared`` holds what a case does not repeat."""
    known = shared | case
    return encode_record(
        known["topic"].encode(),
        known["body"].encode(),
        written_by(version, encode_properties(known["properties"])),
        queue_id=known["queue_id"],
        flag=known["flag"],
        sys_flag=0,
        queue_offset=known.get("queue_offset", 0),
        log_offset=known.get("commit_log_offset", 0),
        born_time_ms=known["born_timestamp"],
        born_host=encode_host(known["born_host"], known["born_port"]),
        store_time_ms=known["store_timestamp"],
        store_host=encode_host(known["store_host"], known["store_port"]),
        reconsume_times=known["reconsume_times"],
        prepared_offset=known["prepared_transaction_offset"],
    )


@for_each_version
def test_records_as_the_store_makes_them(version: str) -> None:
    for case in values(version, "message_records")["store_encoder"]:
        data = bytes.fromhex(case["record_hex"])
        if len(case["topic"]) > 127 and version == "4.9.7":
            continue  # a length byte above 127, which its own broker refuses before that

        found = decode_record(data)

        assert made_record(version, case, {}) == data
        assert (found.topic, found.body.decode()) == (case["topic"], case["body"])
        assert found.properties == case["properties"]
        assert (found.queue_id, found.flag, found.sys_flag) == (
            case["queue_id"],
            case["flag"],
            case["sys_flag"],
        )
        assert (found.born_time_ms, found.store_time_ms) == (
            case["born_timestamp"],
            case["store_timestamp"],
        )
        assert (found.reconsume_times, found.prepared_offset) == (
            case["reconsume_times"],
            case["prepared_transaction_offset"],
        )


@for_each_version
def test_records_as_the_decoder_makes_and_reads_them(version: str) -> None:
    for case in values(version, "message_records")["decoder_encode"]:
        data = bytes.fromhex(case["encode_hex"])
        if len(case["topic"]) > 127 and version == "4.9.7":
            continue
        expected = case["decoded"]

        found = decode_record(data)

        assert found.topic == expected["topic"]
        assert found.offset_message_id == expected["msg_id"]
        assert (found.queue_offset, found.log_offset) == (
            expected["queue_offset"],
            expected["commit_log_offset"],
        )
        assert (found.size_bytes, found.body_crc) == (expected["store_size"], expected["body_crc"])
        assert found.body_crc == body_crc(found.body)
        assert found.properties == expected["properties"]
        assert index_keys_of(encode_properties(found.properties)) == [
            b"AC11000100002A9F0000000000000001",
            b"k1",
            b"k2",
        ]


@for_each_version
def test_batches(version: str) -> None:
    recorded = values(version, "batch")
    items = [
        BatchItem(
            case["flag"],
            bytes.fromhex(case["body_hex"]),
            written_by(version, encode_properties(case["properties"])),
        )
        for case in recorded["messages"]
    ]

    found = decode_batch(bytes.fromhex(recorded["all_hex"]))

    assert [encode_batch([item]).hex() for item in items] == [
        case["encoded_hex"] for case in recorded["messages"]
    ]
    assert encode_batch(items).hex() == recorded["all_hex"]
    assert found == items
    assert [decode_properties(item.properties) for item in found] == [
        case["properties"] for case in recorded["decoded"]
    ]


@for_each_version
def test_zlib_bodies_from_java_become_whole_again(version: str) -> None:
    cases = [case for case in values(version, "compression")["cases"] if case["type"] == "ZLIB"]
    for case in cases:
        plain = bytes.fromhex(case["plain_hex"])
        assert (
            decompress_body(bytes.fromhex(case["compressed_hex"]), case["sys_flag_bits"]) == plain
        )
        assert decompress_body(compress_body(plain), case["sys_flag_bits"]) == plain
    assert cases


@for_each_version
@pytest.mark.parametrize(
    ("kind", "package"), [("LZ4", "lz4.frame"), ("ZSTD", "zstandard")], ids=["lz4", "zstd"]
)
def test_other_bodies_from_java_become_whole_if_their_package_is_there(
    version: str, kind: str, package: str
) -> None:
    pytest.importorskip(package)
    cases = [case for case in values(version, "compression")["cases"] if case["type"] == kind]
    for case in cases:
        found = decompress_body(bytes.fromhex(case["compressed_hex"]), case["sys_flag_bits"])
        assert found == bytes.fromhex(case["plain_hex"])
    assert cases


@for_each_version
def test_the_kind_of_compression_follows_from_the_flag(version: str) -> None:
    bits = {case["type"]: case["sys_flag_bits"] for case in values(version, "compression")["cases"]}
    assert bits == {
        "LZ4": SysFlag.COMPRESSED | SysFlag.LZ4,
        "ZSTD": SysFlag.COMPRESSED | SysFlag.ZSTD,
        "ZLIB": SysFlag.COMPRESSED | SysFlag.ZLIB,
    }
    for case in values(version, "compression")["type_of_sys_flag"]:
        flag = case["sys_flag"] | SysFlag.COMPRESSED
        if case["type"] == "ZLIB":
            assert decompress_body(compress_body(b"plain"), flag) == b"plain"
        else:
            with pytest.raises(CompressionError):
                decompress_body(compress_body(b"plain"), flag)


@for_each_version
def test_checksums_of_bodies(version: str) -> None:
    for case in values(version, "crc32")["cases"]:
        if case["hex"] is not None:
            data = bytes.fromhex(case["hex"])
        else:
            assert case["text_repeat"].startswith("'rocketmq ' repeated")
            data = (b"rocketmq " * case["length"])[: case["length"]]
        assert len(data) == case["length"]
        assert body_crc(data) == case["crc32"], case


def ours(case: dict[str, Any], serialization: int) -> bytes:
    head = encode_head(
        case["code"],
        opaque=case["opaque"],
        flag=case["flag"],
        fields=case["ext_fields"],
        remark=case["remark"],
        serialization=serialization,
        version=case["version"],
        language=LanguageCode[case["language"]],
    )
    assert head[4] == serialization
    return head[8:]


@for_each_version
def test_json_headers_are_equal_byte_for_byte(version: str) -> None:
    for case in values(version, "remoting_headers")["cases"]:
        assert json.loads(ours(case, JSON_HEADER)) == json.loads(case["json_header"])
        assert ours(case, JSON_HEADER) == case["json_header"].encode()


@for_each_version
def test_binary_headers_are_equal_byte_for_byte(version: str) -> None:
    for case in values(version, "remoting_headers")["cases"]:
        if case["code"] > 32767:
            continue  # does not fit: we send such a command as JSON
        assert ours(case, BINARY_HEADER).hex() == case["binary_header_hex"]


@for_each_version
def test_headers_are_read_as_java_reads_them(version: str) -> None:
    for case in values(version, "remoting_headers")["cases"]:
        binary = bytes.fromhex(case["binary_header_hex"])
        check_decoded(command_of(BINARY_HEADER, binary), case["decoded"])
        text = case["json_header"].encode()
        check_decoded(command_of(JSON_HEADER, text), case)


def check_decoded(command: Command, expected: dict[str, Any]) -> None:
    assert (command.code, command.opaque, command.flag) == (
        expected["code"],
        expected["opaque"],
        expected["flag"],
    )
    assert (command.language, command.version) == (expected["language"], expected["version"])
    assert (command.remark or None) == (expected["remark"] or None)
    fields = expected["ext_fields"] or {}
    assert command.fields == {name: value for name, value in fields.items() if value is not None}


@for_each_version
def test_numbers_of_languages(version: str) -> None:
    for case in values(version, "remoting_headers")["language_codes"]:
        assert LanguageCode[case["name"]] == case["code"]


@for_each_version
def test_numbers_of_releases(version: str) -> None:
    for case in values(version, "remoting_headers")["versions"]:
        name, number = case["name"], case["n"]
        if not name.startswith(("V4_", "V5_", "HIGHER")):
            continue
        assert version_name(number) == name
