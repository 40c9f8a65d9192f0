"""Finds messages that brokers do not deliver yet: timer messages and half messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from cometmq.client.admin.message_pages import PAGE_MAX, MessagePages
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.model import property_names as names
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC
from cometmq.protocol.recall_handle import RecallHandle

SLOT_MS_MAX = 1_000
"""The longest `timerPrecisionMs`."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group that commits how far a broker has checked its half messages."""
HALF_MESSAGES_MAX = 5_000
"""Half messages that one call reads."""
DECISIONS_MAX = 20_000
"""Messages with decisions that one call reads; those of RocketMQ 5 have several decisions each."""
_OFFSET = re.compile(rb"[0-9]{1,19}")


class TimerState(Enum):
    """The state of a timer message.

    Example:
        found = await admin.find_timers("orders", "order-42")
        print([each.handle for each in found if each.state is TimerState.WAITING])
    """

    WAITING = "waiting"
    """Its time comes."""
    DUE = "due"
    """Its time is here."""
    PAST = "past"
    """Its time is over: it is delivered, unless its broker is late."""
    RECALLED = "recalled"
    """It was recalled, and is not delivered."""


@dataclass(frozen=True, slots=True)
class FoundTimer:
    """A timer message that was found by its id or by a key.

    Example:
        found: list[FoundTimer] = await admin.find_timers("orders", "order-42")
        for each in found:
            print(each.message.message_id, each.due_ms, each.state.value)
    """

    message: StoredMessage
    """The record in the timer topic."""
    due_ms: int
    """The time for which it waits, in ms since 1970; it may be delivered within a second after."""
    state: TimerState
    """Whether it waits."""
    handle: str
    """The handle that recalls it."""


@dataclass(frozen=True, slots=True)
class HalfMessages:
    """Half messages of one broker whose transactions are undecided.

    Example:
        found: HalfMessages = await admin.half_messages("broker-a")
        for message in found.messages:
            print(message.message_id, message.properties.get("PGROUP"))
    """

    messages: list[StoredMessage]
    """The half messages, the oldest first."""
    unread: int = 0
    """Half messages that were not read, because there are too many: some of them are decided."""
    decisions_unread: int = 0
    """Messages with decisions that were not read: some of ``messages`` may be decided."""


class WaitingMessages(MessagePages):
    """Calls about messages that brokers do not deliver yet."""

    async def find_timers(self, topic: str, key: str) -> list[FoundTimer]:
        """Find timer messages of a topic by the unique id of the sender, or by a key.

        Args:
            topic: the topic of the messages.
            key: the id or key.

        Returns:
            Those that wait, and those that were delivered or recalled as long as their records are
            stored.
        """
        records = await self.timer_messages(topic, key)
        if not records:
            with_key = await self.timer_messages(topic, key, unique_id=False)
            for message_id in sorted({each.message_id for each in with_key}):
                records += await self.timer_messages(topic, message_id)
        return timers_in(records)

    async def newest_timers(self, broker: str, *, limit: int = 500) -> list[FoundTimer]:
        """Return the timer messages among the newest records of a broker's timer topic.

        Brokers of RocketMQ have no other list. An older record may wait as well.

        Args:
            broker: the name of the broker.
            limit: the most records to read, at most 1,000.
        """
        self._instance.check_running()
        queue = MessageQueue(TIMER_TOPIC, broker, 0)
        try:
            low, high = await self._offsets.bounds(queue)
        except (TopicNotFoundError, QueueNotFoundError):  # a broker without timers
            return []
        ranges = {queue: range(max(low, high - limit), high)}
        page = await self.messages_by_time(TIMER_TOPIC, limit=limit, ranges=ranges)
        return timers_in(page.messages)

    async def half_messages(self, broker: str, *, limit: int = PAGE_MAX) -> HalfMessages:
        """Return the half messages of a broker whose transactions are undecided.

        A broker of RocketMQ 5 stores decisions together, about 3 seconds late.

        Args:
            broker: the name of the broker.
            limit: the most half messages to read, at most 5,000.

        Raises:
            ConfigError: the limit is out of range.
        """
        self._instance.check_running()
        if not 1 <= limit <= HALF_MESSAGES_MAX:
            raise ConfigError(f"limit={limit}: expected 1 to {HALF_MESSAGES_MAX}")
        halves, unread = await self._behind(MessageQueue(HALF_TOPIC, broker, 0), limit)
        # Decisions are read after the half messages: those of meanwhile count.
        decisions, decisions_unread = await self._behind(
            MessageQueue(OP_HALF_TOPIC, broker, 0), DECISIONS_MAX
        )
        decided = {offset for each in decisions for offset in decided_offsets(each.body)}
        return HalfMessages(undecided(halves, decided), unread, decisions_unread)

    async def _behind(self, queue: MessageQueue, limit: int) -> tuple[list[StoredMessage], int]:
        """Return messages from the committed offset of the checks on, and how many are not read."""
        try:
            low, high = await self._offsets.bounds(queue)
            committed = await self._offsets.committed(
                TRANSACTION_GROUP, queue, zero_if_unknown=False
            )
        except (TopicNotFoundError, QueueNotFoundError):  # the first transaction creates it
            return [], 0
        start = max(low, committed or 0)
        rest = {queue: range(start, max(start, high))}
        found: list[StoredMessage] = []
        while rest and len(found) < limit:
            most = min(limit - len(found), PAGE_MAX)
            page = await self.messages_by_time(queue.topic, limit=most, ranges=rest)
            if not page.messages:
                return found, 0
            found, rest = found + page.messages, page.rest
        return found, sum(map(len, rest.values()))


