"""Requests of a write: their order, their repetition and their bounds, against scripted brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.sender import Sender
from cometmq.client.settings import ProducerSettings
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.remoting import Request, Response
from cometmq.spark.errors import DeliveryError
from cometmq.spark.writing import lanes as lanes_module
from cometmq.spark.writing.identity import Origin
from cometmq.spark.writing.lanes import Lanes, Limits
from cometmq.spark.writing.parcels import Parcel
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, route

pytestmark = pytest.mark.usefixtures("virtual_time")

LIMITS = Limits(requests=4, bytes=1 << 20, try_s=0.3, all_tries_s=5.0, safe=True)
FIRST, SECOND = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
ORIGIN = Origin("job", 3, 2)
OK = ResponseCode.SUCCESS


class RecordingBroker(ScriptedBroker):
    """A scripted broker that keeps what it was sent, and may hold its answers back."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        super().__init__(name, *script)
        self.bodies: list[tuple[int, str]] = []
        self.held: list[tuple[Request, Response]] = []
        self.holding = False

    def _send(self, request: Request) -> Response | None:
        queue = request.header(SendMessageV2Request).queue_id
        items = decode_batch(bytes(request.body))
        self.bodies += [(queue, item.body.decode()) for item in items]
        answer = super()._send(request)
        if not self.holding or answer is None:
            return answer
        self.held.append((request, answer))
        return None

    def of(self, queue: MessageQueue) -> list[str]:
        """What it was sent for a queue, repetitions included."""
        return [body for number, body in self.bodies if number == queue.queue_id]

    def let_go(self) -> None:
        """Answer what was held back, and hold nothing from now on."""
        self.holding = False
        held, self.held = self.held, []
        for request, answer in held:
            request.reply(answer)


def parcel(queue: MessageQueue | None, text: str, *, row: int = 0, size: int = 1) -> Parcel:
    data = encode_batch([BatchItem(0, text.encode().ljust(size, b"."), b"UNIQ_KEY\x01k\x02")])
    return Parcel("t", queue, data, 1, row, row)


@asynccontextmanager
async def lanes_of(cluster: ScriptedCluster, limits: Limits = LIMITS) -> AsyncIterator[Lanes]:
    async with ClientCore(cluster.address) as instance:
        running = Lanes(Sender(instance, "g", ProducerSettings()), limits, ORIGIN)
        try:
            yield running
        finally:
            await running.cancel()


def once(bodies: list[str]) -> list[str]:
    """Without the repetitions of what came before."""
    return list(dict.fromkeys(bodies))


@pytest.mark.parametrize(
    "trouble",
    [Act.HANG_UP, Act.STAY_SILENT, *sorted(lanes_module.RETRIED), ResponseCode.FLUSH_DISK_TIMEOUT],
    ids=str,
)
async def test_a_queue_keeps_its_order_when_a_request_must_be_repeated(trouble: int | Act) -> None:
    broker = RecordingBroker("a", OK, trouble, trouble, OK, trouble)
    texts = [f"m{number}" for number in range(6)]
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        await lanes.put([parcel(FIRST, text) for text in texts])
        await lanes.finish()
        assert once(broker.of(FIRST)) == texts
        assert sorted(broker.of(FIRST)) == sorted([*texts, "m1", "m1", "m2"]), "only these again"
        assert lanes.acknowledged == 6


async def test_queues_do_not_wait_for_each_other() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        await lanes.put([parcel(FIRST, "a"), parcel(FIRST, "b"), parcel(SECOND, "c")])
        await broker.until(lambda: len(broker.bodies) == 2)
        assert sorted(broker.bodies) == [(0, "a"), (1, "c")], "b waits for a"
        broker.let_go()
        await lanes.finish()
        assert broker.of(FIRST) == ["a", "b"]


async def test_a_refusal_that_cannot_pass_ends_the_write_and_names_the_rows() -> None:
    broker = RecordingBroker("a", ResponseCode.MESSAGE_ILLEGAL)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        await lanes.put([parcel(FIRST, "a", row=17), parcel(FIRST, "b", row=18)])
        with pytest.raises(DeliveryError) as error:
            await lanes.finish()
        assert broker.of(FIRST) == ["a"], "what comes behind it is not sent"
    assert "t@a:0, from row 17 of partition 2, batch 3 of job job" in str(error.value)
    assert "may be stored" not in str(error.value)


async def test_timer_messages_end_the_write_at_once_where_the_timer_is_disabled() -> None:
    class WithoutTimer(RecordingBroker):
        def _send(self, request: Request) -> Response | None:
            super()._send(request)
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            return Response(ResponseCode.SYSTEM_ERROR, remark)

    broker = WithoutTimer("a")
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        await lanes.put([parcel(FIRST, "a")])
        with pytest.raises(DeliveryError, match="timerWheelEnable is false"):
            await lanes.finish()
        assert broker.of(FIRST) == ["a"], "no retry changes a setting of the broker"


