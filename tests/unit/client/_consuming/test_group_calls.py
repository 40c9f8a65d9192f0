"""Requests of a member to brokers: locks by broker, filters at all brokers, an assignment."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator

import pytest

from cometmq.client import Filter, TopicNotFoundError
from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming import group_calls as group_calls
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.model.errors import ConfigError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, MessageModel
from cometmq.protocol.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall, Request, Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
NOBODY = MessageQueue("t", "c", 0)
UNKNOWN = MessageQueue("unknown", "a", 0)


class Refuses:
    """Raises before a request of these codes is sent to one of these addresses."""

    def __init__(self) -> None:
        self.requests: set[tuple[int, str]] = set()

    def before_request(self, address: str, call: OutgoingCall) -> None:
        if (call.code, address) in self.requests:
            raise LookupError("no key to sign with")

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is looked at."""


@dataclasses.dataclass
class Asked:
    """Two brokers, and a member that asks them."""

    instance: ClientCore
    calls: GroupCalls
    a: GroupBroker
    b: GroupBroker
    refuses: Refuses


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    monkeypatch.setattr(group_calls, "LOCK_S", 60.0)
    a, b, refuses = GroupBroker("a"), GroupBroker("b"), Refuses()
    async with (
        ScriptedCluster([a, b]) as cluster,
        ClientCore(cluster.address, hooks=[refuses]) as instance,
    ):
        yield Asked(instance, GroupCalls(instance), a, b, refuses)


async def test_queues_are_locked_at_the_brokers_that_serve_them(asked: Asked) -> None:
    assert await asked.calls.lock("g", "me", [A0, B0, A1]) == {A0, A1, B0}

    assert asked.a.locked_by == {A0: "me", A1: "me"}
    assert asked.b.locked_by == {B0: "me"}


async def test_a_queue_that_another_member_has_is_not_locked(asked: Asked) -> None:
    asked.a.locked_by[A1] = "other"

    assert await asked.calls.lock("g", "me", [A0, A1]) == {A0}


async def test_queues_of_other_brokers_are_locked_when_one_is_no_help(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """However often that is tried, the log says it once."""
    asked.a.refuse[RequestCode.LOCK_BATCH_MQ] = Response(ResponseCode.SYSTEM_ERROR, "no")

    for _ in range(3):
        assert await asked.calls.lock("g", "me", [A0, B0, NOBODY, UNKNOWN]) == {B0}
    told = [line.message for line in caplog.records if line.levelno >= logging.WARNING]

    assert [line for line in told if "cannot lock queues" in line] == [
        f"cannot lock queues address={asked.a.address} group=g error=response code 1"
        f" (SYSTEM_ERROR) of {asked.a.address}: no"
    ]


async def test_locks_are_given_up(asked: Asked) -> None:
    await asked.calls.lock("g", "me", [A0, B0])

    await asked.calls.unlock("g", "me", [A0, B0, NOBODY, UNKNOWN])
    await asked.a.until(lambda: bool(asked.a.unlocks))
    await asked.b.until(lambda: bool(asked.b.unlocks))

    assert asked.a.locked_by == asked.b.locked_by == {}
    assert (asked.a.unlocks[0].consumer_group, asked.a.unlocks[0].client_id) == ("g", "me")


async def test_locks_of_other_brokers_are_released_if_one_is_not_asked(asked: Asked) -> None:
    await asked.calls.lock("g", "me", [A0, B0])
    asked.refuses.requests.add((RequestCode.UNLOCK_BATCH_MQ, asked.a.address))

    await asked.calls.unlock("g", "me", [A0, B0])
    await asked.b.until(lambda: bool(asked.b.unlocks))

    assert asked.b.locked_by == {}


async def test_a_route_that_cannot_be_read_leaves_its_queues_unlocked(
    asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    (name_server,) = asked.instance.name_servers.addresses
    asked.refuses.requests.add((RequestCode.GET_ROUTEINFO_BY_TOPIC, name_server))

    assert await asked.calls.lock("g", "me", [A0]) == set()
    await asked.calls.unlock("g", "me", [A0])

    lines = [line.message for line in caplog.records if "no route" in line.message]
    assert lines == [f"a queue has no route queue={A0} error=no key to sign with"] * 2


async def test_every_broker_of_a_topic_is_asked_about_a_filter(asked: Asked) -> None:
    seen: list[CheckClientRequestBody] = []

    def check(request: Request) -> Response:
        seen.append(CheckClientRequestBody.decode(request.body))
        return Response()

    asked.a.handlers[RequestCode.CHECK_CLIENT_CONFIG] = check
    asked.b.handlers[RequestCode.CHECK_CLIENT_CONFIG] = check

    await asked.calls.check_filter("g", "me", "t", Filter.sql("a > 5"))

    assert [(body.group, body.client_id) for body in seen] == [("g", "me")] * 2
    data = seen[0].subscription_data
    assert data is not None
    assert (data.topic, data.sub_string, data.expression_type) == ("t", "a > 5", "SQL92")


async def test_nobody_is_asked_about_tags(asked: Asked) -> None:
    await asked.calls.check_filter("g", "me", "t", Filter.tags("a || b"))


async def test_a_filter_that_one_broker_refuses_is_refused(asked: Asked) -> None:
    asked.a.handlers[RequestCode.CHECK_CLIENT_CONFIG] = lambda request: Response()
    asked.b.handlers[RequestCode.CHECK_CLIENT_CONFIG] = lambda request: Response(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no SQL"
    )

    with pytest.raises(ConfigError, match="broker b cannot filter t by 'a > 5': no SQL"):
        await asked.calls.check_filter("g", "me", "t", Filter.sql("a > 5"))


async def test_refusal_for_another_reason_is_not_a_wrong_setting(asked: Asked) -> None:
    asked.a.handlers[RequestCode.CHECK_CLIENT_CONFIG] = lambda request: Response(
        ResponseCode.NO_PERMISSION, "who are you"
    )

    with pytest.raises(ResponseError, match="who are you"):
        await group_calls.check_filters(asked.instance, "g", {"t": Filter.sql("a > 5")})


async def test_a_broker_divides_queues_when_it_is_asked_to(asked: Asked) -> None:
    seen: list[QueryAssignmentRequestBody] = []
    mine = [MessageQueueAssignment(message_queue=A0)]

    def divide(request: Request) -> Response:
        seen.append(QueryAssignmentRequestBody.decode(request.body))
        return Response(body=QueryAssignmentResponseBody(message_queue_assignments=mine).encode())

    asked.a.handlers[RequestCode.QUERY_ASSIGNMENT] = divide
    asked.b.handlers[RequestCode.QUERY_ASSIGNMENT] = divide

    found = await asked.calls.assignment("g", "me", "t", "AVG", MessageModel.CLUSTERING)

    assert found == mine
    [body] = seen
    assert (body.topic, body.consumer_group, body.client_id) == ("t", "g", "me")
    assert (body.strategy_name, body.message_model) == ("AVG", MessageModel.CLUSTERING)


async def test_queues_of_a_topic_that_nobody_serves_are_not_divided(asked: Asked) -> None:
    with pytest.raises(TopicNotFoundError):
        await asked.calls.assignment("g", "me", "unknown", "AVG", MessageModel.CLUSTERING)


async def test_a_broker_that_is_away_divides_nothing(asked: Asked) -> None:
    await asked.a.stop()
    await asked.b.stop()

    with pytest.raises(RemotingError):
        await asked.calls.assignment("g", "me", "t", "AVG", MessageModel.CLUSTERING)
