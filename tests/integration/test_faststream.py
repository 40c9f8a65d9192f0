"""`cometmq.faststream` on a server: nothing that a handler did not finish is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
import sqlalchemy
from fastapi import Depends as FastAPIDepends
from fastapi import FastAPI
from faststream import Depends
from faststream.exceptions import (
    AckMessage,
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)
from faststream.middlewares import AckPolicy
from faststream_fastapi import FastStreamAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from cometmq.client import (
    AdminClient,
    LocalState,
    Producer,
    PullConsumer,
    ReceiptExpiredError,
    SimpleConsumer,
    StartFrom,
)
from cometmq.client.idempotent.sqlalchemy import AsyncSqlTransaction, SqlAlchemyMarks
from cometmq.faststream import (
    ConstantRetry,
    NoRetry,
    RocketBroker,
    RocketBrokerContext,
    RocketMessage,
    RocketMessageContext,
    RocketResponse,
)
from cometmq.testing import ThreadedCluster

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    settings = {"recallMessageEnable": "true", "transactionTimeOut": "100"}
    settings |= {"transactionCheckInterval": "100"}
    with ThreadedCluster(settings=settings) as made:
        yield made


@pytest.fixture
async def broker(cluster: ThreadedCluster) -> AsyncIterator[RocketBroker]:
    made = new_broker(cluster)
    yield made
    await made.stop()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"  # short: a group and its retry topic contain it


def new_broker(cluster: ThreadedCluster, **options: Any) -> RocketBroker:
    return RocketBroker(cluster, group="shop", logger=None, **options)


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, LIMIT_S)


async def dead_letter(cluster: ThreadedCluster, group: str) -> Any:
    """Return the next dead letter of a group."""
    async with PullConsumer(
        cluster.name_servers, group="reader", start_from=StartFrom.FIRST
    ) as reader:
        await reader.subscribe(f"%DLQ%{group}")
        return await soon(anext(reader))


class Order(BaseModel):
    id: str


@pytest.mark.parametrize("options", [{}, {"pop": True}, {"ordered": True}], ids=str)
async def test_a_failed_message_comes_again_and_then_is_a_dead_letter(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str, options: dict[str, Any]
) -> None:
    attempts: list[int] = []
    retry = ConstantRetry(0.01 if options.get("ordered") else 1, attempts_max=2)

    @broker.subscriber(topic, group=topic, retry=retry, **options)
    async def bill(order: Order, message: RocketMessageContext) -> None:
        attempts.append(message.attempt)
        raise ValueError(f"no account for {order.id}")

    await broker.start()
    await broker.publish(Order(id="42"), topic, tags="paid", key="42")
    letter = await dead_letter(cluster, topic)
    assert b"42" in letter.body
    assert "no account for 42" in letter.properties["CONSUME_ERROR"]
    assert attempts == [1, 2]


@pytest.mark.parametrize("options", [{}, {"pop": True}], ids=str)
async def test_exceptions_settle_a_message(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str, options: dict[str, Any]
) -> None:
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @broker.subscriber(topic, group=topic, **options)
    async def handle(body: str, message: RocketMessageContext) -> None:
        seen.put_nowait((body, message.attempt))
        if body == "ack":
            raise AckMessage
        if body == "reject":
            raise RejectMessage(reason="not ours")
        if message.attempt == 1:
            raise NackMessage(delay=1)

    await broker.start()
    for body in ("ack", "reject", "nack"):
        await broker.publish(body, topic)
    found = [await soon(seen.get()) for _ in range(4)]
    assert sorted(found) == [("ack", 1), ("nack", 1), ("nack", 2), ("reject", 1)]
    letter = await dead_letter(cluster, topic)
    assert (letter.body, seen.empty()) == (b"reject", True)
    assert "not ours" in letter.properties["CONSUME_ERROR"]


@pytest.mark.parametrize("options", [{}, {"pop": True, "invisible": 2}], ids=str)
async def test_a_message_whose_handler_was_cancelled_is_redelivered(
    cluster: ThreadedCluster, topic: str, options: dict[str, Any]
) -> None:
    began, done = asyncio.Event(), asyncio.Event()
    is_first = True

    def declare(broker: RocketBroker) -> None:
        @broker.subscriber(topic, group=topic, **options)
        async def handle(body: str) -> None:
            began.set()
            if is_first:
                await asyncio.Event().wait()
            done.set()

    first = new_broker(cluster, graceful_timeout=0.05)
    declare(first)
    await first.start()
    await first.publish("work", topic)
    await soon(began.wait())
    await soon(first.stop())
    is_first = False
    second = new_broker(cluster)
    declare(second)
    await second.start()
    await soon(done.wait())
    await second.stop()


async def test_a_handler_that_stops_its_subscriber_does_not_wait_for_itself(
    broker: RocketBroker, topic: str
) -> None:
    stopped = asyncio.Event()

    @broker.subscriber(topic, group=topic)
    async def handle(body: str) -> None:
        stopped.set()
        raise StopConsume

    await broker.start()
    await broker.publish("last", topic)
    await soon(stopped.wait())
    await soon(broker.stop())
    assert not broker.subscribers[0].running


@pytest.mark.parametrize("pop", [False, True])
async def test_a_handler_that_stops_its_broker_does_not_cut_off_others(
    cluster: ThreadedCluster, topic: str, pop: bool
) -> None:
    ended: list[str] = []
    began, go_on, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    first, second = new_broker(cluster, topic_queues=1), new_broker(cluster)

    @first.subscriber(topic, group=topic, pop=pop)
    async def handle(body: str) -> None:
        if body == "stop":
            await began.wait()
            await first.stop()
            go_on.set()
        began.set()
        await go_on.wait()
        ended.append(body)

    @second.subscriber(topic, group=topic, pop=pop)
    async def again(body: str) -> None:
        ended.append(body)
        if body == "last":
            last.set()

    await first.start()
    await first.publish("other", topic)
    await first.publish("stop", topic)
    await soon(go_on.wait())
    assert first._disconnecting is not None
    await soon(first._disconnecting)
    await second.start()
    await second.publish("last", topic)
    await soon(last.wait())
    assert sorted(ended) == ["last", "other", "stop"]
    await second.stop()


@pytest.mark.parametrize("pop", [False, True])
async def test_handlers_of_one_subscriber_may_have_parsers_of_their_own(
    broker: RocketBroker, topic: str, pop: bool
) -> None:
    seen: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()
    subscriber = broker.subscriber(topic, group=topic, pop=pop, retry=ConstantRetry(1))

    async def changed(raw: Any, original: Any) -> RocketMessage:
        message: RocketMessage = await original(raw)
        message.headers["parser"] = "changed"
        return message

    def own(raw: Any) -> RocketMessage:
        return RocketMessage(raw_message=raw, body=raw.body, headers={"parser": "own"})

    async def handle(body: str, message: RocketMessageContext) -> None:
        seen.put_nowait((body, message.headers["parser"], message.attempt))
        if message.attempt == 1:
            raise ValueError

    subscriber(filter=lambda message: message.headers.get("kind") == "a", parser=changed)(handle)

    @subscriber(parser=own)
    async def other(body: str, message: RocketMessageContext) -> None:
        await handle(body, message)

    await broker.start()
    await broker.publish("x", topic, headers={"kind": "a"})
    await broker.publish("y", topic)
    found = sorted([await soon(seen.get()) for _ in range(4)])
    assert found == [("x", "changed", n) for n in (1, 2)] + [("y", "own", n) for n in (1, 2)]


@pytest.mark.parametrize("pop", [False, True])
async def test_manual_acknowledgements_may_come_after_the_handler(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str, pop: bool
) -> None:
    open_messages: asyncio.Queue[RocketMessage] = asyncio.Queue()

    @broker.subscriber(topic, group=topic, pop=pop, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: RocketMessageContext) -> None:
        open_messages.put_nowait(message)

    await broker.start()
    await broker.publish("a", topic)
    await broker.publish("b", topic)
    messages = [await soon(open_messages.get()) for _ in range(2)]
    by_body = {await message.decode(): message for message in messages}
    await by_body["a"].ack()
    await by_body["a"].nack()  # only the first call counts
    await by_body["b"].nack(delay=1)
    again = await soon(open_messages.get())
    assert (await again.decode(), again.attempt) == ("b", 2)
    await again.reject("seen enough")
    assert (await dead_letter(cluster, topic)).body == b"b"


async def test_a_popped_message_stays_invisible_while_its_handler_runs(
    broker: RocketBroker, topic: str
) -> None:
    attempts: list[int] = []
    done = asyncio.Event()

    @broker.subscriber(topic, group=topic, pop=True, invisible=1)
    async def handle(body: str, message: RocketMessageContext) -> None:
        attempts.append(message.attempt)
        await message.extend(1)
        await asyncio.sleep(2.5)  # longer than its invisible time, which is what is tested
        done.set()

    await broker.start()
    await broker.publish("long", topic)
    await soon(done.wait())
    assert attempts == [1]


async def test_messages_with_one_key_are_handled_in_order(broker: RocketBroker, topic: str) -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}
    done = asyncio.Event()

    @broker.subscriber(topic, group=topic, ordered=True)
    async def handle(number: int, message: RocketMessageContext) -> None:
        if number == 3 and message.attempt == 1 and 3 not in failed:
            failed.append(3)
            raise NackMessage(delay=0.01)
        seen[message.tags or ""].append(number)
        if sum(map(len, seen.values())) == 20:
            done.set()

    failed: list[int] = []
    await broker.start()
    for number in range(10):
        for key in seen:
            await broker.publish(number, topic, key=key, tags=key)
    await soon(done.wait())
    assert seen == {"a": [*range(10)], "b": [*range(10)]}


async def test_batches(broker: RocketBroker, topic: str) -> None:
    seen: list[int] = []
    done = asyncio.Event()

    @broker.subscriber(topic, group=topic, batch=True, max_records=10, max_workers=1)
    async def handle(numbers: list[int]) -> None:
        assert len(numbers) <= 10
        seen.extend(numbers)
        if len(seen) == 50:
            done.set()

    await broker.start()
    receipt = await broker.publish_batch(*range(50), topic=topic)
    assert receipt is not None
    await soon(done.wait())
    assert sorted(seen) == [*range(50)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_undecodable_members_of_a_batch_are_dead_letters_alone(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str, ordered: bool
) -> None:
    seen: list[str] = []
    failed: list[str] = []
    done = asyncio.Event()

    @broker.subscriber(topic, group=topic, batch=True, ordered=ordered, retry=ConstantRetry(1))
    async def handle(orders: list[Order]) -> None:
        if [order.id for order in orders] == ["3"] and not failed:
            failed.append("3")
            raise ConnectionError("once")
        seen.extend(order.id for order in orders)
        if set(seen) == {"1", "2", "3", "4"}:
            done.set()

    await broker.start()
    bodies = [{"id": "1"}, {"id": "2"}, {"wrong": 1}, {"id": "3"}, {"id": "4"}]
    await broker.publish_batch(*bodies, topic=topic)
    letter = await dead_letter(cluster, topic)
    assert letter.body == b'{"wrong":1}'
    await soon(done.wait())
    assert failed == ["3"]
    assert ordered or sorted(seen) == ["1", "2", "3", "4"]


async def test_every_process_gets_a_broadcast(
    cluster: ThreadedCluster, topic: str, tmp_path: Any
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    def declare(broker: RocketBroker, name: str, settings: Any) -> None:
        @broker.subscriber(topic, group=topic, broadcast=True, settings=settings)
        async def handle(body: str) -> None:
            seen.put_nowait(name)

    brokers = []
    for name in ("one", "two"):
        broker = new_broker(cluster, client={"instance_name": name})
        settings: Any = {"offset_folder": str(tmp_path)}

        declare(broker, name, settings)
        await broker.start()
        brokers.append(broker)
    await brokers[0].publish("hello", topic)
    assert {await soon(seen.get()) for _ in brokers} == {"one", "two"}
    for broker in brokers:
        await broker.stop()


async def test_requests_of_both_kinds(broker: RocketBroker, topic: str) -> None:
    answers: asyncio.Queue[tuple[Any, str]] = asyncio.Queue()

    @broker.subscriber(topic, group=topic)
    async def quote(currency: str) -> RocketResponse:
        return RocketResponse({currency: 2}, headers={"source": "test"})

    @broker.subscriber(f"{topic}-answers", group=f"{topic}-answers")
    async def answer(body: dict[str, int], message: RocketMessageContext) -> None:
        answers.put_nowait((body, message.correlation_id))

    await broker.start()
    reply = await broker.request("EUR", topic, timeout=LIMIT_S, correlation_id="mine")
    assert (await reply.decode(), reply.correlation_id) == ({"EUR": 2}, "mine")
    assert reply.headers["source"] == "test"
    await broker.publish("USD", topic, reply_to=f"{topic}-answers", correlation_id="yours")
    assert await soon(answers.get()) == ({"USD": 2}, "yours")
    with pytest.raises(TimeoutError):
        await broker.request("EUR", f"{topic}-answers", timeout=1e-24)


async def test_single_messages_without_a_handler(broker: RocketBroker, topic: str) -> None:
    subscriber = broker.subscriber(topic, group=topic)
    await broker.start()
    await broker.publish({"n": 1}, topic)
    message = await soon(subscriber.get_one(timeout=LIMIT_S))
    assert message is not None
    assert await message.decode() == {"n": 1}
    assert await subscriber.get_one(timeout=0.05) is None
    await broker.publish({"n": 2}, topic)
    async for each in subscriber:
        assert await each.decode() == {"n": 2}
        break
    await broker.stop()
    await broker.start()
    last = await soon(subscriber.get_one(timeout=LIMIT_S))  # it was not consumed
    assert last is not None
    assert await last.decode() == {"n": 2}


async def test_a_delayed_message_arrives_unless_it_is_recalled(
    broker: RocketBroker, topic: str
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic, group=topic)
    async def remind(body: str) -> None:
        seen.put_nowait(body)

    await broker.start()
    recalled = await broker.publish("recalled", topic, delay=2)
    stored = await broker.publish("recalled", topic, delay=2)
    await broker.publish("kept", topic, delay=2)
    await broker.recall(recalled)
    await broker.recall(stored.recall_handle or "", topic)
    assert await soon(seen.get()) == "kept"
    assert seen.empty()


async def test_a_message_follows_its_local_transaction(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    placed: set[str] = set()

    @broker.subscriber(topic, group=topic)
    async def bill(order: Order, message: RocketMessageContext) -> None:
        assert message.keys == [order.id]
        seen.put_nowait(order.id)

    @broker.transaction(topic, group=f"{topic}-shop")
    async def place(order: Order, br: RocketBrokerContext) -> bool | None:
        assert br is broker
        if order.id == "no":
            return False
        placed.add(order.id)
        if order.id == "lost":
            raise ConnectionError("the process died")
        return True

    @place.check
    async def is_placed(order: Order) -> bool:
        return order.id in placed

    await broker.start()
    assert (await place(Order(id="yes"), keys=["yes"])).state is LocalState.COMMIT
    assert await soon(seen.get()) == "yes"
    assert (await place(Order(id="no"), keys=["no"])).state is LocalState.ROLLBACK
    with pytest.raises(ConnectionError):
        await place(Order(id="lost"), keys=["lost"])
    assert await soon(seen.get()) == "lost"  # by the check
    assert seen.empty()


async def test_rows_and_mark_are_in_one_transaction_of_the_session_that_the_handler_uses(
    broker: RocketBroker, topic: str, tmp_path: Path
) -> None:
    """A failed handler rolls both back; what is delivered twice is booked once."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    bookings = sqlalchemy.Table(
        "bookings", sqlalchemy.MetaData(), sqlalchemy.Column("id", sqlalchemy.String)
    )
    async with engine.begin() as connection:
        await connection.run_sync(SqlAlchemyMarks.create_table)
        await connection.run_sync(bookings.create)
    calls: list[tuple[str, int]] = []
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as opened, opened.begin():
            yield opened

    async def once(message: RocketMessageContext, used: Annotated[Any, Depends(session)]) -> None:
        seen.put_nowait(message.attempt)
        transaction = AsyncSqlTransaction(await used.connection())
        if not await transaction.mark("billing", message.keys[0]):
            raise AckMessage

    @broker.subscriber(topic, group=topic, retry=ConstantRetry(1), dependencies=[Depends(once)])
    async def book(
        order: Order, message: RocketMessageContext, used: Annotated[Any, Depends(session)]
    ) -> None:
        calls.append((order.id, message.attempt))
        await used.execute(sqlalchemy.insert(bookings).values(id=order.id))
        if message.attempt == 1:
            raise ConnectionError("after the insert, before the commit")

    await broker.start()
    await broker.publish(Order(id="42"), topic, keys=["order-42"])
    assert [await soon(seen.get()) for _ in range(2)] == [1, 2]
    await broker.publish(Order(id="42"), topic, keys=["order-42"])  # the producer repeats it
    assert await soon(seen.get()) == 1
    await broker.stop()
    async with engine.connect() as connection:
        rows = (await connection.execute(sqlalchemy.select(bookings.c.id))).scalars().all()
    assert (rows, calls) == (["42"], [("42", 1), ("42", 2)])
    await engine.dispose()


