"""The history of a simulated cluster as its applications saw it, and the check of it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from cometmq.client import LocalState
from support.stores.timer_records import Recall

QueuePosition = tuple[str, str, int, int]
"""Topic, broker, queue and offset of a message."""


class SendType(Enum):
    """How a message is sent."""

    PLAIN = "plain"
    DELAYED = "delayed"
    TRANSACTION = "in a transaction"
    SESSION = "in a producer session"
    TIMER = "with a time"


class Opening(NamedTuple):
    """An acknowledged opening of a producer session."""

    session: str
    owner: str
    """The attempt."""
    epoch: int
    broker: str
    ends: tuple[int, ...]
    """The end of each queue then: behind it no other attempt with such an epoch stores a row."""


class StoredRow(NamedTuple):
    """A row of a producer session in the log of a master."""

    name: str
    session: str
    owner: str
    epoch: int
    position: QueuePosition


@dataclass
class Send:
    """One message that a producer sent."""

    began: int
    type: SendType = SendType.PLAIN
    ended: int | None = None
    is_acknowledged: bool = False
    position: QueuePosition | None = None
    """Where a plain message is stored, if its send was acknowledged."""
    is_committed: bool = False
    """How the local transaction ended; false as long as it has not run."""
    is_given_up: bool = False
    """Whether the broker was told to roll back, so that the local transaction must not commit."""
    may_be_recalled: bool = False
    """Whether its producer has tried to recall it."""

    @property
    def state(self) -> LocalState:
        """What the producer says of the transaction."""
        return LocalState.COMMIT if self.is_committed else LocalState.ROLLBACK

    @property
    def must_arrive(self) -> bool:
        """Whether a consumer has to get it."""
        is_wanted = self.type is not SendType.TRANSACTION or self.is_committed
        return self.is_acknowledged and is_wanted and not self.may_be_recalled

    @property
    def may_arrive(self) -> bool:
        """Whether a consumer may get it."""
        return self.type is not SendType.TRANSACTION or self.is_committed


@dataclass
class History:
    """What happened, in the order of its happening."""

    events: list[str] = field(default_factory=list)
    sends: dict[str, Send] = field(default_factory=dict)
    handled: dict[str, list[QueuePosition]] = field(default_factory=lambda: defaultdict(list))
    """The positions at which each message was consumed, of calls that returned."""
    openings: list[Opening] = field(default_factory=list)
    rows: list[StoredRow] = field(default_factory=list)
    """What the masters have in the end."""
    recalls: list[Recall] = field(default_factory=list)
    """The acknowledged ones."""
    failures: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault happened."""

    def note(self, text: str) -> int:
        """Append one event; return its number."""
        self.events.append(text)
        return len(self.events)

    def missing(self) -> list[str]:
        """Return the acknowledged messages that no handler has consumed."""
        return [
            name
            for name, send in self.sends.items()
            if send.must_arrive and name not in self.handled
        ]

    def undelivered(self) -> list[str]:
        """Return the messages that no handler has consumed where their producer was told they are.

        Another copy may have been consumed, of an attempt that got no response.
        """
        return [
            name
            for name, send in self.sends.items()
            if send.position is not None and send.position not in self.handled.get(name, ())
        ]

    def digest(self) -> str:
        """Return a hash of all events."""
        return hashlib.sha256("\n".join(self.events).encode()).hexdigest()

    def counts(self) -> dict[str, Any]:
        """Return what a run is judged by, for JSON."""
        return {
            "failures": self.failures[:5],
            "acknowledged": sum(send.is_acknowledged for send in self.sends.values()),
            "elections": sum(" SYNC_MASTER " in event for event in self.events),
            "faults": self.faults,
        }

    def check(
        self,
        *,
        attempts: int,
        committed: list[tuple[QueuePosition, int]],
        has_lost_master: bool = False,
    ) -> list[str]:
        """Return what is wrong.

        Args:
            attempts: how often a producer sends a message at most.
            committed: queues, their own offset left 0, and what a broker has as the committed
                offset of the group there.
            has_lost_master: whether messages may be gone that were consumed, but not acknowledged
                to their producers.
        """
        found = list(self.failures)
        found += [f"lost: {name} was acknowledged" for name in self.missing()]
        contents: dict[QueuePosition, str] = {}
        acknowledged: dict[QueuePosition, str] = {}
        for name, send in self.sends.items():
            if send.position is not None:
                other = acknowledged.setdefault(send.position, name)
                if other != name:
                    found.append(f"diverging: {other} and {name} were sent to {send.position}")
        for name, positions in self.handled.items():
            send = self.sends.get(name)
            if send is None:
                found.append(f"phantom: {name} was never sent")
                continue
            if not send.may_arrive:
                found.append(f"phantom: the transaction of {name} was rolled back")
            # What a delayed message was delivered to may be gone after a loss of power, also the
            # consumed copy: it is delivered again.
            losses = self.faults["power_lost"] + self.faults["power_cut"]
            is_delayed = send.type in (SendType.DELAYED, SendType.TIMER)
            deliveries = 1 + losses if is_delayed else 1
            is_counted = send.type is not SendType.SESSION  # in the logs, by `_wrong_rows`
            if is_counted and len(set(positions)) > attempts * deliveries:
                found.append(f"duplicated: {name} is stored at {sorted(set(positions))}")
            if send.position is not None and send.position not in positions:
                found.append(
                    f"moved: {name} was acknowledged at {send.position}, found at {positions}"
                )
            for position in positions:
                other = contents.setdefault(position, name)
                if other != name and not has_lost_master:
                    found.append(f"diverging: {other} and {name} are both at {position}")
        found += self._reordered()
        found += self._wrong_rows()
        ends: dict[QueuePosition, int] = defaultdict(int)
        for topic, broker, queue, offset in contents:
            key = topic, broker, queue, 0
            ends[key] = max(ends[key], offset + 1)
        for key, offset in committed:
            if offset > ends[key]:
                found.append(f"ahead: the group is at {offset} of {key}, consumed to {ends[key]}")
        return found

    def _wrong_rows(self) -> Iterator[str]:
        """Yield what is wrong with the rows of producer sessions, as the logs have them."""
        stored: dict[str, list[StoredRow]] = defaultdict(list)
        for row in self.rows:
            stored[row.name].append(row)
        for name, send in self.sends.items():
            rows = stored[name]
            if len(rows) > 1:
                yield f"repeated: {name} is stored at {[row.position for row in rows]}"
            if send.type is SendType.SESSION and send.is_acknowledged and not rows:
                yield f"lost: the row {name} was acknowledged"
        for opening in self.openings:
            for row in self.rows:
                _, broker, queue_id, offset = row.position
                if (
                    (row.session, broker) == (opening.session, opening.broker)
                    and row.owner != opening.owner
                    and row.epoch <= opening.epoch
                    and offset >= opening.ends[queue_id]
                ):
                    yield f"zombie: {row} was stored after {opening}"

    def _reordered(self) -> list[str]:
        found = []
        queues: dict[QueuePosition, list[tuple[int, Send, str]]] = defaultdict(list)
        for name, send in self.sends.items():
            if send.position is not None:
                topic, broker, queue, offset = send.position
                queues[topic, broker, queue, 0].append((offset, send, name))
        for sends in queues.values():
            sends.sort(key=lambda each: each[0])
            latest, of = 0, ""
            for offset, send, name in sends:
                assert send.ended is not None
                if send.ended < latest:
                    found.append(f"reordered: {name} at {offset} ended before {of} began")
                if send.began > latest:
                    latest, of = send.began, name
        return found
