"""Queries of requests, parts of lists, and values in HTML."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cometmq.console.pages import (
    Name,
    PageNumber,
    Paging,
    Query,
    TooSlowError,
    address,
    changed,
    encoded,
    environment,
    matching,
    paged,
    query_of,
    within,
)
from cometmq.model.errors import ConfigError
from cometmq.remoting.errors import CallTimeoutError


class Wanted(Query):
    topic: Name
    system: bool = False
    page: PageNumber = 1


def test_a_query_is_read_and_written() -> None:
    query = query_of(Wanted, [("topic", " %RETRY%a&b "), ("system", "true"), ("page", "")])
    assert query == Wanted(topic="%RETRY%a&b", system=True)
    assert changed(query, page=3) == "?topic=%25RETRY%25a%26b&system=true&page=3"
    assert address("/topics", topic="a b", tag=None) == "/topics?topic=a+b"
    assert address("/topics", topic="a\ud800") == "/topics?topic=a%3F"


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "topic"),
        ([("topic", "a"), ("page", "0")], "page"),
        ([("topic", "a"), ("page", "x")], "page"),
        ([("topic", "a" * 256)], "topic"),
        ([("topic", "a"), ("\x1b", "x")], r"unknown parameter \\x1b: expected topic, system, page"),
    ],
    ids=["missing", "too small", "no number", "too long", "unknown"],
)
def test_a_wrong_query_names_the_parameter(pairs: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        query_of(Wanted, pairs)


async def test_a_server_that_does_not_respond_is_named_and_no_slow_cluster() -> None:
    with pytest.raises(CallTimeoutError, match=r"127\.0\.0\.1:10911: no response"):
        async with within(60.0, "slow"):
            raise CallTimeoutError("127.0.0.1:10911: no response within 3 s")
    with pytest.raises(TooSlowError, match="slow"):
        async with within(0.001, "slow"):
            await asyncio.Event().wait()
    with pytest.raises(TooSlowError, match="slow"):
        async with within(60.0, "slow"):
            raise TimeoutError


def test_a_list_has_pages() -> None:
    items = list(range(101))
    assert paged(items, 2, 50) == (items[50:100], Paging(101, 2, 3))
    assert paged(items, 9, 50) == ([100], Paging(101, 3, 3))
    assert paged([], 1) == ([], Paging(0, 1, 1))
    assert matching(["Orders", "payments"], " ORD ") == ["Orders"]


def test_every_value_is_escaped_and_printable() -> None:
    shown = environment().from_string("{{ x }}|{{ nothing }}|{{ y|lines }}|<a href='{{ z }}'>")
    html = shown.render(x="<b>\u202e\x1b", nothing=None, y="<i>\r\n\tz\x00", z="'\"&")
    assert html == ("&lt;b&gt;\\u202e\\x1b|-|&lt;i&gt;\n    z\\x00|<a href='&#39;&#34;&amp;'>")


def test_times_and_numbers_without_sense_are_dashes() -> None:
    shown = environment().from_string("{{ t|time }} {{ n|number }} {{ r|ratio }}")
    assert shown.render(t=-1, n=None, r=None) == "- - -"
    assert shown.render(t=2**63, n=1234567, r=0.5) == "- 1,234,567 50.0 %"
    assert "2027-01-15 08:00:00 UTC" in shown.render(t=1_800_000_000_000, n=1.5, r=0)


def test_a_text_that_utf_8_cannot_encode_is_json_still() -> None:
    class Text(msgspec.Struct):
        value: str

    assert encoded(Text("\ud800<")) == b'{"value": "\\ud800<"}'
