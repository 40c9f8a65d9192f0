"""Where the queues of a topic are: routes as the name server tells them, cached and refreshed.

A topic without a route of its own may be sent to through the template topic ``TBW102``: its broker
creates the topic on arrival. Such a route is provisional and soon asked for again.

Source: MQClientInstance.updateTopicRouteInfoFromNameServer, topicRouteData2TopicPublishInfo and
topicRouteData2TopicSubscribeInfo, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from cometmq.client.errors import TopicNotFoundError
from cometmq.client.name_servers import NameServers
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TEMPLATE_TOPIC, Perm
from cometmq.protocol.bodies import TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import GetRouteinfoByTopicRequest
from cometmq.remoting import check

log = logging.getLogger(__name__)

MASTER_ID = 0
PROVISIONAL_S = 1.0
"""How long a provisional route serves before the topic's own one is asked for again."""


@dataclass(frozen=True, slots=True)
class Route:
    """What one answer of a name server says about a topic."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    """Queues that may be written to, on brokers that have a master, in order."""
    read_queues: tuple[MessageQueue, ...]
    """Queues that may be read from, in order."""
    brokers: dict[str, dict[int, str]]
    """Broker name to broker id to address; id 0 is the master."""
    provisional: bool = False
    """Made from the template topic, because this one does not exist yet."""

    def master(self, broker_name: str) -> str | None:
        """Give the address of a broker's master, or None if it has none now."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def readable(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Give the address to read from: the broker id asked for, else any of that name."""
        replicas = self.brokers.get(broker_name, {})
        found = replicas.get(broker_id)
        if found is None and broker_id != MASTER_ID:
            found = replicas.get(broker_id + 1)
        return found if found is not None else next(iter(replicas.values()), None)

    def masters(self) -> list[str]:
        """Give the addresses of all masters of the topic."""
        return [found for name in self.brokers if (found := self.master(name)) is not None]

    def anyone(self) -> str | None:
        """Give the address of some broker of the topic, a master if there is one."""
        if not self.brokers:
            return None
        replicas = random.choice(list(self.brokers.values()))
        return replicas.get(MASTER_ID) or next(iter(replicas.values()), None)


