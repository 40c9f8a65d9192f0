"""The core that a client's producers and consumers share: connections, routes, heartbeats.

An instance belongs to the object that made it, or is handed to several so that they share its
connections. It knows nothing of sending or consuming: members tell it what their heartbeat says,
and register processors for what brokers ask of clients.

Source: MQClientInstance, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar, cast

from cometmq.client.broker_calls import BrokerCalls
from cometmq.client.broker_requests import BrokerRequests
from cometmq.client.config import ClientSettings
from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.client.identity import client_id
from cometmq.client.lifetime import Lifetime
from cometmq.client.name_servers import NameServers, parse_addresses
from cometmq.client.routes import Routes
from cometmq.model.errors import CometError
from cometmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from cometmq.protocol.message_id import UniqueIds
from cometmq.remoting import Connection, Processor, RemotingClient, RpcHook
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

T = TypeVar("T")

LEAVE_S = 1.0
"""Time for telling the brokers goodbye when a client closes."""


@dataclass(slots=True)
class Membership:
    """What one producer or consumer contributes to the heartbeat."""

    producers: list[ProducerData] = field(default_factory=list)
    consumers: list[ConsumerData] = field(default_factory=list)


class Member(Protocol):
    """A producer or a consumer of an instance."""

    @property
    def group(self) -> str:
        """The member's group."""

    def membership(self) -> Membership:
        """Say what the heartbeat is to tell of this member."""


