"""The parts of a static topic at all its brokers: their checks, changes, and the queues they make.

Nothing here sends a request. A part is the settings of the topic on one broker and its mapping.

Source: TopicQueueMappingUtils and MQAdminUtils, RocketMQ 5.3 (the checks and their texts; which
queues move). RocketMQ shows the physical offset of a group beside the logical end of a queue.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cometmq.client.errors import ClientError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.group import OffsetWrapper
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.bodies.topic import TopicConfigAndQueueMapping, TopicOffset, detail_of
from cometmq.protocol.logical_queues import (
    MAPPING_BYTES_MAX,
    UNDECIDED,
    InvalidMappingError,
    check_items,
    check_physical_queues,
    end_of,
    index_for,
    is_decided,
    last_decided,
    logical_broker_name,
    logical_offset,
    stored_offset,
)

EPOCH_STEP_MS = 1_000
"""A new epoch is larger than the old one by at least this, even if clocks differ."""

Parts = dict[str, TopicConfigAndQueueMapping]
"""The parts of a static topic, by broker name."""


class QueueMove(NamedTuple):
    """A logical queue that gets another broker.

    Example:
        move = QueueMove(0, "broker-a", "broker-b")
        print(f"queue {move.queue_id}: {move.source} -> {move.target}")
    """

    queue_id: int
    source: str
    target: str


class StaticPlan(msgspec.Struct):
    """The parts of a static topic after a change, and the order in which brokers get them.

    Example:
        plan = StaticPlan("orders", 1, {}, [QueueMove(0, "broker-a", "broker-b")])
        print(plan.gaining, plan.losing)
    """

    topic: str
    epoch: int
    parts: Parts
    moves: list[QueueMove] = []
    """The queues that get another broker."""

    @property
    def gaining(self) -> list[str]:
        """The brokers that get queues; they accept messages first."""
        return sorted({move.target for move in self.moves})

    @property
    def losing(self) -> list[str]:
        """The brokers that lose queues; from then on they refuse messages."""
        return sorted({move.source for move in self.moves})


def hosted_by(part: TopicConfigAndQueueMapping) -> dict[int, list[LogicQueueMappingItem]]:
    """Return the items of each logical queue in a part."""
    detail = detail_of(part)
    if detail.hosted_queues is None:
        detail.hosted_queues = {}
    return detail.hosted_queues


def leaders_of(parts: Mapping[str, TopicConfigAndQueueMapping]) -> dict[int, str]:
    """Return the broker that leads each logical queue.

    Of two it is the one with the newer item, then the one whose item is decided.
    """
    found: dict[int, tuple[tuple[int, bool, int], str]] = {}
    for name, part in parts.items():
        for queue_id, items in hosted_by(part).items():
            last = items[-1]
            rank = last.gen, is_decided(last), detail_of(part).epoch
            if last.bname == name and (queue_id not in found or found[queue_id][0] < rank):
                found[queue_id] = rank, name
    return {queue_id: name for queue_id, (_, name) in sorted(found.items())}


def brokers_of_items(parts: Mapping[str, TopicConfigAndQueueMapping]) -> list[str]:
    """Return the brokers that have items of logical queues."""
    leaders = leaders_of(parts).items()
    lists = [hosted_by(parts[name])[queue_id] for queue_id, name in leaders]
    return sorted({item.bname for items in lists for item in items})


def check_parts(parts: Mapping[str, TopicConfigAndQueueMapping]) -> int:
    """Check that the parts of all brokers agree; return the number of logical queues.

    Raises:
        ClientError: they do not.
    """
    first: TopicQueueMappingDetail | None = None
    for name, part in parts.items():
        detail = detail_of(part)
        first = first or detail
        if detail.dirty:
            raise ClientError(f"The mapping info is dirty in broker  {name}")
        if detail.bname != name:
            raise ClientError(f"The broker name is not equal {detail.bname} != {name}")
        for what, met, expected in (
            ("scope does not match", detail.scope, first.scope),
            ("epoch does not match", detail.epoch, first.epoch),
            ("total queue number does not match", detail.total_queues, first.total_queues),
        ):
            if met != expected:
                raise ClientError(f"{what} {expected} != {met} in {name}")
    total = first.total_queues if first else 0
    _check_leaders(parts, total)
    return total


def _check_leaders(parts: Mapping[str, TopicConfigAndQueueMapping], total: int) -> None:
    led: dict[int, list[str]] = {}
    try:
        for name, part in parts.items():
            if part.read_queue_nums < part.write_queue_nums:
                raise ClientError(
                    f"broker {name} reads {part.read_queue_nums} and writes"
                    f" {part.write_queue_nums} queues, expected at least as many to read"
                )
            for queue_id, items in hosted_by(part).items():
                check_items(queue_id, items)
                _check_brokers(parts, items)
                if items[-1].bname == name:
                    led.setdefault(queue_id, []).append(name)
        check_physical_queues(detail_of(part) for part in parts.values())
    except InvalidMappingError as problem:
        raise ClientError(str(problem)) from problem
    if twice := [queue_id for queue_id, names in led.items() if len(names) > 1]:
        raise ClientError(
            f"queue {min(twice)} is led by {' and '.join(led[min(twice)])}, expected one broker"
        )
    if sorted(led) != list(range(total)):
        raise ClientError(
            "The total queue number in config does not match the real hosted queues"
            f" {total} != {len(led)}"
        )


def _check_brokers(
    parts: Mapping[str, TopicConfigAndQueueMapping], items: Sequence[LogicQueueMappingItem]
) -> None:
    for item in items:
        if item.start_offset != 0:
            raise ClientError(f"The start offset does not begin from 0, met {item.start_offset}")
        part = parts.get(item.bname)
        if part is None:
            raise ClientError(f"The broker of item does not exist: {item.bname}")
        if item.queue_id >= part.write_queue_nums:
            raise ClientError(
                f"The physical queue id is overflow: met {item.queue_id} of broker {item.bname},"
                f" expected less than {part.write_queue_nums}"
            )


def check_sizes(parts: Mapping[str, TopicConfigAndQueueMapping]) -> None:
    """Check that brokers accept parts of this size, before the first one gets its part.

    Raises:
        ClientError: a part is too large.
    """
    for name, part in parts.items():
        size = len(detail_of(part).encode())
        if size > MAPPING_BYTES_MAX:
            raise ClientError(
                f"the mapping of topic {detail_of(part).topic} at broker {name} would have {size}"
                f" bytes, expected at most {MAPPING_BYTES_MAX}: spread its queues over more"
                " brokers, or wait until old messages have expired"
            )


def next_epoch(parts: Mapping[str, TopicConfigAndQueueMapping], now_ms: int) -> int:
    """Return an epoch that is newer than that of each part."""
    epochs = [detail_of(part).epoch + EPOCH_STEP_MS for part in parts.values()]
    return max([now_ms, *epochs])


def with_epoch(
    parts: Mapping[str, TopicConfigAndQueueMapping], epoch: int, total: int | None = None
) -> Parts:
    """Return copies of parts with another epoch and number of logical queues."""
    copied: Parts = {}
    for name, part in parts.items():
        copied[name] = new = msgspec.convert(msgspec.to_builtins(part), TopicConfigAndQueueMapping)
        detail = detail_of(new)
        detail.epoch = epoch
        detail.total_queues = detail.total_queues if total is None else total
    return copied


def empty_part(topic: str, broker: str) -> TopicConfigAndQueueMapping:
    """Return the part of a broker that has no queue of a static topic."""
    return TopicConfigAndQueueMapping(
        topic_name=topic,
        read_queue_nums=0,
        write_queue_nums=0,
        mapping_detail=TopicQueueMappingDetail(
            topic=topic, bname=broker, curr_id_map={}, hosted_queues={}
        ),
    )


def add_queues(parts: Parts, targets: Iterable[str], first: int, total: int) -> None:
    """Put new logical queues on the brokers that lead the fewest."""
    counts = dict.fromkeys(targets, 0)
    for name in leaders_of(parts).values():
        counts[name] = counts.get(name, 0) + 1
    for queue_id in range(first, total):
        fewest = min(counts.values())
        name = random.choice([each for each, count in counts.items() if count == fewest])
        counts[name] += 1
        item = _new_item(parts[name], name, gen=0, logic_offset=0)
        hosted_by(parts[name])[queue_id] = [item]


def _new_item(
    part: TopicConfigAndQueueMapping, broker: str, *, gen: int, logic_offset: int
) -> LogicQueueMappingItem:
    """Return an item on a physical queue that the broker gets for it."""
    item = LogicQueueMappingItem(
        gen=gen, queue_id=part.write_queue_nums, bname=broker, logic_offset=logic_offset
    )
    part.write_queue_nums += 1
    part.read_queue_nums = max(part.read_queue_nums, part.write_queue_nums)
    return item


def balanced_moves(leaders: Mapping[int, str], targets: Iterable[str]) -> list[QueueMove]:
    """Return the fewest moves after which only the targets lead queues, each about as many.

    The surplus stays with the brokers that lead the most queues now.
    """
    led: dict[str, list[int]] = {name: [] for name in sorted(set(targets))}
    homeless: list[tuple[int, str]] = []
    for queue_id, name in sorted(leaders.items()):
        if name in led:
            led[name].append(queue_id)
        else:
            homeless.append((queue_id, name))
    least, surplus = divmod(len(leaders), len(led))
    by_count = sorted(led, key=lambda name: -len(led[name]))
    wanted = {name: least + (number < surplus) for number, name in enumerate(by_count)}
    for name, queues in led.items():
        homeless += [(queue_id, name) for queue_id in queues[wanted[name] :]]
    moves = []
    for queue_id, source in sorted(homeless):
        target = max(led, key=lambda name: wanted[name] - len(led[name]))
        led[target].append(queue_id)
        moves.append(QueueMove(queue_id, source, target))
        if source in led:
            led[source].remove(queue_id)
    return moves


def move_queues(parts: Parts, moves: Iterable[QueueMove]) -> None:
    """Add an undecided item to each queue that moves, in the parts of its old and new broker."""
    for queue_id, source, target in moves:
        items = hosted_by(parts[source])[queue_id]
        last = _new_item(parts[target], target, gen=items[-1].gen + 1, logic_offset=UNDECIDED)
        hosted_by(parts[source])[queue_id] = [*items, last]
        hosted_by(parts[target])[queue_id] = [*items, last]


def decide(parts: Parts, queue_id: int, offset: int) -> None:
    """Set the undecided begin of a queue's last item in the parts that have this item."""
    name = leaders_of(parts)[queue_id]
    gen = hosted_by(parts[name])[queue_id][-1].gen
    for part in parts.values():
        items = hosted_by(part).get(queue_id)
        if items and items[-1].gen == gen and not is_decided(items[-1]):
            decided = msgspec.structs.replace(items[-1], logic_offset=offset)
            hosted_by(part)[queue_id] = [*items[:-1], decided]


