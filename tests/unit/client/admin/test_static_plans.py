"""Plans of static topics, without a server."""

from __future__ import annotations

import pytest

from cometmq.client.admin.static_plans import (
    Parts,
    add_queues,
    check_sizes,
    empty_part,
    hosted_by,
    renew_stale_lists,
)
from cometmq.client.errors import ClientError
from cometmq.protocol.bodies.route import LogicQueueMappingItem
from cometmq.protocol.logical_queues import UNDECIDED


def test_a_mapping_that_a_broker_would_refuse_is_refused_before_any_broker_gets_a_part() -> None:
    parts = {name: empty_part("T", name) for name in ("a", "b")}
    add_queues(parts, parts, 0, 14_000)
    check_sizes(parts)
    add_queues(parts, parts, 14_000, 24_000)

    with pytest.raises(ClientError, match=r"of topic T at broker a would have [0-9]+ bytes"):
        check_sizes(parts)


def item(gen: int, broker: str, begin: int = 0) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, bname=broker, queue_id=0, logic_offset=begin)


def parts_with(**lists: list[LogicQueueMappingItem]) -> Parts:
    """The parts of some brokers, each with a list of items of queue 0."""
    parts = {name: empty_part("T", name) for name in lists}
    for name, items in lists.items():
        hosted_by(parts[name])[0] = items
    return parts


OPEN = UNDECIDED


@pytest.mark.parametrize(
    ("lists", "renewed"),
    [
        pytest.param(
            {"a": [item(0, "a"), item(1, "b", OPEN)], "b": [item(0, "a"), item(1, "b", 7)]},
            {"a": [item(0, "a"), item(1, "b", 7)], "b": [item(0, "a"), item(1, "b", 7)]},
            id="a broker missed where the new item begins",
        ),
        pytest.param(
            {"b": [item(0, "a"), item(1, "b", OPEN)], "c": [item(0, "a"), item(1, "c", 7)]},
            {"b": [item(0, "a"), item(1, "c", 7)], "c": [item(0, "a"), item(1, "c", 7)]},
            id="a move to a broker was given up while it was away",
        ),
        pytest.param(
            {"a": [item(0, "a"), item(1, "b", 7)], "b": [item(0, "a"), item(1, "b", OPEN)]},
            {"a": [item(0, "a"), item(1, "b", 7)], "b": [item(0, "a"), item(1, "b", 7)]},
            id="the leader is lost and missed where its item begins",
        ),
        pytest.param(
            {
                "a": [item(0, "a"), item(1, "b", OPEN)],
                "b": [item(0, "a"), item(1, "b", OPEN)],
            },
            {
                "a": [item(0, "a"), item(1, "b", OPEN)],
                "b": [item(0, "a"), item(1, "b", OPEN)],
            },
            id="a move has not finished",
        ),
    ],
)
def test_lists_that_missed_the_end_of_a_move_are_renewed(
    lists: dict[str, list[LogicQueueMappingItem]],
    renewed: dict[str, list[LogicQueueMappingItem]],
) -> None:
    parts = parts_with(**lists)
    renew_stale_lists(parts)
    assert {name: hosted_by(part)[0] for name, part in parts.items()} == renewed
