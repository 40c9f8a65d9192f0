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

import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cometmq.kombu.messages import MalformedMessageError, decode_json

log = logging.getLogger(__name__)

Key = tuple[str, ...]
PRIORITY_MAX = 9
TYPES = frozenset({"direct", "topic", "fanout"})
_LENGTHS = {"queue": 2, "bind": 4, "short": 2}
AGAIN_MS = 12 * 3_600_000
"""Age at which a record is written again."""
RECORDS_MAX = 100_000
"""Queues and bindings of others that a process knows; removed ones that it remembers."""
NAME_MAX = 512
"""Characters of a name or a routing key; RabbitMQ has 255 bytes."""
ROUTES_MAX = 10_000
"""Routing keys whose routes are kept until a binding changes."""
_AT_MAX = 2**53


def matches(kind: str, binding_key: str, routing_key: str) -> bool:
    """Return whether a binding to an exchange of this type takes a message.

    In a topic exchange ``*`` stands for one word, and ``#`` for any number of words.
    """
    if kind == "fanout":
        return True
    if kind != "topic":
        return binding_key == routing_key
    return _words_match(binding_key.split("."), routing_key.split("."))


def _words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Compare words. Only the last ``#`` may take more of them, so the time is bounded."""
    at = word = begin = 0
    many = -1
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            many, begin = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[word]):
            at += 1
            word += 1
        elif many >= 0:
            begin += 1
            at, word = many + 1, begin
        else:
            return False
    return all(each == "#" for each in pattern[at:])


def _checked(key: Sequence[Any], value: Any) -> Key:
    """Return the key of a record.

    Raises:
        MalformedMessageError: the record is none of those above.
    """
    is_text = all(isinstance(each, str) and len(each) <= NAME_MAX for each in key)
    if not key or not is_text or _LENGTHS.get(key[0]) != len(key):
        raise MalformedMessageError(
            f"{str(key)[:200]}: expected a queue or a binding, each name at most {NAME_MAX} long"
        )
    if key[0] == "queue":
        is_known = type(value) is int and 0 <= value <= PRIORITY_MAX
    else:
        is_known = isinstance(value, str) and value in TYPES
    if value is not None and not is_known:
        raise MalformedMessageError(f"{str(key)[:200]}: unknown value {str(value)[:40]}")
    return tuple(key)


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
        self._declared: dict[Key, Any] = {}
        self._is_full = False
        self.clear()

    def clear(self) -> None:
        """Forget what was read, but not what this process has declared."""
        self._records: dict[Key, tuple[int, Any]] = {}
        self._removed: dict[Key, int] = {}
        self._exchanges: dict[str, dict[Key, str]] = {}
        self._of_queues: defaultdict[str, set[Key]] = defaultdict(set)
        self._routes: dict[tuple[str, str], Route] = {}

    def read(self, bodies: Iterable[bytes]) -> None:
        """Apply records of the log; one that is older than the known one changes nothing."""
        for body in bodies:
            try:
                record = decode_json(body)
                key, at = _checked(record["key"], record["value"]), record["at"]
                if type(at) is not int or not 0 <= at <= _AT_MAX:
                    raise MalformedMessageError(f"at={str(at)[:40]}: expected ms since 1970")
            except (MalformedMessageError, TypeError, KeyError) as error:
                log.debug("a record of the bindings is skipped: %s", error)
                continue
            if key in self._records or len(self._records) < RECORDS_MAX:
                self._apply(key, at, record["value"])
            elif not self._is_full:
                self._is_full = True
                log.error("more than %d queues and bindings: %s is skipped", RECORDS_MAX, key)

    def _known(self, key: Key) -> tuple[int, Any]:
        return self._records.get(key) or (self._removed.get(key, 0), None)

    def _apply(self, key: Key, at: int, value: Any) -> None:
        known_at, known = self._known(key)
        if key[0] == "queue" and known is not None and value is not None:
            # The topics of higher priorities may have messages.
            at, value = max(at, known_at), max(value, known)
        elif known_at > at:
            return
        self._removed.pop(key, None)
        if value is None:
            self._records.pop(key, None)
            self._removed[key] = at
            if len(self._removed) > RECORDS_MAX:
                del self._removed[next(iter(self._removed))]
        else:
            self._records[key] = (at, value)
        if key[0] == "queue":
            return
        self._routes.clear()
        of_exchange = self._exchanges.setdefault(key[1], {})
        of_queue = self._of_queues[key[2]] if key[0] == "bind" else set()
        if value is not None:
            of_exchange[key] = value
            of_queue.add(key)
            return
        of_exchange.pop(key, None)
        of_queue.discard(key)
        if not of_exchange:
            del self._exchanges[key[1]]
        if key[0] == "bind" and not of_queue:
            del self._of_queues[key[2]]

    async def declare(self, key: Key, value: Any, *, young_ms: int = AGAIN_MS) -> None:
        """Set a record, unless it is there and young; None removes it.

        A queue keeps the highest of its priorities until it is removed.

        Raises:
            MalformedMessageError: a name is too long.
        """
        _checked(key, value)
        at, known = self._known(key)
        if value is None:
            self._declared.pop(key, None)
        else:
            if key[0] == "queue" and known is not None:
                value = max(value, known)
            self._declared[key] = value
        now = int(time.time() * 1000)
        if known == value and (value is None or abs(now - at) < young_ms):
            return
        now = min(max(now, at + 1), _AT_MAX)  # newer than the known one, although the clocks differ
        await self._write(msgspec.json.encode({"at": now, "key": key, "value": value}))
        self._apply(key, now, value)

    async def renew(self, young_ms: int = AGAIN_MS) -> None:
        """Write those records of this process again that are old."""
        for key, value in list(self._declared.items()):
            await self.declare(key, value, young_ms=young_ms)

    async def forget_queue(self, name: str) -> None:
        """Remove a queue and its bindings."""
        for key in (*self._of_queues.get(name, ()), ("queue", name)):
            await self.declare(key, None)

    def priority_max(self, queue: str) -> int | None:
        """Return the highest priority of a queue; None if the queue is not known."""
        found: int | None = self._known(("queue", queue))[1]
        return found

    def type_of(self, exchange: str) -> str | None:
        """Return the type of an exchange; None if it has no binding."""
        return next(iter(self._exchanges.get(exchange, {}).values()), None)

    def route(self, exchange: str, routing_key: str) -> Route:
        """Return where a message goes."""
        route = self._routes.get((exchange, routing_key))
        if route is None:
            route = Route()
            for key, kind in self._exchanges.get(exchange, {}).items():
                if key[0] == "short":
                    route.short = True
                elif matches(kind, key[3], routing_key):
                    route.queues.add(key[2])
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[exchange, routing_key] = route
        return route

    def of_exchange(self, exchange: str) -> list[tuple[str, str]]:
        """Return the routing key and the queue of each binding to an exchange."""
        found = self._exchanges.get(exchange, {})
        return [(key[3], key[2]) for key in found if key[0] == "bind"]
