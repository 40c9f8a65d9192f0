"""Takes over newer mappings of static topics that this broker has missed.

A broker that was away while queues moved comes back with an old mapping: it would lead queues that
another broker leads, and tools would refuse to change the topic, whose parts disagree. So it
compares its epochs with those in the routes, and takes over the items that newer leaders have. It
does so before it accepts messages: at its start, and as a new master that may not have copied the
mapping yet. Messages that it stored in a queue that another broker leads would not be read.

Later it waits until a newer epoch is a minute old, because a tool that moves queues now sends the
mapping itself. It does not wait if readers go on at the newer leader already.

RocketMQ has nothing like it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
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
from cometmq.protocol.logical_queues import info_of, is_decided
from cometmq.remoting import check
from cometmq.remoting.slices import batched, decode
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

AGE_MS: Final = 60_000
"""How old a newer epoch has to be, if its last items are undecided."""
TIMEOUT_S: Final = 2.0
LOOKS_MAX: Final = 500
"""Topics that one run looks at; the next run goes on behind them."""
LOOKS_AT_ONCE: Final = 16


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
        self._last = ""
        """The topic that was looked at last."""
        self._failures = FailureLog(
            log,
            fails="cannot take over a newer mapping of a static topic",
            works="took over the newer mapping",
            name="topic",
        )

    async def run(self) -> None:
        """Look at some static topics, those behind the ones of the last run first."""
        names = sorted(self._mappings.all())
        first = bisect_right(names, self._last)
        await self._look_at_all([*names[first:], *names[:first]][:LOOKS_MAX], AGE_MS)

    async def run_before_sends(self) -> None:
        """Look at all static topics, and take over any newer mapping."""
        await self._look_at_all(sorted(self._mappings.all()), None)

    async def _look_at_all(self, topics: list[str], age_ms: int | None) -> None:
        for some in batched(topics, LOOKS_AT_ONCE):
            if self._role.is_slave:
                return
            self._last = some[-1]
            await asyncio.gather(*(self._try(topic, age_ms) for topic in some))

    async def _try(self, topic: str, age_ms: int | None) -> None:
        try:
            await self._look_at(topic, age_ms)
        except CometError as problem:
            self._failures.failed(topic, problem)
        else:
            self._failures.succeeded(topic)

    async def _look_at(self, topic: str, age_ms: int | None) -> None:
        """Take over a newer mapping.

        Args:
            topic: the topic.
            age_ms: how old its epoch has to be while no reader goes on at its broker; None for any.
        """
        route = await self._route(topic)
        known = self._mappings.get(topic)
        if route is None or known is None:
            return
        newest = self._newest(route, known)
        if newest is None:
            return
        is_due = age_ms is None or newest.epoch < self._clock.now_ms() - age_ms
        led = info_of(known).curr_id_map
        changed = known
        infos = (route.topic_queue_mapping_by_broker or {}).values()
        for info in sorted(infos, key=lambda each: each.epoch):
            taken = led.keys() & info.curr_id_map.keys()
            if info.epoch > known.epoch and info.bname != known.bname and taken:
                found = await self._part_of(topic, info.bname)
                hosted = {number: items for number in taken if (items := items_of(found, number))}
                is_due = is_due or any(is_decided(items[-1]) for items in hosted.values())
                kept = changed.hosted_queues or {}
                changed = msgspec.structs.replace(changed, hosted_queues={**kept, **hosted})
        if not is_due:
            return
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
        """Return the newest mapping of another broker, if it is newer."""
        infos = [
            info
            for info in (route.topic_queue_mapping_by_broker or {}).values()
            if known.epoch < info.epoch
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
