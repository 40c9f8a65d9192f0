"""Traces of sends: one record for each stored message, found by its id and keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client._connection.instance import core_of
from cometmq.client.hooks import SendKind
from cometmq.client.settings import ClientSettings, TraceSettings
from cometmq.client.trace import EndTransaction, Publish, Recall, TraceDispatcher, decode_records
from cometmq.client.trace import dispatcher as dispatcher_module
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.compression import decompress_body
from cometmq.protocol.headers.send import SendMessageResponse
from cometmq.protocol.properties import decode_properties
from cometmq.remoting import Request, Response
from support.brokers.scripted import OFFSET_ID, Act, ScriptedCluster, SentBroker
from support.brokers.transaction_broker import TransactionBroker
from support.clients.stored_messages import read_all

PUBLISHED = Publish(5, "r", "g", "t", "ID", None, "k1 k2", "h:1", 1, 1)


async def traced(name_servers: str, queues: list[MessageQueue], count: int) -> list[StoredMessage]:
    """Read so many trace messages."""
    return await read_all(name_servers, queues, count)


def traces(broker: SentBroker, topic: str = TRACE_TOPIC) -> list[tuple[list[Any], list[str]]]:
    """The records of each trace message a scripted broker got, and its keys."""
    return [
        (
            decode_records(decompress_body(command.body, header.sys_flag).decode()),
            decode_properties(header.properties or "")["KEYS"].split(),
        )
        for header, command in zip(broker.sends, broker.commands, strict=True)
        if header.topic == topic
    ]


def with_trace_topic(cluster: ScriptedCluster) -> ScriptedCluster:
    cluster.name_server.routes[TRACE_TOPIC] = cluster.name_server.routes["t"]
    return cluster


async def test_a_trace_is_found_by_the_id_and_the_keys_of_its_message(
    name_servers: str, instance: ClientInstance, topic: str, group: str
) -> None:
    """A topic of its own keeps the traces of this test apart."""
    async with AdminClient(instance=instance) as admin:
        where = await admin.create_topic(f"{topic}-traces", queues=1)
    options = {"trace": True, "trace_topic": f"{topic}-traces"}
    async with Producer(name_servers, group=group, **options) as producer:
        receipt = await producer.send(Message(topic, b"12345", tags="a", keys=["k1", "k2"]))
        await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        await producer.send_nowait(Message(topic, b"x", delay_level=1))
    (trace,) = await traced(name_servers, where, 1)

    first, batch, delayed = decode_records(trace.body.decode())
    assert isinstance(first, Publish)
    assert (first.group, first.topic, first.message_id) == (group, topic, receipt.message_id)
    assert (first.tags, first.keys, first.body_bytes) == ("a", "k1 k2", 5)
    assert (first.offset_message_id, first.success) == (receipt.offset_message_id, True)
    assert first.kind is SendKind.NORMAL
    assert isinstance(batch, Publish)
    assert len(batch.message_id.split(",")) == 2
    assert isinstance(delayed, Publish)
    assert delayed.kind is SendKind.DELAYED
    assert {receipt.message_id, "k1", "k2", *batch.message_id.split(",")} <= set(trace.keys)


async def test_only_what_was_stored_is_traced_and_less_safely_is_no_success() -> None:
    script = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLUSH_DISK_TIMEOUT)
    broker = SentBroker("a", *script)
    async with ScriptedCluster([broker]) as cluster:
        with_trace_topic(cluster)
        async with Producer(cluster.address, group="g", trace=True) as producer:
            await producer.send(Message("t", b"x"))

    (((record,), keys),) = traces(broker)
    assert isinstance(record, Publish)
    assert (record.success, record.store_host) == (False, broker.address)
    assert record.message_id in keys


async def test_nothing_is_traced_where_the_broker_wants_no_traces() -> None:
    class Untraced(SentBroker):
        def _send(self, request: Request) -> Response | None:
            super()._send(request)
            header = SendMessageResponse(
                msg_id=OFFSET_ID, queue_id=0, queue_offset=0, trace_on="false"
            )
            return Response(header=header)

    broker = Untraced()
    async with ScriptedCluster([broker]) as cluster:
        with_trace_topic(cluster)
        async with Producer(cluster.address, group="g", trace=True) as producer:
            await producer.send(Message("t", b"x"))

    assert [header.topic for header in broker.sends] == ["t"]


async def test_messages_of_the_trace_topic_are_not_traced() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        with_trace_topic(cluster)
        async with Producer(cluster.address, group="g", trace=True) as producer:
            await producer.send(Message(TRACE_TOPIC, b"x"))

    assert len(broker.sends) == 1


async def test_the_end_of_a_transaction_is_traced() -> None:
    class Listener:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.ROLLBACK

        async def check(self, message: StoredMessage) -> LocalState:
            return LocalState.UNKNOWN

    broker = TransactionBroker()
    async with ScriptedCluster([broker]) as cluster:
        with_trace_topic(cluster)
        async with TransactionProducer(
            cluster.address, group="g", listener=Listener(), trace=True
        ) as producer:
            sent = await producer.send_in_transaction(Message("t", b"x", keys=["k"]))

    (((half, end), keys),) = traces(broker)
    assert isinstance(half, Publish)
    assert half.kind is SendKind.TRANSACTION_HALF
    assert isinstance(end, EndTransaction)
    assert (end.message_id, end.transaction_id) == (sent.receipt.message_id,) * 2
    assert (end.state, end.from_check, end.store_host) == (
        LocalState.ROLLBACK,
        False,
        broker.address,
    )
    assert {sent.receipt.message_id, "k"} == set(keys)


async def test_traces_of_the_cloud_go_to_a_topic_of_their_region() -> None:
    broker = SentBroker()
    topic = "rmq_sys_TRACE_DATA_DefaultRegion"
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes[topic] = cluster.name_server.routes["t"]
        client = ClientSettings(cloud=True)
        async with Producer(cluster.address, group="g", trace=True, client=client) as producer:
            await producer.send(Message("t", b"x"))

    assert len(traces(broker, topic)) == 1


async def test_the_dispatcher_takes_its_settings_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMETMQ_TRACE_WAITING_MAX", "1")
    async with ScriptedCluster([SentBroker()]) as cluster:
        with_trace_topic(cluster)
        async with ClientInstance(cluster.address) as instance:
            dispatcher = TraceDispatcher.of(core_of(instance))
            taken = [dispatcher.add(PUBLISHED, topic="", region="r", keys=[]) for _ in range(2)]
        monkeypatch.undo()
        async with ClientInstance(cluster.address) as instance:
            dispatcher = TraceDispatcher.of(core_of(instance), {"trace": {"waiting_max": 1}})
            taken += [dispatcher.add(PUBLISHED, topic="", region="r", keys=[]) for _ in range(2)]

    assert taken == [True, False, True, False]


# --- the dispatcher -----------------------------------------------------------------------------


async def test_many_records_travel_in_one_message_until_it_is_large() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance), TraceSettings(body_bytes_max=1_000))
        dispatcher.retain()
        for number in range(100):
            assert dispatcher.add(PUBLISHED, topic="", region="r", keys=[f"k{number}"])
        await dispatcher.release()

    records = [len(found) for found, _ in traces(broker)]
    assert sum(records) == 100
    assert 2 < len(records) < 20


async def test_a_batch_with_more_ids_than_keys_have_room_is_traced() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        with_trace_topic(cluster)
        async with Producer(cluster.address, group="g", trace=True) as producer:
            before = await producer.send(Message("t", b"x"))
            batch = await producer.send_batch([Message("t", b"x")] * 2_000)
            after = await producer.send(Message("t", b"x"))

    found = traces(broker)
    ids = [record.message_id for records, _ in found for record in records]
    assert ids == [before.message_id, batch.message_id, after.message_id]
    keys = {key for _, keys in found for key in keys}
    assert {before.message_id, batch.message_ids[0], after.message_id} <= keys


async def test_records_leave_after_a_while_even_if_they_are_few() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance), TraceSettings(flush_ms=20))
        dispatcher.retain()
        try:
            dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
            await broker.until(lambda: len(broker.sends) == 1)
            dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
            await broker.until(lambda: len(broker.sends) == 2)
        finally:
            await dispatcher.release()


async def test_records_beyond_the_limit_are_dropped_and_counted() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance), TraceSettings(waiting_max=3))
        taken = [dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"]) for _ in range(5)]
        dispatcher.retain()
        assert await dispatcher.flush(5.0)
        await dispatcher.release()

    assert taken == [True, True, True, False, False]
    assert dispatcher.dropped == 2
    assert [len(found) for found, _ in traces(broker)] == [3]


async def test_traces_that_no_broker_takes_are_given_up_and_counted() -> None:
    broker = SentBroker("a", *[ResponseCode.MESSAGE_ILLEGAL] * 5)
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance))
        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
        assert await dispatcher.flush(5.0)
        await dispatcher.release()

    assert dispatcher.dropped == 1


@pytest.mark.usefixtures("virtual_time")
async def test_flushing_is_bounded_by_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releasing is, too: what no broker takes does not hold up the end."""
    monkeypatch.setattr(dispatcher_module, "RELEASE_S", 0.05)
    broker = SentBroker("a", *[Act.STAY_SILENT] * 5)
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance), TraceSettings(timeout_ms=30_000))
        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
        began = asyncio.get_running_loop().time()
        assert not await dispatcher.flush(0.05)
        await dispatcher.release()
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.1)


