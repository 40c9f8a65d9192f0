"""How addresses of name servers are written."""

from __future__ import annotations

import pytest

from cometmq.client._connection.name_servers import parse_addresses
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
