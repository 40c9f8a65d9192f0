"""The core that a client's producers and consumers share: connections, routes, heartbeats.

An instance belongs to the object that made it, or is handed to several so that they share its
connections. It belongs to one event loop and one process: a forked child cannot use it. It knows
nothing of sending or consuming: members return their part of the heartbeat, and register handlers
of brokers' requests.

Source: MQClientInstance, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple, Self, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from cometmq.client._connection.broker_calls import BrokerCalls
from cometmq.client._connection.broker_requests import BrokerRequests
from cometmq.client._connection.heartbeats import Heartbeats, Member, Membership, merge_heartbeat
from cometmq.client._connection.identity import (
    Namespace,
    NamespaceHook,
    client_id,
    namespace_of_endpoint,
    outward_address,
    vip_address,
)
from cometmq.client._connection.name_servers import (
    DEFAULT_ADDRESS,
    DEFAULT_USED,
    NONE_SET,
    HasNameServers,
    NameServers,
    endpoint_url,
    fetch_addresses,
    parse_addresses,
)
from cometmq.client._connection.routes import Routes
from cometmq.client._connection.security import Signer, StreamHook, credentials_of, tls_context
from cometmq.client._hints import WrongAddressError
from cometmq.client._lifecycle import Lifecycle, in_background
from cometmq.client.errors import (
    ClientClosedError,
    ClientError,
    NameServerError,
    TopicNotFoundError,
)
from cometmq.client.settings import ClientSettings, described, resolve_settings
from cometmq.model.arguments import check_provides
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.protocol.bodies.heartbeat import HeartbeatData, MessageModel
from cometmq.protocol.codes import LanguageCode
from cometmq.protocol.message_id import UniqueIds
from cometmq.protocol.refusals import permanent_refusal
from cometmq.remoting import Connection, RemotingClient, RemotingSettings, RequestHandler, RpcHook
from cometmq.remoting.client import ConnectionPolicy
from cometmq.remoting.socks import SocksProxies
from cometmq.remoting.tasks import Supervisor, raise_unless_failure, shielded
from cometmq.system.failure_log import FailureLog, log_text, log_trace
from cometmq.system.platforms import SYSTEM

__all__ = ["ClientCore", "ClientInstance", "Member", "Membership"]

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_HEARTBEAT_S = 1.0
LEAVE_S = 1.0
"""Time for unregistering from the brokers when a member leaves, in seconds."""


class MemberList(NamedTuple):
    """The members of a consumer group, as one broker lists them."""

    client_ids: list[str]
    address: str
    """The broker's."""
    connected_s: float
    """When the connection to it was made, in the loop's time."""


