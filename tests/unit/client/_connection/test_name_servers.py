"""Addresses of name servers, as settings or as an HTTP endpoint names them."""

from __future__ import annotations

import pytest

from cometmq.client._connection.name_servers import addresses_in, endpoint_url, parse_addresses
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1; b:2;", ["a:1", "b:2"]),
        ("a:1;a:1", ["a:1"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
        ("http://a.example:9876", ["a.example:9876"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_addresses_stand_between_semicolons(text: str, addresses: list[str]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize(
    "text",
    ["", ";", "a", "a:", ":1", "a:0", "a:65536", "a:b", "a:1;b", "a:²", "a:" + "9" * 5_000],
)
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (ClientSettings(http_domain="ns.example"), "http://ns.example:8080/rocketmq/nsaddr"),
        (ClientSettings(http_domain="ns.example:80"), "http://ns.example:80/rocketmq/nsaddr"),
        (
            ClientSettings(http_domain="ns.example", http_subgroup="mine"),
            "http://ns.example:8080/rocketmq/mine",
        ),
        (
            ClientSettings(http_domain="ns.example", unit_name="east"),
            "http://ns.example:8080/rocketmq/nsaddr-east?nofix=1",
        ),
        (
            ClientSettings(http_domain="ns.example", unit_name="a b?"),
            "http://ns.example:8080/rocketmq/nsaddr-a%20b%3F?nofix=1",
        ),
        (ClientSettings(), ""),
    ],
)
def test_the_endpoint_is_made_of_domain_subgroup_and_unit(
    settings: ClientSettings, url: str
) -> None:
    assert endpoint_url(settings) == url


@pytest.mark.parametrize(
    "body", [b"a:1;b:2", b"a:1;b:2\n", b"  a:1;b:2  \r\nc:3\n", b"\na:1; b:2;\n\nmore"]
)
def test_the_first_line_of_the_answer_is_the_list(body: bytes) -> None:
    assert addresses_in(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n" + body) == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\na:1", "404 Not Found"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no name server address"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "expected host:port"),
        (b"", "expected 200"),
        (b"a:1", "expected 200"),
    ],
)
def test_an_answer_without_addresses_is_refused_and_says_why(answer: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        addresses_in(answer)
