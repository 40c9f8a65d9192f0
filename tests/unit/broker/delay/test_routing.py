"""Delay levels of messages, and their routing to the schedule topic."""

from pathlib import Path

import pytest

from cometmq.broker.delay.feature import warn_of_retention
from cometmq.broker.delay.routing import schedule
from cometmq.broker.sending.retries import retry_level
from cometmq.broker.sending.send_back import plan_retry
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ConfigError
from cometmq.model.group import GroupRetryPolicy
from cometmq.store import StoreSettings


@pytest.mark.parametrize(
    ("asked", "level"),
    [("1", 1), ("18", 18), ("99", 18), ("0", 0), ("-1", 0), ("+3", 3), ("x", 0), ("1_0", 0)],
)
def test_level_of_a_message(asked: str, level: int) -> None:
    assert DelayLevels.parse().level_of(asked) == level


def test_a_delayed_message_is_scheduled_with_its_real_place() -> None:
    properties = {"DELAY": "20", "KEYS": "k"}
    scheduled = schedule(DelayLevels.parse("1s 2m"), "T", 3, properties)
    assert scheduled is not None
    assert (scheduled.topic, scheduled.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert scheduled.properties == {
        "DELAY": "2",
        "KEYS": "k",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert properties == {"DELAY": "20", "KEYS": "k"}


def test_a_message_without_delay_is_not_scheduled() -> None:
    assert schedule(DelayLevels.parse(), "T", 0, {"DELAY": "0"}) is None
    assert schedule(DelayLevels.parse(), "T", 0, {}) is None


@pytest.mark.parametrize(
    ("levels", "hours", "warns"), [("1s 3d 1h", 72, False), ("1s 73h 1h", 72, True)]
)
def test_levels_beyond_the_life_of_the_log_are_warned_of(
    tmp_path: Path, levels: str, hours: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_retention(
        DelayLevels.parse(levels), StoreSettings(root=tmp_path, file_reserved_hours=hours)
    )
    assert ("a delay of 73 hours" in caplog.text) is warns


def test_levels_have_their_delays() -> None:
    levels = DelayLevels.parse("1s 2m 3h 4d")
    assert [levels.delay_ms(level) for level in range(1, levels.highest + 1)] == [
        1000,
        120_000,
        10_800_000,
        345_600_000,
    ]


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", "'' as level 1"),
        ("  ", "'' as level 1"),
        (" 1s", "'' as level 1"),
        ("1s  2s", "'' as level 2"),
        ("1s\t2s", "'1s\\\\t2s' as level 1"),
        ("1s 2x 3s", "'2x' as level 2"),
        ("1s s", "'s' as level 2"),
        ("1S", "'1S' as level 1"),
        ("5", "'5' as level 1"),
        ("+5s", r"'\+5s' as level 1"),
        ("-5s", "'-5s' as level 1"),
        ("1.5s", "'1.5s' as level 1"),
        ("\u0661s", "'\u0661s' as level 1"),
        ("3651d", "'3651d' as level 1"),
        ("9999999999s", "'9999999999s' as level 1"),
        (" ".join(["1s"] * 1001), "1001 levels, expected at most 1000"),
    ],
)
def test_unreadable_levels_are_refused(text: str, met: str) -> None:
    with pytest.raises(ConfigError, match=f"messageDelayLevel: met {met}"):
        DelayLevels.parse(text)


def test_blanks_at_the_end_count_no_more_than_for_rocketmq() -> None:
    assert DelayLevels.parse("1s 2s  ").highest == 2


def test_a_table_may_have_one_level_or_many_and_delays_of_zero() -> None:
    assert DelayLevels.parse("0s").delay_ms(1) == 0
    levels = DelayLevels.parse(" ".join(["3650d"] * 1000))
    assert levels.highest == 1000
    assert levels.level_of("1001") == 1000
    assert levels.delay_ms(1000) == 3650 * 86_400_000


@pytest.mark.parametrize(("delay_ms", "level"), [(0, 1), (1000, 1), (1001, 3), (2001, 2), (9e9, 2)])
def test_the_level_for_a_delay_is_the_shortest_that_is_long_enough(
    delay_ms: float, level: int
) -> None:
    assert DelayLevels.parse("1s 1h 2s").level_for(delay_ms) == level


@pytest.mark.parametrize(("reconsume_times", "level"), [(0, 2), (1, 2), (15, 2)])
def test_retries_beyond_a_short_table_wait_for_its_last_level(
    reconsume_times: int, level: int
) -> None:
    levels = DelayLevels.parse("1s 2s")
    retry = plan_retry(
        {}, topic="T", message_id="id", reconsume_times=reconsume_times, reconsume_times_max=16,
        delay_level=retry_level(GroupRetryPolicy(), levels, reconsume_times),
    )  # fmt: skip
    scheduled = schedule(levels, "%RETRY%g", 0, retry.properties)
    assert scheduled is not None
    assert scheduled.queue_id == level - 1
    assert scheduled.properties["DELAY"] == str(level)
