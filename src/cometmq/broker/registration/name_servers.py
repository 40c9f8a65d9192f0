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
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import Role
from cometmq.broker.static_topics.table import StaticTopicTable
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import CometError
from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.bodies.common import DataVersion, KVTable
from cometmq.protocol.bodies.register import RegisterBrokerBody, deflate_register_body
from cometmq.protocol.bodies.route import QueueData, TopicQueueMappingInfo, TopicRouteData
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.namesrv import (
    BrokerHeartbeatRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterTopicInNamesrvRequest,
    UnregisterBrokerRequest,
)
from cometmq.remoting import Connection, ConnectionLostError, RemotingClient, Supervisor, check
from cometmq.remoting.slices import Slices, off_loop

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
PART_BYTES_MAX = 4 * 1024 * 1024
"""The size of a registration, about; a name server reads at most 16 MiB."""
TOPIC_BYTES = 200
"""The size of a topic in a registration, beside its name and its attributes."""
COALESCED_S = 0.1
"""How long changes wait for each other after `AT_ONCE` registrations in a row, unless a request
waits for the registration."""
AT_ONCE = 100
"""Changes in a row that are registered at once: clients look for a new topic soon."""
_READ_WRITE = Perm.READ | Perm.WRITE


class _Content(NamedTuple):
    """The content of a registration beside the topics themselves."""

    version: DataVersion
    permission: int
    broker_id: int
    filter_servers: tuple[str, ...]


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
        static_topics: the mappings of static topics; None for none.
    """

    def __init__(
        self,
        client: RemotingClient,
        topics: TopicTable,
        settings: Callable[[], BrokerSettings],
        *,
        role: Role,
        filter_servers: Callable[[], tuple[str, ...]] = tuple,
        static_topics: StaticTopicTable | None = None,
    ) -> None:
        self._client = client
        self._topics = topics
        self._settings = settings
        self._role = role
        self._filter_servers = filter_servers
        self._static_topics = static_topics
        self._supervisor = Supervisor("registration")
        self._links: list[_Link] = []

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
                self._static_topics,
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
        """Register again, in the background: something about the topics has changed.

        Right after another registration it waits for further changes for a moment.
        """
        for link in self._links:
            link.wake()

    def hurry(self) -> None:
        """Register again at once, in the background, also right after another registration."""
        for link in self._links:
            link.hurry()

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
        static_topics: StaticTopicTable | None,
    ) -> None:
        self.address = address
        self.is_known = False
        self._client = client
        self._identity = identity
        self._topics = topics
        self._settings = settings
        self._role = role
        self._filter_servers = filter_servers
        self._static_topics = static_topics
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set while the next registration must not wait for further changes."""
        self._waiting: list[asyncio.Future[None]] = []
        self._failures = 0
        self._without_master = 0
        """How many pauses in a row the master of this slave has not been known."""
        self._registered_to: int | None = None
        """Up to which change of the topics the name server has them; None if that is unknown."""
        self._registered_as: _Content | None = None
        self._parts_sent = 0
        self._in_row = 0
        self._row_until_s = 0.0

    def wake(self) -> None:
        """Register soon, whatever the name server's version of the topics is."""
        self._wake.set()

    def register_soon(self) -> asyncio.Future[None]:
        """Register soon; the future is done once that was tried."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(tried)
        self.hurry()
        return tried

    def hurry(self) -> None:
        """Register soon, also right after another registration."""
        self._hurry.set()
        self.wake()

    async def run(self) -> None:
        """Keep the broker registered until the task is cancelled."""
        while True:
            is_urgent, waiting = self._wake.is_set(), self._waiting
            self._wake.clear()
            self._hurry.clear()
            self._waiting = []
            try:
                await self._register_once(is_urgent)
            finally:
                for tried in waiting:
                    if not tried.done():
                        tried.set_result(None)
            if is_urgent:
                now_s = asyncio.get_running_loop().time()
                self._in_row = self._in_row + 1 if now_s < self._row_until_s else 1
                self._row_until_s = now_s + COALESCED_S
                if self._in_row > AT_ONCE:
                    await self._coalesce()
                    self._row_until_s += COALESCED_S
            await self._pause()

    async def _coalesce(self) -> None:
        """Let further changes wait for each other: many topics may be created one by one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COALESCED_S):
                await self._hurry.wait()

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
        self._registered_to = None
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
        settings, servers = self._settings(), self._filter_servers()
        content = _Content(
            self._topics.version, settings.broker_permission, self._role.broker_id, servers
        )
        changes = self._topics.changes
        changed = self._changed_topics(content) if is_urgent else None
        if (
            is_urgent
            and self._registered_to is not None
            and self._registered_as == content
            and not self._role.is_slave
        ):
            return  # a registration for another reason has brought the change
        self._registered_to = None
        if changed is not None and self._are_sent_singly(changed, settings):
            await self._send_topics(changed, content)
            self._registered_to, self._registered_as = changes, content
            return
        if changed is None:
            response = await self._send_all(content)
        else:
            response = await self._send_changes(changed, content)
        self._registered_to, self._registered_as = changes, content
        found = response.header(RegisterBrokerResponse)
        if self._role.is_slave:
            self._role.follow(found.master_addr or "", found.ha_server_addr or "")
        elif response.body:  # a slave copies the topics of its master
            await self._take_order(KVTable.decode(response.body).table)

    def _changed_topics(self, content: _Content) -> dict[str, TopicConfig] | None:
        """Return the topics that were created or changed since the last registration.

        None if anything else has changed, so that all topics have to be sent.
        """
        before = self._registered_as
        if self._registered_to is None or before is None or before[1:3] != content[1:3]:
            return None
        changed = self._topics.changed_since(self._registered_to) or {}
        present = {name: config for name, config in changed.items() if config is not None}
        return present if present and len(present) == len(changed) else None

    def _are_sent_singly(self, changed: Iterable[str], settings: BrokerSettings) -> bool:
        """Return whether topics are registered by requests of their own, without a mapping."""
        mappings = self._static_topics
        return settings.enable_single_topic_register and (
            mappings is None or not any(name in mappings for name in changed)
        )

    async def _send_all(self, content: _Content) -> Command:
        """Register all topics, in parts if they are many.

        A name server writes the topics of a registration whose version is another one than that of
        the registration before, and removes none. So each part but the last one has a version of
        its own, and until the last one has come the name server does not know the version here.
        Source: BrokerController.registerBrokerAll, RocketMQ 5.3, which counts the version up.
        """
        slices = Slices()
        parts = await _parts_of(dict(self._topics.all()), self._settings(), slices)
        return await self._send_parts(parts, content, slices, is_all=len(parts) == 1)

    async def _send_changes(self, changed: dict[str, TopicConfig], content: _Content) -> Command:
        """Register further topics.

        A name server takes a registration with one topic as an increment, and refuses it if it does
        not know the broker; it would take two for all topics. So one topic is sent first, and the
        others over the same connection: a broker that has left the name server has lost that.
        Source: BrokerController.registerIncrementBrokerData, RocketMQ 5.3.
        """
        slices = Slices()
        (first, config), *others = changed.items()
        parts = [{first: config}]
        if others:
            parts += await _parts_of(dict(others), self._settings(), slices)
        return await self._send_parts(parts, content, slices, is_all=False)

    async def _send_parts(
        self,
        parts: list[dict[str, TopicConfig]],
        content: _Content,
        slices: Slices,
        *,
        is_all: bool,
    ) -> Command:
        """Send registrations over one connection; return the response to the last one."""
        connection = await self._client.connection(self.address)
        for part in parts[:-1]:
            self._parts_sent += 1
            version = msgspec.structs.replace(content.version, counter=-self._parts_sent)
            await self._send(part, content._replace(version=version), slices, connection)
        return await self._send(parts[-1], content, slices, connection, is_part=not is_all)

    async def _send(
        self,
        topics: dict[str, TopicConfig],
        content: _Content,
        slices: Slices,
        connection: Connection,
        *,
        is_part: bool = True,
    ) -> Command:
        """Send a registration with some topics."""
        who, settings = self._identity, self._settings()
        body, crc = await registration_body(
            topics,
            content.version,
            content.permission,
            slices,
            mappings=await self._mappings(topics, slices),
            filter_servers=content.filter_servers,
            deflated=settings.compressed_register,
        )
        acts = settings.enable_slave_acting_master
        header = RegisterBrokerRequest(
            broker_name=who.broker_name,
            broker_addr=who.address,
            cluster_name=who.cluster,
            ha_server_addr=who.ha_address,
            broker_id=content.broker_id,
            compressed=settings.compressed_register,
            body_crc32=crc & 0x7FFFFFFF,
            heartbeat_timeout_millis=settings.broker_not_active_timeout_ms if acts else None,
            enable_acting_master=acts,
            is_part=is_part or None,
        )
        response = await self._client.call(
            self.address,
            RequestCode.REGISTER_BROKER,
            header,
            body,
            timeout=self._timeout_s(),
            connection=connection,
        )
        return check(response)

    async def _mappings(
        self, topics: Iterable[str], slices: Slices
    ) -> dict[str, TopicQueueMappingInfo]:
        """Return which queues this broker leads of those topics that are static ones."""
        table = self._static_topics
        if not table:
            return {}
        return {
            name: info
            async for name in slices.each(topics)
            if (info := table.info(name)) is not None
        }

    async def _send_topics(self, changed: dict[str, TopicConfig], content: _Content) -> None:
        """Register each topic by a request of its own.

        It says nothing about the version, so that the next registration has all topics.
        Source: BrokerOuterAPI.registerSingleTopicAll, RocketMQ 5.3.
        """
        for name, config in changed.items():
            row = QueueData(
                broker_name=self._identity.broker_name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm & content.permission,
                topic_sys_flag=config.topic_sys_flag,
            )
            check(
                await self._client.call(
                    self.address,
                    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                    RegisterTopicInNamesrvRequest(topic=name),
                    TopicRouteData(queue_datas=[row]).encode(),
                    timeout=self._timeout_s(),
                )
            )

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


