"""Addresses of servers: brackets around IPv6, wherever one is made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cometmq
from cometmq.model.address import check_address, host_and_port

SOURCES = Path(cometmq.__file__).parent
MADE_BY_HAND = re.compile(r"\{[\w.()]*(host|address|ip)[\w.()]*\}:\{[\w.()]*port")
"""A host and a port in one text."""


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:9876"),
        ("names.example", "names.example:9876"),
        ("::1", "[::1]:9876"),
        ("[::1]", "[::1]:9876"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9876"),
    ],
)
def test_an_ipv6_host_is_in_brackets(host: str, address: str) -> None:
    assert host_and_port(host, 9876) == address
    assert check_address(address) == address


def test_no_module_makes_an_address_by_hand() -> None:
    made = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text().splitlines()
        if MADE_BY_HAND.search(line) and "bracketed(" not in line
    ]

    assert made == []
