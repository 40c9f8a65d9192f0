"""Clients of every language continue when the broker restarts, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kit
import pytest
from programs import KINDS, Client, CommandError, Group, Kind
from servers import Cluster

MESSAGES = 40
BACK_SECONDS_MAX = 240.0


@dataclass(frozen=True)
class Conversation:
    """A client that was sending and receiving before the broker stopped."""

    client: Client
    topic: str
    group: Group
    sent: list[str]


@pytest.fixture(scope="module")
def conversations(
    cluster: Cluster,
    clients: Callable[[Kind], Client],
    make_topic: Callable[..., str],
    make_group: Callable[[], str],
) -> dict[str, Conversation]:
    """Every kind of client, across one restart of the broker.

    Nobody leaves a group at the end, the programs just close: the C++ client never returns from
    leaving while it gets a queue back, as members do once the other one has come back, too.
    """
    table = {}
    for kind in KINDS:
        client, topic = clients(kind), make_topic()
        sent = [f"before {n}" for n in range(MESSAGES)]
        client.send(topic, [{"body": body} for body in sent])
        delayed = [f"delayed {n}" for n in range(4)]
        client.send(topic, [{"body": body, "delay": 5} for body in delayed])
        group = client.group(make_group(), topic)
        group.wait_for(sent)
        table[kind.name] = Conversation(client, topic, group, sent + delayed)
    cluster.restart_broker()
    return table


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_is_lost_across_a_restart(
    kind: Kind, conversations: dict[str, Conversation]
) -> None:
    conversation = conversations[kind.name]
    after = [f"after {n}" for n in range(MESSAGES)]
    kit.eventually(lambda: try_to_send(conversation), timeout=BACK_SECONDS_MAX, pause=0.5)
    conversation.client.send(conversation.topic, [{"body": body} for body in after])

    conversation.group.wait_for([*conversation.sent, *after], timeout=BACK_SECONDS_MAX)


def try_to_send(conversation: Conversation) -> bool:
    """Whether the client reaches the broker again: the first sends may meet a dead connection."""
    try:
        conversation.client.send(conversation.topic, [{"body": "are you back?"}])
    except CommandError:
        return False
    return True
