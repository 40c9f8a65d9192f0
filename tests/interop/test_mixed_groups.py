"""Members of both Java lines and of our own client in one group, which share its queues.

Messages flow all the time while members join, leave and are killed. After each change the members
are asked for the queues they have, as RocketMQ's own tools ask; in the end everything that was
stored has been consumed, and in order where that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import kit
import pop_kit
import pytest
from programs import JAVA_49, JAVA_53, OURS
from servers import Cluster
from wire import Connection

from support.clients.delivery_check import lost, out_of_order
from support.clients.mixed_groups import QUEUES, SHARED_S, MixedGroup

LOCKS_S = 600.0
"""A broker keeps the locks of a killed member for 60 s."""


@pytest.fixture
def mixed(
    cluster: Cluster,
    broker: Connection,
    make_topic: Callable[..., str],
    make_group: Callable[[], str],
    tmp_path: Path,
) -> Iterator[Callable[[str], MixedGroup]]:
    """Make a group of members; all end with the test."""
    made: list[MixedGroup] = []

    def make(mode: str) -> MixedGroup:
        topic, group = make_topic(queues=QUEUES), make_group()
        made.append(MixedGroup(cluster, broker, tmp_path, topic, group, mode))
        return made[-1]

    yield make
    for group in made:
        group.close()


STORED_MIN = 100
"""Fewer messages show nothing; a busy machine needs longer for them."""


def all_arrives(mixed: MixedGroup, within: float) -> None:
    """Stop sending, and wait until everything that was stored has been seen."""
    kit.eventually(lambda: len(mixed.stored) > STORED_MIN, timeout=within)
    mixed.finish()
    kit.eventually(lambda: not lost(mixed.stored, mixed.seen()), timeout=within)


def everyone_had_messages(mixed: MixedGroup) -> None:
    for member in mixed.everybody():
        assert member.program.received, f"{member} never got a message"


def has_had_messages(mixed: MixedGroup, name: str) -> str:
    """Wait until a member has had messages; give its name."""
    kit.eventually(lambda: mixed.members[name].program.received, timeout=SHARED_S)
    return name


def test_java_and_python_members_share_the_queues_of_a_concurrent_group(
    mixed: Callable[[str], MixedGroup],
) -> None:
    group = mixed("concurrent")
    group.join(JAVA_49, "java49")
    group.join(JAVA_53, "java53")
    group.join(JAVA_53, "assigned53", "assigned")  # the broker divides the queues for it
    group.join(OURS, "ours1")
    group.join(OURS, "ours2")
    group.send()
    group.is_shared_out()

    group.join(OURS, "ours3")
    group.is_shared_out()
    group.leave(has_had_messages(group, "java49"))
    group.is_shared_out()
    group.leave(has_had_messages(group, "ours2"))
    group.is_shared_out()
    group.kill(has_had_messages(group, "ours1"))
    group.is_shared_out()
    group.kill(has_had_messages(group, "java53"))
    group.is_shared_out()

    all_arrives(group, SHARED_S)
    everyone_had_messages(group)


def test_java_and_python_members_share_the_queues_of_an_orderly_group(
    mixed: Callable[[str], MixedGroup],
) -> None:
    group = mixed("orderly")
    group.join(JAVA_49, "java49")
    group.join(OURS, "ours1")
    group.send()
    group.is_shared_out(LOCKS_S)

    group.join(JAVA_53, "java53")
    group.join(OURS, "ours2")
    group.is_shared_out(LOCKS_S)
    group.leave(has_had_messages(group, "java49"))
    group.is_shared_out(LOCKS_S)
    group.kill(has_had_messages(group, "ours1"))
    group.kill(has_had_messages(group, "java53"))
    group.is_shared_out(LOCKS_S)

    all_arrives(group, SHARED_S)
    assert out_of_order(group.seen()) == []
    everyone_had_messages(group)


def test_java_and_python_members_that_pop_share_the_messages(
    mixed: Callable[[str], MixedGroup], broker: Connection, target: str
) -> None:
    """One member pulls at first, as while a group changes to pop; killed ones leave messages."""
    if target == "4.9.7":
        pytest.skip("it has no pop consumption")
    group = mixed("pop")
    group.pace_ms = 50
    kit.ok(pop_kit.set_mode(broker, group.group, group.topic))
    group.join(OURS, "pulls", "concurrent")
    group.join(JAVA_53, "java53")
    group.join(OURS, "ours1")
    group.join(OURS, "simple", "simple")
    group.send()
    group.leave(has_had_messages(group, "pulls"))
    for name in ("java53", "simple"):
        has_had_messages(group, name)
    again = [f"retry {queue}" for queue in range(QUEUES)]
    for queue, body in enumerate(again):
        kit.ok(kit.send(broker, group.topic, body.encode(), queue=queue))
    group.kill("java53")
    group.kill("simple")

    all_arrives(group, SHARED_S)
    everyone_had_messages(group)
    kit.eventually(lambda: set(again) <= redelivered(group), timeout=SHARED_S)
    kit.eventually(lambda: group.lag() == 0, timeout=SHARED_S)


def redelivered(mixed: MixedGroup) -> set[str]:
    """The bodies that members have seen as a redelivery."""
    received = (event for member in mixed.everybody() for event in list(member.program.received))
    return {event["body"] for event in received if event["reconsumed"]}
