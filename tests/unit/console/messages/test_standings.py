"""Where a group stands with a message, by its offset and by what redelivery has stored."""

from __future__ import annotations

import pytest

from cometmq.client.admin import Redelivery, Track, TrackKind
from cometmq.console.messages.standings import standing_of
from cometmq.model.offsets import QueueOffset
from support.clients.consumer_inputs import stored

MESSAGE = stored(5)
NONE = Redelivery([], [], [])


@pytest.mark.parametrize(
    ("kind", "committed", "state"),
    [
        (TrackKind.CONSUMED, 6, "consumed"),
        (TrackKind.CONSUMED_BUT_FILTERED, 6, "filtered"),
        (TrackKind.NOT_CONSUME_YET, 5, "not consumed yet"),
        (TrackKind.NOT_ONLINE, 6, "consumed"),
        (TrackKind.NOT_ONLINE, 5, "not consumed yet"),
        (TrackKind.NOT_ONLINE, None, "not consumed yet"),
        (TrackKind.PULL, None, "unknown"),
        (TrackKind.BROADCAST, None, "unknown"),
        (TrackKind.UNKNOWN, None, "unknown"),
    ],
)
def test_without_redelivery_the_committed_offset_counts(
    kind: TrackKind, committed: int | None, state: str
) -> None:
    offset = None if committed is None else QueueOffset(committed)
    track = Track("clerks", kind, offset)
    assert standing_of(track, NONE, MESSAGE, is_retry_consumed=False).state == state


def test_what_redelivery_has_stored_counts_before_the_offset() -> None:
    track = Track("clerks", TrackKind.CONSUMED, QueueOffset(6))
    retry = stored(0, topic="%RETRY%clerks")
    waiting = stored(1, topic="SCHEDULE_TOPIC_XXXX")
    dead = stored(2, topic="%DLQ%clerks")

    def state(copies: Redelivery, *, is_retry_consumed: bool) -> tuple[str, int]:
        found = standing_of(track, copies, MESSAGE, is_retry_consumed=is_retry_consumed)
        return found.state, len(found.copies)

    assert state(Redelivery([retry], [], []), is_retry_consumed=False) == ("not consumed yet", 1)
    assert state(Redelivery([retry], [], []), is_retry_consumed=True) == ("consumed", 1)
    assert state(Redelivery([retry], [waiting], []), is_retry_consumed=True) == ("retry waits", 1)
    assert state(Redelivery([retry], [], [dead]), is_retry_consumed=True) == ("dead-lettered", 2)


def test_offsets_do_not_show_what_pop_consumers_acknowledge() -> None:
    copies = Redelivery([stored(0, topic="%RETRY%poppers_orders")], [], [])
    track = Track("poppers", TrackKind.PULL)
    found = standing_of(track, copies, MESSAGE, is_retry_consumed=True)
    assert (found.state, found.retries) == ("unknown", 1)
    assert found.detail == "retry 0; offsets do not show acknowledgements"


def test_an_error_of_the_offset_makes_the_state_unknown() -> None:
    track = Track("clerks", TrackKind.NOT_ONLINE, why="no broker")
    found = standing_of(track, NONE, MESSAGE, is_retry_consumed=False)
    assert (found.state, found.detail) == ("unknown", "no broker")
