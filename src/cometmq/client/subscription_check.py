"""Compares the subscriptions of this member and of the other members of its group.

All members of a group must have the same subscriptions. A broker uses one subscription per group,
and the group also allocates queues to members that do not read them. CometMQ's broker returns the
subscriptions of each member. RocketMQ's broker returns only the group's table, which the last
heartbeat overwrites.

Source: ConsumerConnection, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cometmq.client._connection.instance import ClientCore, ClientInstance, core_of
from cometmq.client._supervision import PeriodicLoop, SupervisedFailureLog
from cometmq.client.filters import Filter
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.client import ConsumerConnection, MemberSubscription
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.group import GetConsumerConnectionListRequest
from cometmq.protocol.subscription import (
    ALL_TAGS,
    TAG_KIND,
    ExpressionError,
    is_tag_kind,
    parse_tag_expression,
)
from cometmq.remoting.tasks import Supervisor

__all__ = ["check", "Difference"]

log = logging.getLogger(__name__)

THE_GROUP = ""
"""Stands for the client id if a broker does not return the subscriptions of each member."""
LOGGED_MAX = 10
_CLASS_KIND = "CLASS"
"""Class filters have the type of tags in a heartbeat."""
PAUSE_S = 1.0
"""Shortest time between two checks, in seconds."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One topic whose subscription differs between this member and another one."""

    client_id: str
    """The other member; empty if the broker returns only the group's subscription."""
    topic: str
    """The topic."""
    theirs: str | None
    """The other expression; None if the other member does not subscribe to the topic."""
    mine: str | None
    """This member's expression; None if it does not subscribe to the topic."""

    def __str__(self) -> str:
        member = f"member {self.client_id}" if self.client_id else "the group's table at the broker"
        return f"{member}: topic {self.topic}: theirs {_said(self.theirs)}, mine {_said(self.mine)}"


def _said(expression: str | None) -> str:
    return "not subscribed" if expression is None else repr(expression)


async def check(
    instance: ClientInstance | ClientCore, group: str, mine: Mapping[str, Filter]
) -> list[Difference]:
    """Read the other members' subscriptions from the brokers, and return the differences.

    Args:
        instance: this member's instance; its heartbeat has sent ``mine`` to the brokers.
        group: the consumer group, without a namespace.
        mine: this member's subscriptions by topic, without a namespace.

    Returns:
        The differences, sorted; empty if all agree, or if no broker knows the group.

    Raises:
        CometError: no broker responded.
    """
    core = core_of(instance)
    return _compared(core, mine, await _tables(core, group, mine))


def _compared(
    core: ClientCore, mine: Mapping[str, Filter], tables: Iterable[ConsumerConnection]
) -> list[Difference]:
    names = core.namespace
    wire = {names.wrap_topic(topic): wanted for topic, wanted in mine.items()}
    found: set[Difference] = set()
    for table in tables:
        found |= set(differences(table, wire, me=core.client_id))
    return sorted(
        (replace(difference, topic=names.unwrap(difference.topic)) for difference in found),
        key=lambda d: (d.client_id, d.topic, d.theirs or "", d.mine or ""),
    )


def differences(
    table: ConsumerConnection, mine: Mapping[str, Filter], *, me: str
) -> Iterator[Difference]:
    """Return the subscriptions in a broker's response that differ from ``mine``.

    Args:
        table: the broker's response.
        mine: this member's subscriptions by topic.
        me: this member's client id.
    """
    ours = {
        topic: ComparableFilter.of(
            wanted.expression, wanted.kind, is_class=wanted.class_source is not None
        )
        for topic, wanted in mine.items()
    }
    for client_id, theirs in _subscribed(table).items():
        if client_id == me or not theirs:  # a member without topics has no say, or not yet
            continue
        for topic in sorted(ours.keys() | theirs.keys()):
            one, other = ours.get(topic), theirs.get(topic)
            if one != other and not topic.startswith(RETRY_PREFIX):
                yield Difference(client_id, topic, _text(other), _text(one))


@dataclass(frozen=True, slots=True)
class ComparableFilter:
    """A filter for comparison, which ignores the order of tags and the blanks between them.

    Class filters are compared by the names of their classes: brokers do not know the sources.
    """

    text: str = field(compare=False)
    kind: str
    meaning: str | frozenset[str]

    @classmethod
    def of(cls, expression: str, kind: str | None, *, is_class: bool) -> ComparableFilter:
        """Parse an expression of a heartbeat."""
        if is_class:
            return cls(f"class {expression}", _CLASS_KIND, expression)
        if not is_tag_kind(kind):
            return cls(expression, str(kind), expression)
        try:
            parsed = parse_tag_expression(expression)
        except ExpressionError:
            return cls(expression, TAG_KIND, expression)
        return cls(parsed.text, TAG_KIND, ALL_TAGS if parsed.selects_all else parsed.tags)


