"""The fast path of sends has the bytes and results of the general path."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientError,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
    SendFailedError,
    SendReceipt,
    SendStatus,
    SendTimeoutError,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._sending.pending_sends import PendingSends
from cometmq.client._sending.queue_picker import KeySelector
from cometmq.client.hooks import ForbiddenHook, SendContext, SendHook
from cometmq.client.settings import MIB
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.frame import JSON_HEADER, frame_prefix
from cometmq.protocol.headers.send import SendMessageResponse
from cometmq.protocol.properties import decode_properties
from cometmq.remoting import Request, Response
from support.brokers.scripted import (
    OFFSET_ID,
    Act,
    ScriptedBroker,
    ScriptedCluster,
    SentBroker,
    route,
)
from support.clients.stored_messages import read_all, read_until

MESSAGE = Message(topic="t", body=b"x")
QUEUE = MessageQueue("t", "a", 1)


class Short:
    """Counts the sends that went the short way."""

    def __init__(self) -> None:
        self.count = 0
        self.last: object = None

    def note(self, future: object) -> None:
        if future is not None and future is not self.last:
            self.last = future
            self.count += 1


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    counter = Short()
    for name in ("start_awaited", "_start_without_task"):
        method = getattr(PendingSends, name)

        def counted(self: Any, *arguments: Any, method: Any = method) -> Any:
            future = method(self, *arguments)
            counter.note(future)
            return future

        monkeypatch.setattr(PendingSends, name, counted)
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


class Octets(bytes):
    """Bytes of a class of their own."""


class Topic(StrEnum):
    """Topics as members of an enumeration."""

    PLAIN = "t"


CASES: dict[str, Callable[[], Message]] = {
    "plain": lambda: MESSAGE,
    "topic of an enumeration": lambda: Message(Topic.PLAIN, b"x"),
    "invalid topic": lambda: Message("no blanks", b"x"),
    "empty topic": lambda: Message("", b"x"),
    "system topic": lambda: Message("SCHEDULE_TOPIC_XXXX", b"x"),
    "retry topic": lambda: Message("%RETRY%g", b"x"),
    "unknown topic": lambda: Message("unknown", b"x"),
    "topic of another type": lambda: Message(7, b"x"),  # type: ignore[arg-type]
    "tags": lambda: Message("t", b"x", tags="paid"),
    "tags that are not ASCII": lambda: Message("t", b"x", tags="\u00e4\u4e2d\U0001f600"),
    "empty tags": lambda: Message("t", b"x", tags=""),
    "tags with a separator": lambda: Message("t", b"x", tags="a\x02b"),
    "tags that are no UTF-8": lambda: Message("t", b"x", tags="\ud800"),
    "tags of another type": lambda: Message("t", b"x", tags=7),  # type: ignore[arg-type]
    "keys": lambda: Message("t", b"x", keys=["k1", "k2"]),
    "one key": lambda: Message("t", b"x", keys="one"),
    "keys of a tuple": lambda: Message("t", b"x", keys=("k1", "k2")),
    "keys of a generator": lambda: Message("t", b"x", keys=(key for key in ("k1", "k2"))),
    "keys of a set": lambda: Message("t", b"x", keys={"k1"}),
    "blank key": lambda: Message("t", b"x", keys=["k", " "]),
    "key with a separator": lambda: Message("t", b"x", keys=["k\x01"]),
    "key of another type": lambda: Message("t", b"x", keys=[7]),  # type: ignore[list-item]
    "flag": lambda: Message("t", b"x", flag=-7),
    "least flag": lambda: Message("t", b"x", flag=-(2**31)),
    "greatest flag": lambda: Message("t", b"x", flag=2**31 - 1),
    "flag of 33 bits": lambda: Message("t", b"x", flag=2**31),
    "flag of another type": lambda: Message("t", b"x", flag="7"),  # type: ignore[arg-type]
    "true flag": lambda: Message("t", b"x", flag=True),
    "not waiting for the store": lambda: Message("t", b"x", wait_store=False),
    "properties": lambda: Message(
        "t", b"x", properties={"a": 'with "quotes" and \\', "\u00fc": "Gr\u00fc\u00dfe\n\t\x03"}
    ),
    "everything": lambda: Message(
        "t", bytes(range(256)), "a", ["k"], 5, {"x" * 50: "y" * 500}, 0, False
    ),
    "reserved property": lambda: Message("t", b"x", properties={"UNIQ_KEY": "mine"}),
    "blank property": lambda: Message("t", b"x", properties={"a": " "}),
    "property with a separator": lambda: Message("t", b"x", properties={"a": "\x01"}),
    "long properties": lambda: Message("t", b"x", properties={"a": "b" * 32_600}),
    "too long properties": lambda: Message("t", b"x", properties={"a": "\u00fc" * 20_000}),
    "property of another type": lambda: Message("t", b"x", properties={"a": 7}),  # type: ignore[dict-item]
    "delay level": lambda: Message("t", b"x", delay_level=1),
    "delay": lambda: Message("t", b"x", delay=0.5),
    "delay of another type": lambda: Message("t", b"x", delay="1"),  # type: ignore[arg-type]
    "delivery time": lambda: Message("t", b"x", deliver_at=1_800_000_000_000),
    "timer property": lambda: Message("t", b"x", properties={"TIMER_DELAY_MS": "500"}),
    "two delays": lambda: Message("t", b"x", delay_level=1, delay=0.5),
    "negative delay": lambda: Message("t", b"x", delay=-1),
    "bytearray": lambda: Message("t", bytearray(b"x")),
    "memoryview": lambda: Message("t", memoryview(b"x")),  # type: ignore[arg-type]
    "bytes of a class": lambda: Message("t", Octets(b"x")),
    "text": lambda: Message("t", "x"),  # type: ignore[arg-type]
    "no body": lambda: Message("t", None),  # type: ignore[arg-type]
    "empty body": lambda: Message("t", b""),
    "largest body that is not compressed": lambda: Message("t", b"x" * 4_095),
    "compressed body": lambda: Message("t", b"x" * 4_096),
    "too large body": lambda: Message("t", b"x" * (4 * 1024 * 1024 + 1)),
}
CLIENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "other settings": {"unit_mode": True, "language": "JAVA", "new_topic_queues": 9},
    "namespace": {"namespace": "ns"},
}
SLOW = {
    "bytearray",
    "memoryview",
    "bytes of a class",
    "retry topic",
    "unknown topic",
    "invalid topic",
    "empty topic",
    "system topic",
}
"""Messages for topics without a route, or whose header has more fields: the general path."""


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_both_paths_send_the_same_bytes_and_raise_the_same_errors(
    case: str, client: dict[str, Any], way: str, short: Short
) -> None:
    """A hook leads to the general path."""
    outcomes: list[Any] = []
    for hooks in ([], [SendHook()]):
        broker = SentBroker()
        async with ScriptedCluster([broker]) as cluster:
            routes = cluster.name_server.routes
            for topic in ("%RETRY%g", "ns%t", "%RETRY%ns%g"):
                routes[topic] = routes["t"]
            async with _producer(cluster, hooks=hooks, **client) as producer:
                await producer.send(MESSAGE)
                short.count = 0
                outcomes.append(await outcome(producer, way, CASES[case]()))
            outcomes[-1]["commands"] = [shape(command) for command in broker.commands[1:]]
            for command in outcomes[-1]["commands"]:
                del command["fields"]["e"]  # any queue: the first one is chosen at random
            if not hooks:
                took_fast_path = short.count == 1
    fast, general = outcomes

    assert fast == general
    assert took_fast_path == (fast["error"] is None and case not in SLOW)


FIELDS = {"msgId": OFFSET_ID, "queueId": "0", "queueOffset": "7"}
RESPONSES: dict[str, Response] = {
    "usual": Response(fields={**FIELDS, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}),
    "required fields only": Response(fields=FIELDS),
    "another region": Response(fields={**FIELDS, "MSG_REGION": "eu-1", "TRACE_ON": "false"}),
    "region that is not ASCII": Response(fields={**FIELDS, "MSG_REGION": "d\u00fcsseldorf"}),
    "empty region": Response(fields={**FIELDS, "MSG_REGION": ""}),
    "region with an escape": Response(fields={**FIELDS, "MSG_REGION": 'a"b'}),
    "trace in capitals": Response(fields={**FIELDS, "TRACE_ON": "FALSE"}),
    "trace of another kind": Response(fields={**FIELDS, "TRACE_ON": "perhaps"}),
    "another queue": Response(fields={**FIELDS, "queueId": "1"}),
    "large offset": Response(fields={**FIELDS, "queueOffset": str(2**62)}),
    "largest offset": Response(fields={**FIELDS, "queueOffset": str(2**63 - 1)}),
    "negative offset": Response(fields={**FIELDS, "queueOffset": "-1"}),
    "offset that is no number": Response(fields={**FIELDS, "queueOffset": "x"}),
    "queue that is no number": Response(fields={**FIELDS, "queueId": "x"}),
    "queue of 33 bits": Response(fields={**FIELDS, "queueId": str(2**31)}),
    "no id": Response(fields={"queueId": "0", "queueOffset": "7"}),
    "empty id": Response(fields={**FIELDS, "msgId": ""}),
    "no fields": Response(),
    "unknown fields": Response(fields={**FIELDS, "opaque": "1", "newField": ',"opaque":1,'}),
    "transaction": Response(fields={**FIELDS, "transactionId": "T"}),
    "recall handle": Response(fields={**FIELDS, "recallHandle": "H"}),
    "remark": Response(0, "stored", fields=FIELDS),
    "remark with an opaque": Response(0, '{"opaque":1,', fields=FIELDS),
    "body": Response(fields=FIELDS, body=b"more"),
    "flush timeout": Response(ResponseCode.FLUSH_DISK_TIMEOUT, fields=FIELDS),
    "refusal": Response(ResponseCode.MESSAGE_ILLEGAL, "no", fields=FIELDS),
    "unknown code": Response(9_999, "what", fields=FIELDS),
}


class Responding(SentBroker):
    """Responds to all sends but the first with a given response."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response

    def _send(self, request: Request) -> Response | None:
        first = super()._send(request)
        return first if len(self.commands) == 1 else self.response


