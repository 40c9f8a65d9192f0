"""Compares what this member of a group subscribes with what the others do.

All members of a group must subscribe the same topics with the same filters: a broker knows one
subscription per group, and members divide queues that only some of them read. Our broker tells what
each member subscribes; RocketMQ's tells only the group's table, in which the last heartbeat wins.

Source: ours; the table is ConsumerConnection, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cometmq.client.instance import ClientInstance
from cometmq.client.subscription import Filter
from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies import ConsumerConnection
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import GetConsumerConnectionListRequest
from cometmq.protocol.subscription import (
    ALL_TAGS,
    TAG_KIND,
    ExpressionError,
    is_tag_kind,
    parse_tag_expression,
)

THE_GROUP = ""
"""Stands for the client id where a broker does not tell whose subscription it is."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One topic that a member of the group wants otherwise than this one does."""

    client_id: str
    """The other member; empty if the broker tells only what the group as a whole subscribes."""
    topic: str
    theirs: str | None
    """Their expression; None if they do not subscribe the topic."""
    mine: str | None
    """This member's expression; None if it does not subscribe the topic."""

    def __str__(self) -> str:
        who = f"member {self.client_id}" if self.client_id else "the group's table at the broker"
        return f"{who}: topic {self.topic}: theirs {_said(self.theirs)}, mine {_said(self.mine)}"


def _said(expression: str | None) -> str:
    return "not subscribed" if expression is None else repr(expression)


async def check(
    instance: ClientInstance, group: str, mine: Mapping[str, Filter]
) -> list[Difference]:
    """Ask the brokers of this member's topics who in the group subscribes otherwise.

    Args:
        instance: of this member; its heartbeat has told the brokers of ``mine`` already.
        group: the consumer group.
        mine: this member's subscriptions by topic.

    Returns:
        The differences, sorted; none if all agree, or if no broker knows the group.

    Raises:
        CometError: no broker answered.
    """
    found: set[Difference] = set()
    for table in await _tables(instance, group, mine):
        found |= set(differences(table, mine, me=instance.client_id))
    return sorted(found)


def differences(
    table: ConsumerConnection, mine: Mapping[str, Filter], *, me: str
) -> Iterator[Difference]:
    """Give what a broker's answer says of others that differs from ``mine``.

    Args:
        table: the broker's answer.
        mine: this member's subscriptions by topic.
        me: this member's client id.
    """
    ours = {topic: Wanted.of(wanted.expression, wanted.kind) for topic, wanted in mine.items()}
    for client_id, theirs in _subscribed(table).items():
        if client_id == me:
            continue
        for topic in sorted(ours.keys() | theirs.keys()):
            one, other = ours.get(topic), theirs.get(topic)
            if one != other and not topic.startswith(RETRY_PREFIX):
                yield Difference(client_id, topic, _text(other), _text(one))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter, made to be compared: the order of tags and blanks between them do not count."""

    text: str = field(compare=False)
    kind: str
    meaning: str | frozenset[str]

    @classmethod
    def of(cls, expression: str, kind: str | None) -> Wanted:
        """Understand an expression as a heartbeat says it."""
        if not is_tag_kind(kind):
            return cls(expression, str(kind), expression)
        try:
            parsed = parse_tag_expression(expression)
        except ExpressionError:
            return cls(expression, TAG_KIND, expression)
        return cls(parsed.text, TAG_KIND, ALL_TAGS if parsed.selects_all else parsed.tags)


def _subscribed(table: ConsumerConnection) -> dict[str, dict[str, Wanted]]:
    members = table.subscriptions_by_client
    if members is None:
        merged = table.subscription_table.items()
        return {THE_GROUP: {t: Wanted.of(s.sub_string, s.expression_type) for t, s in merged}}
    return {
        client_id: {t: Wanted.of(s.sub_string, s.expression_type) for t, s in topics.items()}
        for client_id, topics in members.items()
    }


def _text(wanted: Wanted | None) -> str | None:
    return None if wanted is None else wanted.text


async def _tables(
    instance: ClientInstance, group: str, mine: Mapping[str, Filter]
) -> list[ConsumerConnection]:
    """Ask every broker that this member's heartbeat goes to because of its topics."""
    addresses: set[str] = set()
    for topic in mine:
        route = instance.routes.known(topic)
        addresses |= set(route.masters()) if route is not None else set()
    answers = await asyncio.gather(
        *(_table(instance, address, group) for address in sorted(addresses)),
        return_exceptions=True,
    )
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures and len(failures) == len(answers):
        raise failures[0]
    return [answer for answer in answers if isinstance(answer, ConsumerConnection)]


async def _table(instance: ClientInstance, address: str, group: str) -> ConsumerConnection | None:
    header = GetConsumerConnectionListRequest(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        answer = await instance.brokers.call(address, code, header)
    except ResponseError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise
    return ConsumerConnection.decode(answer.body)
