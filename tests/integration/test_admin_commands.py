"""``cometmq admin``: every command on a cluster, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.testing import ThreadedCluster

RUNNER = CliRunner(env={"COLUMNS": "300", "NAMESRV_ADDR": None, "COMETMQ_CONFIG": None})


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2) as running:
        yield running


class Tool:
    """Runs commands on one cluster."""

    def __init__(self, name_servers: str) -> None:
        self.name_servers = name_servers

    def run(self, words: str, *more: str, code: int = 0, given: str = "") -> str:
        """Run a command and return what it printed to standard output."""
        line = ["admin", *words.split(), *more, "--namesrv", self.name_servers]
        result = RUNNER.invoke(app, line, input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result.stdout

    def json(self, words: str, *more: str, code: int = 0) -> Any:
        """Run a command with ``--json`` and return the value."""
        return json.loads(self.run(words, *more, "--json", code=code))


@pytest.fixture(scope="module")
def tool(cluster: ThreadedCluster) -> Tool:
    return Tool(cluster.name_servers)


def test_a_topic_is_created_shown_changed_and_deleted(tool: Tool) -> None:
    tool.run("topic create orders --queues 4")
    assert {"topic": "orders"} in tool.json("topic list")
    assert [row["read_queues"] for row in tool.json("topic show orders")] == [4, 4]
    tool.run("topic update orders --queues 6")
    shown = tool.json("topic show orders")
    assert [(row["broker"], row["write_queues"]) for row in shown] == [
        ("broker-0", 6),
        ("broker-1", 6),
    ]
    tool.run("topic delete orders --yes")
    assert {"topic": "orders"} not in tool.json("topic list")
