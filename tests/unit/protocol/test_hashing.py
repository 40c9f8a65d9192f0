"""Java's hash of texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.hashing import extend_hash, index_hash, java_hash

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def by_definition(text: str) -> int:
    units = text.encode("utf-16-be")
    hashed = 0
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed


@given(texts)
def test_a_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    assert java_hash(text) == by_definition(text)
    assert extend_hash(0, text.encode()) == by_definition(text)


@given(texts, texts)
def test_a_hash_goes_on_from_the_hash_of_the_beginning(begin: str, rest: str) -> None:
    assert extend_hash(java_hash(begin), rest.encode()) == java_hash(begin + rest)


def test_long_texts_hash_like_short_ones() -> None:
    for text in ("x" * 1023, "x" * 1024, "x" * 5000, "é" * 5000):
        assert java_hash(text) == by_definition(text)


def test_broken_utf_8_counts_as_replacement_characters() -> None:
    assert extend_hash(0, b"a\xffb") == java_hash("a\ufffdb")


def test_lone_surrogates_are_units_like_others() -> None:
    assert java_hash("\ud83d") == 0xD83D


def test_a_hash_in_an_index_is_never_negative() -> None:
    assert [index_hash(value) for value in (5, 0, -5, -(2**31), 2**31 - 1)] == [
        5,
        0,
        5,
        0,
        2**31 - 1,
    ]
