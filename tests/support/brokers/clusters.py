"""The clusters that tests run on: ours, and those of some versions of RocketMQ.

``COMETMQ_CLUSTERS`` names them: ``comet`` (the default), versions of RocketMQ, separated by commas,
or ``all``. The ``conftest`` of a folder imports the fixtures that it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from servers import Cluster, Settings

from support.runner.tiers import is_long_run
from support.runner.versions import ALL_VERSIONS, NEWEST

COMET = "comet"
TARGETS = (COMET, *ALL_VERSIONS)


def chosen_targets() -> list[str]:
    """The clusters to run on."""
    said = os.environ.get("COMETMQ_CLUSTERS", COMET)
    names = TARGETS if said == "all" else tuple(name.strip() for name in said.split(","))
    if unknown := [name for name in names if name not in TARGETS]:
        raise pytest.UsageError(f"COMETMQ_CLUSTERS={said}: {unknown} is none of {TARGETS}")
    return list(names)


def note(request: pytest.FixtureRequest, target: str) -> None:
    """Record in the report of a test which cluster it connects to."""
    request.node.user_properties.append(("cluster", target))


def runs_here(item: pytest.Item, choose: Callable[[list[str], int], list[str]]) -> bool:
    """Whether a test runs on the cluster of its ``target`` in this tier.

    ``only_on(*targets)`` names the clusters that a test supports; without it, all. In the tier
    ``all`` the test runs on each of them. In other tiers ``long_on(*targets)`` leaves these
    clusters to the tier ``all``, ``long_elsewhere`` leaves all of RocketMQ's clusters to it (if a
    test supports others too), and ``choose`` selects from the rest by a hash of the file's name. So
    each version of RocketMQ runs a part of the files. No stage of these tiers names the newest
    version; where ``COMETMQ_CLUSTERS`` does, the tests of all files run.
    """
    callspec = getattr(item, "callspec", None)
    if callspec is None or "target" not in callspec.params:
        return True
    allowed = list(TARGETS)
    if (only := item.get_closest_marker("only_on")) is not None:
        if not only.args or set(only.args) - set(TARGETS):
            raise pytest.UsageError(
                f"{item.nodeid}: only_on{only.args}: expected some of {TARGETS}"
            )
        allowed = [name for name in allowed if name in only.args]
    target = callspec.params["target"]
    if not is_long_run():
        left = item.get_closest_marker("long_on")
        later = left.args if left else ()
        if item.get_closest_marker("long_elsewhere"):
            later = ALL_VERSIONS
        allowed = [name for name in allowed if name not in later] or allowed
        if target != NEWEST:
            others = [name for name in allowed if name != NEWEST]
            allowed = choose(others, crc32(item.path.name.encode()))
    return target in allowed


def ours_and_one(allowed: list[str], number: int) -> list[str]:
    """Our cluster and one of RocketMQ's."""
    real = [name for name in allowed if name != COMET]
    return [name for name in allowed if name == COMET] + one_of(real, number)


def one_of(allowed: list[str], number: int) -> list[str]:
    """One of the clusters, if there is one."""
    return [allowed[number % len(allowed)]] if allowed else []


def one_of_chosen(allowed: list[str], number: int) -> list[str]:
    """One of those clusters that this process runs on."""
    return one_of([name for name in allowed if name in chosen_targets()], number)


@pytest.fixture(scope="session", params=chosen_targets())
def target(request: pytest.FixtureRequest) -> str:
    """The cluster under test: ``comet`` or a version of RocketMQ."""
    name: str = request.param
    return name


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(target: str, tmp_path: Path) -> Iterator[MakeCluster]:
    """Start clusters for one test, with broker settings by RocketMQ's names."""
    started: list[Cluster] = []

    def make(settings: Settings | None = None) -> Cluster:
        started.append(Cluster(target, tmp_path / f"own-{len(started)}", settings))
        started[-1].start()
        return started[-1]

    yield make
    for running in started:
        running.remove()


@pytest.fixture
def own_cluster(make_cluster: MakeCluster) -> Cluster:
    """A cluster for a test that stops, kills or restarts it."""
    return make_cluster()


@pytest.fixture
def name_servers(cluster: Cluster) -> str:
    """The address of the shared cluster's name server."""
    return cluster.namesrv
