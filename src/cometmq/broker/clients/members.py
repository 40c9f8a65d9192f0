"""A member: one client's connection inside a group of consumers or producers.

Source: ClientChannelInfo, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.remoting import Peer

SILENT_MS_MAX = 120_000


class Member:
    """One client of a group, on one connection.

    Args:
        connection: its connection.
        client_id: its client id.
        seen_ms: time of its last heartbeat.
        access_key: the account that its heartbeat has named; empty for none.
    """

    __slots__ = ("access_key", "client_id", "connection", "language", "seen_ms", "version")

    def __init__(
        self, connection: Peer, client_id: str, seen_ms: int, access_key: str = ""
    ) -> None:
        self.connection = connection
        self.client_id = client_id
        self.access_key = access_key
        self.language = connection.language
        self.version = connection.version
        self.seen_ms = seen_ms

    @property
    def account(self) -> tuple[object, ...]:
        """The identity of its account: its access key, and the names in its certificate."""
        return self.access_key, *self.connection.certificate_names

    @property
    def sender(self) -> tuple[object, ...]:
        """The key of its permissions: its address and its account."""
        return self.connection.peer_text.rpartition(":")[0], *self.account

    def refresh(self, now_ms: int) -> None:
        """Register a further heartbeat."""
        self.seen_ms = now_ms
        self.language = self.connection.language
        self.version = self.connection.version
