"""The need of a request: a signature only, actions on topics and groups, or an administrator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntFlag, StrEnum
from typing import Final, NamedTuple

from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX, TOPICS_OF_WAITING
from cometmq.protocol.codes import ResponseCode

NEEDS_MAX: Final = 10_000
"""The topics and groups that one request may name, each as often as it names it."""


class Action(IntFlag):
    """The action of a request on a resource."""

    PUB = 4
    SUB = 8
    CREATE = 16
    UPDATE = 32
    DELETE = 64
    GET = 128
    LIST = 256


class ResourceType(StrEnum):
    """The kind of a resource."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Need(NamedTuple):
    """The need of a request: one of these actions on a resource."""

    resource_type: ResourceType
    name: str
    action: Action


class Needs(NamedTuple):
    """All that a request needs beside a signature."""

    administrator: bool = False
    resources: tuple[Need, ...] = ()
    unknown: str = ""
    """Why it is not known what else it needs; then it is refused in any case."""


NOTHING: Final = Needs()
"""A signature is enough."""
ADMINISTRATOR: Final = Needs(administrator=True)


def require_stated(served: Iterable[int], stated: Collection[int], where: str) -> None:
    """Refuse to serve requests whose needs are not stated.

    They are closed to all but administrators, but that has to be a decision, and no oversight.

    Args:
        served: the codes of the requests that a server serves.
        stated: those for which it says what they need.
        where: where it says so.

    Raises:
        ValueError: a served code is not stated.
    """
    if missing := sorted(set(served).difference(stated)):
        raise ValueError(
            f"request codes {missing} are served, but {where} does not state what they need:"
            " expected each code there"
        )


class StatedNeeds:
    """The needs of the requests to a server: a signature, or an administrator.

    Args:
        stated_in: where that is stated.
        needs: what the requests of each code need.
    """

    def __init__(self, stated_in: str, needs: Mapping[int, Needs]) -> None:
        self._stated_in = stated_in
        self._needs = needs

    @property
    def codes(self) -> frozenset[int]:
        """The codes of requests whose needs are stated."""
        return frozenset(self._needs)

    def of(self, code: int) -> Needs:
        """Return what a request needs; one whose needs are not stated needs an administrator."""
        return self._needs.get(code, ADMINISTRATOR)

    def require_stated(self, served: Iterable[int]) -> None:
        """Refuse to serve requests whose needs are not stated.

        Raises:
            ValueError: there are such requests.
        """
        require_stated(served, self._needs, self._stated_in)


def group_need(name: str, action: Action = Action.SUB) -> Need:
    """Return the need for an action on a group, by default to consume as it."""
    return Need(ResourceType.GROUP, name, action)


def topic_need(name: str, action: Action) -> Need:
    """Return the need for an action on a topic; a retry topic is its group.

    A send to a retry topic is a retry of a consumer: it needs to consume as the group.
    """
    if name.startswith(RETRY_PREFIX):
        return group_need(name[len(RETRY_PREFIX) :], action & ~Action.PUB or Action.SUB)
    return Need(ResourceType.TOPIC, name, action)


def needs_of(*resources: Need | Iterable[Need]) -> Needs:
    """Combine needs of topics and groups, each one once.

    To consume a topic with messages of other topics, the sender has to be an administrator: a right
    to all topics, or a default, says nothing about the topics that those messages are for.

    Raises:
        ResponseError: the request names too many.
    """
    every: list[Need] = []
    for resource in resources:
        if isinstance(resource, Need):
            every.append(resource)
        else:
            every.extend(resource)
    if len(every) > NEEDS_MAX:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"the request names {len(every)} topics and groups, expected at most {NEEDS_MAX}",
        )
    unique = tuple(dict.fromkeys(every))
    return Needs(any(map(_consumes_messages_of_others, unique)), unique)


def _consumes_messages_of_others(need: Need) -> bool:
    # A route, which producers need, too, shows no message.
    return (
        need.name in TOPICS_OF_WAITING
        and need.resource_type == ResourceType.TOPIC
        and need.action & (Action.SUB | Action.PUB) == Action.SUB
    )