@pytest.mark.parametrize("case", RESPONSES)
async def test_both_paths_read_the_same_from_a_response(case: str, short: Short) -> None:
    outcomes: list[Any] = []
    for hooks in ([], [SendHook()]):
        broker = Responding(RESPONSES[case])
        async with ScriptedCluster([broker]) as cluster, _producer(cluster, hooks=hooks) as sender:
            await sender.send(MESSAGE)
            short.count = 0
            sends = [sender.send_nowait(MESSAGE, queue=QUEUE) for _ in range(3)]
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert short.count == (0 if hooks else 3)
            outcomes.append(
                [repr(seen(result)).replace(broker.address, "broker") for result in results]
            )

    assert outcomes[0] == outcomes[1]


class Stray(SentBroker):
    """Sends a response of an opaque number that no request has before each of its responses."""

    def __init__(self, opaque: int) -> None:
        super().__init__()
        self.opaque = opaque

    def _send(self, request: Request) -> Response | None:
        request.connection.write(encode_head(0, opaque=self.opaque, flag=1, fields=FIELDS))
        return super()._send(request)


@pytest.mark.parametrize("opaque", [-1, -2, 0, 2**31 - 1, -(2**31)])
async def test_a_response_to_no_request_is_dropped(opaque: int, short: Short) -> None:
    async with ScriptedCluster([Stray(opaque)]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        receipts = [await producer.send(MESSAGE) for _ in range(3)]

    assert [receipt.status for receipt in receipts] == [SendStatus.SEND_OK] * 3
    assert short.count == 3


def seen(result: SendReceipt | BaseException) -> Any:
    """A receipt without its message id, which is new in each send, or an error."""
    if isinstance(result, BaseException):
        return type(result), str(result)
    return msgspec.structs.replace(result, message_id="")


async def outcome(producer: Producer, way: str, message: Message) -> dict[str, Any]:
    """The receipt or the error of a send, without what is new in each send."""
    future = getattr(producer, way)(message)
    try:
        receipt = await future
    except Exception as error:
        return {"error": (type(error), str(error))}
    known = {name: getattr(receipt, name) for name in ("status", "queue_offset", "recall_handle")}
    return {"error": None, "topic": receipt.queue.topic, **known}


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
        (MESSAGE, {"selector": lambda queues, message: queues[0]}, {}),
        (MESSAGE, {}, {"hooks": [SendHook()]}),
        (MESSAGE, {}, {"latency_avoidance": True}),
        (MESSAGE, {}, {"namespace_v2": "ns"}),
        (MESSAGE, {}, {"access_key": "a", "secret_key": "s"}),
    ],
    ids=["selector", "hook", "latency", "request hook", "signed"],
)
async def test_what_is_out_of_the_ordinary_goes_the_long_way(
    message: Message, how: dict[str, Any], options: dict[str, Any], short: Short
) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster, **options) as producer:
        await producer.send(MESSAGE)
        receipt = await producer.send_nowait(message, **how)

    assert isinstance(receipt, SendReceipt)
    assert short.count == 0
    assert len(broker.sends) == 2


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


