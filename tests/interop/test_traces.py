"""Traces that every client writes to our broker, and that every tool finds and reads."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import kit
import pytest
from mqadmin import MqAdmin
from programs import GO, JAVA_49, JAVA_53, OURS, Client, Kind
from servers import Cluster, new_group, new_topic
from wire import Connection

from cometmq.client.blocking import AdminClient
from cometmq.client.trace import ConsumeAfter, ConsumeBefore, Publish, Record
from cometmq.model.topic import TRACE_TOPIC

TRACED = (JAVA_49, JAVA_53, GO, OURS)
TOOLS = ("4.9.8", "5.3.3")
FOUND_S = 40.0
MESSAGES_MAX = 3
"""Clients send traces once: on a busy machine those of a message can be lost."""


@pytest.fixture(scope="module")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose broker creates the trace topic when it starts."""
    with Cluster(target, tmp_path_factory.mktemp("cluster"), {"traceTopicEnable": True}) as servers:
        yield servers


@dataclass(frozen=True)
class Traced:
    """A message that a client with traces has sent, and a group of it has received."""

    kind: Kind
    topic: str
    senders: str
    group: str
    message_id: str
    records: list[Record]
    """Its traces; empty if some were lost."""


@pytest.fixture(scope="module")
def our_admin(cluster: Cluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv) as running:
        yield running


@pytest.fixture(scope="module", params=TRACED, ids=str)
def traced(
    request: pytest.FixtureRequest,
    clients: Callable[[Kind], Client],
    cluster: Cluster,
    broker: Connection,
    our_admin: AdminClient,
) -> Traced:
    client = clients(request.param)
    topic, name = new_topic(cluster, broker), new_group(cluster, broker)
    senders = kit.unique("senders")
    group = client.group(name, topic, members=1, trace=True)
    for number in range(MESSAGES_MAX):
        body = f"traced {number}"
        message = {"body": body, "tag": "paid", "keys": f"order-of-{topic}"}
        [sent] = client.send(topic, [message], group=senders, trace=True)
        group.wait_for([body])
        records = all_records(our_admin, sent["id"])
        if records:
            break
    group.stop()
    return Traced(client.kind, topic, senders, name, sent["id"], records)


def all_records(admin: AdminClient, message_id: str) -> list[Record]:
    """The records of a message once they are all stored and indexed; none if some are lost."""
    kinds: set[type[Record]] = {Publish, ConsumeBefore, ConsumeAfter}
    deadline = time.monotonic() + FOUND_S
    while time.monotonic() < deadline:
        records = admin.trace(message_id)
        if {type(record) for record in records} >= kinds:
            return records
        time.sleep(0.1)
    return []


@pytest.fixture(scope="module", params=TOOLS)
def mqadmin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MqAdmin]:
    tool = MqAdmin(tmp_path_factory.mktemp("mqadmin"), request.param)
    yield tool
    tool.close()


def test_the_broker_has_the_trace_topic_from_its_start(
    cluster: Cluster, broker: Connection
) -> None:
    config = kit.topic_config(broker, TRACE_TOPIC)
    assert config is not None
    assert (config["writeQueueNums"], config["readQueueNums"], config["perm"]) == (1, 1, 6)


def test_our_admin_client_reads_the_traces_of_every_client(traced: Traced) -> None:
    records = traced.records

    [sent] = [record for record in records if isinstance(record, Publish)]
    befores = [record for record in records if isinstance(record, ConsumeBefore)]
    afters = [record for record in records if isinstance(record, ConsumeAfter)]
    assert (sent.group, sent.topic, sent.tags) == (traced.senders, traced.topic, "paid")
    assert (sent.keys or "").strip() == f"order-of-{traced.topic}"
    assert (sent.region, sent.body_bytes, sent.success) == ("DefaultRegion", 8, True)
    assert {record.group for record in befores} == {traced.group}
    assert {record.success for record in afters} == {True}
    assert {record.request_id for record in afters} == {record.request_id for record in befores}


def test_a_trace_is_found_by_the_key_of_its_message(traced: Traced, our_admin: AdminClient) -> None:
    found = our_admin.messages_by_key(TRACE_TOPIC, f"order-of-{traced.topic}")
    assert any(traced.message_id in message.keys for message in found)


def test_mqadmin_reads_the_traces_of_every_client(
    mqadmin: MqAdmin, traced: Traced, cluster: Cluster
) -> None:
    printed = mqadmin.run(cluster.namesrv, "queryMsgTraceById", "-i", traced.message_id)

    for line in (rf"Pub\s+{traced.senders}\s", rf"Sub\s+{traced.group}\s"):
        assert re.search(rf"^{line}.*success", printed.out, re.MULTILINE), printed
