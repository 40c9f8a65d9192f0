"""The list of groups, and one group."""

from __future__ import annotations

from collections.abc import Sequence

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
from cometmq.console.reads import Reads, lag_of
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.namespace import is_system_group
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.version import version_name

GROUPS_SHOWN = 25
"""Groups of a page: each takes a request to one broker, and one to each master for the lag."""
MASTERS_MAX = 8
"""In a cluster with more masters the list has no lag; the page of a group has it."""
QUEUES_SHOWN = 100
MEMBERS_SHOWN = 200
TIMED_TOPICS_MAX = 8
"""Topics of a page of queues whose lag is shown in time, too."""


class GroupsQuery(Query):
    """Which part of the list."""

    search: Search = ""
    system: bool = False
    page: PageNumber = 1


class GroupRow(msgspec.Struct):
    """A group in the list."""

    group: str
    members: int | None = None
    mode: str = ""
    lag: int | None = None
    error: str = ""


class Groups(msgspec.Struct):
    """A part of the list of groups."""

    paging: Paging
    groups: list[GroupRow]
    errors: list[str]


class GroupQuery(Query):
    """Which group, and which part of its queues."""

    group: Name
    page: PageNumber = 1


class Member(msgspec.Struct):
    """A member that is online."""

    client: str
    address: str
    language: str
    version: str
    differs: list[str] = msgspec.field(default_factory=list)
    """Topics to which it subscribes differently than another member."""


class Subscription(msgspec.Struct):
    """What a group subscribes to."""

    topic: str
    type: str
    expression: str


class QueueLag(msgspec.Struct):
    """The lag of a group in one queue."""

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int
    last_consumed_time_ms: int | None
    oldest_age_ms: int | None = None
    """The age of the first message that was not consumed."""


class Group(msgspec.Struct):
    """One group."""

    group: str
    mode: str
    consume_type: str
    members: list[Member]
    members_total: int
    subscriptions: list[Subscription]
    lag: int
    paging: Paging
    queues: list[QueueLag]
    """The queue with the most lag first."""
    errors: list[str]


async def groups(reads: Reads, query: GroupsQuery) -> Groups:
    """Return a part of the list; members and lag are read of its groups only."""
    names, errors = await reads.groups()
    names = [name for name in names if query.system or not is_system_group(name)]
    shown, paging = paged(matching(names, query.search), query.page, GROUPS_SHOWN)
    has_lag = len(await reads.masters()) <= MASTERS_MAX

    async def row(name: str) -> GroupRow:
        online = await members_of(reads, name)
        made = GroupRow(name, members=len(online.connection_set) if online else 0)
        if online and online.message_model:
            made.mode = online.message_model.value.lower()
        if has_lag:
            made.lag = sum(map(lag_of, (await reads.offsets(name)).values()))
        return made

    found = await reads.each(shown, row)
    rows = [
        GroupRow(name, error=str(each)) if isinstance(each, CometError) else each
        for name, each in zip(shown, found, strict=True)
    ]
    return Groups(paging, rows, errors)


async def members_of(reads: Reads, group: str) -> ConsumerConnection | None:
    """Return the members of a group; None if none is online."""
    try:
        return await reads.admin.consumer_connections(group)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


async def group(reads: Reads, query: GroupQuery) -> Group:
    """Return one group: each master gets one request, and one more for each of a few topics."""
    name = query.group
    online = await members_of(reads, name)
    stats = await reads.offsets(name)
    if online is None and not stats and name not in (await reads.groups())[0]:
        raise NotFoundError(f"there is no group {name}")
    rows = [
        QueueLag(
            *(queue.topic, queue.broker_name, queue.queue_id),
            *(each.consumer_offset, each.broker_offset, lag_of(each)),
            each.last_timestamp if each.last_timestamp > 0 else None,
        )
        for queue, each in stats.items()
    ]
    rows.sort(key=lambda each: (-each.lag, each.topic, each.broker, each.queue))
    shown, paging = paged(rows, query.page, QUEUES_SHOWN)
    errors = await _add_ages(reads, name, shown)
    members = _members(online)
    return Group(
        group=name,
        mode=online.message_model.value.lower() if online and online.message_model else "",
        consume_type=online.consume_type.value if online and online.consume_type else "",
        members=members[:MEMBERS_SHOWN],
        members_total=len(members),
        subscriptions=_subscriptions(online),
        lag=sum(each.lag for each in rows),
        paging=paging,
        queues=list(shown),
        errors=errors,
    )


async def _add_ages(reads: Reads, group: str, rows: Sequence[QueueLag]) -> list[str]:
    """Add the lag in time to rows; return what could not be read."""
    topics = list(dict.fromkeys(each.topic for each in rows if each.lag))[:TIMED_TOPICS_MAX]

    async def oldest(topic: str) -> dict[MessageQueue, int | None]:
        return await reads.admin.oldest_unconsumed(group, topic)

    now, errors = now_ms(), []
    for topic, found in zip(topics, await reads.each(topics, oldest), strict=True):
        if isinstance(found, CometError):
            errors.append(f"age of the lag in {topic}: {found}")
            continue
        for row in rows:
            stored = found.get(MessageQueue(row.topic, row.broker, row.queue))
            if row.topic == topic and row.lag and stored is not None:
                row.oldest_age_ms = max(now - stored, 0)
    return errors


def _members(online: ConsumerConnection | None) -> list[Member]:
    """Return the members, with the topics in which their subscriptions differ."""
    if online is None:
        return []
    by_client = online.subscriptions_by_client or {}
    said: dict[str, set[tuple[str, str] | None]] = {}
    topics = {topic for each in by_client.values() for topic in each}
    for each in by_client.values():
        for topic in topics:
            found = each.get(topic)
            said.setdefault(topic, set()).add(
                (found.expression_type, found.sub_string) if found else None
            )
    differing = sorted(topic for topic, values in said.items() if len(values) > 1)
    return [
        Member(
            *(each.client_id, each.client_addr, str(each.language), version_name(each.version)),
            differs=differing if each.client_id in by_client else [],
        )
        for each in sorted(online.connection_set, key=lambda each: each.client_id)
    ]


def _subscriptions(online: ConsumerConnection | None) -> list[Subscription]:
    table = online.subscription_table.values() if online else ()
    return [
        Subscription(each.topic, str(each.expression_type), each.sub_string)
        for each in sorted(table, key=lambda each: each.topic)
        if not each.topic.startswith(RETRY_PREFIX)
    ]


PAGES = (
    Page("/groups", "Groups", "groups/groups.html", GroupsQuery, Groups, groups, is_tab=True),
    Page("/groups/group", "Group", "groups/group.html", GroupQuery, Group, group),
)