@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_both_paths_choose_the_same_queue_for_an_order_key(way: str, short: Short) -> None:
    keys = [f"key-{number}" for number in range(20)]
    chosen = []
    for hooks in ([], [SendHook()]):
        brokers: list[ScriptedBroker] = [SentBroker()]
        async with (
            ScriptedCluster(brokers) as cluster,
            _producer(cluster, hooks=hooks) as producer,
        ):
            await producer.send(MESSAGE)
            short.count = 0
            receipts = [await getattr(producer, way)(MESSAGE, order_key=key) for key in keys]
        chosen.append([receipt.queue for receipt in receipts])
        assert short.count == (0 if hooks else len(keys))

    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 2


async def test_a_send_with_an_order_key_stays_in_its_queue_if_the_route_changes(
    short: Short,
) -> None:
    broker = SentBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT)
    selectors = {key: KeySelector(key) for key in map(str, range(20))}
    key = next(key for key, each in selectors.items() if each.index(2) != each.index(7))
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        Producer(instance=instance, group="g") as producer,
    ):
        await producer.send(MESSAGE)
        future = producer.send_nowait(MESSAGE, order_key=key)
        await broker.until(lambda: len(broker.sends) == 2)
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=7)
        await core_of(instance).routes.refresh("t")
        broker.hang_up()
        await future

    lost, again = broker.commands[1:]
    assert short.count == 1
    assert lost.fields["e"] == again.fields["e"] == str(selectors[key].index(2))


