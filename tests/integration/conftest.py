"""Servers for the tests of this folder: real processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.server import Standalone, standalone


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
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that only this test uses."""
    name: str = request.node.name
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:120]
