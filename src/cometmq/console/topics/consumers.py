"""The groups that consume a topic, with their members and their lag in this topic."""

from __future__ import annotations

import msgspec

from cometmq.console.pages import Name, Page, PageNumber, Paging, Query, paged
from cometmq.console.reads import Reads, lag_of
from cometmq.console.topics.page import groups_of, route_of
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.codes import ResponseCode

ROWS = 25
"""Groups of a page: each takes one request to each master of the topic, and one for members."""
MASTERS_MAX = 8
"""Of a topic with more masters the page has no lag; the page of a group has it."""


class ConsumersQuery(Query):
    """Which topic, and which part of its groups."""

    topic: Name
    page: PageNumber = 1


class Consumers(msgspec.Struct):
    """A group that consumes a topic."""

    group: str
    members: int | None = None
    lag: int | None = None
    """In this topic."""
    last_consumed_time_ms: int | None = None
    error: str = ""


class TopicConsumers(msgspec.Struct):
    """A part of the groups of a topic."""

    topic: str
    paging: Paging
    groups: list[Consumers]
    errors: list[str]


async def consumers(reads: Reads, query: ConsumersQuery) -> TopicConsumers:
    """Return groups that have an offset in a topic, or a member that subscribes."""
    masters = (await route_of(reads, query.topic)).masters()
    errors: list[str] = []
    names, paging = paged(await groups_of(reads, masters, query.topic, errors), query.page, ROWS)

    async def row(group: str) -> Consumers:
        online = await reads.online(group, masters)
        made = Consumers(group, members=len(online.connection_set) if online else 0)
        if len(masters) > MASTERS_MAX:
            return made
        made.lag = 0
        for at in masters:
            try:
                stats = await reads.admin.broker_consume_stats(at, group, query.topic)
            except ResponseError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:  # it has consumed nothing there
                    continue
                raise
            for each in stats.offset_table.values():
                made.lag += lag_of(each)
                if each.last_timestamp > (made.last_consumed_time_ms or 0):
                    made.last_consumed_time_ms = each.last_timestamp
        return made

    found = await reads.each(names, row)
    rows = [
        Consumers(name, error=str(each)) if isinstance(each, CometError) else each
        for name, each in zip(names, found, strict=True)
    ]
    return TopicConsumers(query.topic, paging, rows, errors)


PAGE = Page(
    "/topics/groups", "Groups of a topic", "topics/consumers.html", ConsumersQuery, TopicConsumers,
    consumers,
)  # fmt: skip
