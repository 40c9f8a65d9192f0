"""The short way of plain sends: the same bytes, the same ends as the long way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientInstance,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
    SendFailedError,
    SendReceipt,
    SendStatus,
    SendTimeoutError,
)
from cometmq.client._sending import fast_path as quick_module
from cometmq.client.hooks import SendHook
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers import SendMessageResponse
from cometmq.protocol.properties import decode_properties
from cometmq.remoting import Request, Response
from support.reading import read_all, read_until
from support.scripted import OFFSET_ID, Act, ScriptedBroker, ScriptedCluster, route
from support.sent import SentBroker

MESSAGE = Message(topic="t", body=b"x")
QUEUE = MessageQueue("t", "a", 1)
MESSAGES = [
    MESSAGE,
    Message("t", b"x", tags="paid"),
    Message("t", b"x", keys=["k1", "k2"], flag=-7),
    Message("t", b"x", keys="one", flag=2**31 - 1, wait_store=False),
    Message("t", b"x", properties={"a": 'with "quotes" and \\', "ü": "Grüße\n\t\x03"}),
    Message("t", bytes(range(256)), tags="ä", properties={"x" * 50: "y" * 500}),
]


class Short:
    """Counts the sends that went the short way."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    counter, write = Short(), quick_module.FastPath._write

    def counted(self: Any, *arguments: Any) -> Any:
        counter.count += 1
        return write(self, *arguments)

    monkeypatch.setattr(quick_module.FastPath, "_write", counted)
    return counter


def shape(command: Command) -> dict[str, Any]:
    """All of a request that does not differ from send to send."""
    fields = dict(command.fields)
    assert abs(int(fields.pop("g")) - 1_795_000_000_000) < 10**12
    properties = decode_properties(fields.pop("i"))
    assert len(properties.pop("UNIQ_KEY")) == 32
    return {
        "code": command.code,
        "flag": command.flag,
        "language": command.language,
        "version": command.version,
        "body": command.body,
        "fields": fields,
        "properties": properties,
    }


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("client", [{}, {"unit_mode": True, "language": "JAVA"}])
async def test_the_short_way_writes_what_the_long_way_writes(
    message: Message, client: dict[str, Any], short: Short
) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster, **client) as producer:
        await producer.send(message, queue=QUEUE)
        receipt = await producer.send_nowait(message, queue=QUEUE)

    long, quick = broker.commands
    assert short.count == 1
    assert shape(quick) == shape(long)
    assert decode_properties(quick.fields["i"])["UNIQ_KEY"] == receipt.message_id
    assert receipt.queue == QUEUE


def _producer(cluster: ScriptedCluster, **options: Any) -> Producer:
    return Producer(cluster.address, group="g", **options)


async def test_both_ways_give_equal_receipts(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str, short: Short
) -> None:
    async with Producer(name_servers, group=group) as producer:
        long = await producer.send(Message(topic, b"long"), queue=queues[0])
        quick = await producer.send_nowait(Message(topic, b"quick"), queue=queues[0])
    first, second = await read_all(name_servers, queues, 2)

    assert short.count == 1
    assert (first.message_id, first.offset_message_id) == (long.message_id, long.offset_message_id)
    assert (second.message_id, second.offset_message_id, second.queue_offset) == (
        quick.message_id,
        quick.offset_message_id,
        quick.queue_offset,
    )
    assert (quick.status, quick.region_id, quick.traced) == (
        long.status,
        long.region_id,
        long.traced,
    )


async def test_the_short_way_takes_all_queues_in_turn(short: Short) -> None:
    brokers = [SentBroker("a"), SentBroker("b")]
    async with ScriptedCluster(brokers) as cluster, _producer(cluster) as producer:
        for _ in range(8):
            await producer.send(MESSAGE)
        short.count = 0
        receipts = [await producer.send_nowait(MESSAGE) for _ in range(4)]
        receipts += [await producer.send(MESSAGE) for _ in range(4)]

    assert short.count == 8
    assert len({receipt.queue for receipt in receipts[1:5]}) == 4


