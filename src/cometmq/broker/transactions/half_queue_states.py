"""The states of a half queue: whether it is known which half messages are decided.

A half message has no states of its own: it is undecided or not, one bit of `DecidedOffsets`, and
nothing makes it undecided again but a truncation of the log.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """Whether it is known which half messages are decided."""

    UNKNOWN = auto()
    """It is not known; on a slave, it need not be."""
    UNCONFIRMED = auto()
    """It is not known, and nothing is read or appended: this broker is about to become the master,
    and the other replicas have not confirmed its log."""
    READ = auto()
    """It is known, and what a crash has cut off is not appended yet."""
    LOADED = auto()
    """It is known, and decisions are stored."""


class Event(Enum):
    """What happens to a half queue."""

    LOAD = auto()
    """A start, a job or a new master needs what is decided."""
    HAS_READ = auto()
    """It was read which half messages are decided."""
    HAS_APPENDED = auto()
    """What a crash has cut off is appended, or is left to the master of this slave."""
    ELECTED = auto()
    """This broker is about to become the master."""
    CONFIRMED = auto()
    """The other replicas have the log of this new master."""
    UNLOADED = auto()
    """This broker is a slave, which gets half messages and decisions with the log."""


class Action(Enum):
    """What a half queue does then."""

    READ = auto()
    """Read which half messages are decided."""
    APPEND = auto()
    """Append what a crash has cut off."""
    FORGET = auto()
    """Forget what was read, also in requests and rounds that have begun."""


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
