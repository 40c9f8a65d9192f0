"""Routes: the brokers and queues of each topic, as name servers return them; cached, refreshed.

A topic without a route of its own may be sent to through the template topic ``TBW102``: its broker
creates the topic on arrival. Such a route is provisional and soon refreshed.

Source: MQClientInstance.updateTopicRouteInfoFromNameServer, topicRouteData2TopicPublishInfo and
topicRouteData2TopicSubscribeInfo, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from cometmq.client._connection.name_servers import NameServers
from cometmq.client.errors import NameServerError, TopicNotFoundError
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import QUEUES_MAX, RETRY_PREFIX, TEMPLATE_TOPIC, Perm
from cometmq.protocol.bodies.route import TopicQueueMappingInfo, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.logical_queues import logical_broker_name
from cometmq.remoting.tasks import Supervisor, raise_unless_failure
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

MASTER_ID = 0
NO_BROKER = "__syslo__none__"
PROVISIONAL_S = 1.0
"""How long a provisional route is used before the topic's own one is requested again."""
REFRESH_S = 1.0
"""How old a route must be before sends that cannot reach its brokers refresh it."""
ERRORS_MAX = 256
"""Topics without a route whose last error is kept; of more, the oldest errors are dropped."""
REFRESH_TIMEOUT_S = 0.5
"""How long such a refresh may take: the retry of its send waits for it."""


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers and queues of one topic."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    """Queues that may be written to, on brokers that have a master, in order."""
    read_queues: tuple[MessageQueue, ...]
    """Queues that may be read from, in order."""
    brokers: dict[str, dict[int, str]]
    """Broker name to broker id to address; id 0 is the master."""
    provisional: bool = False
    """Made from the template topic, because this one does not exist yet."""
    ordered: bool = False
    """Whether an order configuration names the queues to write to."""
    hosts: dict[MessageQueue, str] = field(default_factory=dict)
    """The broker of each queue of a static topic, whose queues name no broker that exists."""
    filter_servers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The addresses of filter servers, by the address of their broker."""

    def physical(self, queue: MessageQueue) -> str:
        """Return the name of the broker that has a queue now."""
        return self.hosts.get(queue, queue.broker_name)

    def master(self, where: str | MessageQueue) -> str | None:
        """Return the address of the master of a broker or of a queue's broker, None without one."""
        return self._replicas(where).get(MASTER_ID)

    def readable(self, where: str | MessageQueue, broker_id: int = MASTER_ID) -> str | None:
        """Return the address to read from: the address of the broker id, else of any replica."""
        replicas = self._replicas(where)
        found = replicas.get(broker_id)
        if found is None and broker_id != MASTER_ID:
            found = replicas.get(broker_id + 1)
        return found if found is not None else next(iter(replicas.values()), None)

    def masters(self) -> list[str]:
        """Return the addresses of all masters of the topic."""
        return [found for name in self.brokers if (found := self.master(name)) is not None]

    def any_broker(self) -> str | None:
        """Return the address of a random broker of the topic, its master if it has one."""
        served = [replicas for replicas in self.brokers.values() if replicas]
        if not served:
            return None
        replicas = random.choice(served)
        return replicas.get(MASTER_ID) or random.choice(list(replicas.values()))

    def _replicas(self, where: str | MessageQueue) -> dict[int, str]:
        name = where if isinstance(where, str) else self.physical(where)
        return self.brokers.get(name, {})