class ClientCore(Lifecycle):
    """Connections, routes and heartbeats that the producers and consumers of one client share.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        settings: the client's settings; other settings come from the environment and a file.
        tls: the context for TLS connections to all servers; None uses the settings.
        hooks: run around every request. A signing hook must be the last one.
        name: the client id; None makes it from the settings.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        settings: ClientSettings | None = None,
        tls: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        name: str | None = None,
    ) -> None:
        self.settings = resolve_settings(ClientSettings, given=settings)
        addresses, note = known_name_servers(name_servers, self.settings)
        self.client_id = name or client_id(self.settings, addresses)
        self.namespace = Namespace(self.settings.namespace or _namespace_of(addresses))
        """Puts the names of topics and groups into this client's namespace."""
        self.handlers: dict[int, RequestHandler] = {}
        """Handlers of the brokers' requests that concern no group, by request code."""
        self.unnamed_producers = itertools.count(1)
        """Numbers the producers that have no group name."""
        self.requests = BrokerRequests(self.handlers, namespace=self.namespace)
        """Passes the brokers' requests to the members whose group they name."""
        self.remoting = RemotingClient(
            RemotingSettings(idle_s=self.settings.idle_s),
            handlers=self.handlers,
            tls=tls or tls_context(self.settings),
            hooks=_all_hooks(self.settings, hooks),
            on_connect=self._connected,
            language=LanguageCode[self.settings.language],
            policy=ConnectionPolicy(
                close_silent=self.settings.close_after_timeout,
                retry_leaving=self.settings.reconnect_for_go_away,
                proxies=SocksProxies.parse(self.settings.socks_proxies),
            ),
        )
        call_timeout = self.settings.call_timeout_ms / 1000
        self.name_servers = NameServers(self.remoting, addresses, note=note)
        self._tasks = Supervisor(f"client {self.client_id}")
        self.routes = Routes(self.name_servers, timeout=call_timeout, tasks=self._tasks)
        self.brokers = BrokerCalls(self.remoting, timeout=call_timeout)
        self._heartbeats = Heartbeats(self.brokers, version_2=self.settings.heartbeat_v2)
        self._heartbeat_failures = FailureLog(
            log, fails="heartbeat failed", works="heartbeat succeeds again", name="address"
        )
        self._discovery_failures = FailureLog(
            log,
            fails="cannot refresh the name server list",
            works="name server list refreshed again",
            name="endpoint",
        )
        self._refused: dict[str, ResponseError] = {}
        """The refusals of brokers' last heartbeats that no retry cures, by address."""
        self._members: list[Member] = []
        self._registered: set[str] = set()
        """Brokers that have received a heartbeat, from which members must unregister."""
        self._up_to_date: set[str] = set()
        """Brokers whose last heartbeat contained every member."""
        self.heartbeat_epoch = 0
        """Grows whenever a broker may no longer know every member."""
        self._joined = 0
        """Calls of `join` so far."""
        self._connected_s: dict[str, float] = {}
        """When the connection to each broker was made, in the loop's time."""
        self._heartbeats_in_flight: dict[str, asyncio.Future[None]] = {}
        """The end of the heartbeat to each broker."""
        self._heartbeats_waiting: dict[str, asyncio.Future[None]] = {}
        """The end of each heartbeat that waits until the one in flight to its broker has ended."""
        self._shared: dict[type[Any], Any] = {}
        self._changing = asyncio.Lock()
        self._inherited = False
        self.holds = 0
        """How many leases keep it open; see `cometmq.client._connection.instance`."""
        self.unopened: WeakSet[object] = WeakSet()
        """The leases of objects that were made and not started yet."""
        super().__init__(f"client {self.client_id}")
        self.on_broker: list[Callable[[str], None]] = []
        """Called with the address of each broker that a new connection was made to."""
        self.on_broker_lost: list[Callable[[str], None]] = []
        """Called with the address of each server whose connection was lost."""
        self.remoting.on_disconnect = self._disconnected
        self.on_close: list[Callable[[], None]] = []
        """Called when it closes."""
        _living.add(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed. It cannot be started again."""
        return self._inherited or self._closing.is_set()

    @property
    def outlived_its_loop(self) -> bool:
        """Whether its event loop is closed. The instance cannot be closed then."""
        return self._loop is not None and self._loop.is_closed()

    async def start(self) -> None:
        """Start to refresh routes and to send heartbeats. It connects to no broker yet.

        Without name servers, it fetches their addresses from the HTTP endpoint first.

        Raises:
            ClientClosedError: the instance was closed before.
            ClientError: the instance runs in another event loop.
            NameServerError: there is no name server, and the endpoint returned none.
        """
        self._check_usable()
        await super().start()

    async def _start(self) -> None:
        async with self._changing:
            if not self.name_servers.addresses:
                try:
                    await self._discover()
                except NameServerError as error:
                    raise NameServerError(f"{NONE_SET} ({error})") from None
                every_s = self.settings.http_refresh_ms / 1000
                self._tasks.every(every_s, self._refresh_name_servers, "name-servers")
            every_s = self.settings.route_refresh_ms / 1000
            self._tasks.every(every_s, self.routes.refresh_all, "routes")
            every_s = self.settings.heartbeat_ms / 1000
            self._tasks.every(
                every_s, self.heartbeat, "heartbeat", first_s=min(FIRST_HEARTBEAT_S, every_s)
            )

    async def close(self) -> None:
        """Unregister from the brokers and close every connection. Further calls do nothing.

        Cancelling stops the waiting, not the closing.
        """
        if not self._inherited:
            await super().close()

    async def _close(self) -> None:
        for listener in list(self.on_close):
            listener()
        async with self._changing:
            await self._release()

    async def _close_unused(self, member: Member | None) -> None:
        """Close after the last lease. Objects that are not started yet can start it again.

        Such an object has parts that use this instance, so another instance cannot replace it.

        Args:
            member: the member of that lease, which leaves if another object starts meanwhile.
        """
        if not self.unopened:
            await self.close()
            return
        if self._start_task is not None:  # the lease was given up during the start
            await asyncio.wait([self._start_task])
        async with self._changing:
            if not self.holds:
                await self._release()
                self.remoting.reopen()
            elif member is not None:
                await self.leave(member)

    async def _release(self) -> None:
        members = list(self._members) if self._started else []
        self._forget_start()
        try:
            await self._remove(members)
        finally:
            await self._tasks.cancel()
            await self.remoting.close()
            self._registered.clear()
            self._up_to_date.clear()

    def _check_usable(self) -> None:
        if self._inherited:
            raise ClientClosedError(
                f"client {self.client_id} belongs to the parent process: create one after the fork"
            )
        if self.closed:
            raise ClientClosedError(f"client {self.client_id} is closed: create a new one")
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ClientError(
                f"client {self.client_id} runs in another event loop: "
                "give each loop's clients an instance name of their own"
            )

    def _leave_to_parent(self) -> None:
        """In a forked child: neither use nor close what belongs to the parent process."""
        self._inherited, self._started = True, False
        self.holds = 0
        self._members.clear()
        self._registered.clear()
        self.remoting.abandon()

    async def _discover(self) -> None:
        """Fetch the name servers from the HTTP endpoint; if that fails, the list is unchanged.

        Raises:
            NameServerError: it returned none.
        """
        self.name_servers.replace(await fetch_addresses(endpoint_url(self.settings)))

    async def _refresh_name_servers(self) -> None:
        try:
            await self._discover()
        except NameServerError as error:
            self._discovery_failures.failed(endpoint_url(self.settings), error)
        else:
            self._discovery_failures.succeeded(endpoint_url(self.settings))

    def unique_ids(self) -> UniqueIds:
        """Return a generator of message ids that contain this client's address.

        If the client id starts with a name, the ids contain the machine's address.
        """
        try:
            own = ip_address(self.client_id.partition("@")[0].strip("[]"))
        except ValueError:
            own = ip_address(outward_address(self.name_servers.addresses).strip("[]"))
        return UniqueIds(own.packed)

    def shared(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the one object of a kind that all members share; made on the first call.

        Its owner must stop its background tasks when its last user leaves.
        """
        if kind not in self._shared:
            self._shared[kind] = make()
        return cast(T, self._shared[kind])

    def check_running(self) -> None:
        """Raise if the instance is not running.

        Raises:
            ClientClosedError: the instance was not started, or was closed.
            ClientError: the instance runs in another event loop.
        """
        if not self.running:
            if self.closed:
                self._check_usable()
            raise ClientClosedError(f"client {self.client_id} is not running: start it first")
        self._check_loop()

    def join(self, member: Member) -> None:
        """Add a producer or a consumer to the heartbeat.

        Raises:
            ClientError: the instance already has a member of this group that produces or consumes
                like the new one. Brokers know one member of a group per client.
        """
        kinds = _groups_of(member)
        for other in self._members:
            if not kinds.keys().isdisjoint(_groups_of(other)):
                kind = type(other).__name__
                raise ClientError(f"client {self.client_id} has a {kind} of {member.group} already")
        self._check_twins(member)
        self._members.append(member)
        self._joined += 1
        self._up_to_date.clear()
        self.heartbeat_epoch += 1

    def _check_twins(self, member: Member) -> None:
        """Refuse a member that another client of this process with the same id has as well.

        Brokers take the two for one member; broadcast consumers write one file of offsets, also if
        they belong to different clusters.
        """
        kinds, servers = _groups_of(member), set(self.name_servers.addresses)
        for twin in list(_living):
            if twin is self or twin.client_id != self.client_id or not twin.running:
                continue
            shares_brokers = not servers.isdisjoint(twin.name_servers.addresses)
            for other in twin._members:
                theirs = _groups_of(other)
                both = kinds.keys() & theirs
                if both and (shares_brokers or any(kinds[each] and theirs[each] for each in both)):
                    raise ClientError(
                        f"a client {self.client_id} with other settings has a "
                        f"{type(other).__name__} of {member.group} already: give one of them "
                        "another instance_name"
                    )

    async def leave(self, member: Member) -> None:
        """Remove a member and unregister it; a broker that does not respond is skipped."""
        if member in self._members:
            await self._remove([member])

    async def _remove(self, members: list[Member]) -> None:
        for member in members:
            self._members.remove(member)
        try:
            async with asyncio.timeout(LEAVE_S):
                for member in members:
                    await self._unregister_member(member)
        except TimeoutError:
            log.warning("cannot unregister from all brokers client=%s", self.client_id)

    async def _unregister_member(self, member: Member) -> None:
        membership = member.membership()
        groups = [(part.group_name, True) for part in membership.producers]
        groups += [(part.group_name, False) for part in membership.consumers]
        for address in sorted(self._registered):
            in_flight = self._heartbeats_in_flight.get(address)
            if in_flight is not None:  # it may contain the member, and be handled after this
                await asyncio.wait([in_flight])
            for group, producing in groups:
                await self._unregister(address, group, producing=producing)

    async def _unregister(self, address: str, group: str, *, producing: bool) -> None:
        try:
            await self.brokers.unregister(address, self.client_id, group, producing=producing)
        except BaseException as error:
            raise_unless_failure(error)
            log.log(
                logging.DEBUG if isinstance(error, CometError) else logging.WARNING,
                "cannot unregister address=%s group=%s error=%s",
                address,
                group,
                log_text(error),
                exc_info=log_trace(error),
            )

    def send_address(self, address: str) -> str:
        """Return the address for sends to a broker: its second port if that is enabled."""
        return vip_address(address) if self.settings.vip_channel else address

    def broker_version(self, address: str) -> int:
        """Return the version in a broker's last heartbeat response; 0 if unknown."""
        return self._heartbeats.version(address)

    async def members(self, group: str, topic: str) -> MemberList:
        """Request the members of a consumer group from one broker of the topic.

        Raises:
            TopicNotFoundError: no broker has the topic now.
            ResponseError: the broker knows no member.
            RemotingError: the broker did not respond.
        """
        self._check_loop()
        address = (await self.routes.find(topic)).any_broker()
        if address is None:
            raise TopicNotFoundError(topic, "its route names no broker")
        members = await self.brokers.members(address, group)
        return MemberList(members, address, self.connected_s(address))

    async def heartbeat(self) -> None:
        """Send a heartbeat with all producers and consumers to every known broker."""
        self._check_loop()
        self._drop_offline()
        data = self._heartbeat_data()
        if not data.producer_data_set and not data.consumer_data_set:
            return
        known = self.routes.addresses(masters_only=not data.consumer_data_set)
        if known:
            await asyncio.wait(list(map(self._begin_heartbeat, sorted(known))))

    async def ensure_heartbeat(self, address: str) -> None:
        """Return when a broker knows every member, or has not responded to the heartbeat."""
        self._check_loop()
        earlier = self._heartbeats_in_flight.get(address)
        if earlier is not None:  # it may be older than the newest member
            await asyncio.wait([earlier])
        if address not in self._up_to_date:
            await asyncio.wait([self._begin_heartbeat(address)])

    def check_heartbeats(self) -> None:
        """Raise if a broker has refused the last heartbeat, and would refuse the next as well.

        Raises:
            ResponseError: the broker refuses the account, or one of its rights is missing.
        """
        for refusal in self._refused.values():
            raise refusal

    def heartbeat_failures(self) -> list[str]:
        """Return why brokers do not know the members, each with its address."""
        return self._heartbeat_failures.reasons()

    def knows_members(self, address: str) -> bool:
        """Whether a broker knows every member, by its last heartbeat."""
        return address in self._up_to_date

    def heartbeat_soon(self, address: str) -> None:
        """Send a heartbeat to a broker in the background, unless it knows every member."""
        self._check_loop()
        if address not in self._up_to_date and address not in self._heartbeats_in_flight:
            self._begin_heartbeat(address)

    def heartbeat_in_full(self, address: str) -> None:
        """Send a broker a complete heartbeat in the background: it lacks a subscription."""
        self._check_loop()
        self._heartbeats.forget(address)
        self._begin_heartbeat(address)

    def _begin_heartbeat(self, address: str) -> asyncio.Future[None]:
        """Return the end of a broker's next heartbeat, which has not read the members yet.

        One heartbeat is in flight to a broker at a time, since brokers may handle two in either
        order. All that are requested meanwhile are one.
        """
        ended = self._heartbeats_waiting.get(address)
        if ended is None:
            before = self._heartbeats_in_flight.get(address)
            ended = self._heartbeats_waiting[address] = asyncio.get_running_loop().create_future()
            sending = self._send_heartbeat_after(before, address, ended)
            task = self._tasks.spawn(sending, f"heartbeat-{address}")
            task.add_done_callback(lambda _: self._heartbeat_ended(address, ended))
        return ended

    async def _send_heartbeat_after(
        self, before: asyncio.Future[None] | None, address: str, ended: asyncio.Future[None]
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        del self._heartbeats_waiting[address]
        self._heartbeats_in_flight[address] = ended
        await self._send_heartbeat(address, self._heartbeat_data(), self._joined)

    def _heartbeat_ended(self, address: str, ended: asyncio.Future[None]) -> None:
        for heartbeats in (self._heartbeats_in_flight, self._heartbeats_waiting):
            if heartbeats.get(address) is ended:
                del heartbeats[address]
        ended.set_result(None)

    def _connected(self, address: str, connection: Connection) -> None:
        """Send a heartbeat over a new connection: a broker forgets the members of a lost one."""
        if address not in self.routes.addresses(masters_only=False):
            return
        self._connected_s[address] = asyncio.get_running_loop().time()
        self._up_to_date.discard(address)
        self.heartbeat_epoch += 1
        self._heartbeats.forget(address)
        sends = self.settings.heartbeat_on_connect and address not in self._heartbeats_in_flight
        if self._members and self.running and sends:
            self.heartbeat_soon(address)
        for listener in self.on_broker:
            listener(address)

    def connected_s(self, address: str) -> float:
        """Return when the last connection to a broker was opened, on the clock of the loop."""
        return self._connected_s.get(address, -math.inf)

    def _disconnected(self, address: str) -> None:
        for listener in self.on_broker_lost:
            listener(address)

    async def _send_heartbeat(self, address: str, data: HeartbeatData, joined: int) -> None:
        """Send a heartbeat that was made after ``joined`` calls of `join`."""
        try:
            await self._heartbeats.send(address, data)
        except BaseException as error:
            raise_unless_failure(error)
            self._up_to_date.discard(address)
            self.heartbeat_epoch += 1
            self._heartbeat_failures.failed(address, error)
            self._refused.pop(address, None)
            if isinstance(error, ResponseError) and permanent_refusal(error) is not None:
                self._refused[address] = error
        else:
            self._heartbeat_failures.succeeded(address)
            self._refused.pop(address, None)
            self._registered.add(address)
            if joined == self._joined:
                self._up_to_date.add(address)

    def _drop_offline(self) -> None:
        """Forget the brokers that no route mentions any more."""
        mentioned = self.routes.addresses(masters_only=False)
        for gone in (self._registered | self._refused.keys()) - mentioned:
            self._heartbeat_failures.forget(gone)
            self._refused.pop(gone, None)
        self._registered &= mentioned
        for gone in self._connected_s.keys() - mentioned:
            del self._connected_s[gone]
        if not self._up_to_date <= mentioned:
            self._up_to_date &= mentioned
            self.heartbeat_epoch += 1
        self._heartbeats.keep_only(mentioned)

    def _heartbeat_data(self) -> HeartbeatData:
        return merge_heartbeat(self.client_id, (member.membership() for member in self._members))


def _groups_of(member: Member) -> dict[tuple[str, bool], bool]:
    """Return a member's groups, as brokers know them and whether it consumes: does it broadcast?"""
    membership = member.membership()
    groups = {(each.group_name, False): False for each in membership.producers}
    for each in membership.consumers:
        groups[each.group_name, True] = each.message_model is MessageModel.BROADCASTING
    return groups


def known_name_servers(
    named: str | Sequence[str] | HasNameServers, settings: ClientSettings
) -> tuple[list[str], str]:
    """Return the name servers a client begins with: the argument, or its settings.

    Without any, and without an HTTP endpoint, it is the usual port of this machine.

    Returns:
        The addresses, and what an error says if none of them responds.

    Raises:
        ConfigError: an address is invalid.
    """
    if isinstance(named, HasNameServers):
        named = named.name_servers
    is_empty = isinstance(named, Sequence) and not named
    try:
        addresses = parse_addresses(settings.name_servers if is_empty else named, required=False)
    except ConfigError as error:
        if is_empty:
            where = "setting name_servers, or variable NAMESRV_ADDR: "
            raise ConfigError(f"{where}{error}") from None
        raise WrongAddressError(str(error)) from None
    if not addresses and not endpoint_url(settings):
        return [DEFAULT_ADDRESS], DEFAULT_USED
    return addresses, ""


def _namespace_of(addresses: Sequence[str]) -> str:
    return next(filter(None, map(namespace_of_endpoint, addresses)), "")


def _all_hooks(settings: ClientSettings, given: Sequence[RpcHook]) -> list[RpcHook]:
    """The hooks that the settings call for around those given, so that signing comes last."""
    hooks: list[RpcHook] = []
    if settings.namespace_v2:
        hooks.append(NamespaceHook(settings.namespace_v2))
    if settings.stream:
        hooks.append(StreamHook())
    hooks += given
    credentials = credentials_of(settings)
    if credentials is not None:
        hooks.append(Signer(credentials))
    return hooks


def _leave_all_to_parent() -> None:
    for instance in list(_living):
        instance._leave_to_parent()


_living: WeakSet[ClientCore] = WeakSet()
SYSTEM.after_fork(_leave_all_to_parent)

_instances: WeakValueDictionary[tuple[object, ...], ClientCore] = WeakValueDictionary()
"""The open instances, by process and all that clients of one instance must share."""

_SHARED_BY_ALL = frozenset(
    {
        "name_servers",
        "http_refresh_ms",
        "route_refresh_ms",
        "heartbeat_ms",
        "heartbeat_v2",
        "heartbeat_on_connect",
        "call_timeout_ms",
        "idle_s",
        "close_after_timeout",
        "reconnect_for_go_away",
    }
)
"""Settings that decide neither where connections go nor who the client is: objects with other
values share an instance, and the first one decides. ``name_servers`` is compared as addresses."""


def _key(name: str, addresses: Sequence[str], settings: ClientSettings) -> tuple[object, ...]:
    """Return what objects must have in common to share an instance."""
    values = [
        getattr(settings, each.name)
        for each in described(ClientSettings)
        if each.name not in _SHARED_BY_ALL
    ]
    return os.getpid(), name, frozenset(addresses), *values


class Lease:
    """One object's hold on an instance.

    Args:
        instance: the instance.
        lent: whether the caller starts and closes the instance.
    """

    def __init__(self, instance: ClientCore, *, lent: bool) -> None:
        self.instance = instance
        self._lent = lent
        self._held = False
        if not lent:
            instance.unopened.add(self)

    async def open(self, member: Member | None = None) -> None:
        """Add a member to the instance, and start the instance unless it is lent.

        If it fails, the caller closes the lease.

        Raises:
            ClientClosedError: the instance is closed, or is lent and does not run.
            ClientError: the instance has such a member already, or runs in another event loop.
            NameServerError: no name server is named, and the HTTP endpoint names none.
        """
        if self._lent:
            self.instance.check_running()
        if member is not None:
            self.instance.join(member)
        if not self._lent and not self._held:
            self._held = True
            self.instance.holds += 1
            self.instance.unopened.discard(self)
            # Cancelled here, the instance would close, and could not be started again for others.
            await shielded(in_background(self.instance.start(), "open"))

    async def close(self, member: Member | None = None) -> None:
        """Remove the member, and close the instance if no other lease keeps it open."""
        self.instance.unopened.discard(self)
        held, self._held = self._held, False
        if held:
            self.instance.holds -= 1
            if self.instance.holds == 0:
                await self.instance._close_unused(member)
                return
        if member is not None:
            await self.instance.leave(member)


class ClientInstance:
    """The connections of one client, for several producers and consumers.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        settings: the client's settings; other settings come from the environment and a file.
        tls: the context for TLS connections to all servers; None uses the settings.
        hooks: run around every request. A signing hook must be the last one.
        name: the client id; None makes it from the settings.

    Example:
        async with ClientInstance(name_server) as instance:
            async with Producer(instance=instance, group="shop") as producer:
                await producer.send(Message(topic="orders", body=b"42"))
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        settings: ClientSettings | None = None,
        tls: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        name: str | None = None,
    ) -> None:
        for hook in hooks:
            check_provides("client", "hooks", hook, RpcHook)
        self._core = ClientCore(name_servers, settings=settings, tls=tls, hooks=hooks, name=name)

    @property
    def client_id(self) -> str:
        """The id of this client at the brokers."""
        return self._core.client_id

    @property
    def settings(self) -> ClientSettings:
        """The settings that are in effect."""
        return self._core.settings

    @property
    def running(self) -> bool:
        """Whether it is started and not closed."""
        return self._core.running

    async def start(self) -> None:
        """Start to refresh routes and to send heartbeats. It connects to no broker yet.

        Without name servers, it fetches their addresses from the HTTP endpoint first.

        Raises:
            ClientClosedError: the instance was closed before.
            ClientError: the instance runs in another event loop.
            NameServerError: there is no name server, and the endpoint returned none.
        """
        await self._core.start()

    async def close(self) -> None:
        """Unregister from the brokers and close every connection. Further calls do nothing.

        Cancelling stops the waiting, not the closing.
        """
        await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def core_of(instance: ClientInstance | ClientCore) -> ClientCore:
    """Return what an instance consists of; the parts of the client pass this on.

    Raises:
        ConfigError: it is no instance.
    """
    if isinstance(instance, ClientInstance):
        return instance._core
    if not isinstance(instance, ClientCore):
        raise ConfigError(f"instance={instance!r}: expected a ClientInstance")
    return instance


def _check_same_servers(named: str | Sequence[str] | HasNameServers, instance: ClientCore) -> None:
    """Refuse name servers beside an instance that has others: they would not be used.

    Raises:
        ConfigError: they differ.
    """
    if isinstance(named, Sequence) and not named:
        return
    addresses, _ = known_name_servers(named, instance.settings)
    used = instance.name_servers.addresses
    if used and set(addresses).isdisjoint(used):
        raise ConfigError(
            f"name_servers={';'.join(addresses)} beside an instance of {';'.join(used)}: "
            "expected one of the two"
        )


def acquire_instance(
    name_servers: str | Sequence[str] | HasNameServers = (),
    *,
    settings: ClientSettings | None = None,
    instance: ClientInstance | ClientCore | None = None,
    keep_name: bool = False,
) -> Lease:
    """Find or make the instance that an object with these settings uses.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses; empty for the setting
            ``name_servers``.
        settings: the settings of a new instance. Objects share an instance only if their settings
            for servers, account, TLS, namespace and so on are equal; it keeps its other settings.
        instance: use this one, which the caller starts and closes.
        keep_name: keep the instance name ``DEFAULT``, so that the client id stays the same after a
            restart; clients with it share an instance.

    Raises:
        ConfigError: an address or a setting is wrong.
    """
    if instance is not None:
        core = core_of(instance)
        _check_same_servers(name_servers, core)
        return Lease(core, lent=True)
    used = resolve_settings(ClientSettings, given=settings)
    addresses = known_name_servers(name_servers, used)[0]
    name = client_id(used, addresses, keep_name=keep_name)
    key = _key(name, addresses, used)
    found = _instances.get(key)
    if found is None or found.closed or found.outlived_its_loop:
        found = ClientCore(name_servers, settings=used, name=name)
        _instances[key] = found
    return Lease(found, lent=False)
