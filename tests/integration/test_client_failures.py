"""The client with servers that refuse, are silent, close connections or are not there."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cometmq.client import (
    ClientClosedError,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
    SendFailedError,
    SendStatus,
    SendTimeoutError,
    TopicNotFoundError,
    blocking,
)
from cometmq.client._connection.name_servers import NameServers
from cometmq.client.errors import NameServerError, QueueNotFoundError
from cometmq.client.settings import ClientSettings, ProducerSettings
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.remoting import RemotingClient
from cometmq.remoting.ports import LOOPBACK, free_port
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, route

MESSAGE = Message(topic="t", body=b"x")


def producer(cluster: ScriptedCluster, *, retries: int = 2) -> Producer:
    """A producer that leaves refusals of a whole connection to its own retries."""
    return Producer(
        cluster.address,
        group="g",
        settings=ProducerSettings(retries=retries),
        reconnect_for_go_away=False,
    )


def dead_address() -> str:
    """An address that nobody listens on."""
    return f"{LOOPBACK}:{free_port()}"


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY])
async def test_another_broker_is_tried_when_one_refuses_for_now(code: int) -> None:
    brokers = [ScriptedBroker("a", code), ScriptedBroker("b", code)]
    async with ScriptedCluster(brokers) as cluster, producer(cluster, retries=1) as sending:
        with pytest.raises(ResponseError):
            await sending.send(MESSAGE)
        assert sorted(cluster.sends) == ["a", "b"]

        receipt = await sending.send(MESSAGE)
        assert receipt.status is SendStatus.SEND_OK


async def test_a_refusal_for_good_is_not_tried_again() -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a", ResponseCode.MESSAGE_ILLEGAL)]) as cluster,
        producer(cluster) as sending,
    ):
        with pytest.raises(ResponseError, match="as scripted") as refusal:
            await sending.send(MESSAGE)

        assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert cluster.sends == ["a"]


async def test_the_last_refusal_is_raised_when_tries_run_out() -> None:
    """An earlier try that may have stored the message is told of in the error's notes."""
    busy = ResponseCode.SYSTEM_BUSY
    async with (
        ScriptedCluster([ScriptedBroker("a", Act.HANG_UP, busy, busy)]) as cluster,
        producer(cluster) as sending,
    ):
        with pytest.raises(ResponseError) as refusal:
            await sending.send(MESSAGE)

        assert len(cluster.sends) == 3
        notes = refusal.value.__notes__
        assert "may be stored" in notes[0]
        assert "not stored" in notes[1]


@pytest.mark.parametrize("how", [{"queue": MessageQueue("t", "a", 1)}, {"order_key": "k"}])
async def test_a_chosen_queue_is_tried_once(how: dict[str, object]) -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a", ResponseCode.SYSTEM_BUSY)]) as cluster,
        producer(cluster) as sending,
    ):
        with pytest.raises(ResponseError):
            await sending.send(MESSAGE, **how)

        assert cluster.sends == ["a"]


async def test_a_message_not_yet_on_disk_is_stored_with_a_status_that_says_so() -> None:
    script = ScriptedBroker("a", ResponseCode.FLUSH_DISK_TIMEOUT)
    async with ScriptedCluster([script]) as cluster, producer(cluster) as sending:
        receipt = await sending.send(MESSAGE)

        assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert (receipt.queue.broker_name, receipt.queue_offset) == ("a", 7)
        assert cluster.sends == ["a"]


# --- silence ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("virtual_time")
async def test_a_silent_broker_ends_the_send_in_time_with_the_message_perhaps_stored() -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a", Act.STAY_SILENT)]) as cluster,
        producer(cluster) as sending,
    ):
        begun = asyncio.get_running_loop().time()
        with pytest.raises(SendTimeoutError) as failure:
            await sending.send(MESSAGE, timeout=0.2)

        assert asyncio.get_running_loop().time() - begun == pytest.approx(0.2)
        assert failure.value.maybe_stored
        assert [attempt.broker_name for attempt in failure.value.attempts] == ["a"]


