"""The rules by which the part of a static topic may be replaced.

The checks of RocketMQ come first, with their texts. Behind them are those that RocketMQ leaves to
its tool, or to assertions that are off.

Source: TopicQueueMappingManager.updateTopicQueueMapping and TopicQueueMappingUtils, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from cometmq.model.topic import QUEUES_MAX
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.logical_queues import (
    InvalidMappingError,
    check_items,
    check_physical_queues,
    is_decided,
)

Hosted = Mapping[int, list[LogicQueueMappingItem]]


def merged(
    wanted: TopicQueueMappingDetail,
    known: TopicQueueMappingDetail | None,
    *,
    topic: str,
    broker: str,
    force: bool,
    is_unused: Callable[[int], bool] = lambda _: False,
) -> TopicQueueMappingDetail:
    """Return the part that replaces the one that is known.

    Args:
        wanted: the part of the request.
        known: the present part; None for a topic that has none.
        topic: the name in the header of the request.
        broker: the name of this broker.
        force: whether the present part does not bind.
        is_unused: returns whether a physical queue here never had a message. An undecided item on
            such a queue does not bind: a move has been given up.

    Raises:
        InvalidMappingError: the request is refused.
    """
    if wanted.topic != topic or wanted.bname != broker:
        raise InvalidMappingError(
            f"met the mapping of topic {wanted.topic[:300]} of broker {wanted.bname[:300]},"
            f" expected topic {topic} of broker {broker}"
        )
    hosted: Hosted = wanted.hosted_queues or {}
    for queue_id, items in hosted.items():
        check_items(queue_id, items)
    kept: Hosted = (known.hosted_queues if known else None) or {}
    if known is not None and not force:
        binding = {
            queue_id: items[:-1] if _is_given_up(items[-1], broker, is_unused) else items
            for queue_id, items in kept.items()
        }
        _check_follows(wanted, known, hosted, binding if wanted.epoch > known.epoch else kept)
    if not 0 < wanted.total_queues <= QUEUES_MAX:
        raise InvalidMappingError(
            f"totalQueues is {wanted.total_queues}, expected 1 to {QUEUES_MAX}"
        )
    queues = {**kept, **hosted}
    if beyond := [number for number in queues if not 0 <= number < wanted.total_queues]:
        raise InvalidMappingError(
            f"met the logical queue {min(beyond)}, expected 0 to {wanted.total_queues - 1}"
        )
    new = msgspec.structs.replace(
        wanted, dirty=False, curr_id_map={}, hosted_queues=dict(sorted(queues.items()))
    )
    check_physical_queues([new])
    return new


def _check_follows(
    wanted: TopicQueueMappingDetail, known: TopicQueueMappingDetail, hosted: Hosted, kept: Hosted
) -> None:
    """Check that a part may follow the one that is known.

    Raises:
        InvalidMappingError: it may not.
    """
    new, old = wanted.epoch, known.epoch
    if new < old:
        raise InvalidMappingError(f"Can't accept data with small epoch {new} < {old}")
    if wanted.scope != known.scope:
        raise InvalidMappingError(
            f"Can't accept data with unmatched scope {wanted.scope[:80]} != {known.scope}"
        )
    for queue_id, before in kept.items():
        items = hosted.get(queue_id)
        if items is None:
            if new == old:
                raise InvalidMappingError(
                    f"Cannot accept equal epoch with null data of queue {queue_id}"
                )
            continue
        if new == old and _leader(items) != _leader(before):
            raise InvalidMappingError(
                f"The new leader is different but epoch equal: {_leader(items)} !="
                f" {_leader(before)} of queue {queue_id}"
            )
        _check_unchanged(queue_id, items, before)
    if wanted.total_queues < known.total_queues:
        raise InvalidMappingError(
            f"Can't accept data with small totalQueues {wanted.total_queues} < {known.total_queues}"
        )


def _is_given_up(
    last: LogicQueueMappingItem, broker: str, is_unused: Callable[[int], bool]
) -> bool:
    return not is_decided(last) and last.bname == broker and is_unused(last.queue_id)


def _leader(items: list[LogicQueueMappingItem]) -> tuple[int, str, int, int]:
    last = items[-1]
    return last.gen, last.bname, last.queue_id, last.start_offset


def _check_unchanged(
    queue_id: int, items: list[LogicQueueMappingItem], before: list[LogicQueueMappingItem]
) -> None:
    """Check that known items are as they were; the oldest may be gone, with their messages.

    What is undecided may be decided, an open end may be set.

    Raises:
        InvalidMappingError: one has changed, or is missing.
    """
    by_gen = {item.gen: item for item in items}
    for item in before:
        new = by_gen.get(item.gen)
        if new is None:
            if item.gen < items[0].gen:
                continue
            raise InvalidMappingError(
                f"item gen={item.gen} of queue {queue_id} is missing, expected all items that"
                " follow the first one"
            )
        decided = item.logic_offset if is_decided(item) else new.logic_offset
        ended = new.end_offset if item.end_offset < 0 else item.end_offset
        expected = (item.bname, item.queue_id, item.start_offset, decided, ended)
        met = (new.bname, new.queue_id, new.start_offset, new.logic_offset, new.end_offset)
        if met != expected:
            raise InvalidMappingError(
                f"item gen={item.gen} of queue {queue_id} has changed: met"
                f" bname={new.bname[:80]} queueId={new.queue_id} startOffset={new.start_offset}"
                f" logicOffset={new.logic_offset} endOffset={new.end_offset}, expected"
                f" bname={item.bname} queueId={item.queue_id} startOffset={item.start_offset}"
                f" logicOffset={decided} endOffset={ended}"
            )
