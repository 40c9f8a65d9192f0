"""Dead letters of Java's client, on our servers or RocketMQ's, sent again by our tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import kit
import pytest
from programs import JAVA_49, JAVA_53, Client, Kind
from servers import Cluster
from typer.testing import CliRunner

from cometmq.cli.commands import app

RUNNER = CliRunner(env={"COLUMNS": "300", "NAMESRV_ADDR": None, "COMETMQ_CONFIG": None})


@pytest.fixture(scope="module", params=[JAVA_49, JAVA_53], ids=str)
def java(request: pytest.FixtureRequest, clients: Callable[[Kind], Client]) -> Client:
    return clients(request.param)


def dlq(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    """Run a command and return its rows."""
    line = ["admin", "dlq", *words, "--json", "--namesrv", cluster.namesrv]
    result = RUNNER.invoke(app, line)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    if words[0] == "resend":
        return [json.loads(row) for row in result.stdout.splitlines()]
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def counted(cluster: Cluster, group: str) -> int:
    return sum(row["letters"] for row in dlq(cluster, "groups") if row["group"] == group)


def test_a_java_group_alone_receives_its_dead_letters_again(
    java: Client, cluster: Cluster, make_topic: Callable[..., str], make_group: Callable[[], str]
) -> None:
    topic, group = make_topic(), make_group()
    consumers = java.group(group, topic, expression="t", members=1, retries_max=0)
    others = java.group(make_group(), topic, members=1)
    [sent] = java.send(topic, [{"body": "dead on arrival", "tag": "t", "keys": "k1 k2"}])
    kit.eventually(lambda: counted(cluster, group) == 1, timeout=240)

    [letter] = dlq(cluster, "list", group, "--originals")
    [result] = dlq(cluster, "resend", group, "--all", "--yes")
    kit.eventually(lambda: counted(cluster, group) == 2, timeout=240)
    [_, again] = dlq(cluster, "list", group)
    [skipped, sent_again] = dlq(cluster, "resend", group, "--all", "--yes")

    assert (letter["message_id"], letter["original_topic"]) == (sent["id"], topic)
    assert (letter["tag"], letter["keys"]) == ("t", ["k1", "k2"])
    assert (letter["retries"], letter["error"], letter["resent_from"]) == (0, None, None)
    assert 0 < letter["first_stored_time_ms"] <= letter["dead_time_ms"]
    assert (result["status"], result["topic"]) == ("sent", f"%RETRY%{group}")
    deliveries = consumers.received
    assert [(each["topic"], each["reconsumed"], each["tag"]) for each in deliveries[:2]] == [
        (topic, 0, "t")
    ] * 2
    assert again["resent_from"] == result["dlq_position"]
    assert (again["message_id"], again["original_topic"]) == (result["new_message_id"], topic)
    assert (skipped["status"], sent_again["status"]) == ("skipped", "sent")
    retries = [each["reconsumed"] for each in others.received]  # its listener fails too
    assert retries == [*range(len(retries))], "another group received the copy"
    consumers.stop()
    others.stop()
