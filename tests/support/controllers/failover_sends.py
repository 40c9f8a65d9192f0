"""Sends of foreign clients to brokers whose master a controller elects, and times after kills.

A client sends one message after the other, with the settings of its library. A time counts from the
signal to the first acknowledgement of a send that began when the process had ended. Which broker
has stored a message is found by reading, because the results of some clients do not name it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from statistics import median
from typing import NamedTuple

import kit
from programs import Client, CommandError
from servers import connect

from support.controllers.elected_processes import ElectedBroker, ElectedCluster
from support.controllers.failover_load import TOPIC, read_all

LIMIT_S = 120.0
PAUSE_S = 0.01
"""Pause of the application after a send that has failed."""
MORE = 50
"""Messages that are acknowledged before and after each kill."""


class Attempt(NamedTuple):
    """One send of the application, with all retries of the client."""

    number: int
    began_s: float
    ended_s: float
    error: str
    """Empty if it was acknowledged."""


class Sends:
    """Sends one message after the other within ``with``.

    Args:
        client: sends them.
        attempts: where they are noted, behind those of clients before.
        options: of its producer, see `programs`.
    """

    def __init__(self, client: Client, attempts: list[Attempt], **options: object) -> None:
        self._client = client
        self._options = options
        self.attempts = attempts
        self._is_ending = threading.Event()
        self._grew = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sends", daemon=True)

    def __enter__(self) -> Sends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            number = len(self.attempts)
            began_s = time.monotonic()
            try:
                [result] = self._client.send(
                    TOPIC, [{"body": f"{number}"}], group="shop", defaults=True, **self._options
                )
                error = "" if result["status"] == "SEND_OK" else result["status"]
            except CommandError as problem:
                error = str(problem)
            with self._grew:
                self.attempts.append(Attempt(number, began_s, time.monotonic(), error))
                self._grew.notify_all()
            if error:
                time.sleep(PAUSE_S)

    def await_acknowledged(self, count: int) -> None:
        """Wait until so many sends that begin from now on are acknowledged."""
        first = len(self.attempts) + 1  # the one before has begun

        def is_over() -> bool:
            return sum(not each.error for each in self.attempts[first:]) >= count

        with self._grew:
            assert self._grew.wait_for(is_over, LIMIT_S), self.attempts[-3:]


class Kill(NamedTuple):
    """The kill of one master."""

    broker_name: str
    at_s: float
    """When the signal was sent."""
    ended_s: float
    """When the process had ended."""


def kill(cluster: ElectedCluster, sends: Sends, *, restarts: bool = False) -> Kill:
    """Kill the master; return when sends are acknowledged.

    Args:
        cluster: whose master.
        sends: go on.
        restarts: start the process again at once, as a supervisor of processes does.
    """
    sends.await_acknowledged(MORE)
    master = cluster.master()
    assert master is not None
    at_s = time.monotonic()
    master.kill()
    ended_s = time.monotonic()
    if restarts:
        master.start()
    sends.await_acknowledged(MORE)
    if restarts:
        cluster.await_master(other_than=master)
    return Kill(cluster.name, at_s, ended_s)


def await_sends_to(cluster: ElectedCluster, old: ElectedBroker) -> None:
    """Wait until the client sends to the new master of the name, too."""
    new = cluster.await_master(other_than=old)
    before = stored(new)
    kit.eventually(lambda: stored(new) >= before + MORE, timeout=LIMIT_S)


def stored(broker: ElectedBroker) -> int:
    """The messages of the topic at a broker."""
    with closing(connect(broker.address)) as connection:
        return sum(kit.max_offset(connection, TOPIC, queue) for queue in range(4))


class Times(NamedTuple):
    """Seconds from the signals of the kills."""

    elsewhere: list[float]
    """To the first acknowledgement by any broker."""
    same_name: list[float]
    """To the first acknowledgement by the new master of the same name; fewer if not awaited."""


class Outcome(NamedTuple):
    """What a run has found."""

    times: Times
    acknowledged: int
    failed: int
    slowest_s: float
    """The longest send, with all its retries."""
    lost: int
    twice: int

    def report(self, what: str) -> None:
        """Print it as one line."""
        shown = "  ".join(
            f"{name}: median={median(seconds):.2f} worst={max(seconds):.2f}"
            for name, seconds in self.times._asdict().items()
            if seconds
        )
        print(
            f"{what}: kills={len(self.times.elsewhere)}  {shown}  failed={self.failed}"
            f"  slowest={self.slowest_s:.2f}  acknowledged={self.acknowledged}"
            f"  lost={self.lost}  twice={self.twice}"
        )


def outcome_of(name_server: str, attempts: list[Attempt], kills: Iterable[Kill]) -> Outcome:
    """Read all messages, and compare them with the acknowledgements."""
    acknowledged = [each for each in attempts if not each.error]
    found = asyncio.run(read_all(name_server, len(acknowledged)))
    home = {int(message.body): message.broker_name for message in found}
    counts = Counter(int(message.body) for message in found)

    times = Times([], [])
    for name, at_s, ended_s in kills:
        after = [each for each in acknowledged if each.began_s >= ended_s]
        for seconds, ends_s in (
            (times.elsewhere, [each.ended_s for each in after]),
            (times.same_name, [each.ended_s for each in after if home.get(each.number) == name]),
        ):
            if ends_s:
                seconds.append(min(ends_s) - at_s)
    return Outcome(
        times,
        len(acknowledged),
        sum(bool(each.error) for each in attempts),
        max(each.ended_s - each.began_s for each in attempts),
        sum(each.number not in home for each in acknowledged),
        sum(counts.values()) - len(counts),
    )
