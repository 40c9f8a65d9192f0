"""A broker and a database for the tests. They start before the service reads its settings."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from cometmq.testing import ThreadedCluster

folder = tempfile.TemporaryDirectory()
cluster = ThreadedCluster(
    settings={
        "recallMessageEnable": "true",
        "transactionTimeOut": "2000",
        "transactionCheckInterval": "100",
    }
)


def pytest_configure() -> None:
    cluster.start()
    sqlite = f"sqlite+aiosqlite:///{folder.name}/orders.db"
    os.environ["DATABASE_URL"] = os.environ.get("TEST_DATABASE_URL", sqlite)
    os.environ["ORDERS_BROKER"] = cluster.name_servers


def pytest_unconfigure() -> None:
    cluster.stop()
    folder.cleanup()


@pytest.fixture(scope="session")
async def database() -> AsyncIterator[None]:
    from orders.models import create_tables, engine

    await create_tables()
    yield
    await engine.dispose()


@pytest.fixture(scope="module")
async def service(database: None) -> AsyncIterator[None]:
    """API, worker and relay, in the test process, with the real broker."""
    from orders import api, bus, outbox, worker  # noqa: F401  handlers of both

    async with bus.servers, bus.broker:
        await bus.broker.start()
        relaying = asyncio.create_task(outbox.relay())
        yield
        relaying.cancel()
        with suppress(asyncio.CancelledError):
            await relaying
