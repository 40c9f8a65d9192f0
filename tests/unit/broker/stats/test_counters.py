"""The broker's counters: names, keys and the three windows."""

from __future__ import annotations

import pytest

from cometmq.broker.stats.counters import BrokerStats
from cometmq.remoting.slices import Slices
from support.checks.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> BrokerStats:
    return BrokerStats("C", clock=clock, is_system_topic=lambda topic: topic == "SYS")


async def sample_after(stats: BrokerStats, clock: ManualClock, seconds: float) -> None:
    clock.advance(round(seconds * 1000))
    await stats.sample()


async def test_counter_exists_before_its_first_sample(stats: BrokerStats) -> None:
    stats.put("T", 0, 3, 300)

    view = await stats.view("TOPIC_PUT_NUMS", "T")

    assert view is not None
    assert (view.minute.sum, view.minute.tps, view.minute.avgpt) == (0, 0.0, 0.0)


async def test_first_sample_shows_everything_counted_before(
    stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 3, 300)
    stats.put("T", 1, 1, 100)
    await sample_after(stats, clock, 10)

    nums, sizes = await stats.view("TOPIC_PUT_NUMS", "T"), await stats.view("TOPIC_PUT_SIZE", "T")

    assert nums is not None
    assert sizes is not None
    assert (nums.minute.sum, nums.minute.tps, nums.minute.avgpt) == (4, 0.4, 2.0)
    assert (sizes.minute.sum, sizes.minute.tps, sizes.minute.avgpt) == (400, 40.0, 200.0)


async def test_minute_forgets_what_is_older_than_a_minute(
    stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 5, 50)
    for _ in range(7):
        await sample_after(stats, clock, 10)
    view = await stats.view("TOPIC_PUT_NUMS", "T")

    assert view is not None
    assert view.minute.sum == 0


async def test_hour_and_day_see_what_the_minute_forgot(
    stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 5, 50)
    for _ in range(360):
        await sample_after(stats, clock, 10)
    view = await stats.view("TOPIC_PUT_NUMS", "T")

    assert view is not None
    assert (view.minute.sum, view.hour.sum, view.day.sum) == (0, 5, 5)
    assert view.day.tps == pytest.approx(5 / 3600)


async def test_rate_uses_the_real_time_between_late_samples(
    stats: BrokerStats, clock: ManualClock
) -> None:
    await sample_after(stats, clock, 10)
    stats.put("T", 0, 40, 0)
    await sample_after(stats, clock, 20)

    assert await stats.put_tps("T", Slices()) == 2.0


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("QUEUE_PUT_NUMS", "T@1", 2),
        ("QUEUE_PUT_SIZE", "T@1", 20),
        ("GROUP_GET_NUMS", "T@G", 4),
        ("GROUP_GET_SIZE", "T@G", 40),
        ("QUEUE_GET_NUMS", "T@1@G", 4),
        ("BROKER_PUT_NUMS", "C", 3),
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C", 2),
        ("BROKER_GET_NUMS", "C", 4),
        ("SNDBCK_PUT_NUMS", "T@G", 1),
        ("GROUP_GET_LATENCY", "1@T@G", 7),
    ],
)
async def test_every_name_has_its_key(
    stats: BrokerStats, clock: ManualClock, name: str, key: str, expected: int
) -> None:
    stats.put("T", 1, 2, 20)
    stats.put("SYS", 0, 1, 10)
    stats.got("G", "T", 1, 4, 40)
    stats.sent_back("G", "T")
    stats.add("GROUP_GET_LATENCY", "1@T@G", 7)
    await sample_after(stats, clock, 10)

    view = await stats.view(name, key)

    assert view is not None
    assert view.minute.sum == expected


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "other"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_GET_NUMS", "T@1"),
        ("GROUP_GET_NUMS", "T"),
        ("BROKER_PUT_NUMS", "other"),
        ("NO_SUCH_NUMS", "T"),
    ],
)
async def test_unknown_counter_is_none(stats: BrokerStats, name: str, key: str) -> None:
    stats.put("T", 1, 2, 20)

    assert await stats.view(name, key) is None


async def test_broker_counter_exists_before_the_first_message(stats: BrokerStats) -> None:
    assert await stats.view("BROKER_PUT_NUMS", "C") is not None


async def test_totals_stay_when_a_topic_is_forgotten(stats: BrokerStats) -> None:
    stats.put("T", 0, 2, 20)
    stats.put("SYS", 0, 5, 20)
    stats.got("G", "T", 0, 2, 20)
    await stats.forget_topic("T")

    assert await stats.view("TOPIC_PUT_NUMS", "T") is None
    assert (stats.put_messages, stats.users_put_messages, stats.users_get_messages) == (7, 2, 2)


async def test_idle_counters_go_after_a_day_and_busy_ones_stay(
    stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("idle", 0, 1, 10)
    stats.add("DLQ_PUT_NUMS", "idle")
    for _ in range(27):
        stats.put("busy", 0, 1, 10)
        await sample_after(stats, clock, 3600)
    await stats.drop_idle()

    assert await stats.view("TOPIC_PUT_NUMS", "idle") is None
    assert await stats.view("DLQ_PUT_NUMS", "idle") is None
    assert await stats.view("TOPIC_PUT_NUMS", "busy") is not None
    assert stats.users_put_messages == 28


async def test_rates_go_on_when_the_clock_is_set_back(
    stats: BrokerStats, clock: ManualClock
) -> None:
    await sample_after(stats, clock, 10)
    clock.set_wall(clock.now_ms() - 3_600_000)
    stats.put("T", 0, 10, 0)
    await sample_after(stats, clock, 10)

    assert await stats.put_tps("T", Slices()) == 0.0
    for _ in range(7):
        stats.put("T", 0, 10, 0)
        await sample_after(stats, clock, 10)
    assert await stats.put_tps("T", Slices()) == 1.0


async def test_rates_and_messages_sent_back_are_those_of_the_last_minute(
    stats: BrokerStats, clock: ManualClock
) -> None:
    stats.put("T", 0, 3, 300)
    stats.sent_back("G", "T")
    await sample_after(stats, clock, 10)
    stats.put("T", 1, 1, 100)
    stats.sent_back("G", "T")
    assert stats.sent_back_last_minute() == [("G", "T", 1)]
    await sample_after(stats, clock, 10)

    ((_, queues),) = stats.topics_put()
    assert await stats.rates(queues, Slices()) == (4 / 20, 400 / 20)
    assert stats.sent_back_last_minute() == [("G", "T", 2)]
    for _ in range(7):
        await sample_after(stats, clock, 10)
    assert await stats.rates(queues, Slices()) == (0.0, 0.0)
    assert stats.sent_back_last_minute() == [("G", "T", 0)]
