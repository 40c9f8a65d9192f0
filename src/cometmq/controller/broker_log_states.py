"""The states of a broker's log, as far as the controller knows it.

They decide which broker may be elected without a comparison of logs. The broker set itself has no
table: it has a master or none, and each change of the master begins an epoch. The choice of a
master follows from the living members and their logs, not from a state of the set.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """What the controller knows of a broker's log. The values are stored in etcd."""

    VERIFIED = "verified"
    """The log has everything that the broker has reported."""
    UNVERIFIED = "unverified"
    """A process of the broker did not stop cleanly: the end of the log may be lost."""
    REPLACED = "replaced"
    """The store is not the one that the controller knows: a copy, a backup, another disk."""


class Event(Enum):
    """What happens to the log."""

    STARTED = auto()
    """A new process registers, and the process before it stopped cleanly."""
    STARTED_AFTER_KILL = auto()
    """A new process registers, and the process before it did not stop cleanly."""
    STARTED_ELSEWHERE = auto()
    """A new process registers with another store, or with a store that does not know the process
    before it."""
    STARTED_UNNAMED = auto()
    """A broker of RocketMQ registers. It names no process."""
    COMPARED = auto()
    """The master has compared the log with its own."""
    ELECTED = auto()
    """The broker is elected: its log is now the one that the others copy."""


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