async def test_a_broker_that_hangs_up_is_tried_again() -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a", Act.HANG_UP, Act.HANG_UP)]) as cluster,
        producer(cluster) as sending,
    ):
        receipt = await sending.send(MESSAGE)

        assert receipt.status is SendStatus.SEND_OK
        assert len(cluster.sends) == 3


async def test_a_broker_that_always_hangs_up_leaves_the_message_perhaps_stored() -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a", *[Act.HANG_UP] * 3)]) as cluster,
        producer(cluster) as sending,
    ):
        with pytest.raises(SendFailedError, match="a: ConnectionLostError") as failure:
            await sending.send(MESSAGE)

        assert failure.value.maybe_stored
        assert len(failure.value.attempts) == 3


async def test_a_broker_that_is_not_there_leaves_the_message_surely_not_stored() -> None:
    async with ScriptedCluster([]) as cluster, producer(cluster) as sending:
        cluster.name_server.routes["t"] = route({"gone": dead_address()})

        with pytest.raises(SendTimeoutError) as failure:
            await sending.send(MESSAGE, timeout=0.2)

        assert not failure.value.maybe_stored
        assert [attempt.broker_name for attempt in failure.value.attempts] == ["gone"]


async def test_a_living_broker_takes_over_from_a_dead_one() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        addresses = {"a": cluster.brokers[0].address, "gone": dead_address()}
        cluster.name_server.routes["t"] = route(addresses)

        receipts = [await sending.send(MESSAGE) for _ in range(8)]

        assert {receipt.queue.broker_name for receipt in receipts} == {"a"}


async def test_a_cancelled_send_stops_waiting_and_the_producer_goes_on() -> None:
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, producer(cluster) as sending:
        waiting = asyncio.create_task(sending.send(MESSAGE))
        await broker.until(lambda: len(broker.sends) == 1)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert (await sending.send(MESSAGE)).status is SendStatus.SEND_OK


# --- routes -------------------------------------------------------------------------------------


async def test_many_sends_at_once_ask_for_the_route_once() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        await asyncio.gather(*(sending.send(MESSAGE) for _ in range(20)))

        assert cluster.name_server.asked == ["t"]
        assert len(cluster.sends) == 20


async def test_an_unknown_topic_is_an_error_when_no_broker_creates_topics() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        with pytest.raises(TopicNotFoundError, match="unknown"):
            await sending.send(Message(topic="unknown", body=b"x"))

        assert cluster.name_server.asked == ["unknown", "TBW102"]
        assert cluster.sends == []


async def test_an_unknown_topic_goes_to_a_broker_that_creates_it() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        broker = cluster.brokers[0]
        cluster.name_server.routes["TBW102"] = route({"a": broker.address}, queues=8)

        await sending.send(Message(topic="new", body=b"x"))

        header = broker.sends[0]
        assert (header.topic, header.default_topic) == ("new", "TBW102")
        assert 0 <= header.queue_id < 4
        assert await sending.fetch_queues("new") == [MessageQueue("new", "a", n) for n in range(4)]


async def test_a_queue_of_another_topic_is_refused_before_anything_is_sent() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        with pytest.raises(QueueNotFoundError):
            await sending.send(MESSAGE, queue=MessageQueue("u", "a", 0))

        assert cluster.sends == []


@pytest.mark.usefixtures("virtual_time")
async def test_the_route_is_asked_for_again_when_its_broker_has_no_master() -> None:
    """Once a second at most, however many sends wait."""
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        await sending.send(MESSAGE)

        with pytest.raises(SendFailedError, match="no master"):
            await sending.send(MESSAGE, queue=MessageQueue("t", "b", 0), timeout=2.0)

        assert cluster.name_server.asked[:2] == ["t", "t"]


# --- name servers -------------------------------------------------------------------------------


async def ask(servers: NameServers, timeout: float = 2.0) -> int:
    header = GetRouteinfoByTopicRequest(topic="t")
    return (await servers.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=timeout)).code


