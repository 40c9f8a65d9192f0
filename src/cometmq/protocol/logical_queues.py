"""The rules of the logical queues of static topics: items, offsets, the checks of a mapping.

A logical queue is a list of items, the oldest first. An item is one stretch of the queue: from its
logical offset on, the messages are in one physical queue of one broker. The broker of the last item
leads the queue. The logical offset of the last item may be undecided while the queue moves.

    logical  = item.logic_offset + physical - item.start_offset

Source: LogicQueueMappingItem, TopicQueueMappingUtils and TopicQueueMappingContext, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)

UNDECIDED = -1
GLOBAL_SCOPE = "__global__"
LOGICAL_PREFIX = "__syslo__"
BLOCK = 10_000
"""The unit in which RocketMQ's tool leaves room behind the end of an item."""
ITEMS_MAX = 1_000
"""The items of one logical queue."""
MAPPING_BYTES_MAX = 1024 * 1024
"""The size of the part of one broker as JSON: about 8,000 items."""

Items = Sequence[LogicQueueMappingItem]


class InvalidMappingError(CometError):
    """A mapping cannot be that of a static topic, for the reason in the text."""


def logical_broker_name(scope: str = GLOBAL_SCOPE) -> str:
    """Return the broker name in the queues of a static topic; no broker has this name."""
    return LOGICAL_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


# --- one item -------------------------------------------------------------------------------------


def is_decided(item: LogicQueueMappingItem) -> bool:
    """Return whether the logical offset of an item is decided."""
    return item.logic_offset >= 0


def has_end(item: LogicQueueMappingItem) -> bool:
    """Return whether the item says where it ends."""
    return item.end_offset > item.start_offset


def physical_offset(item: LogicQueueMappingItem, offset: int) -> int:
    """Return the physical offset of a logical one, which may lie behind the end of the item."""
    return offset - item.logic_offset + item.start_offset


def logical_offset(item: LogicQueueMappingItem, offset: int) -> int:
    """Return the logical offset of a physical one in a decided item."""
    return item.logic_offset + max(offset - item.start_offset, 0)


def stored_offset(item: LogicQueueMappingItem, offset: int) -> int:
    """Return the logical offset of a message that was stored; -1 while the item is undecided."""
    if not is_decided(item):
        return UNDECIDED
    if has_end(item):
        offset = min(offset, item.end_offset)
    return logical_offset(item, offset)


def first_free_offset(items: Items) -> int:
    """Return the logical offset behind all that the items say about themselves."""
    last = items[-1]
    if last.end_offset >= last.start_offset:
        return last.logic_offset + last.end_offset - last.start_offset
    return last.logic_offset


# --- the items of one queue -----------------------------------------------------------------------


def index_for(items: Items, offset: int) -> int | None:
    """Return the number of the item that has a logical offset; None if all are undecided.

    Offsets in the gap behind an item belong to it. Offsets before the first item belong to the
    first.
    """
    first = None
    for index in range(len(items) - 1, -1, -1):
        if is_decided(items[index]):
            if offset >= items[index].logic_offset:
                return index
            first = index
    return first


def last_decided(items: Items) -> int | None:
    """Return the number of the newest item whose logical offset is decided."""
    return next((i for i in range(len(items) - 1, -1, -1) if is_decided(items[i])), None)


def next_decided(items: Items, index: int) -> int | None:
    """Return the number of the item behind another one; None if there is none to read yet."""
    following = index + 1
    return following if following < len(items) and is_decided(items[following]) else None


def end_of(items: Items, index: int) -> int | None:
    """Return the physical offset at which an item ends at the latest; None if it is open.

    Behind it are offsets of the next item, even if its physical queue has more messages.
    """
    item = items[index]
    ends = [item.end_offset] if has_end(item) else []
    following = next_decided(items, index)
    if following is not None:
        ends.append(physical_offset(item, items[following].logic_offset))
    return min(ends, default=None)


def round_up(offset: int, block: int = BLOCK) -> int:
    """Return where RocketMQ's tool lets an item begin behind an item that ends at an offset.

    At least half a block is left, for messages that the old broker may still store.
    """
    whole, rest = divmod(offset, block)
    return (whole + 1 if rest < block // 2 else whole + 2) * block


# --- mappings -------------------------------------------------------------------------------------


def info_of(detail: TopicQueueMappingDetail) -> TopicQueueMappingInfo:
    """Return what name servers get: the queues that the broker of a mapping leads."""
    led = {
        queue_id: items[-1].queue_id
        for queue_id, items in (detail.hosted_queues or {}).items()
        if items and items[-1].bname == detail.bname
    }
    return TopicQueueMappingInfo(
        topic=detail.topic,
        scope=detail.scope,
        total_queues=detail.total_queues,
        bname=detail.bname,
        epoch=detail.epoch,
        dirty=detail.dirty,
        curr_id_map=dict(sorted(led.items())),
    )


def check_items(queue_id: int, items: Items) -> None:
    """Check that items follow each other.

    Raises:
        InvalidMappingError: they do not; the texts begin as those of RocketMQ do.
    """
    if not items:
        raise InvalidMappingError(f"The item list of queue {queue_id} is null or empty")
    if len(items) > ITEMS_MAX:
        raise InvalidMappingError(
            f"queue {queue_id} has {len(items)} items, expected at most {ITEMS_MAX}"
        )
    following: LogicQueueMappingItem | None = None
    for item in reversed(items):
        if item.start_offset < 0 or item.gen < 0 or item.queue_id < 0:
            raise InvalidMappingError(
                f"The field is illegal, should not be negative{_where(queue_id, item)}"
            )
        if not item.bname:
            raise InvalidMappingError(f"The broker of the item is empty{_where(queue_id, item)}")
        if following is not None:
            if not is_decided(item):
                raise InvalidMappingError(
                    f"The non-latest item has negative logic offset{_where(queue_id, item)}"
                )
            if item.gen >= following.gen:
                raise InvalidMappingError(
                    f"The gen does not increase monotonically{_where(queue_id, item)}"
                )
        if item.end_offset != UNDECIDED and item.end_offset < item.start_offset:
            raise InvalidMappingError(
                f"The endOffset is smaller than the start offset{_where(queue_id, item)}"
            )
        if following is not None and is_decided(following):
            if item.logic_offset >= following.logic_offset:
                raise InvalidMappingError(
                    f"The base logic offset does not increase monotonically{_where(queue_id, item)}"
                )
            if first_free_offset([item]) >= following.logic_offset:
                raise InvalidMappingError(
                    f"The max logic offset does not increase monotonically{_where(queue_id, item)}"
                )
        following = item


def check_physical_queues(details: Iterable[TopicQueueMappingDetail]) -> None:
    """Check that no physical queue has messages of two items.

    Raises:
        InvalidMappingError: one has.
    """
    users: dict[tuple[str, int], tuple[int, int]] = {}
    for detail in details:
        for queue_id, items in (detail.hosted_queues or {}).items():
            for item in items:
                user = queue_id, item.gen
                known = users.setdefault((item.bname, item.queue_id), user)
                if known != user:
                    raise InvalidMappingError(
                        f"physical queue {item.queue_id} of broker {item.bname} has item"
                        f" {known[1]} of queue {known[0]} and item {user[1]} of queue {user[0]},"
                        " expected one item"
                    )


def _where(queue_id: int, item: LogicQueueMappingItem) -> str:
    return (
        f", met gen={item.gen} bname={item.bname[:80]} queueId={item.queue_id}"
        f" logicOffset={item.logic_offset} startOffset={item.start_offset}"
        f" endOffset={item.end_offset} in queue {queue_id}"
    )
