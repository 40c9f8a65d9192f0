"""A Spark session, and clusters of both worlds, for the tests of this folder.

``COMETMQ_SPARK`` says where Spark runs: ``local`` (the default) in this process on two cores, or
``standalone`` on a master and a worker that are started from the wheel. ``COMETMQ_CLUSTERS`` names
the clusters a test that asks for one runs on, as in ``tests/client``: ``comet`` (the default),
``4.9.7``, ``5.3.3``, with commas between, or ``all``. There is one session per run.
``COMETMQ_PART``, such as ``1/2``, leaves out the files of other parts, which run elsewhere.

``@pytest.mark.only_on("comet")`` skips other clusters, ``@pytest.mark.soak_elsewhere`` skips real
clusters and standalone Spark except on long runs, ``@pytest.mark.soak_on("5.3.3")`` that cluster.
``@pytest.mark.local_only`` skips a test on standalone Spark: one that brings its own driver, or
asks nothing of Spark's executors; ``standalone_only`` on local Spark. Tests that do not take
``spark`` do not depend on where it runs: standalone runs leave them out.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import toolchain
from processes import LAUNCHER
from servers import Cluster, connect, new_group, new_topic
from wire import Connection

from support import object_storage
from support.clusters import (
    is_long_run,
    make_cluster,
    name_servers,
    note,
    own_cluster,
    skip_elsewhere,
    target,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL, STANDALONE = "local", "standalone"
CORES = 2
PASSED_ON = ("COMETMQ_BUILD", "COMETMQ_EXPECT_BUILD")
"""Variables that executors on a cluster get from here besides keys: which build is under test."""


__all__ = ["make_cluster", "name_servers", "own_cluster", "target"]
"""Fixtures that stand elsewhere."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of this folder, and refuse an unknown place for Spark."""
    config.addinivalue_line("markers", "only_on(*targets): runs on these clusters only")
    what = "soak_elsewhere: real clusters and standalone Spark are for long runs"
    config.addinivalue_line("markers", what)
    config.addinivalue_line("markers", "soak_on(*targets): those clusters are for long runs")
    config.addinivalue_line("markers", "local_only: not on standalone Spark")
    config.addinivalue_line("markers", "standalone_only: not on local Spark")
    if spark_place() not in (LOCAL, STANDALONE):
        raise pytest.UsageError(f"COMETMQ_SPARK={spark_place()}: neither {LOCAL} nor {STANDALONE}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of this part, and on standalone Spark what does not concern it."""
    elsewhere = _files_of_other_parts(os.environ.get("COMETMQ_PART", "1/1"))
    kept = [
        item
        for item in items
        if item.path not in elsewhere
        and (spark_place() != STANDALONE or _concerns_standalone(item))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _files_of_other_parts(part: str) -> set[Path]:
    """All files of this folder but, for two parts, every second one in the order of their sizes."""
    number, count = map(int, part.split("/"))
    files = sorted(Path(__file__).parent.glob("test_*.py"), key=lambda path: path.stat().st_size)
    return set(files).difference(files[number - 1 :: count])


def _concerns_standalone(item: pytest.Item) -> bool:
    if item.get_closest_marker("soak_elsewhere") and not is_long_run():
        return False
    takes_spark = "spark" in getattr(item, "fixturenames", ())
    return takes_spark or item.get_closest_marker("standalone_only") is not None


def spark_place() -> str:
    """Where Spark runs: ``local`` or ``standalone``."""
    return os.environ.get("COMETMQ_SPARK", LOCAL)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of the run, on two cores; it knows our formats, and keys for a bucket."""
    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ.update(object_storage.KEYS)
    from cometmq.spark.sessions import StandaloneCluster, local_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.metricsEnabled": False,
    }
    if spark_place() == LOCAL:
        session = local_session(CORES, **conf)
        yield session
        session.stop()
        return
    names = (*PASSED_ON, *object_storage.KEYS)
    passed_on = {name: os.environ[name] for name in names if name in os.environ}
    conf |= {f"spark.executorEnv.{name}": value for name, value in passed_on.items()}
    launcher = (sys.executable, "-S", str(LAUNCHER))
    with StandaloneCluster(CORES, folder=folder / "cluster", launcher=launcher) as cluster:
        session = cluster.session(**conf)
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _skip_elsewhere(request: pytest.FixtureRequest) -> None:
    """Skip what is not for this cluster, not for this Spark, or not for every run."""
    for place in (LOCAL, STANDALONE):
        if request.node.get_closest_marker(f"{place}_only") and spark_place() != place:
            pytest.skip(f"is only for {place} Spark")
    if "target" not in request.fixturenames:
        return
    target = request.getfixturevalue("target")
    skip_elsewhere(request, target)
    note(request, target)


@pytest.fixture(scope="session")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker that all tests of a run share: leave them as they are."""
    running = Cluster(target, tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.fixture
def broker(cluster: Cluster) -> Iterator[Connection]:
    """A raw connection to the shared cluster's broker; brokers close those that idle too long."""
    connection = connect(cluster.broker)
    yield connection
    connection.close()


@pytest.fixture
def make_topic(cluster: Cluster, broker: Connection) -> Callable[..., str]:
    """Create topics (``queues=4``) that clients can find at once."""

    def make(*, queues: int = 4) -> str:
        return new_topic(cluster, broker, queues=queues)

    return make


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    """A new topic of four queues."""
    return make_topic()


@pytest.fixture
def make_group(cluster: Cluster, broker: Connection) -> Callable[[], str]:
    """Name groups whose retry topic clients can find at once."""

    def make() -> str:
        return new_group(cluster, broker)

    return make


@pytest.fixture
def group() -> str:
    """The name of a group that nobody else uses."""
    return f"g-{uuid.uuid4().hex}"
