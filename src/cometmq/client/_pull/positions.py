"""Which messages an application has in hand, and the offsets of each of its queues.

    committed ≤ finished ≤ handed out       of each queue, each the offset to go on at

A reader is the task or thread that asks for messages. It finishes a message by asking for the next
one, so that what is committed was processed to its end. Several readers may hold messages of one
queue: everything before the lowest message in hand is finished. It is counted when it is needed,
not for each message, so that many readers cost no more than one. This module only counts.

Source: AssignedMessageQueue of RocketMQ 5.3 moves the consumed offset before the application has
seen the messages; this module does not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from cometmq.client._consuming.fetcher import Batch
from cometmq.client.errors import NotAssignedError
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What hooks know of messages that were handed out, and when that was."""

    context: DeliveryContext
    begun_s: float


class Deliveries:
    """Calls the hooks of one consumer; what they raise is logged and changes nothing."""

    def __init__(
        self,
        hooks: Sequence[ConsumeHook | FilterHook],
        *,
        group: str,
        client_id: str,
        namespace: str,
    ) -> None:
        self._consume = [hook for hook in hooks if isinstance(hook, ConsumeHook)]
        self._group = group
        self._client_id = client_id
        self._namespace = namespace

    def begin(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> Delivery | None:
        """These messages are handed out; None if no hook has to know."""
        if not self._consume:
            return None
        context = DeliveryContext(
            group=self._group,
            client_id=self._client_id,
            queue=queue,
            messages=messages,
            ordered=True,
            namespace=self._namespace,
        )
        delivery = Delivery(context, time.monotonic())
        for hook in self._consume:
            self._call(hook.before, context)
        return delivery

    def end(self, delivery: Delivery | None, end: ConsumeEnd = ConsumeEnd.SUCCESS) -> None:
        """What was handed out is finished, or ended otherwise."""
        if delivery is None:
            return
        context = delivery.context
        context.cost_ms = (time.monotonic() - delivery.begun_s) * 1000
        context.end = end
        for hook in self._consume:
            self._call(hook.after, context)

    def _call(self, method: object, context: DeliveryContext) -> None:
        try:
            method(context)  # type: ignore[operator]
        except Exception:
            log.exception("a hook failed group=%s", self._group)


Offsets = dict[MessageQueue, QueueOffset]


@dataclass(slots=True)
class Hand:
    """What one reader received last and has not finished."""

    batch: Batch
    before: QueueOffset | None
    """What was handed out of the queue before."""
    delivery: Delivery | None = None
    dropped: bool = False
    """Whether its queue was moved or given up meanwhile: it no longer counts."""
    begun_s: float = field(default_factory=time.monotonic)
    """When it was handed out."""
    reported: bool = False
    """Whether the log says that it is not finished for long."""

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages, in order."""
        return self.batch.messages


class Positions:
    """The offsets of one consumer, and what its readers have in hand.

    Args:
        lowest_waiting: gives the lowest offset of a queue's messages that wait to be handed out.
    """

    def __init__(self, lowest_waiting: Callable[[MessageQueue], int | None]) -> None:
        self.hands: dict[Reader, Hand] = {}
        """What each reader has in hand."""
        self._lowest_waiting = lowest_waiting
        self._handed_out: Offsets = {}
        self._finished: Offsets = {}
        self._uncounted: set[MessageQueue] = set()
        """Queues of which something was finished since `count_finished`."""
        self._committed: Offsets = {}

    def hand_out(self, reader: Reader, batch: Batch) -> Hand:
        """Give messages to a reader, which has finished what it had before."""
        before = self._hand_on(batch)
        hand = self.hands[reader] = Hand(batch, before)
        return hand

    def pass_over(self, batch: Batch) -> None:
        """Count a batch without messages as handed out and finished."""
        self._hand_on(batch)
        self._uncounted.add(batch.queue)

    def _hand_on(self, batch: Batch) -> QueueOffset | None:
        before = self._handed_out.get(batch.queue)
        if before is None or before < batch.next_offset:
            self._handed_out[batch.queue] = batch.next_offset
        return before

    def finish(self, reader: Reader) -> Hand | None:
        """Count what a reader has in hand as finished; gives what that was."""
        hand = self.hands.pop(reader, None)
        if hand is not None and not hand.dropped:
            self._uncounted.add(hand.batch.queue)
        return hand

    def take_back(self, reader: Reader) -> Hand | None:
        """Take from a reader what it has in hand and has not finished; gives what that was."""
        hand = self.hands.pop(reader, None)
        if hand is None or hand.dropped:
            return hand
        queue = hand.batch.queue
        if self._handed_out.get(queue) == hand.batch.next_offset:
            self._handed_out.pop(queue)
            if hand.before is not None:
                self._handed_out[queue] = hand.before
        return hand

    def move(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Go on in a queue elsewhere: that is its place from now on, to be committed, too."""
        self.drop(queue)
        self._handed_out[queue] = self._finished[queue] = offset

    def drop(self, queue: MessageQueue) -> None:
        """Forget a queue, and what readers have in hand of it."""
        for places in (self._handed_out, self._finished, self._committed):
            places.pop(queue, None)
        self._uncounted.discard(queue)
        for hand in self.hands.values():
            hand.dropped = hand.dropped or hand.batch.queue == queue

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind what was handed out last of a queue."""
        return self._handed_out.get(queue)

    def fetch_from(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset of the first message that was not handed out, or was taken back."""
        self.count_finished()  # while what was taken back still waits
        place, waiting = self._handed_out.get(queue), self._lowest_waiting(queue)
        return place if place is None or waiting is None else QueueOffset(min(place, waiting))

    def finished(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind what is finished of a queue."""
        self.count_finished()
        return self._finished.get(queue)

    def due(self, queues: Iterable[MessageQueue] | None = None) -> Offsets:
        """Give what is finished and not committed, of these queues or of all."""
        self.count_finished()
        chosen = self._finished if queues is None else queues
        return {
            queue: self._finished[queue]
            for queue in chosen
            if queue in self._finished and self._committed.get(queue) != self._finished[queue]
        }

    def committed(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note that this offset was committed."""
        self.count_finished()
        if queue in self._finished:
            self._committed[queue] = offset

    def declare(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Take this offset for what is finished of a queue, whatever was handed out."""
        self._uncounted.discard(queue)
        self._finished[queue] = offset

    def count_finished(self) -> None:
        """Count how far the queues are finished of which a reader has finished something.

        What waits must still wait: call this before fetching ends.
        """
        if not self._uncounted:
            return
        lowest: dict[MessageQueue, int] = {}
        for hand in self.hands.values():
            queue = hand.batch.queue
            if not hand.dropped and queue in self._uncounted:
                lowest[queue] = min(hand.batch.begins, lowest.get(queue, hand.batch.begins))
        for queue in self._uncounted:
            place = self._handed_out.get(queue)
            if place is not None:
                waiting = self._lowest_waiting(queue)
                unfinished = [each for each in (lowest.get(queue), waiting) if each is not None]
                self._finished[queue] = QueueOffset(min([place, *unfinished]))
        self._uncounted.clear()


def check_assigned(queue: MessageQueue, assigned: Iterable[MessageQueue]) -> None:
    """Refuse what concerns a queue that is not the consumer's.

    Raises:
        NotAssignedError: it is not.
    """
    if queue not in assigned:
        raise NotAssignedError(f"{queue} is not assigned to this consumer")


T = TypeVar("T")

Reader = asyncio.Task[Any] | threading.Thread
"""A task, or the thread for which the blocking client calls."""

_thread: ContextVar[threading.Thread | None] = ContextVar("reading thread", default=None)


class ReaderState(Enum):
    """Whether a reader will finish what it has in hand."""

    RUNNING = "running"
    RETURNED = "returned"
    """A task ended well: its result may be the messages, which its caller processes."""
    FAILED = "failed"
    """A task failed or was cancelled, or a thread ended, which may have failed."""


def current_reader() -> Reader | None:
    """Give the thread that this call is made for, else the task that makes it, else None."""
    thread = _thread.get()
    if thread is not None:
        return thread
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


def state_of(reader: Reader) -> ReaderState:
    """Tell whether a reader still runs, and how it ended if not."""
    if isinstance(reader, threading.Thread):
        return ReaderState.RUNNING if reader.is_alive() else ReaderState.FAILED
    if not reader.done():
        return ReaderState.RUNNING
    failed = reader.cancelled() or reader.exception() is not None
    return ReaderState.FAILED if failed else ReaderState.RETURNED


async def read_as(
    thread: threading.Thread, call: Callable[..., Awaitable[T]], *arguments: Any
) -> T:
    """Make a call of a consumer for a thread; needs a task of its own."""
    _thread.set(thread)
    return await call(*arguments)
