"""The offset file of broadcast groups: Java reads ours, and we read Java's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import JAVA_49, JAVA_53, Client, Kind, Received
from servers import Cluster, new_topic
from wire import Connection

from cometmq.client.offsets import LocalOffsetStore, parse, render
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from support.checks.waiting import wait_until

GROUP = "readers"
QUEUES = 4
MESSAGES = 12


@pytest.fixture(params=[JAVA_49, JAVA_53], ids=str)
def java(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Client]:
    """A Java program that keeps its offsets below the test's folder."""
    kind: Kind = request.param
    offsets = f"-Drocketmq.client.localOffsetStoreDir={tmp_path / 'offsets'}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", offsets)
    client = Client(kind, cluster.namesrv, tmp_path)
    yield client
    client.close()


async def test_either_client_goes_on_where_the_other_ended(
    java: Client, cluster: Cluster, broker: Connection, tmp_path: Path
) -> None:
    topic = new_topic(cluster, broker, queues=QUEUES)
    java.send(topic, [{"body": f"m{number}"} for number in range(MESSAGES)])
    group = java.group(GROUP, topic, mode="broadcast", members=1)
    received = group.wait_for(f"m{number}" for number in range(MESSAGES))
    stored = Counter(event["queue"] for event in received)
    wait_until(lambda: offsets_by_queue(tmp_path) == stored)  # a listener returns a moment later
    group.stop()

    [path] = files_of_offsets(tmp_path)
    read = parse(path.read_bytes())
    assert {queue.queue_id: offset for queue, offset in read.items()} == stored
    assert {queue.topic for queue in read} == {topic}
    assert parse(render(read)) == read

    client_id = path.parent.parent.name
    store = LocalOffsetStore(tmp_path / "offsets", client_id, GROUP)
    await store.load()
    for queue, offset in read.items():
        store.update(queue, QueueOffset(offset - 1))
    await store.persist(read)

    again = java.group(GROUP, topic, mode="broadcast", members=1)
    newest = sorted(body_at(received, queue, offset - 1) for queue, offset in read.items())
    wait_until(lambda: len(again.received) >= MESSAGES + QUEUES)
    came = again.received[MESSAGES:]
    again.stop()
    assert sorted(event["body"] for event in came) == newest


def files_of_offsets(folder: Path) -> list[Path]:
    return list((folder / "offsets").glob(f"*/{GROUP}/offsets.json"))


def offsets_by_queue(folder: Path) -> dict[int, int]:
    """The offsets in the file now; none before the client writes them for the first time."""
    try:
        tables = [parse(path.read_bytes()) for path in files_of_offsets(folder)]
    except FileNotFoundError:  # the client is just replacing it
        return {}
    return {queue.queue_id: offset for table in tables for queue, offset in table.items()}


def body_at(received: list[Received], queue: MessageQueue, offset: int) -> str:
    """The body of the message at an offset of a queue."""
    [found] = [
        event["body"]
        for event in received
        if (event["queue"], event["offset"]) == (queue.queue_id, offset)
    ]
    return str(found)
