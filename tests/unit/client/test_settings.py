"""Settings: values that are refused, and the order in which sources decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cometmq import client as asynchronous
from cometmq.client import (
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
    blocking,
)
from cometmq.client._connection.instance import ClientCore
from cometmq.client.settings import (
    ClientSettings,
    PopSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    SimpleSettings,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.client.trace import Publish, TraceDispatcher
from cometmq.model.errors import ConfigError, InvalidNameError
from support.brokers.transaction_broker import Commits


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


TABLES = {"producer": {"retries": 1}}
VARIABLES = {"COMETMQ_PRODUCER_RETRIES": "3"}


@pytest.mark.parametrize(
    ("said", "retries"),
    [
        ({}, 2),
        ({"tables": TABLES}, 1),
        ({"tables": TABLES, "environment": VARIABLES}, 3),
        ({"environment": VARIABLES, "given": ProducerSettings(retries=4)}, 4),
        ({"given": ProducerSettings(retries=4), "keywords": {"retries": 5}}, 5),
    ],
)
def test_the_first_layer_that_names_a_setting_decides(
    said: dict[str, object], retries: int
) -> None:
    quiet = {"environment": {}, "tables": {}}

    assert resolve_settings(ProducerSettings, **(quiet | said)).retries == retries  # type: ignore[arg-type]


def test_an_object_decides_by_what_was_passed_to_it_even_if_it_is_the_default() -> None:
    given = ProducerSettings(retries=2)

    settings = resolve_settings(
        ProducerSettings,
        given=given,
        environment=VARIABLES | {"COMETMQ_PRODUCER_COMPRESS_LEVEL": "9"},
    )

    assert (settings.retries, settings.compress_level) == (2, 9)


def test_a_replaced_object_compares_by_its_values() -> None:
    assert dataclasses.replace(ProducerSettings(retries=1), retries=2) == ProducerSettings()


def test_a_file_is_read_when_the_environment_names_it(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('[client]\nheartbeat_ms = 500\ninstance_name = "a"\n[tool.other]\nx = 1\n')

    settings = resolve_settings(ClientSettings, environment={"COMETMQ_CONFIG": str(file)})

    assert (settings.heartbeat_ms, settings.instance_name) == (500, "a")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"keywords": {"retrys": 1}},
            "keyword: there is no setting 'retrys'; did you mean retries",
        ),
        (
            {"tables": {"producer": {"retrys": 1}}},
            r"table \[producer\]: there is no setting 'retrys'",
        ),
        (
            {"tables": {"producer": {"retries": 99}}},
            r"table \[producer\]: retries=99",
        ),
        (
            {"environment": {"COMETMQ_PRODUCER_RETRIES": "x"}},
            "environment COMETMQ_PRODUCER_RETRIES",
        ),
        (
            {"environment": {"COMETMQ_PRODUCER_RETRYS": "1"}},
            r"environment COMETMQ_PRODUCER_\*: there is no setting 'retrys'; did you mean retries",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(said: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve_settings(ProducerSettings, **({"environment": {}} | said))  # type: ignore[arg-type]


def test_keywords_go_to_the_settings_they_belong_to() -> None:
    parts = split_options({"retries": 1, "heartbeat_ms": 50}, ProducerSettings, ClientSettings)

    assert parts == [{"retries": 1}, {"heartbeat_ms": 50}]
    with pytest.raises(ConfigError, match="did you mean heartbeat_v2 or heartbeat_ms"):
        split_options({"heartbeat": 1}, ProducerSettings, ClientSettings)


@pytest.mark.parametrize("text", ["not toml", "[producer", "x = 1\x00"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        read_tables(file)


def test_every_kind_has_a_section_of_its_own() -> None:
    kinds = (ClientSettings, ProducerSettings, PullSettings, PushSettings)

    assert len({kind.section for kind in kinds}) == len(kinds)


FILE = """
[client]
name_servers = "127.0.0.1:1"
client_ip = "10.9.8.7"
[producer]
compress_from_bytes = 1001
[push]
retry_ms = 1001
[pull]
retry_ms = 1001
[pop]
retry_ms = 1001
[simple]
retry_ms = 1001
[trace]
waiting_max = 1
"""


def handle(message: StoredMessage) -> None:
    """Nothing comes."""


KINDS: dict[str, tuple[dict[str, Any], type, str]] = {
    "Producer": ({}, ProducerSettings, "compress_from_bytes"),
    "TransactionProducer": ({"listener": Commits()}, ProducerSettings, "compress_from_bytes"),
    "PushConsumer": ({"handler": handle}, PushSettings, "retry_ms"),
    "PullConsumer": ({}, PullSettings, "retry_ms"),
    "PopConsumer": ({"handler": handle}, PopSettings, "retry_ms"),
    "SimpleConsumer": ({}, SimpleSettings, "retry_ms"),
}
"""What each kind of object needs, its settings, and one of them."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text(FILE)
    return path


BOTH = [
    pytest.param(module, kind, id=f"{kind}-{name}")
    for kind in (*KINDS, "AdminClient")
    for name, module in (("asyncio", asynchronous), ("blocking", blocking))
    if hasattr(module, kind)
]


@pytest.mark.parametrize(("module", "kind"), [each for each in BOTH if each.values[1] in KINDS])
def test_what_is_said_nearest_decides(
    module: Any, kind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, settings, name = KINDS[kind]
    make: Callable[..., Any] = getattr(module, kind)

    def found(**options: Any) -> int:
        value: int = getattr(make(group="g", config=file, **needed, **options).settings, name)
        return value

    assert found() == 1001
    monkeypatch.setenv(f"COMETMQ_{settings.section}_{name}".upper(), "1002")
    assert found() == 1002
    given = settings(**{name: 1003})
    assert found(settings=given) == 1003
    assert found(settings=given, **{name: 1004}) == 1004


@pytest.mark.parametrize(("module", "kind"), BOTH)
def test_the_connection_is_set_by_the_file_too(module: Any, kind: str, file: Path) -> None:
    needed: dict[str, Any] = {"group": "g", **KINDS[kind][0]} if kind in KINDS else {}
    make: Callable[..., Any] = getattr(module, kind)

    made = make(config=file, **needed)
    if hasattr(made, "client_id"):
        assert made.client_id.startswith("10.9.8.7@")
    with pytest.raises(ConfigError, match="no-such"):
        make(config=file.with_name("no-such.toml"), **needed)


@pytest.mark.parametrize("kind", ["PushConsumer", "PullConsumer", "PopConsumer"])
async def test_traces_of_consumers_are_set_by_the_file_too(kind: str, file: Path) -> None:
    record = Publish(1, "r", "g", "t", "id", None, None, "h:1", 1, 1)
    instance = ClientCore("127.0.0.1:1")

    getattr(asynchronous, kind)(
        instance=instance, group="g", config=file, trace=True, **KINDS[kind][0]
    )
    made = TraceDispatcher.of(instance)

    assert [made.add(record, topic="", region="r", keys=[]) for _ in range(2)] == [True, False]
