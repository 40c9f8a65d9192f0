"""Servers for the tests of this folder: real processes on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cometmq.remoting import RemotingClient
from support.brokers.pairs import Pairs, running_pairs
from support.processes.server import Standalone, standalone

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: runs on asyncio's loop and on uvloop's")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """Tests that are marked, or whose module says ``BOTH_LOOPS``, run on both loops of servers.

    These start processes, or depend on how a loop reads, writes and closes. What values decide is
    the same on both. Only asyncio's loop has virtual time.
    """
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    module = item.getparent(pytest.Module)
    on_both = module is not None and getattr(module.obj, "BOTH_LOOPS", False)
    on_both = on_both or item.get_closest_marker("both_loops") is not None
    if on_both and "virtual_time" not in getattr(item, "fixturenames", ()):
        uvloop = pytest.importorskip("uvloop")
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A name server and a broker in one process, which the tests of a module share."""
    with standalone(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def name_servers(server: Standalone) -> str:
    """The address of the shared name server, for clients."""
    return f"{server.namesrv[0]}:{server.namesrv[1]}"


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """A client of the remoting protocol."""
    made = RemotingClient(name="test")
    yield made
    await made.close()


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    """A name server, and what starts masters and their slaves."""
    async with running_pairs(tmp_path) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that only this test uses."""
    name: str = request.node.name
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:120]
