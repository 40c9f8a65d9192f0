"""Reports: one file that loads nothing, with escaped texts and a text for each plot."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.figures import (
    Unit,
    clipped,
    count,
    duration,
    instant,
    size,
    ticks,
)
from cometmq.spark.pipelines.findings.report import (
    ROWS_SHOWN,
    Report,
    Section,
    severity_figures,
    spread_rows,
    top_rows,
)
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity

HOSTILE = "<script>alert(1)</script>\"'&"


class Tags(HTMLParser):
    """Checks that elements are closed in order, and collects what they are."""

    VOID = frozenset({"meta", "br", "rect", "line", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def whole_report(text: str = "orders") -> Report:
    """A report with one of everything."""
    report = Report(text, text)
    findings = Findings(
        [
            Finding("gap", Severity.ERROR, text, text, text, 1, 2, 3, 2, f'{{"a": "{text}"}}'),
            Finding("young", Severity.NOTE, text),
        ]
    )
    table = pa.table({"group": [text, None], "letters": [5, 1], "bytes": [2048, None]})
    section = report.section(text, text).say(text)
    severity_figures(section, findings).findings(findings)
    section.figures({text: text})
    section.plots(
        (text, charts.bars(text, top_rows(table, ["group"], "letters"))),
        (text, charts.lines(text, {text: [(0.0, 1.0), (60_000.0, 3.0)], "one": [(0.0, 2.0)]})),
        (text, charts.spreads(text, [charts.Spread(text, 1, 5, 90)])),
    )
    section.table(table, {"bytes": Unit.BYTES}, caption=text)
    return report


def test_a_report_is_whole_html_that_loads_and_runs_nothing() -> None:
    html = whole_report().html()

    tags = read(html)
    assert {tag for tag, _ in tags.seen}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not [a for _, attrs in tags.seen for a in attrs if a in ("src", "srcset", "style")]
    assert not [a for _, attrs in tags.seen for a in attrs if a.startswith("on")]
    links = [attrs.get("href") or "" for tag, attrs in tags.seen if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_no_text_of_a_message_becomes_markup() -> None:
    tags = read(whole_report(HOSTILE).html())

    assert "script" not in {tag for tag, _ in tags.seen}
    assert sum(HOSTILE in text for text in tags.texts) >= 10, "it is shown as it is"


def test_a_page_fits_a_telephone_and_both_kinds_of_light() -> None:
    html = whole_report().html()

    assert 'name="viewport" content="width=device-width' in html
    assert "prefers-color-scheme:dark" in html
    widths = [int(width) for width in re.findall(r'viewBox="0 0 (\d+) ', html)]
    assert widths
    assert all(width <= 360 for width in widths)


def test_every_contents_link_leads_to_a_section() -> None:
    tags = read(whole_report().html())

    anchors = {attrs["id"] for tag, attrs in tags.seen if tag == "h2"}
    assert {(attrs["href"] or "")[1:] for tag, attrs in tags.seen if tag == "a"} == anchors


def test_plots_tell_their_numbers_to_those_who_cannot_see_them() -> None:
    tags = read(charts.bars("Bytes", [("orders", 2048.0), ("bills", 1.0)], Unit.BYTES))

    [(_, attributes), *_] = [seen for seen in tags.seen if seen[0] == "svg"]
    assert (attributes["role"], attributes["aria-label"]) == ("img", "Bytes")
    assert "orders: 2 KiB, bills: 1 B" in tags.texts


def test_bars_are_as_long_as_their_share_of_the_longest() -> None:
    tags = read(charts.bars("x", [("a", 100.0), ("b", 50.0), ("c", 0.0)]))

    bars = [a for tag, a in tags.seen if tag == "rect" and a["class"] == "bar"]
    assert [float(bar["width"] or 0) for bar in bars] == [338.0, 169.0, 1.0]


def test_lines_begin_left_and_end_right_and_touch_the_scale() -> None:
    tags = read(charts.lines("x", {"a": [(0.0, 0.0), (1000.0, 50.0), (2000.0, 100.0)]}))

    [line] = [a for tag, a in tags.seen if tag == "polyline"]
    points = [tuple(map(float, p.split(","))) for p in (line["points"] or "").split()]
    assert points == [(46.0, 140.0), (189.0, 75.0), (332.0, 10.0)]


def test_more_lines_than_colours_are_refused() -> None:
    with pytest.raises(ValueError, match="5 lines"):
        charts.lines("x", {str(number): [(0.0, 1.0)] for number in range(5)})


@pytest.mark.parametrize("draw", [charts.bars, charts.spreads, lambda t, _: charts.lines(t, {})])
def test_a_plot_of_nothing_is_still_a_plot(draw: object) -> None:
    assert read(draw("nothing", [])).open == []  # type: ignore[operator]


def test_rows_beyond_what_is_shown_are_counted() -> None:
    table = pa.table({"n": range(ROWS_SHOWN + 7)})

    html = "".join(Section("x").table(table).parts)

    assert html.count("<tr>") == ROWS_SHOWN + 1
    assert "7 more rows" in html


def test_times_numbers_and_nothing_are_written_for_people() -> None:
    moment = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    table = pa.table(
        {"when": [moment], "bytes": [3 << 20], "nothing": pa.array([None], pa.string())}
    )

    texts = read("".join(Section("x").table(table, {"bytes": Unit.BYTES}).parts)).texts

    assert texts[3:] == ["2026-11-21 12:30:00", "3 MiB", "\N{EN DASH}"]


def test_writing_replaces_a_report_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"

    where = [whole_report(title).write(path) for title in ("first", "second")]

    assert where == [str(path)] * 2
    assert "<title>second</title>" in path.read_text()
    assert list(path.parent.iterdir()) == [path]


def test_spreads_come_in_the_order_of_their_worst() -> None:
    table = pa.table({"g": ["a", "b", "c"], "p50": [1, 1, None], "p90": [2, 2, None],
                      "p99": [3, 9, None]})  # fmt: skip

    assert [row.label for row in spread_rows(table, ["g"], "")] == ["b", "a"]


def test_findings_are_sorted_counted_and_come_back_from_their_table() -> None:
    found = Findings([Finding("b", Severity.NOTE, "n"), Finding("a", Severity.WARNING, "w", "t")])
    assert not found.clean
    found.add(Finding("c", Severity.ERROR, "e", "t", "b", 1, 5, 9, 5, "{}"))

    again = Findings.from_table(found.table())

    assert list(again) == list(found)
    assert [f.finding for f in again] == ["c", "a", "b"]
    assert next(iter(again)).place == "t b queue 1 5..9"
    assert again.by_severity() == {Severity.ERROR: 1, Severity.WARNING: 1, Severity.NOTE: 1}
    assert Findings([Finding("b", Severity.NOTE, "n")]).clean


def test_a_finding_takes_its_place_and_evidence_from_the_row_that_shows_it() -> None:
    row = {"topic": "t", "broker_name": "b", "queue_id": 1, "first": "not an offset"}
    facts = '{"broker_name": "b", "first": "not an offset", "queue_id": 1, "topic": "t"}'
    found = Finding.shown_by(row, "c", Severity.ERROR, "e", first=5, last=9, count=5)
    assert found == Finding("c", Severity.ERROR, "e", "t", "b", 1, 5, 9, 5, facts)

    found = Finding.shown_by({"origin_topic": "o"}, "a", Severity.NOTE, "n", topic="origin_topic")
    assert found == Finding("a", Severity.NOTE, "n", "o", evidence='{"origin_topic": "o"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(999_999), "999,999"),
        (count(1_250_000), "1.25 M"),
        (count(0.5), "0.5"),
        (count(float("nan")), "\N{EN DASH}"),
        (size(1536), "1.5 KiB"),
        (duration(950), "950 ms"),
        (duration(90_000), "1.5 min"),
        (duration(7_200_000), "2 h"),
        (instant(0), "1970-01-01 00:00:00"),
        (clipped("abcdef", 4), "abc…"),
    ],
)
def test_figures_read_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("top", [0, 0.003, 1, 7, 99, 1234, 5_000_000])
def test_a_scale_is_of_few_round_numbers_and_holds_the_largest(top: float) -> None:
    levels = ticks(top)

    assert levels[0] == 0
    assert levels[-1] >= top
    assert 2 <= len(levels) <= 6
