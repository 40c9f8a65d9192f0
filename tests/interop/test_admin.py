"""``cometmq admin`` manages RocketMQ's servers: topics, groups, offsets, and the age of the lag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers import Cluster
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.client import Message
from cometmq.client.blocking import Producer

VERSIONS = ["4.9.7", pytest.param("5.3.3", marks=pytest.mark.long)]
SENT = 6


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with Cluster(request.param, tmp_path_factory.mktemp("cluster")) as running:
        yield running


def run(cluster: Cluster, words: str) -> Any:
    line = ["admin", *words.split(), "--json", "-n", cluster.namesrv]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


def test_a_group_is_moved_and_its_lag_has_an_age(cluster: Cluster) -> None:
    run(cluster, "topic create admin-orders --queues 2")
    run(cluster, "group create admin-billing")
    with Producer(cluster.namesrv, group="shop") as producer:
        for number in range(SENT):
            producer.send(Message("admin-orders", b"%d" % number, keys=f"key{number}"))
    run(cluster, "offset reset admin-billing admin-orders --to earliest --yes")
    behind = run(cluster, "group lag admin-billing --topic admin-orders")
    run(cluster, "offset skip admin-billing admin-orders --yes")
    level = run(cluster, "group lag admin-billing --topic admin-orders")

    assert sum(row["lag"] for row in behind) == SENT
    assert all(0 <= row["oldest_age_ms"] < 600_000 for row in behind if row["lag"])
    assert [(row["lag"], row["oldest_age_ms"]) for row in level] == [(0, None)] * 2
    assert len(run(cluster, "message read admin-orders")) == SENT
    assert len(run(cluster, "message find admin-orders key3")) == 1
    assert [row["broker"] for row in run(cluster, "cluster list")] == ["broker-a"]
    run(cluster, "topic update admin-orders --queues 3")
    assert run(cluster, "topic show admin-orders")[0]["read_queues"] == 3
    assert run(cluster, "config show --name brokerName")
    if not cluster.target.startswith("4."):
        [mode] = run(cluster, "group set-mode admin-billing admin-orders pop")
        assert mode["state"] == "done"
    run(cluster, "group delete admin-billing --yes")
