"""The consumer groups that are online, their members and their subscriptions.

group -> kind, model, start position, subscriptions by topic, members by connection

The latest heartbeat decides kind, model, start position and topics of the whole group, as in
RocketMQ; of two expressions for one topic the one with the greater version stays. Kept in memory
only; used in the event loop's thread. Source: ConsumerManager, ConsumerGroupInfo and
DefaultConsumerIdsChangeListener, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cometmq.broker.clients.member_subscriptions import (
    MemberSubscriptions,
    Subscriptions,
    subscriptions_of,
)
from cometmq.broker.clients.members import SILENT_MS_MAX, Member
from cometmq.broker.config import BrokerSettings
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.consumer import NotifyConsumerIdsChangedRequest
from cometmq.remoting import Peer
from cometmq.system.clock import Clock
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

BROADCASTING = "BROADCASTING"


class ConsumerGroup:
    """A group that is online.

    Args:
        name: its name.
        changes: the log of what heartbeats change; clients decide how often that is.
    """

    __slots__ = (
        "_changes",
        "consume_from",
        "fingerprint",
        "kind",
        "members",
        "model",
        "name",
        "subscriptions",
        "views",
    )

    def __init__(self, name: str, changes: RateLimitedLog) -> None:
        self.name = name
        self._changes = changes
        self.kind = ""
        self.model = ""
        self.consume_from = ""
        self.fingerprint: int | None = None
        """The fingerprint of the last heartbeat in its second form."""
        self.subscriptions: dict[str, Subscription] = {}
        self.members: dict[Peer, Member] = {}
        self.views = MemberSubscriptions(name, self._changes)
        """The subscriptions of each member."""

    @property
    def client_ids(self) -> list[str]:
        """Return the client ids of the members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> Member | None:
        """Return the member with this client id, or None."""
        return next((m for m in self.members.values() if m.client_id == client_id), None)

    def join(self, connection: Peer, client_id: str, now_ms: int) -> bool:
        """Add or refresh a member; return whether it is new."""
        member = self.members.get(connection)
        if member is not None and member.client_id == client_id:
            self._warn_of_twins(member)
            member.refresh(now_ms)
            return False
        if member is not None:
            self._changes.add(
                "connection changed its client id group=%s old=%s new=%s peer=%s",
                self.name,
                member.client_id,
                client_id,
                connection.peer_text,
            )
            self.leave(connection)
        self.members[connection] = Member(connection, client_id, now_ms)
        return member is None

    def _warn_of_twins(self, member: Member) -> None:
        """Log another connection of the same client that lives, too: both get the same queues.

        The old connection of a client that has reconnected sends no heartbeat after that.
        """
        for other in self.members.values():
            if (
                other.seen_ms > member.seen_ms
                and other.client_id == member.client_id
                and other is not member
            ):
                self._changes.add(
                    "two living clients have one client id, and handle each message twice: give"
                    " one of them another instance name group=%s client=%s peers=%s,%s",
                    *(self.name, member.client_id),
                    *(member.connection.peer_text, other.connection.peer_text),
                )

    def leave(self, connection: Peer) -> None:
        """Remove a member; its subscriptions stay while it has another connection."""
        member = self.members.pop(connection, None)
        if member is not None and self.find(member.client_id) is None:
            self.views.forget(member.client_id)

    def subscribe(self, subscriptions: Iterable[Subscription]) -> tuple[bool, set[str]]:
        """Set the subscriptions of a heartbeat.

        Returns:
            Whether the set of topics changed, and the topics whose expression did.
        """
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = wanted.keys() != self.subscriptions.keys()
        changed_expressions: set[str] = set()
        for topic, new in wanted.items():
            old = self.subscriptions.get(topic)
            if old is None or old.version < new.version:
                if old is not None and not new.selects_as(old):
                    changed_expressions.add(topic)
            else:
                wanted[topic] = old
        self.subscriptions = wanted
        return changed, changed_expressions


class ConsumerNotifier:
    """Notifies the members of a group that its members or topics have changed.

    Each member gets NOTIFY_CONSUMER_IDS_CHANGED (40), one-way, and rebalances at once. Members of
    broadcasting groups do not share queues and are not notified.

    Args:
        settings: returns the current settings of the broker.
    """

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings

    def notify(self, group: ConsumerGroup) -> None:
        """Notify all members of a group."""
        if group.model == BROADCASTING or not self._settings().notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequest(consumer_group=group.name)
        for connection in list(group.members):
            if not connection.closed:
                connection.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)


