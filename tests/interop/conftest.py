"""Fixtures of the tests against real RocketMQ programs; see README.md for how to run them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "conformance"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from servers import Cluster  # noqa: E402


@pytest.fixture(scope="session")
def target() -> str:
    """Whose servers the clients meet: ours, or a real version to check the tests themselves."""
    return os.environ.get("COMETMQ_INTEROP_TARGET", "comet")


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running name server and broker of their own for each test module."""
    servers = Cluster(target, tmp_path_factory.mktemp("cluster"))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
