"""Sends of a task: their order, retries and limits, against scripted brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cometmq.client.library import ClientConnection, EncodedSender, ProducerSession
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.remoting import Request, Response
from cometmq.spark.errors import DeliveryError, FencedError
from cometmq.spark.sink import queued_sends
from cometmq.spark.sink.message_batches import MessageBatch
from cometmq.spark.sink.queued_sends import QueuedSends, RateLimit, SendLimits, UncertainError
from cometmq.spark.sink.unique_ids import Origin
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, route

pytestmark = pytest.mark.usefixtures("virtual_time")

LIMITS = SendLimits(requests=4, bytes=1 << 20, request_s=0.3, delivery_s=5.0, safe=True)
FIRST, SECOND = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
ORIGIN = Origin("job", 3, 2)
OK = ResponseCode.SUCCESS


class RecordingBroker(ScriptedBroker):
    """A scripted broker that keeps what it was sent, and may hold responses back."""

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
        """Return the bodies sent to a queue, duplicates included."""
        return [body for number, body in self.bodies if number == queue.queue_id]

    def release(self) -> None:
        """Send the held responses, and hold none from now on."""
        self.holding = False
        held, self.held = self.held, []
        for request, answer in held:
            request.reply(answer)


def batch(queue: MessageQueue | None, text: str, *, row: int = 0, size: int = 1) -> MessageBatch:
    data = encode_batch([BatchItem(0, text.encode().ljust(size, b"."), b"UNIQ_KEY\x01k\x02")])
    return MessageBatch("t", queue, data, 1, row, row)


@asynccontextmanager
async def sends_of(
    cluster: ScriptedCluster, limits: SendLimits = LIMITS, *, rows_per_s: float = 0
) -> AsyncIterator[QueuedSends]:
    async with ClientConnection(cluster.address) as connection:
        running = QueuedSends(
            EncodedSender(connection, "g"), limits, RateLimit(rows_per_s, 0), ORIGIN
        )
        try:
            yield running
        finally:
            await running.cancel()


def once(bodies: list[str]) -> list[str]:
    """Return the bodies without duplicates."""
    return list(dict.fromkeys(bodies))


@pytest.mark.parametrize(
    "trouble",
    [Act.HANG_UP, Act.STAY_SILENT, *sorted(queued_sends.RETRIED), ResponseCode.FLUSH_DISK_TIMEOUT],
    ids=str,
)
async def test_a_queue_keeps_its_order_when_a_request_must_be_repeated(trouble: int | Act) -> None:
    broker = RecordingBroker("a", OK, trouble, trouble, OK, trouble)
    texts = [f"m{number}" for number in range(6)]
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        await sends.put([batch(FIRST, text) for text in texts])
        await sends.finish()
        assert once(broker.of(FIRST)) == texts
        assert sorted(broker.of(FIRST)) == sorted([*texts, "m1", "m1", "m2"]), "only these again"
        assert sends.acknowledged == 6


async def test_queues_do_not_wait_for_each_other() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        await sends.put([batch(FIRST, "a"), batch(FIRST, "b"), batch(SECOND, "c")])
        await broker.until(lambda: len(broker.bodies) == 2)
        assert sorted(broker.bodies) == [(0, "a"), (1, "c")], "b waits for a"
        broker.release()
        await sends.finish()
        assert broker.of(FIRST) == ["a", "b"]


async def test_a_refusal_that_cannot_pass_ends_the_write_and_names_the_rows() -> None:
    broker = RecordingBroker("a", ResponseCode.MESSAGE_ILLEGAL)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        await sends.put([batch(FIRST, "a", row=17), batch(FIRST, "b", row=18)])
        with pytest.raises(DeliveryError) as error:
            await sends.finish()
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
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        await sends.put([batch(FIRST, "a")])
        with pytest.raises(DeliveryError, match="timerWheelEnable is false"):
            await sends.finish()
        assert broker.of(FIRST) == ["a"], "no retry changes a setting of the broker"


async def test_a_silent_broker_fails_the_write_at_the_deadline() -> None:
    broker = RecordingBroker("a", *[Act.STAY_SILENT] * 99)
    limits = replace(LIMITS, request_s=0.05, delivery_s=0.3)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        await sends.put([batch(FIRST, "a")])
        with pytest.raises(DeliveryError, match="they may be stored"):
            await sends.finish()
        assert len(broker.bodies) >= 2, "it was tried again"


async def test_the_error_says_that_an_early_attempt_may_have_stored_the_rows() -> None:
    broker = RecordingBroker("a", Act.HANG_UP, *[ResponseCode.SYSTEM_BUSY] * 99)
    limits = replace(LIMITS, delivery_s=0.3)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        await sends.put([batch(FIRST, "a")])
        with pytest.raises(DeliveryError, match=r"they may be stored: ResponseError.*as scripted"):
            await sends.finish()


async def test_a_broker_that_is_away_for_a_while_is_waited_for() -> None:
    broker = RecordingBroker("a")
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        known = cluster.name_server.routes.pop("t")
        await sends.put([batch(FIRST, "a")])
        await cluster.name_server.until(lambda: cluster.name_server.asked.count("t") >= 2)
        cluster.name_server.routes["t"] = known
        await sends.finish()
        assert broker.of(FIRST) == ["a"]


async def test_rows_for_any_queue_are_sent_to_another_broker() -> None:
    good, bad = RecordingBroker("a"), RecordingBroker("b", *[ResponseCode.SYSTEM_BUSY] * 99)
    async with ScriptedCluster([good, bad]) as cluster, sends_of(cluster) as sends:
        await sends.put([batch(None, str(number)) for number in range(8)])
        await sends.finish()
        assert {body for _, body in good.bodies} == {str(number) for number in range(8)}


async def test_unacknowledged_bytes_are_limited() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    limits = replace(LIMITS, bytes=4096)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        batches = [batch(FIRST, str(number), size=1500) for number in range(4)]
        putting = asyncio.create_task(sends.put(batches))
        await broker.until(lambda: bool(broker.held))
        assert not putting.done()
        assert sends.pending_bytes <= 4096
        broker.release()
        await putting
        await sends.finish()
        assert sends.pending_bytes == 0


async def test_a_batch_larger_than_the_limit_is_sent_when_nothing_else_waits() -> None:
    broker = RecordingBroker("a")
    limits = replace(LIMITS, bytes=1024)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        await sends.put([batch(FIRST, "x", size=5000)] * 2)
        await sends.finish()
        assert len(broker.bodies) == 2


async def test_requests_in_flight_are_limited() -> None:
    broker = RecordingBroker("a")
    broker.holding = True
    limits = replace(LIMITS, requests=2)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=8)
        await sends.put([batch(MessageQueue("t", "a", number), "x") for number in range(8)])
        await broker.until(lambda: len(broker.held) == 2)
        broker.release()
        await sends.finish()
        assert len(broker.bodies) == 8


async def test_a_stored_message_counts_as_sent_with_the_option_stored() -> None:
    broker = RecordingBroker("a", ResponseCode.SLAVE_NOT_AVAILABLE)
    limits = replace(LIMITS, safe=False)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        await sends.put([batch(FIRST, "a")])
        await sends.finish()
        assert broker.of(FIRST) == ["a"]


async def test_the_error_names_the_option_when_no_message_becomes_safe() -> None:
    broker = RecordingBroker("a", *[ResponseCode.SLAVE_NOT_AVAILABLE] * 99)
    limits = replace(LIMITS, delivery_s=0.2)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, limits) as sends:
        await sends.put([batch(FIRST, "a")])
        with pytest.raises(DeliveryError, match=r"SLAVE_NOT_AVAILABLE.*send\.acknowledge=stored"):
            await sends.finish()


async def test_a_single_message_is_not_sent_as_a_batch() -> None:
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        item = encode_batch([BatchItem(5, b"x", b"DELAY\x013\x02")])
        await sends.put([MessageBatch("t", FIRST, item, 1, 0, 0, single=True)])
        await sends.finish()
        (send,) = broker.sends
        assert (send.batch, send.flag, send.properties) == (False, 5, "DELAY\x013\x02")


async def test_the_queues_of_a_topic_are_requested_until_they_are_known() -> None:
    broker = RecordingBroker("a")
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        known = cluster.name_server.routes.pop("t")
        asking = asyncio.create_task(sends.queues("t"))
        await cluster.name_server.until(lambda: cluster.name_server.asked.count("t") >= 2)
        cluster.name_server.routes["t"] = known
        assert await asking == [FIRST, SECOND]


async def test_a_topic_without_a_broker_is_an_error_after_the_deadline() -> None:
    limits = replace(LIMITS, delivery_s=0.2)
    async with (
        ScriptedCluster([ScriptedBroker("a")]) as cluster,
        sends_of(cluster, limits) as sends,
    ):
        with pytest.raises(DeliveryError, match="topic unknown: its queues are not known"):
            await sends.queues("unknown")


async def test_batches_leave_at_the_rate_of_the_limit() -> None:
    broker = RecordingBroker("a")
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, rows_per_s=2) as sends:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await sends.put([batch(FIRST, str(number)) for number in range(7)])
        await sends.finish()
        assert loop.time() - start == pytest.approx(3.0, abs=0.2), "the first one leaves at once"
        assert len(broker.bodies) == 7


async def test_a_failed_batch_ends_the_wait_for_the_rate() -> None:
    broker = RecordingBroker("a", ResponseCode.MESSAGE_ILLEGAL)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster, rows_per_s=0.001) as sends:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(DeliveryError):
            await sends.put([batch(FIRST, "a"), batch(FIRST, "b")])
        assert loop.time() - start < 100


# --- producer sessions ----------------------------------------------------------------------------

SESSION = ProducerSession("job/2", "attempt", 7)


@pytest.mark.parametrize(
    "trouble",
    [
        Act.HANG_UP,
        Act.STAY_SILENT,
        *sorted(queued_sends.UNCERTAIN),
        ResponseCode.FLUSH_DISK_TIMEOUT,
    ],
    ids=str,
)
async def test_after_an_uncertain_response_nothing_is_sent_until_the_caller_resumes(
    trouble: int | Act,
) -> None:
    broker = RecordingBroker("a", OK, trouble)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        sends.sessions["t"] = SESSION
        await sends.put([batch(FIRST, text) for text in ("a", "b", "c")])
        with pytest.raises(UncertainError, match="responses of t are uncertain"):
            await sends.finish()
        with pytest.raises(UncertainError):
            await sends.put([batch(SECOND, "d")])

        assert await sends.settle() == {"t": {FIRST: 8}}
        assert broker.of(FIRST) == ["a", "b"]
        assert [row.body[:1] for row in decode_batch(sends.first(FIRST).data)] == [b"b"]
        sends.replace_first(FIRST, None)  # it was stored
        sends.sessions["t"] = SESSION._replace(epoch=8)
        await sends.resume()
        await sends.put([])
        await sends.finish()

        assert broker.of(FIRST) == ["a", "b", "c"]
        assert broker.of(SECOND) == ["d"]
        assert (sends.acknowledged, sends.pending_bytes) == (4, 0)
        epochs = [(each.producer_session, each.producer_epoch) for each in broker.sends]
        assert epochs == [("job/2", 7)] * 2 + [("job/2", 8)] * 2


async def test_what_is_left_of_an_uncertain_batch_is_sent_again() -> None:
    broker = RecordingBroker("a", Act.HANG_UP)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        sends.sessions["t"] = SESSION
        await sends.put([batch(FIRST, "a")])
        with pytest.raises(UncertainError):
            await sends.finish()
        await sends.settle()
        sends.replace_first(FIRST, batch(FIRST, "rest"))
        await sends.resume()
        await sends.finish()
        assert broker.of(FIRST) == ["a", "rest"]
        assert sends.pending_bytes == 0


async def test_a_clean_refusal_is_retried_and_a_fenced_attempt_ends() -> None:
    broker = RecordingBroker("a", ResponseCode.SYSTEM_BUSY, OK, ResponseCode.PRODUCER_FENCED)
    async with ScriptedCluster([broker]) as cluster, sends_of(cluster) as sends:
        sends.sessions["t"] = SESSION
        await sends.put([batch(FIRST, "a"), batch(FIRST, "b")])
        with pytest.raises(FencedError, match="from row 0 of partition 2"):
            await sends.finish()
        assert broker.of(FIRST) == ["a", "a", "b"]


def test_without_a_limit_every_batch_leaves_at_once() -> None:
    rate = RateLimit(0, 0)
    assert [rate.start_of(1_000, 1 << 20, 5.0) for _ in range(3)] == [5.0] * 3
    assert rate.rows_max > 1 << 30
    assert rate.bytes_max > 1 << 30


def test_the_slower_of_both_limits_decides() -> None:
    rate = RateLimit(rows_per_s=10, bytes_per_s=100)
    starts = [rate.start_of(rows, size, 0.0) for rows, size in ((10, 1), (1, 300), (1, 1))]
    assert starts == pytest.approx([0.0, 1.0, 4.0])


def test_unused_time_is_not_saved_up() -> None:
    rate = RateLimit(rows_per_s=10, bytes_per_s=0)
    assert rate.start_of(10, 1, 0.0) == 0.0
    assert rate.start_of(10, 1, 60.0) == 60.0
    assert rate.start_of(10, 1, 60.0) == pytest.approx(61.0)


def test_a_batch_has_at_most_a_tenth_of_a_second_and_at_least_one_row() -> None:
    assert (RateLimit(1_000, 0).rows_max, RateLimit(3, 0).rows_max) == (100, 1)
    assert RateLimit(0, 1 << 20).bytes_max == (1 << 20) // 10