def test_a_thread_that_the_event_loop_has_left_is_refused() -> None:
    """A loop may run in one thread, and later in another one."""
    loop = asyncio.new_event_loop()
    stack, broker = AsyncExitStack(), SentBroker()

    async def started() -> Producer:
        cluster = await stack.enter_async_context(ScriptedCluster([broker]))
        producer = await stack.enter_async_context(_producer(cluster))
        await producer.send(MESSAGE)  # connects: the next one takes the fast path
        return producer

    producer = loop.run_until_complete(started())
    thread, running = threading.Thread(target=loop.run_forever), threading.Event()
    loop.call_soon(running.set)
    thread.start()
    try:
        assert running.wait(60)
        with pytest.raises(ClientError, match="runs in another event loop"):
            asyncio.run(producer.send(MESSAGE))
        sending = asyncio.run_coroutine_threadsafe(producer.send(MESSAGE), loop)
        assert sending.result(60).status is SendStatus.SEND_OK
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(stack.aclose())
        loop.close()
    assert len(broker.sends) == 2


@pytest.mark.parametrize("how", [{"queue": QUEUE}, {"order_key": "k"}])
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_an_awaited_send_to_a_chosen_queue_is_not_tried_again(
    code: int, how: dict[str, Any], short: Short
) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, code)
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(ResponseError, match="as scripted"):
            await producer.send(MESSAGE, **how)

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
        await broker.until(lambda: len(broker.sends) == 2)
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