def route_from(topic: str, data: TopicRouteData) -> Route:
    """Make a route from the name server's response."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    rows = sorted(data.queue_datas, key=lambda row: row.broker_name)
    writable = [
        (row.broker_name, row.write_queue_nums)
        for row in rows
        if row.perm & Perm.WRITE and MASTER_ID in brokers.get(row.broker_name, {})
    ]
    readable = [(row.broker_name, row.read_queue_nums) for row in rows if row.perm & Perm.READ]
    hosts = static_queues(topic, data.topic_queue_mapping_by_broker or {})
    ordered = bool(data.order_topic_conf)
    if data.order_topic_conf:
        writable = _ordered_queues(data.order_topic_conf)
    return Route(
        topic,
        tuple(hosts) if hosts and not ordered else _queues(topic, writable),
        tuple(hosts) or _queues(topic, readable),
        brokers,
        ordered=ordered,
        hosts=hosts,
        filter_servers={
            broker: tuple(servers)
            for broker, servers in data.filter_server_table.items()
            if servers
        },
    )


def _queues(topic: str, counts: list[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, broker, queue_id)
        for broker, count in counts
        for queue_id in range(min(count, QUEUES_MAX))
    )


def _ordered_queues(text: str) -> list[tuple[str, int]]:
    parts = [part.strip().rpartition(":") for part in text.split(";")]
    return [
        (broker, int(count))
        for broker, _, count in parts
        if broker and count.isdecimal() and len(count) < 10
    ]


def static_queues(
    topic: str, mappings: Mapping[str, TopicQueueMappingInfo]
) -> dict[MessageQueue, str]:
    """Return the queues of a static topic in order, each with the broker that has it now.

    Each broker reports its own queues. If two report the same one, the later epoch counts. A queue
    that no broker reports has `NO_BROKER`.

    Source: MQClientInstance.topicRouteData2EndpointsForStaticTopic, RocketMQ 5.3.
    """
    hosts: dict[MessageQueue, str] = {}
    for scope in sorted({info.scope for info in mappings.values()}):
        infos = sorted(
            (info for info in mappings.values() if info.scope == scope),
            key=lambda info: info.epoch,
        )
        owners = {queue_id: info.bname for info in infos for queue_id in info.curr_id_map}
        total = min(max(info.total_queues for info in infos), QUEUES_MAX)
        for queue_id in sorted({*owners, *range(total)}):
            queue = MessageQueue(topic, logical_broker_name(scope), queue_id)
            hosts[queue] = owners.get(queue_id, NO_BROKER)
    return hosts


def provisional_route(topic: str, template: TopicRouteData, queues_max: int) -> Route:
    """Make a route for a topic that does not exist yet from the route of the template topic.

    Brokers create a retry topic for its group, with one queue by default, whatever the template
    has: so its provisional route has one.
    """
    if topic.startswith(RETRY_PREFIX):
        queues_max = 1
    rows = []
    for row in template.queue_datas:
        count = min(queues_max, row.read_queue_nums)
        rows.append(msgspec.structs.replace(row, read_queue_nums=count, write_queue_nums=count))
    made = route_from(topic, msgspec.structs.replace(template, queue_datas=rows))
    return dataclasses.replace(made, provisional=True)


@dataclass(slots=True)
class _Cached:
    route: Route
    since: float
    tried_s: float
    """When it was fetched, or a lookup after `REFRESH_S` began."""


@dataclass(slots=True)
class _LookupLock:
    """Lets one lookup of a topic run at a time; it exists while a lookup runs or waits."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Routes:
    """The routes of all topics that this client uses.

    One lookup per topic runs at a time; others wait for its result. If a lookup fails, the cached
    route remains.

    Args:
        name_servers: are asked.
        timeout: of a lookup.
        tasks: owns the tasks that refresh a route in the background.
    """

    def __init__(self, name_servers: NameServers, *, timeout: float, tasks: Supervisor) -> None:
        self._name_servers = name_servers
        self._timeout = timeout
        self._tasks = tasks
        self._known: dict[str, _Cached] = {}
        self._lookups: dict[str, _LookupLock] = {}
        self._errors: dict[str, BaseException] = {}
        self._failures = FailureLog(
            log, fails="cannot refresh a route", works="route refreshed again", name="topic"
        )
        self.version = 0
        """Grows whenever a route is fetched or dropped."""
        self.on_change: list[Callable[[Route], None]] = []
        """Called with each route that differs from the one known before."""

    def known(self, topic: str) -> Route | None:
        """Return the cached route, or None; sends no request."""
        cached = self._known.get(topic)
        return cached.route if cached else None

    def error_of(self, topic: str) -> BaseException | None:
        """Return why the last lookup of a topic without a cached route failed, if that is known."""
        return self._errors.get(topic)

    def topics(self) -> list[str]:
        """Every topic with a cached route."""
        return list(self._known)

    def addresses(self, *, masters_only: bool) -> set[str]:
        """Return the addresses of all brokers that the cached routes mention."""
        return {
            address
            for cached in self._known.values()
            for replicas in cached.route.brokers.values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or not masters_only
        }

    async def find(self, topic: str, *, timeout: float | None = None) -> Route:
        """Return the topic's route, from a name server if it is not cached.

        Raises:
            TopicNotFoundError: the name server knows no such topic.
            NameServerError: no name server responded.
        """
        return self.known(topic) or await self._fetch(topic, None, timeout)

    async def find_for_sending(
        self, topic: str, *, new_topic_queues: int, timeout: float | None = None
    ) -> Route:
        """Like `find`, but a topic that does not exist yet gets a provisional route if it can.

        A provisional route that is old is used, too, while one lookup refreshes it: the broker has
        created the topic by then, and all sends would wait for that lookup.

        Raises:
            TopicNotFoundError: no such topic, and no broker creates topics.
            NameServerError: no name server responded.
        """
        cached = self._known.get(topic)
        if cached is None:
            return await self._fetch(topic, new_topic_queues, timeout)
        now_s = asyncio.get_running_loop().time()
        if self._is_stale(cached) and now_s - cached.tried_s >= REFRESH_S:
            cached.tried_s = now_s
            self._tasks.spawn(self._refresh_provisional(topic, new_topic_queues), f"route-{topic}")
        return cached.route

    async def _refresh_provisional(self, topic: str, new_topic_queues: int) -> None:
        try:
            await self._fetch(topic, new_topic_queues, None)
        except CometError as error:
            self._failures.failed(topic, error)
        else:
            self._failures.succeeded(topic)

    async def refresh(self, topic: str, *, timeout: float | None = None) -> Route | None:
        """Fetch the route again; if that fails, return the cached one, or None."""
        try:
            async with self._lock(topic, timeout):
                route = self._keep(route_from(topic, await self._request(topic, timeout)))
        except BaseException as error:
            raise_unless_failure(error)
            # Of a topic that does not exist the caller says what it needs it for.
            is_unknown = isinstance(error, TopicNotFoundError) and self.known(topic) is None
            self._failures.failed(topic, error, quiet=is_unknown)
            self._keep_error(topic, error)
            return self.known(topic)
        self._failures.succeeded(topic)
        return route

    async def refresh_old(self, topic: str, *, timeout: float) -> Route | None:
        """Refresh the route if it is older than `REFRESH_S`; return the newest one, or None.

        However many sends wait for a broker, one of them makes one lookup in this time; the others
        go on with the cached route. The lookup goes on when the time of its send is over.
        """
        begun = self.refresh_soon(topic)
        if begun is not None:
            await asyncio.wait([begun], timeout=timeout)
        return self.known(topic)

    async def has_moved(self, queue: MessageQueue) -> bool:
        """Refresh the route of a queue that its broker leads no more; return whether another does.

        Only queues of static topics move.
        """
        before = self.known(queue.topic)
        newest = await self.refresh_old(queue.topic, timeout=REFRESH_TIMEOUT_S)
        if before is None or newest is None:
            return newest is not None
        return before.physical(queue) != newest.physical(queue)

    def refresh_soon(self, topic: str) -> asyncio.Task[Route | None] | None:
        """Begin to refresh the route in the background, unless it is newer than `REFRESH_S`."""
        cached = self._known.get(topic)
        now = asyncio.get_running_loop().time()
        if cached is not None:
            if now - cached.tried_s < REFRESH_S:
                return None
            cached.tried_s = now
        return self._tasks.spawn(self.refresh(topic, timeout=REFRESH_TIMEOUT_S), f"route-{topic}")

    async def refresh_all(self) -> None:
        """Fetch the routes of all cached topics again, one after the other."""
        for topic in self.topics():
            await self.refresh(topic)

    def forget(self, topic: str) -> None:
        """Remove a topic from the cache."""
        self._known.pop(topic, None)
        self._errors.pop(topic, None)
        self.version += 1
        self._failures.forget(topic)

    async def _fetch(
        self, topic: str, new_topic_queues: int | None, timeout: float | None
    ) -> Route:
        try:
            return await self._look_up(topic, new_topic_queues, timeout)
        except CometError as error:
            self._keep_error(topic, error)
            raise

    async def _look_up(
        self, topic: str, new_topic_queues: int | None, timeout: float | None
    ) -> Route:
        async with self._lock(topic, timeout):
            cached = self._known.get(topic)
            if cached and not self._is_stale(cached):
                return cached.route
            try:
                return self._keep(route_from(topic, await self._request(topic, timeout)))
            except TopicNotFoundError:
                if new_topic_queues is None:
                    raise
                template = await self._template(topic, timeout)
                return self._keep(provisional_route(topic, template, new_topic_queues))

    async def _template(self, topic: str, timeout: float | None) -> TopicRouteData:
        try:
            return await self._request(TEMPLATE_TOPIC, timeout)
        except TopicNotFoundError:
            why = f"it does not exist, and no broker creates topics ({TEMPLATE_TOPIC} has no route)"
            raise TopicNotFoundError(topic, why) from None

    async def _request(self, topic: str, timeout: float | None) -> TopicRouteData:
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        wait = self._timeout if timeout is None else timeout
        try:
            response = await self._name_servers.request(code, header, timeout=wait)
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                why = (
                    "the name server has no route of it; check the name, create the topic by a "
                    "send or `cometmq admin topic create`, or start its broker"
                )
                raise TopicNotFoundError(topic, why) from None
            raise
        return TopicRouteData.decode(response.body)

    def _keep(self, route: Route) -> Route:
        before = self.known(route.topic)
        if before is not None and route == before:
            route = before  # what was derived from it stays valid
        now = asyncio.get_running_loop().time()
        self._known[route.topic] = _Cached(route, now, now)
        self._errors.pop(route.topic, None)
        self.version += 1
        if route != before:
            log.info("route changed topic=%s brokers=%s", route.topic, sorted(route.brokers))
            for listener in self.on_change:
                listener(route)
        return route

    def _keep_error(self, topic: str, error: BaseException) -> None:
        if topic not in self._known:
            self._errors.pop(topic, None)
            if len(self._errors) >= ERRORS_MAX:
                del self._errors[next(iter(self._errors))]
            self._errors[topic] = error

    def _is_stale(self, cached: _Cached) -> bool:
        age = asyncio.get_running_loop().time() - cached.since
        return cached.route.provisional and age > PROVISIONAL_S

    @asynccontextmanager
    async def _lock(self, topic: str, timeout: float | None) -> AsyncIterator[None]:
        """Let one lookup of a topic run at a time; the time covers the waiting and the lookup."""
        wait = self._timeout if timeout is None else timeout
        lookup = self._lookups.setdefault(topic, _LookupLock())
        lookup.users += 1
        try:
            async with asyncio.timeout(wait), lookup.lock:
                yield
        except TimeoutError:
            raise NameServerError(f"no route of {topic} within {wait:g} s") from None
        finally:
            lookup.users -= 1
            if not lookup.users:
                self._lookups.pop(topic, None)