async def test_undecodable_payloads_are_dead_letters_with_the_reason(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str
) -> None:
    @broker.subscriber(topic, group=topic)
    async def bill(order: Order) -> None: ...

    await broker.start()
    await broker.publish(b"{", topic, headers={"content-type": "application/json"})
    letter = await dead_letter(cluster, topic)
    assert f"topic {topic} cannot be decoded" in letter.properties["CONSUME_ERROR"]


async def test_no_retry_and_acknowledged_errors(
    broker: RocketBroker, cluster: ThreadedCluster, topic: str
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(topic, group=f"{topic}-ack", ack_policy=AckPolicy.ACK)
    async def careless(body: str) -> None:
        seen.put_nowait(body)
        raise ValueError

    @broker.subscriber(topic, group=f"{topic}-once", retry=NoRetry())
    async def once(body: str) -> None:
        raise ValueError

    await broker.start()
    await broker.publish("a", topic)
    assert (await dead_letter(cluster, f"{topic}-once")).body == b"a"
    await broker.publish("b", topic)
    assert [await soon(seen.get()) for _ in range(2)] == ["a", "b"]


async def test_a_group_with_two_subscribers_is_refused(broker: RocketBroker, topic: str) -> None:
    for tag in ("a", "b"):

        @broker.subscriber(topic, group=topic, tags=tag)
        async def handle(body: str) -> None: ...

    with pytest.raises(SetupError, match=f"several subscribers are in the group {topic}"):
        await broker.start()


async def test_a_broker_can_start_again(cluster: ThreadedCluster, topic: str) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    broker = new_broker(cluster)

    @broker.subscriber(topic, group=topic)
    async def handle(body: str) -> None:
        seen.put_nowait(body)

    assert not await broker.ping()
    await broker.stop()
    for body in ("first", "second"):
        await broker.start()
        await broker.start()  # of what has started, nothing starts again
        assert await broker.ping()
        await broker.publish(body, topic)
        assert await soon(seen.get()) == body
        await broker.stop()
        with pytest.raises(IncorrectState, match="not connected"):
            await broker.publish(body, topic)
    assert not await broker.ping()


async def test_a_plain_function_runs_in_a_thread(broker: RocketBroker, topic: str) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    finish: Callable[[], object] = done.set

    @broker.subscriber(topic, group=topic)
    def handle(body: str) -> None:
        loop.call_soon_threadsafe(finish)

    await broker.start()
    await broker.publish("a", topic)
    await soon(done.wait())


async def test_a_received_message_is_dead_lettered_with_the_reason(
    cluster: ThreadedCluster, topic: str
) -> None:
    async with (
        Producer(cluster.name_servers, group=topic) as producer,
        AdminClient(cluster.name_servers) as admin,
        SimpleConsumer(
            cluster.name_servers, group=topic, topic=topic, start_from=StartFrom.FIRST
        ) as consumer,
    ):
        await admin.create_topic(topic)
        await producer.send(topic, b"42")
        await consumer.ready()
        (message,) = await soon(consumer.receive(wait=LIMIT_S))
        await consumer.dead_letter(message, LookupError("no such customer"))
        assert consumer.in_flight == 0
        with pytest.raises(ReceiptExpiredError):
            await consumer.dead_letter(message)
    letter = await dead_letter(cluster, topic)
    assert letter.properties["CONSUME_ERROR"] == "builtins.LookupError: no such customer"


def user() -> str:
    return "Ann"


async def test_fastapi_serves_the_handlers_with_its_dependencies(
    broker: RocketBroker, topic: str
) -> None:
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @broker.subscriber(topic, group=topic)
    async def handle(order: Order, who: Annotated[str, FastAPIDepends(user)]) -> None:
        seen.put_nowait((order.id, who))

    application = FastStreamAPI(broker, application=FastAPI())
    messages: asyncio.Queue[Any] = asyncio.Queue()
    started, ended = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        (started if message["type"].startswith("lifespan.startup") else ended).set()

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    messages.put_nowait({"type": "lifespan.startup"})
    serving = asyncio.create_task(application(scope, messages.get, send))
    await soon(started.wait())
    await broker.publish(Order(id="42"), topic)
    assert await soon(seen.get()) == ("42", "Ann")
    messages.put_nowait({"type": "lifespan.shutdown"})
    await soon(serving)
    assert ended.is_set()


RELOADED = """
from faststream import FastStream
from cometmq.faststream import RocketBroker

broker = RocketBroker("{name_servers}", group="{topic}", graceful_timeout=1.0)
app = FastStream(broker)

@broker.subscriber("{topic}")
@broker.publisher("{topic}-done")
async def work(number: int) -> str:
    return "{version}"
"""


async def test_a_changed_file_reloads_the_service(
    cluster: ThreadedCluster, broker: RocketBroker, topic: str, tmp_path: Path
) -> None:
    def write(version: str) -> None:
        names = {"name_servers": cluster.name_servers, "topic": topic, "version": version}
        (tmp_path / "service.py").write_text(RELOADED.format(**names))

    done = broker.subscriber(f"{topic}-done", group=f"{topic}-reader")
    await broker.start()
    write("old")
    command = [sys.executable, "-m", "faststream", "run", "service:app", "--reload"]
    with (tmp_path / "log").open("wb") as log:
        service = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(3 * LIMIT_S):
            for version in ("old", "new"):
                answer = ""
                while answer != version:
                    await broker.publish(1, topic)
                    message = await done.get_one(timeout=LIMIT_S)
                    assert message is not None, (tmp_path / "log").read_text()[-2_000:]
                    answer = await message.decode()
                write("new")
    finally:
        service.terminate()
        await soon(service.wait())


WORKER = """
import os, signal
from faststream import FastStream
from cometmq.faststream import RocketBroker

broker = RocketBroker("{name_servers}", group="{topic}", graceful_timeout=1.0)
app = FastStream(broker)

@broker.subscriber("{topic}", pop=True, invisible=1)
@broker.publisher("{topic}-done")
async def work(number: int) -> dict[str, int]:
    if number == 7 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"number": number, "process": os.getpid()}}
"""


async def test_a_killed_worker_loses_nothing(
    cluster: ThreadedCluster, broker: RocketBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(
        WORKER.format(name_servers=cluster.name_servers, topic=topic)
    )
    done = broker.subscriber(f"{topic}-done", group=f"{topic}-reader")
    await broker.start()
    await broker._connection.ensure_topic(topic)  # type: ignore[union-attr]
    for number in range(20):
        await broker.publish(number, topic)
    command = [sys.executable, "-m", "faststream", "run", "service:app", "--workers", "2"]
    log = (tmp_path / "log").open("wb")
    workers = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        found: set[int] = set()
        while len(found) < 20:
            message = await soon(done.get_one(timeout=LIMIT_S))
            assert message is not None, (tmp_path / "log").read_text()[-2_000:]
            found.add((await message.decode())["number"])
        assert (tmp_path / "killed").exists()
    finally:
        workers.terminate()
        await soon(workers.wait())
        log.close()
