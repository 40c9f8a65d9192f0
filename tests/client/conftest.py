"""Clusters for the tests of this folder: ours, and those of RocketMQ 4.9 and 5.3.

Every test that asks for a cluster runs on those that ``COMETMQ_CLUSTERS`` names: ``comet`` (the
default), ``4.9.7``, ``5.3.3``, ``5.5.0``, with commas between, or ``all``. The others, most of
which script what their servers do, run once, where ours is named. What only some clusters can do is
marked ``@pytest.mark.only_on("4.9.7", "5.3.3")``. On long runs a test runs on each of its clusters;
on others on ours and on one of 4.9.7 and 5.3.3, and on ours alone if it is marked
``long_elsewhere``, or not on those that ``long_on("5.3.3")`` names. A test of what our broker
refuses for now asserts the refusal where ``target`` is ``comet``.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest
from servers import Cluster, Settings

from cometmq.client import AdminClient, ClientInstance, MessageQueue, Producer
from cometmq.remoting.ports import free_port
from support.brokers.clusters import (
    COMET,
    chosen_targets,
    make_cluster,
    name_servers,
    note,
    ours_and_one,
    own_cluster,
    runs_here,
    target,
)
from support.checks.leaks import left_behind, open_sockets, other_tasks
from support.runner.tiers import deselect
from support.runner.versions import VERSIONS_5

PATIENT: Settings = {"waitTimeMillsInSendQueue": 60_000}
"""By default a broker refuses sends that waited for 0.2 s, as they may on a busy machine."""
TIMERS: Settings = {"timerWheelEnable": True, "recallMessageEnable": True}
"""RocketMQ 5 refuses timer messages, pops and the deletion of topics without its timer wheel."""

__all__ = ["make_cluster", "name_servers", "own_cluster", "target"]
"""Fixtures that stand elsewhere."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of this folder."""
    config.addinivalue_line("markers", "only_on(*targets): runs on these clusters only")
    free_port()  # the socket that marks its block stays open; no test leaves it behind
    config.addinivalue_line("markers", "long_elsewhere: real clusters are for long runs")
    config.addinivalue_line("markers", "long_on(*targets): those clusters are for long runs")
    config.addinivalue_line("markers", "leaves(why): the test leaves tasks or sockets, and may")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs elsewhere, and what talks to no cluster where ours is not asked for."""
    with_ours = COMET in chosen_targets()
    dropped = [
        item
        for item in items
        if not runs_here(item, ours_and_one)
        or not (with_ours or "target" in getattr(item, "fixturenames", ()))
    ]
    deselect(config, items, dropped)


@pytest.fixture(scope="session")
def session_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker that all tests of a run share; delay levels are 1 s to 18 s."""
    settings = PATIENT | TIMERS if target in (COMET, *VERSIONS_5) else PATIENT
    with Cluster(target, tmp_path_factory.mktemp("cluster"), settings) as running:
        yield running


@pytest.fixture(autouse=True)
async def _leaves_nothing(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test after which a task still runs in its loop, or a socket is still open."""
    if "target" in request.fixturenames:
        note(request, request.getfixturevalue("target"))
    if "session_cluster" in request.fixturenames:
        request.getfixturevalue("session_cluster")  # what it opens outlives the test
    tasks, sockets = other_tasks(), open_sockets()
    yield
    if request.node.get_closest_marker("leaves") is None:
        found = await left_behind(tasks, sockets)
        assert not found, f"left behind: {found}"


@pytest.fixture
def cluster(session_cluster: Cluster) -> Cluster:
    """The shared cluster, for tests that leave it as it is."""
    return session_cluster


@pytest.fixture(scope="session")
def starter() -> Iterator[Executor]:
    """A thread to start servers from while the loop runs.

    A server ends with the thread that started it, and those of a loop end with the loop.
    """
    with ThreadPoolExecutor(1, "starter") as threads:
        yield threads


@pytest.fixture
async def instance(name_servers: str) -> AsyncIterator[ClientInstance]:
    """An instance to lend to producers and consumers."""
    async with ClientInstance(name_servers) as running:
        yield running


@pytest.fixture
async def admin(instance: ClientInstance) -> AsyncIterator[AdminClient]:
    """A client to administer with."""
    async with AdminClient(instance=instance) as running:
        yield running


@pytest.fixture
async def producer(instance: ClientInstance) -> AsyncIterator[Producer]:
    """A producer that runs."""
    async with Producer(instance=instance, group="producers") as running:
        yield running


@pytest.fixture
async def queues(instance: ClientInstance) -> list[MessageQueue]:
    """The four queues of a new topic."""
    async with AdminClient(instance=instance) as admin:
        return await admin.create_topic(f"t-{uuid.uuid4().hex}", queues=4)


@pytest.fixture
def topic(queues: list[MessageQueue]) -> str:
    """A new topic of four queues."""
    return queues[0].topic


@pytest.fixture
def group() -> str:
    """The name of a group that nobody else uses."""
    return f"g-{uuid.uuid4().hex}"
