"""The states of a topic in the rebalance of one member.

A missing topic has no state of its own: how often it was looked up is a number. Queues have none
either: for their owner a queue is assigned, ends, or is neither, and only the end of the task that
ends it leads back. What an owner does with it differs: a push consumer takes it over from another
member, a pop consumer shares it.
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
    """Queues are allocated, and it may have others."""
    WAITING = auto()
    """It lacks allocated queues, and that is logged: others have not released them."""
    BALANCED = auto()
    """It has exactly the allocated queues."""


class Event(Enum):
    """What a round finds."""

    ALLOCATE = auto()
    """The queues of this member are known; it assigns and revokes queues now."""
    HAS_ALL = auto()
    """It has exactly the allocated queues then."""
    HAS_MORE = auto()
    """It has all allocated queues then, and others that could not be revoked."""
    LACKS_SOME = auto()
    """It lacks allocated queues then."""
    UNSUBSCRIBED = auto()
    """The topic is not subscribed any more, and all its queues are revoked."""


class Action(Enum):
    """What the rebalancer does then."""

    LOG_WAIT = auto()
    """Log that queues are not free yet."""
    FORGET = auto()
    """Forget the topic, and notify the listener that it has no queues."""


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