def timers_in(records: Iterable[StoredMessage]) -> list[FoundTimer]:
    """Return the timer messages of records of the timer topic, with their states.

    A message that waits long is stored several times; the last record counts.
    """
    chosen = list(records)
    recalls = [each for each in chosen if names.TIMER_DEL_UNIQKEY in each.properties]
    now = now_ms()
    found: dict[tuple[str, str, int], FoundTimer] = {}
    for each in chosen:
        if names.TIMER_DEL_UNIQKEY in each.properties:
            continue
        due_ms = timer_due_ms(each)
        is_recalled = any(_recalls(recall, each) for recall in recalls)
        found[each.broker_name, each.message_id, due_ms] = FoundTimer(
            each,
            due_ms,
            TimerState.RECALLED if is_recalled else timer_state(due_ms, now),
            timer_handle(each.properties.get(names.REAL_TOPIC, ""), each),
        )
    return list(found.values())


def undecided(halves: Iterable[StoredMessage], decided: set[int]) -> list[StoredMessage]:
    """Return the half messages without a decision, each once: the copy that was stored last.

    Args:
        halves: half messages of one queue, in its order. A check stores a message again.
        decided: queue offsets of decided half messages.
    """
    newest = {each.message_id: each for each in halves if each.queue_offset not in decided}
    return sorted(newest.values(), key=lambda each: (each.born_time_ms, each.queue_offset))


def decided_offsets(body: bytes) -> list[int]:
    """Return the half messages that a message of decisions names, by their queue offsets.

    RocketMQ 4 writes one offset, RocketMQ 5 several with commas.
    """
    return [int(text) for text in body.split(b",") if _OFFSET.fullmatch(text)]


def timer_due_ms(message: StoredMessage) -> int:
    """Return the time for which a record of the timer topic waits; 0 if it names none."""
    text = message.properties.get(names.TIMER_OUT_MS, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def timer_state(due_ms: int, now: int) -> TimerState:
    """Return the state of a timer message by its time."""
    if due_ms >= now:
        return TimerState.WAITING
    return TimerState.DUE if due_ms + SLOT_MS_MAX >= now else TimerState.PAST


def timer_handle(topic: str, message: StoredMessage) -> str:
    """Return the handle that recalls a timer message of a topic."""
    due_ms = str(timer_due_ms(message) + 1)
    return RecallHandle(topic, message.broker_name, due_ms, message.message_id).encode()


def _recalls(recall: StoredMessage, message: StoredMessage) -> bool:
    """Return whether a recall counts for a message, by the account of its sender, too."""
    account, sender = (each.properties.get(names.TIMER_SENDER) for each in (recall, message))
    return (
        (recall.broker_name, recall.message_id, timer_due_ms(recall))
        == (message.broker_name, message.message_id, timer_due_ms(message))
    ) and (None in (account, sender) or account == sender)
