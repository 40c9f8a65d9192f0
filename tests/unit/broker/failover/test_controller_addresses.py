"""Controllers whose addresses are in the DNS."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cometmq.broker.failover import controller_addresses
from cometmq.broker.failover.controller_addresses import ControllerAddresses


class Dns:
    """The addresses of names; a name without any is unknown."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        await self.hangs.wait()
        if host not in self.addresses:
            raise OSError(f"{host}: name or service not known")
        return [f"{address}:{port}" for address in self.addresses[host]]


def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all addresses be too old from now on."""
    monkeypatch.setattr(controller_addresses, "FRESH_S", -1.0)


async def test_a_name_stands_for_all_its_addresses() -> None:
    dns = Dns(a=["10.0.0.2", "10.0.0.1"], b=["10.0.0.2", "10.0.0.3"])
    found = ControllerAddresses(lambda: ["a:9878", "b:9878"], dns.resolve)
    assert found.known() == []  # a lookup has begun

    await found.look_up()

    assert found.known() == ["10.0.0.1:9878", "10.0.0.2:9878", "10.0.0.3:9878"]
    await found.look_up()
    assert dns.asked == ["a", "b"]  # they are fresh


async def test_addresses_that_are_old_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Dns(a=["10.0.0.1"])
    names = ["a:1"]
    found = ControllerAddresses(lambda: names, dns.resolve)
    await found.look_up()
    dns.addresses |= {"a": ["10.0.0.9"], "b": ["10.0.0.8"]}

    aged(monkeypatch)
    await found.look_up()
    assert found.known() == ["10.0.0.9:1"]

    names[:] = ["b:1"]
    await found.look_up()
    assert found.known() == ["10.0.0.8:1"]


async def test_addresses_stay_known_while_the_dns_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dns = Dns(a=["10.0.0.1"])
    found = ControllerAddresses(lambda: ["a:1", "gone:1"], dns.resolve)
    await found.look_up()
    assert found.known() == ["10.0.0.1:1"]
    assert "cannot look up the addresses of controllers, retrying name=gone:1" in caplog.text

    dns.addresses.clear()
    aged(monkeypatch)
    await found.look_up()
    assert found.known() == ["10.0.0.1:1"]


async def test_a_lookup_that_hangs_delays_requests_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_addresses, "TIMEOUT_S", 0.01)
    dns = Dns(a=["10.0.0.1"])
    dns.hangs.clear()
    found = ControllerAddresses(lambda: ["a:1"], dns.resolve)
    await found.look_up()
    await found.look_up()
    assert (found.known(), dns.asked) == ([], ["a"])

    dns.hangs.set()
    monkeypatch.setattr(controller_addresses, "TIMEOUT_S", 60.0)
    await found.look_up()
    assert found.known() == ["10.0.0.1:1"]
    found.close()


async def test_the_system_is_asked() -> None:
    found = ControllerAddresses(lambda: ["localhost:9878", "no host.invalid:1"])
    await found.look_up()
    assert "127.0.0.1:9878" in found.known()
