"""The states of a broker towards its controllers: what it requests of them next.

Master or slave is not a state here. The role follows from the decision with the largest epoch, and
stays while the controllers do not respond, or do not know the broker.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cometmq.system.state_table import StateTable


class State(Enum):
    """What the controllers know of this broker."""

    UNREGISTERED = auto()
    """The broker sends no heartbeats until it has registered."""
    REGISTERED = auto()
    """The broker sends heartbeats, so it may be elected."""
    LOST = auto()
    """The broker has reported itself as lost, because it must not lead the epoch of an earlier
    process. It sends no heartbeats until it has registered again."""
    FAILED = auto()
    """The store takes nothing until a restart. The controllers do not know that yet."""
    FAILED_LOST = auto()
    """The store takes nothing until a restart. The broker has reported itself as lost."""
    STOPPED = auto()
    """The broker has left its controllers."""


class Event(Enum):
    """What happens to the broker."""

    ROUND = auto()
    """The next round of requests is due: at intervals, or because a controller has notified."""
    HEARTBEAT = auto()
    """The next heartbeat is due."""
    SET_CHANGES = auto()
    """This master needs to change the in-sync set."""
    HAS_REGISTERED = auto()
    """The controllers have the address of this broker and its first heartbeat."""
    MUST_REGISTER = auto()
    """The controllers do not know this broker, name another process with its id, or have elected it
    for an epoch that it cannot lead."""
    HAS_REPORTED_LOSS = auto()
    """The controllers have the report that this broker is lost."""
    STORE_FAILED = auto()
    """The store has failed: it takes nothing until a restart."""
    STOP = auto()
    """The broker stops."""


class Action(Enum):
    """What the broker does after an event."""

    REGISTER = auto()
    """Register, and follow the decision in the response."""
    REQUEST = auto()
    """Request the decision, and follow it."""
    STEP_DOWN = auto()
    """Request the decision, and follow another master. Report the loss, and again if elected."""
    SEND = auto()
    """Send a heartbeat to all controllers."""
    BEGIN_ROUND = auto()
    """Begin a round at once."""
    CHANGE_SET = auto()
    """Request the change of the in-sync set."""


S, E, A = State, Event, Action
TABLE: Final = StateTable(
    "elected role",
    S.UNREGISTERED,
    [
        (S.UNREGISTERED, E.ROUND, S.UNREGISTERED, A.REGISTER),
        (S.UNREGISTERED, E.HEARTBEAT, S.UNREGISTERED, None),
        (S.UNREGISTERED, E.SET_CHANGES, S.UNREGISTERED, A.CHANGE_SET),
        (S.UNREGISTERED, E.HAS_REGISTERED, S.REGISTERED, None),
        (S.UNREGISTERED, E.MUST_REGISTER, S.UNREGISTERED, None),
        (S.UNREGISTERED, E.HAS_REPORTED_LOSS, S.LOST, None),
        (S.UNREGISTERED, E.STORE_FAILED, S.FAILED, None),
        (S.UNREGISTERED, E.STOP, S.STOPPED, None),
        #
        (S.REGISTERED, E.ROUND, S.REGISTERED, A.REQUEST),
        (S.REGISTERED, E.HEARTBEAT, S.REGISTERED, A.SEND),
        (S.REGISTERED, E.SET_CHANGES, S.REGISTERED, A.CHANGE_SET),
        (S.REGISTERED, E.MUST_REGISTER, S.UNREGISTERED, None),
        (S.REGISTERED, E.STORE_FAILED, S.FAILED, None),
        (S.REGISTERED, E.STOP, S.STOPPED, None),
        #
        (S.LOST, E.ROUND, S.LOST, A.REGISTER),
        (S.LOST, E.HEARTBEAT, S.LOST, None),
        (S.LOST, E.SET_CHANGES, S.LOST, A.CHANGE_SET),
        (S.LOST, E.HAS_REGISTERED, S.REGISTERED, None),
        (S.LOST, E.MUST_REGISTER, S.LOST, None),
        (S.LOST, E.HAS_REPORTED_LOSS, S.LOST, None),
        (S.LOST, E.STORE_FAILED, S.FAILED_LOST, None),
        (S.LOST, E.STOP, S.STOPPED, None),
        #
        (S.FAILED, E.ROUND, S.FAILED, A.STEP_DOWN),
        (S.FAILED, E.HEARTBEAT, S.FAILED, A.BEGIN_ROUND),
        (S.FAILED, E.SET_CHANGES, S.FAILED, A.CHANGE_SET),
        (S.FAILED, E.HAS_REGISTERED, S.FAILED, None),
        (S.FAILED, E.MUST_REGISTER, S.FAILED, None),
        (S.FAILED, E.HAS_REPORTED_LOSS, S.FAILED_LOST, None),
        (S.FAILED, E.STORE_FAILED, S.FAILED, None),
        (S.FAILED, E.STOP, S.STOPPED, None),
        #
        (S.FAILED_LOST, E.ROUND, S.FAILED_LOST, A.STEP_DOWN),
        (S.FAILED_LOST, E.HEARTBEAT, S.FAILED_LOST, None),
        (S.FAILED_LOST, E.SET_CHANGES, S.FAILED_LOST, A.CHANGE_SET),
        (S.FAILED_LOST, E.HAS_REGISTERED, S.FAILED, None),
        (S.FAILED_LOST, E.MUST_REGISTER, S.FAILED_LOST, None),
        (S.FAILED_LOST, E.HAS_REPORTED_LOSS, S.FAILED_LOST, None),
        (S.FAILED_LOST, E.STORE_FAILED, S.FAILED_LOST, None),
        (S.FAILED_LOST, E.STOP, S.STOPPED, None),
        #
        (S.STOPPED, E.SET_CHANGES, S.STOPPED, None),
        (S.STOPPED, E.STOP, S.STOPPED, None),
    ],
)
