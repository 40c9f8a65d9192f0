"""Members of both Java lines and of our own client in one group, which share its queues.

Messages flow all the time while members join, leave and are killed. After each change the members
are asked for the queues they have, as RocketMQ's own tools ask; in the end everything that was
stored has been consumed, and in order where that was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kit
import pytest
from codes import Request
from programs import JAVA_49, JAVA_53, OURS, Client, Kind, Program
from servers import Cluster
from wire import Connection

from cometmq.protocol.bodies import ConsumerRunningInfo
from support.counting import Seen, Stored, badly_shared, lost, out_of_order

QUEUES = 8
SHARED_S = 250.0
"""Java members divide the queues once a second here; one that stops may keep a lock for 20 s."""
LOCKS_S = 600.0
"""A broker keeps the locks of a killed member for 60 s."""


@dataclass
class Mixed:
    """One group, its members' programs, and a sender that never rests."""

    cluster: Cluster
    broker: Connection
    folder: Path
    topic: str
    group: str
    mode: str
    members: dict[str, Program] = field(default_factory=dict)
    gone: list[tuple[str, Program]] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def join(self, kind: Kind, name: str) -> None:
        """Start a program with one member; its name becomes a part of its client id."""
        arguments, cwd = kind.command()
        log = self.folder / f"{name}.log"
        program = Program([*arguments, self.cluster.namesrv], log, cwd=cwd)
        self.members[name] = program
        program.ask(
            "consume",
            name=name,
            group=self.group,
            topic=self.topic,
            expression="*",
            mode=self.mode,
        )

    def leave(self, name: str) -> None:
        """A member that has had messages stops in good order."""
        program = self._pop(name)
        program.ask("stop", name=name)
        self.gone.append((name, program))

    def kill(self, name: str) -> None:
        """The process of a member that has had messages is killed."""
        program = self._pop(name)
        program.kill()
        self.gone.append((name, program))

    def _pop(self, name: str) -> Program:
        kit.eventually(lambda: self.members[name].received, timeout=SHARED_S)
        return self.members.pop(name)

    def owned(self) -> dict[str, set[int]]:
        """Member to its queues, as each member answers the broker."""
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
                queue.queue_id
                for queue, info in table.items()
                if queue.topic == self.topic and not info.droped
            }
        return owned

    def is_shared_out(self, within: float = SHARED_S) -> None:
        """Wait until the members that live have every queue once, in fair shares."""
        problems: list[str] = []

        def fair() -> bool:
            owned = {who: {str(q) for q in has} for who, has in self.owned().items()}
            problems[:] = [f"{len(owned)} members, not {len(self.members)}"]
            if len(owned) != len(self.members):
                return False
            problems[:] = badly_shared([str(n) for n in range(QUEUES)], owned)
            return not problems

        try:
            kit.eventually(fair, timeout=within)
        except AssertionError:
            raise AssertionError(f"after {within:g} s: {problems}") from None

    def send(self) -> None:
        """Keep sending, in a thread, until `finish`."""
        sender = Client(OURS, self.cluster.namesrv, self.folder)

        def run() -> None:
            number = 0
            while not self._stop.is_set():
                bodies = [str(n) for n in range(number, number + 20)]
                number += 20
                for body, result in zip(
                    bodies,
                    sender.send(self.topic, [{"body": body} for body in bodies]),
                    strict=True,
                ):
                    self.stored.append(Stored(str(result["queue"]), result["offset"], body))
                self._stop.wait(0.05)
            sender.close()

        self._thread = threading.Thread(target=run, name="sender")
        self._thread.start()

    def finish(self) -> None:
        """Stop sending."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def seen(self) -> list[Seen]:
        """What all members that ever were have received."""
        return [
            Seen(name, str(event["queue"]), event["offset"], event["body"], event["now_ms"])
            for name, program in [*self.members.items(), *self.gone]
            for event in list(program.received)
        ]

    def close(self) -> None:
        self.finish()
        for _, program in [*self.members.items(), *self.gone]:
            program.close()


@pytest.fixture
def mixed(
    cluster: Cluster,
    broker: Connection,
    make_topic: Callable[..., str],
    make_group: Callable[[], str],
    tmp_path: Path,
) -> Iterator[Callable[[str], Mixed]]:
    """Make a group of members; all end with the test."""
    made: list[Mixed] = []

    def make(mode: str) -> Mixed:
        topic, group = make_topic(queues=QUEUES), make_group()
        made.append(Mixed(cluster, broker, tmp_path, topic, group, mode))
        return made[-1]

    yield make
    for group in made:
        group.close()


def all_arrives(mixed: Mixed, within: float) -> None:
    """Stop sending, and wait until everything that was stored has been seen."""
    mixed.finish()
    kit.eventually(lambda: not lost(mixed.stored, mixed.seen()), timeout=within)
    assert len(mixed.stored) > 100


def everyone_had_messages(mixed: Mixed) -> None:
    for name, program in [*mixed.members.items(), *mixed.gone]:
        assert program.received, f"{name} never got a message"


def test_java_and_python_members_share_the_queues_of_a_concurrent_group(
    mixed: Callable[[str], Mixed],
) -> None:
    group = mixed("concurrent")
    group.join(JAVA_49, "java49")
    group.join(JAVA_53, "java53")
    group.join(OURS, "ours1")
    group.join(OURS, "ours2")
    group.send()
    group.is_shared_out()

    group.join(OURS, "ours3")
    group.is_shared_out()
    group.leave("java49")
    group.is_shared_out()
    group.leave("ours2")
    group.is_shared_out()
    group.kill("ours1")
    group.is_shared_out()
    group.kill("java53")
    group.is_shared_out()

    all_arrives(group, SHARED_S)
    everyone_had_messages(group)


def test_java_and_python_members_share_the_queues_of_an_orderly_group(
    mixed: Callable[[str], Mixed],
) -> None:
    group = mixed("orderly")
    group.join(JAVA_49, "java49")
    group.join(OURS, "ours1")
    group.send()
    group.is_shared_out(LOCKS_S)

    group.join(JAVA_53, "java53")
    group.join(OURS, "ours2")
    group.is_shared_out(LOCKS_S)
    group.leave("java49")
    group.is_shared_out(LOCKS_S)
    group.kill("ours1")
    group.kill("java53")
    group.is_shared_out(LOCKS_S)

    all_arrives(group, SHARED_S)
    assert out_of_order(group.seen()) == []
    everyone_had_messages(group)
