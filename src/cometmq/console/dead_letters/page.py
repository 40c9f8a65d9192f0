"""The groups that have dead letters, the dead letters of one group, and their reasons."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Annotated

import msgspec

from cometmq.client.admin import DeadLetter
from cometmq.console.pages import (
    Name,
    PageNumber,
    Paging,
    Query,
    Search,
    matching,
    paged,
)
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import (
    Rest,
    Since,
    Until,
    ranges_of,
    text_of,
    times_of,
)
from cometmq.model.topic import DLQ_PREFIX, dlq_topic
from cometmq.protocol.lazy_record import body_or_stored

GROUPS_SHOWN = 25
"""Groups of a page: each takes a request to each broker of its dead letters."""
LETTERS_SHOWN = 50
LOOKED_AT_MAX = 2_000
"""Dead letters that one page looks at to find the selected ones."""
READ_AT_ONCE = 200
SELECTED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of bodies after which a part ends."""
COUNTED_MAX = 20_000
"""Dead letters whose reasons are counted."""
COUNT_S = 8.0
REASONS_SHOWN = 100
REASON_CHARS_MAX = 300
NOT_RECORDED = "not recorded"
_NUMBER = re.compile(r"\b[0-9a-fA-F]*[0-9][0-9a-fA-F]*")
Reason = Annotated[
    str, msgspec.Meta(max_length=REASON_CHARS_MAX, description="A part of the reason, in any case.")
]


class GroupsQuery(Query):
    """A part of the list."""

    search: Search = ""
    page: PageNumber = 1


class DeadLetterGroup(msgspec.Struct):
    """A group with a dead-letter topic."""

    group: str
    letters: int
    last_time_ms: int | None
    error: str


class DeadLetterGroups(msgspec.Struct):
    """A part of the list of groups with dead letters."""

    paging: Paging
    groups: list[DeadLetterGroup]


class Selected(Query):
    """A selection of the dead letters of a group."""

    group: Name
    reason: Reason = ""
    topic: Name = ""
    since: Since = ""
    until: Until = ""


class LettersQuery(Selected):
    """A selection of the dead letters of a group, and a part of it."""

    rest: Rest = ""


class ReasonsQuery(Query):
    """A group, and a range of time."""

    group: Name
    since: Since = ""
    until: Until = ""


class Letter(msgspec.Struct):
    """A dead letter."""

    position: str
    """Broker, queue and offset, as a change names it."""
    broker: str
    queue: int
    offset: int
    id: str
    original_topic: str | None
    retries: int
    reason: str | None
    dead_time_ms: int
    tag: str | None
    keys: list[str]


class Letters(msgspec.Struct):
    """A part of the dead letters of a group, the oldest first."""

    group: str
    topic: str
    letters: list[Letter]
    looked_at: int
    """Dead letters that were read for this part, selected or not."""
    rest: str
    """The beginning of the next page; empty at the end."""
    rest_letters: int
    deleted: int


class ReasonCount(msgspec.Struct):
    """Dead letters with one reason and one original topic."""

    reason: str
    original_topic: str | None
    letters: int
    first_time_ms: int
    last_time_ms: int


class Reasons(msgspec.Struct):
    """The reasons of the dead letters of a group, the most frequent one first."""

    group: str
    reasons: list[ReasonCount]
    reasons_total: int
    counted: int
    left: int
    """Dead letters that were not counted, because there are too many; the newest ones."""


async def dead_letter_groups(reads: Reads, query: GroupsQuery) -> DeadLetterGroups:
    """Return a part of the list; only the dead letters of its groups are counted."""
    names = [
        name.removeprefix(DLQ_PREFIX)
        for name in await reads.topics()
        if name.startswith(DLQ_PREFIX)
    ]
    shown, paging = paged(matching(names, query.search), query.page, GROUPS_SHOWN)
    counts = await reads.admin.dead_letter_counts(shown)
    return DeadLetterGroups(
        paging,
        [
            DeadLetterGroup(each.group, each.letters, each.last_time_ms, each.error)
            for each in counts
        ],
    )


async def dead_letters(reads: Reads, query: LettersQuery) -> Letters:
    """Return a part of the selected dead letters of a group."""
    found, looked_at, deleted, rest, rest_letters = await selected(
        reads, query, query.rest, LETTERS_SHOWN, LOOKED_AT_MAX
    )
    return Letters(
        group=query.group,
        topic=dlq_topic(query.group),
        letters=list(map(_letter, found)),
        looked_at=looked_at,
        rest=rest,
        rest_letters=rest_letters,
        deleted=deleted,
    )


