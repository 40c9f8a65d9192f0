"""The producer groups that are online, their members, and clients by their id.

group -> connection -> member ;  client id -> member (for replies)

Any client can register an unused id. The id is bound to the connection that registered it first.
While that is open, only a client of the same account can take the id over, for example one that has
reconnected.

Kept in memory only; used in the event loop's thread. Source: ProducerManager, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cometmq.broker.checks import invalid
from cometmq.broker.clients.members import SILENT_MS_MAX, Member
from cometmq.remoting import Peer
from cometmq.system.clock import Clock
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

GROUPS_MAX = 2_000
"""The limit of the groups of one connection: twice the groups of one heartbeat."""
CLIENT_IDS_MAX = 100
"""The client ids of one connection that are found; a client has one. The newest ones count."""


class ProducerRegistry:
    """The producer groups that are online.

    Args:
        clock: the time in ms.
        silent_ms_max: how long a member may be silent before the sweep removes it.
    """

    def __init__(self, clock: Clock, *, silent_ms_max: int = SILENT_MS_MAX) -> None:
        self._clock = clock
        self._silent_ms_max = silent_ms_max
        self._groups: dict[str, dict[Peer, Member]] = {}
        self._by_connection: dict[Peer, set[str]] = {}
        self._by_client: dict[str, Member] = {}
        self._clients: dict[Peer, dict[str, None]] = {}
        """The client ids that each connection has named, the newest last."""
        self._conflicts = RateLimitedLog(log, "client ids stayed where they were")
        self._silences = RateLimitedLog(log, "producer heartbeats timed out")

    def check_room(self, connection: Peer, groups: Iterable[str]) -> None:
        """Refuse a heartbeat with more groups than one connection may have.

        Raises:
            ResponseError: 29.
        """
        known = self._by_connection.get(connection) or set()
        count = len(known) + len(set(groups).difference(known))
        if count > GROUPS_MAX:
            raise invalid(
                f"a connection with {count} producer groups, expected at most {GROUPS_MAX}"
            )

    def register(self, connection: Peer, client_id: str, group: str, access_key: str = "") -> None:
        """Register a heartbeat of a member.

        Args:
            connection: its connection.
            client_id: its client id.
            group: its group.
            access_key: the account that the heartbeat names; empty for none.
        """
        members = self._groups.setdefault(group, {})
        member = members.get(connection)
        if member is None or (member.client_id, member.access_key) != (client_id, access_key):
            member = Member(connection, client_id, self._clock.now_ms(), access_key)
            members[connection] = member
        else:
            member.refresh(self._clock.now_ms())
        self._by_connection.setdefault(connection, set()).add(group)
        known = self._by_client.get(client_id)
        if known is None or known.connection.closed or known.account == member.account:
            self._by_client[client_id] = member
        else:
            self._conflicts.add(
                "a client id of an open connection of another account stays there client=%s"
                " peer=%s new=%s",
                *(client_id, known.connection.peer_text, connection.peer_text),
            )
        client_ids = self._clients.setdefault(connection, {})
        client_ids.pop(client_id, None)
        client_ids[client_id] = None
        if len(client_ids) > CLIENT_IDS_MAX:
            oldest = next(iter(client_ids))
            del client_ids[oldest]
            self._forget_client(connection, oldest)

    def unregister(self, connection: Peer, client_id: str, group: str) -> None:
        """Remove a client from a group; does nothing if it is no member.

        An empty ``client_id`` stands for the client of the connection.
        """
        member = self._groups.get(group, {}).get(connection)
        if member is not None and client_id in ("", member.client_id):
            self._remove(group, connection)

    def connection_closed(self, connection: Peer) -> None:
        """Remove a connection from all its groups."""
        for group in list(self._by_connection.get(connection, ())):
            self._remove(group, connection)

    def members(self, group: str) -> list[Member]:
        """Return the members of a group; empty if it is not online."""
        return list(self._groups.get(group, {}).values())

    def names(self) -> list[str]:
        """Return the names of the groups that are online."""
        return list(self._groups)

    def connection_of(self, client_id: str) -> Peer | None:
        """Return the connection of a client, or None if it is no producer that is online."""
        member = self._by_client.get(client_id)
        return None if member is None else member.connection

    def sweep(self) -> list[Member]:
        """Remove the members that were silent for too long, and close their connections."""
        self._conflicts.settle()
        self._silences.settle()
        limit_ms = self._clock.now_ms() - self._silent_ms_max
        silent = [
            member
            for members in self._groups.values()
            for member in members.values()
            if member.seen_ms < limit_ms
        ]
        for member in silent:
            self._silences.add("producer heartbeat timed out client=%s", member.client_id)
            self.connection_closed(member.connection)
            member.connection.close()
        return silent

    def _remove(self, group: str, connection: Peer) -> None:
        del self._groups[group][connection]
        if not self._groups[group]:
            del self._groups[group]
        groups = self._by_connection[connection]
        groups.discard(group)
        if not groups:
            del self._by_connection[connection]
            self._forget_clients(connection)

    def _forget_clients(self, connection: Peer) -> None:
        for client_id in self._clients.pop(connection, ()):
            self._forget_client(connection, client_id)

    def _forget_client(self, connection: Peer, client_id: str) -> None:
        if self.connection_of(client_id) is connection:
            del self._by_client[client_id]
