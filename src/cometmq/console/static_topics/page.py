"""The list of static topics, and the mapping of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from cometmq.client.admin.static_plans import Parts, check_parts, hosted_by, leaders_of
from cometmq.client.errors import ClientError
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
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.bodies.route import (
    LogicQueueMappingItem,
    RegisteredBroker,
    TopicQueueMappingDetail,
)
from cometmq.protocol.bodies.topic import detail_of
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.logical_queues import is_decided

MASTERS_MAX = 8
"""The list asks that many masters for the settings of all of their topics."""
QUEUES_SHOWN = 50
ITEMS_SHOWN = 20
"""The newest items of a logical queue."""


class StaticTopicsQuery(Query):
    """Which part of the list."""

    search: Search = ""
    page: PageNumber = 1


class StaticRow(msgspec.Struct):
    """A static topic in the list."""

    topic: str
    queues: int
    epoch: int
    brokers: list[str]
    """The brokers that lead queues."""


class StaticTopics(msgspec.Struct):
    """A part of the list of static topics."""

    paging: Paging
    topics: list[StaticRow]
    is_cut: bool
    """Whether the cluster has masters that were not asked."""
    errors: list[str]


class StaticTopicQuery(Query):
    """Which topic, and which part of its queues."""

    topic: Name
    page: PageNumber = 1


class BrokerPart(msgspec.Struct):
    """The part of a topic that a broker has."""

    broker: str
    epoch: int
    leads: int
    """The number of logical queues."""
    read_queues: int
    write_queues: int


class Item(msgspec.Struct):
    """A stretch of a logical queue, which is in one physical queue of one broker."""

    generation: int
    broker: str
    queue: int
    begins_at: int | None
    """The logical offset; None while a move has not decided it."""


class LogicalQueue(msgspec.Struct):
    """A queue as clients see it."""

    queue: int
    leader: str
    items: list[Item]
    """The newest first."""
    items_total: int


class StaticTopic(msgspec.Struct):
    """The mapping of a static topic."""

    topic: str
    parts: list[BrokerPart]
    paging: Paging
    queues: list[LogicalQueue]
    errors: list[str]


@contextlib.contextmanager
def clear_on_old_brokers() -> Iterator[None]:
    """Explain the error of a broker that has no static topics."""
    try:
        yield
    except ResponseError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise ClientError(
            f"{error}: static topics need brokers of CometMQ, or of RocketMQ 5.0 or later"
        ) from error


async def static_topics(reads: Reads, query: StaticTopicsQuery) -> StaticTopics:
    """Return a part of the list, of what some masters have."""
    masters = await reads.masters()
    asked = masters[:MASTERS_MAX]

    async def topics_of(master: RegisteredBroker) -> list[StaticRow]:
        found = await reads.admin.broker_static_topics(master.address)
        return [_row(topic, each) for topic, each in found.items()]

    rows: dict[str, StaticRow] = {}
    errors = []
    for master, found in zip(asked, await reads.each(asked, topics_of), strict=True):
        if isinstance(found, CometError):
            errors.append(f"{master.name}: {found}")
            continue
        for each in found:
            row = rows.setdefault(each.topic, StaticRow(each.topic, 0, 0, []))
            row.queues, row.epoch = max(row.queues, each.queues), max(row.epoch, each.epoch)
            row.brokers += each.brokers
    names, paging = paged(matching(sorted(rows), query.search), query.page)
    return StaticTopics(paging, [rows[name] for name in names], len(masters) > len(asked), errors)


def _row(topic: str, detail: TopicQueueMappingDetail) -> StaticRow:
    """Return a topic as one broker knows it."""
    hosted = (detail.hosted_queues or {}).values()
    leads = any(items and items[-1].bname == detail.bname for items in hosted)
    return StaticRow(topic, detail.total_queues, detail.epoch, [detail.bname] if leads else [])


async def static_topic(reads: Reads, query: StaticTopicQuery) -> StaticTopic:
    """Return a mapping: each master gets one request."""
    with clear_on_old_brokers():
        parts = await reads.admin.static_parts(query.topic)
    if not parts:
        raise NotFoundError(f"there is no static topic {query.topic}")
    errors = []
    try:
        check_parts(parts)
    except ClientError as error:
        errors.append(
            f"the mappings of the brokers do not fit together: {error}; start the broker if it is"
            " down, else move the queues again"
        )
    leaders = leaders_of(parts)
    shown, paging = paged(list(leaders.items()), query.page, QUEUES_SHOWN)
    queues = [queue_of(parts, *each) for each in shown]
    if undecided := [each.queue for each in queues if each.items[0].begins_at is None]:
        errors.append(
            f"a move of queues {', '.join(map(str, undecided))} has not finished: move them again"
        )
    led = list(leaders.values())
    rows = [
        BrokerPart(
            broker,
            detail_of(part).epoch,
            led.count(broker),
            part.read_queue_nums,
            part.write_queue_nums,
        )
        for broker, part in parts.items()
    ]
    return StaticTopic(query.topic, rows, paging, queues, errors)


def queue_of(parts: Parts, queue: int, leader: str) -> LogicalQueue:
    """Return a logical queue with its newest items."""
    items = hosted_by(parts[leader])[queue]
    newest = [_item(each) for each in items[: -ITEMS_SHOWN - 1 : -1]]
    return LogicalQueue(queue, leader, newest, len(items))


def _item(each: LogicQueueMappingItem) -> Item:
    begins = each.logic_offset if is_decided(each) else None
    return Item(each.gen, each.bname, each.queue_id, begins)


PAGES = (
    Page(
        "/topics/static", "Static topics", "static_topics/topics.html",
        StaticTopicsQuery, StaticTopics, static_topics,
    ),
    Page(
        "/topics/static/topic", "Static topic", "static_topics/topic.html",
        StaticTopicQuery, StaticTopic, static_topic,
    ),
)  # fmt: skip
