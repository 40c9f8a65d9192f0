"""The states of a half queue: whether the broker knows which half messages are decided.

A half message has no states of its own: it is decided or not, one bit of `DecidedOffsets`, and only
a truncation of the log makes it undecided again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """Whether the broker knows which half messages are decided."""

    UNKNOWN = auto()
    """The broker does not know which half messages are decided. A slave need not know it."""
    UNCONFIRMED = auto()
    """This broker is about to become the master, and the other replicas have not confirmed its log.
    It does not know which half messages are decided, and reads and appends nothing."""
    READ = auto()
    """The broker knows it. The op message that a crash may have cut off is not appended yet."""
    LOADED = auto()
    """The broker knows it, and stores new decisions."""


class Event(Enum):
    """What happens to a half queue."""

    LOAD = auto()
    """A start, a job or a new master needs to know which half messages are decided."""
    HAS_READ = auto()
    """The broker has read which half messages are decided."""
    HAS_APPENDED = auto()
    """The op message that a crash has cut off is appended. A slave leaves it to its master."""
    ELECTED = auto()
    """This broker is about to become the master."""
    CONFIRMED = auto()
    """The other replicas have the log of this new master."""
    UNLOADED = auto()
    """This broker is a slave, and copies half messages and decisions with the log."""


class Action(Enum):
    """What a half queue does after an event."""

    READ = auto()
    """Read which half messages are decided."""
    APPEND = auto()
    """Append the op message that a crash may have cut off."""
    FORGET = auto()
    """Forget what was read. Requests and jobs that have begun with it do not go on."""


S, E, A = State, Event, Action
TABLE: Final = StateTable(
    "half queue",
    S.UNKNOWN,
    [
        (S.UNKNOWN, E.LOAD, S.UNKNOWN, A.READ),
        (S.UNKNOWN, E.HAS_READ, S.READ, A.APPEND),
        (S.UNKNOWN, E.ELECTED, S.UNCONFIRMED, A.FORGET),
        (S.UNKNOWN, E.UNLOADED, S.UNKNOWN, A.FORGET),
        #
        (S.UNCONFIRMED, E.LOAD, S.UNCONFIRMED, None),
        (S.UNCONFIRMED, E.CONFIRMED, S.UNKNOWN, None),
        (S.UNCONFIRMED, E.UNLOADED, S.UNKNOWN, A.FORGET),
        #
        (S.READ, E.LOAD, S.READ, A.APPEND),
        (S.READ, E.HAS_APPENDED, S.LOADED, None),
        (S.READ, E.ELECTED, S.UNCONFIRMED, A.FORGET),
        (S.READ, E.UNLOADED, S.UNKNOWN, A.FORGET),
        #
        (S.LOADED, E.LOAD, S.LOADED, None),
        (S.LOADED, E.ELECTED, S.UNCONFIRMED, A.FORGET),
        (S.LOADED, E.UNLOADED, S.UNKNOWN, A.FORGET),
    ],
)
