"""The change that sends dead letters again, a part of them at a time, with a report."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Annotated, Literal

import msgspec

from cometmq.client.admin import DeadLetter, ResendTo, Resent
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.console.changes import Change
from cometmq.console.dead_letters.page import Reason, Selected, position_of, selected
from cometmq.console.forms import Form
from cometmq.console.pages import Name, NotFoundError, address
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import Rest, Since, Until
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import dlq_topic

PART = 64
"""Dead letters that are read and sent together."""
SENT_MAX = 500
"""Dead letters of one change; the next one goes on with the rest."""
SENT_S = 10.0
"""Seconds after which a change begins no other part."""
CHANGE_S = 40.0
LOOKED_AT_MAX = 10_000
"""Dead letters that one change looks at to find the selected ones."""
PREVIEWED_MAX = 20
_POSITION = re.compile(r"([^/]{1,255})/(\d{1,9})/(\d{1,18})")


class ResendLetters(Form):
    """Some dead letters of a group, or all of a selection, and where they are sent to."""

    group: Name
    to: Annotated[
        Literal["group", "topic"],
        msgspec.Meta(
            description="group: only this group receives them, by its retry topic. topic: every"
            " group of the original topic does."
        ),
    ] = "group"
    letters: Annotated[
        list[str],
        msgspec.Meta(
            max_length=SENT_MAX,
            description="Broker/queue/offset, one a line; empty for all that are selected below.",
        ),
    ] = msgspec.field(default_factory=list)
    reason: Reason = ""
    topic: Annotated[
        str, msgspec.Meta(max_length=255, description="Only dead letters of this original topic.")
    ] = ""
    since: Since = ""
    until: Until = ""
    again: Annotated[
        bool, msgspec.Meta(description="Also dead letters that were sent again before.")
    ] = False
    rest: Rest = ""


class ResentRow(msgspec.Struct):
    """One dead letter that was to be sent again, and its result."""

    dead_letter: str
    position: str
    status: str
    sent_to: str
    reason: str
    new_id: str | None


class ResendPlan(msgspec.Struct):
    """Dead letters that a change would send again."""

    dead_letters_at_most: int
    sent_to: str
    first_dead_letters: list[ResentRow]


class ResendReport(msgspec.Struct):
    """Dead letters that were to be sent again, and their results."""

    sent: int
    skipped: int
    failed: int
    left_at_most: int
    """Dead letters that this change did not reach."""
    stopped_by: str
    """The error that ended it early; else empty."""
    rest: str
    """The text with which the next change goes on; empty at the end."""
    report: list[ResentRow]


async def plan(reads: Reads, form: ResendLetters) -> ResendPlan:
    """Return what `resend` would do, with the state of the first dead letters."""
    if form.letters:
        letters, left = await _named(reads, form.group, form.letters), 0
    else:
        letters, _, _, _, left = await selected(
            reads, _selection(form), form.rest, PREVIEWED_MAX, LOOKED_AT_MAX
        )
    results = await reads.admin.resend_dead_letters(
        letters[:PREVIEWED_MAX], to=ResendTo(form.to), again=form.again, dry_run=True
    )
    targets = sorted({each.target(ResendTo(form.to)) for each in letters})
    return ResendPlan(
        len(letters) + left,
        ", ".join(targets[:PREVIEWED_MAX]) or "nothing is selected",
        list(map(_row, results)),
    )


async def resend(reads: Reads, form: ResendLetters) -> ResendReport:
    """Send dead letters again, in parts, until the bounds of one change are reached."""
    counts: Counter[str] = Counter()
    rows: list[ResentRow] = []
    rest, left, stopped_by = "" if form.letters else form.rest, 0, ""
    clock = asyncio.get_running_loop()
    end = clock.time() + SENT_S
    looked_at = 0
    named = list(dict.fromkeys(form.letters))
    while True:
        begin = rest
        room = min(PART, SENT_MAX - len(rows))
        try:
            if named:
                part = named[len(rows) : len(rows) + PART]
                letters = await _named(reads, form.group, part)
                left = len(named) - len(rows) - len(letters)
            else:
                letters, seen, _, rest, left = await selected(
                    reads, _selection(form), begin, room, LOOKED_AT_MAX - looked_at
                )
                looked_at += seen
            results = await reads.admin.resend_dead_letters(
                letters, to=ResendTo(form.to), again=form.again
            )
        except CometError as error:
            if not rows:
                raise
            rest, stopped_by = begin, str(error)
            left = len(named) - len(rows) if named else left
            break
        counts.update(each.status.value for each in results)
        rows += map(_row, results)
        is_bounded = len(rows) >= SENT_MAX or looked_at >= LOOKED_AT_MAX or clock.time() > end
        if not (left if named else rest) or is_bounded:
            break
    if named and left and not stopped_by:
        stopped_by = (
            f"{SENT_S:.0f} s are over: send those that are not in the report by another change"
        )
    return ResendReport(
        counts["sent"], counts["skipped"], counts["failed"], left, stopped_by, rest, rows
    )


async def _named(reads: Reads, group: str, positions: list[str]) -> list[DeadLetter]:
    """Return the dead letters of a group at some positions.

    Raises:
        ConfigError: a position has another form.
        NotFoundError: there is no dead letter at a position.
    """
    topic = dlq_topic(group)

    async def one(text: str) -> DeadLetter:
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ConfigError(f"letters: met {text!r:.100}, expected broker/queue/offset")
        queue, offset = MessageQueue(topic, found[1], int(found[2])), int(found[3])
        try:
            message = await reads.admin.message_in_queue(queue, offset)
        except (TopicNotFoundError, QueueNotFoundError) as error:
            raise NotFoundError(str(error)) from None
        if message is None:
            raise NotFoundError(f"{topic} has no dead letter at {text}: it may be deleted")
        return DeadLetter(message)

    letters = []
    for each in await reads.each(dict.fromkeys(positions), one):
        if isinstance(each, CometError):
            raise each
        letters.append(each)
    return letters


def _selection(form: ResendLetters) -> Selected:
    return Selected(
        group=form.group, reason=form.reason, topic=form.topic, since=form.since, until=form.until
    )


def _row(result: Resent) -> ResentRow:
    return ResentRow(
        *(result.letter.message_id, position_of(result.letter), result.status.value),
        *(result.topic, result.reason, result.message_id),
    )


def _letters(form: ResendLetters) -> str:
    return address("/dead-letters/group", group=form.group, reason=form.reason, topic=form.topic)


def _following(form: ResendLetters, result: ResendReport) -> tuple[str, str] | None:
    """Return the change that goes on with the rest."""
    if not result.rest:
        return None
    return f"Go on with the rest ({result.left_at_most} at most)", address(
        "/dead-letters/resend", group=form.group, to=form.to, reason=form.reason, topic=form.topic,
        since=form.since, until=form.until, again=str(form.again).lower(), rest=result.rest,
    )  # fmt: skip


RESEND = Change(
    "/dead-letters/resend", "Send dead letters again", ResendLetters, resend, ResendReport,
    preview=plan, previewed=ResendPlan, back=_letters, following=_following, seconds=CHANGE_S,
)  # fmt: skip
