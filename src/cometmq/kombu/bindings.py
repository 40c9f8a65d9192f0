"""The queues and bindings that all processes see.

They are a log in a topic: each process reads it to its end, and the newest record of a key counts.
Each process writes the records that it has declared again after half a day, since brokers remove
messages after three days by default.

    record := {"at": ms, "key": [...], "value": ... or null}
    key    := ["queue", name]                              value: the highest priority
            | ["bind", exchange, queue, routing key]       value: the exchange's type
            | ["short", exchange]                          value: the exchange's type

"short" means that a queue that lives only as long as its process is bound to the exchange, and
reads the topic of the exchange.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

Key = tuple[str, ...]
AGAIN_MS = 12 * 3_600_000
"""Age at which a record is written again."""
RECORDS_MAX = 100_000


def matches(kind: str, binding_key: str, routing_key: str) -> bool:
    """Return whether a binding to an exchange of this type takes a message.

    In a topic exchange ``*`` stands for one word, and ``#`` for any number of words.
    """
    if kind == "fanout":
        return True
    if kind != "topic":
        return binding_key == routing_key
    return _pattern(binding_key).fullmatch(f"{routing_key}.") is not None


@lru_cache(maxsize=1000)
def _pattern(binding_key: str) -> re.Pattern[str]:
    wild = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    words = re.sub(r"(?:#\.)+#", "#", binding_key).split(".")  # two in a row mean the same as one
    return re.compile("".join(wild.get(word, re.escape(f"{word}.")) for word in words))


@dataclass
class Route:
    """Where a message that is published to an exchange goes."""

    queues: set[str] = field(default_factory=set)
    """Queues with a topic of their own."""
    short: bool = False
    """Whether other queues may take it from the topic of the exchange."""

    def __bool__(self) -> bool:
        return self.short or bool(self.queues)


class Bindings:
    """The table, and which of its records this process has declared.

    Args:
        write: stores a record.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        self._write = write
        self._records: dict[Key, tuple[int, Any]] = {}
        self._exchanges: dict[str, dict[Key, str]] = {}
        self._declared: dict[Key, Any] = {}

    def read(self, bodies: Iterable[bytes]) -> None:
        """Apply records of the log; one that is older than the known one changes nothing."""
        for body in bodies:
            try:
                record = json.loads(body)
                key, at, value = tuple(record["key"]), int(record["at"]), record["value"]
            except (ValueError, TypeError, KeyError):
                continue  # not written by this module
            self._apply(key, at, value)

    def _apply(self, key: Key, at: int, value: Any) -> None:
        known = self._records.get(key)
        if known is not None and known[0] > at:
            return
        if known is None and len(self._records) >= RECORDS_MAX:
            return
        self._records[key] = (at, value)
        if key[0] == "queue":
            return
        of_exchange = self._exchanges.setdefault(key[1], {})
        if value is None:
            of_exchange.pop(key, None)
        else:
            of_exchange[key] = str(value)

    async def declare(self, key: Key, value: Any) -> None:
        """Set a record, unless it is there and young; None removes it."""
        if value is None:
            self._declared.pop(key, None)
        else:
            self._declared[key] = value
        at, known = self._records.get(key, (0, None))
        now = int(time.time() * 1000)
        if known == value and (value is None or now - at < AGAIN_MS):
            return
        now = max(now, at + 1)  # newer than the known one, although the clocks differ
        await self._write(json.dumps({"at": now, "key": key, "value": value}).encode())
        self._apply(key, now, value)

    async def renew(self) -> None:
        """Write those records of this process again that are old."""
        for key, value in list(self._declared.items()):
            await self.declare(key, value)

    async def forget_queue(self, name: str) -> None:
        """Remove a queue and its bindings."""
        for key, (_, value) in list(self._records.items()):
            is_binding = key[0] == "bind" and key[2] == name
            if value is not None and (key == ("queue", name) or is_binding):
                await self.declare(key, None)

    def priority_max(self, queue: str) -> int | None:
        """Return the highest priority of a queue; None if the queue is not known."""
        found = self._records.get(("queue", queue), (0, None))[1]
        return None if found is None else int(found)

    def type_of(self, exchange: str) -> str | None:
        """Return the type of an exchange; None if it has no binding."""
        return next(iter(self._exchanges.get(exchange, {}).values()), None)

    def route(self, exchange: str, routing_key: str) -> Route:
        """Return where a message goes."""
        route = Route()
        for key, kind in self._exchanges.get(exchange, {}).items():
            if key[0] == "short":
                route.short = True
            elif matches(kind, key[3], routing_key):
                route.queues.add(key[2])
        return route

    def of_exchange(self, exchange: str) -> list[tuple[str, str]]:
        """Return the routing key and the queue of each binding to an exchange."""
        found = self._exchanges.get(exchange, {})
        return [(key[3], key[2]) for key in found if key[0] == "bind"]
