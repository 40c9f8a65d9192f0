"""``cometmq admin message resume-check`` on a half message that its broker has discarded."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from typer.testing import CliRunner

from cometmq.cli.commands import app
from cometmq.client import LocalState, Message, StoredMessage
from cometmq.client.blocking import AdminClient, PushConsumer, TransactionProducer
from cometmq.client.settings import ClientSettings
from cometmq.testing import ThreadedCluster

WAIT_S = 60.0
OFTEN = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "1",
}
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


class Local:
    """A local transaction whose state is not known at first."""

    def __init__(self) -> None:
        self.state = LocalState.UNKNOWN

    def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.UNKNOWN

    def check(self, message: StoredMessage) -> LocalState:
        return self.state


def run(cluster: ThreadedCluster, words: str) -> Any:
    line = ["admin", *words.split(), "--json", "-n", cluster.name_servers]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


def discarded(cluster: ThreadedCluster, admin: AdminClient) -> str:
    """Wait until the broker has discarded the half message; return its broker's id."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if DISCARDED in admin.topics() and (found := run(cluster, f"message read {DISCARDED}")):
            [row] = found
            [queue] = [f"{row['broker']}:{row['queue']}"]
            shown = run(cluster, f"message at {DISCARDED} {queue} {row['offset']}")
            return str(shown["offset_message_id"])
        time.sleep(0.1)
    raise AssertionError(f"nothing was discarded within {WAIT_S:g} s")


def test_a_half_message_that_was_discarded_is_checked_again() -> None:
    local, received = Local(), threading.Event()
    with (
        ThreadedCluster(settings=OFTEN) as cluster,
        AdminClient(cluster.name_servers) as admin,
        TransactionProducer(
            cluster.name_servers,
            group="shop",
            listener=local,
            client=ClientSettings(heartbeat_ms=1000),
        ) as producer,
    ):
        admin.create_topic("tx", queues=1)
        producer.send_in_transaction(Message("tx", b"paid"))
        message_id = discarded(cluster, admin)
        [planned] = run(cluster, f"message resume-check {message_id} --dry-run")
        local.state = LocalState.COMMIT
        [done] = run(cluster, f"message resume-check {message_id}")
        with PushConsumer(
            cluster.name_servers,
            group="billing",
            subscriptions={"tx": "*"},
            handler=lambda message: received.set(),
        ):
            assert received.wait(WAIT_S)

    assert [planned["state"], done["state"]] == ["planned", "done"]