def route_from(topic: str, data: TopicRouteData) -> Route:
    """Work out a topic's queues from the name server's answer."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    rows = sorted(data.queue_datas, key=lambda row: row.broker_name)
    writable = [
        (row.broker_name, row.write_queue_nums)
        for row in rows
        if row.perm & Perm.WRITE and MASTER_ID in brokers.get(row.broker_name, {})
    ]
    if data.order_topic_conf:
        writable = _ordered_queues(data.order_topic_conf)
    readable = [(row.broker_name, row.read_queue_nums) for row in rows if row.perm & Perm.READ]
    return Route(topic, _queues(topic, writable), _queues(topic, readable), brokers)


def _queues(topic: str, counts: list[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, broker, queue_id)
        for broker, count in counts
        for queue_id in range(count)
    )


def _ordered_queues(text: str) -> list[tuple[str, int]]:
    parts = [part.rpartition(":") for part in text.split(";") if part]
    return [(broker, int(count)) for broker, _, count in parts if broker and count.isdigit()]


def provisional_route(topic: str, template: Route, queues_max: int) -> Route:
    """Make a route for a topic that does not exist yet from that of the template topic."""
    counts: dict[str, int] = {}
    for queue in template.publish_queues:
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + 1
    queues = _queues(topic, [(name, min(count, queues_max)) for name, count in counts.items()])
    return Route(topic, queues, queues, template.brokers, provisional=True)


@dataclass(slots=True)
class _Cached:
    route: Route
    since: float


class Routes:
    """The routes of all topics that this client uses.

    One lookup per topic runs at a time; whoever comes meanwhile waits for it. A lookup that fails
    leaves the route known before in place.
    """

    def __init__(self, name_servers: NameServers, *, timeout: float) -> None:
        self._name_servers = name_servers
        self._timeout = timeout
        self._known: dict[str, _Cached] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.on_change: list[Callable[[Route], None]] = []
        """Called with each route that differs from the one known before."""

    def known(self, topic: str) -> Route | None:
        """Give the cached route, or None; asks nobody."""
        cached = self._known.get(topic)
        return cached.route if cached else None

    def topics(self) -> list[str]:
        """Every topic with a cached route."""
        return list(self._known)

    def addresses(self, *, masters_only: bool) -> set[str]:
        """Give the addresses of all brokers that the cached routes mention."""
        return {
            address
            for cached in self._known.values()
            for replicas in cached.route.brokers.values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or not masters_only
        }

    async def find(self, topic: str, *, timeout: float | None = None) -> Route:
        """Give the topic's route, asking a name server if it is not known.

        Raises:
            TopicNotFoundError: the name server knows no such topic.
            NameServerError: no name server answered.
        """
        return self.known(topic) or await self._look_up(topic, None, timeout)

    async def find_for_sending(
        self, topic: str, *, new_topic_queues: int, timeout: float | None = None
    ) -> Route:
        """Like `find`, but a topic that does not exist yet gets a provisional route if it can.

        Raises:
            TopicNotFoundError: no such topic, and no broker creates topics.
            NameServerError: no name server answered.
        """
        cached = self._known.get(topic)
        if cached and not self._is_stale(cached):
            return cached.route
        return await self._look_up(topic, new_topic_queues, timeout)

    async def refresh(self, topic: str, *, timeout: float | None = None) -> Route | None:
        """Ask for the route again; on failure give the one known before, or None."""
        try:
            async with self._lock(topic):
                return self._keep(await self._ask(topic, timeout))
        except CometError as error:
            log.warning("route not refreshed topic=%s error=%s", topic, error)
            return self.known(topic)

    async def refresh_all(self) -> None:
        """Ask for the routes of all known topics again, one after the other."""
        for topic in self.topics():
            await self.refresh(topic)

    def forget(self, topic: str) -> None:
        """Drop what is known of a topic."""
        self._known.pop(topic, None)

    async def _look_up(
        self, topic: str, new_topic_queues: int | None, timeout: float | None
    ) -> Route:
        async with self._lock(topic):
            cached = self._known.get(topic)
            if cached and not self._is_stale(cached):
                return cached.route
            try:
                return self._keep(await self._ask(topic, timeout))
            except TopicNotFoundError:
                if new_topic_queues is None:
                    raise
                template = await self._template(topic, timeout)
                return self._keep(provisional_route(topic, template, new_topic_queues))

    async def _template(self, topic: str, timeout: float | None) -> Route:
        try:
            return await self._ask(TEMPLATE_TOPIC, timeout)
        except TopicNotFoundError:
            why = f"it does not exist, and no broker creates topics ({TEMPLATE_TOPIC} has no route)"
            raise TopicNotFoundError(topic, why) from None

    async def _ask(self, topic: str, timeout: float | None) -> Route:
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        wait = self._timeout if timeout is None else timeout
        try:
            answer = check(await self._name_servers.call(code, header, timeout=wait))
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFoundError(topic, error.remark) from None
            raise
        return route_from(topic, TopicRouteData.decode(answer.body))

    def _keep(self, route: Route) -> Route:
        before = self.known(route.topic)
        now = asyncio.get_running_loop().time()
        self._known[route.topic] = _Cached(route, now)
        if route != before:
            log.info("route changed topic=%s brokers=%s", route.topic, sorted(route.brokers))
            for listener in self.on_change:
                listener(route)
        return route

    def _is_stale(self, cached: _Cached) -> bool:
        age = asyncio.get_running_loop().time() - cached.since
        return cached.route.provisional and age > PROVISIONAL_S

    def _lock(self, topic: str) -> asyncio.Lock:
        return self._locks.setdefault(topic, asyncio.Lock())
