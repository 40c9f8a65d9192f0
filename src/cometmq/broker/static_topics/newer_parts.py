"""Takes over newer mappings of static topics that this broker has missed.

A broker that was away while queues moved comes back with an old mapping: it would lead queues that
another broker leads, and tools would refuse to change the topic, whose parts disagree. So it
compares its epochs with those in the routes, and takes over the items that newer leaders have.

It waits until a newer epoch is a minute old: a tool that moves queues now sends the mapping itself.

RocketMQ has nothing like it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from cometmq.broker.core import Core
from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.broker.static_topics.changes import merged
from cometmq.broker.static_topics.table import items_of
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import (
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from cometmq.protocol.bodies.topic import TopicConfigAndQueueMapping
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.topic import GetTopicConfigRequest
from cometmq.protocol.logical_queues import info_of
from cometmq.remoting import check
from cometmq.remoting.slices import decode
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

AGE_MS: Final = 60_000
"""How old a newer epoch has to be."""
TIMEOUT_S: Final = 2.0


class NewerParts:
    """Looks for newer mappings of the static topics of this broker.

    Args:
        core: of the broker.
        brokers: the brokers of items.
        name_servers: returns the addresses of the name servers.
        replace: replaces a part, and announces it.
    """

    def __init__(
        self,
        core: Core,
        brokers: ItemBrokers,
        name_servers: Callable[[], Sequence[str]],
        replace: Callable[[TopicQueueMappingDetail], Awaitable[None]],
    ) -> None:
        self._mappings = core.static_topics
        self._client = core.client
        self._clock = core.clock
        self._role = core.role
        self._brokers = brokers
        self._name_servers = name_servers
        self._replace = replace
        self._failures = FailureLog(
            log,
            fails="cannot take over a newer mapping of a static topic",
            works="took over the newer mapping",
            name="topic",
        )

    async def run(self) -> None:
        """Look at each static topic once."""
        for topic in list(self._mappings.all()):
            if self._role.is_slave:
                return
            try:
                await self._look_at(topic)
            except CometError as problem:
                self._failures.failed(topic, problem)
            else:
                self._failures.succeeded(topic)

    async def _look_at(self, topic: str) -> None:
        route = await self._route(topic)
        known = self._mappings.get(topic)
        if route is None or known is None:
            return
        newest = self._newest(route, known)
        if newest is None:
            return
        led = info_of(known).curr_id_map
        changed = known
        infos = (route.topic_queue_mapping_by_broker or {}).values()
        for info in sorted(infos, key=lambda each: each.epoch):
            taken = led.keys() & info.curr_id_map.keys()
            if info.epoch > known.epoch and info.bname != known.bname and taken:
                found = await self._part_of(topic, info.bname)
                hosted = {number: items_of(found, number) for number in taken}
                kept = changed.hosted_queues or {}
                changed = msgspec.structs.replace(changed, hosted_queues={**kept, **hosted})
        wanted = msgspec.structs.replace(
            changed, epoch=newest.epoch, total_queues=newest.total_queues
        )
        new = merged(wanted, known, topic=topic, broker=known.bname, force=False)
        await self._replace(new)
        log.warning(
            "took over a newer mapping of a static topic topic=%s epoch=%d before=%d led=%d"
            " led_before=%d",
            *(topic, new.epoch, known.epoch, len(info_of(new).curr_id_map), len(led)),
        )

    def _newest(
        self, route: TopicRouteData, known: TopicQueueMappingDetail
    ) -> TopicQueueMappingInfo | None:
        """Return the newest mapping of another broker, if it is newer and not quite new."""
        until_ms = self._clock.now_ms() - AGE_MS
        infos = [
            info
            for info in (route.topic_queue_mapping_by_broker or {}).values()
            if known.epoch < info.epoch < until_ms
            and info.bname != known.bname
            and info.scope == known.scope
            and info.total_queues >= known.total_queues
        ]
        return max(infos, key=lambda each: each.epoch, default=None)

    async def _route(self, topic: str) -> TopicRouteData | None:
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        for name_server in self._name_servers():
            try:
                response = await self._client.call(
                    name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=TIMEOUT_S
                )
                return await decode(TopicRouteData, check(response).body)
            except CometError as problem:
                log.debug("cannot get a route namesrv=%s: %s", name_server, problem)
        return None

    async def _part_of(self, topic: str, broker: str) -> TopicQueueMappingDetail:
        header = GetTopicConfigRequest(topic=topic, lo=True)
        response = check(await self._brokers.call(broker, RequestCode.GET_TOPIC_CONFIG, header))
        found = (await decode(TopicConfigAndQueueMapping, response.body)).mapping_detail
        if found is None:
            raise CometError(f"broker {broker} has no mapping of topic {topic}")
        return found
