"""Pages of metrics: their text, and their limits."""

from __future__ import annotations

import pytest

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import Page
from cometmq.model.errors import ConfigError
from support.scraped import Scraped


def text_of(page: Page) -> str:
    return b"".join(page.parts()).decode()


def test_a_page_is_written_as_prometheus_reads_it() -> None:
    page = Page({"cluster": "C"}, 10)
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
    page = Page({"cluster": "C"}, 2)
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
