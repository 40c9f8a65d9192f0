"""Reads the messages of a topic page by page, in the order in which they were stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client.admin.messages import Queries
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms, now_ms
from cometmq.protocol.lazy_record import body_or_stored

PAGE_MAX = 1_000
"""The most messages of one page."""
PAGE_BYTES = 16 * 1024 * 1024
"""Bytes of bodies after which a page ends."""
QUEUES_MAX = 256
"""The most queues that a page is read from."""
PULL_MESSAGES = 32
PULLED_MAX = 512
"""Messages that the first pulls of all queues return together."""
CALLS_MAX = 8
"""Queues whose ranges are requested at the same time."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of one topic, in the order of their store time.

    Example:
        page: MessagePage = await admin.messages_by_time("orders", limit=10)
        while page.messages:
            print(len(page.messages))
            page = await admin.messages_by_time("orders", limit=10, ranges=page.rest)
    """

    messages: list[StoredMessage]
    """The messages; none at the end."""
    rest: dict[MessageQueue, range]
    """The offsets that were not read yet, for the next page; a queue without any is not in it."""
    deleted: int = 0
    """Offsets that the brokers deleted while they were to be read."""


class MessagePages(Queries):
    """Calls that read messages of a topic in order."""

    async def messages_by_time(
        self,
        topic: str,
        *,
        since: datetime | int = 0,
        until: datetime | int = 2**63 - 1,
        limit: int = 100,
        queues: Iterable[MessageQueue] | None = None,
        ranges: Mapping[MessageQueue, range] | None = None,
    ) -> MessagePage:
        """Return a page of the messages that a topic has, the oldest first.

        No offset is committed.

        Args:
            topic: the topic.
            since, until: range of the store time, without ``until``; each a `datetime` with a time
                zone, or ms since 1970.
            limit: the most messages of the page, at most 1,000. A page is shorter if the bodies
                have more than 16 MiB.
            queues: only messages of these queues; None for all that can be read.
            ranges: the offsets to read in each queue: `MessagePage.rest` of the page before, or
                ranges of your own. None for all that the brokers have now. Messages that are
                stored later are not in any page.

        Raises:
            TopicNotFoundError: no broker has the topic.
            ConfigError: the limit is out of range, or there are more than 256 queues.
        """
        check_page(topic, limit, ranges)
        begin_ms, end_ms = epoch_ms(since, "since"), epoch_ms(until, "until")
        if ranges is None:
            chosen = (await self._route(topic)).read_queues if queues is None else list(queues)
            if len(chosen) > QUEUES_MAX:
                raise ConfigError(
                    f"{topic} has {len(chosen)} queues: expected {QUEUES_MAX} at most; name some of"
                    " them"
                )
            ranges = await self._ranges(chosen, begin_ms, end_ms)
        return await self._page(_Merge(dict(ranges), begin_ms, end_ms), limit)

    async def _ranges(
        self, queues: Iterable[MessageQueue], begin_ms: int, end_ms: int
    ) -> dict[MessageQueue, range]:
        """Return the offsets of queues that may be in a range of time."""
        slots = asyncio.Semaphore(CALLS_MAX)
        is_past = end_ms <= now_ms()

        async def offsets_of(queue: MessageQueue) -> range:
            async with slots:
                low, high = await self._offsets.bounds(queue)
                if begin_ms > 0 and high > low:
                    # Brokers of 4.9 return the message nearest to a time: of the millisecond
                    # before, this is never after the first one of the range.
                    low = max(low, await self._offsets.at_time(queue, begin_ms - 1))
                if is_past and high > low:
                    high = min(high, QueueOffset(await self._offsets.at_time(queue, end_ms) + 1))
                return range(low, high)

        chosen = list(queues)
        found = await asyncio.gather(*map(offsets_of, chosen))
        return {queue: offsets for queue, offsets in zip(chosen, found, strict=True) if offsets}

    async def _page(self, merge: _Merge, limit: int) -> MessagePage:
        messages: list[StoredMessage] = []
        size = 0
        count = max(PULLED_MAX // max(len(merge.rest), 1), 1)
        while len(messages) < limit and size < PAGE_BYTES:
            while (queue := merge.wanting) is not None:
                offsets = merge.rest[queue]
                most = min(PULL_MESSAGES, count, len(offsets))
                merge.add(queue, await self.pull(queue, offsets.start, count=most))
            message = merge.take()
            if message is None:
                break
            messages.append(message)
            size += len(body_or_stored(message))
        return MessagePage(messages, merge.rest, merge.deleted)


def check_page(topic: str, limit: int, ranges: Mapping[MessageQueue, range] | None) -> None:
    """Check the arguments of a page.

    Raises:
        ConfigError: the limit is out of range, or the ranges are none of the topic.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ConfigError(f"limit={limit}: expected 1 to {PAGE_MAX}")
    for queue, offsets in (ranges or {}).items():
        if queue.topic != topic or not isinstance(offsets, range) or offsets.step != 1:
            raise ConfigError(
                f"ranges has {offsets} of {queue}: expected offsets of {topic}, from the rest of a"
                " page"
            )


@dataclass(slots=True)
class _Merge:
    """Puts the messages of several queues in the order of their store time.

    It holds what one pull of each queue returned.
    """

    rest: dict[MessageQueue, range]
    """Offsets that were not read yet; a queue without any is removed."""
    begin_ms: int
    end_ms: int
    """Messages that were not stored from ``begin_ms`` until before ``end_ms`` are passed over."""
    deleted: int = 0
    _fetched: dict[MessageQueue, list[StoredMessage]] = field(default_factory=dict)
    """Messages of the last pull, the next one last."""

    @property
    def wanting(self) -> MessageQueue | None:
        """A queue that must be pulled before the oldest message is known."""
        return next((queue for queue in self.rest if not self._fetched.get(queue)), None)

    def add(self, queue: MessageQueue, result: PullResult) -> None:
        """Take the result of a pull; a queue whose range is read ends."""
        offsets = self.rest[queue]
        if result.status is PullStatus.OFFSET_ILLEGAL and result.next_offset > offsets.start:
            self.deleted += min(result.next_offset, offsets.stop) - offsets.start
        elif result.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL):
            del self.rest[queue]
            return
        wanted = [
            message
            for message in result.messages
            if message.queue_offset in offsets and message.store_time_ms >= self.begin_ms
        ]
        ended = [message for message in wanted if message.store_time_ms >= self.end_ms]
        if ended:  # a queue is in the order of store times
            self._end(queue, ended[0].queue_offset)
            wanted = wanted[: wanted.index(ended[0])]
        self._fetched[queue] = wanted[::-1]
        if not wanted:
            self._advance(queue, max(result.next_offset, offsets.start + 1))

    def take(self) -> StoredMessage | None:
        """Return the oldest message; None at the end."""
        if not self.rest:
            return None
        queue = min(self.rest, key=lambda each: (self._fetched[each][-1].store_time_ms, each))
        message = self._fetched[queue].pop()
        self._advance(queue, message.queue_offset + 1)
        return message

    def _advance(self, queue: MessageQueue, offset: int) -> None:
        if queue in self.rest:
            self._keep(queue, range(offset, self.rest[queue].stop))

    def _end(self, queue: MessageQueue, offset: int) -> None:
        self._keep(queue, range(self.rest[queue].start, offset))

    def _keep(self, queue: MessageQueue, offsets: range) -> None:
        if offsets:
            self.rest[queue] = offsets
        else:
            self.rest.pop(queue, None)