def renew_stale_lists(parts: Mapping[str, TopicConfigAndQueueMapping]) -> None:
    """Renew the last items of lists that have missed the end of a move, as their leaders have them.

    A leader that is lost may itself have missed the end: then another broker knows it.

    An undecided item that the leader does not have is one of a move that was given up: its broker
    was away, and clients did not know that it leads the queue. That broker checks that it has no
    message.
    """
    for queue_id, name in leaders_of(parts).items():
        leading = hosted_by(parts[name])[queue_id]
        if not is_decided(leading[-1]):
            leading = hosted_by(parts[name])[queue_id] = _decided(parts, queue_id, leading)
        newest = {item.gen: item for item in leading}
        for part in parts.values():
            items = hosted_by(part).get(queue_id)
            if not items or is_decided(items[-1]):
                continue
            last, known = items[-1], newest.get(items[-1].gen)
            if known is None or (known.bname, known.queue_id) != (last.bname, last.queue_id):
                hosted_by(part)[queue_id] = leading
            else:
                hosted_by(part)[queue_id] = [*items[:-1], known]


def _decided(
    parts: Mapping[str, TopicConfigAndQueueMapping],
    queue_id: int,
    items: list[LogicQueueMappingItem],
) -> list[LogicQueueMappingItem]:
    """Return a list with its last item decided, if a part has it so."""
    last = items[-1]
    for part in parts.values():
        for item in hosted_by(part).get(queue_id, ()):
            same = (item.gen, item.bname, item.queue_id) == (last.gen, last.bname, last.queue_id)
            if same and is_decided(item):
                return [*items[:-1], item]
    return items


