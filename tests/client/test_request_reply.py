"""Requests that wait for a reply, on whole clusters and with scripted brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import (
    BackPressureError,
    ClientInstance,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReplyTimeoutError,
    ResponseError,
    SendFailedError,
    StartFrom,
    StoredMessage,
    TopicNotFoundError,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._sending import replies as replies_module
from cometmq.client._sending.replies import Replies
from cometmq.client.errors import ReplyError
from cometmq.model import property_names as names
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.send import PushReplyMessageToClientRequest
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.remoting import Connection, Request, Response
from support.brokers.scripted import Act, ScriptedCluster, SentBroker
from support.checks.waiting import until
from support.wire.request_headers import send_header

ASK = Message(topic="t", body=b"ask")
Answer = Callable[[StoredMessage], bytes | None]


# --- whole clusters -----------------------------------------------------------------------------


@asynccontextmanager
async def answering(
    name_servers: str, queues: Sequence[MessageQueue], answer: Answer
) -> AsyncIterator[list[StoredMessage]]:
    """Somebody who replies to the requests in these queues; gives what was asked."""
    asked: list[StoredMessage] = []

    async def work(consumer: PullConsumer, producer: Producer) -> None:
        while True:
            for request in await consumer.poll(1.0):
                asked.append(request)
                if (body := answer(request)) is not None:
                    await producer.reply(request, body, tags="R", properties={"by": "us"})

    async with (
        PullConsumer(name_servers, group="answering", start_from=StartFrom.FIRST) as consumer,
        Producer(name_servers, group="answers") as producer,
    ):
        await consumer.assign(queues)
        task = asyncio.create_task(work(consumer, producer))
        try:
            yield asked
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_request_brings_the_reply_of_who_consumes_it(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with (
        answering(name_servers, queues, lambda request: request.body * 2) as asked,
        Producer(name_servers, group=group) as producer,
    ):
        ask = Message(topic=topic, body=b"ask", tags="A", keys=["k"])
        reply = await producer.request(ask, timeout=60.0)

    assert (reply.body, reply.tags, reply.properties["by"]) == (b"askask", "R", "us")
    assert asked[0].properties[names.TTL] == "60000"
    assert asked[0].keys == ["k"]
    assert names.ARRIVE_TIME in reply.properties


async def test_many_requests_at_once_each_get_their_own_reply(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with (
        answering(name_servers, queues, lambda request: b"re:" + request.body),
        Producer(name_servers, group=group) as producer,
    ):
        asks = [Message(topic=topic, body=str(number).encode()) for number in range(20)]
        got = await asyncio.gather(*(producer.request(ask, timeout=60.0) for ask in asks))

    assert [reply.body for reply in got] == [b"re:" + ask.body for ask in asks]


async def test_a_large_reply_arrives_as_it_was(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    """It travels compressed both ways."""
    body = b"0123456789" * 1_000
    async with (
        answering(name_servers, queues, lambda request: request.body),
        Producer(name_servers, group=group) as producer,
    ):
        reply = await producer.request(Message(topic=topic, body=body), timeout=60.0)

    assert reply.body == body


async def test_a_request_that_nobody_answers_ends_in_time(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with (
        answering(name_servers, queues, lambda request: None) as asked,
        Producer(name_servers, group=group) as producer,
    ):
        await producer.ready(topic)
        with pytest.raises(ReplyTimeoutError, match=topic):
            await producer.request(Message(topic=topic, body=b"silence"), timeout=3.0)
        await until(lambda: asked, timeout=60)


async def test_a_reply_to_a_client_that_is_gone_says_so(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with PullConsumer(name_servers, group="late", start_from=StartFrom.FIRST) as consumer:
        async with Producer(name_servers, group=group) as producer:
            await producer.ready(topic)
            with pytest.raises(ReplyTimeoutError):
                await producer.request(Message(topic=topic, body=b"ask"), timeout=3.0)
        await consumer.assign(queues)
        async with asyncio.timeout(60):
            while not (requests := await consumer.poll(1.0)):
                pass
        async with Producer(name_servers, group="answers", retries=0) as answers:
            with pytest.raises(ResponseError):
                await answers.reply(requests[0], b"too late")


# --- scripted brokers ---------------------------------------------------------------------------


class AskedBroker(SentBroker):
    """Stores requests; a test lets it push replies."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        super().__init__(name, *script)
        self.on_request: Callable[[AskedBroker], None] | None = None
        self.pushed: list[int] = []
        self._connection: Connection | None = None
        self._pushes: set[asyncio.Task[None]] = set()

    def _send(self, request: Request) -> Response | None:
        self._connection = request.connection
        answer = super()._send(request)
        if self.on_request is not None:
            self.on_request(self)
        return answer

    def push(self, **properties: str) -> asyncio.Task[None]:
        """Push a reply to the last request; ``properties`` replace those of a right one."""
        task = asyncio.ensure_future(self._push(properties))
        self._pushes.add(task)
        return task

    async def _push(self, properties: dict[str, str]) -> None:
        assert self._connection is not None, "nothing was asked"
        asked = decode_properties(self.sends[-1].properties or "")
        kept = {names.CORRELATION_ID: asked[names.CORRELATION_ID], names.UNIQ_KEY: "ID"}
        header = send_header(
            PushReplyMessageToClientRequest,
            topic="c_REPLY_TOPIC",
            properties=encode_properties(kept | properties).decode(),
            born_host="127.0.0.1:1",
            store_host="127.0.0.1:2",
            store_timestamp=2,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        answer = await self._connection.call(code, header, b"reply", timeout=60.0)
        self.pushed.append(answer.code)


async def test_the_broker_knows_the_client_before_the_request_is_sent() -> None:
    broker = AskedBroker()
    beats: list[int] = []
    broker.on_request = lambda asked: (beats.append(len(asked.heartbeats)), asked.push())  # type: ignore[assignment,func-returns-value]
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        reply = await asking.request(ASK)

    assert beats == [1]
    assert (reply.body, reply.message_id, reply.born_host) == (b"reply", "ID", "127.0.0.1:1")
    properties = decode_properties(broker.sends[0].properties or "")
    assert properties[names.REPLY_TO_CLIENT] == broker.heartbeats[0].client_id
    assert properties[names.TTL] == "3000"


@pytest.mark.usefixtures("virtual_time")
async def test_a_late_reply_is_taken_and_dropped() -> None:
    broker = AskedBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        Producer(instance=instance, group="g") as asking,
    ):
        with pytest.raises(ReplyTimeoutError):
            await asking.request(ASK, timeout=0.1)
        await broker.push()
        assert broker.pushed == [ResponseCode.SUCCESS]
        assert len(Replies.of(core_of(instance))) == 0

        broker.on_request = AskedBroker.push  # type: ignore[assignment]
        assert (await asking.request(ASK)).body == b"reply"


