"""The property string of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import (
    decode_properties,
    encode_properties,
    index_keys_of,
    marker,
    tags_code_of,
    value_of,
)

words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)
property_maps = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY"]) | words, words)
pieces = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", b"a", b"b c", b" "])


@given(property_maps)
def test_properties_come_back(properties: dict[str, str]) -> None:
    data = encode_properties(properties)

    assert decode_properties(data) == properties
    assert decode_properties(data.decode()) == properties
    assert decode_properties(data.removesuffix(b"\x02")) == properties


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_one_property_is_found_exactly_if_reading_all_finds_it(data: bytes) -> None:
    everything = decode_properties(data)
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "a", "b c"):
        found = value_of(data, marker(name.encode()))
        assert (None if found is None else found.decode()) == everything.get(name)


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_quick_answers_agree_with_reading_all(data: bytes) -> None:
    everything = decode_properties(data)
    tags, keys = everything.get("TAGS", ""), everything.get("KEYS", "")
    unique = [everything["UNIQ_KEY"]] if "UNIQ_KEY" in everything else []

    assert tags_code_of(data) == java_hash(tags)
    assert [key.decode() for key in index_keys_of(data)] == unique + [
        key for key in keys.split(" ") if key
    ]


def test_the_last_of_equal_names_wins_unless_it_is_empty() -> None:
    assert value_of(b"TAGS\x01a\x02TAGS\x01b\x02", marker(b"TAGS")) == b"b"
    assert value_of(b"TAGS\x01a\x02TAGS\x01\x02x\x01y", marker(b"TAGS")) == b"a"
    assert value_of(b"TAGS\x01\x02TAGS\x01", marker(b"TAGS")) is None


def test_a_name_is_only_found_where_an_entry_begins() -> None:
    data = b"XTAGS\x01a\x02v\x01TAGS\x01b"
    assert value_of(data, marker(b"TAGS")) is None
    assert tags_code_of(data) == 0


def test_several_keys_stand_apart_by_single_blanks() -> None:
    assert index_keys_of(b"KEYS\x01 a  b \x02UNIQ_KEY\x01U") == [b"U", b"a", b"b"]


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02", b"\x02\x02", b"a", b"\x01\x02\x01"])
def test_what_is_no_entry_counts_as_nothing(data: bytes) -> None:
    assert decode_properties(data) == {}
    assert index_keys_of(data) == []


def test_broken_utf_8_is_read_as_replacement_characters() -> None:
    assert decode_properties(b"a\x01\xff\x02") == {"a": "\ufffd"}
