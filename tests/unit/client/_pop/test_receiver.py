"""The requests of a pop consumer, compared with those of RocketMQ's own client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from cometmq.client import PopConsumer, StartFrom, StoredMessage
from cometmq.protocol.bodies.pop import QueryAssignmentRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.remoting import Request, Response
from support.brokers.pop_broker import QUEUE, PopBroker
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, route
from support.checks.waiting import until
from support.clients.recording_handlers import Seen
from support.wire.recorded import answers, frames

TOPIC, GROUP = "TopicPop", "CG_pop"
MINE = {"client_ip": "10.0.0.1", "instance_name": "pop1"}
TIMES = ("bornTime",)


class Replaying(ScriptedBroker):
    """Responds to pops as the real broker did, and notes what it is asked."""

    def __init__(self) -> None:
        super().__init__("broker-a")
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.pops = deque(answers("5.3.3", "pop", "POP_MESSAGE"))
        [self.assigned] = {
            answer.body
            for answer in answers("5.3.3", "pop", "QUERY_ASSIGNMENT")
            if b"%RETRY%" not in answer.body
        }
        for code in (
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.POP_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        ):
            self.handlers[code] = self._replay

    def _replay(self, request: Request) -> Response | None:
        command = request.command
        name = RequestCode(command.code).name
        self.asked.append((name, dict(command.fields), bytes(command.body)))
        self.moved.set()
        if name == "QUERY_ASSIGNMENT":
            return Response(body=self.assigned)
        if name != "POP_MESSAGE":
            return Response()
        if not self.pops:
            held = command.fields["pollTime"] != "0"
            return None if held else Response(ResponseCode.PULL_NOT_FOUND, "no message")
        answer: Command = self.pops.popleft()
        return Response(body=answer.body, fields=dict(answer.fields))

    def of(self, name: str) -> list[dict[str, str]]:
        """The fields of the requests of one kind, without the times."""
        return [untimed(fields) for found, fields, _ in self.asked if found == name]


def untimed(fields: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if name not in TIMES}


def recorded(name: str) -> list[dict[str, str]]:
    """What RocketMQ's client sent with requests of one kind."""
    return [untimed(sent.fields) for found, sent in frames("5.3.3", "pop") if found == name]


def in_order(rows: list[dict[str, str]]) -> list[list[tuple[str, str]]]:
    return sorted(sorted(row.items()) for row in rows)


@pytest.fixture
async def broker() -> AsyncIterator[tuple[Replaying, str]]:
    made = Replaying()
    async with ScriptedCluster([made]) as cluster:
        cluster.name_server.routes[TOPIC] = route({"broker-a": made.address})
        yield made, cluster.address


def popping(address: str, handler: Any, **options: Any) -> PopConsumer:
    return PopConsumer(
        address,
        group=GROUP,
        handler=handler,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        **MINE,
        **options,
    )


async def test_pops_and_acknowledgements_are_those_of_rocketmq_s_client(
    broker: tuple[Replaying, str],
) -> None:
    """One of the six messages fails, as it did there."""
    peer, address = broker
    [failed] = recorded("CHANGE_MESSAGE_INVISIBLETIME")

    async def handle(message: StoredMessage) -> None:
        if (str(message.queue_id), str(message.queue_offset)) == (
            failed["queueId"],
            failed["offset"],
        ):
            raise ValueError("fails once")

    def acknowledged() -> list[dict[str, str]]:
        """But for the one that came again at the end, which the recording does not show."""
        return [fields for fields in peer.of("ACK_MESSAGE") if fields["topic"] == TOPIC]

    async with popping(address, handle, invisible_ms=10_000):
        await peer.until(
            lambda: len(acknowledged()) == 5 and bool(peer.of("CHANGE_MESSAGE_INVISIBLETIME"))
        )

    asked = recorded("POP_MESSAGE")[0]
    first = asked | {"pollTime": "0"}  # the first pop of a queue is not held, which `ready` needs
    assert all(fields in (asked, first) for fields in peer.of("POP_MESSAGE"))
    assert in_order(acknowledged()) == in_order(recorded("ACK_MESSAGE"))
    assert peer.of("CHANGE_MESSAGE_INVISIBLETIME") == [failed]
    bodies = [sent.body for name, sent in frames("5.3.3", "pop") if name == "QUERY_ASSIGNMENT"]
    assert {body for name, _, body in peer.asked if name == "QUERY_ASSIGNMENT"} <= set(bodies)


