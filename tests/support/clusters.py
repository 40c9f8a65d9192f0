"""The clusters a folder of tests runs on: ours, and real ones of both lines of RocketMQ.

``COMETMQ_CLUSTERS`` names them. A folder's ``conftest`` imports the fixtures it wants from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import VERSIONS, Cluster, Settings

COMET = "comet"
TARGETS = (COMET, *VERSIONS)


def chosen_targets() -> list[str]:
    """The clusters to run on."""
    said = os.environ.get("COMETMQ_CLUSTERS", COMET)
    names = TARGETS if said == "all" else tuple(name.strip() for name in said.split(","))
    if unknown := [name for name in names if name not in TARGETS]:
        raise pytest.UsageError(f"COMETMQ_CLUSTERS={said}: {unknown} is none of {TARGETS}")
    return list(names)


def is_long_run() -> bool:
    """Whether everything runs everywhere, however long it takes."""
    return os.environ.get("COMETMQ_ROUNDS", "ci") != "ci"


def note(request: pytest.FixtureRequest, target: str) -> None:
    """Write into the report of a test which cluster it talks to."""
    request.node.user_properties.append(("cluster", target))


def skip_elsewhere(request: pytest.FixtureRequest, target: str) -> None:
    """Skip what is not for this cluster, or not on every run."""
    mark = request.node.get_closest_marker("only_on")
    if mark is not None and target not in mark.args:
        pytest.skip(f"is only for {' and '.join(mark.args)}")
    if request.node.get_closest_marker("soak_elsewhere") and target != COMET and not is_long_run():
        pytest.skip("real clusters are for long runs (COMETMQ_ROUNDS=soak)")
    slow = request.node.get_closest_marker("soak_on")
    if slow is not None and target in slow.args and not is_long_run():
        pytest.skip(f"{target} is for long runs (COMETMQ_ROUNDS=soak)")


@pytest.fixture(scope="session", params=chosen_targets())
def target(request: pytest.FixtureRequest) -> str:
    """Whose cluster this is: ``comet`` or a version of RocketMQ."""
    name: str = request.param
    return name


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(target: str, tmp_path: Path) -> Iterator[MakeCluster]:
    """Start clusters for one test alone, with settings of the broker by RocketMQ's names."""
    started: list[Cluster] = []

    def make(settings: Settings | None = None) -> Cluster:
        started.append(Cluster(target, tmp_path / f"own-{len(started)}", settings))
        started[-1].start()
        return started[-1]

    yield make
    for running in started:
        running.kill()


@pytest.fixture
def own_cluster(make_cluster: MakeCluster) -> Cluster:
    """A cluster for a test that stops, kills or restarts it."""
    return make_cluster()


@pytest.fixture
def name_servers(cluster: Cluster) -> str:
    """The address of the shared cluster's name server."""
    return cluster.namesrv
