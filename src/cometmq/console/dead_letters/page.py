"""The groups that have dead letters, and the dead letters of one group."""

from __future__ import annotations

import msgspec

from cometmq.client.admin import DeadLetter
from cometmq.console.pages import (
    Name,
    Page,
    PageNumber,
    Paging,
    Query,
    Search,
    matching,
    paged,
)
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import Rest, ranges_of, text_of
from cometmq.model.topic import DLQ_PREFIX, dlq_topic

GROUPS_SHOWN = 25
"""Groups of a page: each takes a request to each broker of its dead letters."""
LETTERS_SHOWN = 50
REASON_CHARS_MAX = 300


class GroupsQuery(Query):
    """Which part of the list."""

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


class LettersQuery(Query):
    """Which group, and which part of its dead letters."""

    group: Name
    rest: Rest = ""


class Letter(msgspec.Struct):
    """A dead letter."""

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
    rest: str
    """Where the next page begins; empty at the end."""
    rest_letters: int
    deleted: int


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
    """Return a part of the dead letters of a group."""
    topic = dlq_topic(query.group)
    ranges = ranges_of(query.rest, topic) if query.rest else None
    page = await reads.admin.dead_letters(query.group, limit=LETTERS_SHOWN, ranges=ranges)
    return Letters(
        group=query.group,
        topic=topic,
        letters=list(map(_letter, page.letters)),
        rest=text_of(page.rest),
        rest_letters=sum(map(len, page.rest.values())),
        deleted=page.deleted,
    )


def _letter(letter: DeadLetter) -> Letter:
    message, reason = letter.message, letter.error
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        reason = f"{reason[:REASON_CHARS_MAX]}…"
    return Letter(
        *(message.broker_name, message.queue_id, int(message.queue_offset), letter.message_id),
        *(letter.original_topic, letter.retries, reason, letter.dead_time_ms),
        *(message.tags, message.keys),
    )


PAGES = (
    Page(
        "/dead-letters", "Dead letters", "dead_letters/groups.html", GroupsQuery,
        DeadLetterGroups, dead_letter_groups, is_tab=True,
    ),
    Page(
        "/dead-letters/group", "Dead letters of a group", "dead_letters/letters.html",
        LettersQuery, Letters, dead_letters,
    ),
)  # fmt: skip
