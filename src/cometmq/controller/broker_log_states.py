"""The states of a broker's log, as far as the controller knows it.

They decide who may be elected without a comparison of logs. The broker set itself has no table: it
has a master or none, and each change of that begins an epoch. Who is elected follows from the
members that live and from their logs, not from the state of the set.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """What is known of a broker's log; the values are those in etcd."""

    VERIFIED = "verified"
    """It has what this broker had reported."""
    UNVERIFIED = "unverified"
    """A process did not stop cleanly: the end of the log may be lost."""
    REPLACED = "replaced"
    """The store is not the one that the controller knows: a copy, a backup, another disk."""


class Event(Enum):
    """What happens to it."""

    STARTED = auto()
    """A new process registers, and the one before has stopped cleanly."""
    STARTED_AFTER_KILL = auto()
    """A new process registers, and the one before has not stopped cleanly."""
    STARTED_ELSEWHERE = auto()
    """A new process registers with another store, or with one that does not know the process
    before."""
    STARTED_UNNAMED = auto()
    """A broker of RocketMQ registers, which names no process."""
    COMPARED = auto()
    """The master has compared the log with its own."""
    ELECTED = auto()
    """The broker is elected: from now on its log is what counts."""


S, E = State, Event
TABLE: Final[StateTable[State, Event, Enum]] = StateTable(
    "log of a broker",
    S.VERIFIED,
    [
        (S.VERIFIED, E.STARTED, S.VERIFIED, None),
        (S.VERIFIED, E.STARTED_AFTER_KILL, S.UNVERIFIED, None),
        (S.VERIFIED, E.STARTED_ELSEWHERE, S.REPLACED, None),
        (S.VERIFIED, E.STARTED_UNNAMED, S.VERIFIED, None),
        (S.VERIFIED, E.COMPARED, S.VERIFIED, None),
        (S.VERIFIED, E.ELECTED, S.VERIFIED, None),
        #
        (S.UNVERIFIED, E.STARTED, S.UNVERIFIED, None),
        (S.UNVERIFIED, E.STARTED_AFTER_KILL, S.UNVERIFIED, None),
        (S.UNVERIFIED, E.STARTED_ELSEWHERE, S.REPLACED, None),
        (S.UNVERIFIED, E.STARTED_UNNAMED, S.VERIFIED, None),
        (S.UNVERIFIED, E.COMPARED, S.VERIFIED, None),
        (S.UNVERIFIED, E.ELECTED, S.VERIFIED, None),
        #
        (S.REPLACED, E.STARTED, S.REPLACED, None),
        (S.REPLACED, E.STARTED_AFTER_KILL, S.REPLACED, None),
        (S.REPLACED, E.STARTED_ELSEWHERE, S.REPLACED, None),
        (S.REPLACED, E.STARTED_UNNAMED, S.VERIFIED, None),
        (S.REPLACED, E.COMPARED, S.VERIFIED, None),
        (S.REPLACED, E.ELECTED, S.VERIFIED, None),
    ],
)