async def test_the_next_name_server_is_asked_within_the_same_call() -> None:
    """RocketMQ's own client fails the call and tries the next one only in the call after."""
    async with ScriptedCluster([]) as cluster:
        remoting = RemotingClient()
        servers = NameServers(remoting, [dead_address(), cluster.address], shuffle=False)

        assert await ask(servers) == ResponseCode.SUCCESS
        assert await ask(servers) == ResponseCode.SUCCESS
        assert cluster.name_server.asked == ["t", "t"]
        await remoting.close()


@pytest.mark.usefixtures("virtual_time")
async def test_a_silent_name_server_gets_only_its_share_of_the_time() -> None:
    async with ScriptedCluster([]) as one, ScriptedCluster([]) as other:
        one.name_server.silent = True
        remoting = RemotingClient()
        servers = NameServers(remoting, [one.address, other.address], shuffle=False)
        begun = asyncio.get_running_loop().time()

        assert await ask(servers, timeout=0.6) == ResponseCode.SUCCESS

        assert asyncio.get_running_loop().time() - begun == pytest.approx(0.3)
        await remoting.close()


async def test_every_name_server_that_was_tried_is_named_when_none_answers() -> None:
    addresses = [dead_address(), dead_address()]
    remoting = RemotingClient()

    with pytest.raises(NameServerError) as failure:
        await ask(NameServers(remoting, addresses))

    assert all(address in str(failure.value) for address in addresses)
    await remoting.close()


# --- life ---------------------------------------------------------------------------------------


async def test_brokers_learn_of_a_producer_after_its_first_send_and_when_it_leaves() -> None:
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster:
        async with producer(cluster) as sending:
            await sending.send(MESSAGE)
            await broker.until(lambda: bool(broker.heartbeats))
            heartbeat = broker.heartbeats[0]
            assert [data.group_name for data in heartbeat.producer_data_set] == ["g"]

        assert [(bye.producer_group, bye.client_id) for bye in broker.goodbyes] == [
            ("g", heartbeat.client_id)
        ]


async def test_heartbeats_are_repeated() -> None:
    broker = ScriptedBroker("a")
    settings = ClientSettings(heartbeat_ms=20)
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", client=settings) as sending,
    ):
        await sending.send(MESSAGE)

        await broker.until(lambda: len(broker.heartbeats) >= 3)


async def test_routes_are_refreshed() -> None:
    settings = ClientSettings(route_refresh_ms=20)
    async with (
        ScriptedCluster([ScriptedBroker("a"), ScriptedBroker("b")]) as cluster,
        Producer(cluster.address, group="g", client=settings) as sending,
    ):
        await sending.send(MESSAGE)
        cluster.name_server.routes["t"] = route({"b": cluster.brokers[1].address})
        asked = len(cluster.name_server.asked)

        await cluster.name_server.until(lambda: len(cluster.name_server.asked) > asked + 1)

        queues = await sending.fetch_queues("t")
        assert {queue.broker_name for queue in queues} == {"b"}


async def test_a_closed_producer_sends_nothing() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster:
        async with producer(cluster) as sending:
            pass

        with pytest.raises(ClientClosedError):
            await sending.send(MESSAGE)
        assert cluster.sends == []


async def test_closing_ends_a_send_that_waits() -> None:
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, retries=0) as sending:
        waiting = asyncio.create_task(sending.send(MESSAGE, timeout=60.0))
        await broker.until(lambda: len(broker.sends) == 1)
        await sending.close()

        with pytest.raises(ClientClosedError, match="may be stored"):
            await waiting


# --- many sends at once --------------------------------------------------------------------------


def narrow(cluster: ScriptedCluster, **more: int) -> Producer:
    settings = ProducerSettings(retries=0, back_pressure_messages=10, **more)
    return Producer(cluster.address, group="g", settings=settings)


