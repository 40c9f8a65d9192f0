"""The decoder of columns: both builds agree with each other and with the decoder of messages."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.flags import SysFlag
from cometmq.protocol.compression import compress_body
from cometmq.protocol.record import (
    MAGIC_BLANK,
    RecordError,
    encode_host,
    encode_record,
    record_size,
)
from cometmq.spark.columns import Ending, RecordColumns
from cometmq.spark.schema import log_columns
from support.spark.generated_records import I64, logs, messages_of, plain_log, records
from support.spark.plain_columns import PlainColumns

NAMES = [column.name for column in log_columns(properties=True, validate=True)]
NAMES.remove("broker_name")
ALL = frozenset(NAMES)
HOST = encode_host("10.0.0.1", 10911)
MANY, LARGE = 10_000, 1 << 30

Taken = tuple[int, int, Ending, str | None, dict[str, Any]]


def taken(kind: Any, data: Any, limits: dict[str, Any], **how: Any) -> Taken:
    """Everything there is to say about one take."""
    most = {"max_rows": limits.pop("max_rows", MANY), "max_bytes": limits.pop("max_bytes", LARGE)}
    columns = kind(how.pop("wanted", ALL), **most, **how)
    position = limits.pop("position", 0)
    stop = limits.pop("stop", len(data))
    rows, end, ending = columns.take(data, position, stop, **limits)
    return rows, end, ending, columns.problem, columns.buffers


def take(data: Any, *, how: dict[str, Any] | None = None, **limits: Any) -> Taken:
    """Take by the decoder under test, having seen that the plain one does the very same."""
    found = taken(RecordColumns, data, dict(limits), **(how or {}))
    assert found == taken(PlainColumns, data, dict(limits), **(how or {}))
    return found


# --- both builds make the same of whatever there is ----------------------------------------------

HOWS = st.fixed_dictionaries(
    {
        "wanted": st.one_of(st.just(ALL), st.frozensets(st.sampled_from(NAMES))),
        "decompress": st.booleans(),
        "crc": st.booleans(),
        "permissive": st.booleans(),
    }
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_rows": st.integers(1, 4),
        "max_bytes": st.integers(0, 900),
        "first_offset": st.integers(0, 12),
        "end_offset": st.integers(0, 25),
        "log_base": st.sampled_from([0, 0, 7]),
        "topics": st.frozensets(st.sampled_from([b"orders", b"%RETRY%group", b"no such"])),
    },
)


@given(logs(times=I64), HOWS, LIMITS)
def test_both_decoders_make_the_same_buffers(
    data: bytes, how: dict[str, Any], limits: dict[str, Any]
) -> None:
    take(data, how=how, **limits)


@given(st.data(), logs(max_size=3), HOWS)
def test_both_decoders_end_alike_when_a_log_is_cut(
    draw: st.DataObject, data: bytes, how: dict[str, Any]
) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    rows, end, ending, problem, _ = take(data[:cut], how=how | {"permissive": True, "crc": False})
    whole = [at for at in starts_of(data) if at + record_size(data, at) <= cut]
    assert rows == len(whole)
    assert end == (whole[-1] + record_size(data, whole[-1]) if whole else 0)
    assert (ending, problem) == (Ending.END if end == cut else Ending.TORN, None)


@given(st.data(), logs(max_size=3), HOWS)
def test_both_decoders_make_the_same_of_changed_bytes(
    draw: st.DataObject, data: bytes, how: dict[str, Any]
) -> None:
    changed = bytearray(data)
    for at in draw.draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=4)):
        if changed:
            changed[at] = draw.draw(st.integers(0, 255))
    take(bytes(changed), how=how, log_base=draw.draw(st.sampled_from([-1, 0])))


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_met_with_an_ending(data: bytes, position: int) -> None:
    rows, end, ending, problem, _ = take(data, position=position)
    assert (rows, end) == (0, position)
    assert (ending is Ending.BAD) == (problem is not None)


def starts_of(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += record_size(data, at)
    return starts


# --- why it ends, and where ----------------------------------------------------------------------

RECORD = plain_log(1)


def test_the_end_is_the_first_record_that_begins_at_the_stop_or_later() -> None:
    data = plain_log(3)
    first, second, third = starts_of(data)
    assert take(data, stop=second)[:3] == (1, second, Ending.END)
    assert take(data, stop=second + 1)[:3] == (2, third, Ending.END)
    assert take(data, position=second, stop=1 << 40)[:3] == (2, len(data), Ending.END)
    assert take(data, position=first, stop=first)[:3] == (0, 0, Ending.END)


def test_a_full_batch_goes_on_where_it_ended() -> None:
    data = plain_log(5)
    second_end = starts_of(data)[2]
    assert take(data, max_rows=2)[:3] == (2, second_end, Ending.FULL)
    assert take(data, max_rows=2, position=second_end)[:3] == (2, starts_of(data)[4], Ending.FULL)
    assert take(data, max_rows=5)[:3] == (5, len(data), Ending.END)


def test_bytes_of_a_batch_are_bounded_by_what_its_columns_hold() -> None:
    data = plain_log(40)
    rows, _, ending, _, buffers = take(data, max_bytes=2000, how={"wanted": ALL})
    size = sum(len(part) for parts in buffers.values() for part in parts if part is not None)
    assert ending is Ending.FULL
    assert 1 < rows < 40
    assert 1500 < size < 2000 + 4 * 20 + rows * 8 * 4  # entries of the map have offsets too


def test_bytes_of_a_batch_count_bytes_and_not_characters() -> None:
    tags = "TAGS\x01" + "ü" * 500
    data = compressed(b"", 0, tags.encode()) * 6
    wanted = frozenset({"tags"})
    assert take(data, max_bytes=3 * 1004, how={"wanted": wanted})[0] == 3
    assert take(data, max_bytes=3 * 1004 - 1, how={"wanted": wanted})[0] == 2


def test_one_row_is_taken_however_large_it_is() -> None:
    assert take(plain_log(2, body=bytes(5000)), max_bytes=10)[:3] == (
        1,
        len(plain_log(1, body=bytes(5000))),
        Ending.FULL,
    )


def test_a_decompressed_body_counts_with_the_bytes_it_then_has() -> None:
    body = compress_body(bytes(100_000))
    data = compressed(body) * 4
    assert take(data, max_bytes=250_000)[0] == 2
    assert take(data, max_bytes=250_000, how={"decompress": False})[0] == 4


def compressed(
    body: bytes, flag: int = SysFlag.COMPRESSED, properties: bytes = b"TAGS\x01a"
) -> bytes:
    return encode_record(
        b"orders", body, properties, queue_id=0, queue_offset=0, log_offset=0, born_time_ms=0,
        born_host=bytes(8), store_time_ms=0, store_host=bytes(8), sys_flag=flag,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tail", "ending"),
    [
        (bytes(8), Ending.ZERO),
        (bytes(500), Ending.ZERO),
        (bytes(7), Ending.TORN),
        ((99).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True), Ending.BLANK),
        (RECORD[:8], Ending.TORN),
        (RECORD[:-1], Ending.TORN),
        (RECORD[:4] + b"\0\0\0\0" + RECORD[8:], Ending.BAD),
        ((20).to_bytes(4, "big") + RECORD[4:], Ending.BAD),
        (RECORD[:84] + (1 << 20).to_bytes(4, "big") + RECORD[88:], Ending.BAD),
        (b"\xff" * 100, Ending.BAD),
    ],
)
def test_what_stands_behind_the_last_record_is_named(tail: bytes, ending: Ending) -> None:
    rows, end, met, problem, _ = take(RECORD + tail)
    assert (rows, end, met) == (1, len(RECORD), ending)
    assert (problem is not None) == (ending is Ending.BAD)


def test_a_record_at_another_place_than_it_says_is_bad() -> None:
    data = plain_log(3)
    second = starts_of(data)[1]
    assert take(data[second:], log_base=second)[:3] == (2, len(data) - second, Ending.END)
    rows, end, ending, problem, _ = take(data[second:], log_base=second + 1)
    assert (rows, end, ending) == (0, 0, Ending.BAD)
    assert problem == f"a record at 0 with log offset {second}, expected {second + 1}"


def test_nonsense_is_refused() -> None:
    for limits in ({"position": -1}, {"max_rows": 0}):
        with pytest.raises(ValueError, match=r"expected [01] or up"):
            taken(RecordColumns, RECORD, limits)


# --- damage --------------------------------------------------------------------------------------


def test_a_wrong_checksum_ends_it_only_if_checksums_are_looked_at() -> None:
    data = bytearray(plain_log(3))
    second = starts_of(bytes(data))[1]
    data[second + 90] ^= 1
    assert take(data)[:3] == (3, len(data), Ending.END)
    rows, end, ending, problem, _ = take(data, how={"crc": True})
    assert (rows, end, ending) == (1, second, Ending.BAD)
    assert problem is not None
    assert problem.startswith("a body with checksum 0x")


def test_a_damaged_record_is_a_row_marked_as_such_when_that_is_wanted() -> None:
    broken = compressed(b"not compressed at all")
    data = RECORD + broken + RECORD
    rows, _, ending, _, buffers = take(data, how={"permissive": True})
    assert (rows, ending) == (3, Ending.END)
    assert buffers["record_valid"] == (None, bytearray([0b101]))
    assert bytes(buffers["body"][2]).endswith(b"not compressed at all" + b"x" * 128)
    assert take(data)[:4] == (
        1,
        len(RECORD),
        Ending.BAD,
        "a compressed body is damaged: Error -3 while decompressing data: incorrect header check",
    )


@pytest.mark.parametrize("codec", [0, SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD])
def test_bodies_of_every_codec_are_made_whole(codec: int) -> None:
    flag = SysFlag.COMPRESSED | codec
    data = compressed(compress_body(b"as it was " * 50, codec or SysFlag.ZLIB), flag)
    for wanted in (ALL, frozenset({"sys_flag", "body"})):
        buffers = take(data, how={"wanted": wanted})[4]
        assert bytes(buffers["body"][2]) == b"as it was " * 50
        assert buffers["sys_flag"] == (None, bytearray(codec.to_bytes(4, "little")))
    kept = take(data, how={"decompress": False})[4]
    assert bytes(kept["body"][2]) == compress_body(b"as it was " * 50, codec or SysFlag.ZLIB)
    assert kept["sys_flag"] == (None, bytearray(flag.to_bytes(4, "little")))


def test_the_flag_of_a_row_is_the_same_whether_its_body_is_wanted_or_not() -> None:
    data = compressed(compress_body(b"body"))
    alone = take(data, how={"wanted": frozenset({"sys_flag"})})[4]
    assert alone["sys_flag"] == take(data)[4]["sys_flag"]


def test_a_body_that_nobody_wants_is_not_looked_into() -> None:
    broken = compressed(b"not compressed at all")
    assert take(broken, how={"wanted": frozenset({"tags"})})[:3] == (1, len(broken), Ending.END)


def test_what_is_null_takes_no_bytes() -> None:
    data = compressed(b"", 0, b"") + compressed(b"", 0, b"TAGS\x01a")
    validity, offsets, text = take(data)[4]["tags"]
    assert (validity, text) == (bytearray([0b10]), bytearray(b"a"))
    assert offsets == bytearray((0).to_bytes(8, "little") + (1).to_bytes(4, "little"))


def test_an_equal_name_keeps_its_place_and_gets_the_later_value() -> None:
    """A message of a batch has WAIT twice."""
    rows = take(with_properties(b"WAIT\x01true\x02a\x011\x02WAIT\x01false\x02TAGS\x01x\x02a\x01"))
    _, offsets, *texts = rows[4]["properties"]
    assert (offsets[4], bytes(texts[1]), bytes(texts[3])) == (3, b"WAITaTAGS", b"false1x")


@pytest.mark.parametrize("count", [64, 65, 66])
def test_equal_names_are_found_among_few_and_among_many(count: int) -> None:
    names = b"".join(b"n%02d\x01v\x02" % number for number in range(count))
    _, offsets, *texts = take(with_properties(names + b"n00\x01last\x02"))[4]["properties"]
    assert (offsets[4], bytes(texts[3])) == (count, b"last" + b"v" * (count - 1))


def with_properties(text: bytes) -> bytes:
    return encode_record(
        b"orders", b"", text, queue_id=0, queue_offset=0, log_offset=0, born_time_ms=0,
        born_host=bytes(8), store_time_ms=0, store_host=bytes(8),
    )  # fmt: skip


def test_properties_in_the_thousands_are_read_in_time() -> None:
    """Comparing each name with each other one would take seconds."""
    text = b"".join(b"n%d\x01v\x02" % (number % 4000) for number in range(4200))
    offsets = take(with_properties(text) * 20)[4]["properties"][1]
    assert offsets is not None
    assert int.from_bytes(offsets[4:8], "little") == 4000


# --- which rows ----------------------------------------------------------------------------------


def test_only_wanted_columns_are_made() -> None:
    assert set(take(RECORD, how={"wanted": frozenset({"tags", "flag"})})[4]) == {"tags", "flag"}
    assert take(RECORD, how={"wanted": frozenset()})[:3] == (1, len(RECORD), Ending.END)
    assert set(take(RECORD)[4]) == ALL


@pytest.mark.parametrize("extra", [0, 30])
def test_other_topics_are_passed_over(extra: int) -> None:
    data = plain_log(12, topics=("a", "orders", "orders2"))
    topics = frozenset([b"orders", b"zzz", *(b"t%d" % number for number in range(extra))])
    rows, end, _, _, buffers = take(data, topics=topics)
    assert (rows, end) == (4, len(data))
    assert bytes(buffers["topic"][2]) == b"orders" * 4
    assert take(data, topics=frozenset())[0] == 0


def test_only_offsets_of_the_range_are_taken() -> None:
    data = plain_log(40)
    assert take(data, first_offset=3)[0] == 28
    assert take(data, end_offset=3)[0] == 12
    assert take(data, first_offset=3, end_offset=5)[0] == 8
    assert take(data, first_offset=3, end_offset=3)[:3] == (0, len(data), Ending.END)


def test_any_buffer_will_do(tmp_path: Path) -> None:
    data = plain_log(50)
    expected = take(data)
    path = tmp_path / "log"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for buffer in (bytearray(data), memoryview(data), mapped, memoryview(b"x" + data)[1:]):
            assert take(buffer) == expected


def test_a_decoder_can_be_used_again_after_damage() -> None:
    columns = RecordColumns(ALL, crc=True, max_rows=MANY, max_bytes=LARGE)
    for data in (plain_log(300), plain_log(2) + b"\xff" * 80, b"", plain_log(300)):
        columns.take(data, 0, len(data))
    assert columns.problem is None
    assert columns.buffers == taken(PlainColumns, plain_log(300), {})[4]


@given(records())
def test_a_record_is_taken_if_the_decoder_of_messages_takes_it(data: bytes) -> None:
    try:
        expected = (len(messages_of(data)), Ending.END, None)
    except RecordError as error:
        expected = (0, Ending.BAD, str(error))
    rows, _, ending, problem, _ = take(data)
    assert (rows, ending, problem) == expected


def test_a_text_that_was_made_up_stands_beside_those_of_the_data() -> None:
    data = b"".join(
        encode_record(
            b"orders", b"%d" % at, text, queue_id=0, queue_offset=at, log_offset=0, born_time_ms=0,
            born_host=HOST, store_time_ms=0, store_host=HOST,
        )
        for at, text in enumerate([b"TAGS\x01\xff", b"TAGS\x01a\x02", b"a\x01b\x02a\x01c", b""])
    )  # fmt: skip
    rows, *_, buffers = take(data)
    assert rows == 4
    assert bytes(buffers["tags"][2]) == "\ufffda".encode()
    assert bytes(buffers["properties"][5]) == "\ufffdac".encode()
