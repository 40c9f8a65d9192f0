"""A Spark session, and clusters of ours and of RocketMQ, for the tests of this folder.

``COMETMQ_SPARK`` says where Spark runs: ``local`` (the default) in this process on two cores, or
``standalone`` on a master and a worker that are started from the wheel. ``COMETMQ_CLUSTERS`` names
the clusters that tests run on, as in ``tests/client``: ``comet`` (the default), ``4.9.7``,
``5.3.3``, with commas between, or ``all``. There is one session per run.

On long runs a test runs on each of its clusters, on others on one; ``make test`` runs the files of
`FIRST_FILES` alone. Marks: ``only_on("comet")`` names the only clusters a test is for,
``long_elsewhere`` leaves real clusters and standalone Spark to long runs, ``long_on("5.3.3")`` that
cluster. ``local_only`` keeps a test off standalone Spark: one that brings its own driver, or needs
none of Spark's executors; ``standalone_only`` off local Spark. Standalone runs are long ones; they
leave out tests that do not take ``spark``.
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

from support.brokers.clusters import (
    make_cluster,
    name_servers,
    note,
    one_of_chosen,
    own_cluster,
    runs_here,
    target,
)
from support.runner.tiers import TEST, deselect, is_stage_of
from support.spark import object_storage
from support.spark.recipes import recipe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL, STANDALONE = "local", "standalone"
CORES = 2
FAST_START = Path(__file__).resolve().parent / "fast_start"
"""What lets Spark's processes start faster; it changes nothing that they do."""
FIRST_FILES = ("test_topic_batch.py", "test_topic_stream.py", "test_topic_write.py")
"""The tests that ``make test`` runs: a topic as a table, as a stream, and as a sink."""
PASSED_ON = ("COMETMQ_BUILD", "COMETMQ_EXPECT_BUILD")
"""Variables that executors on a cluster get from here besides keys: which build is under test."""


__all__ = ["make_cluster", "name_servers", "own_cluster", "target"]
"""Fixtures that stand elsewhere."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of this folder, and refuse an unknown place for Spark."""
    config.addinivalue_line("markers", "only_on(*targets): runs on these clusters only")
    what = "long_elsewhere: real clusters and standalone Spark are for long runs"
    config.addinivalue_line("markers", what)
    config.addinivalue_line("markers", "long_on(*targets): those clusters are for long runs")
    config.addinivalue_line("markers", "local_only: not on standalone Spark")
    config.addinivalue_line("markers", "standalone_only: not on local Spark")
    if spark_place() not in (LOCAL, STANDALONE):
        raise pytest.UsageError(f"COMETMQ_SPARK={spark_place()}: neither {LOCAL} nor {STANDALONE}")
    os.environ["SPARK_CONF_DIR"] = str(FAST_START)
    if spark_place() == LOCAL:  # executors of a cluster show that they need no preparation
        path = filter(None, (str(FAST_START), os.environ.get("PYTHONPATH")))
        os.environ["PYTHONPATH"] = os.pathsep.join(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not for this Spark, this cluster, or this tier."""
    dropped = [
        item
        for item in items
        if item.get_closest_marker(f"{_other_place()}_only")
        or not runs_here(item, one_of_chosen)
        or (spark_place() == STANDALONE and not _concerns_standalone(item))
        or (is_stage_of(TEST) and item.path.name not in FIRST_FILES)
    ]
    deselect(config, items, dropped)


def _concerns_standalone(item: pytest.Item) -> bool:
    takes_spark = "spark" in getattr(item, "fixturenames", ())
    return takes_spark or item.get_closest_marker("standalone_only") is not None


def spark_place() -> str:
    """Where Spark runs: ``local`` or ``standalone``."""
    return os.environ.get("COMETMQ_SPARK", LOCAL)


def _other_place() -> str:
    return LOCAL if spark_place() == STANDALONE else STANDALONE


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of the run, on two cores; it knows our formats, and keys for a bucket."""
    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ.update(object_storage.KEYS)
    from cometmq.spark.sessions import local_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
        "spark.log.level": "ERROR",
        "spark.python.authenticate.socketTimeout": "120s",  # 15 s is short on a busy machine
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
    small_cluster = recipe("08_small_cluster").StandaloneCluster
    with small_cluster(CORES, folder=folder / "cluster", launcher=launcher) as cluster:
        session = cluster.session(**conf)
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _note_cluster(request: pytest.FixtureRequest) -> None:
    """Write into the report which cluster a test talks to."""
    if "target" in request.fixturenames:
        note(request, request.getfixturevalue("target"))


@pytest.fixture(scope="session")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker that all tests of a run share: leave them as they are."""
    running = Cluster(target, tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    finally:
        running.remove()


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
