"""The sources of messages as one text; the topics and times that are meant."""

from __future__ import annotations

from datetime import datetime

import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.findings.inputs import Source, Span, Topics


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("brokers:10.0.0.1:9876;10.0.0.2:9876", "brokers", "10.0.0.1:9876;10.0.0.2:9876"),
        ("log:s3://bucket/store", "log", "s3://bucket/store"),
        ("archive:/data/a", "archive", "/data/a"),
        ("parquet:/data/*.parquet", "parquet", "/data/*.parquet"),
    ],
)
def test_a_source_is_a_kind_and_a_place(text: str, kind: str, place: str) -> None:
    source = Source.parse(text)

    assert (source.kind, source.place, source.told) == (kind, place, text)


@pytest.mark.parametrize("text", ["", "kafka:x", "brokers", "brokers:", "/data/a"])
def test_a_source_of_no_known_kind_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected brokers:HOST:PORT"):
        Source.parse(text)


def test_only_options_about_connections_go_to_every_format() -> None:
    options = ("rocketmq.acl.accessKey=me", "minPartitions=4", "rocketmq.tls.enable = true")

    source = Source.parse("brokers:h:1", options)

    assert source.options["minPartitions"] == "4"
    assert source.connection == {
        "rocketmq.namesrv.addr": "h:1",
        "rocketmq.acl.accessKey": "me",
        "rocketmq.tls.enable": "true",
    }
    assert "me" not in source.told


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        Source.parse("log:x", ("minPartitions",))


def test_topics_are_named_begin_alike_or_are_all_but_the_system_s() -> None:
    named = Topics(frozenset({"orders"}), ("%DLQ%",))
    names = ["orders", "order", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer"]

    assert [name for name in names if named.has(name)] == ["orders", "%DLQ%g"]
    assert [name for name in names if Topics().has(name)] == ["orders", "order", "%DLQ%g"]
    assert [name for name in names if Topics(system=True).has(name)] == names
    assert Topics().told == "all but the system's own"
    assert named.told == "orders, %DLQ%*"


def test_times_are_milliseconds_or_local_unless_they_say_otherwise() -> None:
    noon = datetime(2026, 11, 21, 12)

    assert Span.parse("", "") == Span(None, None)
    assert Span.parse("1000000000000", "2026-11-21T12:00") == Span(
        1_000_000_000_000, round(noon.timestamp() * 1000)
    )
    assert Span.parse("1970-01-01T02:00+02:00", "").since_ms == 0


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [
        ("yesterday", "", "since=yesterday"),
        ("2000000000000", "1000000000000", "a time before since=2000000000000"),
    ],
)
def test_times_that_are_none_are_refused(since: str, until: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Span.parse(since, until)
