"""How far an application has come in each of its queues: handed out, finished, committed.

    committed ≤ finished ≤ handed out       of each queue, each the offset to go on at

A message is finished when the application asks for the next one, not when it is handed out: so
what is committed was seen to its end. The batch in hand is what was taken of the fetched messages
and not handed out yet. This module only counts; it asks nobody.

Source: ours; AssignedMessageQueue of RocketMQ 5.3 moves the consumed offset before the application
has seen the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cometmq.client.errors import NotAssignedError
from cometmq.client.fetching import Batch
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

Offsets = dict[MessageQueue, QueueOffset]


class Positions:
    """The places of one consumer, and the batch it is handing out."""

    def __init__(self) -> None:
        self._handed_out: Offsets = {}
        self._finished: Offsets = {}
        self._committed: Offsets = {}
        self._in_hand: list[StoredMessage] = []
        self._before: QueueOffset | None = None
        self._open: MessageQueue | None = None
        self._waiting: deque[StoredMessage] = deque()
        self._batch: Batch | None = None

    @property
    def waiting(self) -> bool:
        """Whether messages of the batch in hand are left."""
        return bool(self._waiting)

    @property
    def in_hand(self) -> list[StoredMessage]:
        """The messages that were handed out last and are not finished."""
        return self._in_hand

    def take(self, batch: Batch) -> None:
        """Begin to hand out a batch; one without messages is finished at once."""
        self._batch = batch
        self._waiting = deque(batch.messages)
        if not batch.messages:
            self._handed_out[batch.queue] = self._finished[batch.queue] = batch.next_offset

    def hand_out_one(self) -> StoredMessage:
        """Give the next message of the batch."""
        message = self._waiting.popleft()
        self._in_hand = [message]
        self._note(QueueOffset(message.queue_offset + 1))
        return message

    def hand_out_all(self) -> list[StoredMessage]:
        """Give all messages that are left of the batch."""
        messages = self._in_hand = list(self._waiting)
        self._waiting.clear()
        self._note(QueueOffset(messages[-1].queue_offset + 1))
        return messages

    def take_back(self) -> None:
        """Let what was handed out last, and is not finished, wait to be handed out again."""
        messages, self._in_hand, self._open = self._in_hand, [], None
        if not messages or self._batch is None:
            return
        self._waiting.extendleft(reversed(messages))
        if self._before is None:
            self._handed_out.pop(self._batch.queue, None)
        else:
            self._handed_out[self._batch.queue] = self._before

    def _note(self, behind: QueueOffset) -> None:
        assert self._batch is not None
        self._before = self._handed_out.get(self._batch.queue)
        place = behind if self._waiting else self._batch.next_offset
        self._open = self._batch.queue
        self._handed_out[self._open] = place

    def finish(self) -> list[StoredMessage]:
        """Count what was handed out as finished; gives the messages that were in hand."""
        queue, self._open = self._open, None
        if queue is not None:
            self._finished[queue] = self._handed_out[queue]
        done, self._in_hand = self._in_hand, []
        return done

    def move(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Go on in a queue elsewhere: that is its place from now on, to be committed, too."""
        self.drop(queue)
        self._handed_out[queue] = self._finished[queue] = offset

    def set_aside(self, queue: MessageQueue) -> Batch | None:
        """Give what is left of the batch in hand if it is of this queue; it is in hand no more."""
        batch = self._batch
        if batch is None or batch.queue != queue or not self._waiting:
            return None
        rest = Batch(queue, list(self._waiting), batch.next_offset)
        self._waiting.clear()
        return rest

    def drop(self, queue: MessageQueue) -> None:
        """Forget a queue, and what is left of a batch of it."""
        for places in (self._handed_out, self._finished, self._committed):
            places.pop(queue, None)
        if self._open == queue:
            self._open = None
        if self._batch is not None and self._batch.queue == queue:
            self._waiting.clear()
            self._in_hand = []
            self._batch = None

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind what was handed out last of a queue."""
        return self._handed_out.get(queue)

    def finished(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind what is finished of a queue."""
        return self._finished.get(queue)

    def due(self, queues: Iterable[MessageQueue] | None = None) -> Offsets:
        """Give what is finished and not committed, of these queues or of all."""
        chosen = self._finished if queues is None else queues
        return {
            queue: self._finished[queue]
            for queue in chosen
            if queue in self._finished and self._committed.get(queue) != self._finished[queue]
        }

    def committed(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note that this offset was committed."""
        if queue in self._finished:
            self._committed[queue] = offset

    def declare(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Take this offset for what is finished of a queue, whatever was handed out."""
        self._finished[queue] = offset


def check_assigned(queue: MessageQueue, assigned: Iterable[MessageQueue]) -> None:
    """Refuse what concerns a queue that is not the consumer's.

    Raises:
        NotAssignedError: it is not.
    """
    if queue not in assigned:
        raise NotAssignedError(f"{queue} is not assigned to this consumer")
