"""The overview, and its live parts as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Any

from jinja2 import Environment

from cometmq.console.charts import Chart, chart_of
from cometmq.console.live import Live
from cometmq.console.overview.samples import Overview, Samples
from cometmq.console.pages import Page, Query
from cometmq.console.reads import Reads

EVENTS = "/overview/events"


class OverviewQuery(Query):
    """The overview has no parameters."""


def pages(samples_of: Callable[[Reads], Samples]) -> tuple[Page, ...]:
    """Return the pages of this feature.

    Args:
        samples_of: returns the samples that an account sees.
    """

    async def overview(reads: Reads, _query: OverviewQuery) -> Overview:
        return await samples_of(reads).newest()

    template = "overview/overview.html"
    return (Page("/", "Overview", template, OverviewQuery, Overview, overview, is_tab=True),)


def live(samples_of: Callable[[Reads], Samples]) -> tuple[Live, ...]:
    """Return the live part of the page: each sample is one event."""

    def events(reads: Reads, _query: OverviewQuery) -> AbstractAsyncContextManager[Any]:
        return samples_of(reads).viewer()

    return (Live(EVENTS, "overview/live.html", OverviewQuery, events),)


def prepare(templates: Environment) -> None:
    """Give the templates what this feature needs."""
    templates.globals |= {"charts_of": charts_of, "events": EVENTS}


def charts_of(overview: Overview) -> list[Chart]:
    """Return the charts of the page."""
    history = overview.history
    charts = [
        chart_of(title, [(each.time_ms, rate_of(each)) for each in history], "{:,.1f}/s".format)
        for title, rate_of in (
            ("Stored per second", attrgetter("in_per_s")),
            ("Delivered per second", attrgetter("out_per_s")),
        )
    ]
    lags = [(each.time_ms, each.lag) for each in history]
    return [*charts, chart_of("Lag of all groups", lags, "{:,.0f}".format)]
