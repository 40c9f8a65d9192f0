"""The overview, and its live parts as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from jinja2 import Environment
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cometmq.console.overview.charts import HEIGHT, WIDTH, Chart, chart_of
from cometmq.console.overview.samples import KEPT, Overview, Samples, TooManyViewersError
from cometmq.console.pages import Page, Query
from cometmq.console.reads import Reads

EVENTS = "/overview/events"
SAMPLES_MAX = 120
"""Ten minutes."""


class OverviewQuery(Query):
    """The overview has no parameters."""


def pages(samples: Samples) -> tuple[Page, ...]:
    """Return the pages of this feature."""

    async def overview(_reads: Reads, _query: OverviewQuery) -> Overview:
        return await samples.newest()

    template = "overview/overview.html"
    return (Page("/", "Overview", template, OverviewQuery, Overview, overview, is_tab=True),)


def prepare(templates: Environment) -> None:
    """Give the templates what this feature needs."""
    templates.globals |= {
        "charts_of": charts_of, "events": EVENTS, "chart_width": WIDTH, "chart_height": HEIGHT,
    }  # fmt: skip


def charts_of(overview: Overview) -> list[Chart]:
    """Return the charts of the page."""
    history = overview.history
    return [
        chart_of("Messages stored per second", [each.in_per_s for each in history], KEPT),
        chart_of(
            "Messages sent to consumers per second", [each.out_per_s for each in history], KEPT
        ),
    ]


class Events:
    """The live part of the page, as an application of ASGI: each sample is one event.

    Args:
        samples: what is sent.
        templates: with the live part.
    """

    def __init__(self, samples: Samples, templates: Environment) -> None:
        self._samples = samples
        self._template = templates.get_template("overview/live.html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond until the viewer goes, or `SAMPLES_MAX` were sent: the browser asks again."""
        response: Response
        try:
            async with self._samples.viewer() as samples:
                response = StreamingResponse(self._events(samples), media_type="text/event-stream")
                await response(scope, receive, send)
        except TooManyViewersError as error:
            response = PlainTextResponse(str(error), 503, {"Retry-After": "60"})
            await response(scope, receive, send)

    async def _events(self, samples: AsyncIterator[Overview]) -> AsyncIterator[str]:
        sent = 0
        async for each in samples:
            content = self._template.render(data=each)
            yield "".join(f"data: {line}\n" for line in content.splitlines()) + "\n"
            sent += 1
            if sent == SAMPLES_MAX:  # so that a session that has ended gets no more
                return
