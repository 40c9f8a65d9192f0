"""The pulls of one queue by the response: the pause after each, and the next offset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from cometmq.client import Filter
from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.continuation import Cause
from cometmq.client._consuming.pulls import PullResult, ReplicaChoice
from cometmq.client._push import fast_path
from cometmq.client._push.process_queue import FetchedBatch, Limits, ProcessQueue
from cometmq.client._push.pull_loop import PullConditions, PullConsumption, PullLoop, PullRequests
from cometmq.client._supervision import FLOW_CONTROL_S, JITTER, FetchLoop, SupervisedFailureLog
from cometmq.client.errors import ClientError
from cometmq.client.offsets import OffsetStore, RemoteOffsetStore
from cometmq.client.settings import PushSettings
from cometmq.model.flags import PullSysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response, Supervisor
from support.brokers.group_broker import GroupBroker, pulled
from support.brokers.scripted import Act, ScriptedCluster, route
from support.checks.waiting import until
from support.clients.consumer_inputs import MemoryOffsets
from support.wire import message_records

QUEUE = MessageQueue("t", "a", 0)

pytestmark = pytest.mark.usefixtures("virtual_time")
IS_COMPILED = not fast_path.__file__.endswith(".py")
FOUND, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
NO_MATCH, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


def record(offset: int, tags: str = "") -> bytes:
    """A record of the queue."""
    facts = {"queue_id": 0, "queue_offset": offset, "log_offset": offset * 100}
    return message_records.record(b"body", b"t", {"TAGS": tags} if tags else {}, **facts)


def found(*offsets: int, next_offset: int | None = None, **more: Any) -> Response:
    """An answer with these messages."""
    after = offsets[-1] + 1 if next_offset is None else next_offset
    return pulled(FOUND, after, records=[record(at) for at in offsets], **more)


class Consumer:
    """What is around a pull loop."""

    def __init__(self, broker: GroupBroker, instance: ClientCore) -> None:
        self.broker = broker
        self.instance = instance
        self.fetched = ProcessQueue(QUEUE, now=asyncio.get_running_loop().time)
        self.store: OffsetStore = RemoteOffsetStore(instance, "g")
        self.replica = ReplicaChoice()
        self.wanted: Filter | None = Filter.tags("*")
        self.submitted: list[list[int]] = []
        self.moves: list[tuple[Cause, QueueOffset]] = []
        self.move_failures: list[Exception] = []
        self.counted: list[tuple[str, int]] = []
        self.keep: Callable[[MessageQueue, list[StoredMessage]], list[StoredMessage]] = (
            lambda queue, messages: messages
        )
        self.tasks = Supervisor("test")
        self.broken = asyncio.Event()
        self.failures = SupervisedFailureLog(
            logging.getLogger("test"),
            fails="pull failed, retrying",
            works="pull succeeds again",
            name="queue",
        )

    def submit(self, queue: ProcessQueue, batch: FetchedBatch) -> None:
        self.submitted.append([message.queue_offset for message in batch.messages])

    async def stop(self, *, grace_s: float) -> None:
        """There is nothing to stop."""

    def pulled(self, topic: str, messages: int, cost_ms: float) -> None:
        self.counted.append((topic, messages))

    async def _is_moved(self, cause: Cause, response: PullResult) -> None:
        if self.move_failures:
            raise self.move_failures.pop()
        self.moves.append((cause, response.next_offset))
        self.fetched.drop()

    def begin(self, offset: int = 0, *, commit_with_pull: bool = True, **settings: Any) -> PullLoop:
        used = PushSettings(**{"retry_ms": 1, **settings})
        loop = PullLoop(
            self.fetched,
            QueueOffset(offset),
            requests=PullRequests(
                self.instance,
                "g",
                filter_of=lambda topic: self.wanted,
                settings=used,
                replica=self.replica,
                commit_offsets=commit_with_pull,
            ),
            conditions=PullConditions(
                Limits(used, spans=True), suspended=lambda: False, need_lock=False
            ),
            consumption=PullConsumption(
                keep=lambda queue, messages: self.keep(queue, messages),
                service=self,
                store=self.store,
                stats=self,
            ),
            failures=self.failures,
            on_moved=self._is_moved,
            on_broken=self.broken.set,
        )
        loop.start(self.tasks)
        return loop

    async def until_pulls(self, count: int) -> None:
        """Wait until so many pulls have come."""
        await self.broker.until(lambda: len(self.broker.pulls) >= count)

    @property
    def asked(self) -> list[int]:
        """The offsets that were asked for."""
        return [pull.queue_offset for pull in self.broker.pulls]


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    broker = GroupBroker()
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as instance:
        made = Consumer(broker, instance)
        yield made
        await made.tasks.cancel()


def script(consumer: Consumer, *answers: Response | Act) -> None:
    consumer.broker.pull_answers.extend(answers)


async def test_each_pull_begins_where_the_one_before_said(consumer: Consumer) -> None:
    script(consumer, found(3, 4), found(7), pulled(NO_MATCH, 50), pulled(NOTHING, 60))

    consumer.begin(3)
    await consumer.until_pulls(5)

    assert consumer.asked == [3, 5, 8, 50, 60]
    assert consumer.submitted == [[3, 4], [7]]
    assert consumer.counted == [("t", 2), ("t", 1)]
    assert consumer.fetched.last_offset == 7


async def test_messages_are_handed_over_while_they_are_received(consumer: Consumer) -> None:
    """The loop's task, which pulls again first, would do it an iteration later."""
    in_task: list[bool] = []

    def keep(queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        in_task.append(asyncio.current_task() is not None)
        return messages

    consumer.keep = keep
    responses = found(3, 4), found(5)
    for response in responses:
        response.remark = None  # as of our broker; others are read on the general path
    script(consumer, *responses)

    consumer.begin(3)
    await consumer.until_pulls(3)

    assert consumer.submitted == [[3, 4], [5]]
    assert in_task == [True, not IS_COMPILED], "the first pull connects"


async def test_a_response_out_of_order_is_reported_and_pulled_again(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    script(consumer, found(3), found(5, 4, next_offset=6), found(4, 5))

    consumer.begin(3)
    await consumer.until_pulls(4)

    assert consumer.asked == [3, 4, 4, 6]
    assert consumer.submitted == [[3], [4, 5]]
    assert [line for line in caplog.messages if "pull failed" in line] == [
        "pull failed, retrying queue=t@a:0 error=offset 4 follows 5: expected rising offsets"
    ]


async def test_a_pull_says_what_a_push_consumer_says(consumer: Consumer) -> None:
    consumer.wanted = Filter.tags("x")
    consumer.begin(3)
    await consumer.until_pulls(1)

    [pull] = consumer.broker.pulls
    assert (pull.consumer_group, pull.topic, pull.queue_id, pull.bname) == ("g", "t", 0, "a")
    assert pull.sys_flag == PullSysFlag.SUSPEND
    assert (pull.max_msg_nums, pull.max_msg_bytes) == (32, 256 * 1024)
    assert pull.suspend_timeout_millis == 15_000
    assert (pull.subscription, pull.expression_type) == (None, "TAG")
    assert pull.sub_version == consumer.wanted.version
    assert pull.commit_offset == 0


async def test_a_pull_asks_for_as_much_as_is_set(consumer: Consumer) -> None:
    consumer.begin(pull_batch=7, pull_bytes=1000, hold_ms=2_000)
    await consumer.until_pulls(1)

    [pull] = consumer.broker.pulls
    assert (pull.max_msg_nums, pull.max_msg_bytes) == (7, 1000)
    assert pull.suspend_timeout_millis == 2_000


async def test_pulls_keep_the_interval_that_is_set_after_messages_came(consumer: Consumer) -> None:
    clock = asyncio.get_running_loop().time
    script(consumer, pulled(NO_MATCH, 5), found(5), found(6))
    began = clock()

    consumer.begin(pull_interval_ms=300)
    await consumer.until_pulls(4)

    assert clock() - began == pytest.approx(0.6)
    assert consumer.asked == [0, 5, 6, 7]


async def test_a_pull_carries_the_filter_if_it_is_to(consumer: Consumer) -> None:
    consumer.wanted = Filter.tags("x||y")
    consumer.begin(send_filter=True)
    await consumer.until_pulls(1)

    [pull] = consumer.broker.pulls
    assert pull.sys_flag == PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    assert pull.subscription == "x||y"


@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST]
)
async def test_a_broker_that_lacks_the_subscription_is_sent_a_heartbeat_at_once(
    consumer: Consumer, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    script(consumer, Response(code, "the consumer's subscription not latest"), found(0))
    consumer.begin()
    await consumer.until_pulls(2)
    await consumer.broker.until(lambda: bool(consumer.broker.heartbeats))
    assert "not latest: if it goes on, another member of group" in caplog.text


@pytest.mark.parametrize(
    ("consumed", "commits", "said"), [(0, True, None), (5, True, 5), (5, False, None)]
)
async def test_a_pull_tells_how_far_the_queue_is_consumed(
    consumer: Consumer, consumed: int, commits: bool, said: int | None
) -> None:
    consumer.store.update(QUEUE, QueueOffset(consumed))
    consumer.begin(5, commit_with_pull=commits)
    await consumer.until_pulls(1)

    [pull] = consumer.broker.pulls
    assert bool(pull.sys_flag & PullSysFlag.COMMIT_OFFSET) is (said is not None)
    assert pull.commit_offset == (said or 0)


async def test_an_empty_queue_moves_on_past_what_did_not_match_but_never_back(
    consumer: Consumer,
) -> None:
    script(consumer, pulled(NO_MATCH, 50), pulled(NOTHING, 40))

    consumer.begin()
    await consumer.until_pulls(3)

    assert consumer.store.position(QUEUE) == 50


async def test_the_offset_waits_for_what_is_still_consumed(consumer: Consumer) -> None:
    script(consumer, found(0), pulled(NO_MATCH, 50))

    consumer.begin()
    await consumer.until_pulls(3)

    assert consumer.store.position(QUEUE) is None


async def test_messages_that_are_not_to_be_kept_count_as_consumed(consumer: Consumer) -> None:
    consumer.keep = lambda queue, messages: messages[:1] if len(messages) > 1 else []
    script(consumer, found(0), found(1, 2))

    consumer.begin()
    await consumer.until_pulls(3)

    assert consumer.submitted == [[1]]
    assert consumer.store.position(QUEUE) == 1


@pytest.mark.parametrize(
    ("offset", "cause"),
    [
        (7, Cause.BELOW_START),
        (40, Cause.MOVED),
        (90, Cause.MOVED),
        (91, Cause.BEYOND_END),
    ],
)
async def test_a_queue_is_left_if_the_broker_does_not_accept_the_offset(
    consumer: Consumer, offset: int, cause: Cause
) -> None:
    script(consumer, pulled(MOVED, 40, bounds=(40, 90)))

    consumer.begin(offset)
    await consumer.tasks.drain(5)

    assert consumer.moves == [(cause, 40)]
    assert consumer.asked == [offset]


async def test_an_offset_that_cannot_be_found_out_is_asked_for_again(consumer: Consumer) -> None:
    script(consumer, *[pulled(MOVED, 40, bounds=(40, 90))] * 2)
    consumer.move_failures.append(ClientError("no broker"))

    consumer.begin(7)
    await consumer.tasks.drain(5)

    assert consumer.asked == [7, 7]
    assert consumer.moves == [(Cause.BELOW_START, 40)]


async def test_a_queue_of_a_deleted_topic_commits_nothing_and_begins_anew_when_it_is_back(
    consumer: Consumer,
) -> None:
    script(consumer, Response(ResponseCode.TOPIC_NOT_EXIST, "gone"), found(8, 9))
    consumer.store.update(QUEUE, QueueOffset(7))

    consumer.begin(7)
    await consumer.until_pulls(2)
    await consumer.tasks.drain(5)

    assert consumer.moves == [(Cause.TOPIC_MISSED, 10)]
    assert consumer.submitted == []
    assert [pull.commit_offset for pull in consumer.broker.pulls] == [7, 0]


@pytest.mark.parametrize(
    "failure",
    [
        Response(ResponseCode.SYSTEM_ERROR, "broken"),
        Response(ResponseCode.SUBSCRIPTION_NOT_EXIST, "who are you"),
        Response(ResponseCode.FLOW_CONTROL, "later"),
        Act.HANG_UP,
        Response(FOUND),
        pulled(FOUND, 1, records=[b"no record"]),
    ],
    ids=["refused", "no subscription", "busy", "hung up", "no header", "no record"],
)
async def test_a_failed_pull_is_tried_again_at_the_same_offset(
    consumer: Consumer, failure: Response | Act, caplog: pytest.LogCaptureFixture
) -> None:
    script(consumer, failure, failure, found(7))

    with caplog.at_level(logging.INFO):
        consumer.begin(7)
        await consumer.until_pulls(4)

    assert consumer.asked == [7, 7, 7, 8]
    logged = [
        (record.levelname, record.message.partition(" queue=")[0]) for record in caplog.records
    ]
    assert logged.count(("WARNING", "pull failed, retrying")) == 1
    assert ("INFO", "pull succeeds again") in logged


@pytest.mark.parametrize(
    ("code", "least_s", "most_s"),
    [
        (ResponseCode.FLOW_CONTROL, FLOW_CONTROL_S, FLOW_CONTROL_S * (1 + JITTER)),
        (ResponseCode.SYSTEM_ERROR, 0.3, 0.3 * (1 + JITTER)),
    ],
)
async def test_the_pause_after_a_refusal_depends_on_it(
    consumer: Consumer, code: int, least_s: float, most_s: float
) -> None:
    script(consumer, Response(code, "no"))
    loop = asyncio.get_running_loop()

    consumer.begin(retry_ms=300)
    await consumer.until_pulls(1)
    began = loop.time()
    await consumer.until_pulls(2)

    assert least_s <= loop.time() - began + 1e-6 <= most_s + 2e-6


async def test_a_broker_that_never_holds_a_pull_is_not_asked_without_a_pause(
    consumer: Consumer,
) -> None:
    script(consumer, *[pulled(NOTHING, 0)] * 200)

    consumer.begin(0)
    await asyncio.sleep(0.3)

    assert 3 <= len(consumer.broker.pulls) <= 8


async def test_an_advised_replica_is_asked_next_and_the_master_again_when_it_fails() -> None:
    master, replica = GroupBroker(), GroupBroker()
    async with ScriptedCluster([master, replica]) as cluster:
        told = route({"a": master.address}, queues=1)
        told.broker_datas[0].broker_addrs[1] = replica.address
        cluster.name_server.routes["t"] = told
        async with ClientCore(cluster.address) as instance:
            consumer = Consumer(master, instance)
            consumer.store.update(QUEUE, QueueOffset(1))
            master.pull_answers.append(found(0, replica=1))
            replica.pull_answers.extend([found(1, replica=1), Act.HANG_UP])

            consumer.begin(0)
            await consumer.until_pulls(2)
            await consumer.tasks.cancel()

    assert [pull.queue_offset for pull in replica.pulls] == [1, 2]
    assert [pull.queue_offset for pull in master.pulls] == [0, 2]
    commit = PullSysFlag.COMMIT_OFFSET
    assert not any(pull.sys_flag & commit for pull in replica.pulls)
    assert all(pull.sys_flag & commit for pull in master.pulls)


async def test_another_replica_is_asked_while_the_broker_has_no_master() -> None:
    replica = GroupBroker()
    async with ScriptedCluster([replica]) as cluster:
        told = route({"a": "127.0.0.1:1"}, queues=1)
        told.broker_datas[0].broker_addrs = {2: replica.address}
        cluster.name_server.routes["t"] = told
        async with ClientCore(cluster.address) as instance:
            consumer = Consumer(replica, instance)
            consumer.begin(0)
            await consumer.until_pulls(1)
            await consumer.tasks.cancel()

    assert consumer.asked == [0]


async def test_the_route_is_asked_for_again_while_a_broker_is_away() -> None:
    moved = GroupBroker()
    async with ScriptedCluster([moved]) as cluster:
        cluster.name_server.routes["t"] = route({"a": "127.0.0.1:1"}, queues=1)
        async with ClientCore(cluster.address) as instance:
            await instance.routes.find("t")
            cluster.name_server.routes["t"] = route({"a": moved.address}, queues=1)
            consumer = Consumer(moved, instance)
            consumer.begin(0)
            await consumer.until_pulls(1)
            await consumer.tasks.cancel()

    assert consumer.asked == [0]


async def test_nothing_is_pulled_of_a_topic_that_is_not_subscribed(consumer: Consumer) -> None:
    consumer.wanted = None
    loop = consumer.begin(0)
    await asyncio.sleep(0.02)
    assert consumer.broker.pulls == []

    consumer.wanted = Filter.tags("*")
    loop.wake()
    await consumer.until_pulls(1)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_messages_that_a_filter_hook_fails_on_are_pulled_again(
    consumer: Consumer, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[list[int]] = []

    def fail(queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        if len(raised) < 2:
            raised.append([message.queue_offset for message in messages])
            raise error
        return messages

    consumer.keep = fail
    script(consumer, found(0, 1), found(0, 1), found(0, 1))

    consumer.begin(0)
    await consumer.until_pulls(4)

    assert consumer.asked == [0, 0, 0, 2]
    assert raised == [[0, 1], [0, 1]]
    assert consumer.submitted == [[0, 1]]
    assert sum("pull failed, retrying" in message for message in caplog.messages) == 1


async def test_a_queue_is_dropped_if_its_messages_cannot_be_handed_over(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the process queue: a second pull would hand them out twice, or out of order."""

    def fail(queue: ProcessQueue, batch: FetchedBatch) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(consumer, "submit", fail)
    script(consumer, found(0), found(1))

    loop = consumer.begin(0)
    await asyncio.wait_for(consumer.broken.wait(), 60)
    await consumer.tasks.drain(60)

    assert consumer.fetched.dropped
    assert loop.ended
    assert consumer.asked == [0]


async def test_the_pause_doubles_up_to_a_bound(consumer: Consumer) -> None:
    clock = asyncio.get_running_loop().time
    script(consumer, *[Response(ResponseCode.SYSTEM_ERROR, "no")] * 7)
    times: list[float] = []

    consumer.begin(retry_ms=1_000)
    for count in range(1, 9):
        await consumer.until_pulls(count)
        times.append(clock())

    pauses = [after - before for before, after in pairwise(times)]
    for pause, least in zip(pauses, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert least <= pause + 1e-6 <= least * (1 + JITTER) + 2e-6


@pytest.mark.parametrize("error", [ValueError("gone"), asyncio.CancelledError("gone")], ids=repr)
async def test_pulls_go_on_after_a_custom_store_raised(
    consumer: Consumer, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Store(MemoryOffsets):
        fails = 2

        def position(self, queue: MessageQueue) -> QueueOffset | None:
            self.fails -= 1
            if self.fails >= 0:
                raise error
            return super().position(queue)

    consumer.store = Store()
    script(consumer, found(7))

    consumer.begin(7)
    await consumer.until_pulls(2)

    assert consumer.asked == [7, 8]
    assert sum("pull failed, retrying" in message for message in caplog.messages) == 1


async def test_a_queue_that_waits_long_for_its_handlers_says_so_once(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FetchLoop, "_recheck_s", 0.001)
    script(consumer, found(0, 1))

    consumer.begin(0, queue_messages_max=1)
    await until(lambda: "pull paused" in caplog.text, timeout=5)
    await asyncio.sleep(0.05)

    told = [record.message for record in caplog.records if "paused" in record.message]
    assert told == [
        "pull paused: a buffer limit is reached queue=t@a:0 group=g"
        " reason='2 messages, more than 1'"
    ]


async def test_a_queue_is_pulled_again_if_its_filter_changed_during_the_pull(
    consumer: Consumer,
) -> None:
    """The broker may have applied the new filter, whose messages the old one would drop."""
    consumer.wanted = Filter.tags("paid")
    script(consumer, *[pulled(FOUND, 4, records=[record(3, "sent")])] * 2)
    pull = consumer.broker.handlers[RequestCode.PULL_MESSAGE]

    def change_and_pull(request: Request) -> Any:
        consumer.wanted = Filter.tags("sent")
        return pull(request)

    consumer.broker.handlers[RequestCode.PULL_MESSAGE] = change_and_pull
    consumer.begin(3)
    await consumer.until_pulls(3)

    assert consumer.asked == [3, 3, 4]
    assert consumer.submitted == [[3]]
