"""Live parts: events for a viewer, until it goes or the console stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from jinja2 import DictLoader, Environment

from cometmq.client import AdminClient
from cometmq.console import live as module
from cometmq.console.live import Live, Stream, Streams, Viewers
from cometmq.console.pages import Name, Query
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError

TEMPLATES = Environment(loader=DictLoader({"part.html": "<b>\n{{ data.text }}</b>"}))
LIMIT_S = 60.0


class Of(Query):
    topic: Name


class Value(msgspec.Struct):
    text: str


class Viewer:
    """A viewer of a part: what it gets, and when it goes."""

    def __init__(self, query: bytes = b"topic=orders") -> None:
        self.scope = {
            "type": "http", "method": "GET", "path": "/events", "query_string": query,
            "headers": [],
        }  # fmt: skip
        self.got: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.has_content, self.goes = asyncio.Event(), asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.got.append(message["body"])
            self.has_content.set()


class Part:
    """A live part of one value, which then waits."""

    def __init__(self, viewers: int = 9, error: CometError | None = None) -> None:
        self.viewers = Viewers(viewers)
        self.error = error
        self.ended: list[str] = []
        self.streams = Streams(TEMPLATES, lambda *_: None, self._reads)
        self.stream = Stream(Live("/events", "part.html", Of, self._events), self.streams)

    def _reads(self, _request: object) -> Reads:
        return Reads(AdminClient("127.0.0.1:1"))

    @contextlib.asynccontextmanager
    async def _events(self, _reads: Reads, query: Of) -> AsyncIterator[AsyncIterator[Value]]:
        with self.viewers.one():
            yield self._values(query.topic)
        self.ended.append(query.topic)

    async def _values(self, topic: str) -> AsyncIterator[Value]:
        yield Value(topic)
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def serve(self, viewer: Viewer) -> None:
        await asyncio.wait_for(self.stream(viewer.scope, viewer.receive, viewer.send), LIMIT_S)


@pytest.mark.parametrize("end", ["the viewer goes", "the console stops"])
async def test_a_viewer_gets_parts_until(end: str) -> None:
    part, viewer = Part(), Viewer()
    serving = asyncio.ensure_future(part.serve(viewer))
    await viewer.has_content.wait()
    assert (viewer.status, part.ended) == (200, [])
    assert viewer.headers[b"content-type"].startswith(b"text/event-stream")
    if end == "the viewer goes":
        viewer.goes.set()
    else:
        part.streams.close()
    await serving
    assert viewer.got == [b"data: <b>\ndata: orders</b>\n\n", b""]
    assert part.ended == ["orders"]


async def test_a_stream_that_fails_ends_so_that_the_browser_opens_the_next_one() -> None:
    part, viewer = Part(error=CometError("no response")), Viewer()
    await part.serve(viewer)
    assert viewer.got[-1] == b""


async def test_a_stream_is_refused_with_a_status_for_too_many_viewers_and_a_wrong_query() -> None:
    refused, wrong = Viewer(), Viewer(b"topc=orders")
    part = Part(viewers=0)
    await part.serve(refused)
    await part.serve(wrong)
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"60")
    assert b"expected fewer" in refused.got[0]
    assert (wrong.status, wrong.got) == (400, [b"unknown parameter topc: expected topic"])


async def test_a_viewer_that_reads_nothing_is_one_no_more_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STREAM_S", 0.01)
    monkeypatch.setattr(module, "END_S", 0.01)
    part = Part(viewers=1)

    class Stalled(Viewer):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()  # as long as the socket is full

    await part.serve(Stalled())
    assert part.ended == ["orders"]