def position_of(letter: DeadLetter) -> str:
    """Return broker, queue and offset of a dead letter."""
    message = letter.message
    return f"{message.broker_name}/{message.queue_id}/{message.queue_offset}"


async def selected(
    reads: Reads, query: Selected, rest: str, limit: int, looked_at_max: int
) -> tuple[list[DeadLetter], int, int, str, int]:
    """Return selected dead letters: as many as a page may have, and all that one read gave.

    Returns:
        The dead letters, how many were looked at, how many expired meanwhile, where the next part
        begins, and how many it has at most.
    """
    since, until = times_of(query.since, query.until)
    ranges = ranges_of(rest, dlq_topic(query.group)) if rest else None
    is_all = not query.reason and not query.topic
    found: list[DeadLetter] = []
    looked_at = deleted = size = 0
    while True:
        count = limit - len(found) if is_all else min(READ_AT_ONCE, looked_at_max - looked_at)
        page = await reads.admin.dead_letters(
            query.group, since=since, until=until, limit=count, ranges=ranges
        )
        chosen = [each for each in page.letters if takes(query, each)]
        if len(chosen) > limit - len(found):  # read again, up to the first one that does not fit
            count = page.letters.index(chosen[limit - len(found)])
            page = await reads.admin.dead_letters(
                query.group, since=since, until=until, limit=count, ranges=ranges
            )
            chosen = [each for each in page.letters if takes(query, each)]
        found += chosen
        size += sum(len(body_or_stored(each.message)) for each in chosen)
        looked_at, deleted, ranges = (
            looked_at + len(page.letters),
            deleted + page.deleted,
            page.rest,
        )
        if not page.letters or not ranges or len(found) >= limit or looked_at >= looked_at_max:
            break
        if len(page.letters) < count or size >= SELECTED_BYTES_MAX:
            break  # the bodies are large
    left = ranges if page.letters else {}
    return found, looked_at, deleted, text_of(left), sum(map(len, left.values()))


def takes(query: Selected, letter: DeadLetter) -> bool:
    """Return whether a dead letter of the time range is selected."""
    wanted, reason = query.reason.lower(), letter.error or NOT_RECORDED
    if wanted not in reason.lower() and wanted not in common_reason(reason).lower():
        return False
    return query.topic in ("", letter.original_topic)


async def reasons(reads: Reads, query: ReasonsQuery) -> Reasons:
    """Count dead letters by reason, without its numbers and ids, and by original topic."""
    since, until = times_of(query.since, query.until)
    counts: Counter[tuple[str, str | None]] = Counter()
    times: dict[tuple[str, str | None], tuple[int, int]] = {}
    ranges, clock = None, asyncio.get_running_loop()
    end = clock.time() + COUNT_S
    while True:
        page = await reads.admin.dead_letters(
            query.group, since=since, until=until, limit=READ_AT_ONCE, ranges=ranges
        )
        for letter in page.letters:
            key = common_reason(letter.error or NOT_RECORDED), letter.original_topic
            counts[key] += 1
            times[key] = times.get(key, (letter.dead_time_ms, 0))[0], letter.dead_time_ms
        ranges = page.rest if page.letters else {}
        if not ranges or counts.total() >= COUNTED_MAX or clock.time() > end:
            break
    shown = [
        ReasonCount(*key, count, *times[key]) for key, count in counts.most_common(REASONS_SHOWN)
    ]
    return Reasons(query.group, shown, len(counts), counts.total(), sum(map(len, ranges.values())))


def common_reason(reason: str) -> str:
    """Return the first line of a reason with ``#`` for its numbers and ids."""
    lines = reason.strip().splitlines()
    return _NUMBER.sub("#", lines[0])[:REASON_CHARS_MAX] if lines else NOT_RECORDED


def _letter(letter: DeadLetter) -> Letter:
    message, reason = letter.message, letter.error
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        reason = f"{reason[:REASON_CHARS_MAX]}…"
    return Letter(
        position_of(letter),
        *(message.broker_name, message.queue_id, int(message.queue_offset), letter.message_id),
        *(letter.original_topic, letter.retries, reason, letter.dead_time_ms),
        *(message.tags, message.keys),
    )