async def test_without_any_time_nothing_is_sent(short: Short) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)
        with pytest.raises(SendTimeoutError) as failure:
            await producer.send_nowait(MESSAGE, timeout=0)

    assert not failure.value.maybe_stored
    assert len(broker.sends) == 1


UNREADABLE: dict[str, bytes] = {
    "no fields": b"",
    "no id": b'"extFields":{"queueId":"0","queueOffset":"7"},',
    "offset that is no number": b'"extFields":{"msgId":"M","queueId":"0","queueOffset":"x"},',
    "field that is not UTF-8": b'"extFields":{"msgId":"\xff","queueId":"0","queueOffset":"7"},',
}


@pytest.mark.parametrize("hooks", [[], [SendHook()]], ids=["fast path", "general path"])
@pytest.mark.parametrize("way", ["send", "send_nowait", "send_batch"])
@pytest.mark.parametrize("case", UNREADABLE)
async def test_a_response_that_cannot_be_read_is_an_error_and_the_connection_goes_on(
    case: str, way: str, hooks: list[SendHook]
) -> None:
    """The broker has said that the message is stored: a retry would store it twice."""

    class Careless(SentBroker):
        def _send(self, request: Request) -> Response | None:
            super()._send(request)
            if len(self.sends) != 2:
                return _stored()
            opaque = request.command.opaque
            head = b'{"code":0,%b"flag":1,"opaque":%d}' % (UNREADABLE[case], opaque)
            request.connection.write(frame_prefix(JSON_HEADER, len(head), 0) + head)
            return None

    broker = Careless()
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, hooks=hooks, retries=2) as producer,
    ):
        await producer.send(MESSAGE)
        sent = [MESSAGE] if way == "send_batch" else MESSAGE
        with pytest.raises(SendFailedError, match="response") as failure:
            await getattr(producer, way)(sent)
        assert await producer.send_nowait(MESSAGE)

    assert failure.value.maybe_stored
    assert len(broker.sends) == 3, "it is not retried"


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
                await core_of(instance).routes.refresh("t")
                await producer.send_nowait(MESSAGE)
                await producer.send_nowait(MESSAGE)
        finally:
            await new.stop()

    assert (len(old.sends), len(new.sends)) == (2, 2)
    assert short.count == 2


async def test_cancelled_sends_release_their_room_when_their_responses_come(short: Short) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, back_pressure_messages=10) as producer,
    ):
        await producer.send(MESSAGE)
        for send in [producer.send_nowait(MESSAGE) for _ in range(10)]:
            send.cancel()
        await producer.flush()
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


@pytest.mark.parametrize("way", ["send", "send_soon", "send_batch"])
async def test_a_send_that_gets_room_as_the_producer_closes_gives_it_back(way: str) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, back_pressure_bytes=MIB) as producer,
    ):
        await producer.send(MESSAGE)
        first = producer.send_nowait(Message("t", bytes(600_000)), timeout=60.0)
        large = asyncio.create_task(producer.send(Message("t", bytes(500_000)), timeout=60.0))
        give = [MESSAGE, MESSAGE] if way == "send_batch" else MESSAGE
        small = asyncio.create_task(getattr(producer, way)(give, timeout=60.0))
        await asyncio.sleep(0)
        large.cancel()  # the small one gets room then
        closing = asyncio.create_task(producer._pending.close(60.0))
        with pytest.raises(ClientClosedError):
            await small
        while len(broker.sends) < 2:
            await asyncio.sleep(0)
        broker.hang_up()
        async with asyncio.timeout(30.0):
            await closing
        with pytest.raises(ClientClosedError):
            await first


async def test_a_body_that_changes_while_it_waits_for_room_leaves_the_limits_as_they_are() -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, *[Act.STAY_SILENT] * 10)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, back_pressure_messages=10) as producer,
    ):
        await producer.send(MESSAGE)
        others = [producer.send_nowait(MESSAGE) for _ in range(10)]
        body = bytearray(b"x")
        waiting = asyncio.create_task(producer.send_soon(Message("t", body)))
        await asyncio.sleep(0)
        body.extend(bytes(1_000))
        while len(broker.sends) < 11:
            await asyncio.sleep(0)
        broker.hang_up()
        await asyncio.gather(*others, await waiting)
        await producer.flush()

        assert producer._pending._pressure.size_bytes == 0


