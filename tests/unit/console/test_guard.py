"""Which hosts and sites may send requests."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from cometmq.console.config import ConsoleSettings
from cometmq.console.guard import (
    is_loopback,
    is_of_another_site,
    is_part_of_another_site,
    visitor_of,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8082", "localhost:1", "[::1]:8082"])
def test_names_of_this_machine_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "example.org", "127.0.0.1.example.org", "10.0.0.1", "[::1", "localhost.example"]
)
def test_other_names_are_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("headers", "is_other"),
    [
        ({}, False),
        ({"origin": "http://a:1"}, False),
        ({"origin": "http://b:1"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://[b"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://a:1"}, False),
        ({"origin": ""}, True),
    ],
)
def test_a_request_of_another_site_is_noticed(headers: dict[str, str], is_other: bool) -> None:
    assert is_of_another_site(Headers(headers), ("a:1", "")) is is_other


@pytest.mark.parametrize(
    ("site", "mode", "is_part"),
    [
        ("cross-site", "no-cors", True),
        ("same-site", "cors", True),
        ("cross-site", "navigate", False),  # a link to the console
        ("same-origin", "no-cors", False),
        ("none", "navigate", False),
    ],
)
def test_a_page_of_another_site_gets_no_part_of_itself_here(
    site: str, mode: str, is_part: bool
) -> None:
    headers = Headers({"sec-fetch-site": site, "sec-fetch-mode": mode})
    assert is_part_of_another_site(headers) is is_part
    assert not is_part_of_another_site(Headers({}))


@pytest.mark.parametrize(
    ("peer", "hops", "visitor"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("192.0.2.7", ["203.0.113.9"], "192.0.2.7"),  # no proxy: a visitor may say anything
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["192.0.2.1, 203.0.113.9", "10.1.2.3"], "203.0.113.9"),
        ("127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.9, unknown"], "127.0.0.1"),
        ("127.0.0.1", ["127.0.0.1," * 100 + "10.0.0.1"], "127.0.0.1"),
    ],
)
def test_the_address_of_a_visitor_is_the_last_one_that_no_proxy_has(
    peer: str, hops: list[str], visitor: str
) -> None:
    proxies = ConsoleSettings(proxies=["127.0.0.1", "10.0.0.0/8"]).networks
    assert visitor_of(peer, hops, proxies) == visitor
