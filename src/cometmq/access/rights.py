"""The rights that requests need, stated by the features that serve them.

Each feature of a broker has a module ``rights.py`` with a table: for each request code the right
under plain access control, and that under users and policies. It is loaded only with access
control, because it knows the headers and bodies of all requests. A request that no table names
needs an administrator.

Source: PlainAccessResource.parse and Permission, RocketMQ 4.9; DefaultAuthorizationContextBuilder
and the annotations RocketMQAction and RocketMQResource of the headers, RocketMQ 5.3. RocketMQ
checks a dozen requests under plain access control, and leaves the others open to every account.
Here a request that changes the broker, or what belongs to other accounts, needs an administrator.
Further requests that send, read or consume messages need permissions.

Under users, RocketMQ leaves some requests open to every user with a signature. It checks the topic
that a request names, which may differ from the topic of the message. Here each request that a
broker serves has a need, and a request about a message also needs the topic of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from cometmq.access.needs import (
    ADMINISTRATOR,
    NOTHING,
    Action,
    Need,
    Needs,
    ResourceType,
    group_need,
    needs_of,
    topic_need,
)
from cometmq.model.errors import InvalidMessageIdError
from cometmq.model.topic import reply_topic
from cometmq.protocol.message_id import decode_offset_id
from cometmq.remoting.requests import Request

TopicOfRecord = Callable[[int], str | None]
"""Returns the topic of the record at an offset of the log; None if none begins there."""


class Lookups(NamedTuple):
    """The facts that only the broker knows, and a request does not state."""

    cluster: str
    topic_of_record: TopicOfRecord
    topic_of_half: TopicOfRecord
    """Returns the topic of the half message at an offset of the log; None if none begins there."""
    group_exists: Callable[[str], bool]

    @property
    def reply_topic(self) -> str:
        """The topic of replies, which is open to all accounts."""
        return reply_topic(self.cluster)

    def of_cluster(self, action: Action, name: str = "") -> Needs:
        """Return the need for an action on a cluster, by default on that of the broker."""
        return needs_of(Need(ResourceType.CLUSTER, name or self.cluster, action))


class Right(NamedTuple):
    """The right that the requests of one code need beside a signature."""

    read: Callable[[Request, Lookups], Needs]
    """Reads it, with the header and body that the handler reads."""
    in_body: bool = False
    """Whether the body says what a request needs."""


class Rights(NamedTuple):
    """The rights that the requests of one code need under each kind of access control."""

    plain: Right
    users: Right


class Kind(StrEnum):
    """The kinds of access control."""

    PLAIN = "plain"
    USERS = "users"


SIGNED: Final = Right(lambda request, lookups: NOTHING)
"""Every account may make such requests: they read names, settings, bounds and numbers."""
ADMINISTRATION: Final = Right(lambda request, lookups: ADMINISTRATOR)
"""They change the broker or what belongs to others, or read what belongs to all groups, or say
where the files of accounts are and what is in them."""

SUB_OR_GET: Final = Action.SUB | Action.GET


def on_cluster(action: Action) -> Right:
    """Return the right to do something with the cluster, for requests about a whole broker."""
    return Right(lambda request, lookups: lookups.of_cluster(action))


READ: Final = Rights(plain=SIGNED, users=on_cluster(Action.GET))
"""Requests that read what every account may know."""
LOOK: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.GET))
"""Requests that read what only an administrator may know."""
CHANGE: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.UPDATE))
"""Requests that change the broker."""


def same(right: Right) -> Rights:
    """Return the rights of requests that need the same right under both kinds."""
    return Rights(plain=right, users=right)


def on_named(action: Action, *, topic: str = "", group: str = "") -> Right:
    """Return the right to do something with what a header names, if it names anything.

    Args:
        action: what.
        topic, group: the fields with the names.
    """
    return Right(lambda request, _: needs_of(named(request, action, topic=topic, group=group)))


def to_consume_as(group: str) -> Right:
    """Return the right to consume as the group that a field names."""
    return Right(lambda request, _: needs_of(group_need(field(request, group))))


class RequestNeeds:
    """Reads what requests need under one kind of access control.

    Args:
        kind: which.
        lookups: what the broker knows.
    """

    def __init__(self, kind: Kind, lookups: Lookups) -> None:
        self._is_plain = kind is Kind.PLAIN
        self._lookups = lookups
        self._rights: dict[int, Right] = {}
        self.in_body: frozenset[int] = frozenset()
        """The codes of requests whose bodies say what they need."""

    def state(self, rights: Mapping[int, Rights]) -> None:
        """Add what requests need."""
        self._rights |= {
            code: each.plain if self._is_plain else each.users for code, each in rights.items()
        }
        self.in_body = frozenset(code for code, right in self._rights.items() if right.in_body)

    def of(self, request: Request) -> Needs:
        """Return what a request needs beside a signature.

        Raises:
            CometError: its header or its body cannot be read, or the disk refuses a record.
        """
        return self._rights.get(request.code, ADMINISTRATION).read(request, self._lookups)

    @property
    def codes(self) -> frozenset[int]:
        """The codes of requests whose needs are stated; all others need an administrator."""
        return frozenset(self._rights)


def field(request: Request, name: str) -> str:
    """Return a field of the header; nothing if it is missing."""
    return request.command.fields.get(name, "")


def topic_if_any(name: str | None, action: Action) -> Iterator[Need]:
    """Yield the need for an action on a topic, if it has a name."""
    if name:
        yield topic_need(name, action)


def named(request: Request, action: Action, *, topic: str = "", group: str = "") -> Iterator[Need]:
    """Yield the needs for an action on the topic and the group that fields name, if any."""
    yield from topic_if_any(field(request, topic), action)
    name = field(request, group)
    if name:
        yield group_need(name, action)


def of_record(topic_of_record: TopicOfRecord, offset: int, action: Action) -> Needs:
    """Return what the use of the record at an offset needs.

    Without the record it is not known what that is: this server may be a slave that does not have
    it yet, and forwards requests.
    """
    topic = topic_of_record(offset)
    if topic is None:
        return Needs(
            unknown=f"cannot find the message at offset {offset} of the log, and so not which"
            " rights the request needs: expected the offset of a message that this broker has"
        )
    return needs_of(topic_need(topic, action))


def of_message_id(topic_of_record: TopicOfRecord, message_id: str, action: Action) -> Needs:
    """Return what the use of the record that an offset message id names needs."""
    try:
        offset = decode_offset_id(message_id).log_offset
    except InvalidMessageIdError as problem:
        return Needs(unknown=str(problem))
    return of_record(topic_of_record, offset, action)


def with_record(record: Needs, *resources: Need | Iterable[Need]) -> Needs:
    """Return what a request about a record needs, and the other topics and groups it names."""
    return needs_of(*resources, record.resources)._replace(unknown=record.unknown)
