"""State machines as tables: each row says what an event does in a state.

A table stands in a module of its own beside the object whose states it lists. The object takes no
other state than `StateTable.row` returns. An event without a row in a state is a defect of the
program, not of a peer: it raises.

`docs/explanation/state-machines.md` shows all tables; it is generated from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)


class IllegalEventError(RuntimeError):
    """An event happened in a state that has no row for it."""


class Row(NamedTuple, Generic[S, E, A]):
    """What an event does in a state."""

    state: S
    event: E
    after: S
    """The next state."""
    action: A | None
    """What the object does then; None for nothing."""


class StateTable(Generic[S, E, A]):
    """The rows of one kind of object.

    Args:
        name: of the object, for errors, such as ``half queue``.
        first: the state of a new object.
        rows: state, event, next state and action; a state and an event have one row at most.

    Raises:
        ValueError: two rows have the same state and event.
    """

    def __init__(self, name: str, first: S, rows: Iterable[tuple[S, E, S, A | None]]) -> None:
        self.name = name
        self.first = first
        self.rows: dict[tuple[S, E], Row[S, E, A]] = {}
        for row in rows:
            if row[:2] in self.rows:
                raise ValueError(f"{name}: two rows for {row[1].name} in {row[0].name}")
            self.rows[row[:2]] = Row(*row)

    def row(self, state: S, event: E) -> Row[S, E, A]:
        """Return what an event does in a state.

        Raises:
            IllegalEventError: the event cannot happen in this state.
        """
        row = self.rows.get((state, event))
        if row is None:
            known = ", ".join(event.name for known, event in self.rows if known is state) or "none"
            raise IllegalEventError(
                f"{self.name}: met the event {event.name} in the state {state.name}, expected one"
                f" of {known}; this is a defect, please report it with the log"
            )
        return row