@pytest.mark.usefixtures("virtual_time")
async def test_a_reply_nobody_asked_for_is_taken_and_dropped() -> None:
    broker = AskedBroker()
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        broker.on_request = lambda asked: asked.push(**{names.CORRELATION_ID: "other"})  # type: ignore[assignment,return-value]
        with pytest.raises(ReplyTimeoutError):
            await asking.request(ASK, timeout=0.2)

    assert broker.pushed == [ResponseCode.SUCCESS]


async def test_a_reply_is_enough_even_if_the_request_is_not_confirmed() -> None:
    broker = AskedBroker("a", Act.STAY_SILENT)
    broker.on_request = AskedBroker.push  # type: ignore[assignment]
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        assert (await asking.request(ASK, timeout=60.0)).body == b"reply"


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, ResponseError),
        (Act.HANG_UP, SendFailedError),
        (Act.STAY_SILENT, ReplyTimeoutError),
    ],
)
async def test_a_request_that_is_not_confirmed_raises_what_is_known_of_it(
    act: int | Act, error: type[Exception]
) -> None:
    broker = AskedBroker("a", *[act] * 5)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        Producer(instance=instance, group="g") as asking,
    ):
        with pytest.raises(error):
            await asking.request(ASK, timeout=0.3)
        with pytest.raises(TopicNotFoundError):
            await asking.request(Message("unknown", b"x"), timeout=1.0)

        assert len(Replies.of(core_of(instance))) == 0