@pytest.mark.usefixtures("virtual_time")
async def test_a_send_without_a_timeout_has_all_its_time_once_there_is_room() -> None:
    broker = ScriptedBroker("a", *[Act.STAY_SILENT] * 20)
    async with ScriptedCluster([broker]) as cluster, narrow(cluster) as sending:
        await sending.ready("t")
        ended = await asyncio.gather(
            *(sending.send(MESSAGE) for _ in range(20)),
            sending.send(MESSAGE, timeout=4),
            *(sending.send(MESSAGE) for _ in range(4)),
            sending.send_batch([MESSAGE]),
            return_exceptions=True,
        )

    assert [type(each) for each in ended[:21]] == [SendTimeoutError] * 21
    assert "no room within 4 s" in str(ended[20])
    assert [each.status for each in ended[21:]] == [SendStatus.SEND_OK] * 5


@pytest.mark.usefixtures("virtual_time")
async def test_a_send_without_a_timeout_does_not_wait_for_room_for_ever() -> None:
    broker = ScriptedBroker("a", *[Act.STAY_SILENT] * 10)
    async with (
        ScriptedCluster([broker]) as cluster,
        narrow(cluster, back_pressure_wait_ms=1_000) as sending,
    ):
        first = [await sending.send_soon(MESSAGE, timeout=60) for _ in range(10)]
        with pytest.raises(SendTimeoutError, match="no room within 1 s"):
            await sending.send(MESSAGE)
        for future in first:
            future.cancel()


@pytest.mark.usefixtures("virtual_time")
async def test_sends_to_a_new_topic_go_on_while_its_route_is_looked_up() -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster, producer(cluster) as sending:
        names = cluster.name_server
        names.routes["TBW102"] = names.routes["t"]
        await sending.send("new", b"1")
        await asyncio.sleep(2)
        names.silent = True
        asked = len(names.asked)

        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(sending.send("new", b"2") for _ in range(100)))

        assert asyncio.get_running_loop().time() - began_s < 1
        assert names.asked[asked:] == ["new"], "one lookup serves all"


# --- leaving ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("virtual_time")
async def test_leaving_a_producer_waits_for_the_retries_of_the_sends_that_were_started() -> None:
    broker = ScriptedBroker("a", Act.HANG_UP, Act.HANG_UP)
    async with ScriptedCluster([broker]) as cluster:
        async with producer(cluster) as sending:
            future = await sending.send_soon(MESSAGE)

        assert (await future).status is SendStatus.SEND_OK
    assert len(cluster.sends) == 3


async def test_leaving_a_blocking_producer_waits_for_the_retries_of_the_sends() -> None:
    def send(address: str) -> SendStatus:
        with blocking.Producer(address, group="g") as sending:
            future = sending.send_soon(MESSAGE)
        return future.result().status

    async with ScriptedCluster([ScriptedBroker("a", Act.HANG_UP, Act.HANG_UP)]) as cluster:
        assert await asyncio.to_thread(send, cluster.address) is SendStatus.SEND_OK
        assert len(cluster.sends) == 3


@pytest.mark.usefixtures("virtual_time")
async def test_leaving_a_producer_after_an_error_waits_for_no_retry() -> None:
    async with ScriptedCluster([ScriptedBroker("a", Act.HANG_UP, Act.HANG_UP)]) as cluster:
        with contextlib.suppress(ZeroDivisionError):
            async with producer(cluster) as sending:
                future = await sending.send_soon(MESSAGE)
                raise ZeroDivisionError

        with pytest.raises(ClientClosedError):
            await future


@pytest.mark.usefixtures("virtual_time")
async def test_leaving_a_producer_ends_in_time_and_says_what_has_not_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedCluster([ScriptedBroker("a", Act.STAY_SILENT)]) as cluster:
        began_s = asyncio.get_running_loop().time()
        async with producer(cluster) as sending:
            future = await sending.send_soon(MESSAGE, timeout=3600)
        took_s = asyncio.get_running_loop().time() - began_s

        with pytest.raises(ClientClosedError, match="may be stored"):
            await future
    assert took_s < 10
    assert "sends have not ended before the producer is closed group=g sends=1" in caplog.text
