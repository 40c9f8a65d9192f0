"""What only the Java clients are asked to do: transactions, replies, queries, lite pull, SQL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import JAVA_49, JAVA_53, Client, Kind

import kit

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]


@pytest.fixture(scope="module", params=[JAVA_49, JAVA_53], ids=str)
def java(request: pytest.FixtureRequest, clients: Callable[[Kind], Client]) -> Client:
    return clients(request.param)


def test_transactions_end_as_their_listener_says(
    java: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = java.group(make_group(), topic, members=1)
    bodies = ["commit 1", "rollback 1", "ask 1", "commit 2", "rollback 2"]
    results = java.main.ask(
        "transaction",
        group=kit.unique("transactions"),
        topic=topic,
        messages=[{"body": body, "tag": "t"} for body in bodies],
    )

    group.wait_for(["commit 1", "commit 2", "ask 1"])  # the last after the broker's question

    assert [result["status"] for result in results] == ["SEND_OK"] * 5
    assert sorted(group.bodies()) == ["ask 1", "commit 1", "commit 2"]
    group.stop()


def test_a_request_gets_its_reply(
    java: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic()
    group = java.group(make_group(), topic, mode="reply", members=1)

    reply = java.main.ask(
        "request", group=kit.unique("asking"), topic=topic, messages=[{"body": "what?"}]
    )

    assert reply == "reply to what?"
    group.stop()


def test_messages_are_found_by_key_and_by_id(java: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    messages = [{"body": f"body {n}", "keys": f"odd-{n % 2} all"} for n in range(6)]
    results = java.send(topic, messages)

    by_key = kit.eventually(lambda: query(java, topic, key="odd-1"))
    by_all = query(java, topic, key="all")
    by_offset_id = query(java, topic, message_id=results[2]["offset_id"])
    by_unique_id = query(java, topic, message_id=results[3]["id"])

    assert by_key == ["body 1", "body 3", "body 5"]
    assert len(by_all) == 6
    assert by_offset_id == ["body 2"]
    assert by_unique_id == ["body 3"]


def query(java: Client, topic: str, **wanted: str) -> list[str]:
    found = java.main.ask("query", group="asking", topic=topic, **wanted)
    return sorted(event["body"] for event in found)


def test_a_lite_pull_consumer_reads_and_goes_on_where_it_committed(
    java: Client, make_topic: MakeTopic, make_group: MakeGroup, target: str
) -> None:
    if target == "4.9.7" and java.kind is JAVA_53:
        pytest.skip("its lite pull asks with a request that 4.9 brokers do not have")
    topic, group = make_topic(), make_group()
    first, second = ([f"{part}-{n}" for n in range(10)] for part in ("first", "second"))
    java.send(topic, [{"body": body, "tag": "t"} for body in first])
    read_first = lite_pull(java, group, topic, len(first))
    java.send(topic, [{"body": body, "tag": "t"} for body in second])

    assert sorted(read_first) == first
    assert sorted(lite_pull(java, group, topic, len(second))) == second


def lite_pull(java: Client, group: str, topic: str, count: int) -> list[str]:
    found = java.main.ask(
        "lite_pull", group=group, topic=topic, expression="*", count=count, within_ms=20_000
    )
    return [event["body"] for event in found]


def test_an_sql_expression_selects_messages(
    java: Client, make_topic: MakeTopic, make_group: MakeGroup, target: str
) -> None:
    topic = make_topic()
    messages = [{"body": f"n={n}", "properties": {"n": str(n)}} for n in range(20)]
    if target == "comet":
        pytest.importorskip("cometmq.filter", reason="SQL filters are not part of this broker yet")
    group = java.group(make_group(), topic, members=1, sql="n BETWEEN 5 AND 7")
    java.send(topic, messages)

    group.wait_for(["n=5", "n=6", "n=7"])

    assert sorted(group.bodies()) == ["n=5", "n=6", "n=7"]
    group.stop()


def test_a_send_creates_its_topic(java: Client, make_group: MakeGroup) -> None:
    topic = kit.unique("made-by-a-send")
    group = java.group(make_group(), topic, members=1)
    results = java.send(topic, [{"body": f"body {n}"} for n in range(8)])

    group.wait_for({f"body {n}" for n in range(8)})

    assert {result["queue"] for result in results} <= set(range(4))
    group.stop()
