"""The examples do on RocketMQ what they do on our own server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Cluster, Settings

from support.examples import EXPECTED, NEEDS_ROCKETMQ, every_example, run


@pytest.fixture(scope="module")
def session_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for this file: RocketMQ hands out messages only while its timer wheel turns."""
    if target == "comet":
        pytest.skip("runs with the documentation's tests")
    settings: Settings = {"timerWheelEnable": True} if target.startswith("5.") else {}
    running = Cluster(target, tmp_path_factory.mktemp("examples"), settings)
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.mark.parametrize("path", every_example(), ids=lambda path: path.stem)
def test_example_runs_on_rocketmq_and_prints_what_it_says(
    cluster: Cluster, target: str, path: Path
) -> None:
    if target not in NEEDS_ROCKETMQ.get(path.stem, (target,)):
        pytest.skip(f"{target} does not serve what {path.stem} shows")

    assert re.fullmatch(EXPECTED[path.stem], run(path, cluster.namesrv))
