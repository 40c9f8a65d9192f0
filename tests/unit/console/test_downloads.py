"""Downloads: files that are sent part by part, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cometmq.console import downloads as module
from cometmq.console.downloads import DOWNLOADS_MAX, Download, Downloads, File
from cometmq.console.pages import Query, Role
from cometmq.console.reads import Reads
from cometmq.model.errors import ConfigError


class Named(Query):
    name: str = "file"


class Site:
    """What downloads need of the application."""

    def check_role(self, request: Request, role: Role) -> None:
        """Allow all."""

    def reads_of(self, request: Request) -> Any:
        return None

    def page(self, request: Request, template: str, status: int, **values: Any) -> Response:
        return PlainTextResponse(values["text"], status)


def visits_of(parts: Any, may_open: asyncio.Event | None = None) -> httpx.AsyncClient:
    async def open_file(_reads: Reads, query: Named) -> File:
        if may_open is not None:
            await may_open.wait()
        if query.name == "missing":
            raise ConfigError("expected another name")
        return File(query.name, parts())

    download = Download("/file", "A file", Named, "text/plain", open_file)
    app = Starlette(routes=Downloads([download], Site()).routes)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def test_a_file_has_a_safe_name_and_an_error_has_its_own_status() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async with visits_of(parts) as visits:
        file = await visits.get("/file", params={"name": '%DLQ%a"; x\r\ny'})
        assert file.text == "one two"
        assert file.headers["content-disposition"] == 'attachment; filename="_DLQ_a_x_y"'
        page = await visits.get("/file", params={"name": "missing"})
        assert (page.status_code, page.text) == (400, "expected another name")
        as_json = await visits.get("/api/file", params={"other": "x"})
        assert (as_json.status_code, "unknown parameter" in as_json.json()["error"]) == (400, True)


async def test_downloads_have_a_bound_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, all_run = asyncio.Event(), asyncio.Event()
    begun = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal begun
        yield b"begin"
        begun += 1
        if begun == DOWNLOADS_MAX:
            all_run.set()
        await may_end.wait()

    async with visits_of(parts) as visits:
        running = [asyncio.ensure_future(visits.get("/file")) for _ in range(DOWNLOADS_MAX)]
        await all_run.wait()
        refused = await visits.get("/file")
        assert "expected fewer" in refused.text
        may_end.set()
        assert [each.text for each in await asyncio.gather(*running)] == ["begin"] * DOWNLOADS_MAX
        assert (await visits.get("/file")).status_code == 200

        may_end.clear()
        monkeypatch.setattr(module, "DOWNLOAD_S", 0.01)
        with pytest.raises(TimeoutError):
            await visits.get("/file")


async def test_downloads_that_are_opened_count(monkeypatch: pytest.MonkeyPatch) -> None:
    may_open = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"all"

    async with visits_of(parts, may_open) as visits:
        monkeypatch.setattr(module, "OPEN_S", 0.01)
        slow = await asyncio.gather(*(visits.get("/file") for _ in range(DOWNLOADS_MAX + 1)))
        assert sorted("expected fewer" in each.text for each in slow) == [
            *[False] * DOWNLOADS_MAX, True,
        ]  # fmt: skip
        may_open.set()
        assert (await visits.get("/file")).text == "all"
