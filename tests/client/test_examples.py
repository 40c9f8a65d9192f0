"""The examples do the same on RocketMQ's servers as on ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from servers import Cluster

from cometmq.client.blocking import AdminClient
from support.processes.examples import EXPECTED, NEEDS_VERSION, run, with_a_server
from support.runner.versions import ALL_VERSIONS

SWITCHES_FILTERS_ON = "31_filter_with_sql"


def with_clusters(path: Path) -> ParameterSet:
    """An example and which clusters serve it; on ours the documentation's tests run it."""
    served = NEEDS_VERSION.get(path.stem, ALL_VERSIONS)
    return pytest.param(path, id=path.stem, marks=pytest.mark.only_on(*served))


@pytest.mark.parametrize("path", [with_clusters(path) for path in with_a_server()])
def test_example_runs_on_rocketmq_and_prints_what_it_says(cluster: Cluster, path: Path) -> None:
    try:
        assert re.fullmatch(EXPECTED[path.stem], run(path, cluster.namesrv))
    finally:
        if path.stem == SWITCHES_FILTERS_ON:  # other tests expect RocketMQ's default
            with AdminClient(cluster.namesrv) as admin:
                for broker in admin.cluster_info().broker_addr_table.values():
                    admin.set_broker_config(
                        broker.broker_addrs[0], {"enablePropertyFilter": "false"}
                    )
