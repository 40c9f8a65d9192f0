"""Removes the items of logical queues whose messages have all expired.

    queues that this broker leads   the oldest item goes when its broker has no message of it, and
                                    the next item is decided
    other queues                    items that the leader has removed go here, too; a list goes when
                                    the leader's list has no item of this broker

The epoch stays, and name servers are not told: the leaders do not change. After that a broker that
has no item may be removed from the cluster.

The last offsets of groups are kept: a group whose only offset is in an item that goes begins at the
next item. It would have no offset else, and a consumer that begins at the end would skip messages.

Only the master of a broker decides that its messages have expired: a replica may have fewer. An end
that readers do not see yet counts as a message. A broker that has no message at all must have a
mapping of the topic: it may be one whose disk was replaced.

Source: TopicQueueMappingCleanService, RocketMQ 5.3, which also removes an item before an undecided
one, tells no other broker, and forgets the offsets of groups.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from cometmq.broker.core import Core
from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.broker.static_topics.offsets import LogicalQueue, OffsetRequests
from cometmq.broker.static_topics.table import items_of
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.common import GroupList
from cometmq.protocol.bodies.group import ConsumeStats
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.bodies.topic import (
    TopicConfigAndQueueMapping,
    TopicOffset,
    TopicStatsTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.group import GetConsumeStatsRequest
from cometmq.protocol.headers.offset import GetMaxOffsetRequest, GetMaxOffsetResponse
from cometmq.protocol.headers.topic import (
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    QueryTopicConsumeByWhoRequest,
)
from cometmq.protocol.logical_queues import end_of, is_decided
from cometmq.remoting import check
from cometmq.remoting.slices import Slices, decode
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000
"""Requests to other brokers after which a run ends; the next run goes on with the next topic."""
LEADERS_MAX: Final = 8
"""Brokers that are asked, one after the other, which of them leads a queue."""

Items = list[LogicQueueMappingItem]
Changed = dict[int, Items]
"""The items that stay, by logical queue."""


class ExpiredItems:
    """Looks for expired items in the mappings of this broker.

    Args:
        core: of the broker.
        brokers: the brokers of items.
        offsets: the committed offsets of logical queues.
    """

    def __init__(
        self,
        core: Core,
        brokers: ItemBrokers,
        offsets: OffsetRequests,
    ) -> None:
        self._core = core
        self._brokers = brokers
        self._offsets = offsets
        self._last = ""
        """The topic that was looked at last."""
        self._failures = FailureLog(
            log,
            fails="cannot see whether the old messages of a static topic have expired",
            works="saw whether the old messages of a static topic have expired",
            name="topic",
        )

    async def run(self) -> None:
        """Look at each static topic once, as far as requests are left."""
        names = sorted(self._core.static_topics.all())
        first = bisect_right(names, self._last)
        requests = 0
        for topic in [*names[first:], *names[:first]]:
            detail = self._core.static_topics.get(topic)
            if self._core.role.is_slave or requests >= REQUESTS_MAX:
                return
            self._last = topic
            if detail is None:
                continue
            look = _Look(self._core, self._brokers, self._offsets, detail)
            try:
                changed = await look.expired()
                if changed and await self._core.static_topics.cut(detail, changed):
                    log.info(
                        "removed expired items of a static topic topic=%s queues=%d",
                        *(topic, len(changed)),
                    )
            except CometError as problem:
                look.failure = look.failure or problem
            requests += look.requests
            if look.failure is None:
                self._failures.succeeded(topic)
            else:
                self._failures.failed(topic, look.failure)


class _Look:
    """One look at the part of a static topic; each broker is asked once about a thing."""

    def __init__(
        self,
        core: Core,
        brokers: ItemBrokers,
        offsets: OffsetRequests,
        detail: TopicQueueMappingDetail,
    ) -> None:
        self._core = core
        self._brokers = brokers
        self._offsets = offsets
        self._detail = detail
        self._topic = detail.topic
        self._name = detail.bname
        self._bounds: dict[str, Mapping[MessageQueue, TopicOffset]] = {}
        self._parts: dict[str, TopicQueueMappingDetail | None] = {}
        self._committed: dict[str, dict[str, Mapping[int, int]]] = {}
        self._away: set[str] = set()
        """The brokers that did not respond."""
        self.requests = 0
        """How many were sent."""
        self.failure: CometError | None = None
        """Why nothing is known of some queues."""

    async def expired(self) -> Changed:
        """Return the items that stay, for each queue that loses some."""
        changed: Changed = {}
        hosted = self._detail.hosted_queues or {}
        async for queue_id, items in Slices().each(list(hosted.items())):
            try:
                if items[-1].bname == self._name:
                    rest = await self._of_led(queue_id, items)
                else:
                    rest = await self._of_other(queue_id, items)
            except CometError as problem:
                self.failure = self.failure or problem
                continue
            if len(rest) < len(items):
                changed[queue_id] = rest
        return changed

    async def _of_led(self, queue_id: int, items: Items) -> Items:
        """Return the items of a queue that this broker leads without those that have expired."""
        rest = items
        while len(rest) > 1 and is_decided(rest[1]) and await self._has_expired(rest):
            await self._keep_offsets(queue_id, rest)
            rest = rest[1:]
        return rest

    async def _has_expired(self, items: Items) -> bool:
        first = items[0]
        if first.bname == self._name:
            low, _ = self._core.store.bounds(self._topic, first.queue_id)
            return low >= self._core.store.next_offset(self._topic, first.queue_id)
        queue = MessageQueue(self._topic, first.bname, first.queue_id)
        row = (await self._bounds_at(first.bname)).get(queue)
        if row is None or row.min_offset < row.max_offset:
            return False
        end = end_of(items, 0)
        if end is not None and row.max_offset >= end:
            return True
        # The offsets up to the end are a gap, or those of messages that readers do not see yet.
        header = GetMaxOffsetRequest(
            topic=self._topic,
            queue_id=first.queue_id,
            committed=False,
            lo=False,
            bname=first.bname,
        )
        found = await self._call(first.bname, RequestCode.GET_MAX_OFFSET, header)
        written = check(found).header(GetMaxOffsetResponse).offset
        if written > row.max_offset:
            return False
        return row.max_offset > 0 or await self._part_at(first.bname) is not None

    async def _of_other(self, queue_id: int, items: Items) -> Items:
        """Return the items of a queue that another broker leads without those that it removed."""
        theirs = await self._items_of_leader(queue_id, items)
        if not theirs or not is_decided(theirs[-1]) or theirs[-1].gen < items[-1].gen:
            return items
        if not any(item.bname == self._name for item in theirs):
            return []
        return [item for item in items if item.gen >= theirs[0].gen]

    async def _items_of_leader(self, queue_id: int, items: Items) -> Items:
        """Return the items that the leader of a queue has; none if it is not known."""
        for _ in range(LEADERS_MAX):
            name = items[-1].bname
            part = await self._part_at(name)
            if part is None or not (found := items_of(part, queue_id)):
                return []
            if found[-1].bname == name:
                is_newest = (part.epoch, part.total_queues) == (
                    self._detail.epoch,
                    self._detail.total_queues,
                )
                return found if is_newest else []
            if found[-1].gen <= items[-1].gen:
                return []
            items = found
        return []

    async def _keep_offsets(self, queue_id: int, items: Items) -> None:
        """Let groups whose offset is in the first item begin at the next one."""
        first = items[0]
        rest = LogicalQueue(self._topic, queue_id, items[1:])
        for group, offsets in (await self._committed_at(first.bname)).items():
            if first.queue_id in offsets:
                self.requests += len(rest.items)
                await self._offsets.begin(rest, group)

    # --- what the brokers of items say ------------------------------------------------------------

    async def _bounds_at(self, broker: str) -> Mapping[MessageQueue, TopicOffset]:
        """Return the bounds of the physical queues at a broker."""
        if broker not in self._bounds:
            header = GetTopicStatsInfoRequest(topic=self._topic)
            response = await self._call(broker, RequestCode.GET_TOPIC_STATS_INFO, header)
            found = await decode(TopicStatsTable, check(response).body)
            self._bounds[broker] = found.offset_table
        return self._bounds[broker]

    async def _part_at(self, broker: str) -> TopicQueueMappingDetail | None:
        """Return the part of a broker; None if it has none."""
        if broker not in self._parts:
            header = GetTopicConfigRequest(topic=self._topic, lo=True)
            response = await self._call(broker, RequestCode.GET_TOPIC_CONFIG, header)
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                self._parts[broker] = None
            else:
                found = await decode(TopicConfigAndQueueMapping, check(response).body)
                self._parts[broker] = found.mapping_detail
        return self._parts[broker]

    async def _committed_at(self, broker: str) -> dict[str, Mapping[int, int]]:
        """Return the offsets that groups have committed at a broker, by group and queue."""
        if broker in self._committed:
            return self._committed[broker]
        found: dict[str, Mapping[int, int]] = {}
        if broker == self._name:
            for group in self._core.offsets.groups_of(self._topic):
                found[group] = self._core.offsets.of(group, self._topic)
        else:
            header = QueryTopicConsumeByWhoRequest(topic=self._topic)
            response = await self._call(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            for group in (await decode(GroupList, check(response).body)).group_list:
                asked = GetConsumeStatsRequest(consumer_group=group, topic=self._topic)
                response = await self._call(broker, RequestCode.GET_CONSUME_STATS, asked)
                stats = await decode(ConsumeStats, check(response).body)
                found[group] = {
                    queue.queue_id: row.consumer_offset
                    for queue, row in stats.offset_table.items()
                    if row.consumer_offset >= 0
                }
        self._committed[broker] = found
        return found

    async def _call(self, broker: str, code: int, header: Header) -> Command:
        """Send a request to the master of a broker, and return the response with any code.

        Raises:
            ResponseError: it does not respond, or did not before.
        """
        if broker in self._away:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"broker {broker} does not respond")
        self.requests += 1
        try:
            return await self._brokers.call(broker, code, header, masters_only=True)
        except CometError:
            self._away.add(broker)
            raise
