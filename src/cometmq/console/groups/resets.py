"""Moves a group: to a time, to an offset of a queue, or past its backlog, with a preview by queue.

How members take it depends on the broker. Since 5.2, and on CometMQ's brokers, the broker stores
the offsets (``useServerSideResetOffset``), and members get them with their next pull. Older brokers
notify the members of a group, which stop for about ten seconds; only a reset to a time reaches the
members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from cometmq.client.admin import GroupLag
from cometmq.client.errors import TopicNotFoundError
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.groups.changes import check_own
from cometmq.console.pages import Name, NotFoundError, address
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.nouns import counted
from cometmq.model.queue import MessageQueue
from cometmq.model.times import time_of
from cometmq.protocol.bodies.heartbeat import MessageModel

EARLIEST, LATEST = "earliest", "latest"
QUEUES_SHOWN = 100
QUEUES_MAX = 4_000
"""Queues of a topic: each takes four requests for a preview."""
RESET_S = 60.0


class ResetGroup(Form):
    """A group to move to a time, in all queues of a topic."""

    group: Name
    topic: Name
    to: Annotated[
        Name,
        msgspec.Meta(
            description="earliest, latest, a time ago such as 2h, 2026-01-31T18:00Z, or ms since"
            " 1970."
        ),
    ]


class ResetQueue(Form):
    """A group to move to an offset of one queue."""

    group: Name
    topic: Name
    broker: Name
    queue: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SkipBacklog(Form):
    """A group to move to the end of all queues of a topic."""

    group: Name
    topic: Name


class MovedQueue(msgspec.Struct):
    """A group in one queue, before and after a move."""

    broker: str
    queue: int
    committed: int | None
    offset: int
    """The new offset."""
    skips: int
    repeats: int


class Moved(msgspec.Struct):
    """A group that was moved, or that would be."""

    group: str
    topic: str
    skipped_messages: int
    repeated_messages: int
    members_online: int
    notes: list[str]
    queues: list[MovedQueue]
    """The queues that change most first."""
    queues_total: int


async def _group_in(
    reads: Reads, group: str, topic: str
) -> tuple[dict[MessageQueue, GroupLag], list[str], int]:
    """Return where a group is in a topic, what to know of a move, and the number of its members.

    Raises:
        NotFoundError: there is no such topic or group.
        ConfigError: the group cannot be moved.
    """
    check_own(group)  # the offsets of the brokers' groups decide what is checked or delivered
    try:
        now = await reads.admin.lag(group, topic)
    except TopicNotFoundError:
        raise NotFoundError(f"there is no topic {topic}") from None
    if not now:
        raise ConfigError(f"topic {topic} has no queue that consumers may read: expected one")
    if len(now) > QUEUES_MAX:
        raise ConfigError(
            f"topic {topic} has {len(now)} queues, expected {QUEUES_MAX} at most: 'cometmq admin"
            " offset reset' moves groups of larger topics"
        )
    online = await reads.online(group)
    has_offset = any(each.committed is not None for each in now.values())
    if not has_offset and online is None and group not in (await reads.groups())[0]:
        raise NotFoundError(f"there is no group {group}")
    if online is not None and online.message_model is MessageModel.BROADCASTING:
        raise ConfigError(
            f"group {group} broadcasts: each member keeps its own offsets, and brokers cannot move"
            " it; expected a group of the mode clustering"
        )
    members = len(online.connection_set) if online is not None else 0
    return now, await _notes(reads, {each.broker_name for each in now}, members), members


async def _notes(reads: Reads, brokers: set[str], members: int) -> list[str]:
    """Return how the members take a move."""
    if not members:
        return ["No member is online: the offsets are written, and members begin there."]
    masters = [each for each in await reads.masters() if each.name in brokers]

    async def stores(address: str) -> bool:
        settings = await reads.admin.broker_config(address)
        return settings.get("useServerSideResetOffset", "false") == "true"

    notes = ["Messages that members have in memory may still be handled."]
    found = await reads.each([each.address for each in masters], stores)
    for broker, each in zip(masters, found, strict=True):
        if isinstance(each, CometError):
            notes.append(f"{broker.name}: it is not known how members move: {each}")
        elif not each:
            notes.append(
                f"{broker.name} notifies its members, which stop for about ten seconds. Only a move"
                " to a time or to an end reaches them: stop the members before a move to an offset."
            )
    if all(each is True for each in found):
        notes.append(f"{counted(members, 'member')} online: each moves at its next pull.")
    return notes


def _moved(
    group: str, topic: str, now: Mapping[MessageQueue, GroupLag],
    targets: Mapping[MessageQueue, int], notes: list[str], members: int,
) -> Moved:  # fmt: skip
    rows = [
        MovedQueue(
            *(queue.broker_name, queue.queue_id),
            None if found.committed is None else int(found.committed),
            offset=int(targets.get(queue, found.end)),
            skips=found.skipped(targets.get(queue, found.end)),
            repeats=found.repeated(targets.get(queue, found.end)),
        )
        for queue, found in now.items()
    ]
    rows.sort(key=lambda each: (-each.skips - each.repeats, each.broker, each.queue))
    return Moved(
        *(group, topic, sum(each.skips for each in rows), sum(each.repeats for each in rows)),
        *(members, notes, rows[:QUEUES_SHOWN], len(rows)),
    )


async def preview_reset(reads: Reads, form: ResetGroup) -> Moved:
    """Return what a reset to a time skips and repeats in each queue."""
    now, notes, members = await _group_in(reads, form.group, form.topic)
    targets: dict[MessageQueue, int] = {queue: int(each.end) for queue, each in now.items()}
    if form.to != LATEST:
        targets = await reads.admin.offsets_at(form.topic, _time_of(form.to))
    return _moved(form.group, form.topic, now, targets, notes, members)


def _time_of(text: str) -> int:
    return 0 if text == EARLIEST else time_of(text)


async def reset(reads: Reads, form: ResetGroup) -> Moved:
    """Move a group to a time."""
    now, notes, members = await _group_in(reads, form.group, form.topic)
    if form.to == LATEST:
        targets = await reads.admin.skip_backlog(form.group, form.topic)
    else:
        time_ms = _time_of(form.to)
        targets = await reads.admin.reset_to_time(form.group, form.topic, time_ms)
    return _moved(form.group, form.topic, now, targets, notes, members)


async def preview_skip(reads: Reads, form: SkipBacklog) -> Moved:
    """Return how many messages a skip leaves out in each queue."""
    return await preview_reset(reads, ResetGroup(group=form.group, topic=form.topic, to=LATEST))


async def skip(reads: Reads, form: SkipBacklog) -> Moved:
    """Move a group to the end of all queues."""
    return await reset(reads, ResetGroup(group=form.group, topic=form.topic, to=LATEST))


async def preview_queue(reads: Reads, form: ResetQueue) -> Moved:
    """Return what a move to an offset skips or repeats."""
    now, notes, members = await _group_in(reads, form.group, form.topic)
    queue = MessageQueue(form.topic, form.broker, form.queue)
    found = now.get(queue)
    if found is None:
        raise NotFoundError(
            f"topic {form.topic} has no queue {form.queue} on {form.broker} that consumers read"
        )
    if not found.begin <= form.offset <= found.end:
        raise ConfigError(
            f"offset {form.offset}: expected one of {int(found.begin)} to {int(found.end)}, which"
            f" queue {form.queue} of {form.topic} on {form.broker} has"
        )
    return _moved(form.group, form.topic, {queue: found}, {queue: form.offset}, notes, members)


async def reset_queue(reads: Reads, form: ResetQueue) -> Moved:
    """Move a group to an offset of a queue."""
    moved = await preview_queue(reads, form)
    queue = MessageQueue(form.topic, form.broker, form.queue)
    await reads.admin.reset_to_offset(form.group, queue, form.offset)
    return moved


def _back(form: ResetGroup | ResetQueue | SkipBacklog) -> str:
    return address("/groups/group", group=form.group)


CHANGES = (
    Change(
        "/groups/reset", "Reset the group", ResetGroup, reset, Moved, preview=preview_reset,
        previewed=Moved, back=_back, seconds=RESET_S,
    ),
    Change(
        "/groups/reset-queue", "Move the group in a queue", ResetQueue, reset_queue, Moved,
        preview=preview_queue, previewed=Moved, back=_back, seconds=RESET_S,
    ),
    Change(
        "/groups/skip", "Skip the backlog", SkipBacklog, skip, Moved, preview=preview_skip,
        previewed=Moved, back=_back, seconds=RESET_S,
    ),
)  # fmt: skip
