"""The gRPC service over a broker, by the bytes that its clients send."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, blocking
from cometmq.client.settings import ClientSettings
from cometmq.proxy import receiving
from cometmq.proxy.clients import PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER
from cometmq.proxy.conversion import set_milliseconds
from cometmq.proxy.messages import SERVICE, TYPES
from cometmq.proxy.service import Listening, Service, serve
from cometmq.proxy.status import Code
from cometmq.testing import ThreadedCluster
from support.checks.waiting import until

LIMIT_S = 60.0
TYPED = {"normal": "NORMAL", "fifo": "FIFO", "late": "DELAY", "half": "TRANSACTION", "any": "MIXED"}
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    settings = {
        "enableMixedMessageType": "true", "recallMessageEnable": "true",
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
    }  # fmt: skip
    with ThreadedCluster(settings=settings) as running:
        with blocking.AdminClient(running.name_servers) as admin:
            for name, kind in TYPED.items():
                admin.create_topic(name, queues=2, attributes={"message.type": kind})
        yield running


class Peer:
    """A client of the service."""

    def __init__(self, channel: Any, client_id: str) -> None:
        self._channel = channel
        self._metadata = (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))

    async def call(self, name: str, timeout: float = 10.0, **fields: Any) -> Any:
        method = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=TYPES[f"{name}Request"].SerializeToString,
            response_deserializer=TYPES[f"{name}Response"].FromString,
        )
        return await method(
            TYPES[f"{name}Request"](**fields), timeout=timeout, metadata=self._metadata
        )

    @asynccontextmanager
    async def telemetry(self, settings: Any) -> AsyncIterator[Any]:
        """The stream after the settings; yields a function that reads a command."""
        stream = self._channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=TYPES["TelemetryCommand"].SerializeToString,
            response_deserializer=TYPES["TelemetryCommand"].FromString,
        )(metadata=self._metadata)
        await stream.write(TYPES["TelemetryCommand"](settings=settings))
        yield stream
        await stream.done_writing()
        stream.cancel()

    async def produces(self, *topics: str) -> Any:
        settings = TYPES["Settings"](client_type=PRODUCER)
        settings.publishing.topics.extend(map(resource, topics))
        async with self.telemetry(settings) as stream:
            return await stream.read()

    async def consumes(self, group: str, topic: str, tag: str = "*", push: bool = False) -> Any:
        settings = TYPES["Settings"](client_type=PUSH_CONSUMER if push else SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        entry = settings.subscription.subscriptions.add(topic=resource(topic))
        entry.expression.type, entry.expression.expression = 1, tag
        async with self.telemetry(settings) as stream:
            return await stream.read()

    async def send(self, topic: str, body: bytes, **system: Any) -> Any:
        message = TYPES["Message"](topic=resource(topic), body=body)
        for name, value in {"message_id": f"ID-{next(numbers)}", **system}.items():
            if name == "keys":
                message.system_properties.keys.extend(value)
            elif name == "deliver_s":
                due = time.time() + value
                message.system_properties.delivery_timestamp.seconds = int(due)
            else:
                setattr(message.system_properties, name, value)
        return await self.call("SendMessage", messages=[message])

    def receiving(
        self, group: str, topic: str, tag: str = "*", renew: bool = False, poll_ms: int = 300
    ) -> Any:
        request = TYPES["ReceiveMessageRequest"](batch_size=16, auto_renew=renew)
        request.group.name, request.message_queue.topic.name = group, topic
        request.filter_expression.type, request.filter_expression.expression = 1, tag
        request.invisible_duration.seconds = 60
        set_milliseconds(request.long_polling_timeout, poll_ms)
        return self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=TYPES["ReceiveMessageRequest"].SerializeToString,
            response_deserializer=TYPES["ReceiveMessageResponse"].FromString,
        )(request, timeout=20, metadata=self._metadata)

    async def receive(self, *args: Any, **options: Any) -> tuple[Code, list[Any]]:
        responses = [each async for each in self.receiving(*args, **options)]
        kinds = [each.WhichOneof("content") for each in responses]
        assert kinds[0] == "status"
        assert kinds[-1] == "delivery_timestamp" or len(kinds) == 1
        code = Code(responses[0].status.code)
        return code, [each.message for each in responses if each.WhichOneof("content") == "message"]

    async def receive_some(self, *args: Any, **options: Any) -> list[Any]:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            code, found = await self.receive(*args, **options)
            if found:
                return found
            assert code is Code.MESSAGE_NOT_FOUND
        raise AssertionError("no message came")

    async def ack(self, group: str, message: Any) -> Code:
        system = message.system_properties
        entry = TYPES["AckMessageEntry"](
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        response = await self.call(
            "AckMessage", group=resource(group), topic=message.topic, entries=[entry]
        )
        assert response.entries[0].receipt_handle == system.receipt_handle
        return Code(response.status.code)


def resource(name: str) -> Any:
    return TYPES["Resource"](name=name)


@pytest.fixture
async def service(cluster: ThreadedCluster) -> AsyncIterator[tuple[Service, Any]]:
    """A service, and a channel to it."""
    async with AdminClient(cluster.name_servers) as admin:
        made = Service(admin, cluster.name_servers, ClientSettings(), ("127.0.0.1", 8081))
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        server.add_generic_rpc_handlers((made.handler(),))
        made.start()
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield made, channel
        made.end_streams()
        await server.stop(1)
        await made.close()


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "POLL_S_MIN", 0.1)


@pytest.fixture
def peer(service: tuple[Service, Any]) -> Peer:
    return Peer(service[1], f"client-{next(numbers)}")


def new_group() -> str:
    return f"group-{next(numbers)}"


async def test_a_route_has_queues_types_and_the_address_of_the_request(peer: Peer) -> None:
    endpoints = TYPES["Endpoints"](scheme=3)
    endpoints.addresses.add(host="mq.example", port=443)
    found = await peer.call("QueryRoute", topic=resource("fifo"), endpoints=endpoints)
    assert found.status.code == Code.OK
    assert [each.id for each in found.message_queues] == [0, 1]
    for queue in found.message_queues:
        assert (queue.topic.name, queue.permission, queue.broker.id) == ("fifo", 4, 0)
        assert queue.broker.endpoints == endpoints
        assert list(queue.accept_message_types) == [2]
    mixed = await peer.call("QueryRoute", topic=resource("any"))
    assert list(mixed.message_queues[0].accept_message_types) == [1, 2, 3, 4]
    assert mixed.message_queues[0].broker.endpoints.addresses[0].port == 8081
    missing = await peer.call("QueryRoute", topic=resource("missing"))
    assert missing.status.code == Code.TOPIC_NOT_FOUND
    wrong = await peer.call("QueryRoute", topic=resource("a b"))
    assert wrong.status.code == Code.ILLEGAL_TOPIC


async def test_settings_are_answered_with_what_the_server_decides(
    peer: Peer, service: tuple[Service, Any]
) -> None:
    answer = await peer.produces("normal")
    assert answer.status.code == Code.OK
    policy = answer.settings.backoff_policy
    assert (policy.max_attempts, policy.WhichOneof("content")) == (3, "exponential_backoff")
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    assert [each.name for each in answer.settings.publishing.topics] == ["normal"]
    consumer = Peer(service[1], "settings-consumer")
    answer = await consumer.consumes(new_group(), "normal")
    assert answer.settings.backoff_policy.max_attempts == 17
    delays = answer.settings.backoff_policy.customized_backoff.next
    assert [each.seconds for each in delays][:4] == [1, 5, 10, 30]
    assert answer.settings.subscription.receive_batch_size == 32
    assert answer.settings.subscription.long_polling_timeout.seconds == 20


async def test_what_is_sent_is_received_once_it_is_acknowledged(peer: Peer) -> None:
    group = new_group()
    await peer.consumes(group, "normal", "new")
    receiving = asyncio.create_task(peer.receive_some(group, "normal", "new"))
    sent = await peer.send("normal", b"42", tag="new", keys=["a", "b"])
    assert (sent.status.code, sent.entries[0].status.code) == (Code.OK, Code.OK)
    await peer.send("normal", b"43", tag="old")
    [message] = await receiving
    system = message.system_properties
    assert (message.body, system.tag, list(system.keys)) == (b"42", "new", ["a", "b"])
    assert system.message_id == sent.entries[0].message_id
    assert system.delivery_attempt == 1
    assert await peer.ack(group, message) is Code.OK
    assert await peer.receive(group, "normal", "new") == (Code.MESSAGE_NOT_FOUND, [])


async def test_messages_cross_to_remoting_and_back(peer: Peer, cluster: ThreadedCluster) -> None:
    group, got = new_group(), asyncio.Queue[Any]()
    await peer.consumes(group, "any")
    assert (await peer.receive(group, "any"))[0] is Code.MESSAGE_NOT_FOUND
    async with (
        PushConsumer(
            cluster.name_servers, group=new_group(), subscriptions={"any": "*"},
            handler=got.put, start_from=StartFrom.FIRST,
        ),
        Producer(cluster.name_servers, group="remoting") as producer,
    ):  # fmt: skip
        await peer.send("any", b"by gRPC", tag="t", keys=["k"], message_group="g")
        message = await asyncio.wait_for(got.get(), LIMIT_S)
        assert (message.body, message.tags, message.keys) == (b"by gRPC", "t", ["k"])
        assert message.properties["__SHARDINGKEY"] == "g"
        body = b"by remoting " * 1_000  # which the client compresses
        receipt = await producer.send(Message("any", body, tags="t", properties={"shop": "Bern"}))
    found: list[Any] = []
    while len(found) < 2:
        found += await peer.receive_some(group, "any")
    [one] = [each for each in found if each.body != b"by gRPC"]
    assert one.body == body
    assert one.system_properties.message_id == receipt.message_id
    assert [(each.key, each.value) for each in one.user_properties] == [("shop", "Bern")]


async def test_a_message_group_keeps_its_queue(peer: Peer) -> None:
    offsets = [
        (await peer.send("fifo", b"%d" % number, message_group="order-7")).entries[0].offset
        for number in range(5)
    ]
    assert offsets == list(range(offsets[0], offsets[0] + 5))


async def test_a_changed_invisible_time_redelivers(peer: Peer) -> None:
    group = new_group()
    await peer.consumes(group, "normal", "changed")
    await peer.receive(group, "normal", "changed")
    await peer.send("normal", b"again", tag="changed")
    [message] = await peer.receive_some(group, "normal", "changed")
    changed = await peer.call(
        "ChangeInvisibleDuration", group=resource(group), topic=message.topic,
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )  # fmt: skip
    assert changed.status.code == Code.OK
    [second] = await peer.receive_some(group, "normal", "changed")
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == message.system_properties.message_id
    assert await peer.ack(group, second) is Code.OK


async def test_a_receipt_that_is_over_or_none_has_its_code(peer: Peer) -> None:
    group = new_group()
    await peer.consumes(group, "normal")
    for handle in ("", "x", "0 1 2 3 0 vm 0 0 5"):
        entry = TYPES["AckMessageEntry"](message_id="1", receipt_handle=handle)
        refused = await peer.call(
            "AckMessage", group=resource(group), topic=resource("normal"), entries=[entry]
        )
        assert refused.status.code == Code.INVALID_RECEIPT_HANDLE, handle


async def test_a_dead_letter_is_forwarded(peer: Peer, cluster: ThreadedCluster) -> None:
    group = new_group()
    await peer.consumes(group, "normal", "dead")
    await peer.receive(group, "normal", "dead")
    await peer.send("normal", b"dead", tag="dead")
    [message] = await peer.receive_some(group, "normal", "dead")
    forwarded = await peer.call(
        "ForwardMessageToDeadLetterQueue", group=resource(group), topic=message.topic,
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )  # fmt: skip
    assert forwarded.status.code == Code.OK
    async with AdminClient(cluster.name_servers) as admin:
        found = (await admin.dead_letters(group)).letters
    assert [each.message.body for each in found] == [b"dead"]
    assert await peer.receive(group, "normal", "dead") == (Code.MESSAGE_NOT_FOUND, [])


async def test_a_delayed_message_is_recalled(peer: Peer) -> None:
    group = new_group()
    await peer.consumes(group, "late")
    sent = await peer.send("late", b"recalled", deliver_s=30)
    handle = sent.entries[0].recall_handle
    recalled = await peer.call("RecallMessage", topic=resource("late"), recall_handle=handle)
    assert (recalled.status.code, recalled.message_id) == (Code.OK, sent.entries[0].message_id)
    again = await peer.call("RecallMessage", topic=resource("late"), recall_handle="x")
    assert again.status.code >= Code.BAD_REQUEST
    other = await peer.call("RecallMessage", topic=resource("normal"), recall_handle=handle)
    assert other.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_transactions_commit_roll_back_and_are_checked(
    peer: Peer, service: tuple[Service, Any]
) -> None:
    group = new_group()
    consumer = Peer(service[1], f"consumer-{next(numbers)}")
    await consumer.consumes(group, "half")
    settings = TYPES["Settings"](client_type=PRODUCER)
    settings.publishing.topics.append(resource("half"))
    async with peer.telemetry(settings) as stream:
        await stream.read()
        for body, resolution in ((b"committed", 1), (b"rolled back", 2), (b"checked", 0)):
            sent = await peer.send("half", body, message_type=4)
            transaction = sent.entries[0].transaction_id
            assert transaction
            if resolution:
                ended = await peer.call(
                    "EndTransaction", topic=resource("half"), resolution=resolution, source=1,
                    transaction_id=transaction, message_id=sent.entries[0].message_id,
                )  # fmt: skip
                assert ended.status.code == Code.OK
        command = await asyncio.wait_for(stream.read(), LIMIT_S)
        check = command.recover_orphaned_transaction_command
        assert (check.message.body, check.transaction_id) == (b"checked", transaction)
        ended = await peer.call(
            "EndTransaction", topic=resource("half"), resolution=1, source=2,
            transaction_id=transaction, message_id=sent.entries[0].message_id,
        )  # fmt: skip
        assert ended.status.code == Code.OK
    bodies: list[bytes] = []
    while len(bodies) < 2:
        for message in await consumer.receive_some(group, "half"):
            bodies.append(message.body)
            await consumer.ack(group, message)
    assert bodies == [b"committed", b"checked"]
    unknown = await peer.call("EndTransaction", topic=resource("half"), transaction_id="x")
    assert unknown.status.code == Code.INTERNAL_SERVER_ERROR


async def test_a_receive_that_is_cut_off_swallows_nothing(peer: Peer) -> None:
    group = new_group()
    await peer.consumes(group, "normal", "cut")
    call = peer.receiving(group, "normal", "cut", poll_ms=20_000)
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0)
    await peer.receive(group, "normal", "other")  # the first poll is at the broker by now
    call.cancel()
    await asyncio.wait([reading])
    await peer.send("normal", b"kept", tag="cut")
    began = time.monotonic()
    [message] = await peer.receive_some(group, "normal", "cut")
    assert message.body == b"kept"
    assert time.monotonic() - began < 30  # its invisible time is 60 s


async def test_a_message_is_renewed_while_its_client_lives(
    peer: Peer, service: tuple[Service, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "RENEWED_INVISIBLE_S", 9.0)  # due for renewal at once
    group = new_group()
    await peer.consumes(group, "normal", "slow", push=True)
    await peer.receive(group, "normal", "slow", renew=True)
    await peer.send("normal", b"slow", tag="slow")
    [message] = await peer.receive_some(group, "normal", "slow", renew=True)
    await service[0].receiving.renew()
    [lease] = service[0].receiving.leases()
    assert lease.handle.invisible_ms == 60_000
    assert await peer.ack(group, message) is Code.OK
    assert service[0].receiving.leases() == []


async def test_an_acknowledgement_beside_a_renewal_counts(
    peer: Peer, service: tuple[Service, Any], cluster: ThreadedCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(receiving, "RENEWED_INVISIBLE_S", 9.0)
    group = new_group()
    async with AdminClient(cluster.name_servers) as admin:

        async def in_flight() -> int:
            info = await admin.broker_runtime_info(cluster.broker_addresses[0])
            return int(info["popInFlight"])

        await peer.consumes(group, "normal", "beside", push=True)
        await peer.receive(group, "normal", "beside", renew=True)
        before = await in_flight()
        for number in range(8):
            await peer.send("normal", b"%d" % number, tag="beside")
        acked = 0
        while acked < 8:
            found = await peer.receive_some(group, "normal", "beside", renew=True)
            acks = (peer.ack(group, each) for each in found)
            codes = await asyncio.gather(service[0].receiving.renew(), *acks)
            assert set(codes[1:]) == {Code.OK}
            acked += len(found)
        assert service[0].receiving.leases() == []
        assert await in_flight() == before


async def test_messages_at_the_same_place_of_two_topics_are_renewed_apart(
    peer: Peer, service: tuple[Service, Any], cluster: ThreadedCluster
) -> None:
    group, found = new_group(), []
    async with AdminClient(cluster.name_servers) as admin:
        for topic in ("left", "right"):
            await admin.create_topic(topic, queues=1)
    await peer.consumes(group, "left", push=True)
    for topic in ("left", "right"):
        await peer.send(topic, b"first")
        found += await peer.receive_some(group, topic, renew=True)
    places = {
        (each.system_properties.queue_id, each.system_properties.queue_offset) for each in found
    }
    assert places == {(0, 0)}
    for message in found:
        assert await peer.ack(group, message) is Code.OK
    await peer.call("NotifyClientTermination", group=resource(group))
    other = Peer(service[1], f"other-{next(numbers)}")
    await other.consumes(group, "left")
    for topic in ("left", "right"):
        assert await other.receive(group, topic) == (Code.MESSAGE_NOT_FOUND, [])


async def test_what_a_client_leaves_goes_to_others_at_once(
    peer: Peer, service: tuple[Service, Any]
) -> None:
    group = new_group()
    await peer.consumes(group, "normal", "left", push=True)
    await peer.receive(group, "normal", "left", renew=True)
    await peer.send("normal", b"left", tag="left")
    await peer.receive_some(group, "normal", "left", renew=True)
    ended = await peer.call("NotifyClientTermination", group=resource(group))
    assert ended.status.code == Code.OK
    other = Peer(service[1], f"other-{next(numbers)}")
    await other.consumes(group, "normal", "left")
    [message] = await other.receive_some(group, "normal", "left")
    assert (message.body, message.system_properties.delivery_attempt) == (b"left", 2)


async def test_administrators_see_clients_and_their_stacks(
    peer: Peer, cluster: ThreadedCluster
) -> None:
    group = new_group()
    settings = TYPES["Settings"](client_type=PUSH_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add(topic=resource("normal")).expression.expression = "a"
    async with peer.telemetry(settings) as stream, AdminClient(cluster.name_servers) as admin:
        await stream.read()
        await peer.receive(group, "normal")

        async def is_known() -> bool:
            found = await admin.consumer_connections(group)
            return [each.client_id for each in found.connection_set] == [client_id]

        [client_id] = [value for key, value in peer._metadata if key == "x-mq-client-id"]
        await until(is_known, timeout=LIMIT_S)
        asking = asyncio.create_task(admin.running_info(group, client_id, stacks=True))
        command = await asyncio.wait_for(stream.read(), LIMIT_S)
        nonce = command.print_thread_stack_trace_command.nonce
        answer = TYPES["ThreadStackTrace"](nonce=nonce, thread_stack_trace="main: sleeping")
        await stream.write(TYPES["TelemetryCommand"](thread_stack_trace=answer))
        assert (await asking).jstack == "main: sleeping"


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("Heartbeat", {}, Code.UNRECOGNIZED_CLIENT_TYPE),
        ("NotifyClientTermination", {}, Code.UNRECOGNIZED_CLIENT_TYPE),
        ("SendMessage", {}, Code.MESSAGE_CORRUPTED),
        ("AckMessage", {"group": resource("g"), "topic": resource("t")}, 50001),
        ("AckMessage", {"group": resource("a b"), "topic": resource("t")}, 40003),
        ("EndTransaction", {"topic": resource("half")}, Code.INVALID_TRANSACTION_ID),
        ("ChangeInvisibleDuration", {"group": resource("g"), "topic": resource("normal")}, 40013),
    ],
)
async def test_a_wrong_request_has_its_code(
    peer: Peer, name: str, fields: dict[str, Any], code: int
) -> None:
    assert (await peer.call(name, **fields)).status.code == code


async def test_a_client_without_an_id_is_refused(service: tuple[Service, Any]) -> None:
    nobody = Peer(service[1], " ")
    assert (await nobody.send("normal", b"x")).status.code == Code.CLIENT_ID_REQUIRED
    answer = await nobody.produces("normal")
    assert answer.status.code == Code.CLIENT_ID_REQUIRED
    assert (await nobody.receive("g", "normal"))[0] is Code.CLIENT_ID_REQUIRED


async def test_a_message_of_another_type_is_refused(peer: Peer) -> None:
    refused = await peer.send("normal", b"x", message_group="g")
    assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "takes messages of type NORMAL, this one is FIFO" in refused.status.message
    for code, options in (
        (Code.TOPIC_NOT_FOUND, {"topic": "missing"}),
        (Code.MESSAGE_BODY_EMPTY, {"body": b""}),
    ):
        sent = await peer.send(**{"topic": "normal", "body": b"x", **options})
        assert sent.status.code == code


async def test_wrong_settings_end_the_stream(peer: Peer) -> None:
    for settings, text in (
        (TYPES["Settings"](client_type=PRODUCER), "no publishing or subscription data"),
        (TYPES["Settings"](client_type=5), "client type 5: expected a producer"),
    ):
        async with peer.telemetry(settings) as stream:
            with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
                await stream.read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_service_ends_with_open_streams(cluster: ThreadedCluster) -> None:
    stopped, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with AdminClient(cluster.name_servers) as admin:
        serving = asyncio.create_task(
            serve(
                admin, cluster.name_servers, ClientSettings(), Listening(port=0),
                ready.set_result, stopped,
            )
        )  # fmt: skip
        async with grpc.aio.insecure_channel(await ready) as channel:
            settings = TYPES["Settings"](client_type=PRODUCER)
            settings.publishing.topics.append(resource("normal"))
            async with Peer(channel, "open").telemetry(settings) as stream:
                await stream.read()
                stopped.set()
                assert await stream.read() == grpc.aio.EOF
                await asyncio.wait_for(serving, LIMIT_S)