# --- logical queues, from what brokers say about their physical ones --------------------------


def _logical_queues(
    topic: str, parts: Parts
) -> Iterator[tuple[MessageQueue, list[LogicQueueMappingItem]]]:
    """Yield the logical queues that have an offset, each with its items."""
    for queue_id, name in leaders_of(parts).items():
        items = hosted_by(parts[name])[queue_id]
        if last_decided(items) is not None:
            yield MessageQueue(topic, logical_broker_name(), queue_id), items


def logical_topic_stats(
    topic: str, parts: Parts, stats: Mapping[MessageQueue, TopicOffset]
) -> dict[MessageQueue, TopicOffset]:
    """Return the bounds of the logical queues of a topic.

    Args:
        topic: its name.
        parts: its mappings at all brokers.
        stats: the bounds of its physical queues.
    """
    found: dict[MessageQueue, TopicOffset] = {}
    for queue, items in _logical_queues(topic, parts):
        first, last = items[index_for(items, 0) or 0], items[last_decided(items) or 0]
        low = stats.get(_physical(topic, first), TopicOffset())
        high = stats.get(_physical(topic, last), TopicOffset())
        newest = stats.get(_physical(topic, items[-1]), TopicOffset())
        found[queue] = TopicOffset(
            min_offset=max(stored_offset(first, low.min_offset), 0),
            max_offset=max(logical_offset(last, high.max_offset), 0),
            last_update_timestamp=newest.last_update_timestamp,
        )
    return found


