"""Settings made in programs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from cometmq.client import PopConsumer, Producer, PullConsumer, PushConsumer
from cometmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from cometmq.model.errors import ConfigError, InvalidNameError


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
            {"topics": "orders"},
            r"topics='orders': expected a list or a tuple of texts",
        ),
        (
            ProducerSettings,
            {"topics": ("orders", 1)},
            r"topics=\('orders', 1\): expected a list or a tuple of texts",
        ),
        (ProducerSettings, {"retries": timedelta(1)}, "retries=.*: expected a whole number"),
        (ClientSettings, {"secret_key": 7}, r"secret_key=\(hidden\): expected a text"),
        (ClientSettings, {"key_file": 7}, "key_file=7: expected a path"),
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


def test_paths_may_be_text_and_sequences_lists() -> None:
    assert ClientSettings(key_file="keys", tls_file=Path("t")).key_file == Path("keys")
    assert ProducerSettings(topics=["a", "b"]).topics == ("a", "b")


def test_a_setting_that_is_almost_named_is_shown() -> None:
    with pytest.raises(ConfigError, match="did you mean retries"):
        Producer("127.0.0.1:1", retry=3)


def test_a_batch_size_beside_a_handler_of_one_message_is_refused() -> None:
    for kind in (PushConsumer, PopConsumer):
        with pytest.raises(
            ConfigError, match=r"batch_max=8 beside handler.*expected batch_handler"
        ):
            kind("127.0.0.1:1", group="g", topic="t", handler=print, batch_max=8)


@pytest.mark.parametrize("address", ["localhost:99999", "localhost:0"])
def test_an_address_without_a_port_that_exists_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="with a port from 1 to 65535"):
        Producer(address)


@pytest.mark.parametrize("namespace", ["", "east"])
def test_a_consumer_group_leaves_room_for_the_names_of_its_topics(namespace: str) -> None:
    longest = 248 - len(namespace + "%" * bool(namespace))
    client = ClientSettings(namespace=namespace)
    assert PullConsumer("127.0.0.1:1", group="g" * longest, client=client)
    with pytest.raises(InvalidNameError, match="at most 248 are possible, since its retry topic"):
        PullConsumer("127.0.0.1:1", group="g" * (longest + 1), client=client)
    assert Producer("127.0.0.1:1", group="g" * 255)


def test_times_may_be_timedeltas() -> None:
    settings = PushSettings(
        retry_ms=timedelta(seconds=2), consume_minutes_max=timedelta(hours=1), stop_ms=timedelta(0)
    )

    assert settings == PushSettings(retry_ms=2_000, consume_minutes_max=60, stop_ms=0)
    assert settings.retry_ms == 2_000
    assert settings.given == {"retry_ms", "consume_minutes_max", "stop_ms"}
    assert ClientSettings(idle_s=timedelta(minutes=1)).idle_s == 60
