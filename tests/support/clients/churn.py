"""Consumers as processes that join, leave and are killed at random under load.

The choices follow from a seed, which a failing test prints; what the machine makes of them does
not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from programs import OURS, Program

from support.clients.delivery_check import Overlaps, Seen, Stored

MEMBERS = 8
ALIVE_MIN = 3
PACE_MS = 2
SEND_COUNT = 40
TURN_S = 0.25
SLOW_S = 120.0
"""How much longer than asked a crowd may need until enough members came and went."""


class Crowd:
    """At most eight members of one group, a sender, and the history of both.

    Args:
        name_servers: of the cluster.
        topic: what they consume.
        group: their group.
        folder: for logs.
        ordered: how they consume.
        deaths: whether members are killed, too.
        overlap_s: how long two members may say that a queue is theirs.
        seed: of the choices.
    """

    def __init__(
        self,
        name_servers: str,
        topic: str,
        group: str,
        folder: Path,
        *,
        ordered: bool,
        deaths: bool,
        overlap_s: float,
        seed: int,
    ) -> None:
        self._name_servers = name_servers
        self._topic = topic
        self._group = group
        self._folder = folder
        self._ordered = ordered
        self._deaths = deaths
        self._choice = random.Random(seed)
        self._programs: list[Program] = []
        self._idle: list[Program] = []
        self._names = 0
        self._sent = 0
        self.members: dict[str, Program] = {}
        self.overlaps = Overlaps(overlap_s)
        self.stored: list[Stored] = []
        self.done: list[str] = []
        """What happened, in words."""
        self._sender = self._program()

    def _program(self) -> Program:
        arguments, cwd = OURS.command()
        log = self._folder / f"member-{len(self._programs)}.log"
        program = Program([*arguments, self._name_servers], log, cwd=cwd)
        self._programs.append(program)
        return program

    def gather(self, count: int = MEMBERS) -> None:
        """Have so many members join."""
        self._idle += [self._program() for _ in range(count)]
        for _ in range(count):
            self._join()

    def churn(self, seconds: float) -> None:
        """Send all the while, and let somebody come, go or die several times a second.

        On a slow machine it goes on until some members came or went after the first ones joined.
        """
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end or (
            len(self.done) < MEMBERS + 4 and now < end + SLOW_S
        ):
            turn_ends = now + TURN_S
            self._choice.choice(self._possible())()
            self.send()
            self.look()
            time.sleep(max(0.0, turn_ends - time.monotonic()))

    def _possible(self) -> Sequence[Any]:
        acts: list[Any] = [self.look]
        if len(self.members) < MEMBERS and self._idle:
            acts += [self._join, self._join]
        if len(self.members) > ALIVE_MIN:
            acts.append(self._leave)
            if self._deaths:
                acts += [self._abort, self._kill]
        return acts

    def _join(self) -> None:
        program = self._idle.pop(0)
        name = f"m{self._names}"
        self._names += 1
        program.ask(
            "consume",
            name=name,
            group=self._group,
            topic=self._topic,
            expression="*",
            mode="orderly" if self._ordered else "concurrent",
            pace_ms=PACE_MS,
        )
        self.members[name] = program
        self.done.append(f"{name} joined")

    def _gone(self) -> tuple[str, Program]:
        name = self._choice.choice(sorted(self.members))
        return name, self.members.pop(name)

    def _leave(self) -> None:
        name, program = self._gone()
        program.ask("stop", name=name)
        self._idle.append(program)
        self.done.append(f"{name} left")

    def _abort(self) -> None:
        name, program = self._gone()
        program.ask("abort", name=name)
        self._idle.append(program)
        self.done.append(f"{name} stopped at once")

    def _kill(self) -> None:
        name, program = self._gone()
        program.kill()
        self._idle.append(self._program())
        self.done.append(f"{name} was killed")

    def send(self) -> None:
        """Send some messages and note where each was stored."""
        bodies = [str(number) for number in range(self._sent, self._sent + SEND_COUNT)]
        self._sent += SEND_COUNT
        results = self._sender.ask(
            "send",
            group=f"{self._group}-p",
            topic=self._topic,
            style="async",
            messages=[{"body": body} for body in bodies],
        )
        for body, result in zip(bodies, results, strict=True):
            self.stored.append(Stored(str(result["queue"]), result["offset"], body))

    def owned(self) -> dict[str, list[str]]:
        """Member to the queues it says are its own."""
        return {name: program.ask("queues", name=name) for name, program in self.members.items()}

    def look(self) -> None:
        """Look for queues that two members have."""
        self.overlaps.look(self.owned(), time.monotonic())

    def seen(self) -> list[Seen]:
        """What all members that ever were have had in hand."""
        return [
            Seen(
                event["consumer"],
                str(event["queue"]),
                event["offset"],
                event["body"],
                event["now_ms"],
            )
            for program in self._programs
            for event in list(program.received)
        ]

    def close(self) -> None:
        """End all processes."""
        for program in self._programs:
            program.close()