async def test_silence_ends_the_write_when_the_time_is_up() -> None:
    broker = RecordingBroker("a", *[Act.STAY_SILENT] * 99)
    limits = replace(LIMITS, try_s=0.05, all_tries_s=0.3)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        await lanes.put([parcel(FIRST, "a")])
        with pytest.raises(DeliveryError, match="they may be stored"):
            await lanes.finish()
        assert len(broker.bodies) >= 2, "it was tried again"


async def test_the_error_tells_of_an_early_try_that_may_have_stored_the_rows() -> None:
    broker = RecordingBroker("a", Act.HANG_UP, *[ResponseCode.SYSTEM_BUSY] * 99)
    limits = replace(LIMITS, all_tries_s=0.3)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        await lanes.put([parcel(FIRST, "a")])
        with pytest.raises(DeliveryError, match=r"they may be stored: ResponseError.*as scripted"):
            await lanes.finish()


async def test_a_broker_that_is_away_for_a_while_is_waited_for() -> None:
    broker = RecordingBroker("a")
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        known = cluster.name_server.routes.pop("t")
        await lanes.put([parcel(FIRST, "a")])
        await cluster.name_server.until(lambda: cluster.name_server.asked.count("t") >= 2)
        cluster.name_server.routes["t"] = known
        await lanes.finish()
        assert broker.of(FIRST) == ["a"]


async def test_rows_for_any_queue_are_tried_at_another_broker() -> None:
    good, bad = RecordingBroker("a"), RecordingBroker("b", *[ResponseCode.SYSTEM_BUSY] * 99)
    async with ScriptedCluster([good, bad]) as cluster, lanes_of(cluster) as lanes:
        await lanes.put([parcel(None, str(number)) for number in range(8)])
        await lanes.finish()
        assert {body for _, body in good.bodies} == {str(number) for number in range(8)}


async def test_no_more_is_taken_than_may_wait_for_acknowledgement() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    limits = replace(LIMITS, bytes=4096)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        parcels = [parcel(FIRST, str(number), size=1500) for number in range(4)]
        putting = asyncio.create_task(lanes.put(parcels))
        await broker.until(lambda: bool(broker.held))
        assert not putting.done()
        assert lanes.waiting_bytes <= 4096
        broker.let_go()
        await putting
        await lanes.finish()
        assert lanes.waiting_bytes == 0


async def test_a_parcel_larger_than_all_room_is_taken_when_nothing_waits() -> None:
    broker = RecordingBroker("a")
    limits = replace(LIMITS, bytes=1024)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        await lanes.put([parcel(FIRST, "x", size=5000)] * 2)
        await lanes.finish()
        assert len(broker.bodies) == 2


async def test_no_more_requests_are_on_their_way_than_allowed() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    limits = replace(LIMITS, requests=2)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=8)
        await lanes.put([parcel(MessageQueue("t", "a", number), "x") for number in range(8)])
        await broker.until(lambda: len(broker.held) == 2)
        broker.let_go()
        await lanes.finish()
        assert len(broker.bodies) == 8


async def test_what_is_stored_counts_as_sent_if_that_is_asked_for() -> None:
    broker = RecordingBroker("a", ResponseCode.SLAVE_NOT_AVAILABLE)
    limits = replace(LIMITS, safe=False)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        await lanes.put([parcel(FIRST, "a")])
        await lanes.finish()
        assert broker.of(FIRST) == ["a"]


async def test_the_error_names_the_option_when_nothing_gets_safe() -> None:
    broker = RecordingBroker("a", *[ResponseCode.SLAVE_NOT_AVAILABLE] * 99)
    limits = replace(LIMITS, all_tries_s=0.2)
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster, limits) as lanes:
        await lanes.put([parcel(FIRST, "a")])
        with pytest.raises(DeliveryError, match=r"SLAVE_NOT_AVAILABLE.*send\.acknowledge=stored"):
            await lanes.finish()


async def test_a_single_message_travels_as_one() -> None:
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        item = encode_batch([BatchItem(5, b"x", b"DELAY\x013\x02")])
        await lanes.put([Parcel("t", FIRST, item, 1, 0, 0, alone=True)])
        await lanes.finish()
        (send,) = broker.sends
        assert (send.batch, send.flag, send.properties) == (False, 5, "DELAY\x013\x02")


async def test_the_queues_of_a_topic_are_asked_for_until_they_are_known() -> None:
    broker = RecordingBroker("a")
    async with ScriptedCluster([broker]) as cluster, lanes_of(cluster) as lanes:
        known = cluster.name_server.routes.pop("t")
        asking = asyncio.create_task(lanes.queues("t"))
        await cluster.name_server.until(lambda: cluster.name_server.asked.count("t") >= 2)
        cluster.name_server.routes["t"] = known
        assert await asking == [FIRST, SECOND]


async def test_a_topic_that_nobody_serves_is_an_error_in_the_end() -> None:
    limits = replace(LIMITS, all_tries_s=0.2)
    async with (
        ScriptedCluster([ScriptedBroker("a")]) as cluster,
        lanes_of(cluster, limits) as lanes,
    ):
        with pytest.raises(DeliveryError, match="topic nobodys: its queues are not known"):
            await lanes.queues("nobodys")