async def _parts_of(
    topics: dict[str, TopicConfig], settings: BrokerSettings, slices: Slices
) -> list[dict[str, TopicConfig]]:
    """Divide topics so that each part makes a registration of a moderate size."""
    count_max = (
        settings.split_registration_size if settings.enable_split_registration else len(topics)
    )
    parts: list[dict[str, TopicConfig]] = [{}]
    left = PART_BYTES_MAX
    async for name, config in slices.each(topics.items()):
        size = TOPIC_BYTES + 2 * len(name) + 6 * sum(map(len, chain(*config.attributes.items())))
        if len(parts[-1]) >= 2 and (left < size or len(parts[-1]) >= count_max):
            parts.append({})
            left = PART_BYTES_MAX
        parts[-1][name] = config
        left -= size
    return parts


async def registration_body(
    topics: dict[str, TopicConfig],
    version: DataVersion,
    broker_permission: int,
    slices: Slices,
    *,
    mappings: Mapping[str, TopicQueueMappingInfo] | None = None,
    filter_servers: Iterable[str] = (),
    deflated: bool = False,
) -> tuple[bytes, int]:
    """Return the body of a registration, and its CRC-32.

    Args:
        topics: the topics.
        version: of the table of topics.
        broker_permission: what the broker allows at all; topics are shown with no more.
        slices: in which it is written.
        mappings: the queues of static topics among them.
        filter_servers: their addresses.
        deflated: whether it has the deflated form.
    """
    table = topics
    if broker_permission & _READ_WRITE != _READ_WRITE:
        table = {
            name: msgspec.structs.replace(config, perm=config.perm & broker_permission)
            async for name, config in slices.each(topics.items())
        }
    if deflated:
        deflate = partial(
            deflate_register_body, table.values(), version, filter_servers, mappings or {}
        )
        data = await off_loop(deflate)
        return data, zlib.crc32(data)
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table=table,
        data_version=version,
        topic_queue_mapping_info_map=dict(mappings) if mappings else None,
    )
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
    """Return the pause after a number of attempts: each is twice the one before."""
    return min(first_s * 2.0 ** min(attempts - 1, 10), max_s)
