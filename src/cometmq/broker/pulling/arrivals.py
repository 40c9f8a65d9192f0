"""Notifies held pulls and scheduled delivery of messages that readers can see.

With asynchronous flush that is each message as soon as it is stored. With synchronous flush readers
see a message when it is on disk. So the held pulls of a queue with a new message are checked after
the next sync; a sync is requested if none is running. If readers wait for replicas, held pulls are
checked when the confirm offset moves.

Used in the event loop's thread; only `readable` is called by the threads that sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cometmq.broker.pulling.long_polling import HeldPull, HeldPulls
from cometmq.model.topic import DELAY_TOPIC, TIMER_TOPIC
from cometmq.store import GetStatus, MessageStore

log = logging.getLogger(__name__)

ANY_QUEUE = -1
"""Stands for all queues of a topic."""


class Arrivals:
    """Notifies held pulls and scheduled delivery of the messages of a store.

    Args:
        store: the store.
        held: the held pulls.
        scheduled: called with the number of a queue of the delay topic that got a message.
        timed: called when the timer topic got a message.
        request_sync: requests a sync of the log; for synchronous flush.
    """

    def __init__(
        self,
        store: MessageStore,
        held: HeldPulls,
        scheduled: Callable[[int], object],
        timed: Callable[[], object],
        request_sync: Callable[[], object],
    ) -> None:
        self._store = store
        self._held = held
        self._scheduled = scheduled
        self._timed = timed
        self._request_sync = request_sync
        self._unseen: dict[tuple[str, int], None] = {}
        """Queues with messages that readers may not have seen at the last sync."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unseen_topics: dict[str, int] = {}
        """Topics with messages of before they were awaited, and where the log ended then."""
        self.listeners: list[Callable[[str, int], object]] = []
        """Called with each queue in which readers see new messages, if its topic is awaited."""
        self.awaited = held.awaited
        """How many wait for messages of each topic; a topic with none is not in it."""
        for topic in (DELAY_TOPIC, TIMER_TOPIC):  # by the delivery of delayed messages
            held.awaited[topic] = 1
        store.notify_of_arrivals(self._arrived, held.awaited)
        if not store.shows_at_once:
            held.on_hold = self._check_when_readable
            store.notify_of_readable(self.readable)

    def _arrived(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_code: int,
        store_time_ms: int,
        properties: bytes,
    ) -> None:
        # The message is stored, even if this fails.
        try:
            if tags_code == 0 and self._store.holds_batches(topic):
                self._wait((topic, queue_id))  # a batch without tags may have messages with tags
            elif self._store.shows_at_once:
                self._held.arrived(
                    topic, queue_id, queue_offset, tags_code, store_time_ms, properties
                )
                if topic == DELAY_TOPIC:
                    self._scheduled(queue_id)
                elif topic == TIMER_TOPIC:
                    self._timed()
                for listener in self.listeners:
                    listener(topic, queue_id)
            elif (topic, queue_id) not in self._unseen:
                self._wait((topic, queue_id))
                if not self._store.shows_unsynced:
                    self._request_sync()
        except Exception:
            log.exception("cannot notify held pulls topic=%s queue=%d", topic, queue_id)

    def _check_when_readable(self, pull: HeldPull) -> None:
        """Check a pull after the next sync if messages are stored that it could not see."""
        if self._store.next_offset(pull.topic, pull.queue_id) > pull.offset:
            self._wait((pull.topic, pull.queue_id))

    def _wait(self, queue: tuple[str, int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._unseen[queue] = None
        if self._store.readable_to >= self._store.written_to:  # a sync has ended since
            self._loop.call_soon(self._notify)

    def notify_when_readable(self, topic: str) -> None:
        """Call the listeners when readers see all that is stored, for a topic awaited since now."""
        if not self._store.shows_at_once and self._store.readable_to < self._store.written_to:
            self._unseen_topics[topic] = self._store.written_to
            self._wait((topic, ANY_QUEUE))

    def readable(self) -> None:
        """Check held pulls when readers may see more of the log; from any thread."""
        if self._unseen and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._notify)
            except RuntimeError:  # the loop is closed: the broker has stopped
                return

    def _notify(self) -> None:
        """Notify held pulls and scheduled delivery of messages that readers see now."""
        queues, self._unseen = self._unseen, {}
        # Read before the queues: what a reader does not see then, no sync will show. A broker that
        # fails between a queue and the log has such an entry, and would look for it for ever.
        is_all_readable = self._store.readable_to >= self._store.written_to
        for topic, queue_id in queues:
            try:
                if queue_id == ANY_QUEUE and not self._is_seen(topic):
                    self._wait((topic, queue_id))
                    continue
                if (
                    not is_all_readable
                    and self._store.next_offset(topic, queue_id)
                    > self._store.bounds(topic, queue_id)[1]
                ):
                    self._wait((topic, queue_id))  # more messages, which readers do not see yet
                if topic == DELAY_TOPIC:
                    self._scheduled(queue_id)
                elif topic == TIMER_TOPIC:
                    self._timed()
                self._held.check(topic, queue_id, self._finds)
                for listener in self.listeners:
                    listener(topic, queue_id)
            except Exception:
                log.exception("cannot notify held pulls topic=%s queue=%d", topic, queue_id)
        self._held.work_now()  # before the responses to the senders, in one write with them

    def _is_seen(self, topic: str) -> bool:
        store = self._store
        # The log of a broker that has lost its role may be truncated below what it waited for.
        if store.readable_to < min(self._unseen_topics.get(topic, 0), store.written_to):
            return False
        self._unseen_topics.pop(topic, None)
        return True

    def _finds(self, pull: HeldPull) -> bool | None:
        """Whether a held pull would find a message; reads each message once.

        Returns:
            None if there are more messages to read.
        """
        if pull.matcher is None:
            low, high = self._store.bounds(pull.topic, pull.queue_id)
            return low <= pull.seen_to < high
        found = self._store.get(pull.topic, pull.queue_id, pull.seen_to, 1, pull.matcher, 0)
        if found.status is not GetStatus.NO_MATCHED_MESSAGE:
            return found.status is GetStatus.FOUND
        if found.next_begin_offset == pull.seen_to:  # the record has to be read from the disk first
            return True
        pull.seen_to = found.next_begin_offset
        return False if pull.seen_to >= found.max_offset else None
