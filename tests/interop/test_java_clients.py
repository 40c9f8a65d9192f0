"""Features that only Java clients have: replies, queries, lite pull, SQL."""

from __future__ import annotations

from collections.abc import Callable

import kit
import pop_kit
import pytest
import timer_kit
from codes import Answer
from programs import JAVA_49, JAVA_53, OURS, Client, CommandError, Kind
from wire import Connection

MakeTopic = Callable[..., str]
MakeGroup = Callable[[], str]


@pytest.fixture(scope="module", params=[JAVA_49, JAVA_53], ids=str)
def java(request: pytest.FixtureRequest, clients: Callable[[Kind], Client]) -> Client:
    return clients(request.param)


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

    by_all = await_found(java, topic, 6, key="all")
    by_key = await_found(java, topic, 3, key="odd-1")
    by_offset_id = query(java, topic, message_id=results[2]["offset_id"])
    by_unique_id = query(java, topic, message_id=results[3]["id"])

    assert by_key == ["body 1", "body 3", "body 5"]
    assert by_all == [f"body {n}" for n in range(6)]
    assert by_offset_id == ["body 2"]
    assert by_unique_id == ["body 3"]


def await_found(java: Client, topic: str, count: int, *, key: str) -> list[str]:
    """What a key finds once the index has caught up with the log."""

    def found() -> list[str] | None:
        bodies = query(java, topic, key=key)
        return bodies if len(bodies) == count else None

    return kit.eventually(found, timeout=120)


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
        "lite_pull", group=group, topic=topic, expression="*", count=count, within_ms=120_000
    )
    return [event["body"] for event in found]


def test_a_message_with_a_time_is_recalled(
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
    broker: Connection,
    target: str,
) -> None:
    if target == "4.9.7":
        pytest.skip("it has no recalls")
    java, topic = clients(JAVA_53), make_topic(queues=1)
    times = {"TIMER_DELAY_SEC": "6"}
    java.main.ask(
        "recall",
        group="clocks",
        topic=topic,
        messages=[{"body": "recalled", "properties": times}],
    )
    java.send(topic, [{"body": "kept", "properties": times}])
    group = java.group(make_group(), topic, members=1)

    group.wait_for(["kept"])

    kit.eventually(lambda: timer_kit.waiting_count(broker, topic) == 0)
    assert kit.max_offset(broker, topic) == 1
    group.stop()


def test_an_sql_subscription_is_refused_with_the_reason(
    java: Client, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """As RocketMQ does unless enablePropertyFilter is set."""
    with pytest.raises(CommandError, match="does not support consumer to filter message by SQL92"):
        java.group(make_group(), make_topic(), members=1, sql="n BETWEEN 5 AND 7")


def test_a_send_creates_its_topic(java: Client, make_group: MakeGroup) -> None:
    topic = kit.unique("made-by-a-send")
    group = java.group(make_group(), topic, members=1)
    results = java.send(topic, [{"body": f"body {n}"} for n in range(8)])

    group.wait_for({f"body {n}" for n in range(8)})

    assert {result["queue"] for result in results} <= set(range(4))
    group.stop()


def test_a_batch_that_is_one_record_reaches_consumers_as_messages(
    clients: Callable[[Kind], Client], make_topic: MakeTopic, make_group: MakeGroup, target: str
) -> None:
    """Topics with queue.type=BatchCQ: only Java 5 sends such batches, and unwraps them."""
    if target == "4.9.7":
        pytest.skip("it has no such topics")
    java = clients(JAVA_53)
    topic = make_topic(attributes="+queue.type=BatchCQ")
    batch = [{"body": f"in a batch {n}", "keys": f"k{n}", "tag": f"t{n % 2}"} for n in range(6)]
    [result] = java.send(topic, batch, style="batch")
    assert "," not in result["offset_id"]
    java.send(topic, [{"body": "alone", "tag": "t0"}])
    group = java.group(make_group(), topic, members=1)
    ours = clients(OURS).group(make_group(), topic, members=1)
    bodies = {*(each["body"] for each in batch), "alone"}
    for each in (group, ours):
        each.wait_for(bodies)
        assert sorted(each.bodies()) == sorted(bodies)
        each.stop()


def test_members_in_pop_mode_share_the_messages(
    clients: Callable[[Kind], Client],
    make_topic: MakeTopic,
    make_group: MakeGroup,
    broker: Connection,
) -> None:
    """The broker assigns them all queues; what they handle they acknowledge."""
    java = clients(JAVA_53)
    topic, group = make_topic(), make_group()
    kit.ok(pop_kit.set_mode(broker, group, topic))
    bodies = [f"ticket {number}" for number in range(40)]
    members = java.group(group, topic, mode="pop", members=2)
    java.send(topic, [{"body": body} for body in bodies])
    members.wait_for(bodies)
    members.stop()
    kit.eventually(lambda: pop_kit.pop(broker, group, topic).code == Answer.POLLING_TIMEOUT)
