"""Every public object takes its settings from the file it is given, and from what outranks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq import client as asynchronous
from cometmq.client import StoredMessage, blocking
from cometmq.client._connection.instance import ClientCore
from cometmq.client.settings import (
    PopSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    SimpleSettings,
)
from cometmq.client.trace import Publish, TraceDispatcher
from cometmq.model.errors import ConfigError
from support.transacting import Commits

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
