"""A download: a file that is made while it is sent, such as an export."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cometmq.console.changes import Site
from cometmq.console.pages import Query, Role, query_of, status_of, within
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError

DOWNLOADS_MAX = 4
"""Downloads at a time."""
OPEN_S = 15.0
"""For the first part, so that an error has its own status."""
DOWNLOAD_S = 600.0
"""For all of it, however slowly the visitor reads."""
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class File(NamedTuple):
    """A file that is sent part by part."""

    name: str
    parts: AsyncIterator[bytes]


class Download(NamedTuple):
    """A file by a query. It is never shown as a page: browsers store it."""

    path: str
    title: str
    query: type[Query]
    media_type: str
    open: Callable[[Reads, Any], Awaitable[File]]
    role: Role = Role.READER

    @property
    def api(self) -> str:
        """The path of the same with errors as JSON."""
        return f"/api{self.path}"


class TooManyDownloadsError(CometError):
    """Too many downloads run."""


class Downloads:
    """The routes of downloads.

    Args:
        downloads: of all features.
        site: the application.
    """

    def __init__(self, downloads: Sequence[Download], site: Site) -> None:
        self._downloads, self._site = downloads, site
        self._running = 0

    @property
    def routes(self) -> list[Route]:
        """The routes, with errors as pages and as JSON."""
        return [
            Route(path, self._respond(each), methods=["GET"])
            for each in self._downloads
            for path in (each.path, each.api)
        ]

    def _respond(self, download: Download) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self._site.check_role(request, download.role)
            try:
                query = query_of(download.query, request.query_params.multi_items())
                return await self._open(request, download, query)
            except CometError as error:
                status, text = status_of(error)
                if request.url.path.startswith("/api/"):
                    return JSONResponse({"error": text}, status)
                return self._site.page(
                    request, "error.html", status, heading=download.title, text=text
                )

        return respond

    async def _open(self, request: Request, download: Download, query: Query) -> Response:
        if self._running >= DOWNLOADS_MAX:
            raise TooManyDownloadsError(
                f"{self._running} downloads run: expected fewer; try again when one has ended"
            )
        self._running += 1
        try:
            async with within(
                OPEN_S, f"the cluster did not respond within {OPEN_S:.0f} s: try again"
            ):
                file = await download.open(self._site.reads_of(request), query)
        except BaseException:
            self._running -= 1
            raise
        return _Sent(self, file, download.media_type)

    async def send(self, sending: Awaitable[None]) -> None:
        """Send a file that was opened, for as long as it may take; a visitor sees that one is cut
        off."""
        try:
            async with asyncio.timeout(DOWNLOAD_S):
                await sending
        finally:
            self._running -= 1


class _Sent(StreamingResponse):
    def __init__(self, downloads: Downloads, file: File, media_type: str) -> None:
        name = _NO_FILE_NAME.sub("_", file.name)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(file.parts, headers=headers, media_type=media_type)
        self._downloads = downloads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._downloads.send(super().__call__(scope, receive, send))
