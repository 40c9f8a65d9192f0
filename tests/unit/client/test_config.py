"""Settings made in programs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cometmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from cometmq.model.errors import ConfigError


@pytest.mark.parametrize("kind", [ClientSettings, ProducerSettings, PullSettings, PushSettings])
def test_defaults_are_in_their_ranges(kind: type) -> None:
    assert kind() == kind()


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (ProducerSettings, {"retries": -1}, "retries=-1: expected a whole number"),
        (ProducerSettings, {"compress_level": 10}, "compress_level=10: .* from 0 to 9"),
        (PullSettings, {"pull_batch": 0}, "pull_batch=0: .* from 1 to 1024"),
        (ClientSettings, {"heartbeat_ms": 0}, "heartbeat_ms=0"),
        (ProducerSettings, {"retries": "2"}, "retries='2': expected a whole number from 0 to 16"),
        (ProducerSettings, {"retries": True}, "retries=True: expected a whole number"),
        (ProducerSettings, {"auto_batch": 1}, "auto_batch=1: expected true or false"),
        (
            ProducerSettings,
            {"topics": ["orders"]},
            r"topics=\['orders'\]: expected a tuple of texts",
        ),
        (
            ProducerSettings,
            {"topics": ("orders", 1)},
            r"topics=\('orders', 1\): expected a tuple of texts",
        ),
        (ProducerSettings, {"retries": timedelta(1)}, "retries=.*: expected a whole number"),
        (ClientSettings, {"secret_key": 7}, r"secret_key=\(hidden\): expected a text"),
        (ClientSettings, {"key_file": "keys"}, "key_file='keys': expected a path"),
        (
            ClientSettings,
            {"heartbeat_ms": timedelta(microseconds=10_500)},
            r"heartbeat_ms=0:00:00.010500: expected .* \(ms\) or a timedelta of whole units",
        ),
        (PushSettings, {"retry_ms": 1.5}, "retry_ms=1.5: expected a whole number of at least 1"),
        (PushSettings, {"stop_ms": timedelta(-1)}, "stop_ms=-86400000: expected .* at least 0"),
    ],
)
def test_a_value_of_a_wrong_type_or_out_of_its_range_is_refused(
    kind: type, values: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        kind(**values)


def test_times_may_be_timedeltas() -> None:
    settings = PushSettings(
        retry_ms=timedelta(seconds=2), consume_minutes_max=timedelta(hours=1), stop_ms=timedelta(0)
    )

    assert settings == PushSettings(retry_ms=2_000, consume_minutes_max=60, stop_ms=0)
    assert settings.retry_ms == 2_000
    assert settings.given == {"retry_ms", "consume_minutes_max", "stop_ms"}
    assert ClientSettings(idle_s=timedelta(minutes=1)).idle_s == 60
