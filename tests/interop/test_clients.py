"""The official clients of four languages send in every way, and receive in groups."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import kit
import pytest
from programs import CPP, GO, JAVA_49, JAVA_53, KINDS, Client, Group, Kind
from servers import Cluster
from typer.testing import CliRunner
from wire import Connection

from cometmq.cli.commands import app

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]

DELAY_LEVEL, DELAY_MS = 2, 2000
RETRY_DELAY_MS = 3000
"""The first retry waits for level 3."""
CLOCK_GRAIN_MS = 20
SHARED_S_MAX = 240.0
"""Members rebalance at least every 20 s."""


def with_mode(mode: str) -> list[Kind]:
    return [kind for kind in KINDS if mode in kind.modes]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def client(request: pytest.FixtureRequest, clients: Callable[[Kind], Client]) -> Client:
    return clients(request.param)


def of_style(style: str, count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "body": f"{style}-{n} größer als 你好",
            "tag": "red" if n % 2 else "green",
            "keys": f"key-{style}-{n}",
            "properties": {"p": f"value {n}", "colour": "ünï"},
        }
        for n in range(count)
    ]


def large(name: str) -> dict[str, Any]:
    """A body that clients compress."""
    return {"body": f"{name} " + "0123456789 十分 " * 900, "tag": "large"}


def reach_every_member(client: Client, group: Group, topic: str) -> None:
    """Send until every member had a message: on a busy machine the second one gets queues late."""
    deadline = time.monotonic() + SHARED_S_MAX
    more = (f"one more {number}" for number in itertools.count())
    while not all(group.received_by(name) for name in group.names):
        assert time.monotonic() < deadline, "one member had all the work"
        bodies = [next(more) for _ in range(8)]
        client.send(topic, [{"body": body, "tag": "more"} for body in bodies])
        group.wait_for(bodies)


def test_every_way_of_sending_reaches_a_group_of_two(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = client.group(make_group(), topic)
    sent = []
    for style in client.kind.styles:
        messages = of_style(style)
        results = client.send(topic, messages, style=style, shard="one shard")
        assert all(r is None or r["status"] == "SEND_OK" for r in results), results
        sent += messages
    big = large("big")
    client.send(topic, [big])

    received = group.wait_for([message["body"] for message in (*sent, big)])

    for message in sent:
        came = next(event for event in received if event["body"] == message["body"])
        assert came["tag"] == message["tag"]
        assert came["keys"] == message["keys"]
        assert came["topic"] == topic
        assert message["properties"].items() <= came["properties"].items()
    assert {event["body"] for event in received} == {m["body"] for m in (*sent, big)}
    reach_every_member(client, group, topic)
    group.stop()


def test_only_messages_of_the_subscribed_tags_arrive(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = client.group(make_group(), topic, expression="red || green", members=1)
    colours = ("blue", "red", "yellow", "green") * 5
    messages = [{"body": f"{colour}-{n}", "tag": colour} for n, colour in enumerate(colours)]
    client.send(topic, [*messages, {"body": "no tag at all"}])
    client.send(topic, [{"body": f"last-{n}", "tag": "red"} for n in range(8)])
    wanted = {m["body"] for m in messages if m["tag"] in ("red", "green")}

    received = group.wait_for(wanted | {f"last-{n}" for n in range(8)})

    assert {event["tag"] for event in received} == {"red", "green"}
    group.stop()


def test_a_message_that_fails_comes_again_after_its_delay(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = client.group(make_group(), topic)
    client.send(topic, [{"body": "retry me", "tag": "t", "keys": "k"}, {"body": "good"}])

    again = kit.eventually(lambda: second_delivery(group), timeout=240.0)

    firsts = [e for e in group.received if e["body"] == "retry me" and e["reconsumed"] == 0]
    first_ms = min(event["now_ms"] for event in firsts)  # a rebalance can redeliver it as well
    assert again["topic"] == topic
    assert (again["tag"], again["keys"]) == ("t", "k")
    assert again["now_ms"] - first_ms >= RETRY_DELAY_MS - CLOCK_GRAIN_MS
    group.wait_for(["good"])
    group.stop()


def second_delivery(group: Group) -> dict[str, Any] | None:
    return next((e for e in group.received if e["reconsumed"] == 1), None)


def test_delayed_messages_arrive_once_when_their_level_or_time_is_over(
    client: Client, make_topic: MakeTopic, make_group: MakeGroup, broker: Connection, target: str
) -> None:
    topic = make_topic(queues=1)
    group = client.group(make_group(), topic, members=1)
    grain_ms = CLOCK_GRAIN_MS if target == "comet" else 1000
    deliver_ms = kit.now_ms() + 3500
    messages = [{"body": "at once"}, {"body": "later", "delay": DELAY_LEVEL}]
    delays_ms = {"later": DELAY_MS}
    if target != "4.9.7":  # it has no times of delivery
        times = {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "2345", "TIMER_DELIVER_MS": deliver_ms}
        messages += [{"body": name, "properties": {name: str(t)}} for name, t in times.items()]
        delays_ms |= {"TIMER_DELAY_SEC": 2000, "TIMER_DELAY_MS": 2345}
    client.send(topic, [{**message, "tag": "t"} for message in messages])

    received = {event["body"]: event for event in group.wait_for(m["body"] for m in messages)}

    for body, event in received.items():
        assert (event["topic"], event["tag"]) == (topic, "t")
        due_ms = event["born_ms"] + delays_ms.get(body, 0)
        if body == "TIMER_DELIVER_MS":
            due_ms = deliver_ms
        assert event["stored_ms"] >= due_ms - grain_ms, body
    assert kit.max_offset(broker, topic) == len(messages)
    group.stop()


@pytest.mark.parametrize("kind", [JAVA_49, GO, CPP], ids=str)  # the results of Node have no such id
def test_a_message_with_a_time_is_recalled_by_its_unique_id(
    kind: Kind,
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    cluster: Cluster,
    target: str,
) -> None:
    if target == "4.9.7":
        pytest.skip("it has no times of delivery")
    topic, times = make_topic(), {"TIMER_DELAY_SEC": "3600"}
    [sent] = clients(kind).send(topic, [{"body": "never", "properties": times}])
    [recalled] = timer_command(cluster, "recall", "--yes", topic, sent["id"])
    assert recalled["state"] == "done"

    [found] = timer_command(cluster, "find", topic, sent["id"])

    assert found["state"] == "recalled"


def timer_command(cluster: Cluster, *words: str) -> Any:
    line = ["admin", "timer", *words, "--json", "-n", cluster.namesrv]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", with_mode("orderly"), ids=str)
def test_one_shard_is_received_in_its_order(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, client = make_topic(), clients(kind)
    members = kind.orderly_members
    group = client.group(make_group(), topic, mode="orderly", members=members)
    bodies = {shard: [f"{shard}-{n:02}" for n in range(20)] for shard in ("x", "y", "z")}
    for shard, texts in bodies.items():
        messages = [{"body": text} for text in texts]
        client.send(topic, messages, style="ordered", shard=shard)

    group.wait_for(text for texts in bodies.values() for text in texts)

    for shard, texts in bodies.items():
        came = [body for body in first_times(group) if body.startswith(shard)]
        assert came == texts
    group.stop()


def first_times(group: Group) -> list[str]:
    """Bodies in the order of their first arrival."""
    return list(dict.fromkeys(e["body"] for e in sorted(group.received, key=arrival)))


def arrival(event: dict[str, Any]) -> tuple[int, int]:
    return event["now_ms"], event["offset"]


@pytest.mark.parametrize("kind", with_mode("broadcast"), ids=str)
def test_every_member_gets_every_message_of_a_broadcast(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, client = make_topic(queues=2), clients(kind)
    group = client.group(make_group(), topic, mode="broadcast")
    begin_to_receive(client, topic, group)
    bodies = {f"for all {n}" for n in range(10)}
    client.send(topic, [{"body": body} for body in bodies])

    for name in group.names:
        kit.eventually(lambda n=name: bodies <= bodies_of(group, n), timeout=240.0)  # type: ignore[misc]
    group.stop()


def bodies_of(group: Group, member: str) -> set[str]:
    return {event["body"] for event in group.received_by(member)}


def begin_to_receive(client: Client, topic: str, group: Group) -> None:
    """Send until every member has seen something on every queue: some start at the queue's end."""

    def all_see() -> bool:
        client.send(topic, [{"body": f"warm-up {n}"} for n in range(4)])
        seen = [{e["queue"] for e in group.received_by(name)} for name in group.names]
        return all(len(queues) == 2 for queues in seen)

    kit.eventually(all_see, timeout=240.0, pause=0.5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.can_pull], ids=str)
