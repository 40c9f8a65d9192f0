"""Where each group of a topic stands with one message."""

from __future__ import annotations

from typing import Literal

import msgspec

from cometmq.client import StoredMessage
from cometmq.client.admin import Redelivery, Track, TrackKind
from cometmq.console.messages.page import PlaceQuery, find
from cometmq.console.pages import Page, PageNumber, Paging, paged
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError

GROUPS_SHOWN = 25
"""Groups of a page: each takes about seven requests."""
State = Literal[
    "consumed", "not consumed yet", "filtered", "retry waits", "dead-lettered", "unknown"
]
_OF_KIND: dict[TrackKind, tuple[State, str]] = {
    TrackKind.CONSUMED: ("consumed", ""),
    TrackKind.CONSUMED_BUT_FILTERED: ("filtered", "the subscription does not match its tag"),
    TrackKind.NOT_CONSUME_YET: ("not consumed yet", ""),
    TrackKind.PULL: ("unknown", "the members pull queues of their choice, or pop"),
    TrackKind.BROADCAST: ("unknown", "broadcast: each member stores its own offsets"),
    TrackKind.UNKNOWN: ("unknown", ""),
}


class StandingsQuery(PlaceQuery):
    """The queue and queue offset of a message, and which part of the groups."""

    page: PageNumber = 1


class CopyPlace(msgspec.Struct):
    """A copy of the message that redelivery has stored."""

    topic: str
    broker: str
    queue: int
    offset: int
    stored_time_ms: int
    retry: int


class Standing(msgspec.Struct):
    """Where one group stands."""

    group: str
    state: State
    detail: str
    committed: int | None
    """The committed offset of the group in the queue of the message."""
    retries: int
    copies: list[CopyPlace]
    """The copies in the retry topic and the dead-letter topic, the newest last."""


class Standings(msgspec.Struct):
    """Where groups stand with a message."""

    message_id: str
    paging: Paging
    groups: list[Standing]


async def standings(reads: Reads, query: StandingsQuery) -> Standings:
    """Return where the groups that read the topic of a message stand with it."""
    message = await find(reads, query.topic, query.broker, query.queue, query.offset)
    names = sorted(await reads.admin.groups_of_topic(query.topic))
    shown, paging = paged(names, query.page, GROUPS_SHOWN)

    async def standing(group: str) -> Standing:
        [track] = await reads.admin.track(message, [group])
        copies = await reads.admin.redelivery(group, message)
        is_done = await _is_consumed(reads, group, copies.retries)
        return standing_of(track, copies, message, is_retry_consumed=is_done)

    found = await reads.each(shown, standing)
    return Standings(
        message.message_id,
        paging,
        [
            Standing(group, "unknown", str(each), None, 0, [])
            if isinstance(each, CometError)
            else each
            for group, each in zip(shown, found, strict=True)
        ],
    )


async def _is_consumed(reads: Reads, group: str, retries: list[StoredMessage]) -> bool:
    """Return whether the group has committed an offset after the last retry."""
    if not retries:
        return False
    last = retries[-1]
    committed = (await reads.admin.committed(group, last.topic)).get(last.queue)
    return committed is not None and committed > last.queue_offset


def standing_of(
    track: Track, copies: Redelivery, message: StoredMessage, *, is_retry_consumed: bool
) -> Standing:
    """Return where a group stands: what redelivery has stored counts before the offset.

    Args:
        track: what the committed offset of the queue shows.
        copies: what redelivery has stored.
        message: the message.
        is_retry_consumed: whether the group has committed an offset after the last retry.
    """
    retries = len(copies.retries)
    committed = None if track.committed is None else int(track.committed)
    state, detail = _state(track, message)
    if copies.dead_letters:
        state, detail = "dead-lettered", ""
    elif copies.scheduled:
        state, detail = "retry waits", f"retry {copies.scheduled[-1].reconsume_times}"
    elif copies.retries:
        detail = f"retry {copies.retries[-1].reconsume_times}"
        if track.kind is TrackKind.PULL:  # pops acknowledge each message, which no offset shows
            state, detail = "unknown", f"{detail}; offsets do not show acknowledgements"
        else:
            state = "consumed" if is_retry_consumed else "not consumed yet"
    places = [_place(each) for each in (*copies.retries, *copies.dead_letters)]
    return Standing(track.group, state, detail, committed, retries, places)


def _state(track: Track, message: StoredMessage) -> tuple[State, str]:
    if track.kind is not TrackKind.NOT_ONLINE:
        state, detail = _OF_KIND[track.kind]
        return state, track.why or detail
    if track.why:
        return "unknown", track.why
    is_consumed = track.committed is not None and track.committed > message.queue_offset
    return "consumed" if is_consumed else "not consumed yet", "no member is online"


def _place(message: StoredMessage) -> CopyPlace:
    return CopyPlace(
        *(message.topic, message.broker_name, message.queue_id, int(message.queue_offset)),
        *(message.store_time_ms, message.reconsume_times),
    )


PAGE = Page(
    "/messages/groups", "Groups of a message", "messages/standings.html", StandingsQuery, Standings,
    standings,
)  # fmt: skip
