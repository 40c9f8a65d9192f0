"""The address that others know a broker by."""

from __future__ import annotations

import ipaddress

import pytest

from cometmq.broker.address import broker_address
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ConfigError


def found(said: str, bound: str) -> tuple[str, str, str]:
    own = broker_address(BrokerSettings(broker_ip1=said, bind_address=bound))
    return own.host, own.ip, own.at(10911)


@pytest.mark.parametrize(
    ("said", "bound", "expected"),
    [
        ("10.1.2.3", "0.0.0.0", ("10.1.2.3", "10.1.2.3", "10.1.2.3:10911")),
        ("", "10.1.2.4", ("10.1.2.4", "10.1.2.4", "10.1.2.4:10911")),
        ("", "::1", ("::1", "::1", "[::1]:10911")),
        ("2001:db8::7", "::", ("2001:db8::7", "2001:db8::7", "[2001:db8::7]:10911")),
        ("[2001:db8::7]", "::", ("2001:db8::7", "2001:db8::7", "[2001:db8::7]:10911")),
        ("localhost", "0.0.0.0", ("localhost", "127.0.0.1", "localhost:10911")),
    ],
)
def test_the_address_is_the_one_set_else_the_one_listened_on(
    said: str, bound: str, expected: tuple[str, str, str]
) -> None:
    assert found(said, bound) == expected


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_broker_on_every_address_is_known_by_one_of_the_machines_own(bound: str) -> None:
    host, ip, text = found("", bound)

    assert host == ip
    assert not ipaddress.ip_address(ip).is_unspecified
    assert text == f"{ip}:10911"


@pytest.mark.parametrize("said", ["no such host", "a..b", "x" * 70])
def test_a_name_nobody_knows_is_refused_with_its_key(said: str) -> None:
    with pytest.raises(ConfigError, match="brokerIP1="):
        found(said, "0.0.0.0")
