"""White addresses: the patterns of RocketMQ, and what is none."""

from __future__ import annotations

import pytest

from cometmq.access.plain.addresses import AddressSet
from cometmq.model.errors import ConfigError

MATCHES = [
    ("10.1.2.3", "10.1.2.3", True),
    ("10.1.2.3", "10.1.2.30", False),
    ("10.1.2.3,10.9.9.9", "10.9.9.9", True),
    ("10.1.2.3, 10.9.9.9", "10.9.9.9", True),
    ("10.1.2.{3,4}", "10.1.2.4", True),
    ("10.1.2.{3,4}", "10.1.2.34", False),
    ("10.1.2.{3, 4},10.7.7.7", "10.7.7.7", True),
    ("10.1.2.*", "10.1.2.0", True),
    ("10.1.2.*", "10.1.20.1", False),
    ("10.1.*.*", "10.1.200.7", True),
    ("10.1.*.*", "10.2.200.7", False),
    ("10.1.2.10-19", "10.1.2.19", True),
    ("10.1.2.10-19", "10.1.2.9", False),
    ("10.1.2.10-19", "10.1.2.100", False),
    ("10.20-21.*.*", "10.21.3.4", True),
    ("10.1.20-21.*", "10.1.22.1", False),
    ("10.1.20-21.5", "10.1.20.6", False),
    ("10.1.2.*", "", False),
    ("10.1.2.*", "no address", False),
    ("10.1.2.*", "::ffff:10.1.2.3", False),
    ("*", "10.1.2.3", True),
    ("*", "2001:db8::1", True),
    ("*.*.*.*", "10.1.2.3", True),
    ("*:*:*:*:*:*:*:*", "2001:db8::1", True),
    ("2001:db8::1", "2001:db8:0:0:0:0:0:1", True),
    ("2001:DB8::1", "2001:db8::1", True),
    ("2001:db8::1", "2001:db8::2", False),
    ("::1", "::1", True),
    ("2001:db8::*", "2001:db8::abcd", True),
    ("2001:db8::*", "2001:db8::1:0", False),
    ("2001:db8::10-1f", "2001:db8::1f", True),
    ("2001:db8::10-1f", "2001:db8::20", False),
    ("2001:db8::10-1f:*", "2001:db8::11:7", True),
    ("2001:db8::{a,b}", "2001:db8::b", True),
    ("2001:db8::1", "2001:db8::1%eth0", True),
    ("", "10.1.2.3", False),
    ("  ", "10.1.2.3", False),
]


@pytest.mark.parametrize(("pattern", "host", "is_in"), MATCHES)
def test_a_pattern_matches_its_addresses_and_no_others(
    pattern: str, host: str, is_in: bool
) -> None:
    assert (host in AddressSet([pattern])) is is_in


@pytest.mark.parametrize(
    "pattern",
    ["300.1.2.x", "10.1.2", "10.1.2.3.4", "10.1.2.256", "10.*.2.3", "*.1.2.3", "1-2.3.4.5",
     "10.1.2.9-1", "10.1.2.{1,x}", "10.1.{2,3}.4", "10.1.2.-5", "10.1.2.1-", "10.1.2.01234",
     "2001:db8::g", "2001:db8::1::2", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "2001:db8::12345",
     "10.1.2.3;10.1.2.4", "10.1.2.0/24", "localhost", "{", "10.1.2.{}"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused_and_shown(pattern: str) -> None:
    with pytest.raises(ConfigError, match="expected an IP address") as caught:
        AddressSet(["10.0.0.1", pattern])
    assert pattern.split(",")[0][:4] in str(caught.value)