class ClientInstance(Lifetime):
    """Connections, routes and heartbeats of one client.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        settings: the client's settings.
        tls: the context for TLS connections, to all servers; None for plain ones.
        hooks: see every request; one that signs must come last.
        name: the client id; None to make it from the settings.

    Example: ``async with ClientInstance("127.0.0.1:9876") as instance: ...``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        tls: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        name: str | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        addresses = parse_addresses(name_servers)
        self.client_id = name or client_id(self.settings, addresses)
        self.processors: dict[int, Processor] = {}
        """What this client answers when a broker asks it, where no group is concerned."""
        self.requests = BrokerRequests(self.processors)
        """What its members answer when a broker asks for their group."""
        self.remoting = RemotingClient(
            processors=self.processors, tls=tls, hooks=hooks, on_connect=self._connected
        )
        call_timeout = self.settings.call_timeout_ms / 1000
        self.name_servers = NameServers(self.remoting, addresses)
        self.routes = Routes(self.name_servers, timeout=call_timeout)
        self.brokers = BrokerCalls(self.remoting, timeout=call_timeout)
        self._tasks = Supervisor(f"client {self.client_id}")
        self._members: list[Member] = []
        self._greeted: set[str] = set()
        self._greeting: set[str] = set()
        self._shared: dict[type[Any], Any] = {}
        self._running = False
        self.closed = False
        """Whether it was closed; it cannot be started again."""
        self.holds = 0
        """How many leases keep it open; see `cometmq.client.registry`."""
        self.on_broker: list[Callable[[str], None]] = []
        """Called with the address of each broker that a new connection was made to."""

    @property
    def running(self) -> bool:
        """Whether the instance was started and not yet closed."""
        return self._running

    async def start(self) -> None:
        """Begin refreshing routes and sending heartbeats; connects to nobody yet.

        Raises:
            ClientClosedError: it was closed before.
        """
        if self._running:
            return
        if self.closed:
            raise ClientClosedError(f"client {self.client_id} was closed: make a new one")
        self._running = True
        self._tasks.every(self.settings.route_refresh_ms / 1000, self.routes.refresh_all, "routes")
        self._tasks.every(self.settings.heartbeat_ms / 1000, self.heartbeat, "heartbeat")

    async def close(self) -> None:
        """Tell the brokers goodbye and close every connection; further calls do nothing."""
        self.closed = True
        if not self._running:
            return
        self._running = False
        try:
            await self._take_out(list(self._members))
        finally:
            await self._tasks.cancel()
            await self.remoting.close()

    def unique_ids(self) -> UniqueIds:
        """Give a source of message ids that carry this client's address."""
        try:
            return UniqueIds(ip_address(self.client_id.partition("@")[0]).packed)
        except ValueError:
            return UniqueIds()

    def shared(self, kind: type[T], make: Callable[[], T]) -> T:
        """Give the one object of a kind that all members of this instance share, made when asked.

        Its owner sees to its end: what runs in the background must stop when its last user leaves.
        """
        if kind not in self._shared:
            self._shared[kind] = make()
        return cast(T, self._shared[kind])

    def check_running(self) -> None:
        """Raise unless the instance is running.

        Raises:
            ClientClosedError: it was not started, or was closed.
        """
        if not self._running:
            raise ClientClosedError(f"client {self.client_id} is not running: start it first")

    def join(self, member: Member) -> None:
        """Take a producer or a consumer into the heartbeat.

        Raises:
            ClientError: a member of the same kind and group is in already.
        """
        for other in self._members:
            if type(other) is type(member) and other.group == member.group:
                kind = type(member).__name__
                raise ClientError(f"client {self.client_id} has a {kind} of {member.group} already")
        self._members.append(member)

    async def leave(self, member: Member) -> None:
        """Take a member out and tell the brokers; one that does not answer is passed over."""
        if member in self._members:
            await self._take_out([member])

    async def _take_out(self, members: list[Member]) -> None:
        for member in members:
            self._members.remove(member)
        try:
            async with asyncio.timeout(LEAVE_S):
                for member in members:
                    await self._tell_of_leaving(member)
        except TimeoutError:
            log.warning("brokers not told goodbye client=%s", self.client_id)

    async def _tell_of_leaving(self, member: Member) -> None:
        told = member.membership()
        groups = [(part.group_name, True) for part in told.producers]
        groups += [(part.group_name, False) for part in told.consumers]
        for address in sorted(self._greeted):
            for group, producing in groups:
                await self._say_goodbye(address, group, producing=producing)

    async def _say_goodbye(self, address: str, group: str, *, producing: bool) -> None:
        try:
            await self.brokers.unregister(address, self.client_id, group, producing=producing)
        except CometError as error:
            log.debug("broker not told goodbye address=%s error=%s", address, error)

    async def heartbeat(self) -> None:
        """Tell every known broker which producers and consumers live here."""
        data = self._heartbeat_data()
        if not data.producer_data_set and not data.consumer_data_set:
            return
        known = self.routes.addresses(masters_only=not data.consumer_data_set)
        self._greeted &= known
        await asyncio.gather(*(self._greet(address, data) for address in sorted(known)))

    def greet_soon(self, address: str) -> None:
        """Send a first heartbeat to a broker in the background, unless it had one already."""
        if address not in self._greeted:
            self._greeted.add(address)
            self._tasks.spawn(self._greet(address, self._heartbeat_data()), f"greet-{address}")

    def _connected(self, address: str, connection: Connection) -> None:
        """Greet a broker again over a new connection: it forgot us when it lost the one before."""
        if address not in self.routes.addresses(masters_only=False):
            return
        if self._members and self._running and address not in self._greeting:
            self._greeted.discard(address)
            self.greet_soon(address)
        for listener in self.on_broker:
            listener(address)

    async def _greet(self, address: str, data: HeartbeatData) -> None:
        self._greeting.add(address)
        try:
            await self.brokers.heartbeat(address, data)
        except CometError as error:
            self._greeted.discard(address)
            log.warning("heartbeat failed address=%s error=%s", address, error)
        else:
            self._greeted.add(address)
        finally:
            self._greeting.discard(address)

    def _heartbeat_data(self) -> HeartbeatData:
        parts = [member.membership() for member in self._members]
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[data for part in parts for data in part.producers],
            consumer_data_set=[data for part in parts for data in part.consumers],
        )