async def test_messages_beyond_those_asked_for_are_consumed(
    broker: tuple[Replaying, str],
) -> None:
    peer, address = broker
    brought = [len(decode_lazily(answer.body)) for answer in peer.pops]
    assert max(brought) > 1
    seen = Seen()
    async with popping(address, seen, pop_batch=1):
        await peer.until(lambda: len(peer.of("ACK_MESSAGE")) == sum(brought))

    assert len(seen.messages) == sum(brought)


async def test_a_handler_may_close_its_consumer_and_its_message_is_acknowledged(
    broker: tuple[Replaying, str],
) -> None:
    peer, address = broker
    closed: list[StoredMessage] = []

    async def handle(message: StoredMessage) -> None:
        await consumer.close()
        closed.append(message)

    consumer = popping(address, handle, concurrency=1, stop_ms=600_000)
    async with asyncio.timeout(60):
        await consumer.run(timeout=600.0)

    offsets = [str(message.queue_offset) for message in closed]
    assert offsets
    assert [fields["offset"] for fields in peer.of("ACK_MESSAGE")] == offsets


async def test_a_topic_that_another_task_subscribes_during_the_start_is_popped() -> None:
    broker, reached, go_on = PopBroker(), asyncio.Event(), asyncio.Event()
    assigned: list[str] = []

    async def assign_later(request: Request) -> Response:
        assigned.append(QueryAssignmentRequestBody.decode(request.body).topic)
        broker.moved.set()
        reached.set()
        await go_on.wait()
        return broker._assign(request)

    broker.handlers[RequestCode.QUERY_ASSIGNMENT] = assign_later
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes["u"] = cluster.name_server.routes["t"]
        consumer = PopConsumer(cluster.address, group="g", handler=Seen(), subscriptions={"t": "*"})
        starting = asyncio.create_task(consumer.start())
        await reached.wait()
        await consumer.subscribe("u")
        go_on.set()
        await starting
        async with consumer:
            await broker.until(lambda: "u" in assigned)


async def test_queues_are_requested_again_after_a_failure_and_revoked_with_their_topic() -> None:
    broker, requests, changes = PopBroker(), 0, list[tuple[str, int, int]]()
    assign = broker.handlers[RequestCode.QUERY_ASSIGNMENT]

    def assign_or_refuse(request: Request) -> Any:
        nonlocal requests
        requests += 1
        broker.assigned = [QUEUE] if requests > 2 else []
        broker.moved.set()
        return Response(ResponseCode.SYSTEM_BUSY, "busy") if requests == 2 else assign(request)

    def on_queues(topic: str, queues: Collection[object], mine: Collection[object]) -> None:
        changes.append((topic, len(queues), len(mine)))

    broker.handlers[RequestCode.QUERY_ASSIGNMENT] = assign_or_refuse
    async with (
        ScriptedCluster([broker]) as cluster,
        PopConsumer(
            cluster.address,
            group="g",
            handler=Seen(),
            subscriptions={"t": "*"},
            on_queues=on_queues,
            assignment_ms=600_000,
        ) as consumer,
    ):
        await broker.until(lambda: broker.pops[0] > 0)
        assert (requests, consumer.queues()) == (3, [QUEUE])
        await consumer.unsubscribe("t")
        await until(lambda: not consumer.queues())
        await until(lambda: len(changes) == 2)

    assert changes == [("t", 2, 1), ("t", 0, 0)]


async def test_a_pop_asks_for_as_much_and_waits_as_long_as_is_set(
    broker: tuple[Replaying, str],
) -> None:
    peer, address = broker
    peer.pops.clear()

    async def handle(message: StoredMessage) -> None:
        raise AssertionError("there is no message")

    options = {"pop_batch": 7, "invisible_ms": 20_000, "hold_ms": 300, "assignment_ms": 100}
    async with popping(address, handle, **options):
        await peer.until(lambda: len(peer.of("QUERY_ASSIGNMENT")) >= 3)
        await peer.until(lambda: peer.of("POP_MESSAGE")[-1]["pollTime"] != "0")

    fields = peer.of("POP_MESSAGE")[-1]
    assert (fields["maxMsgNums"], fields["invisibleTime"], fields["pollTime"]) == (
        "7",
        "20000",
        "300",
    )
