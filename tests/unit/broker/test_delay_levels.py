import pytest

from cometmq.broker.delay.routing import schedule
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ConfigError


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


def test_levels_have_their_delays() -> None:
    levels = DelayLevels.parse("1s 2m 3h 4d")
    assert [levels.delay_ms(level) for level in range(1, levels.highest + 1)] == [
        1000,
        120_000,
        10_800_000,
        345_600_000,
    ]


def test_unreadable_levels_are_refused() -> None:
    with pytest.raises(ConfigError):
        DelayLevels.parse("1s  2s")
