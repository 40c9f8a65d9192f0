"""The outbox of the example: a process is killed between the commit and the send, and after it."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

from cometmq.client import StartFrom, StoredMessage
from cometmq.client.blocking import AdminClient, PullConsumer
from cometmq.client.idempotent import Idempotent, SqliteMarks
from cometmq.testing import ThreadedCluster
from support.processes import examples, forks

EXAMPLE = examples.FOLDER / "35_outbox.py"
CHANGES = """
import asyncio, os, runpy, signal, sys

from cometmq.client import Producer
from cometmq.client.hooks import SendHook

path, name_servers, state, moment = sys.argv[1:]


def kill(self, context):
    os.kill(os.getpid(), signal.SIGKILL)


async def main():
    shop = runpy.run_path(path)
    database = shop["open_database"]()
    shop["change"](database, "order-1", state)
    hook = type("Kill", (SendHook,), {moment: kill})()
    async with Producer(name_servers, hooks=[hook]) as producer:
        while await shop["relay"](database, producer):
            pass
    database.close()


asyncio.run(main())
"""
"""Changes an order and relays its event; the process is killed at a moment of the first send."""


def change(name_servers: str, state: str, moment: str) -> list[str]:
    """Change the order in a process; return the states that wait in the outbox afterwards."""
    command = [*forks.python(), "-c", CHANGES, str(EXAMPLE), name_servers, state, moment]
    ended = subprocess.run(command, check=False, timeout=60)
    assert (ended.returncode == 0) == (moment == "never")
    database = runpy.run_path(str(EXAMPLE))["open_database"]()
    waiting = [state for (state,) in database.execute("SELECT state FROM outbox ORDER BY number")]
    database.close()
    return waiting


def test_an_outbox_loses_no_event_and_a_consumer_applies_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLE))
    topic = example["TOPIC"]
    with ThreadedCluster() as cluster, AdminClient(cluster.name_servers) as admin:
        queues = admin.create_topic(topic, queues=4)
        waiting = [
            change(cluster.name_servers, "placed", "before_send"),
            change(cluster.name_servers, "paid", "after_send"),
            change(cluster.name_servers, "shipped", "never"),
        ]
        received: list[StoredMessage] = []
        with (
            PullConsumer(cluster.name_servers, group="g", start_from=StartFrom.FIRST) as consumer,
            SqliteMarks(example["DATABASE"]) as marks,
        ):
            once = Idempotent(example["track"], store=marks, group="tracking")
            consumer.assign(queues)
            while not received or received[-1].body != b"shipped":
                for message in consumer.poll(timeout=10.0):
                    received.append(message)
                    once(message)

    assert waiting == [["placed"], ["placed", "paid"], []]
    assert [each.body for each in received] == [b"placed", b"placed", b"paid", b"shipped"]
    assert received[0].keys == received[1].keys
    assert len({each.queue_id for each in received}) == 1
    database = example["open_database"]()
    assert database.execute("SELECT * FROM history").fetchall() == [
        ("order-1", "placed"),
        ("order-1", "paid"),
        ("order-1", "shipped"),
    ]
    database.close()
