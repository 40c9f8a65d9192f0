"""The list of groups, and one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from cometmq.console.groups.lag_history import LagHistories, LagPoint
from cometmq.console.groups.members import (
    Difference,
    Member,
    Said,
    Subscription,
    differences,
    members_of,
    owners_of,
    shown_subscriptions,
    subscriptions_of,
)
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
from cometmq.model.errors import CometError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.namespace import is_system_group
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.version import version_name

TYPES = {
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_POP: "pop",
    None: "",
}
GROUPS_SHOWN = 25
"""Groups of a page: each takes a request to one broker, and one to each master for the lag."""
MASTERS_MAX = 8
"""In a cluster with more masters the list has no lag; the page of a group has it."""
QUEUES_SHOWN = 100
MEMBERS_SHOWN = 200
DIFFERENCES_SHOWN = 100
TOPICS_SHOWN = 100
BROKERS_SHOWN = 16
"""Brokers whose settings of a group are shown."""
TIMED_TOPICS_MAX = 8
"""Topics of a page of queues whose lag is shown in time, too."""


class GroupsQuery(Query):
    """A part of the list."""

    search: Search = ""
    system: bool = False
    page: PageNumber = 1


class GroupRow(msgspec.Struct):
    """A group in the list."""

    group: str
    members: int | None = None
    mode: str = ""
    type: str = ""
    """``push``, ``pull`` or ``pop``."""
    version: str = ""
    """The oldest version of a member."""
    lag: int | None = None
    error: str = ""


class Groups(msgspec.Struct):
    """A part of the list of groups."""

    paging: Paging
    groups: list[GroupRow]
    errors: list[str]


class GroupQuery(Query):
    """A group, and a part of its queues."""

    group: Name
    owners: Annotated[
        bool, msgspec.Meta(description="Whether to ask members which queues they have.")
    ] = False
    page: PageNumber = 1


class QueueLag(msgspec.Struct):
    """The lag of a group in one queue."""

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int
    last_consumed_time_ms: int | None
    """The time at which the last consumed message was stored."""
    oldest_age_ms: int | None = None
    """The age of the first message that was not consumed."""
    client: str = ""
    """The member that has the queue, if members were asked."""


class GroupSettings(msgspec.Struct):
    """The settings of a group on one broker."""

    broker: str
    values: dict[str, str]


class Group(msgspec.Struct):
    """One group."""

    group: str
    mode: str
    consume_type: str
    members: list[Member]
    members_total: int
    subscriptions: list[Subscription]
    """As the last heartbeat of a member said."""
    differences: list[Difference]
    """Subscriptions to topics to which members subscribe differently."""
    lag: int
    paging: Paging
    queues: list[QueueLag]
    """The queue with the most lag first."""
    topics: list[str]
    """Topics in which it has an offset."""
    settings: list[GroupSettings]
    history: list[LagPoint]
    """The lag while the group was looked at, the oldest point first."""
    errors: list[str]


async def groups(reads: Reads, query: GroupsQuery) -> Groups:
    """Return a part of the list; members and lag are read of its groups only."""
    names, errors = await reads.groups()
    names = [name for name in names if query.system or not is_system_group(name)]
    shown, paging = paged(matching(names, query.search), query.page, GROUPS_SHOWN)
    has_lag = len(await reads.masters()) <= MASTERS_MAX

    async def row(name: str) -> GroupRow:
        online = await reads.online(name)
        made = GroupRow(name, members=len(online.connection_set) if online else 0)
        if online and online.message_model:
            made.mode = online.message_model.value.lower()
        if online and online.connection_set:
            made.type = TYPES.get(online.consume_type, "")
            made.version = version_name(min(each.version for each in online.connection_set))
        if has_lag:
            made.lag = sum(map(lag_of, (await reads.offsets(name)).values()))
        return made

    found = await reads.each(shown, row)
    rows = [
        GroupRow(name, error=str(each)) if isinstance(each, CometError) else each
        for name, each in zip(shown, found, strict=True)
    ]
    return Groups(paging, rows, errors)


async def group(reads: Reads, query: GroupQuery) -> Group:
    """Return one group: each master gets one request, and one more for each of a few topics."""
    name = query.group
    online = await reads.online(name)
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
    said: Said = {}
    if online is not None:
        said, unknown = await subscriptions_of(reads, name, online)
        errors += unknown
    if online is not None and query.owners:
        owners, unknown = await owners_of(reads, name, online)
        errors += unknown
        for row in shown:
            row.client = owners.get(MessageQueue(row.topic, row.broker, row.queue), "")
    members = members_of(online.connection_set, said) if online else []
    return Group(
        group=name,
        mode=online.message_model.value.lower() if online and online.message_model else "",
        consume_type=TYPES.get(online.consume_type, "") if online else "",
        members=members[:MEMBERS_SHOWN],
        members_total=len(members),
        subscriptions=shown_subscriptions(online.subscription_table.values() if online else ()),
        differences=differences(said)[:DIFFERENCES_SHOWN],
        lag=sum(each.lag for each in rows),
        paging=paging,
        queues=list(shown),
        topics=sorted({each.topic for each in rows}, key=_topics_first)[:TOPICS_SHOWN],
        settings=await _settings(reads, name, errors),
        history=[],
        errors=errors,
    )


def _topics_first(topic: str) -> tuple[bool, str]:
    """Return what orders topics of applications before the retry topic."""
    return topic.startswith(RETRY_PREFIX), topic


async def _settings(reads: Reads, group: str, errors: list[str]) -> list[GroupSettings]:
    """Return the settings of a group on the brokers that have it."""
    brokers = (await reads.brokers_of_group(group))[:BROKERS_SHOWN]

    async def settings_at(broker: RegisteredBroker) -> SubscriptionGroupConfig | None:
        return await reads.admin.group_config(group, broker.address)

    shown = []
    for broker, found in zip(brokers, await reads.each(brokers, settings_at), strict=True):
        if isinstance(found, CometError):
            errors.append(f"settings at {broker.name}: {found}")
        elif found is not None:
            values = msgspec.to_builtins(found)
            shown.append(GroupSettings(broker.name, {key: str(values[key]) for key in values}))
    return shown


async def sample(reads: Reads, group: str) -> LagPoint:
    """Return the lag of a group now, and the age of the oldest message not consumed."""
    stats = await reads.offsets(group)
    rows = [
        QueueLag(
            *(queue.topic, queue.broker_name, queue.queue_id, 0, 0, lag_of(each), None),
        )
        for queue, each in stats.items()
        if lag_of(each)
    ]
    await _add_ages(reads, group, rows)
    return _point(rows)


def _point(rows: Iterable[QueueLag]) -> LagPoint:
    rows = [each for each in rows if each.lag]
    ages = [each.oldest_age_ms for each in rows if each.oldest_age_ms is not None]
    return LagPoint(now_ms(), sum(each.lag for each in rows), max(ages, default=None))


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


def pages(histories: LagHistories) -> tuple[Page, ...]:
    """Return the pages; that of a group adds a sample to its history."""

    async def group_with_history(reads: Reads, query: GroupQuery) -> Group:
        found = await group(reads, query)
        point = _point(found.queues)
        point.lag = found.lag
        found.history = histories.add(reads, found.group, point).points
        return found

    group_with_history.__name__ = "group"
    return (
        Page("/groups", "Groups", "groups/groups.html", GroupsQuery, Groups, groups, is_tab=True),
        Page("/groups/group", "Group", "groups/group.html", GroupQuery, Group, group_with_history),
    )
