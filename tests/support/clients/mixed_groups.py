"""A group whose members are processes of several clients, and a sender that does not pause."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import kit
from codes import Request
from programs import OURS, Client, Kind, Program
from servers import Cluster
from wire import Connection

from cometmq.protocol.bodies.client import ConsumerRunningInfo
from support.clients.delivery_check import Assigned, Committed, Seen, Stored, badly_shared

QUEUES = 8
KEYS = 64
BURST = 5
BURST_S = 0.1
SHARED_S = 250.0
"""Members divide the queues once a second here; one that stops may keep a lock for 20 s."""
FOREVER_MS = 1 << 62


class End(Enum):
    """How a member ended."""

    LEFT = "left"
    ABORTED = "aborted"
    KILLED = "killed"


@dataclass
class Member:
    """One process that consumes, from its start to its end."""

    name: str
    """A part of its client id."""
    number: int
    """How many members of this name were there before."""
    kind: Kind
    program: Program
    end: End | None = None
    ended_ms: int = 0
    """When its end began."""
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it stood still."""

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"


@dataclass
class MixedGroup:
    """One group on a new topic, its members past and present, and what was sent."""

    cluster: Cluster
    broker: Connection
    folder: Path
    topic: str
    group: str
    mode: str
    pace_ms: int = 0
    burst_s: float = BURST_S
    """The pause after each burst of messages."""
    members: dict[str, Member] = field(default_factory=dict)
    gone: list[Member] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """What happened, in words."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each of it happened."""
    _sent: Counter[int] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: list[BaseException] = field(default_factory=list)
    _thread: threading.Thread | None = None

    # --- members ------------------------------------------------------------------------------

    def join(self, kind: Kind, name: str, mode: str | None = None) -> None:
        """Start a process with one member. A former member's name gives it that one's home.

        Args:
            kind: the client.
            name: of the member.
            mode: how it consumes; None for the mode of the group.
        """
        arguments, cwd = kind.command()
        number = sum(member.name == name for member in self.gone)
        log = self.folder / f"{name}.log"
        program = Program([*arguments, self.cluster.namesrv], log, cwd=cwd)
        member = self.members[name] = Member(name, number, kind, program)
        program.ask(
            "consume",
            name=name,
            group=self.group,
            topic=self.topic,
            expression="*",
            mode=mode or self.mode,
            pace_ms=self.pace_ms,
        )
        self._note(member, "joined")

    def leave(self, name: str) -> None:
        """A member stops in good order, and its process ends."""
        member = self._ends(name, End.LEFT)
        member.program.ask("stop", name=name)
        member.program.close()

    def abort(self, name: str) -> None:
        """A member of our client stops without waiting for its handlers."""
        member = self._ends(name, End.ABORTED)
        member.program.ask("abort", name=name)
        member.program.close()

    def kill(self, name: str) -> None:
        """The process of a member is killed."""
        self._ends(name, End.KILLED).program.kill()

    def pause(self, name: str) -> None:
        """The process of a member stands still until `resume`."""
        member = self.members[name]
        member.pauses.append((_now_ms(), FOREVER_MS))
        member.program.pause()
        self._note(member, "paused")

    def resume(self, name: str) -> None:
        """A paused member goes on."""
        member = self.members[name]
        member.program.resume()
        member.pauses.append((member.pauses.pop()[0], _now_ms()))
        self._note(member, "resumed")

    def _ends(self, name: str, end: End) -> Member:
        member = self.members.pop(name)
        member.end, member.ended_ms = end, _now_ms()
        self.gone.append(member)
        self._note(member, end.value)
        return member

    def _note(self, member: Member, what: str) -> None:
        self.done.append(f"{time.strftime('%H:%M:%S')} {member} {what}")
        self.counts[what] += 1

    def everybody(self) -> list[Member]:
        """All members that ever were."""
        return [*self.gone, *self.members.values()]

    def close(self) -> None:
        """End all processes."""
        for member in self.members.values():
            member.program.resume()
        try:
            self.finish()
        finally:
            for member in self.everybody():
                member.program.close()

    # --- messages -----------------------------------------------------------------------------

    def send(self) -> None:
        """Keep sending with order keys, in a thread, until `finish`."""
        sender = Client(OURS, self.cluster.namesrv, self.folder)

        def run() -> None:
            try:
                while not self._stop.is_set():
                    self._send(sender)
                    self._stop.wait(self.burst_s)
            except BaseException as error:
                self._failure.append(error)
            finally:
                sender.close()

        self._thread = threading.Thread(target=run, name="sender")
        self._thread.start()

    def _send(self, sender: Client) -> None:
        messages = []
        for _ in range(BURST):
            key = self._sent.total() % KEYS
            messages.append({"body": f"{key}:{self._sent[key]}", "shard": str(key)})
            self._sent[key] += 1
        results = sender.send(self.topic, messages, style="ordered")
        self.stored += [
            Stored(str(result["queue"]), result["offset"], message["body"])
            for message, result in zip(messages, results, strict=True)
        ]

    def finish(self) -> None:
        """Stop sending.

        Raises:
            BaseException: what ended the sender before.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(200)
            assert not self._thread.is_alive(), "the sender did not stop"
        if self._failure:
            raise self._failure.pop()

    def seen(self) -> list[Seen]:
        """What all members that ever were have received, by the time they did."""
        seen = [
            Seen(str(member), str(event["queue"]), event["offset"], event["body"], event["now_ms"])
            for member in self.everybody()
            for event in list(member.program.received)
        ]
        return sorted(seen, key=lambda one: one.at_ms)

    def assigned(self) -> list[Assigned]:
        """Which queues members were to have, by the time they learnt of it."""
        assigned = [
            Assigned(str(member), frozenset(map(str, event["queues"])), event["now_ms"])
            for member in self.everybody()
            for event in list(member.program.assigned)
        ]
        return sorted(assigned, key=lambda one: one.at_ms)

    # --- what brokers know --------------------------------------------------------------------

    def look_at_commits(self) -> None:
        """Note the committed offset of each queue."""
        for queue in range(QUEUES):
            answer = kit.query_offset(self.broker, self.group, self.topic, queue)
            if answer.code == 0:
                self.commits.append(Committed(str(queue), answer.number("offset"), _now_ms()))

    def lag(self) -> int:
        """How many messages the group has not committed."""
        lag = 0
        for queue in range(QUEUES):
            answer = kit.query_offset(self.broker, self.group, self.topic, queue)
            committed = answer.number("offset") if answer.code == 0 else 0
            lag += kit.max_offset(self.broker, self.topic, queue) - committed
        return lag

    def owned(self) -> dict[str, set[str]]:
        """Client id to queues, as each member answers the broker."""
        owned = {}
        for client_id in kit.consumer_ids(self.broker, self.group):
            fields = {
                "consumerGroup": self.group,
                "clientId": client_id,
                "jstackEnable": False,
            }
            answer = self.broker.request(Request.GET_CONSUMER_RUNNING_INFO, fields)
            if answer.code != 0:
                continue
            table = ConsumerRunningInfo.decode(answer.body).mq_table
            owned[client_id] = {
                str(queue.queue_id)
                for queue, info in table.items()
                if queue.topic == self.topic and not info.droped
            }
        return owned

    def is_shared_out(self, within: float = SHARED_S) -> None:
        """Wait until the members that live have every queue once, in fair shares."""
        problems: list[str] = []

        def fair() -> bool:
            owned = self.owned()
            problems[:] = [f"{len(owned)} members, not {len(self.members)}"]
            if len(owned) == len(self.members):
                problems[:] = badly_shared([str(n) for n in range(QUEUES)], owned)
            return not problems

        try:
            kit.eventually(fair, timeout=within)
        except AssertionError:
            raise AssertionError(f"after {within:g} s: {problems}") from None


def _now_ms() -> int:
    return int(time.time() * 1000)
