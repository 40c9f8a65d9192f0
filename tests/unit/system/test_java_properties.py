"""Java properties text: what is read, what is written, and what stays when values change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.system.java_properties import Entry, decode, parse, render, with_changes

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def as_dict(text: str) -> dict[str, str]:
    return {entry.key: entry.value for entry in parse(text)}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b", "a", "b"),
        ("a:b", "a", "b"),
        ("a b c", "a", "b c"),
        ("\t a\t=\tb", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a=b  ", "a", "b  "),
        (r"a\ b=c", "a b", "c"),
        (r"a\=b=c", "a=b", "c"),
        (r"a=\u4e2d\t\n\q", "a", "中\t\nq"),
        (r"a=\uD83D\uDE00", "a", "😀"),
        ("a=b\\\n   c", "a", "bc"),
        ("a=b\\\\", "a", "b\\"),
        ("a=b\\", "a", "b"),
        ("namesrvAddr=h1:9876;h2:9876", "namesrvAddr", "h1:9876;h2:9876"),
    ],
)
def test_line_is_read_as_java_reads_it(line: str, key: str, value: str) -> None:
    assert parse(line) == [Entry(key, value, 1)]


def test_comments_and_blank_lines_are_left_out_and_lines_are_counted() -> None:
    text = "# one\n\n  ! two\na=1\\\n  2\nb=3\n"
    assert parse(text) == [Entry("a", "12", 4), Entry("b", "3", 6)]


def test_hash_inside_a_value_is_no_comment() -> None:
    assert parse("a=b # c") == [Entry("a", "b # c", 1)]


def test_broken_unicode_escape_names_the_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse("a=1\nb=\\u12")


def test_bytes_that_are_no_utf8_are_read_as_java_reads_them() -> None:
    assert decode(b"a=\xe9") == "a=é"
    assert decode("a=é".encode()) == "a=é"
    assert decode(b"\xef\xbb\xbfa=1") == "a=1"


@given(st.dictionaries(KEYS, TEXTS, max_size=5))
def test_what_is_rendered_is_read_back(values: dict[str, str]) -> None:
    assert as_dict(render(values)) == values


@given(st.dictionaries(KEYS, TEXTS, max_size=5))
def test_rendered_text_is_ascii(values: dict[str, str]) -> None:
    assert render(values).isascii()


@given(st.dictionaries(KEYS, TEXTS, max_size=4), st.dictionaries(KEYS, TEXTS, max_size=4))
def test_changes_win_and_the_rest_stays(before: dict[str, str], changes: dict[str, str]) -> None:
    assert as_dict(with_changes(render(before), changes)) == before | changes


@given(st.text(max_size=60).filter(lambda text: "\\u" not in text))
def test_any_text_without_unicode_escapes_is_read(text: str) -> None:
    lines = len(text.splitlines())
    assert all(1 <= entry.line <= lines for entry in parse(text))


def test_comments_and_order_stay_when_values_change() -> None:
    text = "# who\nbrokerName=a\n\n# how\nflush=x\\\n  y\nlast=1\n"
    changed = with_changes(text, {"flush": "z", "fresh": "2"})
    assert changed == "# who\nbrokerName=a\n\n# how\nflush=z\nlast=1\nfresh=2\n"


def test_only_the_last_of_two_equal_keys_changes_for_it_is_the_one_that_counts() -> None:
    assert as_dict(with_changes("a=1\na=2\n", {"a": "3"})) == {"a": "3"}