@pytest.mark.parametrize("way", ["send", "send_soon"])
async def test_a_message_that_gets_another_body_while_it_waits_for_room_leaves_the_limits(
    way: str, short: Short
) -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, *[Act.STAY_SILENT] * 10)
    async with (
        ScriptedCluster([broker]) as cluster,
        _producer(cluster, back_pressure_messages=10) as producer,
    ):
        await producer.send(MESSAGE)
        others = [producer.send_nowait(MESSAGE, timeout=0.2) for _ in range(10)]
        message = Message("t", b"x")
        waiting = asyncio.create_task(getattr(producer, way)(message, timeout=60.0))
        await asyncio.sleep(0)
        message.body = bytes(1_000)
        await asyncio.gather(*others, return_exceptions=True)
        await waiting
        await producer.flush()

        assert short.count == 11
        assert producer._pending._pressure.size_bytes == 0


@pytest.mark.parametrize("way", ["send", "send_soon", "send_nowait"])
async def test_a_queue_without_a_hash_fails_its_send_and_holds_no_room(
    way: str, short: Short
) -> None:
    queue = MessageQueue("t", "a", [1])  # type: ignore[arg-type]

    async def send(producer: Producer) -> None:
        result = getattr(producer, way)(MESSAGE, queue=queue)
        while inspect.isawaitable(result):
            result = await result

    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, _producer(cluster) as producer:
        await producer.send(MESSAGE)  # connects: the next one takes the fast path
        with pytest.raises(TypeError, match="unhashable"):
            await send(producer)

        assert producer._pending._pressure.messages == 0


@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_a_selector_that_raises_a_cancellation_fails_its_send(way: str) -> None:
    """As one does that asks a task which was cancelled."""

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        raise asyncio.CancelledError

    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, _producer(cluster) as producer:
        sending: Any = getattr(producer, way)(MESSAGE, selector=select)
        with pytest.raises(ClientError, match="not sent: a selector or a hook") as raised:
            await sending
        assert not isinstance(raised.value, ClientClosedError)
        assert await producer.send(MESSAGE)


@pytest.mark.parametrize("batched", [False, True])
async def test_a_hook_that_forbids_by_a_cancellation_fails_the_sends(batched: bool) -> None:
    class Forbidding(ForbiddenHook):
        def check(self, context: SendContext) -> None:
            raise asyncio.CancelledError

    async with (
        ScriptedCluster([ScriptedBroker("a")]) as cluster,
        _producer(cluster, hooks=[Forbidding()], auto_batch=batched) as producer,
    ):
        sends = [producer.send_nowait(MESSAGE) for _ in range(2)]
        for failure in await asyncio.gather(*sends, return_exceptions=True):
            assert type(failure) is ClientError
            assert "a hook raised CancelledError" in str(failure)
        async with asyncio.timeout(60):
            await producer.flush()


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
    """Sends wait for the broker as long as they may; what was confirmed is stored."""
    async with AdminClient(own_cluster.namesrv) as admin:
        queues = await admin.create_topic("kept", queues=4)
    async with Producer(own_cluster.namesrv, group="g", timeout_ms=60_000) as producer:
        await producer.send(Message("kept", b"first"))
        receipts = await asyncio.gather(*_begin(producer, "before", 200))
        meanwhile = _begin(producer, "meanwhile", 200)
        own_cluster.kill()
        with pytest.raises(SendFailedError):
            await producer.send_nowait(Message("kept", b"x"), timeout=1.0)
        own_cluster.start()
        receipts += await asyncio.gather(*meanwhile)
        receipts += await asyncio.gather(*_begin(producer, "after", 200))

    wanted = {receipt.message_id for receipt in receipts}
    await read_until(
        own_cluster.namesrv, queues, lambda got: wanted <= {message.message_id for message in got}
    )
    assert short.count > 400


def _begin(producer: Producer, name: str, count: int) -> list[asyncio.Future[SendReceipt]]:
    return [
        producer.send_nowait(Message("kept", f"{name} {number}".encode()))
        for number in range(count)
    ]
