"""Opening the producer session of a task at several brokers, which other attempts open too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cometmq.client.library import ClientConnection, EncodedSender
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import Perm
from cometmq.protocol.bodies.producer_session import ProducerSessionBounds
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.producer_session import (
    OpenProducerSessionRequest,
    OpenProducerSessionResponse,
)
from cometmq.remoting import Request, Response
from cometmq.spark.errors import DeliveryError, FencedError, NotExactlyOnceError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.sink.queued_sends import SendLimits
from cometmq.spark.sink.topic_session import SessionTask, TopicSession
from cometmq.spark.sink.unique_ids import Origin
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, route

pytestmark = pytest.mark.usefixtures("virtual_time")

LIMITS = SendLimits(requests=4, bytes=1 << 20, request_s=0.3, delivery_s=5.0, safe=True)
TASK = SessionTask(Origin("job", 3, 2), LIMITS, is_named=True)


class SessionBroker(ScriptedBroker):
    """A broker with one session, whose epoch the test may raise."""

    def __init__(self, name: str, *codes: int, epoch: int = 0) -> None:
        super().__init__(name)
        self.handlers[RequestCode.OPEN_PRODUCER_SESSION] = self._open
        self.codes = list(codes)
        self.epoch, self.owner = epoch, ""
        self.brokers: set[str] = set()
        self.opened: list[OpenProducerSessionRequest] = []
        self.before: Callable[[], object] = lambda: None
        """Called before each opening."""
        self.begins, self.ends, self.is_complete = [0, 0], [0, 0], True

    def _open(self, request: Request) -> Response:
        self.before()
        header = request.header(OpenProducerSessionRequest)
        self.opened.append(header)
        code = self.codes.pop(0) if self.codes else 0
        if code not in (0, ResponseCode.FLUSH_SLAVE_TIMEOUT):
            return Response(code, "as scripted")
        epoch = header.epoch or self.epoch + 1
        if epoch < self.epoch or (epoch == self.epoch and header.owner != self.owner):
            fenced = OpenProducerSessionResponse(epoch=self.epoch)
            return Response(ResponseCode.PRODUCER_FENCED, "fenced", header=fenced)
        self.epoch, self.owner = epoch, header.owner
        self.brokers |= set(header.brokers.split(";"))
        opened = OpenProducerSessionResponse(
            epoch=epoch, brokers=";".join(self.brokers), is_complete=self.is_complete
        )
        bounds = ProducerSessionBounds(begins=self.begins, ends=self.ends)
        return Response(code, header=opened, body=bounds.encode())

    def taken_by_another(self, epoch: int) -> None:
        self.epoch, self.owner = epoch, "another"


@asynccontextmanager
async def session_at(
    *brokers: ScriptedBroker, task: SessionTask = TASK
) -> AsyncIterator[TopicSession]:
    async with (
        ScriptedCluster(list(brokers)) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        yield TopicSession(EncodedSender(connection, "g"), "t", task)


async def test_all_brokers_get_the_epoch_of_the_first_one() -> None:
    a, b = SessionBroker("a", epoch=6), SessionBroker("b")
    b.begins, b.ends = [1, 2], [4, 2]
    async with session_at(b, a) as session:
        ranges = await session.open()
    assert (a.epoch, b.epoch, session.session.epoch) == (7, 7, 7)
    assert {r for r in ranges if r.size} == {QueueRange(QueueKey("t", "b", 0), 1, 4)}
    assert session.brokers == {"a", "b"}
    first = a.opened[0]
    assert (first.batch, first.brokers, first.expiry_ms) == (3, "a;b", 0)
    assert first.session.endswith("/2")


async def test_a_broker_that_takes_no_rows_any_more_is_opened_and_read() -> None:
    a, b = SessionBroker("a"), SessionBroker("b")
    a.brokers, b.ends = {"b"}, [3, 0]
    async with (
        ScriptedCluster([a, b]) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        found = cluster.name_server.routes["t"]
        found.queue_datas[1].perm = Perm.READ
        session = TopicSession(EncodedSender(connection, "g"), "t", TASK)
        ranges = await session.open()
    assert session.brokers == {"a", "b"}
    assert QueueRange(QueueKey("t", "b", 0), 0, 3) in ranges


async def test_an_attempt_that_meets_a_newer_one_takes_an_epoch_above_it() -> None:
    a, b = SessionBroker("a"), SessionBroker("b", epoch=9)
    async with session_at(a, b) as session:
        await session.open()
    assert (a.epoch, b.epoch, a.owner, b.owner) == (10, 10, *[session.session.owner] * 2)


async def test_two_attempts_that_open_again_and_again_end() -> None:
    a, b = SessionBroker("a"), SessionBroker("b")
    b.before = lambda: b.taken_by_another(a.epoch + 5)
    async with session_at(a, b) as session:
        with pytest.raises(FencedError, match="partition 2, batch 3 of job job"):
            await session.open()
    assert len(b.opened) == 11


async def test_only_the_newest_attempt_opens_again() -> None:
    a, b = SessionBroker("a"), SessionBroker("b")
    async with session_at(a, b) as session:
        await session.open()
        b.ends = [3, 8]
        queues = {MessageQueue("t", "b", 0): 2, MessageQueue("t", "b", 1): 0}
        ranges = await session.reopen(queues)
        assert ranges == [
            QueueRange(QueueKey("t", "b", 0), 2, 3),
            QueueRange(QueueKey("t", "b", 1), 0, 8),
        ]
        assert (a.epoch, b.epoch) == (2, 2)
        a.taken_by_another(3)
        with pytest.raises(FencedError):
            await session.reopen(queues)


async def test_refusals_that_pass_and_lagging_replicas_are_retried() -> None:
    a = SessionBroker(
        "a", ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT, epoch=4
    )
    async with session_at(a) as session:
        await session.open()
    assert len(a.opened) == 3
    stored = SessionBroker("a", *[ResponseCode.FLUSH_SLAVE_TIMEOUT] * 9)
    limits = SendLimits(requests=4, bytes=1 << 20, request_s=0.3, delivery_s=5.0, safe=False)
    async with session_at(stored, task=TASK._replace(limits=limits, is_named=False)) as session:
        await session.open()
    assert [each.expiry_ms for each in stored.opened] == [86_400_000]


async def test_a_topic_that_a_name_server_does_not_know_yet_is_looked_up_again() -> None:
    broker = SessionBroker("a")
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        known = cluster.name_server.routes
        known["TBW102"] = known["t"]
        found = known.pop("t")
        session = TopicSession(EncodedSender(connection, "g"), "t", TASK)
        opening = asyncio.create_task(session.open())
        await cluster.name_server.until(lambda: cluster.name_server.asked.count("t") > 1)
        assert not opening.done()
        known["t"] = found
        await opening
        del known["t"]
        with pytest.raises(NotExactlyOnceError, match="does not exist yet"):
            await TopicSession(EncodedSender(connection, "g"), "t", TASK).open()


async def test_brokers_that_do_not_allow_a_session_are_named_with_the_reason() -> None:
    for broker, why in (
        (ScriptedBroker("a"), "has no producer sessions, as brokers of RocketMQ"),
        (SessionBroker("a", ResponseCode.NO_PERMISSION), "does not open the producer session"),
        (SessionBroker("a", ResponseCode.PRODUCER_SESSIONS_FULL), "does not open"),
    ):
        async with session_at(broker) as session:
            with pytest.raises(NotExactlyOnceError, match=why):
                await session.open()
    incomplete = SessionBroker("a")
    incomplete.is_complete = False
    async with session_at(incomplete) as session:
        with pytest.raises(NotExactlyOnceError, match="messages were deleted"):
            await session.open()


async def test_an_older_batch_and_a_broker_that_is_away_end_the_attempt() -> None:
    async with session_at(SessionBroker("a", ResponseCode.PRODUCER_BATCH_OLD)) as session:
        with pytest.raises(FencedError, match="a newer batch was written"):
            await session.open()
    away = SessionBroker("a")
    away.brokers = {"z"}
    async with session_at(away) as session:
        with pytest.raises(NotExactlyOnceError, match="z may have rows of earlier attempts"):
            await session.open()
    gone = SessionBroker("a")
    async with (
        ScriptedCluster([gone]) as cluster,
        ClientConnection(cluster.address) as connection,
    ):
        cluster.name_server.routes["t"] = route({"a": "127.0.0.1:1"})
        session = TopicSession(EncodedSender(connection, "g"), "t", TASK)
        with pytest.raises(DeliveryError, match="could not be opened for 5 s"):
            await session.open()
