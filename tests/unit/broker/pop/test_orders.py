"""Ordered pops: what blocks a queue, and the offset that acknowledgements move."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cometmq.broker.pop.orders import IGNORED, KEPT_MS, UNKNOWN, Orders
from cometmq.model.errors import StoreError
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock

NOW_MS = ManualClock().now_ms()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def orders(tmp_path: Path, clock: ManualClock) -> Orders:
    return made(tmp_path, clock)


def made(folder: Path, clock: ManualClock) -> Orders:
    orders = Orders(JsonFile(folder / "consumerOrderInfo.json", Files()), clock=clock)
    orders.load()
    return orders


def popped(orders: Orders, *offsets: int, attempt: str | None = None) -> dict[int, int]:
    now_ms = orders._clock.now_ms()
    return orders.popped("g", "T", 0, list(offsets), now_ms, 1_000, attempt)


def ack(orders: Orders, offset: int, pop_ms: int = NOW_MS, committed: int = 5) -> int:
    return orders.acknowledge("g", "T", 0, offset, pop_ms, committed)


def blocked(orders: Orders, attempt: str | None = None) -> int:
    return orders.blocked_to_ms("g", "T", 0, attempt)


def test_a_queue_is_blocked_until_all_is_acknowledged_or_visible(
    orders: Orders, clock: ManualClock
) -> None:
    assert not blocked(orders)
    popped(orders, 5, 6, 8)
    assert blocked(orders) == NOW_MS + 1_000
    assert [ack(orders, offset) for offset in (6, 5)] == [5, 8]
    assert blocked(orders)
    assert ack(orders, 8) == 9
    assert not blocked(orders)

    popped(orders, 9)
    clock.advance(1_000)
    assert not blocked(orders)


def test_the_same_attempt_is_not_blocked_and_counts_no_delivery(orders: Orders) -> None:
    assert popped(orders, 5, 6, attempt="a") == {}
    assert blocked(orders, "b")
    assert not blocked(orders, "a")
    assert popped(orders, 5, 6, attempt="a") == {}
    assert popped(orders, 5, 6, 7, attempt="b") == {5: 1, 6: 1}
    assert popped(orders, 6, 7, attempt="c") == {6: 2, 7: 1}


def test_receipts_of_other_pops_and_messages_not_popped(orders: Orders) -> None:
    popped(orders, 5, 6)
    assert ack(orders, 5, pop_ms=NOW_MS - 1) == IGNORED
    assert ack(orders, 7) == UNKNOWN


def test_without_a_known_pop_only_the_next_message_counts(orders: Orders) -> None:
    """After a change of the master no message is skipped."""
    assert ack(orders, 6, committed=5) == IGNORED
    assert ack(orders, 5, committed=5) == 6


def test_a_changed_invisible_time_blocks_for_that_time(orders: Orders, clock: ManualClock) -> None:
    popped(orders, 5, 6)
    orders.change_invisible("g", "T", 0, 5, NOW_MS, NOW_MS + 9_000)
    orders.change_invisible("g", "T", 0, 6, NOW_MS - 1, NOW_MS + 99_000)  # of another pop
    clock.advance(1_000)
    assert blocked(orders) == NOW_MS + 9_000


def test_a_clock_that_is_set_back_blocks_for_no_longer(orders: Orders, clock: ManualClock) -> None:
    popped(orders, 5, 6)
    orders.change_invisible("g", "T", 0, 5, NOW_MS, NOW_MS + 9_000)
    clock.set_wall(NOW_MS - 7_200_000)
    assert blocked(orders) == NOW_MS - 7_200_000 + 9_000


def test_the_file_has_rocketmqs_form(orders: Orders, clock: ManualClock, tmp_path: Path) -> None:
    popped(orders, 5, 6, 8, attempt="a")
    ack(orders, 6)
    orders.save()
    content = json.loads((tmp_path / "consumerOrderInfo.json").read_bytes())
    order = content["table"]["T@g"]["0"]
    assert order == {
        **{"popTime": NOW_MS, "i": 1_000, "o": [5, 1, 3], "l": NOW_MS, "cm": 0b010, "a": "a"},
        **{"ot": {}, "oc": {}},
    }
    again = made(tmp_path, clock)
    assert blocked(again) == NOW_MS + 1_000
    assert ack(again, 5) == 8


def test_a_file_that_is_damaged_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "consumerOrderInfo.json").write_text('{"table": {"T@g": [1]}}')
    with pytest.raises(
        StoreError, match=r"cannot read .*consumerOrderInfo\.json: .*expected .*TOPIC@GROUP"
    ):
        made(tmp_path, clock)


def test_orders_that_are_not_used_are_dropped(orders: Orders, clock: ManualClock) -> None:
    popped(orders, 5)
    orders.popped("g", "T", 3, [1], NOW_MS, 1_000, None)
    orders.popped("g", "gone", 0, [1], NOW_MS, 1_000, None)
    asyncio.run(orders.drop_unused(lambda topic, group: 2 if topic == "T" else 0))
    assert orders.find("g", "T", 0) is not None
    assert orders.find("g", "T", 3) is None
    assert orders.find("g", "gone", 0) is None
    clock.advance(KEPT_MS + 1)
    asyncio.run(orders.drop_unused(lambda topic, group: 2))
    assert orders.find("g", "T", 0) is None
