"""``cometmq doctor --namesrv`` finds no fault in clusters of RocketMQ that have none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kit
import pytest
from servers import Cluster, split_address
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.client import Message, StartFrom
from cometmq.client.blocking import Producer, PushConsumer
from cometmq.remoting.ports import ha_port
from support.brokers.replicas import running_pair

WAIT_S = 120.0
SENT = 20
SHOWN, NOT_SHOWN = "connected slaves: 1 of 1", "brokers of 4.9 do not show their connections"
ONE, PAIR = "one broker", "master and slave"
CLUSTERS = [
    ("5.3.3", PAIR),
    pytest.param("4.9.7", PAIR, marks=pytest.mark.long),
    pytest.param("5.3.3", ONE, marks=pytest.mark.long),
    pytest.param("4.9.7", ONE, marks=pytest.mark.long),
]


@contextmanager
def running(version: str, shape: str, folder: Path) -> Iterator[Cluster]:
    """Run a cluster of RocketMQ within ``with``."""
    if shape == PAIR:
        with running_pair(version, folder) as pair:
            yield pair.master
        return
    with Cluster(version, folder) as cluster:
        yield cluster


def examined(cluster: Cluster) -> dict[str, Any]:
    """What doctor finds, and its exit code as ``code``."""
    result = CliRunner().invoke(app, ["doctor", "--namesrv", cluster.namesrv, "--json"])
    assert result.exit_code in (0, 1), (result.stdout, result.stderr, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found | {"code": result.exit_code}


def bad(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (each["level"], each["check"], each["met"])
        for each in found["findings"]
        if each["level"] != "fine"
    ]


@pytest.mark.parametrize(("version", "shape"), CLUSTERS)
def test_a_cluster_of_rocketmq_in_which_all_is_well(
    version: str, shape: str, tmp_path: Path
) -> None:
    expected = [] if shape == PAIR else [("warning", "masters", "a master without slaves")]
    with running(version, shape, tmp_path) as cluster:
        with Producer(cluster.namesrv, group="shop") as producer:
            for number in range(SENT):
                producer.send(Message("orders", b"%d" % number))
        consumed = threading.Semaphore(0)
        host, port = split_address(cluster.broker)
        with (
            socket.create_connection((host, ha_port(port))),  # a connection that copies nothing
            PushConsumer(
                cluster.namesrv,
                group="billing",
                start_from=StartFrom.FIRST,
                subscriptions={"orders": "*"},
                handler=lambda message: consumed.release(),
            ),
        ):
            assert all(consumed.acquire(timeout=WAIT_S) for _ in range(SENT))
            found = kit.eventually(
                lambda: found if bad(found := examined(cluster)) == expected else None,
                timeout=WAIT_S,
                pause=1.0,
            )

    assert (found["code"], found["problems"]) == (0, 0)
    checks = {each["check"] for each in found["findings"]}
    assert checks >= {
        "name-servers", "brokers", "clocks", "disk-space", "ports", "versions", "masters", "topics",
        "groups", "subscriptions",
    }  # fmt: skip
    fine = {each["check"]: each["met"] for each in found["findings"]}
    assert fine["clocks"] != "the broker does not show its time"
    assert fine["disk-space"].endswith("% used")
    assert fine["groups"] == "1 group, 1 online"
    connected = SHOWN if version == "5.3.3" else NOT_SHOWN
    assert fine.get("slaves") == (connected if shape == PAIR else None)
