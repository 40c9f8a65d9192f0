"""Reads a page of metrics as Prometheus does."""

from __future__ import annotations

import asyncio
import re

_SERIES = re.compile(r'([a-z_A-Z0-9]+)\{((?:[a-zA-Z_]+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')
LIMIT_S = 60.0


class Scraped:
    """A page: the types of its metrics, and their series.

    Args:
        text: the page.
    """

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        name = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ")[2]
                assert name not in self.kinds, f"{name} is there twice"
            elif line.startswith("# TYPE "):
                _, _, named, self.kinds[name] = line.split(" ")
                assert named == name
            else:
                found = _SERIES.fullmatch(line)
                assert found is not None, line
                suffixes = ("_bucket", "_sum", "_count")
                parts = (
                    [name + suffix for suffix in suffixes] if self.is_histogram(name) else [name]
                )
                assert found[1] in parts, f"{found[1]} below {name}"
                pairs = _LABEL.findall(found[2])
                labels = frozenset(pairs)
                assert len({label for label, _ in pairs}) == len(pairs), line
                assert labels not in self.series.setdefault(found[1], {}), line
                self.series[found[1]][labels] = float(found[3])

    def is_histogram(self, name: str) -> bool:
        """Return whether a metric is a histogram."""
        return self.kinds[name] == "histogram"

    def buckets(self, name: str, **labels: str) -> list[float]:
        """Return the values of the buckets of the one series of a histogram with these labels.

        They are checked: each has what the one before it has, the last one has all.
        """
        wanted = labels.items()
        found = {
            float(dict(of)["le"]): value
            for of, value in self.series[f"{name}_bucket"].items()
            if wanted <= set(of)
        }
        values = [found[bound] for bound in sorted(found)]
        assert values == sorted(values), (name, found)
        assert values[-1] == self.value(f"{name}_count", **labels), (name, found)
        return values

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one series of a metric that has these labels."""
        wanted = labels.items()
        found = [value for of, value in self.series[name].items() if wanted <= set(of)]
        assert len(found) == 1, (name, labels, self.series[name])
        return found[0]

    def labels(self, name: str) -> set[str]:
        """Return the names of the labels of a metric."""
        name = f"{name}_count" if self.is_histogram(name) else name
        return {label for of in self.series[name] for label, _ in of}


async def http(port: int, request: bytes) -> tuple[str, bytes]:
    """Return head and body of the response to a request."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


async def readiness(port: int) -> str:
    """Return ``ready``, or why a server is not."""
    head, body = await http(port, b"GET /ready HTTP/1.1\r\n\r\n")
    text = body.decode().strip()
    assert head.startswith("HTTP/1.1 200 OK" if text == "ready" else "HTTP/1.1 503 "), head
    return text


async def scrape(port: int) -> Scraped:
    """Return the metrics of a server."""
    head, body = await http(port, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n"), head
    assert f"Content-Length: {len(body)}" in head
    return Scraped(body.decode())
