"""The messages that wait on brokers, the messages of a delay level, and the search for timers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from cometmq.client.admin import FoundTimer, TimerState
from cometmq.client.errors import TopicNotFoundError
from cometmq.console.pages import (
    Name,
    NotFoundError,
    Page,
    PageNumber,
    Paging,
    Query,
    paged,
)
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import MESSAGES_SHOWN, MessageRow, Offset, row_of
from cometmq.model import property_names as names
from cometmq.model.delay import DEFAULT_LEVELS, LEVELS_MAX, DelayLevels, delay_queue
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.runtime_figures import number
from cometmq.model.times import now_ms
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.bodies.timers import TimerMessage
from cometmq.protocol.codes import ResponseCode

BROKERS_SHOWN = 25
"""Brokers of a page: each takes two requests."""
TOPICS_SHOWN = 100
CALLS_MAX = 4
"""Requests for one page of timer messages: a broker looks at the slots of a day in each."""
READ_BACK = 500
"""The newest records of the timer topic that a page reads from a broker of RocketMQ."""
_LEVEL = "scheduleMessageOffset_"
_OFFSETS = re.compile(r"([0-9]{1,18}),([0-9]{1,18})")
Level = Annotated[int, msgspec.Meta(ge=1, le=LEVELS_MAX)]


class BrokersQuery(Query):
    """Which part of the brokers."""

    page: PageNumber = 1


class BrokerTimers(msgspec.Struct):
    """How many messages wait on one broker."""

    broker: str
    timers: int | None
    """None for a broker without timer messages, such as RocketMQ 4."""
    topics: int
    behind_ms: int | None
    """How late it is with timer messages."""
    delayed: int
    """Messages that wait at delay levels."""
    error: str


class Waiting(msgspec.Struct):
    """How many messages wait on each broker."""

    paging: Paging
    brokers: list[BrokerTimers]


class BrokerQuery(Query):
    """Which broker, and which of its timer messages."""

    broker: Name
    topic: Name = ""
    key: Name = ""
    after_ms: Offset = 0


class TopicCount(msgspec.Struct):
    """How many timer messages of a topic wait."""

    topic: str
    waiting: int


class DelayLevel(msgspec.Struct):
    """The messages that wait at a delay level."""

    level: int
    delay_ms: int | None
    """None if the broker does not say it."""
    waiting: int


class WaitingTimer(msgspec.Struct):
    """A timer message that waits."""

    topic: str
    id: str
    keys: str
    due_time_ms: int
    is_recalled: bool
    stored_time_ms: int
    sender: str | None
    body_bytes: int
    handle: str


class TimersOfBroker(msgspec.Struct):
    """What waits on one broker."""

    broker: str
    source: Literal["list", "newest records", "none"]
    """Whether the broker lists what waits, or its newest records were read, or it has no timers."""
    records_read: int
    counts: list[TopicCount]
    counts_total: int
    timers: list[WaitingTimer]
    """The next ones first."""
    left_out: int
    """Messages of the same second as the last one that the page does not have."""
    after_ms: int | None
    """Where the next page begins; None at the end."""
    levels: list[DelayLevel]
    errors: list[str]


class LevelQuery(Query):
    """Which delay level of which broker, and which part."""

    broker: Name
    level: Level
    offset: Offset = 0


class Delayed(msgspec.Struct):
    """A message that waits at a delay level."""

    row: MessageRow
    topic: str
    """The topic in which it will be stored."""
    due_time_ms: int | None


class DelayedMessages(msgspec.Struct):
    """Messages that wait at a delay level, the next ones first."""

    broker: str
    level: int
    delay_ms: int | None
    messages: list[Delayed]
    next_offset: int | None
    left: int


class FindQuery(Query):
    """A topic, and the unique id or a key of a timer message."""

    topic: Name
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class FoundTimerRow(msgspec.Struct):
    """A timer message that was found."""

    id: str
    broker: str
    due_time_ms: int
    state: str
    stored_time_ms: int
    body_bytes: int
    handle: str


class FoundTimers(msgspec.Struct):
    """The timer messages with an id or key."""

    topic: str
    timers: list[FoundTimerRow]


async def waiting(reads: Reads, query: BrokersQuery) -> Waiting:
    """Return how many messages wait on each master of a part of them."""
    shown, paging = paged(await reads.masters(), query.page, BROKERS_SHOWN)

    async def of_broker(broker: RegisteredBroker) -> BrokerTimers:
        figures = await reads.admin.broker_runtime_info(broker.address)
        counts = await _counts(reads, broker.address)
        behind_s = number(figures, "timerReadBehind")
        return BrokerTimers(
            broker.name,
            None if counts is None else sum(counts.values()),
            0 if counts is None else sum(1 for each in counts.values() if each),
            None if behind_s is None else behind_s * 1000,
            sum(end - begin for begin, end in levels_of(figures).values()),
            "",
        )

    found = await reads.each(shown, of_broker)
    return Waiting(
        paging,
        [
            BrokerTimers(broker.name, None, 0, None, 0, str(each))
            if isinstance(each, CometError)
            else each
            for broker, each in zip(shown, found, strict=True)
        ],
    )


async def of_broker(reads: Reads, query: BrokerQuery) -> TimersOfBroker:
    """Return what waits on one broker."""
    address = await _address(reads, query.broker)
    errors: list[str] = []
    figures = await reads.admin.broker_runtime_info(address)
    counts = await _counts(reads, address)
    shown = sorted(
        (each for each in (counts or {}).items() if each[1]), key=lambda each: (-each[1], each[0])
    )
    source: Literal["list", "newest records", "none"] = "list" if counts is not None else "none"
    timers: list[WaitingTimer] = []
    after_ms, read, left_out = None, 0, 0
    if counts is not None:
        try:
            timers, after_ms, left_out = await _listed(reads, address, query)
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            source = "newest records"
            timers, read = await _read_back(reads, query)
    delays = await _delays(reads, address, errors)
    return TimersOfBroker(
        query.broker,
        source,
        read,
        [TopicCount(*each) for each in shown[:TOPICS_SHOWN]],
        len(shown),
        timers,
        left_out,
        after_ms,
        [
            DelayLevel(level, delays.get(level), end - begin)
            for level, (begin, end) in sorted(levels_of(figures).items())
        ],
        errors,
    )


async def of_level(reads: Reads, query: LevelQuery) -> DelayedMessages:
    """Return messages that wait at a delay level of a broker."""
    address = await _address(reads, query.broker)
    figures = await reads.admin.broker_runtime_info(address)
    begin, end = levels_of(figures).get(query.level, (0, 0))
    delay_ms = (await _delays(reads, address, [])).get(query.level)
    offset = max(begin, query.offset)
    queue = MessageQueue(DELAY_TOPIC, query.broker, delay_queue(query.level))
    ranges = {queue: range(offset, max(offset, end))}
    page = await reads.admin.messages_by_time(DELAY_TOPIC, limit=MESSAGES_SHOWN, ranges=ranges)
    rest = page.rest.get(queue, range(0))
    return DelayedMessages(
        query.broker,
        query.level,
        delay_ms,
        [
            Delayed(
                row_of(each),
                each.properties.get(names.REAL_TOPIC, ""),
                None if delay_ms is None else each.store_time_ms + delay_ms,
            )
            for each in page.messages
        ],
        rest.start if rest else None,
        len(rest),
    )


async def find(reads: Reads, query: FindQuery) -> FoundTimers:
    """Return the timer messages of a topic with an id or key."""
    try:
        found = await reads.admin.find_timers(query.topic, query.key)
    except TopicNotFoundError:
        raise NotFoundError(f"there is no topic {query.topic}") from None
    rows = [
        FoundTimerRow(
            *(each.message.message_id, each.message.broker_name, each.due_ms, each.state.value),
            *(each.message.store_time_ms, row_of(each.message).body_bytes, each.handle),
        )
        for each in sorted(found, key=lambda each: each.due_ms)
    ]
    return FoundTimers(query.topic, rows)


def levels_of(figures: Mapping[str, str]) -> dict[int, tuple[int, int]]:
    """Return the offsets of each delay level that a broker shows: delivered, and scheduled."""
    found: dict[int, tuple[int, int]] = {}
    for name, text in figures.items():
        offsets = _OFFSETS.fullmatch(text)
        level = name.removeprefix(_LEVEL)
        if name.startswith(_LEVEL) and level.isdecimal() and len(level) <= 4 and offsets:
            begin, end = int(offsets[1]), int(offsets[2])
            found[int(level)] = begin, max(begin, end)
    return found


async def _address(reads: Reads, name: str) -> str:
    """Return the address of a master.

    Raises:
        NotFoundError: no such master is registered.
    """
    for broker in await reads.masters():
        if broker.name == name:
            return broker.address
    raise NotFoundError(f"no master of a broker {name} is registered")


async def _counts(reads: Reads, address: str) -> dict[str, int] | None:
    """Return how many timer messages of each topic wait; None of a broker without them."""
    try:
        found = await reads.admin.timer_counts(address)
    except ResponseError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise
    return {topic: each.count for topic, each in found.items()}


async def _listed(
    reads: Reads, address: str, query: BrokerQuery
) -> tuple[list[WaitingTimer], int | None, int]:
    """Return what a broker of CometMQ lists, where the next page begins, and what is left out."""
    found: list[TimerMessage] = []
    left_out = 0
    after_ms: int | None = query.after_ms
    for _ in range(CALLS_MAX):
        assert after_ms is not None
        messages, after_ms, left_out = await reads.admin.waiting_timers_after(
            address, after_ms, topic=query.topic or None, key=query.key or None,
            limit=MESSAGES_SHOWN,
        )  # fmt: skip
        found += messages
        if after_ms is None or found:
            break
    rows = [
        WaitingTimer(
            *(each.topic, each.message_id, each.keys, each.due_ms, each.is_recalled),
            *(each.store_ms, each.sender, each.body_bytes, each.handle),
        )
        for each in found
    ]
    return rows, after_ms, left_out


async def _read_back(reads: Reads, query: BrokerQuery) -> tuple[list[WaitingTimer], int]:
    """Return what waits among the newest records of a broker, and how many it has read."""
    found = await reads.admin.newest_timers(query.broker, limit=READ_BACK)
    rows = [
        row
        for each in found
        if each.state in (TimerState.WAITING, TimerState.RECALLED) and each.due_ms >= now_ms()
        if (row := _row(each)).topic == query.topic or not query.topic
        if not query.key or query.key in (row.id, *row.keys.split(" "))
    ]
    rows.sort(key=lambda each: each.due_time_ms)
    return rows[:MESSAGES_SHOWN], len(found)


def _row(timer: FoundTimer) -> WaitingTimer:
    message = timer.message
    return WaitingTimer(
        topic=message.properties.get(names.REAL_TOPIC, ""),
        id=message.message_id,
        keys=" ".join(message.keys),
        due_time_ms=timer.due_ms,
        is_recalled=timer.state is TimerState.RECALLED,
        stored_time_ms=message.store_time_ms,
        sender=None,
        body_bytes=row_of(message).body_bytes,
        handle=timer.handle,
    )


async def _delays(reads: Reads, address: str, errors: list[str]) -> dict[int, int]:
    """Return the delay of each level of a broker."""
    try:
        text = (await reads.admin.broker_config(address)).get("messageDelayLevel", DEFAULT_LEVELS)
        levels = DelayLevels.parse(text)
    except (ResponseError, ConfigError) as error:
        errors.append(f"the delays of the levels are unknown: {error}")
        return {}
    return {level: levels.delay_ms(level) for level in range(1, levels.highest + 1)}


PAGES = (
    Page(
        "/timers", "Timers", "timers/timers.html", BrokersQuery, Waiting, waiting, is_tab=True,
    ),
    Page(
        "/timers/broker", "Timers of a broker", "timers/broker.html", BrokerQuery,
        TimersOfBroker, of_broker,
    ),
    Page(
        "/timers/level", "Messages of a delay level", "timers/level.html", LevelQuery,
        DelayedMessages, of_level,
    ),
    Page("/timers/find", "Find timers", "timers/found.html", FindQuery, FoundTimers, find),
)  # fmt: skip
