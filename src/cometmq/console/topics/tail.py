"""The live tail of a topic: its newest messages that a filter selects, as they are stored.

A step asks each broker of the topic for the ends of its queues, and pulls from those that have new
messages. What arrives faster than a viewer could read is left out, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec

from cometmq.client import Filter, MessageQueue, PullResult, StoredMessage
from cometmq.console.live import Live, Viewers
from cometmq.console.pages import Name, Page, Query
from cometmq.console.reads import Reads
from cometmq.console.topics.page import route_of
from cometmq.model.errors import CometError, ConfigError
from cometmq.protocol.bodies.topic import TopicOffset
from cometmq.protocol.lazy_record import body_or_stored

EVENTS = "/topics/tail/events"
STEP_S = 1.0
SHOWN = 50
"""Messages that a viewer has."""
FIRST = 10
"""Messages of a queue that a tail begins with."""
QUEUES_MAX = 16
"""Queues of a step. If more have new messages, the ones with the oldest messages are left out."""
PULLED_MAX = 32
"""Messages of a queue and a step."""
SCANNED_MAX = 1_000
"""Offsets of a queue that a step with a filter looks at."""
ROUTE_STEPS, QUIET_STEPS = 30, 20
"""Steps after which the route is read again, and quiet steps after which a viewer gets an event."""
QUEUES_OF_STEP = 500
"""A topic with more queues is asked less often: a response has the ends of all of them."""
VIEWERS_MAX = 16
TEXT_CHARS = 200
FILTER_CHARS_MAX = 2_000


class TailQuery(Query):
    """Which topic, and which of its messages."""

    topic: Name
    by: Literal["tag", "sql"] = "tag"
    filter: Annotated[
        str,
        msgspec.Meta(
            max_length=FILTER_CHARS_MAX,
            description="Tags with || in between, or an SQL92 expression over properties.",
        ),
    ] = ""


class TailRow(msgspec.Struct):
    """A message, with the beginning of its body."""

    broker: str
    queue: int
    offset: int
    stored_time_ms: int
    tag: str | None
    keys: list[str]
    body_bytes: int
    text: str


class Tail(msgspec.Struct):
    """The newest messages of a topic."""

    topic: str
    messages: list[TailRow]
    """The newest first."""
    left_out: int = 0
    """Messages that came too fast, and were not looked at."""
    errors: list[str] = msgspec.field(default_factory=list)


class Follower:
    """Follows a topic.

    Args:
        reads: requests to the cluster.
        query: the topic and the filter.

    Raises:
        ConfigError: the filter is wrong.
    """

    def __init__(self, reads: Reads, query: TailQuery) -> None:
        self._reads, self._topic = reads, query.topic
        self._filter = filter_of(query)
        self._window = PULLED_MAX if self._filter == Filter.tags() else SCANNED_MAX
        self._next: dict[MessageQueue, int] = {}
        self._masters: list[str] = []
        self._steps = 0
        self._rows: deque[TailRow] = deque(maxlen=SHOWN)
        self._left_out = 0
        self._errors: list[str] = []

    @property
    def pause_s(self) -> float:
        """Seconds until the next step."""
        return STEP_S * max(len(self._next) / QUEUES_OF_STEP, 1.0)

    @property
    def tail(self) -> Tail:
        """The newest messages until now."""
        return Tail(self._topic, list(self._rows), self._left_out, list(self._errors))

    async def step(self) -> bool:
        """Look for new messages; return whether the tail has changed.

        Raises:
            NotFoundError: there is no such topic.
            CometError: no name server responded.
        """
        before = (self._left_out, self._errors)
        self._errors = []
        queues = await self._queues()
        for queue, each in queues.items():
            begin = each.min_offset if self._steps > 1 else each.max_offset - FIRST
            known = self._next.get(queue, max(begin, each.min_offset))
            is_anew = known > each.max_offset  # the topic was deleted, and created again
            self._next[queue] = each.min_offset if is_anew else known
        new = [queue for queue, each in queues.items() if each.max_offset > self._next[queue]]
        new.sort(key=lambda queue: queues[queue].last_update_timestamp, reverse=True)
        for place, queue in enumerate(new):
            end = queues[queue].max_offset
            begin = max(self._next[queue], end - self._window if place < QUEUES_MAX else end)
            if self._steps > 1:
                self._left_out += begin - self._next[queue]
            self._next[queue] = begin
        pulled = new[:QUEUES_MAX]
        found: list[StoredMessage] = []
        refused: dict[str, CometError] = {}
        for queue, result in zip(pulled, await self._reads.each(pulled, self._pull), strict=True):
            if isinstance(result, CometError):
                refused.setdefault(queue.broker_name, result)
            else:
                self._next[queue] = max(result.next_offset, self._next[queue])
                found += result.messages
        self._errors += [f"messages of {name}: {error}" for name, error in refused.items()]
        found.sort(key=lambda message: message.store_time_ms)
        self._rows.extendleft(map(_row, found))
        return bool(found) or (self._left_out, self._errors) != before

    async def _queues(self) -> dict[MessageQueue, TopicOffset]:
        """Return the bounds of all queues."""
        if self._steps % ROUTE_STEPS == 0:
            self._masters = (await route_of(self._reads, self._topic)).masters()
        self._steps += 1
        if not self._masters:
            self._errors.append("the topic has no master now, so nothing new can be stored")

        async def bounds_at(address: str) -> dict[MessageQueue, TopicOffset]:
            stats = await self._reads.admin.broker_topic_stats(address, self._topic)
            return stats.offset_table

        queues: dict[MessageQueue, TopicOffset] = {}
        found = await self._reads.each(self._masters, bounds_at)
        for address, each in zip(self._masters, found, strict=True):
            if isinstance(each, CometError):
                self._errors.append(f"queues at {address}: {each}")
            else:
                queues |= each
        return await self._reads.admin.logical_topic_stats(self._topic, queues) or queues

    async def _pull(self, queue: MessageQueue) -> PullResult:
        return await self._reads.admin.pull(
            queue, self._next[queue], filter=self._filter, count=PULLED_MAX
        )


def filter_of(query: TailQuery) -> Filter:
    """Return the filter of a query.

    Raises:
        ConfigError: it is wrong.
    """
    if query.by == "sql" and not query.filter:
        raise ConfigError("filter is missing: expected an SQL92 expression, such as amount > 100")
    return Filter.sql(query.filter) if query.by == "sql" else Filter.tags(query.filter or "*")


def _row(message: StoredMessage) -> TailRow:
    body = body_or_stored(message)
    return TailRow(
        *(message.broker_name, message.queue_id, int(message.queue_offset)),
        stored_time_ms=message.store_time_ms,
        tag=message.tags,
        keys=message.keys,
        body_bytes=len(body),
        text=body[: 4 * TEXT_CHARS].decode(errors="replace")[:TEXT_CHARS],
    )


async def tail(reads: Reads, query: TailQuery) -> Tail:
    """Return the newest messages of a topic."""
    follower = Follower(reads, query)
    await follower.step()
    return follower.tail


def live() -> tuple[Live, ...]:
    """Return the live part of the page."""
    viewers = Viewers(VIEWERS_MAX)

    @contextlib.asynccontextmanager
    async def events(reads: Reads, query: TailQuery) -> AsyncIterator[AsyncIterator[Tail]]:
        with viewers.one():
            yield _followed(Follower(reads, query))

    return (Live(EVENTS, "topics/tail_messages.html", TailQuery, events),)


async def _followed(follower: Follower) -> AsyncIterator[Tail]:
    """Yield the tail each time that it has changed, and now and then while it has not."""
    quiet = QUIET_STEPS
    while True:
        is_changed = await follower.step()
        quiet = 0 if is_changed else quiet + 1
        if is_changed or quiet >= QUIET_STEPS:
            yield follower.tail
            quiet = 0
        await asyncio.sleep(follower.pause_s)


PAGE = Page("/topics/tail", "Tail of a topic", "topics/tail.html", TailQuery, Tail, tail)