@pytest.mark.parametrize(
    ("message", "how", "options"),
    [
        (Message("t", b"x" * 5_000), {}, {}),
        (Message("t", bytearray(b"x")), {}, {}),
        (Message("t", b"x", delay_level=1), {}, {}),
        (Message("t", b"x", delay=0.5), {}, {}),
        (Message("t", b"x", keys=(key for key in ("k1", "k2"))), {}, {}),
        (MESSAGE, {"order_key": "k"}, {}),
        (MESSAGE, {}, {"hooks": [SendHook()]}),
        (MESSAGE, {}, {"latency_avoidance": True}),
        (MESSAGE, {}, {"namespace": "ns"}),
        (MESSAGE, {}, {"access_key": "a", "secret_key": "s"}),
    ],
    ids=[
        "large",
        "bytearray",
        "delay",
        "timer",
        "generator",
        "key",
        "hook",
        "latency",
        "namespace",
        "signed",
    ],
)
async def test_what_is_out_of_the_ordinary_goes_the_long_way(
    message: Message, how: dict[str, Any], options: dict[str, Any], short: Short
) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes["ns%t"] = cluster.name_server.routes["t"]
        async with _producer(cluster, **options) as producer:
            await producer.send(MESSAGE)
            receipt = await producer.send_nowait(message, **how)

    assert isinstance(receipt, SendReceipt)
    assert short.count == 0
    if not isinstance(message.keys, tuple):
        assert decode_properties(broker.sends[1].properties or "")["KEYS"] == "k1 k2"


async def test_a_refusal_and_a_status_are_those_of_the_long_way(short: Short) -> None:
    script = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY, ResponseCode.FLUSH_DISK_TIMEOUT)
    broker = ScriptedBroker("a", *script)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError, match="as scripted"):
            await producer.send_nowait(MESSAGE)
        receipt = await producer.send_nowait(MESSAGE)

    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert short.count == 2


async def test_a_lost_connection_is_tried_again_on_the_long_way_as_the_same_message(
    short: Short,
) -> None:
    broker = SentBroker("a", ResponseCode.SUCCESS, Act.HANG_UP)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        receipt = await producer.send_nowait(Message("t", b"twice", flag=5, keys=["k"]))

    lost, again = broker.commands[1:]
    assert short.count == 1
    assert shape(lost) | {"fields": 0} == shape(again) | {"fields": 0}
    ids = {decode_properties(command.fields["i"])["UNIQ_KEY"] for command in (lost, again)}
    assert ids == {receipt.message_id}


async def test_an_awaited_send_is_tried_elsewhere_after_a_refusal(short: Short) -> None:
    """The first send opens the connections; the short way's refusal is one try of three."""
    busy = ResponseCode.SYSTEM_BUSY
    brokers = [ScriptedBroker(name, ResponseCode.SUCCESS) for name in "ab"]
    async with ScriptedCluster(brokers) as cluster, _producer(cluster) as producer:
        for _ in range(4):
            await producer.send(MESSAGE)
        short.count = 0
        for broker in brokers:
            broker.script.append(busy)
        receipt = await producer.send(MESSAGE)

    assert receipt.status is SendStatus.SEND_OK
    assert short.count == 1
    assert sorted(len(broker.sends) for broker in brokers) == [3, 4]


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_an_awaited_send_to_a_chosen_queue_is_not_tried_again(
    code: int, short: Short
) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, code)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError, match="as scripted"):
            await producer.send(MESSAGE, queue=QUEUE)

    assert (short.count, len(broker.sends)) == (1, 2)


async def test_the_last_refusal_of_an_awaited_send_tells_of_those_before(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.HANG_UP, *[ResponseCode.SYSTEM_BUSY] * 2)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError) as refusal:
            await producer.send(MESSAGE)

    assert "may be stored" in refusal.value.__notes__[0]
    assert (short.count, len(broker.sends)) == (1, 4)


