"""The members of a group: their subscriptions with the differences, and one member with its stacks.

All members of a group must subscribe alike. CometMQ's brokers return what each member subscribes
to; RocketMQ's return what the last heartbeat said, so the members themselves are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from cometmq.client.subscription_check import comparable
from cometmq.console.pages import Name, NotFoundError, Page, Query
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.client import (
    ConsumerConnection,
    ConsumerRunningInfo,
    MemberSubscription,
)
from cometmq.protocol.bodies.common import Connection
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.version import version_name

ASKED_MAX = 32
"""Members that are asked what they do."""
NAMED_MAX = 10
"""Members that a difference names."""
QUEUES_SHOWN = 200
STACKS_CHARS_MAX = 256 * 1024
NOT_SUBSCRIBED = "not subscribed"
PROPERTIES = {
    "PROP_CLIENT_VERSION": "Version",
    "PROP_CONSUME_TYPE": "Consume type",
    "PROP_CONSUMEORDERLY": "In order",
    "PROP_CONSUMER_START_TIMESTAMP": "Started",
    "PROP_THREADPOOL_CORE_SIZE": "Concurrent handler calls",
    "PROP_NAMESERVER_ADDR": "Name servers",
}
"""The properties of a member that the page has, and their labels."""


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


class Difference(msgspec.Struct):
    """One of several subscriptions of members to a topic."""

    topic: str
    type: str
    expression: str
    members: list[str]
    members_total: int


class MemberQuery(Query):
    """Which member, and whether to ask for the stacks of its threads and tasks."""

    group: Name
    client: Name
    stacks: Annotated[
        bool, msgspec.Meta(description="Whether to ask for the stacks of threads and tasks.")
    ] = False


class MemberQueue(msgspec.Struct):
    """A queue that is assigned to a member."""

    topic: str
    broker: str
    queue: int
    committed: int
    in_memory: int
    """Messages that it has fetched and not consumed yet."""
    is_dropped: bool
    last_pull_time_ms: int
    last_consumed_time_ms: int


class MemberRate(msgspec.Struct):
    """How fast a member consumes a topic."""

    topic: str
    pulled_per_s: float
    pull_ms: float
    consumed_per_s: float
    consume_ms: float
    failed_per_s: float
    failed_in_hour: int


class OneMember(msgspec.Struct):
    """One member."""

    group: str
    client: str
    properties: dict[str, str]
    subscriptions: list[Subscription]
    rates: list[MemberRate]
    queues: list[MemberQueue]
    queues_total: int
    stacks: str
    """Empty if they were not asked for, or the client has none."""
    stacks_chars: int
    """The length of all of them."""


Said = dict[str, dict[str, MemberSubscription]]
"""Subscriptions by client id and topic."""


async def subscriptions_of(
    reads: Reads, group: str, online: ConsumerConnection
) -> tuple[Said, list[str]]:
    """Return what each member subscribes to, and what could not be read.

    A member without a subscription is left out: it reads queues of its choice, or has just started.
    """
    if online.subscriptions_by_client is not None:
        return _without_retries(online.subscriptions_by_client), []
    if len(online.connection_set) < 2:
        return {}, []
    infos, errors = await _ask(reads, group, online)
    said = {
        client: {each.topic: _of_member(each) for each in info.subscription_set}
        for client, info in infos.items()
    }
    return _without_retries(said), errors


async def owners_of(
    reads: Reads, group: str, online: ConsumerConnection
) -> tuple[dict[MessageQueue, str], list[str]]:
    """Return which member has each queue, as the members say, and what could not be read."""
    infos, errors = await _ask(reads, group, online)
    return {queue: client for client, info in infos.items() for queue in info.mq_table}, errors


async def _ask(
    reads: Reads, group: str, online: ConsumerConnection
) -> tuple[dict[str, ConsumerRunningInfo], list[str]]:
    """Return what members say of themselves, and an error for each one that says nothing."""
    members = sorted(each.client_id for each in online.connection_set)
    asked = members[:ASKED_MAX]

    async def ask(client: str) -> ConsumerRunningInfo:
        return await reads.admin.running_info(group, client)

    infos: dict[str, ConsumerRunningInfo] = {}
    errors = []
    for client, info in zip(asked, await reads.each(asked, ask), strict=True):
        if isinstance(info, CometError):
            errors.append(f"member {client}: {info}")
        else:
            infos[client] = info
    if len(members) > len(asked):
        errors.append(f"only {len(asked)} of {len(members)} members were asked")
    return infos, errors


def _of_member(found: SubscriptionData) -> MemberSubscription:
    return MemberSubscription(
        sub_string=found.sub_string,
        expression_type=found.expression_type or "TAG",
        class_filter_mode=found.class_filter_mode,
    )


def _without_retries(said: Said) -> Said:
    shown = {
        client: {
            topic: each for topic, each in topics.items() if not topic.startswith(RETRY_PREFIX)
        }
        for client, topics in said.items()
    }
    return {client: topics for client, topics in shown.items() if topics}


def differences(said: Said) -> list[Difference]:
    """Return the topics to which members subscribe differently, with each of the subscriptions.

    The order of tags and blanks between them do not count.
    """
    found: list[Difference] = []
    for topic in sorted({topic for topics in said.values() for topic in topics}):
        by_meaning: dict[object, Difference] = {}
        for client in sorted(said):
            each = said[client].get(topic)
            meaning = None if each is None else comparable(each)
            difference = by_meaning.setdefault(
                meaning,
                Difference(topic, "", NOT_SUBSCRIBED, [], 0)
                if each is None
                else Difference(topic, each.expression_type, each.sub_string, [], 0),
            )
            difference.members_total += 1
            if len(difference.members) < NAMED_MAX:
                difference.members.append(client)
        if len(by_meaning) > 1:
            found += by_meaning.values()
    return found


def members_of(connections: Iterable[Connection], said: Said) -> list[Member]:
    """Return the members, with the topics to which they subscribe differently."""
    differing = sorted({each.topic for each in differences(said)})
    return [
        Member(
            *(each.client_id, each.client_addr, str(each.language), version_name(each.version)),
            differs=differing if each.client_id in said else [],
        )
        for each in sorted(connections, key=lambda each: each.client_id)
    ]


def shown_subscriptions(table: Iterable[SubscriptionData]) -> list[Subscription]:
    """Return subscriptions by topic, without the one to retries."""
    return [
        Subscription(each.topic, str(each.expression_type or "TAG"), each.sub_string)
        for each in sorted(table, key=lambda each: each.topic)
        if not each.topic.startswith(RETRY_PREFIX)
    ]


async def member(reads: Reads, query: MemberQuery) -> OneMember:
    """Return one member; its broker asks it."""
    online = await reads.online(query.group)
    if online is None or query.client not in {each.client_id for each in online.connection_set}:
        raise NotFoundError(f"group {query.group} has no member {query.client} that is online")
    info = await reads.admin.running_info(query.group, query.client, stacks=query.stacks)
    stacks = info.jstack or ""
    queues = [
        MemberQueue(
            *(queue.topic, queue.broker_name, queue.queue_id, each.commit_offset),
            in_memory=each.cached_msg_count,
            is_dropped=each.droped,
            last_pull_time_ms=each.last_pull_timestamp,
            last_consumed_time_ms=each.last_consume_timestamp,
        )
        for queue, each in sorted(info.mq_table.items())
    ]
    return OneMember(
        query.group,
        query.client,
        _properties(info.properties),
        shown_subscriptions(info.subscription_set),
        rates=[
            MemberRate(
                *(topic, each.pull_tps, each.pull_rt, each.consume_ok_tps, each.consume_rt),
                *(each.consume_failed_tps, each.consume_failed_msgs),
            )
            for topic, each in sorted(info.status_table.items())
            if not topic.startswith(RETRY_PREFIX)
        ],
        queues=queues[:QUEUES_SHOWN],
        queues_total=len(queues),
        stacks=stacks[:STACKS_CHARS_MAX],
        stacks_chars=len(stacks),
    )


def _properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {label: properties[name] for name, label in PROPERTIES.items() if properties.get(name)}


PAGE = Page("/groups/member", "Member", "groups/member.html", MemberQuery, OneMember, member)
