"""pytest fixtures: a CometMQ cluster for the tests of programs that use the package.

    def test_orders(cometmq_cluster):
        asyncio.run(place_order(cometmq_cluster.name_servers))

The cluster runs in its own thread, so the fixtures serve plain and async tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cometmq.testing import ThreadedCluster


@pytest.fixture(scope="session")
def cometmq_cluster() -> Iterator[ThreadedCluster]:
    """A cluster of one broker, shared by all tests of the session."""
    yield from _cluster()


@pytest.fixture
def cometmq_own_cluster() -> Iterator[ThreadedCluster]:
    """A cluster of one broker, for this test only."""
    yield from _cluster()


def _cluster() -> Iterator[ThreadedCluster]:
    from cometmq.testing import ThreadedCluster

    with ThreadedCluster() as cluster:
        yield cluster