async def test_an_awaited_send_goes_the_long_way_where_the_status_decides(short: Short) -> None:
    script = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
    broker = ScriptedBroker("a", *script)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, retry_not_stored=True) as producer,
    ):
        await producer.send(MESSAGE)
        receipt = await producer.send(MESSAGE)

    assert receipt.status is SendStatus.SEND_OK
    assert (short.count, len(broker.sends)) == (0, 3)


async def test_a_cancelled_awaited_send_leaves_the_connection_as_it_is(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        sending = asyncio.ensure_future(producer.send(MESSAGE))
        await broker.wait_until(lambda: len(broker.sends) == 2)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert sending.cancelled()
        assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK

    assert short.count == 2


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_first_try_counts_as_one(retries: int, short: Short) -> None:
    broker = SentBroker("a", ResponseCode.SUCCESS, *[Act.HANG_UP] * 5)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, retries_async=retries) as producer,
    ):
        await producer.send(MESSAGE)
        (failure,) = await asyncio.gather(producer.send_nowait(MESSAGE), return_exceptions=True)

    assert len(failure.attempts) == 1 + retries  # type: ignore[union-attr]
    assert len(broker.sends) == 2 + retries
    assert short.count == 1


@pytest.mark.usefixtures("virtual_time")
async def test_silence_ends_in_time(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(SendTimeoutError) as failure:
            await producer.send_nowait(MESSAGE, timeout=0.1)

    assert failure.value.maybe_stored
    assert short.count == 1


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_the_time_of_one_try_can_be_limited(way: str, short: Short) -> None:
    brokers = [ScriptedBroker(name, *[ResponseCode.SUCCESS] * 2) for name in "ab"]
    async with (
        ScriptedCluster(brokers) as cluster,
        _producer(cluster, try_timeout_ms=60) as producer,
    ):
        for _ in range(4):
            await producer.send(MESSAGE)
        short.count = 0
        for broker in brokers:
            broker.script.append(Act.STAY_SILENT)
        receipt = await getattr(producer, way)(MESSAGE, timeout=5.0)

    assert receipt.status is SendStatus.SEND_OK
    assert short.count == 1
    assert len(cluster.sends) == 7


async def test_a_broker_that_goes_away_gets_the_message_again(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, ResponseCode.GO_AWAY)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        receipt = await producer.send_nowait(MESSAGE)

    assert receipt.status is SendStatus.SEND_OK
    assert len(broker.sends) == 3


@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_a_broker_that_goes_away_refuses_where_nothing_is_repeated(
    way: str, short: Short
) -> None:
    """An awaited send still has its tries, a begun one has none after a refusal."""
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, *[ResponseCode.GO_AWAY] * 3)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, reconnect_for_go_away=False) as producer,
    ):
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError) as refusal:
            await getattr(producer, way)(MESSAGE)

    assert refusal.value.code == ResponseCode.GO_AWAY
    assert len(broker.sends) == (4 if way == "send" else 2)


@pytest.mark.parametrize(
    "message",
    [Message("t", b"x", tags="\ud800"), Message("t", b"x", keys=["k"], properties={"a": "\x01"})],
)
async def test_what_is_wrong_with_a_message_is_told_by_the_long_way(
    message: Message, short: Short
) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(InvalidMessageError):
                await send(message)
        assert await producer.send_nowait(MESSAGE)

    assert len(broker.sends) == 2


async def test_without_any_time_nothing_is_sent(short: Short) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(SendTimeoutError) as failure:
            await producer.send_nowait(MESSAGE, timeout=0)

    assert not failure.value.maybe_stored
    assert len(broker.sends) == 1


async def test_an_answer_without_its_fields_is_an_error_and_the_connection_goes_on() -> None:
    class Careless(SentBroker):
        def _send(self, request: Request) -> Response | None:
            super()._send(request)
            return Response() if len(self.sends) == 2 else _stored()

    broker = Careless()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError):
            await producer.send_nowait(MESSAGE)
        assert await producer.send_nowait(MESSAGE)


def _stored() -> Response:
    return Response(header=SendMessageResponse(msg_id=OFFSET_ID, queue_id=0, queue_offset=7))