class ConsumerRegistry:
    """The consumer groups that are online.

    Args:
        clock: the time in ms.
        filters: gets the subscriptions of each heartbeat; None for none.
        on_change: called with a group whose members or topics changed, to notify its members.
        silent_ms_max: how long a member may be silent before the sweep removes it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        filters: FilterTable | None = None,
        on_change: Callable[[ConsumerGroup], None] | None = None,
        silent_ms_max: int = SILENT_MS_MAX,
    ) -> None:
        self._clock = clock
        self._filters = filters
        self._on_change = on_change
        self._silent_ms_max = silent_ms_max
        self.on_changed_expressions: Callable[[ConsumerGroup, set[str]], None] | None = None
        """Called with a group and the topics for which its expression has changed."""
        self._groups: dict[str, ConsumerGroup] = {}
        self._by_connection: dict[Peer, set[str]] = {}
        self._changes = RateLimitedLog(log, "changes of client ids and subscriptions")
        self._silences = RateLimitedLog(log, "consumer heartbeats timed out")

    def group(self, name: str) -> ConsumerGroup | None:
        """Return the group, or None if it is not online."""
        return self._groups.get(name)

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups that are online."""
        return list(self._groups.values())

    def client_ids(self, group: str) -> list[str]:
        """Return the client ids of a group; empty if it is not online."""
        found = self._groups.get(group)
        return [] if found is None else found.client_ids

    def find(self, group: str, client_id: str) -> Member | None:
        """Return one member of a group, or None."""
        found = self._groups.get(group)
        return None if found is None else found.find(client_id)

    def register(
        self,
        connection: Peer,
        client_id: str,
        name: str,
        *,
        kind: str,
        model: str,
        consume_from: str,
        subscriptions: Iterable[Subscription] | None,
        view: Subscriptions | None = None,
        notify: bool = True,
    ) -> bool:
        """Register a heartbeat of a member.

        Args:
            connection: of the client.
            client_id: the client's name.
            name: of the group.
            kind, model, consume_from: as the heartbeat names them.
            subscriptions: all of the client's; None leaves the group's as they are.
            view: the same for the comparison with other members; by default it is made here.
            notify: whether to notify the members of changes.

        Returns:
            Whether members or topics of the group changed.
        """
        group = self._groups.setdefault(name, ConsumerGroup(name, self._changes))
        changed = group.join(connection, client_id, self._clock.now_ms())
        self._by_connection.setdefault(connection, set()).add(name)
        group.kind, group.model, group.consume_from = kind, model, consume_from
        if subscriptions is not None:
            wanted = list(subscriptions)
            group.views.note(client_id, subscriptions_of(wanted) if view is None else view)
            has_new_topics, changed_expressions = group.subscribe(wanted)
            changed = changed or has_new_topics
            if self._filters is not None:
                self._filters.register(name, group.subscriptions.values())
            if changed_expressions and self.on_changed_expressions is not None:
                self.on_changed_expressions(group, changed_expressions)
        if changed and notify:
            self._notify(group)
        return changed

    def unregister(
        self, connection: Peer, client_id: str, name: str, *, notify: bool = True
    ) -> None:
        """Remove a client from a group; does nothing if it is no member.

        An empty ``client_id`` stands for the clients of the connection.
        """
        group = self._groups.get(name)
        if group is None:
            return
        for member in list(group.members.values()):
            if member.connection is connection and client_id in ("", member.client_id):
                self._remove(group, member.connection, notify=notify)

    def connection_closed(self, connection: Peer) -> None:
        """Remove a connection from all its groups and notify the other members."""
        for name in self._by_connection.pop(connection, ()):
            self._remove(self._groups[name], connection, notify=True)

    def sweep(self) -> list[Member]:
        """Remove the members that were silent for too long, and close their connections."""
        self._changes.settle()
        self._silences.settle()
        limit_ms = self._clock.now_ms() - self._silent_ms_max
        silent = [
            member
            for group in self._groups.values()
            for member in group.members.values()
            if member.seen_ms < limit_ms
        ]
        for member in silent:
            self._silences.add("consumer heartbeat timed out client=%s", member.client_id)
            self.connection_closed(member.connection)
            member.connection.close()
        return silent

    def _remove(self, group: ConsumerGroup, connection: Peer, *, notify: bool) -> None:
        group.leave(connection)
        names = self._by_connection.get(connection)
        if names is not None:
            names.discard(group.name)
            if not names:
                del self._by_connection[connection]
        if not group.members:
            del self._groups[group.name]
            if self._filters is not None:
                self._filters.unregister(group.name)
        elif notify:
            self._notify(group)

    def _notify(self, group: ConsumerGroup) -> None:
        if self._on_change is not None:
            self._on_change(group)