def logical_consume_stats(
    topic: str, parts: Parts, stats: Mapping[MessageQueue, OffsetWrapper]
) -> dict[MessageQueue, OffsetWrapper]:
    """Return the offsets of a group in the logical queues of a topic; see `logical_topic_stats`.

    A queue where the group has no offset in any item is shown with the first offset.
    """
    found: dict[MessageQueue, OffsetWrapper] = {}
    for queue, items in _logical_queues(topic, parts):
        last = items[last_decided(items) or 0]
        newest = stats.get(_physical(topic, last), OffsetWrapper())
        consumed, row = _consumed(topic, items, stats)
        first = items[index_for(items, 0) or 0]
        offset = first.logic_offset if consumed is None else consumed
        found[queue] = OffsetWrapper(
            broker_offset=logical_offset(last, newest.broker_offset),
            consumer_offset=offset,
            pull_offset=offset + max(row.pull_offset - row.consumer_offset, 0),
            last_timestamp=row.last_timestamp,
        )
    return found


def _consumed(
    topic: str,
    items: list[LogicQueueMappingItem],
    stats: Mapping[MessageQueue, OffsetWrapper],
) -> tuple[int | None, OffsetWrapper]:
    """Return the logical offset of a group, as the leader of the queue does, and its row."""
    behind: tuple[int | None, OffsetWrapper] = None, OffsetWrapper()
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        row = stats.get(_physical(topic, item))
        if not is_decided(item) or row is None or row.consumer_offset < 0:
            continue
        if row.consumer_offset <= item.start_offset and index > 0:
            behind = item.logic_offset, row
            continue
        end = end_of(items, index)
        ended = row.broker_offset if end is None else min(end, row.broker_offset)
        if behind[0] is not None and row.consumer_offset >= ended:
            return behind
        return logical_offset(item, row.consumer_offset), row
    return behind


def _physical(topic: str, item: LogicQueueMappingItem) -> MessageQueue:
    return MessageQueue(topic, item.bname, item.queue_id)
