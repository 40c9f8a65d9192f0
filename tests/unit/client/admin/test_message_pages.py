"""Pages of messages: the order of several queues, deleted offsets, and bounds of ranges."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client.admin.message_pages import _Merge
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from support.clients.consumer_inputs import stored_in

A, B = (MessageQueue("%DLQ%billing-desk", broker, 0) for broker in ("a", "b"))
FOREVER_MS = 2**63 - 1


class Queues:
    """Queues with store times by offset, whose oldest offsets may be deleted."""

    def __init__(self, times: Mapping[MessageQueue, Mapping[int, int]], pull_max: int = 2) -> None:
        self.times = {queue: dict(each) for queue, each in times.items()}
        self._pull_max = pull_max
        self.pulls = 0

    def pull(self, queue: MessageQueue, offset: int) -> PullResult:
        self.pulls += 1
        there = sorted(self.times[queue])
        found = [each for each in there if each >= offset][: self._pull_max]
        status, following = PullStatus.FOUND, found[-1] + 1 if found else offset
        if not there or offset > there[-1]:
            status = PullStatus.NO_NEW_MESSAGE
        elif offset < there[0]:
            status, following, found = PullStatus.OFFSET_ILLEGAL, there[0], []
        return PullResult(
            status=status,
            messages=[
                stored_in(queue, each, store_time_ms=self.times[queue][each]) for each in found
            ],
            next_offset=QueueOffset(following),
            min_offset=QueueOffset(there[0] if there else 0),
            max_offset=QueueOffset(there[-1] + 1 if there else 0),
        )


def taken(merge: _Merge, queues: Queues, limit: int = 100) -> list[int]:
    """Take messages as a page does, and return their store times."""
    found: list[int] = []
    while len(found) < limit:
        while (queue := merge.wanting) is not None:
            merge.add(queue, queues.pull(queue, merge.rest[queue].start))
        one = merge.take()
        if one is None:
            break
        found.append(one.store_time_ms)
    return found


def test_messages_of_two_queues_come_by_store_time_over_several_pages() -> None:
    queues = Queues({A: {0: 10, 1: 30, 2: 31, 3: 60}, B: {0: 20, 1: 40, 2: 50}})

    first = _Merge({A: range(4), B: range(3)}, 0, FOREVER_MS)
    one = taken(first, queues, 3)
    second = _Merge(dict(first.rest), 0, FOREVER_MS)

    assert one == [10, 20, 30]
    assert first.rest == {A: range(2, 4), B: range(1, 3)}
    assert taken(second, queues) == [31, 40, 50, 60]
    assert second.rest == {}


def test_what_is_stored_after_the_first_page_is_in_none() -> None:
    queues = Queues({A: {0: 10, 1: 20, 2: 30}})

    merge = _Merge({A: range(2)}, 0, FOREVER_MS)

    assert taken(merge, queues) == [10, 20]
    assert merge.rest == {}


def test_only_messages_of_the_time_range_are_taken_and_reading_ends_behind_it() -> None:
    queues = Queues({A: {each: 10 * each for each in range(100)}})

    merge = _Merge({A: range(100)}, 35, 70)

    assert taken(merge, queues) == [40, 50, 60]
    assert merge.rest == {}
    assert queues.pulls <= 5


def test_deleted_offsets_are_counted_and_passed_over() -> None:
    queues = Queues({A: {5: 50, 6: 60}, B: {9: 90}})

    merge = _Merge({A: range(7), B: range(3)}, 0, FOREVER_MS)

    assert taken(merge, queues) == [50, 60]
    assert merge.deleted == 5 + 3
    assert merge.rest == {}


def test_a_queue_that_has_become_shorter_ends() -> None:
    queues = Queues({A: {0: 10}, B: {}})

    merge = _Merge({A: range(5), B: range(2)}, 0, FOREVER_MS)

    assert taken(merge, queues) == [10]
    assert merge.rest == {}
