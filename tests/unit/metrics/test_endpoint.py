"""The endpoint of metrics: what it serves, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.metrics import endpoint
from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.endpoint import CONNECTIONS_MAX, MetricsEndpoint
from cometmq.metrics.page import Collect, Page
from cometmq.model.errors import ConfigError
from support.wire.metrics_page import http, scrape

GET = b"GET /metrics HTTP/1.1\r\n\r\n"


async def one(page: Page) -> None:
    page.gauge("one", "1").set(1)


@asynccontextmanager
async def serving(collect: Collect = one) -> AsyncIterator[MetricsEndpoint]:
    """An endpoint on a free port."""
    settings = MetricsSettings(exporter="PROM", port=0, label_text="zone:a")
    running = MetricsEndpoint(settings, {"cluster": "C"}, collect)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def test_a_page_has_the_labels_of_server_and_settings() -> None:
    async with serving() as running:
        assert (await scrape(running.port)).value("one", cluster="C", zone="a") == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
        (b"GET /live HTTP/1.1\r\n\r\n", "200 OK"),
        (b"HEAD /ready?x=1 HTTP/1.1\r\n\r\n", "200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /ready/ HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (b"\x00\x00\x00\x10\xff\xff\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 100_000, "431 Request Header Fields Too Large"),
    ],
)
async def test_a_request_gets_its_status(request_: bytes, status: str) -> None:
    async with serving() as running:
        with contextlib.suppress(ConnectionError):  # a request that is not read to its end
            head, body = await http(running.port, request_)
            assert head.startswith(f"HTTP/1.1 {status}\r\n")
            assert (body == b"") == request_.startswith(b"HEAD")
        assert (await scrape(running.port)).value("one") == 1


async def test_a_server_that_is_not_ready_says_why_and_lives() -> None:
    settings, reasons = MetricsSettings(exporter="PROM", port=0), ["no disk", ""]
    running = MetricsEndpoint(settings, {}, one, lambda: reasons.pop(0))
    await running.start()
    try:
        heads, bodies = zip(
            *[
                await http(running.port, f"GET /{path} HTTP/1.1\r\n\r\n".encode())
                for path in ("live", "ready", "ready")
            ],
            strict=True,
        )
    finally:
        await running.stop()

    assert [head.split(" ")[1] for head in heads] == ["200", "503", "200"]
    assert bodies == (b"live\n", b"no disk\n", b"ready\n")


async def test_slow_clients_are_bounded_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.5)
    async with serving() as running, asyncio.timeout(30):
        slow = [
            await asyncio.open_connection("127.0.0.1", running.port) for _ in range(CONNECTIONS_MAX)
        ]
        for _, writer in slow:
            writer.write(b"GET /met")
        with contextlib.suppress(ConnectionError):
            assert await http(running.port, GET) == ("", b"")
        for reader, writer in slow:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert (await scrape(running.port)).value("one") == 1


async def test_a_page_that_cannot_be_collected_is_an_error() -> None:
    failing = True

    async def collect(page: Page) -> None:
        await one(page)
        if failing:
            raise ValueError("secret")

    async with serving(collect) as running:
        head, body = await http(running.port, GET)
        assert head.startswith("HTTP/1.1 500 ")
        assert body == b"Internal Server Error\n"
        failing = False
        assert (await scrape(running.port)).value("one") == 1


async def test_one_page_is_collected_at_a_time_and_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running_now = most = 0

    async def collect(page: Page) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        try:
            await asyncio.Event().wait()
        finally:
            running_now -= 1

    monkeypatch.setattr(endpoint, "RESPONSE_S", 0.3)
    async with serving(collect) as running:
        both = await asyncio.gather(http(running.port, GET), http(running.port, GET))
    assert [head.split("\r\n")[0] for head, _ in both] == ["HTTP/1.1 503 Service Unavailable"] * 2
    assert most == 1


async def test_a_port_in_use_is_named() -> None:
    async with serving() as running:
        second = MetricsEndpoint(MetricsSettings(port=running.port), {}, one)
        with pytest.raises(ConfigError, match="metricsPromExporterPort sets another port"):
            await second.start()


async def test_a_stop_ends_connections() -> None:
    async with serving() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await running.stop()
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
