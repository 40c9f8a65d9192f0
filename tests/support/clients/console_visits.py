"""Visits of a console: a browser without a script, and requests of its API."""

from __future__ import annotations

from typing import Any

import httpx

from cometmq.console.app import Console


def visitor(console: Console) -> httpx.AsyncClient:
    """A browser without a script, which keeps cookies."""
    transport = httpx.ASGITransport(console.app)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8082")


async def read(visits: httpx.AsyncClient, path: str, status: int = 200, **query: Any) -> Any:
    """Return the JSON of a page or of a preview."""
    response = await visits.get(f"/api{path}", params=query)
    assert response.status_code == status, response.text
    return response.json()


async def change(visits: httpx.AsyncClient, path: str, status: int = 200, **form: Any) -> Any:
    """Make a change by JSON."""
    response = await visits.post(f"/api{path}", json=form)
    assert response.status_code == status, response.text
    return response.json()
