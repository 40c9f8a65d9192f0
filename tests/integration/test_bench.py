"""``cometmq bench``: each load against a server, the result file, and what goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cometmq.cli.bench.results import read
from cometmq.cli.commands import app
from cometmq.testing import ThreadedCluster

QUICK = ("--seconds", "0.5", "--warm-up", "0", "--in-flight", "4")
LOADS = {
    "producer": (),
    "batch": ("--batch", "8", "--rate", "2000"),
    "consumer": ("--rate", "500"),
    "delay": ("--rate", "200", "--delay", "0.2"),
    "transaction": ("--rollback", "0.5"),
    "pop": ("--rate", "500"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as running:
        yield running


def bench(cluster: ThreadedCluster, kind: str, *options: str) -> tuple[int, str]:
    words = ["bench", kind, "--servers", cluster.name_servers, *QUICK, *options]
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


@pytest.mark.parametrize(("kind", "options"), LOADS.items(), ids=LOADS)
def test_a_load_is_measured(
    cluster: ThreadedCluster, tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    path = tmp_path / "result.json"
    topic = f"bench-{kind}"
    named = ("--topic", topic, "--result", str(path), "--server-pid", str(os.getpid()))
    code, output = bench(cluster, kind, *named, *options)
    assert code == 0, output
    result = read(path)
    assert (result.load.kind, result.load.topic, result.errors) == (kind, topic, 0)
    assert result.messages > 0
    assert result.milliseconds["p50"] <= result.milliseconds["p99"] <= result.milliseconds["max"]
    assert result.client_cpu_us
    assert f"{result.messages:,} in" in output


def test_a_backlog_ends(cluster: ThreadedCluster, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = ("--fill", "3000", "--topic", "backlog", "--seconds", "30", "--result", str(path))
    code, output = bench(cluster, "consumer", *options)
    assert code == 0, output
    result = read(path)
    assert result.is_drained
    assert result.messages <= 3000
    assert result.seconds < 20
    assert "then nothing was left" in output


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("delay", (), "needs --rate"),
        ("producer", ("--against", "pulsar"), "--against pulsar: expected one of cometmq"),
        ("producer", ("--server-pid", "999999999"), "--server-pid 999999999"),
        ("producer", ("--against", "kafka", "--servers", "127.0.0.1:1"), "127.0.0.1:1: Kafka"),
        ("pop", ("--against", "nats"), "nats has no load 'pop': expected producer, consumer"),
        ("compare", (), "expected two or more"),
    ],
)
def test_what_is_wrong_is_named(
    cluster: ThreadedCluster, kind: str, options: tuple[str, ...], text: str
) -> None:
    if kind == "compare":
        done = CliRunner().invoke(app, ["bench", "compare", "one.json"])
        assert text in str(done.exception)
        return
    words = ["bench", kind, "--servers", cluster.name_servers, *QUICK, *options]
    assert text in str(CliRunner().invoke(app, words).exception)