async def test_a_broker_that_moved_is_found_at_its_new_address(short: Short) -> None:
    old, new = SentBroker("a"), SentBroker("a")
    async with ScriptedCluster([old]) as cluster, ClientInstance(cluster.address) as instance:
        await new.start()
        try:
            async with Producer(instance=instance, group="g") as producer:
                await producer.send(MESSAGE)
                await producer.send_nowait(MESSAGE)
                cluster.name_server.routes["t"] = route({"a": new.address})
                await instance.routes.refresh("t")
                await producer.send_nowait(MESSAGE)
                await producer.send_nowait(MESSAGE)
        finally:
            await new.stop()

    assert (len(old.sends), len(new.sends)) == (2, 2)
    assert short.count == 2


async def test_a_cancelled_send_gives_its_permit_back_when_its_answer_comes(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS)
    limits = {"back_pressure": True, "back_pressure_messages": 10}
    async with ScriptedCluster([broker]) as cluster, _producer(cluster, **limits) as producer:
        await producer.send(MESSAGE)
        for send in [producer.send_nowait(MESSAGE) for _ in range(10)]:
            send.cancel()
        assert await producer.drain(timeout=60.0)
        assert await producer.send_nowait(MESSAGE)

    assert short.count == 11


async def test_what_is_on_its_way_when_the_producer_closes_is_waited_for(short: Short) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with _producer(cluster) as producer:
            await producer.send(MESSAGE)
            sends = [producer.send_nowait(MESSAGE) for _ in range(50)]
        receipts = await asyncio.gather(*sends)

    assert short.count == len(receipts) == 50


async def test_what_has_no_answer_when_the_producer_is_closed_ends_with_an_error() -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, *[Act.STAY_SILENT] * 3)
    async with ScriptedCluster([broker]) as cluster:
        async with _producer(cluster, timeout_ms=100) as producer:
            await producer.send(MESSAGE, timeout=60.0)
            sends = [producer.send_nowait(MESSAGE, timeout=60.0) for _ in range(3)]
        failures = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(failure) for failure in failures] == [ClientClosedError] * 3
    assert all("may be stored" in str(failure) for failure in failures)


async def test_sends_go_on_after_the_broker_was_killed_and_came_back(
    own_cluster: Cluster, short: Short
) -> None:
    """What was confirmed is stored; what fails meanwhile says so."""
    async with AdminClient(own_cluster.namesrv) as admin:
        queues = await admin.create_topic("kept", queues=4)
    async with Producer(own_cluster.namesrv, group="g", timeout_ms=60_000) as producer:
        await producer.send(Message("kept", b"first"))
        receipts = await asyncio.gather(*_begin(producer, "before", 200))
        meanwhile = _begin(producer, "meanwhile", 200)
        own_cluster.kill()
        results = await asyncio.gather(*meanwhile, return_exceptions=True)
        with pytest.raises(SendFailedError):
            await producer.send_nowait(Message("kept", b"x"), timeout=1.0)
        own_cluster.start()
        async with asyncio.timeout(60):
            while not await _succeeds(producer):
                await asyncio.sleep(0.1)
        receipts += await asyncio.gather(*_begin(producer, "after", 200))

    confirmed = receipts + [result for result in results if isinstance(result, SendReceipt)]
    assert all(isinstance(result, SendReceipt | SendFailedError) for result in results)
    wanted = {receipt.message_id for receipt in confirmed}
    await read_until(
        own_cluster.namesrv, queues, lambda got: wanted <= {message.message_id for message in got}
    )
    assert short.count > 400


def _begin(producer: Producer, name: str, count: int) -> list[asyncio.Future[SendReceipt]]:
    return [
        producer.send_nowait(Message("kept", f"{name} {number}".encode()))
        for number in range(count)
    ]


async def _succeeds(producer: Producer) -> bool:
    (result,) = await asyncio.gather(
        producer.send_nowait(Message("kept", b"trying"), timeout=1.0), return_exceptions=True
    )
    return isinstance(result, SendReceipt)
