"""The filter servers of a broker: registered, silent, expired, limited in number."""

from __future__ import annotations

import pytest

from cometmq.broker.filter_servers.servers import SERVERS_MAX, SILENT_S_MAX, FilterServers
from cometmq.model.errors import ResponseError
from cometmq.remoting.wire import Wire
from support.checks.manual_clock import ManualClock


class Peer(Wire):
    def __init__(self) -> None:  # a connection of which nothing but its identity is used
        pass


class Changes:
    def __init__(self, servers: FilterServers) -> None:
        self.seen: list[tuple[str, ...]] = []
        servers.on_change = lambda: self.seen.append(servers.addresses())


def test_a_filter_server_is_known_until_its_connection_closes() -> None:
    servers = FilterServers(ManualClock())
    changes, one, two = Changes(servers), Peer(), Peer()

    servers.register(one, "a:1")
    servers.register(one, "a:1")
    servers.register(two, "b:1")
    servers.connection_closed(one)
    servers.connection_closed(one)
    servers.connection_closed(Peer())

    assert changes.seen == [("a:1",), ("a:1", "b:1"), ("b:1",)]


def test_a_filter_server_is_removed_when_it_was_silent_for_too_long() -> None:
    clock = ManualClock()
    servers = FilterServers(clock)
    changes, silent, alive = Changes(servers), Peer(), Peer()
    servers.register(silent, "a:1")
    servers.register(alive, "b:1")

    clock.advance(int(SILENT_S_MAX * 1000))
    servers.sweep()
    assert servers.addresses() == ("a:1", "b:1")
    servers.register(alive, "b:1")
    clock.advance(100)
    servers.sweep()

    assert servers.addresses() == ("b:1",)
    assert changes.seen[-1] == ("b:1",)


def test_an_address_of_two_connections_stays_until_both_are_closed() -> None:
    servers = FilterServers(ManualClock())
    before, after = Peer(), Peer()
    servers.register(before, "a:1")
    changes = Changes(servers)
    servers.register(after, "a:1")
    servers.connection_closed(before)

    assert servers.addresses() == ("a:1",)
    assert changes.seen == []


def test_further_filter_servers_are_refused_when_there_are_too_many() -> None:
    servers = FilterServers(ManualClock())
    peers = [Peer() for _ in range(SERVERS_MAX)]
    for number, peer in enumerate(peers):
        servers.register(peer, f"a:{number}")

    with pytest.raises(ResponseError, match="takes no more"):
        servers.register(Peer(), "b:1")
    servers.register(peers[0], "a:0")
    assert len(servers.addresses()) == SERVERS_MAX


@pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:1:2", "a b:1", "a:1;b:2", "[::1]"])
def test_what_is_no_address_is_refused(address: str) -> None:
    servers = FilterServers(ManualClock())

    with pytest.raises(ResponseError, match="expected host:port"):
        servers.register(Peer(), address)


def test_an_ipv6_address_is_accepted() -> None:
    servers = FilterServers(ManualClock())
    servers.register(Peer(), "[::1]:9000")

    assert servers.addresses() == ("[::1]:9000",)
