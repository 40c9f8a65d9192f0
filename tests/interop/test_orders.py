"""Ordered consumption and retries: settings by mqadmin, and what clients then do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import kit
import pytest
from codes import Request
from mqadmin import MqAdmin
from programs import GO, JAVA_49, JAVA_53, OURS, Client, CommandError, Kind
from servers import BROKER_NAME, CLUSTER, Cluster, connect
from wire import Connection

from cometmq.client.blocking import AdminClient
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import Perm

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]
TOOLS = ("4.9.8", "5.3.3")
IN_ORDER = (pytest.param(JAVA_49, marks=pytest.mark.long), JAVA_53, OURS)
POLICY_MS, CLOCK_GRAIN_MS = 6000, 20
"""A first retry waits for 3 s unless its group has a policy."""


@pytest.fixture(scope="module", autouse=True)
def orders_in_routes(cluster: Cluster) -> None:
    """The name server shows order configurations in routes."""
    connection = connect(cluster.namesrv)
    body = b"orderMessageEnable=true"
    kit.ok(connection.request(Request.UPDATE_NAMESRV_CONFIG, body=body))
    connection.close()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, MqAdmin]]:
    """mqadmin of both lines of RocketMQ."""
    running = {name: MqAdmin(tmp_path_factory.mktemp("mqadmin"), name) for name in TOOLS}
    yield running
    for tool in running.values():
        tool.close()


@pytest.fixture(scope="module")
def our_admin(cluster: Cluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv) as running:
        yield running


def done(tool: MqAdmin, cluster: Cluster, *command: str) -> str:
    """Run a command that has to succeed; give what it prints."""
    printed = tool.run(cluster.namesrv, *command)
    assert "Exception" not in printed.err, printed
    return printed.out


def first_times(bodies: list[str]) -> list[str]:
    return list(dict.fromkeys(bodies))


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
@pytest.mark.parametrize("version", TOOLS)
def test_clients_send_to_the_queues_that_the_order_configuration_names(
    kind: Kind,
    version: str,
    tools: dict[str, MqAdmin],
    cluster: Cluster,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
) -> None:
    topic, client, tool = make_topic(queues=4), clients(kind), tools[version]
    order = f"{BROKER_NAME}:2"
    done(tool, cluster, "updateOrderConf", "-t", topic, "-m", "put", "-v", order)
    shown = done(tool, cluster, "updateOrderConf", "-t", topic, "-m", "get")
    assert f"orderConf=[{order}]" in shown
    assert f'"orderTopicConf":"{order}"' in done(tool, cluster, "topicRoute", "-t", topic)
    group = client.group(make_group(), topic, mode="orderly", members=1)
    bodies = {shard: [f"{shard}-{n}" for n in range(4)] for shard in "abcdefgh"}

    queues = set()
    for shard, texts in bodies.items():
        messages = [{"body": text} for text in texts]
        sent = client.send(topic, messages, style="ordered", shard=shard)
        assert len({result["queue"] for result in sent}) == 1
        queues |= {result["queue"] for result in sent}
    group.wait_for(text for texts in bodies.values() for text in texts)

    assert queues == {0, 1}
    for shard, texts in bodies.items():
        assert first_times([b for b in group.bodies() if b.startswith(shard)]) == texts
    group.stop()
    done(tool, cluster, "updateOrderConf", "-t", topic, "-m", "delete")
    assert "orderTopicConf" not in done(tool, cluster, "topicRoute", "-t", topic)


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_a_topic_of_one_queue_is_in_one_order(
    kind: Kind,
    our_admin: AdminClient,
    clients: Callable[[Kind], Client],
    make_group: MakeGroup,
) -> None:
    """A global order: two members, of which one has the queue."""
    topic, client = kit.unique("global"), clients(kind)
    our_admin.create_topic(topic, queues=1, ordered=True)
    assert our_admin.order_conf(topic) == {BROKER_NAME: 1}
    group = client.group(make_group(), topic, mode="orderly", members=2)
    bodies = [f"step {n:02}" for n in range(30)]
    for n, body in enumerate(bodies):
        client.send(topic, [{"body": body}], style="ordered", shard=f"key {n}")

    received = group.wait_for(bodies)

    in_time = sorted(received, key=lambda event: (event["now_ms"], event["offset"]))
    assert first_times([event["body"] for event in in_time]) == bodies
    group.stop()


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_a_broker_that_is_not_writable_refuses_messages_of_ordered_topics(
    kind: Kind,
    our_admin: AdminClient,
    cluster: Cluster,
    clients: Callable[[Kind], Client],
) -> None:
    topic, client = kit.unique("ordered"), clients(kind)
    our_admin.create_topic(topic, queues=2, ordered=True)
    client.send(topic, [{"body": "before"}], style="ordered", shard="a")
    our_admin.set_broker_config(cluster.broker, {"brokerPermission": "4"})
    try:
        with pytest.raises(CommandError, match=r"sending message is forbidden"):
            client.send(topic, [{"body": "refused"}], style="ordered", shard="a")
    finally:
        our_admin.set_broker_config(cluster.broker, {"brokerPermission": "6"})
    client.send(topic, [{"body": "after"}], style="ordered", shard="a")


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_an_ordered_message_that_fails_too_often_is_a_dead_letter(
    kind: Kind,
    tools: dict[str, MqAdmin],
    cluster: Cluster,
    broker: Connection,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
    our_admin: AdminClient,
) -> None:
    """Its queue goes on behind it; tools read it, and let a member handle it again."""
    topic, name, client = make_topic(queues=1), make_group(), clients(kind)
    letters = f"%DLQ%{name}"
    client.send(topic, [{"body": body} for body in ("one", "dead two", "three")])
    group = client.group(name, topic, mode="orderly", members=1, retries_max=1)

    group.wait_for(["one", "three"])
    kit.wait_for_queue(broker, letters, 1, timeout=60)

    assert first_times(group.bodies()) == ["one", "dead two", "three"]
    assert group.bodies().count("dead two") == 2
    letter = our_admin.message_in_queue(MessageQueue(letters, BROKER_NAME, 0), 0)
    assert letter is not None
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"dead two", topic)
    for version, tool in tools.items():
        printed = done(tool, cluster, "consumerConnection", "-g", name)
        member = re.search(r"\S+@\S+", printed)
        assert member is not None, printed
        where = ("-t", letters) if version == "5.3.3" else ()
        handled = done(
            tool, cluster, "queryMsgById", "-i", letter.offset_message_id, *where,
            "-g", name, "-d", member[0],
        )  # fmt: skip
        assert "ConsumeMessageDirectlyResult" in handled
    group.stop()


@pytest.mark.parametrize("kind", [JAVA_49, JAVA_53, GO, OURS], ids=str)
def test_a_retry_waits_as_the_policy_of_its_group_says(
    target: str,
    kind: Kind,
    tools: dict[str, MqAdmin],
    cluster: Cluster,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
) -> None:
    if target != "comet":
        pytest.skip("RocketMQ's brokers keep the policy and do not use it")
    topic, name, client = make_topic(), make_group(), clients(kind)
    policy = f'{{"type":"CUSTOMIZED","customizedRetryPolicy":{{"next":[{POLICY_MS}]}}}}'
    done(tools["5.3.3"], cluster, "updateSubGroup", "-c", CLUSTER, "-g", name, "-p", policy)
    shown = done(tools["5.3.3"], cluster, "getConsumerConfig", "-g", name)
    assert f"CustomizedRetryPolicy{{next=[{POLICY_MS}]}}" in shown
    group = client.group(name, topic, members=1)
    client.send(topic, [{"body": "retry me"}])

    kit.eventually(lambda: [e for e in group.received if e["reconsumed"] == 1], timeout=240.0)

    first, again = (
        min(e["now_ms"] for e in group.received if e["reconsumed"] == times) for times in (0, 1)
    )
    assert again - first >= POLICY_MS - CLOCK_GRAIN_MS
    group.stop()


@pytest.mark.parametrize("version", TOOLS)
def test_tools_make_the_dead_letters_of_an_old_broker_readable(
    version: str,
    tools: dict[str, MqAdmin],
    cluster: Cluster,
    broker: Connection,
    make_topic: MakeTopic,
    make_group: MakeGroup,
    our_admin: AdminClient,
) -> None:
    """Before 4.9.2 brokers created the topic without the permission to read."""
    topic, name, tool = make_topic(), make_group(), tools[version]
    letters = f"%DLQ%{name}"
    kit.ok(kit.create_topic(broker, letters, perm=Perm.WRITE))
    stored = kit.store(broker, topic, b"fails")
    message = our_admin.message_at(stored.message_id)
    fields = {"offset": message.log_offset, "group": name, "delayLevel": -1, "originTopic": topic}
    kit.ok(broker.request(Request.CONSUMER_SEND_MSG_BACK, fields))
    kit.wait_for_queue(broker, letters, 1)
    refused = kit.pull(broker, "readers", letters).answer
    assert (refused.code, refused.remark) == (
        16,
        f"the topic[{letters}] pulling message is forbidden",
    )

    done(tool, cluster, "updateTopicPerm", "-c", CLUSTER, "-t", letters, "-p", "6")

    assert "fails" in done(tool, cluster, "printMsg", "-t", letters, "-d", "true")
