"""Pages of metrics: their text, and their limits."""

from __future__ import annotations

import pytest

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import Buckets, TextPage
from cometmq.model.errors import ConfigError
from support.wire.metrics_page import Scraped


def text_of(page: TextPage) -> str:
    return b"".join(page.parts()).decode()


def test_a_page_is_written_as_prometheus_reads_it() -> None:
    page = TextPage({"cluster": "C"}, 10)
    page.gauge("temperature", "How warm it is").set(1.5)
    page.counter("unused_total", "Not shown without series")
    page.counter("sends_total", "Sends").set(3, topic='a"b\\c\nd', kind="x")

    assert text_of(page) == (
        "# HELP temperature How warm it is\n# TYPE temperature gauge\n"
        'temperature{cluster="C"} 1.5\n'
        "# HELP sends_total Sends\n# TYPE sends_total counter\n"
        'sends_total{cluster="C",topic="a\\"b\\\\c\\nd",kind="x"} 3\n'
    )


def test_series_beyond_the_limit_are_summed() -> None:
    page = TextPage({"cluster": "C"}, 2)
    sends = page.counter("sends_total", "Sends")
    late = page.gauge("late", "Age", max)
    for number in range(5):
        sends.set(10 + number, topic=f"t{number}", is_system=str(number % 2))
        late.set(number, topic=f"t{number}", consumer_group="g")
    page.gauge("up", "").set(1)

    found = Scraped(text_of(page))
    assert found.value("sends_total", topic="t1") == 11
    assert found.value("sends_total", topic="_other", is_system="0") == 12 + 14
    assert found.value("sends_total", topic="_other", is_system="1") == 13
    assert sum(found.series["sends_total"].values()) == sum(range(10, 15))
    assert found.value("late", topic="_other", consumer_group="_other") == 4


def test_a_histogram_is_written_as_prometheus_reads_it() -> None:
    page = TextPage({"cluster": "C"}, 10)
    sizes = page.histogram("sizes", "Bytes", (10, 2.5))
    sizes.observe(Buckets([1, 0, 2], 40), topic="T")

    assert text_of(page) == (
        "# HELP sizes Bytes\n# TYPE sizes histogram\n"
        'sizes_bucket{cluster="C",topic="T",le="10"} 1\n'
        'sizes_bucket{cluster="C",topic="T",le="2.5"} 1\n'
        'sizes_bucket{cluster="C",topic="T",le="+Inf"} 3\n'
        'sizes_sum{cluster="C",topic="T"} 40\n'
        'sizes_count{cluster="C",topic="T"} 3\n'
    )


def test_histograms_beyond_the_limit_are_summed() -> None:
    page = TextPage({"cluster": "C"}, 1)
    sizes = page.histogram("sizes", "Bytes", (10,))
    for number in range(4):
        sizes.observe(Buckets([number, 1], 10 * number), topic=f"t{number}")

    found = Scraped(text_of(page))
    assert found.buckets("sizes", topic="t0") == [0, 1]
    assert found.buckets("sizes", topic="_other") == [1 + 2 + 3, 1 + 2 + 3 + 3]
    assert found.value("sizes_sum", topic="_other") == 60


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        ":b",
        "1a:b",
        "__a:b",
        "a:b:c",
        "topic:a",
        "a:b,a:c",
        "a:b\nc",
        "a:" + "b" * 129,
        ",".join(f"l{number}:v" for number in range(21)),
    ],
)
def test_wrong_labels_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected name:value,name:value"):
        MetricsSettings(label_text=text)


def test_labels_of_the_settings() -> None:
    assert MetricsSettings(label_text="zone:a,site:b c").labels == {"zone": "a", "site": "b c"}


@pytest.mark.parametrize(
    "target", ["", "collector", "ftp://c:1", "http://c:1/v1/metrics", "c:1,d:2"]
)
def test_a_collector_needs_an_address(target: str) -> None:
    with pytest.raises(ConfigError, match="host:port or http://host:port"):
        MetricsSettings(exporter="OTLP_GRPC", grpc_target=target)


@pytest.mark.parametrize(
    ("target", "secure", "address"),
    [
        ("http://c:4317", False, "c:4317"),
        ("https://c:4317/", True, "c:4317"),
        ("c:4317", True, "c:4317"),
        ("http://[::1]:4317", False, "[::1]:4317"),
    ],
)
def test_a_collector_has_tls_unless_its_address_says_no(
    target: str, secure: bool, address: str
) -> None:
    settings = MetricsSettings(exporter="OTLP_GRPC", grpc_target=target)
    assert settings.grpc_address == (secure, address)


def collector(**changes: str) -> MetricsSettings:
    """Settings with a collector."""
    return MetricsSettings(exporter="OTLP_GRPC", grpc_target="c:1", **changes)


@pytest.mark.parametrize("text", ["secret", "K:secret", ":secret", "k:secret\n", "k:se,cret"])
def test_a_wrong_header_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(ConfigError, match="expected name:value,name:value") as refused:
        collector(grpc_header_text=text)
    assert "secret" not in str(refused.value)
    assert collector(grpc_header_text="k:a b,l:c:d").grpc_headers == (
        ("k", "a b"),
        ("l", "c:d"),
    )