def _subscribed(table: ConsumerConnection) -> dict[str, dict[str, ComparableFilter]]:
    members = table.subscriptions_by_client
    if members is None:
        merged = table.subscription_table.items()
        return {THE_GROUP: {topic: comparable(theirs) for topic, theirs in merged}}
    return {
        client_id: {topic: comparable(theirs) for topic, theirs in topics.items()}
        for client_id, topics in members.items()
    }


def comparable(theirs: SubscriptionData | MemberSubscription) -> ComparableFilter:
    """Return the filter of a subscription that a broker or a member has sent."""
    return ComparableFilter.of(
        theirs.sub_string, theirs.expression_type, is_class=theirs.class_filter_mode
    )


def _text(wanted: ComparableFilter | None) -> str | None:
    return None if wanted is None else wanted.text


async def _tables(
    instance: ClientCore, group: str, mine: Mapping[str, Filter]
) -> list[ConsumerConnection]:
    """Ask every broker that this member's heartbeat goes to because of its topics."""
    addresses: set[str] = set()
    names = instance.namespace
    for topic in mine:
        route = instance.routes.known(names.wrap_topic(topic))
        addresses |= set(route.masters()) if route is not None else set()
    wire_group = names.wrap_group(group)
    results = await asyncio.gather(
        *(_table(instance, address, wire_group) for address in sorted(addresses)),
        return_exceptions=True,
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures and len(failures) == len(results):
        raise failures[0]
    return [result for result in results if isinstance(result, ConsumerConnection)]


async def _table(instance: ClientCore, address: str, group: str) -> ConsumerConnection | None:
    header = GetConsumerConnectionListRequest(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        response = await instance.brokers.call(address, code, header)
    except ResponseError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise
    return ConsumerConnection.decode(response.body)


class SubscriptionCheck:
    """Compares this member's subscriptions with its group's periodically, and logs the differences.

    Args:
        instance: of this member.
        group: the consumer group, without a namespace.
        mine: gives this member's subscriptions by topic, without a namespace.
        interval_s: seconds between two checks.

    A set of differences is logged once, when it is new, and once more when all agree again. Brokers
    that do not respond change nothing.
    """

    def __init__(
        self,
        instance: ClientCore,
        group: str,
        mine: Callable[[], Mapping[str, Filter]],
        *,
        interval_s: float = 30.0,
    ) -> None:
        self._instance = instance
        self._group = group
        self._mine = mine
        self._loop = PeriodicLoop(
            f"subscriptions-{group}",
            group,
            SupervisedFailureLog(
                log,
                fails="subscriptions not compared, retrying",
                works="subscriptions compared again",
                name="group",
            ),
            self._check_again,
            interval_s=interval_s * random.uniform(0.9, 1.1),
            min_interval_s=PAUSE_S,
            first_s=interval_s,
        )
        self._found: list[Difference] = []
        self._twins: frozenset[str] = frozenset()
        """The addresses of this member's connections, as the last check found several."""
        self._has_warned_of_twins = False

    def start(self, tasks: Supervisor) -> None:
        """Start to check, in a task of the caller."""
        self._loop.start(tasks)

    def wake(self) -> None:
        """Check soon: a heartbeat has sent a changed subscription to the brokers."""
        self._loop.wake()

    def subscription_mismatches(self) -> list[Difference]:
        """Return the differences that the last check found."""
        return list(self._found)

    async def look(self) -> list[Difference]:
        """Check now; log and return the differences.

        Raises:
            CometError: no broker responded; the result of the last check remains.
        """
        mine = self._mine()
        tables = await _tables(self._instance, self._group, mine)
        self._look_for_twins(tables)
        found = _compared(self._instance, mine, tables)
        before, self._found = self._found, found
        if found and found != before:
            log.warning(
                "members of a group have different subscriptions group=%s differences=%s",
                self._group,
                "; ".join(map(str, found[:LOGGED_MAX])),
            )
        elif before and not found:
            log.info(
                "all members of a group have the same subscriptions again group=%s", self._group
            )
        return list(found)

    def _look_for_twins(self, tables: Iterable[ConsumerConnection]) -> None:
        """Warn if another client with this client id is in the group: both get the same queues.

        It must be there in two checks: the connection before the last one may be listed for a
        while.
        """
        me = self._instance.client_id
        addresses: set[str] = set()
        for table in tables:
            own = [each.client_addr for each in table.connection_set if each.client_id == me]
            addresses |= set(own) if len(own) > 1 else set()
        stay, self._twins = self._twins & addresses, frozenset(addresses)
        if len(stay) > 1 and not self._has_warned_of_twins:
            self._has_warned_of_twins = True
            log.warning(
                "another client has the same client id, and both handle each message: give one of"
                " them another instance_name group=%s client=%s addresses=%s",
                self._group,
                me,
                ",".join(sorted(stay)),
            )
        elif not addresses:
            self._has_warned_of_twins = False

    async def _check_again(self) -> None:
        try:
            await self.look()
        except CometError as error:
            log.debug("subscriptions not compared group=%s error=%s", self._group, error)