@pytest.mark.parametrize("users", [1, 3])
async def test_members_share_a_dispatcher_and_the_last_one_ends_it(users: int) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher.of(core_of(instance))
        assert TraceDispatcher.of(core_of(instance)) is dispatcher
        for _ in range(users):
            dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
        for _ in range(users - 1):
            await dispatcher.release()
        assert broker.sends == []
        await dispatcher.release()
        assert len(broker.sends) == 1


class HoldingBroker(SentBroker):
    """Responds to sends only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Request] = []

    def _send(self, request: Request) -> Response | None:
        self.held.append(request)
        self.moved.set()
        return None

    def respond(self) -> None:
        """Store what is held, and respond."""
        held, self.held = self.held, []
        for request in held:
            response = super()._send(request)
            assert response is not None
            request.reply(response)


@pytest.mark.usefixtures("virtual_time")
async def test_a_user_that_comes_while_the_last_one_leaves_is_served() -> None:
    broker = HoldingBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance))
        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["first"])
        leaving = asyncio.create_task(dispatcher.release())
        await broker.until(lambda: bool(broker.held))

        dispatcher.retain()
        broker.respond()
        await leaving
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["second"])
        releasing = asyncio.create_task(dispatcher.release())
        await broker.until(lambda: bool(broker.held))
        broker.respond()
        await releasing

    assert [keys for _, keys in traces(broker)] == [["first"], ["second"]]
    assert dispatcher.dropped == 0


@pytest.mark.usefixtures("virtual_time")
async def test_of_two_users_that_leave_one_after_the_other_the_last_ends_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "RELEASE_S", 1.0)
    broker = HoldingBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        dispatcher = TraceDispatcher(core_of(instance), TraceSettings(timeout_ms=30_000))
        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["first"])
        first = asyncio.create_task(dispatcher.release())
        await broker.until(lambda: bool(broker.held))
        await asyncio.sleep(0.5)

        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["second"])
        second = asyncio.create_task(dispatcher.release())
        await first
        broker.respond()
        await broker.until(lambda: bool(broker.held))
        broker.respond()
        await second
        left = len(dispatcher._tasks)

    assert [keys for _, keys in traces(broker)] == [["first"], ["second"]]
    assert (dispatcher.dropped, left) == (0, 0)


@pytest.mark.usefixtures("virtual_time")
async def test_traces_that_the_last_user_leaves_behind_do_not_hold_up_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "RELEASE_S", 1.0)
    broker = HoldingBroker()
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        with_trace_topic(cluster)
        settings = TraceSettings(body_bytes_max=1_000, timeout_ms=30_000)
        dispatcher = TraceDispatcher(core_of(instance), settings)
        dispatcher.retain()
        for number in range(50):
            dispatcher.add(PUBLISHED, topic="", region="r", keys=[f"k{number}"])
        await dispatcher.release()
        assert dispatcher.dropped == 50
        broker.held.clear()

        dispatcher.retain()
        dispatcher.add(PUBLISHED, topic="", region="r", keys=["next"])
        flushing = asyncio.create_task(dispatcher.flush(5.0))
        await broker.until(lambda: bool(broker.held))
        broker.respond()
        assert await flushing
        await dispatcher.release()

    assert [keys for _, keys in traces(broker)] == [["next"]]


def test_a_recalled_message_has_a_record_of_its_own() -> None:
    assert decode_records("Recall\x015\x01r\x01g\x01t\x01ID\x01true\x02") == [
        Recall(5, "r", "g", "t", "ID", success=True)
    ]