async def test_a_request_without_any_answer_times_out_as_one_without_a_reply() -> None:
    """Even if the busy loop learns at once that the time of both is up, the send's and its own."""
    broker = AskedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        await asking.ready("t")
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.4)
        with pytest.raises(ReplyTimeoutError):
            await asking.request(ASK, timeout=0.3)


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    broker = AskedBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        Producer(instance=instance, group="g") as asking,
    ):
        request = asyncio.ensure_future(asking.request(ASK, timeout=60.0))
        await broker.until(lambda: bool(broker.sends))
        assert len(Replies.of(core_of(instance))) == 1
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

        assert request.cancelled()
        assert len(Replies.of(core_of(instance))) == 0


async def test_only_so_many_requests_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies_module, "REQUESTS_MAX", 1)
    broker = AskedBroker()
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        first = asyncio.ensure_future(asking.request(ASK, timeout=60.0))
        await broker.until(lambda: bool(broker.sends))
        with pytest.raises(BackPressureError, match="1 requests"):
            await asking.request(ASK)
        await broker.push()
        assert (await first).body == b"reply"

    assert len(broker.sends) == 1


@pytest.mark.parametrize("missing", [names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT])
async def test_a_message_that_is_no_request_cannot_be_replied_to(missing: str) -> None:
    properties = {names.CLUSTER: "c", names.CORRELATION_ID: "1", names.REPLY_TO_CLIENT: "me"}
    del properties[missing]
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        with pytest.raises(ReplyError, match=missing):
            await asking.reply(consumed(properties), b"reply")

    assert broker.sends == []


async def test_a_reply_with_a_delay_is_refused_because_no_broker_delays_it() -> None:
    properties = {names.CLUSTER: "c", names.CORRELATION_ID: "1", names.REPLY_TO_CLIENT: "me"}
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        with pytest.raises(InvalidMessageError, match="a reply with a delay"):
            await asking.reply(
                consumed(properties), b"reply", properties={names.TIMER_DELAY_SEC: "5"}
            )

    assert broker.sends == []


async def test_a_reply_goes_to_the_reply_topic_of_the_request_s_cluster() -> None:
    properties = {
        names.CLUSTER: "c",
        names.CORRELATION_ID: "1",
        names.REPLY_TO_CLIENT: "me",
        names.TTL: "3000",
    }
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address, group="g") as asking:
        cluster.name_server.routes["c_REPLY_TOPIC"] = cluster.name_server.routes["t"]
        await asking.reply(consumed(properties), b"reply")

    sent = decode_properties(broker.sends[0].properties or "")
    assert broker.commands[0].code == RequestCode.SEND_REPLY_MESSAGE_V2
    assert broker.sends[0].topic == "c_REPLY_TOPIC"
    assert sent[names.MSG_TYPE] == "reply"
    assert {name: sent[name] for name in properties if name != names.CLUSTER} == {
        name: value for name, value in properties.items() if name != names.CLUSTER
    }


def consumed(properties: dict[str, str]) -> StoredMessage:
    """A message as a consumer got it."""
    values: dict[str, Any] = {
        "topic": "t",
        "body": b"ask",
        "properties": properties,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:2",
        "offset_message_id": "ID",
    }
    numbers = (
        "queue_id", "queue_offset", "log_offset", "flag", "sys_flag", "born_time_ms",
        "store_time_ms", "reconsume_times", "prepared_offset", "body_crc", "size_bytes",
    )  # fmt: skip
    return StoredMessage(**values, **dict.fromkeys(numbers, 0))
