"""The list of topics, and one topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from cometmq.console.pages import (
    Name,
    NotFoundError,
    Page,
    PageNumber,
    Paging,
    Query,
    Search,
    matching,
    paged,
)
from cometmq.console.reads import APPLICATION, Reads
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.topic import Perm
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import ResponseCode

QUEUES_SHOWN = 100
GROUPS_SHOWN = 200
Shown = Annotated[
    Literal["application", "retry", "dead letters", "system", "all"],
    msgspec.Meta(description="Which topics to list."),
]


class TopicsQuery(Query):
    """A part of the list."""

    search: Search = ""
    type: Shown = "application"
    page: PageNumber = 1


class TopicRow(msgspec.Struct):
    """A topic as the name server has it."""

    topic: str
    type: str
    queues: int = 0
    """Writable queues over all brokers."""
    brokers: list[str] = msgspec.field(default_factory=list)
    permission: str = ""
    error: str = ""


class Topics(msgspec.Struct):
    """A part of the list of topics."""

    paging: Paging
    topics: list[TopicRow]


class TopicQuery(Query):
    """A topic, and a part of its queues."""

    topic: Name
    page: PageNumber = 1


class TopicBroker(msgspec.Struct):
    """A topic on one broker."""

    broker: str
    master: str
    slaves: int
    read_queues: int
    write_queues: int
    permission: str
    settings: dict[str, str]


class Queue(msgspec.Struct):
    """One queue of a topic."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    last_time_ms: int | None


class Topic(msgspec.Struct):
    """One topic."""

    topic: str
    type: str
    messages: int
    paging: Paging
    queues: list[Queue]
    brokers: list[TopicBroker]
    groups: list[str]
    """Groups that have an offset, or a member that subscribes."""
    groups_total: int
    errors: list[str]


async def topics(reads: Reads, query: TopicsQuery) -> Topics:
    """Return a part of the list; only the routes of its topics are read."""
    types = await reads.topics()
    names = matching(types, query.search)
    shown, paging = paged(
        [name for name in names if query.type in ("all", types[name])], query.page
    )
    routes = await reads.each(shown, reads.admin.route)
    rows = [_row(name, types[name], route) for name, route in zip(shown, routes, strict=True)]
    return Topics(paging, rows)


def _row(name: str, type: str, route: TopicRouteData | CometError) -> TopicRow:
    row = TopicRow(name, type)
    if isinstance(route, CometError):
        row.error = str(route)
        return row
    parts = route.queue_datas
    row.queues = sum(each.write_queue_nums for each in parts if each.perm & Perm.WRITE)
    row.brokers = sorted(each.broker_name for each in parts)
    row.permission = ", ".join(sorted({permission(each.perm) for each in parts}))
    return row


def permission(perm: int) -> str:
    """Return a permission as words."""
    words = [word for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "write")) if perm & bit]
    return " and ".join(words) or "none"


async def route_of(reads: Reads, topic: str) -> TopicRouteData:
    """Return the route of a topic as a name server has it now.

    Raises:
        NotFoundError: there is no such topic.
    """
    try:
        return await reads.admin.route(topic)
    except ResponseError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NotFoundError(f"there is no topic {topic}") from None
        raise


async def groups_of(
    reads: Reads, masters: Iterable[str], topic: str, errors: list[str]
) -> list[str]:
    """Return the groups that brokers list for a topic, in order; add what could not be read."""
    masters = list(masters)

    async def groups_at(address: str) -> list[str]:
        return await reads.admin.broker_groups_of_topic(address, topic)

    groups: set[str] = set()
    for at, listed in zip(masters, await reads.each(masters, groups_at), strict=True):
        if isinstance(listed, CometError):
            errors.append(f"groups at {at}: {listed}")
        else:
            groups.update(listed)
    return sorted(groups)


async def topic(reads: Reads, query: TopicQuery) -> Topic:
    """Return one topic; each of its masters gets three requests."""
    name = query.topic
    route = await route_of(reads, name)
    errors: list[str] = []

    async def queues_at(address: str) -> list[Queue]:
        table = (await reads.admin.broker_topic_stats(address, name)).offset_table
        return [
            Queue(
                *(queue.broker_name, queue.queue_id, each.min_offset, each.max_offset),
                messages=max(each.max_offset - each.min_offset, 0),
                last_time_ms=each.last_update_timestamp or None,
            )
            for queue, each in table.items()
        ]

    masters = route.masters()
    queues: list[Queue] = []
    for at, found in zip(masters, await reads.each(masters, queues_at), strict=True):
        if isinstance(found, CometError):
            errors.append(f"queues at {at}: {found}")
        else:
            queues += found
    groups = await groups_of(reads, masters, name, errors)
    queues.sort(key=lambda each: (each.broker, each.queue))
    shown, paging = paged(queues, query.page, QUEUES_SHOWN)
    return Topic(
        *(
            name,
            (await reads.topics()).get(name, APPLICATION),
            sum(each.messages for each in queues),
            paging,
            list(shown),
        ),
        brokers=await _brokers(reads, name, route, errors),
        groups=groups[:GROUPS_SHOWN],
        groups_total=len(groups),
        errors=errors,
    )


async def _brokers(
    reads: Reads, name: str, route: TopicRouteData, errors: list[str]
) -> list[TopicBroker]:
    """Return a topic on each of its brokers, with the settings that the brokers have."""
    try:
        settings = {
            broker: {key: str(value) for key, value in msgspec.to_builtins(config).items()}
            for broker, config in (await reads.admin.topic_configs(name)).items()
        }
    except CometError as error:
        settings = {}
        errors.append(f"settings: {error}")
    addresses = {each.broker_name: each.broker_addrs for each in route.broker_datas}
    return [
        TopicBroker(
            each.broker_name,
            master=addresses.get(each.broker_name, {}).get(0, ""),
            slaves=sum(1 for number in addresses.get(each.broker_name, {}) if number),
            read_queues=each.read_queue_nums,
            write_queues=each.write_queue_nums,
            permission=permission(each.perm),
            settings=settings.get(each.broker_name, {}),
        )
        for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
    ]


PAGES = (
    Page("/topics", "Topics", "topics/topics.html", TopicsQuery, Topics, topics, is_tab=True),
    Page("/topics/topic", "Topic", "topics/topic.html", TopicQuery, Topic, topic),
)
