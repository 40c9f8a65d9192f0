"""Registers this broker and its topics with every name server, and renews the registration.

Each name server has its own link, so that one that is down does not delay the others. A link
registers at the start, whenever the topics change, once a period, and as soon as its connection
breaks; after a failure it tries again, with growing pauses. When the broker stops, it unregisters
from every name server.

Source: BrokerController.registerBrokerAll and BrokerOuterAPI, RocketMQ 5.3, which has
no separate links, no early retries, and does not watch connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import Role
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import CometError
from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    BrokerHeartbeatRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from cometmq.remoting import ConnectionLostError, RemotingClient, Supervisor, check
from cometmq.remoting.slices import Slices

log = logging.getLogger(__name__)

PERIOD_S_MIN, PERIOD_S_MAX = 10.0, 60.0
START_S_MAX = 5.0
ANNOUNCE_S_MAX = 1.0
UNREGISTER_S_MAX = 1.0
RETRY_S_FIRST, RETRY_S_MAX = 0.5, 10.0
HEARTBEAT_S_MAX = 1.0
"""How long a heartbeat may wait until a name server reads it."""
MASTER_UNKNOWN_S_FIRST, MASTER_UNKNOWN_S_MAX = 0.5, 5.0
"""Pauses between the requests of a slave for an unknown master; each is twice the one before."""
_READ_WRITE = Perm.READ | Perm.WRITE


class Identity(msgspec.Struct, frozen=True):
    """The identity of a broker at name servers."""

    cluster: str
    broker_name: str
    address: str
    """``host:port`` that clients are given."""
    ha_address: str
    """``host:port`` that slaves are given."""


class Registration:
    """Keeps the broker registered.

    Args:
        client: carries the requests.
        topics: what is registered; it has to call `wake` on every change.
        settings: returns the current settings of the broker.
        role: its id is registered; it gets the addresses of the master of a slave.
        filter_servers: returns the addresses of its filter servers; call `wake` on every change.
    """

    def __init__(
        self,
        client: RemotingClient,
        topics: TopicTable,
        settings: Callable[[], BrokerSettings],
        *,
        role: Role,
        filter_servers: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._client = client
        self._topics = topics
        self._settings = settings
        self._role = role
        self._filter_servers = filter_servers
        self._supervisor = Supervisor("registration")
        self._links: list[_Link] = []
        role.on_change(self.wake)

    @property
    def missing(self) -> list[str]:
        """The name servers that do not know the broker now."""
        return [link.address for link in self._links if not link.is_known]

    @property
    def known(self) -> list[str]:
        """The name servers that know the broker now."""
        return [link.address for link in self._links if link.is_known]

    async def start(
        self, identity: Identity, name_servers: Iterable[str], *, timeout: float = START_S_MAX
    ) -> None:
        """Register with every name server, and keep the registrations alive until `stop`.

        Args:
            identity: what to be known by.
            name_servers: their addresses, ``host:port``.
            timeout: seconds to wait for them; those that have not responded by then are tried
                on in the background and are listed in `missing`.
        """
        self._links = [
            _Link(
                address,
                self._client,
                identity,
                self._topics,
                self._settings,
                self._role,
                self._filter_servers,
            )
            for address in dict.fromkeys(name_servers)
        ]
        rounds = [link.register_soon() for link in self._links]
        for link in self._links:
            self._supervisor.spawn(link.run(), link.address)
        if rounds:
            await asyncio.wait(rounds, timeout=timeout)
        if not self._links:
            log.warning("no name server is set, no client finds this broker: set namesrvAddr")
        if self.missing:
            log.warning("not registered yet, retrying namesrv=%s", ";".join(self.missing))

    def wake(self) -> None:
        """Register again at once, in the background: something about the topics changed."""
        for link in self._links:
            link.wake()

    async def announce(self, *, timeout: float = ANNOUNCE_S_MAX) -> None:
        """Register again at once, and return when the name servers have the change.

        Those that did not know the broker before are not waited for, nor is any for longer than
        ``timeout`` seconds: they get the change later.
        """
        rounds = [link.register_soon() for link in self._links if link.is_known]
        if rounds:
            await asyncio.wait(rounds, timeout=timeout)

    async def send_heartbeats(self) -> None:
        """Send a heartbeat to each name server that knows the broker."""
        await asyncio.gather(*(link.send_heartbeat() for link in self._links if link.is_known))

    async def stop(self, *, timeout: float = UNREGISTER_S_MAX) -> None:
        """Take the broker out of all name servers, waiting at most ``timeout`` seconds."""
        await self._supervisor.cancel()
        known = [link for link in self._links if link.is_known]
        await asyncio.gather(*(link.unregister(timeout) for link in known))
        self._links = []


class _Link:
    """The registration at one name server."""

    def __init__(
        self,
        address: str,
        client: RemotingClient,
        identity: Identity,
        topics: TopicTable,
        settings: Callable[[], BrokerSettings],
        role: Role,
        filter_servers: Callable[[], tuple[str, ...]],
    ) -> None:
        self.address = address
        self.is_known = False
        self._client = client
        self._identity = identity
        self._topics = topics
        self._settings = settings
        self._role = role
        self._filter_servers = filter_servers
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._failures = 0
        self._without_master = 0
        """How many pauses in a row the master of this slave has not been known."""
        self._registered: dict[str, TopicConfig] = {}
        """The topics as registered at the name server; empty if that is not certain."""
        self._registered_as: tuple[DataVersion, int, int, tuple[str, ...]] | None = None
        """Their version, the permission and the id of the broker, and its filter servers."""

    def wake(self) -> None:
        """Register soon, whatever the name server's version of the topics is."""
        self._wake.set()

    def register_soon(self) -> asyncio.Future[None]:
        """Register soon; the future is done once that was tried."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(tried)
        self.wake()
        return tried

    async def run(self) -> None:
        """Keep the broker registered until the task is cancelled."""
        while True:
            is_urgent, waiting = self._wake.is_set(), self._waiting
            self._wake.clear()
            self._waiting = []
            try:
                await self._register_once(is_urgent)
            finally:
                for tried in waiting:
                    if not tried.done():
                        tried.set_result(None)
            await self._pause()

    async def _register_once(self, is_urgent: bool) -> None:
        try:
            if is_urgent or self._must_register() or await self._is_outdated():
                await self._register(is_urgent=is_urgent)
        except (CometError, OSError) as problem:
            self._note_failure(problem)
        else:
            self._note_success()

    def _must_register(self) -> bool:
        """Whether to register although the name server may have everything.

        A slave gets the address of its master in the response.
        """
        return self._settings().force_register or self._role.is_slave

    def _note_failure(self, problem: Exception) -> None:
        if self.is_known or not self._failures:
            hint = self._hint(problem)
            log.warning("cannot register namesrv=%s: %s%s", self.address, problem, hint)
        self.is_known = False
        self._failures += 1

    def _hint(self, problem: Exception) -> str:
        """Return which setting to change if the name server may accept only TLS."""
        if self._client.uses_tls or not isinstance(problem, ConnectionLostError):
            return ""
        return (
            "; the connection was plain: if the name server has tls.server.mode=enforcing,"
            " set tls.enable=true in the broker's configuration"
        )

    def _note_success(self) -> None:
        if not self.is_known:
            log.info("registered namesrv=%s", self.address)
        self.is_known = True
        self._failures = 0

    async def _pause(self) -> None:
        """Return when it is time for the next registration."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wake.wait())]
        if self.is_known:
            waits.append(asyncio.ensure_future(self._connection_lost()))
        try:
            await asyncio.wait(waits, timeout=self._pause_s(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _connection_lost(self) -> None:
        """Return when the connection is lost: the name server removes this broker then."""
        try:
            connection = await self._client.connection(self.address)
            await connection.wait_closed()
        except (CometError, OSError):
            pass
        self._registered = {}
        log.info("connection lost namesrv=%s", self.address)
        await asyncio.sleep(RETRY_S_FIRST)  # limits reconnects
        self.wake()

    def _pause_s(self) -> float:
        period_s = self._settings().register_name_server_period_ms / 1000
        period_s = min(max(period_s, PERIOD_S_MIN), PERIOD_S_MAX)
        if self.is_known:
            is_lost = self._role.is_slave and not self._role.master_address
            self._without_master = self._without_master + 1 if is_lost else 0
            if not is_lost:
                return period_s
            return _back_off_s(self._without_master, MASTER_UNKNOWN_S_FIRST, MASTER_UNKNOWN_S_MAX)
        return _back_off_s(self._failures, RETRY_S_FIRST, RETRY_S_MAX)

    # --- requests -------------------------------------------------------------------------------

    async def _is_outdated(self) -> bool:
        """Whether the name server has another version of the topics, or the request failed."""
        who = self._identity
        header = QueryDataVersionRequest(
            broker_name=who.broker_name,
            broker_addr=who.address,
            cluster_name=who.cluster,
            broker_id=self._role.broker_id,
        )
        try:
            response = await self._client.call(
                self.address,
                RequestCode.QUERY_DATA_VERSION,
                header,
                self._topics.version.encode(),
                timeout=self._timeout_s(),
            )
            return check(response).header(QueryDataVersionResponse).changed
        except CometError as problem:
            log.debug("cannot get the data version namesrv=%s: %s", self.address, problem)
            return True

    async def _register(self, *, is_urgent: bool) -> None:
        who = self._identity
        topics, version = dict(self._topics.all()), self._topics.version
        permission, servers = self._settings().broker_permission, self._filter_servers()
        content = (version, permission, self._role.broker_id, servers)
        if (
            is_urgent
            and self._registered
            and self._registered_as == content
            and not self._role.is_slave
        ):
            return  # a registration for another reason has brought the change
        slices = Slices()
        changed = await self._only_change(topics, permission, slices) if is_urgent else None
        body, crc = await registration_body(
            changed or topics, version, permission, slices, filter_servers=servers
        )
        settings = self._settings()
        acts = settings.enable_slave_acting_master
        header = RegisterBrokerRequest(
            broker_name=who.broker_name,
            broker_addr=who.address,
            cluster_name=who.cluster,
            ha_server_addr=who.ha_address,
            broker_id=self._role.broker_id,
            body_crc32=crc & 0x7FFFFFFF,
            heartbeat_timeout_millis=settings.broker_not_active_timeout_ms if acts else None,
            enable_acting_master=acts,
        )
        self._registered = {}
        response = await self._client.call(
            self.address, RequestCode.REGISTER_BROKER, header, body, timeout=self._timeout_s()
        )
        found = check(response).header(RegisterBrokerResponse)
        self._registered, self._registered_as = topics, content
        if self._role.is_slave:
            self._role.follow(found.master_addr or "", found.ha_server_addr or "")
        if response.body and not self._role.is_slave:  # a slave copies the topics of its master
            await self._take_order(KVTable.decode(response.body).table)

    async def _only_change(
        self, topics: Mapping[str, TopicConfig], permission: int, slices: Slices
    ) -> dict[str, TopicConfig] | None:
        """Return the one topic that was created or changed since the last registration.

        A name server takes such a registration as an increment, and refuses it if it does not know
        the broker. None if anything else has changed, so that all topics have to be sent.
        Source: BrokerController.registerIncrementBrokerData, RocketMQ 5.3.
        """
        before = self._registered
        if not before or self._registered_as is None:
            return None
        if self._registered_as[1:3] != (permission, self._role.broker_id):
            return None
        changed = {}
        async for name, config in slices.each(topics.items()):
            if before.get(name) is not config:
                changed[name] = config
                if len(changed) > 1:
                    return None
        is_new = not before.keys() >= changed.keys()
        return changed if changed and len(topics) == len(before) + is_new else None

    async def _take_order(self, order_configs: Iterable[str]) -> None:
        try:
            await self._topics.order(order_configs)
        except CometError as problem:
            log.error("cannot register ordered topics: %s", problem)

    async def send_heartbeat(self) -> None:
        """Send a heartbeat; a failure needs no more than the watch on the connection."""
        who = self._identity
        header = BrokerHeartbeatRequest(
            cluster_name=who.cluster, broker_addr=who.address, broker_name=who.broker_name
        )
        with contextlib.suppress(CometError, TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S_MAX):
                await self._client.oneway(self.address, RequestCode.BROKER_HEARTBEAT, header)

    async def unregister(self, timeout: float) -> None:
        """Take the broker out, waiting at most ``timeout`` seconds; a failure is only logged."""
        who = self._identity
        header = UnregisterBrokerRequest(
            broker_name=who.broker_name,
            broker_addr=who.address,
            cluster_name=who.cluster,
            broker_id=self._role.broker_id,
        )
        try:
            check(
                await self._client.call(
                    self.address, RequestCode.UNREGISTER_BROKER, header, timeout=timeout
                )
            )
        except (CometError, OSError) as problem:
            log.warning("cannot unregister namesrv=%s: %s", self.address, problem)
        self.is_known = False

    def _timeout_s(self) -> float:
        return self._settings().register_broker_timeout_ms / 1000


async def registration_body(
    topics: dict[str, TopicConfig],
    version: DataVersion,
    broker_permission: int,
    slices: Slices,
    *,
    filter_servers: Iterable[str] = (),
) -> tuple[bytes, int]:
    """Return the body of a registration, and its CRC-32.

    Args:
        topics: all topics of the broker.
        version: of that table.
        broker_permission: what the broker allows at all; topics are shown with no more.
        slices: in which it is written.
        filter_servers: their addresses.
    """
    table = topics
    if broker_permission & _READ_WRITE != _READ_WRITE:
        table = {
            name: msgspec.structs.replace(config, perm=config.perm & broker_permission)
            async for name, config in slices.each(topics.items())
        }
    wrapper = TopicConfigSerializeWrapper(topic_config_table=table, data_version=version)
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=wrapper, filter_server_list=list(filter_servers)
    )
    # It grows in place, and gives its content away without a copy.
    written, crc = BytesIO(), 0
    async for part in slices.each(body.parts()):
        written.write(part)
        crc = zlib.crc32(part, crc)
    return written.getvalue(), crc


def _back_off_s(attempts: int, first_s: float, max_s: float) -> float:
    """Return the pause after so many attempts: each is twice the one before."""
    return min(first_s * 2.0 ** min(attempts - 1, 10), max_s)