def test_a_pull_consumer_reads_the_whole_topic(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, client = make_topic(), clients(kind)
    messages = [*of_style("sync", 40), large("pulled")]
    client.send(topic, messages)

    found = client.main.ask(
        "pull", group=make_group(), topic=topic, expression="*", count=len(messages)
    )

    assert sorted(event["body"] for event in found) == sorted(m["body"] for m in messages)


def test_every_client_reads_what_every_other_sent(
    clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, sent = make_topic(), []
    everyone = [clients(kind) for kind in KINDS]
    groups = [client.group(make_group(), topic, members=1) for client in everyone]
    for client in everyone:
        messages = [*of_style(client.kind.name, 4), large(client.kind.name)]
        client.send(topic, messages)
        sent += [message["body"] for message in messages]

    for client, group in zip(everyone, groups, strict=True):
        assert {e["body"] for e in group.wait_for(sent)} == set(sent), client.kind
    for group in groups:
        group.stop()


@pytest.mark.parametrize("kind", [JAVA_49, JAVA_53], ids=str)
def test_a_suspended_queue_keeps_its_order(
    kind: Kind, clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """An orderly listener that fails holds up the messages behind."""
    topic, client = make_topic(queues=1), clients(kind)
    bodies = ["one", "retry two", "three", "four"]
    client.send(topic, [{"body": body} for body in bodies])
    group = client.group(make_group(), topic, mode="orderly", members=1)

    group.wait_for(bodies)

    came = [event["body"] for event in group.received]
    assert came == ["one", "retry two", "retry two", "three", "four"]
    group.stop()
