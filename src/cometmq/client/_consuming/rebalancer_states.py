"""The states of a topic in the rebalance of one member.

A missing topic has no state of its own: how often it was looked up is a number. Queues have no
states either: a queue is assigned to this member, is being revoked, or is neither. The end of the
task that revokes a queue is the only event. Consumers differ in what they do with a queue: a push
consumer takes it over from another member, a pop consumer shares it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """Whether this member has the queues of the topic that are allocated to it."""

    NEW = auto()
    """No queue was allocated yet, or the topic is not subscribed any more."""
    ALLOCATED = auto()
    """Queues are allocated to this member, and it may still have other queues."""
    WAITING = auto()
    """This member lacks allocated queues, and has logged that others have not released them."""
    BALANCED = auto()
    """This member has exactly the allocated queues."""


class Event(Enum):
    """What a round finds."""

    ALLOCATE = auto()
    """The queues of this member are known. It assigns and revokes queues now."""
    HAS_ALL = auto()
    """After a round, this member has exactly the allocated queues."""
    HAS_MORE = auto()
    """After a round, it has all allocated queues, and others that could not be revoked."""
    LACKS_SOME = auto()
    """After a round, it lacks allocated queues."""
    UNSUBSCRIBED = auto()
    """The topic is not subscribed any more, and all its queues are revoked."""


class Action(Enum):
    """What the rebalancer does after an event."""

    LOG_WAIT = auto()
    """Log that other members have not released queues yet."""
    FORGET = auto()
    """Forget the topic, and notify the listener that no queues of it are assigned."""


S, E, A = State, Event, Action
TABLE: Final = StateTable(
    "topic in a rebalance",
    S.NEW,
    [
        (S.NEW, E.ALLOCATE, S.ALLOCATED, None),
        #
        (S.ALLOCATED, E.ALLOCATE, S.ALLOCATED, None),
        (S.ALLOCATED, E.HAS_ALL, S.BALANCED, None),
        (S.ALLOCATED, E.HAS_MORE, S.ALLOCATED, None),
        (S.ALLOCATED, E.LACKS_SOME, S.WAITING, A.LOG_WAIT),
        (S.ALLOCATED, E.UNSUBSCRIBED, S.NEW, A.FORGET),
        #
        (S.WAITING, E.ALLOCATE, S.WAITING, None),
        (S.WAITING, E.HAS_ALL, S.BALANCED, None),
        (S.WAITING, E.HAS_MORE, S.ALLOCATED, None),
        (S.WAITING, E.LACKS_SOME, S.WAITING, None),
        (S.WAITING, E.UNSUBSCRIBED, S.NEW, A.FORGET),
        #
        (S.BALANCED, E.ALLOCATE, S.ALLOCATED, None),
        (S.BALANCED, E.UNSUBSCRIBED, S.NEW, A.FORGET),
    ],
)
