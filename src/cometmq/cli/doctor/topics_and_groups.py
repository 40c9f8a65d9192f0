"""Checks of topics, groups and subscriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from cometmq.cli.doctor.cluster import Cluster
from cometmq.cli.doctor.findings import Check, Finding, Level, fine, too_many
from cometmq.cli.doctor.static_topics import static_findings
from cometmq.client.subscription_check import ComparableFilter, comparable
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.namespace import is_system_group
from cometmq.model.nouns import counted
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX, Perm, application_topics
from cometmq.protocol.bodies.client import ConsumerConnection, MemberSubscription
from cometmq.protocol.bodies.group import OffsetWrapper
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.tasks import side_by_side

TOPICS_MAX, GROUPS_MAX, MEMBERS_MAX = 2_000, 1_000, 100
INSPECT = "see docs/howto/inspect-a-group.md"

Subscriptions = Mapping[str, Mapping[str, ComparableFilter]]
"""The subscriptions of members: by client id and topic."""


def checks(cluster: Cluster) -> list[Check]:
    """Return the checks of topics, and of groups with their subscriptions."""
    if not cluster.brokers:
        return []
    return [
        Check("topics", "the cluster", partial(_topics, cluster)),
        Check("groups", "the cluster", partial(_groups, cluster)),
    ]


# --- topics ---------------------------------------------------------------------------------------


async def _topics(cluster: Cluster) -> Sequence[Finding]:
    """Look for topics to which brokers do not let clients send."""
    clusters = {data.cluster for data in cluster.registered.values()}
    names = application_topics(cluster.topics, cluster.registered, clusters)
    some = names[:TOPICS_MAX]

    async def route(topic: str) -> TopicRouteData:
        try:
            return await cluster.admin.route(topic)
        except ResponseError:  # deleted meanwhile
            return TopicRouteData()

    found = [*too_many("topics", len(names), TOPICS_MAX)]
    routes = list(zip(some, await side_by_side(some, route), strict=True))
    static = await side_by_side(routes, lambda each: static_findings(cluster, *each))
    for (topic, data), findings in zip(routes, static, strict=True):
        found += _permissions(topic, data)
        found += findings
    return found or [fine("topics", "the cluster", f"{counted(len(some), 'topic')} can be written")]


def _permissions(topic: str, route: TopicRouteData) -> Iterator[Finding]:
    closed = sorted(each.broker_name for each in route.queue_datas if not each.perm & Perm.WRITE)
    if not closed:
        return
    everywhere = len(closed) == len(route.queue_datas)
    yield Finding(
        "topics",
        Level.PROBLEM if everywhere else Level.WARNING,
        topic,
        f"no permission to write at {', '.join(closed)}" + (", its only brokers" * everywhere),
        "permission 6, unless the broker is being emptied",
        f"cometmq admin broker resume-writing {closed[0]}, cometmq admin topic update {topic}"
        " --perm rw, or brokerPermission=6; see docs/howto/resize-a-cluster.md",
    )


# --- groups ---------------------------------------------------------------------------------------


async def _groups(cluster: Cluster) -> Sequence[Finding]:
    """Look for groups with a backlog and no consumer, and for members that disagree."""
    rows: dict[str, dict[MessageQueue, OffsetWrapper]] = {}
    names: set[str] = set()
    masters = [each.address for each in cluster.masters]
    for table in await side_by_side(masters, cluster.admin.broker_groups):
        names.update(table)
    for lags in await side_by_side(masters, cluster.admin.broker_lag):
        for by_group in lags.consume_stats_list:
            for group, stats in by_group.items():
                for part in stats:
                    rows.setdefault(group, {}).update(part.offset_table)
    groups = sorted(group for group in names | rows.keys() if not is_system_group(group))
    some = groups[:GROUPS_MAX]
    found = [*too_many("groups", len(groups), GROUPS_MAX)]
    members = await side_by_side(some, partial(_members, cluster))
    offline = [group for group, each in zip(some, members, strict=True) if not each]
    tables = await side_by_side(
        offline, lambda group: cluster.admin.logical_consume_stats(group, rows.get(group, {}))
    )
    for group, logical in zip(offline, tables, strict=True):
        behind = (max(0, row.broker_offset - row.consumer_offset) for row in logical.values())
        found += _without_consumers(group, sum(behind))
    online = {group: each for group, each in zip(some, members, strict=True) if each}
    found = found or [
        fine("groups", "the cluster", f"{counted(len(some), 'group')}, {len(online)} online")
    ]
    differing = await side_by_side(
        list(online), lambda group: _subscriptions(cluster, group, online[group])
    )
    for group, connections in online.items():
        found += twins(group, connections)
    problems = [finding for findings in differing for finding in findings]
    met = f"{counted(len(online), 'group')} online: members of a group have the same"
    return found + (problems or [fine("subscriptions", "the cluster", met)])


def _without_consumers(group: str, lag: int) -> Iterator[Finding]:
    if lag:
        yield Finding(
            "groups", Level.WARNING, group,
            f"no consumer is online, {counted(lag, 'message')} not consumed",
            "consumers, or a group that is deleted",
            f"start its consumers, or cometmq admin group delete {group}; {INSPECT}",
        )  # fmt: skip


async def _members(cluster: Cluster, group: str) -> list[ConsumerConnection]:
    """Return what the masters know of the members of a group; empty if none is online."""

    async def ask(address: str) -> ConsumerConnection | None:
        try:
            return await cluster.admin.consumer_connections(group, brokers=[address])
        except ResponseError as problem:
            if problem.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            return None

    found = await side_by_side([each.address for each in cluster.masters], ask)
    return [each for each in found if each is not None]


async def _subscriptions(
    cluster: Cluster, group: str, connections: Sequence[ConsumerConnection]
) -> Sequence[Finding]:
    """Check that all members of a group have equal subscriptions."""
    members: dict[str, dict[str, ComparableFilter]] = {}
    unasked: set[str] = set()
    for table in connections:
        if table.subscriptions_by_client is None:
            unasked |= {each.client_id for each in table.connection_set}
            continue
        for client_id, topics in table.subscriptions_by_client.items():
            members[client_id] = _filters(topics.items())

    async def ask(client_id: str) -> None:
        try:
            info = await cluster.admin.running_info(group, client_id)
        except CometError:  # it may have left; a member that does not respond is no difference
            return
        members[client_id] = _filters((each.topic, each) for each in info.subscription_set)

    await side_by_side(sorted(unasked - members.keys())[:MEMBERS_MAX], ask)
    return list(differences(group, members))


def _filters(
    topics: Iterable[tuple[str, SubscriptionData | MemberSubscription]],
) -> dict[str, ComparableFilter]:
    return {name: comparable(each) for name, each in topics if not name.startswith(RETRY_PREFIX)}


def twins(group: str, connections: Iterable[ConsumerConnection]) -> Iterator[Finding]:
    """Look for client ids with several connections at one master."""
    seen: dict[str, set[str]] = {}
    for table in connections:
        counts = Counter(each.client_id for each in table.connection_set)
        for each in table.connection_set:
            if counts[each.client_id] > 1:
                seen.setdefault(each.client_id, set()).add(each.client_addr)
    for client_id, addresses in sorted(seen.items()):
        yield Finding(
            "groups", Level.WARNING, group,
            f"{counted(len(addresses), 'connection')} of the client id {client_id}:"
            f" {', '.join(sorted(addresses))}",
            "one: clients with one id handle each message twice, unless one has just reconnected",
            f"give each process an instance name of its own; {INSPECT}",
        )  # fmt: skip


def differences(group: str, members: Subscriptions) -> Iterator[Finding]:
    """Compare every member with the first one."""
    said = {client_id: topics for client_id, topics in sorted(members.items()) if topics}
    if len(said) < 2:
        return
    (first, expected), *others = said.items()
    for client_id, topics in others:
        if topics != expected:
            yield Finding(
                "subscriptions", Level.PROBLEM, group,
                f"{first} subscribes to {_text(expected)}, {client_id} to {_text(topics)}",
                "the same subscriptions of all members: else some messages reach none of them",
                f"give each kind of consumer a group of its own; {INSPECT}",
            )  # fmt: skip
            return


def _text(topics: Mapping[str, ComparableFilter]) -> str:
    return ", ".join(f"{topic} ({each.text})" for topic, each in sorted(topics.items()))
