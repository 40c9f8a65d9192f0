"""Parts of pages that follow the cluster: server-sent events, each with the whole part as HTML."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cometmq.console.pages import Query, Role, query_of, status_of
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError

STREAM_S = 600.0
"""A stream ends after ten minutes, so that a session that has ended gets no more: the browser
opens the next one."""


END_S = 5.0
"""For the end of a stream: a viewer that reads nothing gets none."""


class Live(NamedTuple):
    """A live part of a page. `app` makes a route of it, as of a page."""

    path: str
    """Where the events are."""
    template: str
    """The part, below ``console``; it gets each value as ``data``."""
    query: type[Query]
    events: Callable[[Reads, Any], AbstractAsyncContextManager[AsyncIterator[msgspec.Struct]]]
    """Gives values while a viewer is there."""
    role: Role = Role.READER


class TooManyViewersError(CometError):
    """As many viewers as allowed have a live part."""


class Viewers:
    """Counts the viewers of a live part.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a viewer within ``with``.

        Raises:
            TooManyViewersError: there are as many as allowed already.
        """
        if self._count >= self._limit:
            raise TooManyViewersError(
                f"{self._limit} viewers have the live figures, expected fewer: close one, or reload"
                " the page instead"
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Streams:
    """What all live parts need.

    Args:
        templates: with the parts.
        check_role: raises if the user of a request has a lower role.
        reads_of: returns the cluster as the user of a request may see it.
    """

    def __init__(
        self,
        templates: Environment,
        check_role: Callable[[Request, Role], None],
        reads_of: Callable[[Request], Reads],
    ) -> None:
        self.templates = templates
        self.check_role = check_role
        self.reads_of = reads_of
        self.closing = asyncio.Event()

    def close(self) -> None:
        """End all streams: they would last until their viewers go."""
        self.closing.set()


class Stream:
    """Serves one live part, as an application of ASGI.

    Args:
        live: the part.
        streams: what all parts share.
    """

    def __init__(self, live: Live, streams: Streams) -> None:
        self._live = live
        self._streams = streams
        self._template = streams.templates.get_template(live.template)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond until the viewer goes, the console stops, or `STREAM_S` have passed."""
        request, streams = Request(scope), self._streams
        streams.check_role(request, self._live.role)
        response: Response
        try:
            query = query_of(self._live.query, request.query_params.multi_items())
            async with self._live.events(streams.reads_of(request), query) as events:
                await self._send_events(events, receive, send)
        except TooManyViewersError as error:
            response = PlainTextResponse(str(error), 503, {"Retry-After": "60"})
        except CometError as error:
            status, text = status_of(error)
            response = PlainTextResponse(text, status)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await send({"type": "http.response.body", "body": b""})
            return
        await response(scope, receive, send)

    async def _send_events(
        self, events: AsyncIterator[msgspec.Struct], receive: Receive, send: Send
    ) -> None:
        head = (b"content-type", b"text/event-stream; charset=utf-8")
        await send({"type": "http.response.start", "status": 200, "headers": [head]})
        sending = asyncio.ensure_future(self._send_each(events, send))
        ends = [asyncio.ensure_future(_gone(receive)), self._streams.closing.wait()]
        tasks = [sending, *map(asyncio.ensure_future, ends)]
        try:
            await asyncio.wait(tasks, timeout=STREAM_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
        with contextlib.suppress(CometError):  # the browser opens the next stream
            if not sending.cancelled():
                sending.result()

    async def _send_each(self, events: AsyncIterator[msgspec.Struct], send: Send) -> None:
        async for each in events:
            lines = self._template.render(data=each).splitlines()
            body = "".join(f"data: {line}\n" for line in lines) + "\n"
            await send({"type": "http.response.body", "body": body.encode(), "more_body": True})


async def _gone(receive: Receive) -> None:
    """Wait until the viewer has gone."""
    message: MutableMapping[str, Any] = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
