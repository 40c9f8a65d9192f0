"""The examples do on RocketMQ what they do on our own server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from servers import Cluster

from support.examples import EXPECTED, NEEDS_ROCKETMQ, every_example, run


@pytest.mark.only_on("4.9.7", "5.3.3")
@pytest.mark.soak_on("4.9.7")
@pytest.mark.parametrize("path", every_example(), ids=lambda path: path.stem)
def test_example_runs_on_rocketmq_and_prints_what_it_says(
    cluster: Cluster, target: str, path: Path
) -> None:
    if target not in NEEDS_ROCKETMQ.get(path.stem, (target,)):
        pytest.skip(f"{target} does not serve what {path.stem} shows")

    assert re.fullmatch(EXPECTED[path.stem], run(path, cluster.namesrv))
